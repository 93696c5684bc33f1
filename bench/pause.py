"""Row 8: the longest single step in a loop of publish, receive and ack with a million messages waiting.

Python's cyclic collector looks at every object it tracks: a queue of a million of them stops the program
for as long as that takes. The reference is such a queue. Steps are measured in CPU time of the process,
because on a shared machine the longest one by the wall clock belongs to another process.

Messages come and go in bursts. One in, one out would never wake the collector, which counts
new objects less those that died: a comfort no real load grants.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES

from .backlog import fill
from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Row, Run, alternate, lap

TARGET = BenchTarget(floor=1 / 5, aim=1 / 20, more_is_better=False)
WAITING = 1_000_000
BURST = 1000


def run(run: Run) -> None:
    # A full collection runs when a quarter of all objects is new: so many more than that.
    cycles = 400_000 if run.quick else 600_000
    match = alternate(
        ChildProcess(BrokerSteps, cycles), ChildProcess(Objects, cycles), run.rounds(5, quick=1)
    )
    ours = [done.detail for done in match.ours]
    theirs = [done.detail for done in match.theirs]
    pairs = list(zip(ours, theirs, strict=True))
    run.emit(
        Row(
            "pause",
            "longest pause, 1,000,000 waiting in memory",
            "slot objects in a deque, default GC",
            "x",
            [us["cpu_ms"] / them["cpu_ms"] for us, them in pairs],
            TARGET,
            {
                "ours": [us["cpu_ms"] for us in ours],
                "theirs": [them["cpu_ms"] for them in theirs],
                "wall_ms": [us["wall_ms"] for us in ours],
                "reference_wall_ms": [them["wall_ms"] for them in theirs],
                "p9999_us": [us["p9999_us"] for us in ours],
                "reference_p9999_us": [them["p9999_us"] for them in theirs],
            },
            side_unit=" ms",
        )
    )


def longest(cycles: int, publish: Callable[[], None], take: Callable[[], None]) -> Lap:
    # Arrays: the garbage collector would visit the million entries of a list, which are not measured.
    cpu_ns = array("q")
    wall_ns = array("q")

    def work() -> None:
        cpu_clock, wall_clock = time.process_time_ns, time.perf_counter_ns
        for _ in range(cycles // BURST):
            for step in (publish, take):
                cpu, wall = cpu_clock(), wall_clock()
                for _ in range(BURST):
                    step()
                    now_cpu, now_wall = cpu_clock(), wall_clock()
                    cpu_ns.append(now_cpu - cpu)
                    wall_ns.append(now_wall - wall)
                    cpu, wall = now_cpu, now_wall

    done = lap(cycles, work)
    steps = sorted(cpu_ns)
    detail = {
        "cpu_ms": steps[-1] / 1e6,
        "wall_ms": max(wall_ns) / 1e6,
        "p9999_us": steps[int(len(steps) * 0.9999)] / 1e3,
    }
    return Lap(done.count, done.wall_s, done.cpu_s, detail)


class BrokerSteps:
    def __init__(self, cycles: int) -> None:
        self._cycles = cycles
        self._broker = LocalBroker()
        fill(self._broker, WAITING)

    def lap(self, given: Any) -> Lap:
        return longest(self._cycles, self._publish, self._take)

    def _publish(self) -> None:
        self._broker.publish_body(QUEUE, BODY, ENCODING_BYTES)

    def _take(self) -> None:
        delivery = self._broker.receive(QUEUE)[0]
        self._broker.ack_one(QUEUE, delivery.entry.seq, delivery.number)

    def close(self) -> None:
        self._broker.close()


class Slot:
    __slots__ = ("body", "count", "id", "sent_ms")

    def __init__(self, id: int, body: bytes, sent_ms: int) -> None:
        self.id = id
        self.body = body
        self.sent_ms = sent_ms
        self.count = 0


class Objects:
    """The simplest implementation: an object per message, a deque, a dict of messages in flight."""

    def __init__(self, cycles: int) -> None:
        self._cycles = cycles
        self._next_id = WAITING
        self._waiting = deque(Slot(number, BODY, number) for number in range(WAITING))
        self._leased: dict[int, Slot] = {}

    def lap(self, given: Any) -> Lap:
        return longest(self._cycles, self._publish, self._take)

    def _publish(self) -> None:
        self._next_id += 1
        self._waiting.append(Slot(self._next_id, BODY, self._next_id))

    def _take(self) -> None:
        slot = self._waiting.popleft()
        slot.count += 1
        self._leased[slot.id] = slot
        del self._leased[slot.id]

    def close(self) -> None:
        pass
