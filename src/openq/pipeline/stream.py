"""`readStream.format("openq")`: the journal as a stream that touches no queue (mode=log, the default).

An offset is a position in the journal. Everything before it was read and everything behind it was not, so a
batch can be read again at any time, with the same rows. Records of other queues move the offset on only now
and then, so that they cause no empty batches.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from .calls import link_of, quoted
from .options import DEFAULT_PARTITION_BYTES, STREAM, SourceOptions, read_time_us
from .source import (
    HistoryPartition,
    SchemaAdapter,
    is_local,
    make_partitions,
    open_history,
    read_pieces,
    selection_for,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..history.local import LocalHistory
    from ..history.selection import Selection
    from .remote_history import RemoteHistory

log = logging.getLogger("openq.pipeline")

PIECE_BYTES = 32 << 20
LOOK_S = 0.02  # how old the end of the journal may be that is answered from memory
WAIT_S = 20.0
MAX_DELAY_S = 900.0
LOOK_ROWS = 1 << 16  # how far to look ahead for the ends of batches
LOOK_BYTES = 8 << 20
MAX_LOOKED_UP = 2 << 20
# Records that are of no interest move the offset on when they are so many, or so old.
IDLE_S = 60.0
_POSITION, _JOURNAL = "position", "journal"

Offset = dict[str, Any]


def make_stream_reader(
    options: SourceOptions | Mapping[str, str], schema: StructType
) -> DataSourceStreamReader:
    given = options if isinstance(options, SourceOptions) else SourceOptions.parse(options, STREAM)
    if given.value("mode", "log") == "consume":
        from .consume import ConsumeReader

        return ConsumeReader(given, schema)
    for name in ("queue", "subscription", "leaseTimeout"):
        if name in given.values:
            hint = "; to read the history of one queue, use queues" if name == "queue" else ""
            raise InvalidSetting(f"{name} is for mode=consume: set that too{hint}")
    return LogReader(given, schema)


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._selection = selection_for(options, schema)
        self._driver: LogDriver | None = None
        if options.value("cursor") is not None and options.url is None:
            raise InvalidSetting("a cursor lives on the server: set the option url beside path")

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy of this reader; threads and connections stay with the driver.
        return {**self.__dict__, "_driver": None}

    @property
    def _at_driver(self) -> LogDriver:
        if self._driver is None:
            self._driver = LogDriver(self._options, self._selection)
        return self._driver

    def initialOffset(self) -> Offset:
        return self._at_driver.offset(self._at_driver.first())

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options.value("maxMessagesPerTrigger"), self._options.value("maxBytesPerTrigger")
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_driver.set_target()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        position = self._at_driver.position(start)
        end = self._at_driver.next_after(position, is_bounded=not isinstance(limit, ReadAllAvailable))
        return self._at_driver.offset(end) if end != position else start

    def reportLatestOffset(self) -> Offset | None:
        return self._at_driver.offset(self._at_driver.end.position())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._at_driver.plan_partitions(self._at_driver.position(start), self._at_driver.position(end))

    def commit(self, end: Offset) -> None:
        self._at_driver.move_cursor(_position(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return
        shape = SchemaAdapter(self._schema)
        history = open_history(self._options, partition.pieces, partition.server)
        selection = replace(self._selection, first_position=partition.start, end_position=partition.end)
        try:
            for batch in read_pieces(history, partition.pieces, selection, self._options):
                if batch.num_rows:
                    yield shape.of(batch)
        finally:
            if not is_local(history):
                history.link.close()


@dataclass(frozen=True)
class LogPartition(HistoryPartition):
    """The pieces of one task, and the positions of its batch: a file of the archive may reach beyond."""

    start: int = 0
    end: int = 0


class LogDriver:
    """The side of the reader that knows where the journal ends and cuts batches; one for each run."""

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._history = open_history(options)
        self.end = make_end_position(self._history)
        self._target: int | None = None
        self._committed = -1
        self._start = -1
        self._since = time.monotonic()  # when we began to wait behind `_start`
        self._ahead = LookAhead(self._history, selection)
        self._min_rows: int | None = options.value("minMessagesPerTrigger")
        self._max_rows: int | None = options.value("maxMessagesPerTrigger")
        self._max_bytes: int | None = options.value("maxBytesPerTrigger")
        self._enough_rows = max(self._max_rows or 0, self._min_rows or 0, LOOK_ROWS)
        self._link = link_of(options) if options.value("cursor") is not None else None

    # -- offsets --

    @cached_property
    def _journal(self) -> str:
        """Which journal or store this is: positions of another one mean nothing here. "": none yet."""
        return self._history.snapshot(replace(self._selection, end_position=1)).journal

    def offset(self, position: int) -> Offset:
        return {_POSITION: position, **({_JOURNAL: self._journal} if self._journal else {})}

    def position(self, offset: Mapping[str, Any]) -> int:
        told = offset.get(_JOURNAL)  # older checkpoints do not tell
        if told and self._journal and told != self._journal:
            raise InvalidSetting(
                "this checkpoint is of another journal or store: give the query a checkpointLocation of its "
                "own, and say with startingOffsets where it begins, for example when the other one ended"
            )
        return _position(offset)

    # -- where a new checkpoint begins --

    def first(self) -> int:
        told = self._options.value("startingOffsets")
        since_us = self._options.value("startingTimestamp")
        if told is not None and since_us is not None:
            raise InvalidSetting("give either startingOffsets or startingTimestamp, not both")
        position = (
            self._at_or_after(since_us=since_us) if since_us is not None else self._starting_position(told)
        )
        self.move_cursor(position)
        return position

    def _starting_position(self, told: str | None) -> int:
        word = (told or "earliest").strip()
        if word.lower() == "earliest":
            # Not what was dropped before this query was born: that is no loss.
            return self._history.snapshot(replace(self._selection, end_position=1)).oldest_position
        if word.lower() == "latest":
            return self.end.now()
        if word.startswith("{"):
            return self.position(_json_offset(word))
        if _is_number(word):
            return int(word)
        if word.lower().startswith("seq:") and _is_number(word[4:].strip()):
            return self._at_or_after(first_seq=int(word[4:]))
        try:
            return self._at_or_after(since_us=read_time_us(word, "startingOffsets"))
        except InvalidSetting:
            raise InvalidSetting(
                "startingOffsets must be earliest, latest, a position, seq:NUMBER or a time such as "
                f"2023-04-03T10:30:00Z, not {told!r}"
            ) from None

    def _at_or_after(self, since_us: int | None = None, first_seq: int | None = None) -> int:
        """The position of the first row from a time or a sequence number on."""
        found: list[int] = []
        end = self.end.now()
        selection = replace(
            self._selection, columns=("position",), end_position=end, since_us=since_us, first_seq=first_seq
        )
        for piece in self._history.snapshot(selection).pieces:
            if found and piece.kind == "segment":
                break  # pieces of the journal follow one another, those of files do not
            for batch in self._history.read(piece, selection):
                found += (
                    batch.column("position").to_pylist()[:1]
                    if piece.kind == "segment"
                    else _first_position(batch)
                )
                if found and piece.kind == "segment":
                    break
        return min(found, default=end)

    # -- the next batch --

    def set_target(self) -> None:
        self._target = self.end.now()

    def next_after(self, start: int, is_bounded: bool) -> int:
        self.move_cursor(start)  # Spark has committed it, or it would not ask for the next
        end = self.end.position() if self._target is None else self._target
        if start != self._start:
            self._start = start
            self._ahead.forget_before(start)
            self._since = time.monotonic()
        if end <= start:
            return start
        if not is_bounded and self._min_rows is None and not is_near(start, end):
            return end  # there is something in so much, or it is time to leave it behind
        self._ahead.look(end, self._enough_rows if is_bounded else max(self._min_rows or 0, 1))
        if not self._ahead.rows:
            return self._idle(start)
        if self._is_too_early(self._ahead.rows):
            return start
        return self._ahead.cut(self._max_rows, self._max_bytes) if is_bounded else end

    def _idle(self, start: int) -> int:
        """Nothing of interest behind `start`: stay there, unless that has become far away."""
        seen = self._ahead.through
        is_old = time.monotonic() - self._since > IDLE_S
        # A run that is to end reaches its target, so that the next one begins there.
        return seen if is_old or not is_near(start, seen) or self._target is not None else start

    def _is_too_early(self, rows: int) -> bool:
        if self._min_rows is None or self._target is not None or rows >= self._min_rows:
            return False
        longest: float = self._options.value("maxTriggerDelay", MAX_DELAY_S)
        return time.monotonic() - self._since < longest

    # -- reading --

    def plan_partitions(self, start: int, end: int) -> list[InputPartition]:
        if end <= start:
            return []
        options = self._options
        share_bytes = int(options.value("maxBytesPerPartition", DEFAULT_PARTITION_BYTES))
        selection = replace(self._selection, first_position=start, end_position=end)
        snapshot = self._history.snapshot(selection, max_bytes=min(share_bytes, PIECE_BYTES))
        if snapshot.gap is not None:
            self._lost(*snapshot.gap)
        found = make_partitions(snapshot.pieces, share_bytes, options.value("minPartitions"))
        server = None if is_local(self._history) else self._history
        return [LogPartition(each.pieces, server, start, end) for each in found if each.pieces]

    def _lost(self, first: int, end: int) -> None:
        lost = f"positions {first} to {end} of the history are gone: dropped before this query read them"
        if self._options.fail_on_data_loss:
            raise HistoryUnavailable(
                f"{lost}. To go on without them, set failOnDataLoss to false; "
                "to prevent it, name a cursor or archive the history"
            )
        log.warning("%s", lost)

    # -- the cursor --

    def move_cursor(self, position: int) -> None:
        """Tell the server how far we are, so that it keeps the rest."""
        if self._link is None or position <= self._committed:
            return
        told: dict[str, Any] = {"position": position}
        for name, option in (("hold_bytes", "holdBytes"), ("hold_s", "holdTime")):
            if self._options.value(option) is not None:
                told[name] = self._options.value(option)
        self._link.call("PUT", f"pipeline/cursors/{quoted(self._options.value('cursor'))}", json=told)
        self._committed = position

    def close(self) -> None:
        self.end.close()
        if self._link is not None:
            self._link.close()


# -- what is ahead ------------------------------------------------------------------------------------------


class LookAhead:
    """The positions of the next rows of interest, so that a batch can be cut to an exact number of them.

    They are looked up without bodies, many at once; a run with a small limit looks once for many batches.
    """

    def __init__(self, history: LocalHistory | RemoteHistory, selection: Selection) -> None:
        self._history = history
        # Events have no position of their own within a record; its size is that of its message.
        self._selection = replace(selection, columns=("position", "size"), body=False)
        self._start = 0
        self.through = 0  # everything before this was looked at
        self._positions = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.int64)

    @property
    def rows(self) -> int:
        return len(self._positions)

    def forget_before(self, start: int) -> None:
        """Begin at `start`; what lies behind it and is known stays known."""
        is_known = self._start <= start <= self.through
        done = int(np.searchsorted(self._positions, start)) if is_known else self.rows
        self._positions, self._sizes = self._positions[done:], self._sizes[done:]
        self._start = start
        self.through = self.through if is_known else start

    def look(self, end: int, enough: int) -> None:
        """Look on until `enough` rows are known, or everything before `end` is."""
        if self.rows >= enough or self.through >= end:
            return
        selection = replace(self._selection, first_position=self.through, end_position=end)
        pieces = self._history.snapshot(selection, max_bytes=LOOK_BYTES).pieces
        known = np.stack((self._positions, self._sizes))
        held: list[Any] = []
        have = self.rows
        through = end
        # Rows in files of the archive have any order, so all files come first; the journal comes in order.
        for piece in sorted(pieces, key=lambda each: (each.kind == "segment", each.start)):
            if piece.kind == "segment" and have >= enough:
                through = min(through, piece.start)
                break
            for batch in self._history.read(piece, selection):
                numbers = [batch.column(name).fill_null(0).to_numpy() for name in ("position", "size")]
                held.append(np.stack([each.astype(np.int64) for each in numbers]))
                have += batch.num_rows
            if have > 2 * MAX_LOOKED_UP:
                # A long archive: of rows that are far away there is no need to know.
                known, held = _sorted_by_position(known, held), []
                through = int(known[0, MAX_LOOKED_UP])
                known = known[:, : np.searchsorted(known[0], through)]
                have = known.shape[1]
                selection = replace(selection, end_position=through)
        self._positions, self._sizes = _sorted_by_position(known, held)
        self.through = through

    def cut(self, rows: int | None, size: int | None) -> int:
        """Where a batch of at most so many rows and bytes ends: never within a record, and behind one."""
        most = self.rows if rows is None else min(rows, self.rows)
        if size is not None:
            most = min(most, int(np.searchsorted(np.cumsum(self._sizes), size, side="right")))
        if most == self.rows:
            return self.through
        reached = int(self._positions[most])  # the first one that is not in it
        if most == 0 or reached == int(self._positions[0]):
            behind = int(np.searchsorted(self._positions, self._positions[0], side="right"))
            return self.through if behind == self.rows else int(self._positions[behind])
        return reached


# -- the end of the journal -----------------------------------------------------------------------------


class LocalEndPosition:
    """By path: a look at the files, at most every `LOOK_S`."""

    def __init__(self, history: LocalHistory) -> None:
        self._history = history
        self._position = -1
        self._looked = 0.0

    def now(self) -> int:
        self._position = self._history.end_position()
        self._looked = time.monotonic()
        return self._position

    def position(self) -> int:
        return self._position if time.monotonic() - self._looked < LOOK_S else self.now()

    def close(self) -> None:
        pass


class RemoteEndPosition:
    """From a server: a thread waits there for it to move, and everybody else reads a number."""

    def __init__(self, history: RemoteHistory) -> None:
        self._history = history
        self._position = -1
        self._error: OpenQError | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def now(self) -> int:
        self._position = max(self._position, self._history.end_position())
        return self._position

    def position(self) -> int:
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None
            raise error
        if self._thread is None:
            self.now()
            self._thread = threading.Thread(target=self._follow, daemon=True, name="openq-end")
            self._thread.start()
        return self._position

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                end = self._history.end_position(after=self._position, wait_s=WAIT_S)
            except OpenQError as error:
                self._error = error
                break
            self._position = max(self._position, end)
        self._history.link.close()

    def close(self) -> None:
        self._closed.set()
        self._history.link.close()


def make_end_position(history: LocalHistory | RemoteHistory) -> LocalEndPosition | RemoteEndPosition:
    return LocalEndPosition(history) if is_local(history) else RemoteEndPosition(history)


# -- positions --------------------------------------------------------------------------------------------


def _position(offset: Mapping[str, Any]) -> int:
    position = offset.get(_POSITION)
    if not isinstance(position, int):
        raise InvalidSetting(
            "this checkpoint does not hold positions of a journal: it belongs to another kind of query; "
            "give the query a checkpoint of its own"
        )
    return position


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20


def _json_offset(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _first_position(batch: pa.RecordBatch) -> list[int]:
    import pyarrow.compute as pc

    least = pc.min(batch.column("position")).as_py()
    return [] if least is None else [least]


def _sorted_by_position(known: Any, more: list[Any]) -> Any:
    every = np.concatenate([known, *more], axis=1)
    return every[:, np.argsort(every[0], kind="stable")]


def is_near(start: int, end: int) -> bool:
    """In the same segment, and not far away there."""
    return start >> 32 == end >> 32 and end - start <= LOOK_BYTES
