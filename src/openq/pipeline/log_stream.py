"""Streams with mode=log, the default: the journal as a stream that does not change any queue.

An offset is a position in the journal: everything before it has been read, everything from it on has not. A
batch can therefore be read again at any time with the same rows. Records of other queues advance the offset
only now and then, so that they cause no empty batches.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from ..errors import HistoryUnavailable, InvalidSetting
from .calls import link_of, quoted
from .options import DEFAULT_PARTITION_BYTES, SourceOptions, read_time_us
from .positions import LOOK_ROWS, LookAhead, is_near, make_end_position
from .source import (
    HistoryPartition,
    SchemaAdapter,
    is_local,
    make_partitions,
    open_history,
    read_pieces,
    selection_for,
)
from .stream import Offset, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..history.selection import Selection

log = logging.getLogger("openq.pipeline")

PIECE_BYTES = 32 << 20
MAX_DELAY_S = 900.0
IDLE_S = 60.0  # records of other queues advance the offset after this time, or when there are many of them
_POSITION, _JOURNAL = "position", "journal"


class LogReader(StreamReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(
            options, schema, options.value("maxMessagesPerTrigger"), options.value("maxBytesPerTrigger")
        )
        self._selection = selection_for(options, schema)
        if options.value("cursor") is not None and options.url is None:
            raise InvalidSetting("a cursor is kept by a server: set the option url beside path")

    def _make_driver(self) -> LogDriver:
        return LogDriver(self._options, self._selection)

    def reportLatestOffset(self) -> Offset | None:
        driver = self.driver
        assert isinstance(driver, LogDriver)
        return driver.offset(driver.end.position())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return
        adapter = SchemaAdapter(self._schema)
        history = open_history(self._options, partition.pieces, partition.server)
        selection = replace(self._selection, first_position=partition.start, end_position=partition.end)
        try:
            for batch in read_pieces(history, partition.pieces, selection, self._options):
                if batch.num_rows:
                    yield adapter.of(batch)
        finally:
            if not is_local(history):
                history.link.close()


@dataclass(frozen=True)
class LogPartition(HistoryPartition):
    """The pieces of one task, and the positions of its batch: an archive file may hold more than the
    batch."""

    start: int = 0
    end: int = 0


class LogDriver:
    """Knows the end of the journal and cuts batches; one for each run."""

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._history = open_history(options)
        self.end = make_end_position(self._history)
        self._target: int | None = None
        self._committed = -1
        self._start = -1
        self._waiting_since = time.monotonic()  # for rows from `_start` on
        self._ahead = LookAhead(self._history, selection)
        self._min_rows: int | None = options.value("minMessagesPerTrigger")
        self._max_rows: int | None = options.value("maxMessagesPerTrigger")
        self._max_bytes: int | None = options.value("maxBytesPerTrigger")
        self._enough_rows = max(self._max_rows or 0, self._min_rows or 0, LOOK_ROWS)
        self._link = link_of(options) if options.value("cursor") is not None else None

    # -- offsets --

    @cached_property
    def _journal(self) -> str:
        """The identity of the journal or store: positions are valid only within it. "" if it has no rows
        yet."""
        return self._history.snapshot(replace(self._selection, end_position=1)).journal

    def offset(self, position: int) -> Offset:
        return {_POSITION: position, **({_JOURNAL: self._journal} if self._journal else {})}

    def _position(self, offset: Mapping[str, Any]) -> int:
        journal = offset.get(_JOURNAL)  # older checkpoints do not have it
        if journal and self._journal and journal != self._journal:
            raise InvalidSetting(
                "this checkpoint is of another journal or store: give the query a checkpointLocation of its "
                "own, and set startingOffsets to where it begins, for example the time the other one ended"
            )
        return _position_of(offset)

    # -- where a new checkpoint begins --

    def first(self) -> Offset:
        start = self._options.value("startingOffsets")
        since_us = self._options.value("startingTimestamp")
        if start is not None and since_us is not None:
            raise InvalidSetting("give either startingOffsets or startingTimestamp, not both")
        position = (
            self._at_or_after(since_us=since_us) if since_us is not None else self._starting_position(start)
        )
        self._move_cursor(position)
        return self.offset(position)

    def _starting_position(self, start: str | None) -> int:
        word = (start or "earliest").strip()
        if word.lower() == "earliest":
            # What was dropped before this query existed does not count as lost.
            return self._history.snapshot(replace(self._selection, end_position=1)).oldest_position
        if word.lower() == "latest":
            return self.end.now()
        if word.startswith("{"):
            return self._position(_json_offset(word))
        if _is_number(word):
            return int(word)
        if word.lower().startswith("seq:") and _is_number(word[4:].strip()):
            return self._at_or_after(first_seq=int(word[4:]))
        try:
            return self._at_or_after(since_us=read_time_us(word, "startingOffsets"))
        except InvalidSetting:
            raise InvalidSetting(
                "startingOffsets must be earliest, latest, a position, seq:NUMBER or a time such as "
                f"2023-04-03T10:30:00Z, not {start!r}"
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
                break  # pieces of the journal are in order, those of files are not
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

    def next_after(self, start: Offset, is_bounded: bool) -> Offset:
        position = self._position(start)
        end = self._next_end(position, is_bounded)
        return self.offset(end) if end != position else start

    def _next_end(self, start: int, is_bounded: bool) -> int:
        self._move_cursor(start)  # Spark has committed it, else it would not ask for the next batch
        end = self.end.position() if self._target is None else self._target
        if start != self._start:
            self._start = start
            self._ahead.forget_before(start)
            self._waiting_since = time.monotonic()
        if end <= start:
            return start
        if not is_bounded and self._min_rows is None and not is_near(start, end):
            return end  # so large a range has rows, or is worth leaving behind
        self._ahead.look(end, self._enough_rows if is_bounded else max(self._min_rows or 0, 1))
        if not self._ahead.rows:
            return self._idle(start)
        if self._is_too_early(self._ahead.rows):
            return start
        return self._ahead.cut(self._max_rows, self._max_bytes) if is_bounded else end

    def _idle(self, start: int) -> int:
        """No selected row follows `start`: stay there, unless the range without rows has become long or
        old."""
        seen = self._ahead.through
        is_old = time.monotonic() - self._waiting_since > IDLE_S
        # A run with a target ends exactly there, so that the next run begins there.
        return seen if is_old or not is_near(start, seen) or self._target is not None else start

    def _is_too_early(self, rows: int) -> bool:
        if self._min_rows is None or self._target is not None or rows >= self._min_rows:
            return False
        max_delay_s: float = self._options.value("maxTriggerDelay", MAX_DELAY_S)
        return time.monotonic() - self._waiting_since < max_delay_s

    # -- reading --

    def plan_partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = self._position(start), self._position(end)
        if last <= first:
            return []
        options = self._options
        partition_bytes = int(options.value("maxBytesPerPartition", DEFAULT_PARTITION_BYTES))
        selection = replace(self._selection, first_position=first, end_position=last)
        snapshot = self._history.snapshot(selection, max_bytes=min(partition_bytes, PIECE_BYTES))
        if snapshot.gap is not None:
            self._report_loss(*snapshot.gap)
        found = make_partitions(snapshot.pieces, partition_bytes, options.value("minPartitions"))
        server = None if is_local(self._history) else self._history
        return [LogPartition(each.pieces, server, first, last) for each in found if each.pieces]

    def _report_loss(self, first: int, end: int) -> None:
        lost = f"positions {first} to {end} of the history are gone: dropped before this query read them"
        if self._options.fail_on_data_loss:
            raise HistoryUnavailable(
                f"{lost}. To continue without them, set failOnDataLoss to false; "
                "to prevent it, name a cursor or archive the history"
            )
        log.warning("%s", lost)

    # -- the cursor --

    def committed(self, end: Offset) -> None:
        self._move_cursor(_position_of(end))

    def _move_cursor(self, position: int) -> None:
        """Move the cursor on the server, which keeps the journal from there on."""
        if self._link is None or position <= self._committed:
            return
        request: dict[str, Any] = {"position": position}
        for name, option in (("hold_bytes", "holdBytes"), ("hold_s", "holdTime")):
            if self._options.value(option) is not None:
                request[name] = self._options.value(option)
        self._link.call("PUT", f"pipeline/cursors/{quoted(self._options.value('cursor'))}", json=request)
        self._committed = position

    def close(self) -> None:
        self.end.close()
        if self._link is not None:
            self._link.close()


def _position_of(offset: Mapping[str, Any]) -> int:
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

    position = pc.min(batch.column("position")).as_py()
    return [] if position is None else [position]
