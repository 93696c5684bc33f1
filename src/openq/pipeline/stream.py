"""`readStream.format("openq")`: what both kinds of stream share.

Spark calls a stream reader on the driver to choose offsets, and a pickled copy of it in every task to read
rows. `StreamReader` is that reader. The state of a run (threads, connections, limits) is a `StreamDriver`,
which exists only in the driver process: `log_stream.py` has the one of mode=log, `consume.py` the one of
mode=consume.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import InvalidSetting
from .options import STREAM, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offset = dict[str, Any]


def make_stream_reader(options: SourceOptions | Mapping[str, str], schema: StructType) -> StreamReader:
    given = options if isinstance(options, SourceOptions) else SourceOptions.parse(options, STREAM)
    if given.value("mode", "log") == "consume":
        from .consume import ConsumeReader

        return ConsumeReader(given, schema)
    for name in ("queue", "subscription", "leaseTimeout"):
        if name in given.values:
            hint = "; to read the history of one queue, use queues" if name == "queue" else ""
            raise InvalidSetting(f"{name} is for mode=consume: set that too{hint}")
    from .log_stream import LogReader

    return LogReader(given, schema)


class StreamDriver(Protocol):
    """The driver's side of one run of a stream. Offsets are JSON objects, as Spark keeps them in a
    checkpoint."""

    def first(self) -> Offset:
        """The offset at which a new checkpoint begins."""

    def set_target(self) -> None:
        """Trigger AvailableNow: the run ends once it has read all messages present now."""

    def next_after(self, start: Offset, is_bounded: bool) -> Offset:
        """The end of the next batch, or `start` if there is none. Spark has committed everything before
        `start`."""

    def plan_partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks that read the batch between two offsets."""

    def committed(self, end: Offset) -> None:
        """Spark has committed everything before `end`."""

    def close(self) -> None: ...


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's calls, answered by the driver object. A subclass makes that object and reads partitions."""

    def __init__(
        self, options: SourceOptions, schema: StructType, max_rows: int | None, max_bytes: int | None
    ) -> None:
        self._options = options
        self._schema = schema
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy of this reader; threads and connections stay in the driver process.
        return {**self.__dict__, "_driver": None}

    @abstractmethod
    def _make_driver(self) -> StreamDriver: ...

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    @property
    def driver(self) -> StreamDriver:
        if self._driver is None:
            self._driver = self._make_driver()
        return self._driver

    def initialOffset(self) -> Offset:
        return self.driver.first()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._max_rows is not None:
            return ReadMaxRows(self._max_rows)
        return ReadAllAvailable() if self._max_bytes is None else ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.set_target()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self.driver.next_after(start, is_bounded=not isinstance(limit, ReadAllAvailable))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.driver.plan_partitions(start, end)

    def commit(self, end: Offset) -> None:
        self.driver.committed(end)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
