"""Row 2: durable publishes of 100 bytes by 1, 16 and 256 publishers, each waiting for its own answer.

The reference writes what our journal wrote: the same bytes in the same groups, one pwrite and one
fdatasync each, into a file whose space was allocated before. That is what the disk costs; the rest is us.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from openq.broker.local import LocalBroker
from openq.model import FORM_BYTES, QueueSettings
from openq.storage.disk import Io
from openq.storage.files import FileJournal

from .harness import BODY, QUEUE, Lap, Run, Target, alternate, faster_by, lap, optional

TARGETS = {1: Target(0.4, 0.6), 16: Target(0.4, 0.6), 256: Target(0.15, 0.3)}
REFERENCE = "pwrite+fdatasync, same groups"


class NotingIo(Io):
    """The real disk, and how many bytes went to it before each sync."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self._unsynced: dict[int, int] = {}

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._unsynced[fd] = len(data)
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        self.groups.append(self._unsynced.get(fd, 0))


class Bench:
    """One journal; its candidate laps note their groups, the reference laps write the same again."""

    def __init__(self, run: Run) -> None:
        self._io = NotingIo()
        self._run = run
        journal = FileJournal(run.folder("journal"), io=self._io)
        self.broker = LocalBroker(journal=journal)
        self.broker.declare(QUEUE, QueueSettings())
        self.broker.sync()
        self._count = 0
        self.sizes: list[float] = []

    def candidate(self, count: int, work: Callable[[], object]) -> Lap:
        self._count = count
        self._io.groups.clear()
        done = lap(count, work)
        self.sizes.append(count / max(1, len(self._io.groups)))
        self.broker.purge(QUEUE)
        self.broker.sync()
        return done

    def reference(self) -> Lap:
        groups = [size for size in self._io.groups if size]
        path = os.path.join(self._run.folder("bare"), "file")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(fd, 0, sum(groups) + 4096)
            os.fsync(fd)
            block = os.urandom(max(groups))
            return lap(self._count, lambda: _bare_writes(fd, block, groups))
        finally:
            os.close(fd)
            os.unlink(path)


def _bare_writes(fd: int, block: bytes, groups: list[int]) -> None:
    offset = 0
    for size in groups:
        os.pwrite(fd, block[:size], offset)
        os.fdatasync(fd)
        offset += size


class Crowd:
    """Publishers without threads: each is told when its message is on disk, and publishes the next.

    All who were told together wait together again: one completion list per group, as in a server.
    """

    def __init__(self, broker: LocalBroker, size: int, each: int) -> None:
        self._broker = broker
        self._left = [each] * size
        self._waiting: list[int] = []
        self._over = threading.Event()

    def work(self) -> None:
        self._tell(list(range(len(self._left))))
        self._over.wait()

    def _tell(self, publishers: list[int]) -> None:
        for publisher in publishers:
            self._next(publisher)
        if not self._waiting:
            self._over.set()
            return
        told, self._waiting = self._waiting, []
        self._broker.when_durable(lambda: self._tell(told))

    def _next(self, publisher: int) -> None:
        if self._left[publisher]:
            self._left[publisher] -= 1
            self._broker.publish_body(QUEUE, BODY, FORM_BYTES)
            self._waiting.append(publisher)


def _threads(broker: LocalBroker, size: int, each: int) -> None:
    def publish() -> None:
        _alone(broker, each)

    threads = [threading.Thread(target=publish) for _ in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _alone(broker: LocalBroker, count: int) -> None:
    for _ in range(count):
        broker.publish_body(QUEUE, BODY, FORM_BYTES)
        broker.sync()


def run(run: Run) -> None:
    rounds = run.rounds(9)
    share = 4 if run.quick else 1
    for size, each in ((1, 1200), (16, 800), (256, 400)):
        each //= share
        _row(run, size, each, rounds, "sync" if size == 1 else "callbacks", TARGETS[size])
    for size, each in ((16, 200), (256, 30)):
        _row(run, size, each // min(share, 2), run.rounds(5), "threads", None)
    _asyncio_rows(run, share)


def _row(run: Run, size: int, each: int, rounds: int, kind: str, target: Target | None) -> None:
    bench = Bench(run)
    broker = bench.broker
    count = size * each

    def work() -> None:
        if kind == "sync":
            _alone(broker, each)
        elif kind == "threads":
            _threads(broker, size, each)
        else:
            Crowd(broker, size, each).work()

    ours, theirs = alternate(lambda: bench.candidate(count, work), bench.reference, rounds)
    broker.close()
    _emit(run, size, kind, ours, theirs, bench, target)


def _emit(
    run: Run, size: int, kind: str, ours: list[Lap], theirs: list[Lap], bench: Bench, target: Target | None
) -> None:
    mean = sum(bench.sizes[1:]) / len(bench.sizes[1:])
    what = f"durable publish, {size} publisher{'s' if size > 1 else ''} ({kind})"
    run.emit(
        faster_by("commit", what, REFERENCE, ours, theirs, target, f"{mean:.1f} messages per group")
    )


def _asyncio_rows(run: Run, share: int) -> None:
    aio = optional("openq.aio")
    if aio is None or not hasattr(aio, "OpenQ"):
        run.tell("commit: no openq.aio yet, its rows are left out")
        return
    del asyncio, share
