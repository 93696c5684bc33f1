"""Row 7: how long a start takes with ten million messages waiting, after kill -9 and after a close.

The reference reads the same journal files once and computes their CRC in blocks of 64 KiB: the least
anybody must do who wants to know that they are whole. All of it from the page cache.
"""

from __future__ import annotations

import os
import shutil
import zlib
from typing import Any

from openq.local.broker import LocalBroker

from .backlog import fill
from .harness import QUEUE, BenchTarget, ChildProcess, Lap, Row, Run, lap

TARGET = BenchTarget(floor=20, aim=3, more_is_better=False)
BLOCK = 64 << 10


def run(run: Run) -> None:
    waiting = 1_000_000 if run.quick else 10_000_000
    crashes: list[tuple[Lap, Lap]] = []
    closes: list[tuple[Lap, Lap]] = []
    for _ in range(run.rounds(3, quick=2)):
        folder = run.folder("journal")
        filler = ChildProcess(Filler, folder, waiting)
        files = filler.lap().detail
        filler.kill()
        for pairs in (crashes, closes):
            reader = ChildProcess(FileReader)
            reader.lap(files)  # warms the page cache
            starter = ChildProcess(Starter, folder, waiting)
            pairs.append((starter.lap(), reader.lap(files)))
            starter.close()
            reader.close()
        shutil.rmtree(folder)
    for how, pairs in (("kill -9", crashes), ("close", closes)):
        run.emit(
            Row(
                "restart",
                f"start with {waiting:,} waiting, after {how}",
                "CRC of the same files",
                "x",
                [ours.wall_s / theirs.wall_s for ours, theirs in pairs],
                TARGET,
                {
                    "ours": [ours.wall_s for ours, _ in pairs],
                    "theirs": [theirs.wall_s for _, theirs in pairs],
                    "cpu_ratio": [ours.cpu_s / theirs.cpu_s for ours, theirs in pairs],
                },
                side_unit=" s",
            )
        )


class Filler:
    """Ends by being killed."""

    def __init__(self, folder: str, waiting: int) -> None:
        self._broker = LocalBroker(folder)
        self._waiting = waiting

    def lap(self, given: Any) -> Lap:
        done = lap(self._waiting, lambda: fill(self._broker, self._waiting))
        assert self._broker.journal is not None
        files = [(segment.path, segment.bytes) for segment in self._broker.journal.segments()]
        return Lap(done.count, done.wall_s, done.cpu_s, files)

    def close(self) -> None:
        self._broker.close()


class Starter:
    """From nothing to the first message in hand."""

    def __init__(self, folder: str, waiting: int) -> None:
        self._folder = folder
        self._waiting = waiting

    def lap(self, given: Any) -> Lap:
        done = lap(self._waiting, self._start)
        found = self._broker.stats(QUEUE)
        if found.ready + found.in_flight != self._waiting:
            raise RuntimeError(f"{found.ready + found.in_flight} of {self._waiting} messages are back")
        return done

    def _start(self) -> None:
        self._broker = LocalBroker(self._folder)
        deliveries = self._broker.receive(QUEUE)
        self._broker.load(deliveries)

    def close(self) -> None:
        # Returned at once, so that the next start finds the same state.
        [delivery] = self._broker.engine.queues[QUEUE].leases.values()
        self._broker.release(QUEUE, [(delivery.entry.seq, delivery.number)])
        self._broker.close()


class FileReader:
    def lap(self, given: Any) -> Lap:
        return lap(len(given), lambda: [_crc(path, size) for path, size in given])

    def close(self) -> None:
        pass


def _crc(path: str, size: int) -> int:
    crc = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset in range(0, size, BLOCK):
            crc = zlib.crc32(os.pread(fd, min(BLOCK, size - offset), offset), crc)
    finally:
        os.close(fd)
    return crc
