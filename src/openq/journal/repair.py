"""check, repair and dump: for a journal that does not open, or that must not be opened just to inspect it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from openq.errors import JournalDamaged
from openq.journal import index, losses, snapshots
from openq.journal.content import index_rows
from openq.journal.disk import DiskIo, make_file, read_all, write_all
from openq.journal.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    HOLE_BYTES,
    SegmentHeader,
    frames,
    hole,
    make_location,
)
from openq.journal.inspect import (
    DIRECTORY,
    DUPLICATE,
    FOREIGN,
    HEADER,
    MISNAMED,
    MISSING,
    SALT,
    TAIL,
    UNREADABLE,
    FoundBlock,
    JournalDamage,
    JournalInspection,
    TornTail,
)
from openq.journal.lockfile import DirectoryLock
from openq.journal.scan import SegmentScan, segment_numbers, segment_path
from openq.journal.snapshots import newest_location

log = logging.getLogger("openq.journal")

QUARANTINE = "quarantine"
MOVING = ".moving"  # suffix of a segment's name while files are being renamed


@dataclass(slots=True)
class CheckReport:
    """The result of inspecting a journal. `holes` are damages repaired earlier."""

    path: str
    segments: int = 0
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    holes: int = 0
    damages: list[JournalDamage] = field(default_factory=list)
    torn: TornTail | None = None
    missing_sidecars: list[str] = field(default_factory=list)
    repaired: bool = False
    quarantined: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damages


def check(path: str | os.PathLike[str], io: DiskIo | None = None) -> CheckReport:
    """Verify everything. Changes nothing and needs no lock, so it works beside a running process."""
    io = io or DiskIo()
    directory = _directory(path)
    # Read before the walk: a snapshot made meanwhile may cover more than the walk has seen.
    covered_location = newest_location(os.path.join(os.path.abspath(path), "snapshots"), io)
    inspection = JournalInspection(io, directory)
    report = CheckReport(os.path.abspath(path), segments=len(inspection.numbers))
    if (oldest := losses.oldest_live(io, report.path, inspection)) is not None:
        inspection.expect_from(oldest)
    for event in inspection.walk():
        if isinstance(event, JournalDamage):
            report.damages.append(event)
        elif isinstance(event, TornTail):
            report.torn = event
        elif event.block.count == 0:
            report.holes += 1
        else:
            report.blocks += 1
            report.records += event.block.count
            report.bytes += event.block.end - event.block.pos
    for damage in inspection.lost_end(covered_location):
        known = (damage.kind, damage.segment)
        report.damages = [each for each in report.damages if (each.kind, each.segment) != known]
        report.damages.append(damage)
    # Segments that their owner dropped, and perhaps recycled, during the check are not damage.
    first = min(segment_numbers(io, directory), default=0)
    report.damages = [damage for damage in report.damages if not inspection.was_dropped(damage, first)]
    if report.damages:
        again = JournalInspection(io, directory)
        again.expect_from(inspection.first)
        report.damages = losses.counted(io, report.path, report.damages, again.walk())
    for number in inspection.numbers[:-1]:
        if _sidecar(io, segment_path(directory, number)) is None:
            report.missing_sidecars.append(index.index_path(segment_path(directory, number)))
    return report


def dump(
    path: str | os.PathLike[str], start_location: int = 0, io: DiskIo | None = None
) -> Iterator[tuple[int, bytes]]:
    """Every intact record from `start_at` on; damaged places are logged and skipped."""
    for event in JournalInspection(io or DiskIo(), _directory(path)).walk():
        if isinstance(event, JournalDamage):
            log.warning("%s at offset %d: %s, skipped", event.file, event.offset, event.kind)
        elif isinstance(event, FoundBlock) and event.block.count:
            block = event.block
            base = make_location(event.segment, block.base)
            for location, record in frames(block.data, block.pos, block.end, base):
                if location >= start_location:
                    yield location, record


def repair(
    path: str | os.PathLike[str],
    dry_run: bool = False,
    rows_of: index.RowsOf | None = None,
    io: DiskIo | None = None,
) -> CheckReport:
    """Make the journal open again with every intact record. Unreadable data is first copied to quarantine/
    and then replaced by a block that states which blocks are missing.

    Raises DirectoryInUse, and JournalDamaged where nothing can be saved. With `dry_run` nothing changes.
    """
    io = io or DiskIo()
    if dry_run:
        return check(path, io)
    lock = DirectoryLock(os.path.abspath(path), _now_ms())
    try:
        report = check(path, io)
        inspection = JournalInspection(io, _directory(path))
        _refuse_unrepairable(report.damages)
        repairer = _Repairer(io, os.path.abspath(path), inspection.salt or 0)
        damages = report.damages
        if repairer.restore_names(damages):
            # With every file under its right name, the remaining damages are the real ones.
            damages = check(path, io).damages
            _refuse_unrepairable(damages)
        for damage in damages:
            repairer.repair_damage(damage)
        repairer.set_snapshots_aside(everything=bool(report.damages))
        report.quarantined = repairer.quarantined
        _rebuild_sidecars(io, _directory(path), rows_of or index_rows)
        after = check(path, io)
        if not after.ok:
            left = after.damages[0]
            raise JournalDamaged(left.file, left.offset, f"{left.kind}: repair could not correct this")
        report.repaired = True
        return report
    finally:
        lock.release()


def _refuse_unrepairable(damages: list[JournalDamage]) -> None:
    """Refuse, before any change, damage that repair cannot fix or would make worse."""
    for damage in damages:
        if damage.kind == SALT:
            raise JournalDamaged(damage.file, 0, "no header is left to verify any block with")
        if damage.kind == UNREADABLE:
            raise JournalDamaged(
                damage.file, 0, "it cannot be read, and what it holds may be intact: make it readable first"
            )


class _Repairer:
    """Repairs one damage at a time. After an interruption at any step the journal is no worse than before."""

    def __init__(self, io: DiskIo, path: str, salt: int) -> None:
        self._io = io
        self._salt = salt
        self._directory = os.path.join(path, "journal")
        self._quarantine = os.path.join(path, QUARANTINE)
        self.quarantined: list[str] = []

    def restore_names(self, damages: list[JournalDamage]) -> bool:
        """Give every file the name of the segment in it; files that are not segments of this journal are set
        aside.

        Can be repeated after an interruption: a file being renamed is found by its header. Returns whether
        any file moved.
        """
        moved = False
        for damage in damages:
            if damage.kind in (FOREIGN, DIRECTORY, DUPLICATE):
                self._io.mkdir(self._quarantine)
                self._io.rename(damage.file, self._quarantine_path(damage))
                moved = True
        if moved:
            self._io.fsync_dir(self._quarantine)
        misnamed = [damage for damage in damages if damage.kind == MISNAMED]
        for damage in misnamed:
            if damage.file != damage.target + MOVING:
                self._io.rename(damage.file, damage.target + MOVING)
        self._io.fsync_dir(self._directory)
        for damage in misnamed:
            self._io.rename(damage.target + MOVING, damage.target)
            # It is unknown whether its sidecar was moved along, so the sidecar is rebuilt.
            self._drop_sidecar(damage.file.removesuffix(MOVING))
            self._drop_sidecar(damage.target)
        self._io.fsync_dir(self._directory)
        return moved or bool(misnamed)

    def repair_damage(self, damage: JournalDamage) -> None:
        if damage.kind == MISSING:
            self._replace_missing(damage)
            return
        fd = self._io.open(damage.file, os.O_RDWR)
        try:
            self._quarantine_copy(damage, read_all(self._io, fd, damage.size, damage.offset))
            write_all(self._io, fd, self._replacement(damage, fd), damage.offset)
            self._io.fsync(fd)
        finally:
            self._io.close(fd)
        self._drop_sidecar(damage.file)

    def _replacement(self, damage: JournalDamage, fd: int) -> bytes:
        if damage.kind == HEADER:
            size = max(self._io.file_size(fd), HEADER_BYTES)
            return SegmentHeader(damage.segment, _now_ms(), damage.first_block, size, self._salt).pack()
        # The end of a segment needs only a hole block; the rest counts as never written.
        size = HOLE_BYTES if damage.kind == TAIL else max(damage.size, HOLE_BYTES)
        first, last = damage.first_block, damage.last_block
        return hole(size, self._salt, damage.offset, first, last, damage.segment)

    def _replace_missing(self, damage: JournalDamage) -> None:
        """Create a segment file in place of the missing one."""
        first, last = damage.first_block, damage.last_block
        # As long as a snapshot says that the segment was: new records must get later locations.
        size = max(damage.size, HEADER_BYTES + HOLE_BYTES)
        data = SegmentHeader(damage.segment, _now_ms(), first, size, self._salt).pack()
        if last >= first:
            data += hole(size - HEADER_BYTES, self._salt, HEADER_BYTES, first, last, damage.segment)
        temporary = os.path.join(self._directory, f"spare-{damage.segment:016x}.tmp")
        self._io.close(make_file(self._io, temporary, size, data))
        self._io.rename(temporary, damage.file)
        self._io.fsync_dir(self._directory)
        self._drop_sidecar(damage.file)

    def set_snapshots_aside(self, everything: bool) -> None:
        """Set snapshots aside. A snapshot refers to locations in the journal. After damage it may refer to
        lost records, and a snapshot that covers more than the journal has cannot be continued. The records
        alone give the state of all that is left.
        """
        end_location = 0
        for event in JournalInspection(self._io, self._directory).walk():
            if isinstance(event, FoundBlock):
                end_location = make_location(event.segment, event.block.base + event.block.end) + BLOCK_BYTES
        directory = os.path.join(os.path.dirname(self._directory), "snapshots")
        for location, path in snapshots.list_all(directory, self._io):
            if everything or location > end_location:
                self._io.mkdir(self._quarantine)
                place = os.path.join(self._quarantine, f"{location:016x}-{_now_ms():x}.snap")
                self._io.rename(path, place)
                self._io.fsync_dir(self._quarantine)
                self._io.fsync_dir(directory)
                self.quarantined.append(place)

    def _quarantine_copy(self, damage: JournalDamage, data: bytes) -> None:
        self._io.mkdir(self._quarantine)
        self._io.close(make_file(self._io, self._quarantine_path(damage), len(data), data))
        self._io.fsync_dir(self._quarantine)

    def _quarantine_path(self, damage: JournalDamage) -> str:
        stem = os.path.join(self._quarantine, f"{damage.segment:016x}-{damage.offset:08x}-{_now_ms():x}")
        self.quarantined.append(stem + ".bin")
        return stem + ".bin"

    def _drop_sidecar(self, file: str) -> None:
        try:
            self._io.unlink(index.index_path(file))
        except FileNotFoundError:
            pass


def _rebuild_sidecars(io: DiskIo, directory: str, rows_of: index.RowsOf) -> None:
    inspection = JournalInspection(io, directory)
    for number in inspection.numbers[:-1]:
        path = segment_path(directory, number)
        if _sidecar(io, path) is None:
            header = inspection.headers[number]
            fd = io.open(path, os.O_RDONLY)
            try:
                scan = SegmentScan(io, fd, number, header.salt, header.first_block)
                index.save(io, index.index_path(path), index.build(scan.blocks(), rows_of))
            finally:
                io.close(fd)


def _sidecar(io: DiskIo, path: str) -> index.SegmentIndex | None:
    try:
        return index.load(index.index_path(path), io)
    except (OSError, ValueError):
        return None


def _directory(path: str | os.PathLike[str]) -> str:
    return os.path.join(os.path.abspath(path), "journal")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
