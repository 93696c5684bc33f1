"""Row 9: what limits cost where messages are handed out, with many messages behind many limited keys.

Both sides have the same messages in the same keys (message groups) and do the same: receive, ack. The
reference has no limits. In the second row nearly all keys are at their limit: they must not cost anything.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap

TARGET = BenchTarget(floor=0.5, aim=0.8)
KEYS = 10_000
IN_FLIGHT = 100  # by all workers together
LIMITS = QueueSettings(concurrency=50_000, key_concurrency=3, key_rate="1000/s")
ONE = QueueSettings(key_concurrency=1)


def run(run: Run) -> None:
    waiting = 100_000 if run.quick else 1_000_000
    cycles = waiting // 20
    what = f"hand-out, {waiting:,} waiting in {KEYS:,} limited keys"
    for detail, limits, held in (("", LIMITS, 0), (", 9 of 10 at their limit", ONE, KEYS * 9 // 10)):
        match = alternate(
            ChildProcess(HandOut, limits, waiting, cycles, held),
            ChildProcess(HandOut, QueueSettings(), waiting, cycles, 0),
            run.rounds(7),
        )
        run.emit(faster_by("limits", what + detail, "the same without limits", match, TARGET))


class HandOut:
    """Workers that hold `IN_FLIGHT` messages together, one receive and one ack at a time."""

    def __init__(self, settings: QueueSettings, waiting: int, cycles: int, held: int) -> None:
        self._cycles = cycles
        self._broker = LocalBroker()
        self._broker.declare(QUEUE, settings)
        keys = [f"tenant-{number}" for number in range(KEYS)]
        self._publish([keys[number % KEYS] for number in range(waiting)])
        # One message of each of these keys stays in flight, so the key is at its limit from now on.
        for _ in range(held):
            self._broker.receive(QUEUE, 1, 86_400_000)
        self._in_flight = deque(self._broker.receive(QUEUE, IN_FLIGHT, 86_400_000))

    def _publish(self, keys: list[str | None]) -> None:
        for start in range(0, len(keys), 1000):
            self._broker.publish_many(QUEUE, [Draft(BODY, group=key) for key in keys[start : start + 1000]])

    def lap(self, given: Any) -> Lap:
        used: list[str | None] = []
        done = lap(self._cycles, lambda: self._work(used))
        self._publish(used)  # as many wait as before
        return done

    def _work(self, used: list[str | None]) -> None:
        broker, in_flight = self._broker, self._in_flight
        for _ in range(self._cycles):
            [delivery] = broker.receive(QUEUE, 1, 86_400_000)
            in_flight.append(delivery)
            oldest = in_flight.popleft()
            used.append(oldest.entry.group)
            broker.ack_one(QUEUE, oldest.entry.seq, oldest.number)

    def close(self) -> None:
        self._broker.close()
