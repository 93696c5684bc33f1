"""Group commit: who is released when, and by how many syncs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from openq.errors import JournalFailed
from openq.journal.disk import DiskIo
from tests.journal.helpers import contents, put, small
from tests.tracing import traced
from tests.waiting import until


class Gate(DiskIo):
    """Syncs of data can be held back; counts them."""

    def __init__(self) -> None:
        self.open_ = threading.Event()
        self.open_.set()
        self.arrived = threading.Semaphore(0)
        self.syncs = 0
        self.sync_s = 0.0  # how long a sync takes: nothing on a disk in memory
        self.threads: list[str] = []

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        self.threads.append(threading.current_thread().name)
        self.arrived.release()
        self.open_.wait()
        if self.sync_s:
            time.sleep(self.sync_s)
        super().fdatasync(fd)


def test_a_lone_thread_commits_by_itself(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate)
    gate.threads.clear()
    for n in range(20):
        put(journal, b"%d" % n)

    assert gate.threads.count(threading.current_thread().name) >= 18
    journal.close()


def test_those_who_come_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate, segment_bytes=1 << 20, first_segment_bytes=1 << 20)
    gate.arrived = threading.Semaphore(0)
    gate.open_.clear()
    first = threading.Thread(target=put, args=(journal, b"first"))
    first.start()
    gate.arrived.acquire()
    threads = [threading.Thread(target=put, args=(journal, b"%d" % n)) for n in range(100)]
    for thread in threads:
        thread.start()
    until(lambda: len(journal._waiters) == 100)
    before = gate.syncs
    gate.open_.set()
    for thread in [first, *threads]:
        thread.join()

    assert gate.syncs == before + 1
    journal.close()
    assert len(contents(tmp_path)) == 101


def test_a_thread_that_waits_for_a_record_under_way_is_released_with_it(tmp_path: Path) -> None:
    """A consumer waits for the publish that it was served: it needs no commit of its own, and no other
    thread."""
    gate = Gate()
    journal = small(tmp_path, io=gate)
    gate.arrived = threading.Semaphore(0)
    gate.open_.clear()
    with journal.lock:
        location = journal.append(b"served")
    publisher = threading.Thread(target=journal.wait, args=(location,), daemon=True)
    publisher.start()
    gate.arrived.acquire()
    consumer = threading.Thread(target=journal.wait, args=(location,), daemon=True)
    consumer.start()
    # The writer may have been first: then the publisher waits as well.
    is_writers = gate.threads[-1] == "openq-writer"
    until(lambda: journal._busy is not None and len(journal._busy.waiters) == 1 + is_writers)
    before = journal.group
    gate.open_.set()
    publisher.join()
    consumer.join()

    assert journal.group == before
    journal.close()


def test_two_threads_hand_the_commit_to_each_other(tmp_path: Path) -> None:
    """Without a third thread in between, which would cost two thread switches for each commit."""
    gate = Gate()
    journal = small(tmp_path, io=gate, segment_bytes=1 << 20, first_segment_bytes=1 << 20)
    gate.threads.clear()
    for n in range(5):
        gate.arrived = threading.Semaphore(0)
        gate.open_.clear()
        first = threading.Thread(target=put, args=(journal, b"%d" % n), name="first")
        first.start()
        gate.arrived.acquire()
        second = threading.Thread(target=put, args=(journal, b"%d too" % n), name="second")
        second.start()
        until(lambda: len(journal._waiters) == 1)
        gate.open_.set()
        first.join()
        second.join()
    journal.close()

    assert "second" in gate.threads  # the writer comes first if this machine is very slow


def test_many_threads_need_far_fewer_syncs(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate, segment_bytes=1 << 20, first_segment_bytes=1 << 20)
    acked: list[bytes] = []

    def work(name: int) -> None:
        for n in range(50):
            record = b"%d/%d" % (name, n)
            put(journal, record)
            acked.append(record)

    gate.syncs, gate.sync_s = 0, 0.005
    threads = [threading.Thread(target=work, args=(name,)) for name in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    syncs = gate.syncs
    journal.close()

    assert len(acked) == 1600
    assert sorted(contents(tmp_path)) == sorted(acked)
    assert syncs < 800


def test_callbacks_and_waiters_of_many_groups_mix(tmp_path: Path) -> None:
    journal = small(tmp_path)
    called: list[int] = []
    wanted: list[int] = []

    def asynchronous(name: int) -> None:
        for n in range(200):
            with journal.lock:
                location = journal.append(b"%d/%d" % (name, n))
                wanted.append(location)
                journal.after_commit(
                    lambda location=location: called.append(
                        location if journal.durable_location > location else -1
                    )
                )  # type: ignore[misc]
            if n % 3 == 0:
                journal.flush()

    def synchronous(name: int) -> None:
        for n in range(100):
            put(journal, b"%d/%d" % (name, n))

    threads = [threading.Thread(target=asynchronous, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=synchronous, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(called) == 800)
    # In the order of appending: groups never overtake each other.
    assert called == wanted
    journal.close()


def test_one_callback_per_group_is_enough(tmp_path: Path) -> None:
    journal = small(tmp_path)
    registered = 0
    answered: list[int] = []
    waiting: list[int] = []

    def answer() -> None:
        with journal.lock:
            while waiting and waiting[0] < journal.durable_location:
                answered.append(waiting.pop(0))

    locations = []
    for n in range(500):
        with journal.lock:
            locations.append(journal.append(b"%d" % n))
            waiting.append(locations[-1])
            if registered != journal.group:
                registered = journal.group
                journal.after_commit(answer)
        if n % 7 == 0:
            journal.flush()
    until(lambda: len(answered) == 500)
    assert answered == locations
    journal.close()


def test_reading_while_it_is_being_written(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate)
    gate.arrived = threading.Semaphore(0)
    gate.open_.clear()
    locations = put(journal, b"being written", wait=False)
    journal.flush()
    gate.arrived.acquire()
    locations += put(journal, b"pending", wait=False)

    assert journal.read_many(locations) == [b"being written", b"pending"]
    gate.open_.set()
    journal.wait(locations[-1])
    assert journal.read_many(locations) == [b"being written", b"pending"]
    journal.close()


def test_a_waiter_of_a_record_that_is_being_written_is_notified_with_it(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate, segment_bytes=1 << 20, first_segment_bytes=1 << 20)
    gate.arrived = threading.Semaphore(0)
    gate.open_.clear()
    reported: list[int] = []
    with journal.lock:
        written = journal.append(b"being written")
        journal.after_commit(lambda: None)
    journal.flush()
    gate.arrived.acquire()
    with journal.lock:
        pending = journal.append(b"pending")
        assert journal.after_commit_of(written, lambda: reported.append(journal.durable_location))
        assert not journal.after_commit_of(pending, lambda: reported.append(0))
    assert reported == []

    gate.open_.set()
    until(lambda: len(reported) == 1)

    assert written < reported[0] <= pending
    journal.wait(pending)
    with journal.lock:
        assert not journal.after_commit_of(written, lambda: reported.append(0))
    journal.close()
    assert len(reported) == 1


def test_an_interrupted_commit_is_finished_by_the_writer(tmp_path: Path) -> None:
    class Interrupted(DiskIo):
        armed = False

        def fdatasync(self, fd: int) -> None:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            super().fdatasync(fd)

    io = Interrupted()
    journal = small(tmp_path, io=io)
    io.armed = True
    with pytest.raises(KeyboardInterrupt):
        put(journal, b"first")
    [location] = put(journal, b"second")

    assert journal.durable_location > location
    journal.close()
    assert contents(tmp_path) == [b"first", b"second"]


def test_an_interruption_at_any_point_of_a_commit_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Ctrl-C reaches the main thread between any two steps of Python code."""
    for step in range(0, 400, 7):
        journal = small(tmp_path / str(step), reserve_bytes=0)
        helper = threading.Thread(target=put, args=(journal, b"another"))
        seen = 0
        armed = True

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal seen, armed
            if (
                armed
                and frame.f_code.co_filename.endswith("journal/writer.py")
                and (frame.f_code.co_name in ("_commit", "_write", "_finish", "_retry_while_full"))
            ):
                seen += 1
                if seen == step:  # noqa: B023
                    armed = False
                    raise KeyboardInterrupt
            return trace

        with journal.lock:
            location = journal.append(b"mine")
        helper.start()
        with suppress(KeyboardInterrupt), traced(trace):
            journal.wait(location)
        helper.join(20)
        assert not helper.is_alive()
        put(journal, b"later")
        journal.close()
        assert sorted(contents(tmp_path / str(step))) == [b"another", b"later", b"mine"]


def test_a_failed_sync_is_final_for_everybody(tmp_path: Path) -> None:
    class Failing(Gate):
        failing = False

        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            if self.failing:
                raise OSError(5, "Input/output error")

    io = Failing()
    journal = small(tmp_path, io=io)
    [good] = put(journal, b"good")
    io.arrived = threading.Semaphore(0)
    io.failing = True
    io.open_.clear()
    failures: list[BaseException] = []
    called: list[object] = []

    def attempt() -> None:
        try:
            put(journal, b"bad")
        except JournalFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(10)]
    for thread in threads:
        thread.start()
    io.arrived.acquire()
    until(lambda: len(journal._waiters) == 9)
    with journal.lock:
        journal.after_commit(lambda: called.append(journal.error))
    io.open_.set()
    for thread in threads:
        thread.join()
    until(lambda: called)
    syncs = io.syncs

    assert len(failures) == 10
    assert isinstance(called[0], JournalFailed)
    assert "Input/output error" in str(journal.error)
    io.failing = False
    with pytest.raises(JournalFailed):
        put(journal, b"later")
    with journal.lock:
        journal.after_commit(lambda: called.append("late"))
    until(lambda: "late" in called)
    journal.wait(good)
    assert journal.read(good) == b"good"
    journal.close()
    assert io.syncs == syncs
    assert contents(tmp_path)[0] == b"good"
