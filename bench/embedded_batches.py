"""Texts published in durable batches of 100 through `OpenQ`, against SQLite with the same promise."""

from __future__ import annotations

from typing import Any

from openq import OpenQ

from .batch import REFERENCE, SqliteBatches
from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap

BENCH = "embedded"
TARGET = BenchTarget(2.0, 3.0)
SIZE = 100


def run(run: Run) -> None:
    batches = 300 if run.quick else 1000
    match = alternate(
        ChildProcess(TextBatches, run.folder("queue"), batches),
        ChildProcess(SqliteBatches, run.folder("sqlite"), batches, SIZE),
        run.rounds(9, quick=5),
    )
    what = f"durable publish_many({SIZE}) of texts through OpenQ"
    run.emit(faster_by(BENCH, what, REFERENCE, match, TARGET))


class TextBatches:
    def __init__(self, folder: str, batches: int) -> None:
        self._queue = OpenQ(QUEUE, path=folder)
        self._batches = batches

    def lap(self, given: Any) -> Lap:
        done = lap(self._batches * SIZE, self._publish)
        self._queue.purge()
        return done

    def _publish(self) -> None:
        texts = [BODY.decode()] * SIZE
        for _ in range(self._batches):
            self._queue.publish_many(texts)

    def close(self) -> None:
        self._queue.close()
