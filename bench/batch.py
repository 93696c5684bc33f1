"""Row 3: a thousand messages as one durable batch, against SQLite with the same promise."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap

TARGET = BenchTarget(floor=2.5, aim=4)
REFERENCE = "SQLite WAL FULL, executemany+commit"
SIZE = 1000


def run(run: Run) -> None:
    batches = 40 if run.quick else 150
    match = alternate(
        ChildProcess(JournalBatches, run.folder("journal"), batches),
        ChildProcess(SqliteBatches, run.folder("sqlite"), batches),
        run.rounds(7),
    )
    run.emit(faster_by("batch", "durable publish_many(1000)", REFERENCE, match, TARGET))


class JournalBatches:
    def __init__(self, folder: str, batches: int) -> None:
        self._batches = batches
        self._broker = LocalBroker(folder)
        self._broker.declare(QUEUE, QueueSettings())

    def lap(self, given: Any) -> Lap:
        return lap(self._batches * SIZE, self._publish)

    def _publish(self) -> None:
        bodies = [BODY] * SIZE
        for _ in range(self._batches):
            self._broker.publish_bodies(QUEUE, bodies, ENCODING_BYTES)
            self._broker.sync()

    def close(self) -> None:
        self._broker.close()


class SqliteBatches:
    def __init__(self, folder: str, batches: int, size: int = SIZE) -> None:
        self._batches = batches
        self._size = size
        self._connection = sqlite3.connect(os.path.join(folder, "messages.db"))
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB)")
        self._connection.commit()

    def lap(self, given: Any) -> Lap:
        return lap(self._batches * self._size, self._insert)

    def _insert(self) -> None:
        rows = [(BODY,)] * self._size
        for _ in range(self._batches):
            self._connection.executemany("INSERT INTO messages (body) VALUES (?)", rows)
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()
