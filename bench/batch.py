"""Row 3: a thousand messages as one durable batch, against SQLite with the same promise."""

from __future__ import annotations

import os
import sqlite3

from openq.broker.local import LocalBroker
from openq.model import FORM_BYTES, QueueSettings

from .harness import BODY, QUEUE, Run, Target, alternate, faster_by, lap

TARGET = Target(floor=2.5, aim=4)
REFERENCE = "SQLite WAL FULL executemany+commit"
SIZE = 1000


def run(run: Run) -> None:
    batches = 40 if run.quick else 150
    broker = LocalBroker(run.folder("journal"))
    broker.declare(QUEUE, QueueSettings())
    connection = open_sqlite(run.folder("sqlite"))
    bodies = [BODY] * SIZE
    rows = [(body,) for body in bodies]

    def publish() -> None:
        for _ in range(batches):
            broker.publish_bodies(QUEUE, bodies, FORM_BYTES)
            broker.sync()

    def insert() -> None:
        for _ in range(batches):
            connection.executemany("INSERT INTO messages (body) VALUES (?)", rows)
            connection.commit()

    count = batches * SIZE
    ours, theirs = alternate(lambda: lap(count, publish), lambda: lap(count, insert), run.rounds(7))
    broker.close()
    connection.close()
    run.emit(faster_by("batch", "durable publish_many(1000)", REFERENCE, ours, theirs, TARGET))


def open_sqlite(folder: str) -> sqlite3.Connection:
    connection = sqlite3.connect(os.path.join(folder, "messages.db"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB)")
    connection.commit()
    return connection
