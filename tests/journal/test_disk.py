"""The small things around system calls, and what happens when an unimportant one fails."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from openq.errors import InvalidSetting, JournalFailed
from openq.journal import file_journal, writer
from openq.journal.disk import DiskIo, allocate, make_file, read_all, write_all
from openq.journal.flag import WakeFlag
from openq.journal.lockfile import DirectoryLock
from tests.journal.fake_disk import FakeDisk
from tests.journal.helpers import contents, put, records, small
from tests.waiting import until


class Stingy(DiskIo):
    """Gives and takes at most 7 bytes at a time."""

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return super().pwrite(fd, bytes(data)[:7], offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, min(size, 7), offset)


def test_a_journal_on_a_disk_that_takes_and_gives_little_at_a_time(tmp_path: Path) -> None:
    journal = small(tmp_path, io=Stingy())
    locations = put(journal, *records(30))
    assert journal.read_many(locations) == records(30)
    journal.close()
    assert contents(tmp_path, io=Stingy()) == records(30)


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    class Blocked(DiskIo):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
            return 0

    io = Blocked()
    fd = io.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="no more bytes"):
        write_all(io, fd, b"data", 0)
    io.close(fd)


def test_without_fallocate_zeros_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.journal.disk._ZEROS", 1000)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    io = DiskIo()
    fd = make_file(io, str(tmp_path / "file"), 2500)

    assert io.file_size(fd) == 2500
    assert read_all(io, fd, 9999, 0) == bytes(2500)
    io.close(fd)


def test_an_error_of_fallocate_is_not_hidden(tmp_path: Path) -> None:
    class Broken(DiskIo):
        def fallocate(self, fd: int, size: int) -> None:
            raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        allocate(Broken(), 0, 100)
    with pytest.raises(OSError, match="broken"):
        make_file(Broken(), str(tmp_path / "file"), 100)
    assert os.listdir(tmp_path) == []


def test_a_failed_close_or_unlink_of_leftovers_is_only_logged(tmp_path: Path) -> None:
    class Clumsy(DiskIo):
        clumsy = False

        def unlink(self, path: str) -> None:
            if self.clumsy:
                raise OSError(errno.EIO, "cannot")
            super().unlink(path)

        def close(self, fd: int) -> None:
            super().close(fd)
            if self.clumsy:
                raise OSError(errno.EIO, "cannot")

    io = Clumsy()
    journal = small(tmp_path, io=io)
    put(journal, b"x")
    until(lambda: journal._pool.spares)
    io.clumsy = True
    journal.close()
    assert contents(tmp_path) == [b"x"]


def test_a_flag_is_waited_for_once_per_raise() -> None:
    flag = WakeFlag()
    assert not flag.wait(0.001)
    flag.set()
    flag.set()
    assert flag.wait(None)
    assert not flag.wait(0.001)


def test_a_flag_raised_by_two_threads_at_once() -> None:
    class Raced:
        """A lock that somebody else releases between the look and the release."""

        def locked(self) -> bool:
            return True

        def release(self) -> None:
            raise RuntimeError("release unlocked lock")

    flag = WakeFlag()
    flag._lock = Raced()  # type: ignore[assignment]
    flag.set()


def test_a_folder_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalFailed, match="cannot open"):
        small(tmp_path / "file")
    (tmp_path / "d" / "LOCK").mkdir(parents=True)
    with pytest.raises(JournalFailed, match="cannot open"):
        small(tmp_path / "d")


def test_the_lock_works_on_a_full_disk_and_not_on_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [errno.ENOSPC]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        raise OSError(wrong[0], os.strerror(wrong[0]))

    monkeypatch.setattr(os, "pwrite", pwrite)
    DirectoryLock(str(tmp_path), 0).release()
    wrong[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        DirectoryLock(str(tmp_path), 0)
    monkeypatch.undo()
    # The failed attempt holds nothing.
    DirectoryLock(str(tmp_path), 0).release()


def test_a_file_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("openq.journal.lockfile.fcntl.flock", flock)
    with pytest.raises(OSError, match="No locks"):
        DirectoryLock(str(tmp_path), 0)


def test_dropping_that_fails_is_tried_again_later(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    for record in records(100):
        put(journal, record)
    before = [segment.number for segment in journal.segments()]

    def fault(operation: str, count: int) -> str | None:
        if operation in ("unlink", "rename"):
            raise OSError(errno.EIO, "cannot")
        return None

    disk.fault = fault
    assert journal.drop_before(3) == 0
    assert [segment.number for segment in journal.segments()] == before
    disk.fault = None
    assert journal.drop_before(3) == 2
    journal.close()


def test_after_a_failed_folder_sync_nothing_more_is_dropped(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    for record in records(150):
        put(journal, record)

    def fault(operation: str, count: int) -> str | None:
        if operation == "fsync_dir":
            raise OSError(errno.EIO, "cannot")
        return None

    disk.fault = fault
    assert journal.drop_before(3) == 1
    disk.fault = None
    assert journal.drop_before(4) == 0
    first = journal.segments()[0].number
    journal.close()
    journal = small(tmp_path / "d")
    assert journal.segments()[0].number == first
    journal.close()


def test_a_recycled_file_that_does_not_open_is_given_up(tmp_path: Path) -> None:
    class Moody(DiskIo):
        moody = False

        def open(self, path: str, flags: int) -> int:
            if self.moody and flags == os.O_RDWR:
                raise OSError(errno.EMFILE, "too many open files")
            return super().open(path, flags)

    io = Moody()
    journal = small(tmp_path, io=io, first_segment_bytes=4096)
    for record in records(150):
        put(journal, record)
    io.moody = True
    assert journal.drop_before(2) == 1
    io.moody = False
    put(journal, b"more")
    journal.close()
    assert contents(tmp_path)[-1] == b"more"


def test_a_record_beyond_all_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_BLOCK", 10_000)
    journal = small(tmp_path)
    with pytest.raises(InvalidSetting, match="too large"):
        put(journal, bytes(20_000))
    put(journal, b"fine")
    journal.close()


def test_a_mistake_of_ours_in_the_writer_fails_the_journal_and_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = small(tmp_path)

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(writer, "seal_pieces", broken)
    with pytest.raises(JournalFailed, match="ZeroDivisionError"):
        put(journal, b"x")
    journal.close()


def test_a_mistake_of_ours_in_the_keeper_is_survived(tmp_path: Path) -> None:
    broken = [True]

    class Careless(file_journal.Journal):
        def _prepare_segments(self) -> float | None:
            if broken:
                broken.pop()
                raise ZeroDivisionError
            return super()._prepare_segments()

    journal = Careless(tmp_path, reserve_bytes=0, rows_of=lambda record, offset: b"")
    until(lambda: journal._pool.spares)
    journal.close()


def test_a_reserve_of_another_size_is_replaced(tmp_path: Path) -> None:
    for size in (2048, 4096, 4096):
        journal = small(tmp_path, reserve_bytes=size)
        until(lambda: journal._pool.reserve)  # noqa: B023
        assert os.path.getsize(tmp_path / "journal" / "reserve") == size
        journal.close()


def test_the_default_clock_and_salt(tmp_path: Path) -> None:
    from openq.journal.scan import read_header

    salts = set()
    for name in ("a", "b"):
        file_journal.Journal(tmp_path / name).close()
        header = read_header(DiskIo(), str(tmp_path / name / "journal" / "0000000000000001.seg"))
        salts.add(header.salt)
        assert header.created_ms > 1_700_000_000_000
    assert len(salts) == 2


def test_closing_from_a_callback_does_not_hang(tmp_path: Path) -> None:
    journal = small(tmp_path)
    done = threading.Event()

    def end() -> None:
        journal.close()
        done.set()

    with journal.lock:
        journal.append(b"x")
        journal.after_commit(end)
    journal.flush()
    assert done.wait(20)
    journal._writer.join()
    assert contents(tmp_path) == [b"x"]
