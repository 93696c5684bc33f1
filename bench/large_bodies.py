"""Bodies of 1 MiB on disk, ten in each call, against a bare append and fdatasync of the same bytes."""

from __future__ import annotations

import os
from typing import Any

from openq import OpenQ

from .harness import QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap

BENCH = "embedded"
TARGET = BenchTarget(0.4, 0.7)
BODY_BYTES = 1 << 20
BATCH = 10


def run(run: Run) -> None:
    batches = 6 if run.quick else 12
    match = alternate(
        ChildProcess(LargePublishes, run.folder("queue"), batches),
        ChildProcess(BareAppends, run.folder("bare"), batches),
        run.rounds(7, quick=5),
    )
    what = "durable publish_many(10) of 1 MiB, messages"
    run.emit(faster_by(BENCH, what, "append + fdatasync of the same bytes", match, TARGET))


class LargePublishes:
    def __init__(self, folder: str, batches: int) -> None:
        self._queue = OpenQ(QUEUE, path=folder)
        self._batches = batches
        self._bodies = [f"{number:016x}" + "x" * (BODY_BYTES - 16) for number in range(BATCH)]

    def lap(self, given: Any) -> Lap:
        done = lap(self._batches * BATCH, self._publish, self._batches)
        self._queue.purge()
        return done

    def _publish(self) -> None:
        for _ in range(self._batches):
            self._queue.publish_many(self._bodies)

    def close(self) -> None:
        self._queue.close()


class BareAppends:
    def __init__(self, folder: str, batches: int) -> None:
        self._path = os.path.join(folder, "file")
        self._block = os.urandom(BATCH * BODY_BYTES)
        self._batches = batches

    def lap(self, given: Any) -> Lap:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            return lap(self._batches * BATCH, lambda: self._append(fd))
        finally:
            os.close(fd)
            os.unlink(self._path)

    def _append(self, fd: int) -> None:
        for number in range(self._batches):
            os.pwrite(fd, self._block, number * len(self._block))
            os.fdatasync(fd)

    def close(self) -> None:
        pass
