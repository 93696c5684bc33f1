"""Damaged journals: thousands of ways to spoil a good one, and what must hold for each of them."""

from __future__ import annotations

import filecmp
import os
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from openq.clock import VirtualClock
from openq.errors import JournalDamaged, OpenQError
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.journal.format import HEADER_BYTES, BadHeader, frames, unpack_header
from openq.journal.inspect import FoundBlock, JournalInspection
from openq.journal.repair import check, repair
from openq.local.broker import LocalBroker
from tests.crash.client import Client
from tests.crash.host import Host, QuietIo
from tests.crash.ledger import Ledger, read_body
from tests.crash.workload import SPACES, Work, open_broker, open_journal

KINDS = ("cut", "zeros", "garbage", "hole", "stale", "flip", "dup", "grow")
# What happens to whole files: removed, in each other's place, copied, renamed, replaced.
FILE_KINDS = ("gone", "several gone", "swap", "copy", "rename", "foreign", "folder", "empty")


@dataclass(frozen=True, slots=True)
class Extent:
    """One block of the good journal: where it lies and the records in it."""

    file: str
    start: int
    end: int
    records: tuple[bytes, ...]


class Specimen:
    """A good journal, the promises made with it, and where everything lies."""

    def __init__(self, path: Path, *, closed: bool, snapshots: bool) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.ledger = Ledger(SPACES)
        live = path.with_name(path.name + "-live")
        broker = open_broker(live, self.clock)
        Work(Client(self.ledger, Host(broker).answer), self.clock).run()
        if closed:
            broker.close()
            shutil.copytree(live, path)
        else:
            assert broker.journal is not None
            broker.sync()
            _rest(broker)
            shutil.copytree(live, path)
            broker.close()
        shutil.rmtree(live)
        if not snapshots:
            shutil.rmtree(path / "snapshots")
        self.extents = _extents(path)
        self.files = sorted(
            os.path.relpath(os.path.join(folder, name), path)
            for folder, _, names in os.walk(path)
            for name in names
            if name != "LOCK" and not name.endswith(".tmp")
        )
        self.contents = {name: (path / name).read_bytes() for name in self.files}
        self.segments = [name for name in self.files if name.endswith(".seg")]
        self.records = [record for extent in self.extents for record in extent.records]


def _rest(broker: LocalBroker) -> None:
    """End the threads that make, rename and free files beside the traffic: a copy has to find every file
    that it was notified of. As after a kill, the last snapshot, which closing makes, is not there.
    """
    housekeeper, journal = broker.housekeeper, broker.journal
    assert housekeeper is not None
    assert isinstance(journal, Journal)
    housekeeper._stopping = True
    housekeeper.wake()
    housekeeper._thread.join()
    journal._preparer.stop()


def _extents(path: Path) -> list[Extent]:
    found = []
    for event in JournalInspection(DiskIo(), os.path.join(path, "journal")).walk():
        assert isinstance(event, FoundBlock), event
        block = event.block
        records = tuple(record for _, record in frames(block.data, block.pos, block.end, block.base))
        file = os.path.join("journal", f"{event.segment:016x}.seg")
        found.append(Extent(file, block.offset, block.base + block.end, records))
    return found


def spoil(path: Path, specimen: Specimen, chance: random.Random) -> str:
    """Damage a copy; says where and how."""
    if chance.random() < 0.25:
        return _spoil_files(path, specimen, chance)
    segments = specimen.segments
    name = chance.choice(segments if chance.random() < 0.75 else specimen.files)
    if chance.random() < 0.3:
        name = segments[-1]
    kind = chance.choice(KINDS)
    file = path / name
    data = bytearray(file.read_bytes())
    used = max([extent.end for extent in specimen.extents if extent.file == name], default=len(data))
    # Mostly where there is something, sometimes in the room behind it, and often at an edge.
    start = chance.randrange(max(1, used if chance.random() < 0.9 else len(data)))
    if chance.random() < 0.3:
        edges = [edge for each in specimen.extents if each.file == name for edge in (each.start, each.end)]
        start = chance.choice(edges or [0])
    size = chance.choice((1, 2, 8, 31, 64, 512, 4096))
    if kind == "cut":
        del data[start:]
    elif kind == "zeros":
        data[start:] = bytes(len(data) - start)
    elif kind == "garbage":
        end = len(data) if chance.random() < 0.3 else min(len(data), start + size)
        data[start:end] = chance.randbytes(end - start)
    elif kind == "hole":
        end = min(len(data), start + size)
        data[start:end] = bytes(end - start)
    elif kind == "stale":
        other = (path / chance.choice(segments)).read_bytes()[start:]
        data[start : start + len(other)] = other
    elif kind == "flip" and data:
        data[min(start, len(data) - 1)] ^= 1 << chance.randrange(8)
    elif kind == "dup":
        data[start:start] = data[start : start + size]
    else:
        data += chance.choice((bytes(size), chance.randbytes(size), bytes(data[start : start + size])))
    file.write_bytes(data)
    return f"{name}: {kind} at {start}, size {size}"


def _spoil_files(path: Path, specimen: Specimen, chance: random.Random) -> str:
    segments = specimen.segments
    kind = chance.choice(FILE_KINDS)
    first, second = (path / name for name in chance.sample(segments, 2))
    beyond = path / "journal" / f"{chance.choice((0, 1, 999, 1 << 60)):016x}.seg"
    if kind == "gone":
        first.unlink()
        if chance.random() < 0.5:
            first.with_suffix(".idx").unlink(missing_ok=True)
    elif kind == "several gone":
        for name in chance.sample(segments, chance.randrange(1, len(segments))):
            (path / name).unlink()
    elif kind == "swap":
        for suffix in (".seg", ".idx") if chance.random() < 0.5 else (".seg",):
            _swap(first.with_suffix(suffix), second.with_suffix(suffix))
    elif kind == "copy":
        target = beyond if chance.random() < 0.3 and not beyond.exists() else second
        shutil.copy(first, target)
        second = target
    elif kind == "rename":
        second = beyond if chance.random() < 0.5 and not beyond.exists() else first.with_suffix(".old")
        first.rename(second)
    elif kind == "foreign":
        data = bytearray(first.read_bytes())
        header = unpack_header(bytes(data))
        data[:HEADER_BYTES] = replace(header, salt=header.salt ^ 1).pack()
        first.write_bytes(data)
    elif kind == "folder":
        first.unlink()
        first.mkdir()
    else:
        first.write_bytes(b"")
    return f"{first.name}: {kind}, {second.name}"


def _swap(one: Path, other: Path) -> None:
    if one.exists() and other.exists():
        between = one.with_suffix(".tmp")
        one.rename(between)
        other.rename(one)
        between.rename(other)


def examine(specimen: Specimen, path: Path, chance: random.Random) -> str:
    """Spoil a fresh copy at `path`, open, repair, open again. Empty if everything is as it must be."""
    shutil.copytree(specimen.path, path)
    what = spoil(path, specimen, chance)
    try:
        _Patient(specimen, path).examine()
    except Complaint as complaint:
        return f"{what}: {complaint}"
    except Exception as error:
        return f"{what}: {error!r}"
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return ""


class Complaint(Exception):
    pass


class _Patient:
    def __init__(self, specimen: Specimen, path: Path) -> None:
        self.specimen = specimen
        self.path = path
        self.found = {
            os.path.relpath(file, path): file.read_bytes()
            for file in (path / "journal").iterdir()
            if file.is_file() and file.suffix not in (".idx", ".tmp")
        }
        self.intact = [self._is_intact(extent) for extent in specimen.extents]

    def _is_intact(self, extent: Extent) -> bool:
        """In its own file, or in one that has its header: a segment is what its header says."""
        good = self.specimen.contents[extent.file]
        return any(
            data[extent.start : extent.end] == good[extent.start : extent.end]
            and (data[:HEADER_BYTES] == good[:HEADER_BYTES] or (file == extent.file and _is_broken(data)))
            for file, data in self.found.items()
        )

    def examine(self) -> None:
        self._open_journal()
        self._open_broker()
        if not check(self.path).ok or self._refuses():
            repair(self.path, io=QuietIo())
            self._after_repair()

    # -- before repair

    def _open_journal(self) -> None:
        """A prefix that stops only where nothing intact follows, or a refusal that changes nothing."""
        before = self.path.with_name(self.path.name + "-before")
        shutil.copytree(self.path, before)
        try:
            records = self._replay()
        except JournalDamaged as error:
            self._is_named(error)
            self._is_unchanged(before)
            return
        finally:
            shutil.rmtree(before)
        whole = self.specimen.records
        if records == whole:
            return
        if records != whole[: len(records)]:
            raise Complaint("replay gives something else than a prefix")
        count = 0
        for extent, intact in zip(self.specimen.extents, self.intact, strict=True):
            count += len(extent.records)
            if intact and count > len(records):
                raise Complaint(f"silent loss: {extent.file} at {extent.start} is intact and not served")

    def _replay(self) -> list[bytes]:
        journal = open_journal(self.path)
        try:
            return [record for _, record in journal.replay()]
        finally:
            journal.close()

    def _is_named(self, error: JournalDamaged) -> None:
        if not error.file.startswith(os.fspath(self.path)) or error.offset < 0:
            raise Complaint(f"damage without a place: {error}")

    def _is_unchanged(self, before: Path) -> None:
        for name in self.specimen.files:
            if name == "journal/bounds":
                continue  # the journal may be opened before its records are found to be damaged
            old, new = before / name, self.path / name
            if old.exists() != new.exists() or (old.is_file() and not filecmp.cmp(old, new, False)):
                raise Complaint(f"a refused opening changed {name}")

    def _refuses(self) -> bool:
        try:
            self._broker().close()
        except JournalDamaged as error:
            self._is_named(error)
            return True
        return False

    def _broker(self) -> LocalBroker:
        return open_broker(self.path, VirtualClock(self.specimen.clock.now_ms()))

    def _open_broker(self) -> None:
        """Whatever is handed out is right; whatever is not is refused by name, or set aside."""
        copy = self.path.with_name(self.path.name + "-served")
        shutil.copytree(self.path, copy)
        try:
            _serve(copy, self.specimen)
        except JournalDamaged:
            pass
        finally:
            shutil.rmtree(copy)

    # -- after repair

    def _after_repair(self) -> None:
        left = check(self.path)
        if not left.ok:
            raise Complaint(f"still damaged after repair: {left.damages}")
        records = self._replay()
        wanted = [
            record
            for extent, intact in zip(self.specimen.extents, self.intact, strict=True)
            if intact
            for record in extent.records
        ]
        for record in records:
            if wanted and record == wanted[0]:
                wanted.pop(0)
        if wanted:
            raise Complaint(f"{len(wanted)} intact records are missing after repair")
        try:
            if aside := _serve(self.path, self.specimen):
                raise Complaint(f"not readable after repair: {aside}")
        except OpenQError as error:
            raise Complaint(f"not served after repair: {error!r}") from error


def _is_broken(data: bytes) -> bool:
    """A header that says nothing, not even that it is another segment's or another journal's."""
    try:
        unpack_header(data)
    except BadHeader:
        return True
    return False


def _serve(path: Path, specimen: Specimen) -> dict[str, int]:
    """Take everything out and compare it. What was set aside, by queue. Raises what the broker raises."""
    clock = VirtualClock(specimen.clock.now_ms())
    broker = open_broker(path, clock)
    try:
        for _ in range(40):
            for queue in broker.queues():
                while deliveries := broker.receive(queue, 100):
                    readable = broker.load(deliveries)
                    for delivery in readable:
                        _is_right(queue, delivery.entry.body, specimen)
                    broker.ack(queue, [(each.entry.seq, each.number) for each in readable])
            stats = [broker.stats(queue) for queue in broker.queues()]
            if not any(each.ready + each.delayed + each.in_flight for each in stats):
                return dict(broker.inspect.damage.set_aside())
            clock.advance(600)
        raise Complaint(f"messages do not come out: {stats}")
    finally:
        broker.close()


def _is_right(queue: str, body: bytes | None, specimen: Specimen) -> None:
    known = read_body(body or b"")
    if known is None:
        raise Complaint(f"wrong body {body!r}")
    if specimen.ledger.item(queue, known[0]) not in specimen.ledger.fates:
        raise Complaint(f"{known[0]} was never sent to {queue}")
