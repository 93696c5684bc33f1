"""Row 4: durable publish, receive and ack in batches of a hundred, against two queues on SQLite.

Both use `PRAGMA synchronous = FULL`, so that they promise what we promise: what was confirmed is on
disk. Left alone, litequeue chooses NORMAL, which may lose the last commits in a power cut.
"""

from __future__ import annotations

import os
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap, optional

TARGET = BenchTarget(floor=10, aim=30)
SIZE = 100


def run(run: Run) -> None:
    batches = 30 if run.quick else 200
    rounds = run.rounds(5)
    in_batches, one_by_one = "durable cycle in batches of 100", "durable cycle one by one"

    def ours(single: bool) -> ChildProcess:
        return ChildProcess(JournalCycles, run.folder("journal"), batches, single)

    if optional("persistqueue") is None:
        run.log("cycle: persist-queue is not installed, its rows are left out")
    else:
        name = "persist-queue SQLiteAckQueue, FULL"

        def persist() -> ChildProcess:
            return ChildProcess(PersistQueue, run.folder("persist-queue"), 1 if run.quick else 3)

        match = alternate(ours(False), persist(), rounds)
        run.emit(faster_by("cycle", in_batches, name, match, TARGET))
        match = alternate(ours(True), persist(), rounds)
        run.emit(faster_by("cycle", one_by_one, name, match))
    if optional("litequeue") is None:
        run.log("cycle: litequeue is not installed, its row is left out")
    else:
        match = alternate(
            ours(False), ChildProcess(LiteQueue, run.folder("litequeue"), 3 if run.quick else 10), rounds
        )
        run.emit(faster_by("cycle", in_batches, "litequeue, FULL", match, TARGET))


class JournalCycles:
    def __init__(self, folder: str, batches: int, single: bool) -> None:
        self._batches = batches
        self._single = single
        self._broker = LocalBroker(folder)
        self._broker.declare(QUEUE, QueueSettings())

    def lap(self, given: Any) -> Lap:
        if self._single:
            return lap(self._batches * 3, self._one_by_one)
        return lap(self._batches * SIZE, self._in_batches)

    def _in_batches(self) -> None:
        broker = self._broker
        bodies = [BODY] * SIZE
        for _ in range(self._batches):
            broker.publish_bodies(QUEUE, bodies, ENCODING_BYTES)
            broker.sync()
            deliveries = broker.receive(QUEUE, SIZE)
            broker.load(deliveries)
            broker.ack(QUEUE, [(delivery.entry.seq, delivery.number) for delivery in deliveries])
            broker.sync()

    def _one_by_one(self) -> None:
        broker = self._broker
        for _ in range(self._batches * 3):
            broker.publish_body(QUEUE, BODY, ENCODING_BYTES)
            broker.sync()
            deliveries = broker.receive(QUEUE)
            broker.load(deliveries)
            broker.ack_one(QUEUE, deliveries[0].entry.seq, deliveries[0].number)
            broker.sync()

    def close(self) -> None:
        self._broker.close()


class PersistQueue:
    """It commits every put, get and ack by itself and has no way to group them."""

    def __init__(self, folder: str, batches: int) -> None:
        self._folder = folder
        self._batches = batches
        self._laps = 0

    def lap(self, given: Any) -> Lap:
        # A new file each time: its `get` walks over everything that was ever acked.
        self._laps += 1
        module: Any = optional("persistqueue")
        store = module.SQLiteAckQueue(os.path.join(self._folder, str(self._laps)))
        for connection in {id(each): each for each in (store._getter, store._putter)}.values():
            connection.execute("PRAGMA synchronous = FULL")
        done = lap(self._batches * SIZE, lambda: self._cycles(store))
        store.close()
        return done

    def _cycles(self, store: Any) -> None:
        for _ in range(self._batches):
            for _ in range(SIZE):
                store.put(BODY)
            taken = [store.get(block=False, raw=True) for _ in range(SIZE)]
            for item in taken:
                store.ack(id=item["pqid"])

    def close(self) -> None:
        pass


class LiteQueue:
    """Puts and acks of a batch share a transaction; `pop` insists on its own, so each is a commit."""

    def __init__(self, folder: str, batches: int) -> None:
        self._folder = folder
        self._batches = batches
        self._laps = 0

    def lap(self, given: Any) -> Lap:
        self._laps += 1
        module: Any = optional("litequeue")
        store = module.LiteQueue(os.path.join(self._folder, f"{self._laps}.db"))
        store.conn.execute("PRAGMA synchronous = FULL")
        done = lap(self._batches * SIZE, lambda: self._cycles(store))
        store.close()
        return done

    def _cycles(self, store: Any) -> None:
        text = BODY.decode()
        for _ in range(self._batches):
            with store.transaction():
                for _ in range(SIZE):
                    store.put(text)
            taken = [store.pop() for _ in range(SIZE)]
            with store.transaction():
                for item in taken:
                    store.done(item.message_id)

    def close(self) -> None:
        pass
