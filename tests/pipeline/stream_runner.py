"""What Spark does with a stream reader, call by call, without Spark: for tests of offsets, limits and acks.

The calls come in the order of Spark 4.3's micro-batches: the next offset is asked for when the batch before
is committed, `commit` of the source comes after that, and a restart first repeats what was not committed.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

from openq.history.schema import arrow_schema
from openq.pipeline.stream import make_stream_reader

Offset = dict[str, Any]

_playing: list[StreamRunner] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Imported by a test module: no reader outlives its test."""
    yield
    while _playing:
        _playing.pop().stop()


class StreamRunner:
    """A checkpoint, and runs of a query over it."""

    def __init__(self, table: str = "messages", columns: list[str] | None = None, **options: object) -> None:
        self._schema = from_arrow_schema(arrow_schema(table, columns))
        self._options = {name: str(value) for name, value in options.items()}
        if table != "messages":
            self._options["table"] = table
        self.planned: list[Offset] = []  # the offset log: the start, then the end of each batch
        self.committed = 0  # how many batches are in the commit log
        self.batches: list[list[dict[str, Any]]] = []  # what reached the sink, by batch
        self.reader: Any = None
        _playing.append(self)

    def start(self, available_now: bool = True) -> StreamRunner:
        self.stop()
        self.reader = self._made()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if not self.planned:
            self.planned.append(_logged(self.reader.initialOffset()))
        if len(self.planned) - 1 > self.committed:
            self._execute()
        return self

    def _made(self) -> DataSourceStreamReader:
        return make_stream_reader(self._options, self._schema)

    def step(self, commits: bool = True) -> bool:
        """One trigger; whether there was a batch. Without `commits` the run dies before its commit log."""
        start = self.planned[-1]
        end = _logged(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        if len(self.planned) > 1:
            self.reader.commit(start)
        self.planned.append(end)
        self._execute(commits)
        return True

    def _execute(self, commits: bool = True) -> None:
        start, end = self.planned[-2:]
        # The tasks have a reader of their own.
        task_reader = pickle.loads(pickle.dumps(self._made()))
        rows: list[dict[str, Any]] = []
        for partition in self.reader.partitions(start, end):
            for batch in task_reader.read(pickle.loads(pickle.dumps(partition))):
                assert isinstance(batch, pa.RecordBatch)
                rows += batch.to_pylist()
        del self.batches[len(self.planned) - 2 :]  # an idempotent sink
        self.batches.append(rows)
        if commits:
            self.committed = len(self.planned) - 1

    def run(self) -> StreamRunner:
        """A whole run with AvailableNow."""
        self.start()
        while self.step():
            pass
        self.stop()
        return self

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()

    def bodies(self) -> list[list[bytes]]:
        return [[row["body"] for row in rows] for rows in self.batches]


def _logged(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found
