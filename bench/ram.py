"""Row 5: the memory a waiting durable message of 100 bytes costs, over a million of them."""

from __future__ import annotations

import gc
import os
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Row, Run, lap

TARGET = BenchTarget(floor=60, aim=16, more_is_better=False)
GROUP = 1000


def run(run: Run) -> None:
    count = 200_000 if run.quick else 1_000_000
    for kind in ("one by one", "publish_many"):
        values: list[float] = []
        rates: list[float] = []
        for _ in range(run.rounds(3, quick=1)):
            queue = ChildProcess(Backlog, run.folder("journal"), kind, count)
            done = queue.lap()
            queue.close()
            values.append(done.detail)
            rates.append(done.per_s)
        what = f"RAM per waiting message ({kind})"
        run.emit(Row("ram", what, "its body has 100 bytes", "B", values, TARGET, {"per_s": rates}))


class Backlog:
    def __init__(self, folder: str, kind: str, count: int) -> None:
        self._kind = kind
        self._count = count
        self._broker = LocalBroker(folder)
        self._broker.declare(QUEUE, QueueSettings())
        # What is needed once, whatever the length: code, buffers, a first page.
        self._publish(20 * GROUP)

    def lap(self, given: Any) -> Lap:
        gc.collect()
        before = resident_bytes()
        done = lap(self._count, lambda: self._publish(self._count))
        gc.collect()
        each = (resident_bytes() - before) / self._count
        return Lap(done.count, done.wall_s, done.cpu_s, each)

    def _publish(self, count: int) -> None:
        broker = self._broker
        for _ in range(count // GROUP):
            # A body of its own for each, as from a socket: one shared object would cost nothing.
            bodies = [os.urandom(8) + BODY[8:] for _ in range(GROUP)]
            if self._kind == "publish_many":
                broker.publish_bodies(QUEUE, bodies, ENCODING_BYTES)
            else:
                for body in bodies:
                    broker.publish_body(QUEUE, body, ENCODING_BYTES)
            broker.sync()

    def close(self) -> None:
        self._broker.close()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
