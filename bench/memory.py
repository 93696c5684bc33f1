"""Row 1: one thread, nothing on disk, one message at a time: publish, receive, ack."""

from __future__ import annotations

import queue
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap, optional

TARGET = BenchTarget(floor=0.5, aim=1.0)
REFERENCE = "queue.Queue put+get+task_done"


def run(run: Run) -> None:
    count = 30_000 if run.quick else 100_000
    rounds = run.rounds(9)
    match = alternate(ChildProcess(BrokerCycles, count), ChildProcess(PlainQueue, count), rounds)
    run.emit(faster_by("memory", "publish+receive+ack, broker", REFERENCE, match, TARGET))
    if not hasattr(optional("openq"), "OpenQ"):
        run.log("memory: openq.OpenQ is missing, the row of the library is skipped")
        return
    match = alternate(ChildProcess(LibraryCycles, count), ChildProcess(PlainQueue, count), rounds)
    run.emit(faster_by("memory", "publish+receive+ack, library", REFERENCE, match, TARGET))


class PlainQueue:
    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: queue.Queue[bytes] = queue.Queue()

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._cycles)

    def _cycles(self) -> None:
        plain = self._queue
        for _ in range(self._count):
            plain.put(BODY)
            plain.get()
            plain.task_done()

    def close(self) -> None:
        pass


class BrokerCycles:
    def __init__(self, count: int) -> None:
        self._count = count
        self._broker = LocalBroker()
        self._broker.declare(QUEUE, QueueSettings())

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._cycles)

    def _cycles(self) -> None:
        broker = self._broker
        for _ in range(self._count):
            broker.publish_body(QUEUE, BODY, ENCODING_BYTES)
            delivery = broker.receive(QUEUE)[0]
            broker.ack_one(QUEUE, delivery.entry.seq, delivery.number)

    def close(self) -> None:
        self._broker.close()


class LibraryCycles:
    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: Any = optional("openq").OpenQ(QUEUE)  # type: ignore[union-attr]

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._cycles)

    def _cycles(self) -> None:
        library = self._queue
        for _ in range(self._count):
            library.publish(BODY)
            library.ack(library.receive())

    def close(self) -> None:
        self._queue.close()
