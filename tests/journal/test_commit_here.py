"""`commit_here`: an event loop commits by itself, or the writer does it and calls back; never both."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from openq.errors import JournalFailed
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.journal.pace import SyncPace
from openq.journal.writer import MAX_BYTES_HERE
from tests.journal.fake_disk import FakeDisk
from tests.journal.helpers import contents, put, small
from tests.journal.test_commit import Gate
from tests.journal.test_interrupt import ENOUGH, Interruption, Nimble
from tests.waiting import until


class FastDisk(SyncPace):
    """The tests must not depend on the speed of the disk that they run on."""

    def is_short(self, now_s: float) -> bool:
        return True


def roomy(path: Path, io: DiskIo | None = None) -> Journal:
    journal = small(path, io=io or DiskIo(), segment_bytes=1 << 20, first_segment_bytes=1 << 20)
    journal._pace = FastDisk()
    put(journal, b"first")  # the writer is idle, and has nothing to commit
    return journal


def append(journal: Journal, record: bytes, callback: Callable[[], None]) -> int:
    with journal.lock:
        location = journal.append(record)
        journal.after_commit(callback)
    return location


def test_a_lone_caller_commits_in_its_own_thread_and_is_not_called_back(tmp_path: Path) -> None:
    gate = Gate()
    journal = roomy(tmp_path, gate)
    called: list[bytes] = []
    here = 0
    for n in range(50):
        gate.threads.clear()
        record = b"%d" % n
        callback = partial(called.append, record)
        location = append(journal, record, callback)
        if journal.commit_here(callback):
            here += 1
            assert gate.threads == [threading.current_thread().name]
            assert location < journal.durable_location
        else:  # the writer was faster: it does not wait for long with a record
            until(lambda record=record: record in called)  # type: ignore[misc]
    journal.close()

    assert here > 0
    assert here + len(called) == 50
    assert contents(tmp_path)[1:] == [b"%d" % n for n in range(50)]


def check_refused(journal: Journal, prepare: Callable[[Callable[[], None]], object]) -> None:
    """The writer commits instead, and calls back once."""
    called: list[int] = []

    def callback() -> None:
        called.append(journal.durable_location)

    prepare(callback)
    end = journal.end_location
    assert not journal.commit_here(callback)
    journal.flush()
    until(lambda: called)
    assert called == [journal.durable_location]
    assert journal.durable_location >= end
    journal.close()


def test_while_commits_are_slow_the_writer_makes_them(tmp_path: Path) -> None:
    journal = roomy(tmp_path)
    journal._pace = SyncPace()
    check_refused(journal, lambda callback: append(journal, b"slow", callback))


def test_a_commit_that_others_wait_for_is_made_by_the_writer(tmp_path: Path) -> None:
    journal = roomy(tmp_path)
    other: list[int] = []

    def prepare(callback: Callable[[], None]) -> None:
        with journal.lock:
            journal.append(b"both")
            journal.after_commit(lambda: other.append(1))
            journal.after_commit(callback)

    check_refused(journal, prepare)
    assert other == [1]


def test_a_large_block_is_written_by_the_writer(tmp_path: Path) -> None:
    journal = roomy(tmp_path)
    check_refused(journal, lambda callback: append(journal, bytes(MAX_BYTES_HERE), callback))


def test_a_new_segment_is_made_by_the_writer(tmp_path: Path) -> None:
    journal = small(tmp_path)
    journal._pace = FastDisk()

    def prepare(callback: Callable[[], None]) -> None:
        with journal.lock:
            segment = journal._live[-1].segment
            while journal._live[-1].segment is segment:
                journal.append(bytes(100))
            journal.after_commit(callback)

    check_refused(journal, prepare)


def test_a_commit_under_way_is_not_overtaken(tmp_path: Path) -> None:
    gate = Gate()
    journal = roomy(tmp_path, gate)
    gate.arrived = threading.Semaphore(0)
    gate.open_.clear()
    first = threading.Thread(target=put, args=(journal, b"under way"))
    first.start()
    gate.arrived.acquire()
    called: list[int] = []

    def callback() -> None:
        called.append(1)

    append(journal, b"next", callback)
    assert not journal.commit_here(callback)
    assert not called
    journal.flush()
    gate.open_.set()
    first.join()
    until(lambda: called)
    journal.close()
    assert contents(tmp_path) == [b"first", b"under way", b"next"]


def test_a_failed_sync_is_not_repeated_and_fails_the_journal(tmp_path: Path) -> None:
    class Failing(DiskIo):
        syncs = 0
        is_broken = False

        def fdatasync(self, fd: int) -> None:
            if self.is_broken:
                self.syncs += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(fd)

    disk = Failing()
    journal = roomy(tmp_path, disk)
    disk.is_broken = True
    called: list[int] = []

    def callback() -> None:
        called.append(1)

    location = append(journal, b"lost", callback)
    if not journal.commit_here(callback):
        until(lambda: called)  # the writer was faster

    assert isinstance(journal.error, JournalFailed)
    assert disk.syncs == 1
    assert location >= journal.durable_location
    with journal.lock, pytest.raises(JournalFailed):
        journal.append(b"more")
    journal.close()
    assert disk.syncs == 1


def test_on_a_full_disk_the_loop_goes_on_and_the_writer_waits(tmp_path: Path) -> None:
    is_full = threading.Event()

    def fault(operation: str, count: int) -> str | None:
        if operation == "pwrite" and is_full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    journal = roomy(tmp_path / "d", FakeDisk(tmp_path, fault=fault))
    called: list[int] = []

    def callback() -> None:
        called.append(1)

    is_full.set()
    append(journal, b"waits", callback)
    assert not journal.commit_here(callback)  # it returns: the loop is not blocked
    assert not called
    assert journal.error is None
    is_full.clear()
    until(lambda: called)
    journal.close()
    assert called == [1]
    assert contents(tmp_path / "d") == [b"first", b"waits"]


def test_ctrl_c_at_any_step_leaves_exactly_one_result(tmp_path: Path) -> None:
    journal = roomy(tmp_path, Nimble())
    confirmed: list[bytes] = []
    step = unharmed = 0
    while unharmed < ENOUGH:
        step += 1
        record = b"%d" % step
        called: list[int] = []

        def callback(called: list[int] = called) -> None:
            called.append(1)

        append(journal, record, callback)
        is_done = False
        with Interruption(step) as interruption, suppress(KeyboardInterrupt):
            is_done = journal.commit_here(callback)
        unharmed = 0 if interruption.happened else unharmed + 1
        assert journal.lock.acquire(timeout=20), f"locked for ever after {interruption.place}"
        journal.lock.release()
        journal.flush()
        if not is_done:
            until(lambda called=called: called, interruption.place)  # type: ignore[misc]
        put(journal, b"%d after" % step)  # behind all callbacks of the group before
        assert len(called) == (not is_done), interruption.place
        confirmed += [record, b"%d after" % step]
    journal.close()
    assert step > 100
    assert contents(tmp_path)[1:] == confirmed


def lost_after_cut(tmp_path: Path, disk: FakeDisk) -> bool:
    """Whether a record that the loop committed is gone after a power cut at that moment."""
    journal = roomy(tmp_path / "d", disk)
    acked = [b"first"]
    here, lost = 0, False
    while here < 30:
        called = threading.Event()
        record = b"%d" % len(acked)
        append(journal, record, called.set)
        is_done = journal.commit_here(called.set)
        if not is_done:
            journal.flush()
            assert called.wait(60)
        acked.append(record)
        if is_done:
            here += 1
            target = tmp_path / f"cut{here}"
            disk.cut(target)
            lost = lost or contents(target / "d") != acked
    journal.close()
    return lost


def test_a_power_cut_takes_nothing_that_a_loop_committed(tmp_path: Path) -> None:
    assert not lost_after_cut(tmp_path, FakeDisk(tmp_path))


def test_a_loop_that_leaves_out_the_sync_is_caught(tmp_path: Path) -> None:
    assert lost_after_cut(tmp_path, FakeDisk(tmp_path, lies=frozenset({"fdatasync"})))
