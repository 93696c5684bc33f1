"""Row 4: durable publish, receive and ack in batches of a hundred, against two queues on SQLite.

Neither of them promises as much as we do by default, so both are told `PRAGMA synchronous = FULL`:
with it, what was committed is on disk.
"""

from __future__ import annotations

import os
from typing import Any

from openq.broker.local import LocalBroker
from openq.model import FORM_BYTES, QueueSettings

from .harness import BODY, QUEUE, Lap, Run, Target, alternate, faster_by, lap, optional

TARGET = Target(floor=10, aim=30)
SIZE = 100


def run(run: Run) -> None:
    broker = LocalBroker(run.folder("journal"))
    broker.declare(QUEUE, QueueSettings())
    rounds = run.rounds(5)
    batches = 50 if run.quick else 200

    def in_batches() -> Lap:
        return lap(batches * SIZE, lambda: _batches(broker, batches))

    def one_by_one() -> Lap:
        count = 200 if run.quick else 500
        return lap(count, lambda: _one_by_one(broker, count))

    persistqueue = optional("persistqueue")
    if persistqueue is None:
        run.tell("cycle: persist-queue is not installed, its rows are left out")
    else:

        def persist() -> Lap:
            return _persist_queue(persistqueue, run.folder("persist-queue"), 1 if run.quick else 4)

        ours, theirs = alternate(in_batches, persist, rounds)
        what = "durable cycle in batches of 100"
        run.emit(faster_by("cycle", what, "persist-queue SQLiteAckQueue, FULL", ours, theirs, TARGET))
        ours, theirs = alternate(one_by_one, persist, rounds)
        what = "durable cycle one by one"
        run.emit(faster_by("cycle", what, "persist-queue SQLiteAckQueue, FULL", ours, theirs))
    litequeue = optional("litequeue")
    if litequeue is None:
        run.tell("cycle: litequeue is not installed, its row is left out")
    else:

        def lite() -> Lap:
            return _litequeue(litequeue, run.folder("litequeue"), 3 if run.quick else 10)

        ours, theirs = alternate(in_batches, lite, rounds)
        what = "durable cycle in batches of 100"
        run.emit(faster_by("cycle", what, "litequeue, FULL", ours, theirs, TARGET))
    broker.close()


def _batches(broker: LocalBroker, batches: int) -> None:
    bodies = [BODY] * SIZE
    for _ in range(batches):
        broker.publish_bodies(QUEUE, bodies, FORM_BYTES)
        broker.sync()
        deliveries = broker.receive(QUEUE, SIZE)
        broker.load(deliveries)
        broker.ack(QUEUE, [(delivery.entry.seq, delivery.number) for delivery in deliveries])
        broker.sync()


def _one_by_one(broker: LocalBroker, count: int) -> None:
    for _ in range(count):
        broker.publish_body(QUEUE, BODY, FORM_BYTES)
        broker.sync()
        deliveries = broker.receive(QUEUE)
        broker.load(deliveries)
        broker.ack_one(QUEUE, deliveries[0].entry.seq, deliveries[0].number)
        broker.sync()


def _persist_queue(persistqueue: Any, folder: str, batches: int) -> Lap:
    """A new file each time: its receive walks over everything that was ever acked.

    It commits every put, get and ack by itself and has no way to group them.
    """
    store = persistqueue.SQLiteAckQueue(folder)
    # One connection does both unless multithreading is asked for; set again in case that changes.
    for connection in (store._getter, store._putter):
        connection.execute("PRAGMA synchronous = FULL")

    def work() -> None:
        for _ in range(batches):
            for _ in range(SIZE):
                store.put(BODY)
            taken = [store.get(block=False, raw=True) for _ in range(SIZE)]
            for item in taken:
                store.ack(id=item["pqid"])

    try:
        return lap(batches * SIZE, work)
    finally:
        store.close()


def _litequeue(litequeue: Any, folder: str, batches: int) -> Lap:
    """Puts and acks of a batch share a transaction; pop opens its own, so each is a commit."""
    store = litequeue.LiteQueue(os.path.join(folder, "queue.db"))
    store.conn.execute("PRAGMA synchronous = FULL")  # its own choice is NORMAL
    text = BODY.decode()

    def work() -> None:
        for _ in range(batches):
            with store.transaction():
                for _ in range(SIZE):
                    store.put(text)
            taken = [store.pop() for _ in range(SIZE)]
            with store.transaction():
                for item in taken:
                    store.done(item.message_id)

    try:
        return lap(batches * SIZE, work)
    finally:
        store.close()
