"""Latency between two threads of a program with a queue on disk, at 300 and 2,000 messages per second.

One thread publishes, each message with the time at which its publish began; another receives and acks. Both
calls wait for the disk. The reference is the disk alone at the same pace: two pwrites with an fdatasync each
for every message, into a file whose bytes were written before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from openq import OpenQ

from .harness import QUEUE, BenchTarget, ChildProcess, Lap, Row, Run, alternate

BENCH = "embedded"
SIZE = 100
RECORD_BYTES = 150  # of one message and its share of a block
TARGETS = {2000: BenchTarget(3.0, 1.0, more_is_better=False)}  # milliseconds, p99


def run(run: Run) -> None:
    for rate in (300, 2000):
        count = rate * (2 if run.quick else 4)
        match = alternate(
            ChildProcess(TwoThreads, run.folder("queue"), rate, count),
            ChildProcess(BareSyncs, run.folder("bare"), rate, count),
            run.rounds(5),
        )
        ours = [lap.detail for lap in match.ours]
        theirs = [lap.detail for lap in match.theirs]
        for name, percent in (("p50", 50.0), ("p99", 99.0)):
            values = [percentile(waits, percent) for waits in ours]
            bare = [percentile(waits, percent) for waits in theirs]
            run.emit(
                Row(
                    BENCH,
                    f"published to received, two threads on a path, {rate:,}/s, {name}",
                    "two bare pwrite + fdatasync for each message, at the same pace",
                    "ms",
                    values,
                    TARGETS.get(rate) if name == "p99" else None,
                    {"ms": values, "reference_ms": bare},
                    side_unit=" ms",
                    by="ms",
                )
            )


def percentile(values: Sequence[float], percent: float) -> float:
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


class TwoThreads:
    def __init__(self, folder: str, rate: int, count: int) -> None:
        self._queue = OpenQ(QUEUE, path=folder)
        self._rate = rate
        self._count = count

    def lap(self, given: Any) -> Lap:
        waits_ms: list[float] = []
        publisher = threading.Thread(target=self._publish)
        wall, cpu = time.perf_counter(), time.process_time()
        publisher.start()
        for _ in range(self._count):
            message = self._queue.receive(60)
            assert message is not None
            waits_ms.append((time.monotonic_ns() - int(message.body[:16], 16)) / 1e6)
            self._queue.ack(message)
        publisher.join()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Lap(self._count, wall, cpu, sorted(waits_ms))

    def _publish(self) -> None:
        began = time.perf_counter()
        rest = "x" * (SIZE - 16)
        for number in range(self._count):
            wait_until(began + number / self._rate)
            self._queue.publish(f"{time.monotonic_ns():016x}{rest}")

    def close(self) -> None:
        self._queue.close()


class BareSyncs:
    def __init__(self, folder: str, rate: int, count: int) -> None:
        self._path = os.path.join(folder, "file")
        self._rate = rate
        self._count = count

    def lap(self, given: Any) -> Lap:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, bytes(2 * self._count * RECORD_BYTES), 0)
        os.fsync(fd)
        block = os.urandom(RECORD_BYTES)
        waits_ms: list[float] = []
        began = wall = time.perf_counter()
        cpu = time.process_time()
        for number in range(self._count):
            wait_until(began + number / self._rate)
            since = time.perf_counter()
            for half in range(2):
                os.pwrite(fd, block, (2 * number + half) * RECORD_BYTES)
                os.fdatasync(fd)
                if not half:
                    waits_ms.append((time.perf_counter() - since) * 1e3)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        os.close(fd)
        return Lap(self._count, wall, cpu, sorted(waits_ms))

    def close(self) -> None:
        pass


def wait_until(moment_s: float) -> None:
    while (left_s := moment_s - time.perf_counter()) > 0:
        time.sleep(left_s)
