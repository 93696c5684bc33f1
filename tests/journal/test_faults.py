"""Every call to the disk fails once in turn: what was acknowledged is there, as part of a prefix."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from openq.errors import DiskFull, JournalFailed, OpenQError
from openq.journal import writer
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.journal.pending import CommitGroup, SegmentFile
from tests.journal.fake_disk import FakeDisk, fail_nth, nth_write
from tests.journal.helpers import contents, put, records, small

RECORDS = records(45)
DROP_AT = 40


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)


def workload(path: Path, disk: FakeDisk) -> tuple[list[bytes], list[bytes], int]:
    """Publish over several segments, drop some, close: what was acknowledged, appended, droppable."""
    acked: list[bytes] = []
    appended: list[bytes] = []
    dropped_before = 0
    locations: list[int] = []
    try:
        journal = small(path, io=disk)
    except OpenQError:
        return acked, appended, dropped_before
    try:
        for n, record in enumerate(RECORDS):
            with journal.lock:
                locations.append(journal.append(record))
                appended.append(record)
            journal.wait(locations[-1])
            acked.append(record)
            if n == DROP_AT:
                dropped_before = 3
                journal.drop_before(3)
    except (JournalFailed, DiskFull):
        pass
    finally:
        journal.close()
    if dropped_before:
        dropped_before = sum(location >> 32 < 3 for location in locations)
    return acked, appended, dropped_before


def judge(found: list[bytes], acked: list[bytes], appended: list[bytes], droppable: int) -> None:
    """`found` is `appended` without some end that was not acknowledged and without a dropped beginning."""
    if not found:
        assert not acked
        return
    start = appended.index(found[0])
    assert start <= droppable
    assert found == appended[start : start + len(found)]
    assert start + len(found) >= len(acked)


def calls_of_a_good_run(tmp_path: Path) -> int:
    disk = FakeDisk(tmp_path)
    acked, appended, dropped = workload(tmp_path / "good", disk)
    assert acked == appended == RECORDS
    judge(contents(tmp_path / "good"), acked, appended, dropped)
    return len(disk.calls)


def every_call(tmp_path: Path) -> range:
    return range(1, calls_of_a_good_run(tmp_path / "count") + 3)


def each_nth(tmp_path: Path, fault: Callable[[int], Callable[[str, int], str | None]]) -> None:
    for n in every_call(tmp_path):
        root = tmp_path / str(n)
        root.mkdir()
        disk = FakeDisk(root, fault=fault(n))
        acked, appended, dropped = workload(root / "d", disk)
        judge(contents(root / "d"), acked, appended, dropped)
        # The same after a power cut, whatever of the unsynced rest reached the disk.
        for seed in range(3):
            target = root / f"cut{seed}"
            disk.cut(target, random.Random(seed) if seed else None)
            judge(contents(target / "d"), acked, appended, dropped)


def test_any_call_fails_with_an_input_output_error(tmp_path: Path) -> None:
    each_nth(tmp_path, lambda n: fail_nth(n, errno.EIO))


def test_any_call_finds_the_disk_full(tmp_path: Path) -> None:
    each_nth(tmp_path, lambda n: fail_nth(n, errno.ENOSPC))


def test_any_write_is_short_and_goes_on(tmp_path: Path) -> None:
    for n in every_call(tmp_path):
        root = tmp_path / str(n)
        root.mkdir()
        acked, appended, dropped = workload(root / "d", FakeDisk(root, fault=nth_write(n, "short")))
        assert acked == RECORDS
        judge(contents(root / "d"), acked, appended, dropped)


def test_any_write_is_torn_and_the_process_dies(tmp_path: Path) -> None:
    each_nth(tmp_path, lambda n: nth_write(n, "torn"))


def test_power_is_cut_after_any_call(tmp_path: Path) -> None:
    """The process dies at the n-th call; half of what was not synced is lost, sector by sector."""

    def dying(n: int, holder: list[FakeDisk]) -> Callable[[str, int], str | None]:
        def fault(operation: str, count: int) -> str | None:
            if count >= n:
                holder[0].die()
                raise OSError(errno.EIO, "power cut")
            return None

        return fault

    for n in every_call(tmp_path):
        root = tmp_path / str(n)
        root.mkdir()
        holder: list[FakeDisk] = []
        disk = FakeDisk(root, fault=dying(n, holder))
        holder.append(disk)
        acked, appended, dropped = workload(root / "d", disk)
        for seed in range(4):
            target = root / f"cut{seed}"
            disk.cut(target, random.Random(seed) if seed else None)
            judge(contents(target / "d"), acked, appended, dropped)


# -- the judge must be able to convict: planted faults


def lost_after_cut(tmp_path: Path, disk: FakeDisk, kind: type[Journal] = Journal) -> bool:
    """Whether some acknowledged record is gone after a power cut at the moment of its acknowledgement."""
    journal = kind(
        tmp_path / "d",
        io=disk,
        segment_bytes=1024,
        first_segment_bytes=1024,
        rows_of=lambda record, offset: b"",
    )
    acked: list[bytes] = []
    lost = False
    for n, record in enumerate(records(30)):
        put(journal, record)
        acked.append(record)
        target = tmp_path / f"cut{n}"
        disk.cut(target)
        try:
            lost = lost or contents(target / "d") != acked
        except OpenQError:
            lost = True
    journal.close()
    return lost


def test_an_honest_journal_loses_nothing(tmp_path: Path) -> None:
    assert not lost_after_cut(tmp_path, FakeDisk(tmp_path))


@pytest.mark.parametrize("lie", ["fdatasync", "fsync_dir"])
def test_leaving_out_a_sync_is_caught(tmp_path: Path, lie: str) -> None:
    assert lost_after_cut(tmp_path, FakeDisk(tmp_path, lies=frozenset({lie})))


def test_leaving_out_the_sync_of_a_new_segment_only_is_caught(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path)

    class NoNameSync(Journal):
        def _advance(self, segment: SegmentFile) -> None:
            disk.lies = frozenset({"fsync_dir"})
            super()._advance(segment)

    assert lost_after_cut(tmp_path, disk, NoNameSync)


def test_answering_before_the_sync_is_caught(tmp_path: Path) -> None:
    class Eager(Journal):
        def _commit(self, group: CommitGroup) -> None:
            blocks = list(group.blocks)
            self._finish(group)
            for block in blocks:
                self._write(block)

        def wait(self, location: int) -> None:
            self.flush()
            while self.durable_location <= location:
                pass

    disk = FakeDisk(tmp_path)
    slow = disk.fdatasync

    def fdatasync(fd: int) -> None:
        import time

        time.sleep(0.02)
        slow(fd)

    disk.fdatasync = fdatasync  # type: ignore[method-assign]
    assert lost_after_cut(tmp_path, disk, Eager)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("operation", ["mkdir", "open", "rename"])
def test_a_folder_that_may_not_be_written_is_refused_by_name(
    tmp_path: Path, operation: str, number: int
) -> None:
    def refuse(path: str, *_: object) -> None:
        raise OSError(number, os.strerror(number), path)

    io = DiskIo()
    setattr(io, operation, refuse)
    with pytest.raises(JournalFailed) as caught:
        small(tmp_path / "d", io=io)

    assert caught.value.reason.startswith("no permission to write " + str(tmp_path / "d"))
    assert os.strerror(number) in caught.value.reason
    assert f"{tmp_path / 'd'} and all in it must be writable" in caught.value.reason
    put(journal := small(tmp_path / "d"), b"once it may")
    journal.close()
