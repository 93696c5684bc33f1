"""Waiting for the disk on an event loop: which thread commits, and what the callbacks get."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from openq.errors import JournalFailed, OpenQError
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.journal.pace import SyncPace
from openq.local.broker import LocalBroker
from openq.local.commits import CommitNotifier
from openq.model import ENCODING_TEXT, QueueSettings
from tests.waiting import until


class ListingDisk(DiskIo):
    """Lists the threads that sync; can be broken."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.is_broken = False

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread().name)
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


class Pace(SyncPace):
    """The tests must not depend on the speed of the disk that they run on."""

    def __init__(self, is_fast: bool) -> None:
        super().__init__()
        self.is_fast = is_fast

    def is_short(self, now_s: float) -> bool:
        return self.is_fast


class Publisher:
    """A broker on a loop of this thread."""

    def __init__(self, path: Path, is_fast: bool) -> None:
        self.disk = ListingDisk()
        self.journal = Journal(path, io=self.disk)
        self.journal._pace = Pace(is_fast)
        self.broker = LocalBroker(journal=self.journal)
        self.loop = asyncio.new_event_loop()
        self.notifier = CommitNotifier(self.broker, self.loop)
        self.broker.declare("q", QueueSettings())
        self.broker.sync()
        self.disk.threads.clear()

    def publish(self, count: int) -> list[OpenQError | None]:
        """Publish in one tick; each waits for the disk. The results, all durable when they came."""
        results: list[OpenQError | None] = []

        def committed(error: OpenQError | None) -> None:
            assert error is not None or self.journal.durable_location >= self.journal.end_location
            results.append(error)
            if len(results) == count:
                self.loop.stop()

        def tick() -> None:
            for number in range(count):
                self.broker.publish_body("q", b"%d" % number, ENCODING_TEXT)
                self.notifier.after_commit(committed)

        self.loop.call_soon(tick)
        self.loop.run_forever()
        return results


@contextmanager
def publisher(path: Path, is_fast: bool = True) -> Iterator[Publisher]:
    made = Publisher(path, is_fast)
    try:
        with closing(made.broker):
            yield made
    finally:
        made.loop.close()


HERE = threading.current_thread().name


def test_the_only_callback_of_a_tick_is_committed_by_the_loop(tmp_path: Path) -> None:
    def is_committed_here() -> bool:
        assert made.publish(1) == [None]
        return HERE in made.disk.threads

    # On a busy machine the writer, which looks for records every few milliseconds, may be first many times.
    with publisher(tmp_path) as made:
        until(is_committed_here)


def test_one_callback_between_ticks_of_many_is_left_to_the_writer(tmp_path: Path) -> None:
    with publisher(tmp_path) as made:
        for count in (1, 3) * 15:
            assert made.publish(count) == [None] * count
        assert HERE not in made.disk.threads


def test_a_publish_and_the_delivery_of_its_message_are_committed_by_the_loop(tmp_path: Path) -> None:
    """A consumer that waits gets the message in the same tick: two callbacks, and still one caller."""
    with publisher(tmp_path) as made:

        def deliver() -> list[str]:
            order: list[str] = []

            def committed(name: str, error: OpenQError | None) -> None:
                assert error is None
                order.append(name)
                if len(order) == 2:
                    made.loop.stop()

            def tick() -> None:
                made.broker.publish_body("q", b"x", ENCODING_TEXT)
                made.notifier.after_commit(partial(committed, "published"))
                location = made.broker.commit_location(made.broker.receive("q"))
                if location is None:  # the writer was faster
                    committed("delivered", None)
                else:
                    made.notifier.after_commit(partial(committed, "delivered"), location)

            made.loop.call_soon(tick)
            made.loop.run_forever()
            return sorted(order)

        def is_committed_here() -> bool:
            assert deliver() == ["delivered", "published"]
            return HERE in made.disk.threads

        until(is_committed_here)


def test_on_a_slow_disk_the_loop_never_commits(tmp_path: Path) -> None:
    with publisher(tmp_path, is_fast=False) as made:
        for _ in range(30):
            assert made.publish(1) == [None]
        assert HERE not in made.disk.threads


def test_callbacks_of_one_tick_share_a_commit_of_the_writer(tmp_path: Path) -> None:
    with publisher(tmp_path) as made:
        for _ in range(10):
            assert made.publish(5) == [None] * 5
        assert set(made.disk.threads) == {"openq-writer"}
        assert len(made.disk.threads) <= 20  # the writer may begin in the middle of a tick


def test_the_loop_of_a_program_is_not_blocked_by_its_tasks(tmp_path: Path) -> None:
    async def publish(made: Publisher) -> None:
        for _ in range(30):
            made.broker.publish_body("q", b"x", ENCODING_TEXT)
            future = made.notifier.future()
            if future is not None:
                await future

    with publisher(tmp_path) as made:
        made.loop.run_until_complete(publish(made))
        assert HERE not in made.disk.threads


def test_a_failed_commit_of_the_loop_is_an_error_for_its_callback(tmp_path: Path) -> None:
    with publisher(tmp_path) as made:
        while HERE not in made.disk.threads:
            assert made.publish(1) == [None]
        made.disk.threads.clear()
        made.disk.is_broken = True
        [error] = made.publish(1)
        assert isinstance(error, JournalFailed)
        assert len(made.disk.threads) == 1


def test_a_commit_of_the_loop_does_not_overtake_callbacks_of_the_writer(tmp_path: Path) -> None:
    with publisher(tmp_path) as made:
        while HERE not in made.disk.threads:
            assert made.publish(1) == [None]
        order: list[str] = []

        def committed(name: str, error: OpenQError | None) -> None:
            assert error is None
            order.append(name)
            if len(order) == 2:
                made.loop.stop()

        for name in ("first", "second"):
            made.broker.publish_body("q", name.encode(), ENCODING_TEXT)
            made.notifier.after_commit(partial(committed, name))
            if name == "first":  # the writer commits it, and its notification waits for the loop
                made.journal.flush()
                until(lambda: made.journal.durable_location >= made.journal.end_location)
                until(lambda: made.journal._busy is None)
        made.loop.run_forever()
        assert order == ["first", "second"]
