"""Row 2: durable publishes of 100 bytes by 1, 16 and 256 publishers, each waiting for its own answer.

The reference writes what our journal wrote: the same bytes in the same groups, one pwrite and one
fdatasync each, into a preallocated file. That is the cost of the disk; the rest is ours.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
from collections.abc import Callable
from typing import Any

from openq.journal.disk import DiskIo
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap, optional

TARGETS = {1: BenchTarget(0.4, 0.6), 16: BenchTarget(0.4, 0.6), 256: BenchTarget(0.15, 0.3)}
REFERENCE = "pwrite+fdatasync, same groups"


def run(run: Run) -> None:
    # Many short laps: the time of a sync changes from one second to the next, and both sides of a round
    # should see the same.
    _row(run, "sync", 1, 300, TARGETS[1])
    _row(run, "callbacks", 16, 200, TARGETS[16])
    _row(run, "callbacks", 256, 100, TARGETS[256])
    _row(run, "threads", 16, 40)
    _row(run, "threads", 256, 10)
    if not hasattr(optional("openq.aio"), "OpenQ"):
        run.log("commit: openq.aio is missing, its rows are skipped")
        return
    _row(run, "asyncio", 16, 100)
    _row(run, "asyncio", 256, 30)


def _row(run: Run, kind: str, size: int, each: int, target: BenchTarget | None = None) -> None:
    candidate = ChildProcess(Publishers, run.folder("journal"), kind, size, each)
    match = alternate(
        candidate, ChildProcess(BareWrites, run.folder("bare")), run.rounds(25 if target else 15, quick=7)
    )
    groups = sum(len(done.detail[1]) for done in match.ours)
    what = f"durable publish, {size} {'publisher' if size == 1 else 'publishers'} ({kind})"
    sync_ms = 1000 * statistics.median(done.wall_s / len(done.detail) for done in match.theirs)
    note = (
        f"{sum(done.count for done in match.ours) / groups:.1f} messages per group, {sync_ms:.2f} ms per sync"
    )
    row = faster_by("commit", what, REFERENCE, match, target, note)
    row.ceiling = 1.0  # the reference does a part of what we do
    run.emit(row)


class RecordingIo:
    """Wraps the journal's disk and records how many bytes were written before each sync."""

    def __init__(self, io: DiskIo) -> None:
        self.groups: list[int] = []
        self._written: dict[int, int] = {}
        setattr(io, "pwrite", self._pwrite)  # noqa: B010
        setattr(io, "fdatasync", self._fdatasync)  # noqa: B010

    def _pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._written[fd] = len(data)
        return os.pwrite(fd, data, offset)

    def _fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        self.groups.append(self._written[fd])


class Publishers:
    def __init__(self, folder: str, kind: str, size: int, each: int) -> None:
        self._size = size
        self._each = each
        self._work = {
            "sync": self._alone,
            "callbacks": self._called_back,
            "threads": self._in_threads,
            "asyncio": self._in_tasks,
        }[kind]
        self._library: Any = None
        if kind == "asyncio":
            self._loop = asyncio.new_event_loop()
            self._library = optional("openq.aio").OpenQ(QUEUE, path=folder)  # type: ignore[union-attr]
            self._broker: LocalBroker = self._library.broker
        else:
            self._broker = LocalBroker(folder)
            self._broker.declare(QUEUE, QueueSettings())
        self._broker.sync()
        assert self._broker.journal is not None
        self._recorder = RecordingIo(self._broker.journal.io)

    def lap(self, given: Any) -> Lap:
        self._recorder.groups.clear()
        count = self._size * self._each
        done = lap(count, self._work)
        groups = list(self._recorder.groups)
        self._broker.purge(QUEUE)
        self._broker.sync()
        return Lap(count, done.wall_s, done.cpu_s, (count, groups))

    def _alone(self) -> None:
        for _ in range(self._each):
            self._broker.publish_body(QUEUE, BODY, ENCODING_BYTES)
            self._broker.sync()

    def _in_threads(self) -> None:
        threads = [threading.Thread(target=self._alone) for _ in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _called_back(self) -> None:
        crowd = CallbackPublishers(self._broker, self._size, self._each)
        crowd.start()
        crowd.over.wait()

    def _in_tasks(self) -> None:
        self._loop.run_until_complete(self._gather())

    async def _gather(self) -> None:
        await asyncio.gather(*(self._one_task() for _ in range(self._size)))

    async def _one_task(self) -> None:
        for _ in range(self._each):
            await self._library.publish(BODY)

    def close(self) -> None:
        if self._library is not None:
            self._loop.run_until_complete(self._library.close())
            self._loop.close()
        else:
            self._broker.close()


class CallbackPublishers:
    """Publishers without threads: a callback publishes the next message when the last one is durable.

    Publishers of one group commit wait together again: one list of callbacks per group, as in a server.
    """

    def __init__(self, broker: LocalBroker, size: int, each: int) -> None:
        self._broker = broker
        self._left = [each] * size
        self._waiting: list[int] = []
        self.over = threading.Event()

    def start(self) -> None:
        self._publish_next(list(range(len(self._left))))

    def _publish_next(self, publishers: list[int]) -> None:
        for publisher in publishers:
            self._next(publisher)
        if not self._waiting:
            self.over.set()
            return
        completed, self._waiting = self._waiting, []
        self._after_commit(lambda: self._publish_next(completed))

    def _after_commit(self, callback: Callable[[], None]) -> None:
        journal = self._broker.journal
        assert journal is not None
        with self._broker.lock:
            journal.after_commit(callback)
        journal.flush()

    def _next(self, publisher: int) -> None:
        if self._left[publisher]:
            self._left[publisher] -= 1
            self._broker.publish_body(QUEUE, BODY, ENCODING_BYTES)
            self._waiting.append(publisher)


class BareWrites:
    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "file")

    def lap(self, given: Any) -> Lap:
        count, groups = given
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(fd, 0, sum(groups) + 4096)
            os.fsync(fd)
            block = os.urandom(max(groups))
            return lap(count, lambda: _write(fd, block, groups), groups)
        finally:
            os.close(fd)
            os.unlink(self._path)

    def close(self) -> None:
        pass


def _write(fd: int, block: bytes, groups: list[int]) -> None:
    offset = 0
    for size in groups:
        os.pwrite(fd, block[:size], offset)
        os.fdatasync(fd)
        offset += size
