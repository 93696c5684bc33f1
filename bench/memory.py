"""Row 1: one thread, nothing on disk, one message at a time: publish, receive, ack."""

from __future__ import annotations

import queue

from openq.broker.local import LocalBroker
from openq.model import FORM_BYTES, QueueSettings

from .harness import BODY, QUEUE, Lap, Run, Target, alternate, faster_by, lap, optional

TARGET = Target(floor=0.5, aim=1.0)
REFERENCE = "queue.Queue put+get+task_done"


def run(run: Run) -> None:
    count = 30_000 if run.quick else 100_000
    rounds = run.rounds(9)

    plain: queue.Queue[bytes] = queue.Queue()

    def reference() -> Lap:
        return lap(count, lambda: _queue_cycles(plain, count))

    broker = LocalBroker()
    broker.declare(QUEUE, QueueSettings())
    ours, theirs = alternate(lambda: lap(count, lambda: _broker_cycles(broker, count)), reference, rounds)
    broker.close()
    run.emit(faster_by("memory", "publish+receive+ack, broker", REFERENCE, ours, theirs, TARGET))

    openq = optional("openq")
    if openq is None or not hasattr(openq, "OpenQ"):
        run.tell("memory: no openq.OpenQ yet, the library row is left out")
        return
    with openq.OpenQ(QUEUE) as library:
        ours, theirs = alternate(
            lambda: lap(count, lambda: _library_cycles(library, count)), reference, rounds
        )
    run.emit(faster_by("memory", "publish+receive+ack, library", REFERENCE, ours, theirs, TARGET))


def _queue_cycles(plain: queue.Queue[bytes], count: int) -> None:
    for _ in range(count):
        plain.put(BODY)
        plain.get()
        plain.task_done()


def _broker_cycles(broker: LocalBroker, count: int) -> None:
    for _ in range(count):
        broker.publish_body(QUEUE, BODY, FORM_BYTES)
        delivery = broker.receive(QUEUE)[0]
        broker.ack_one(QUEUE, delivery.entry.seq, delivery.number)


def _library_cycles(library: object, count: int) -> None:
    publish, receive, ack = library.publish, library.receive, library.ack  # type: ignore[attr-defined]
    for _ in range(count):
        publish(BODY)
        ack(receive(timeout=0))
