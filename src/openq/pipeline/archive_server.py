"""The archive job's source that reads from a server, where the journal cannot be seen.

A server shows no segments, and one on Redis has none. It has an end position: every later row has a position
after it. A run takes all rows from the end of the archive up to there, and its manifest has spans of
positions instead of segments. Each task lets the server count its rows once more before a manifest names its
files. No cursor is moved: such an archive does not allow a journal to free anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import HistoryUnavailable, InvalidSetting
from ..history.archive import Archive, ArchiveDamaged, Manifest, conform
from ..history.local import ScanPiece
from ..history.schema import TABLES, arrow_schema
from ..history.segment_parts import ROW_BYTES
from ..history.selection import Selection
from .archive_files import RowChecksum, WrittenFile, numbers, write_rows
from .archive_job import TASKS_PER_CORE, ArchivePlan, ArchiveStep
from .archive_maintenance import entry_checksum
from .remote_history import RemoteHistory

SPAN_ROWS = 1 << 20  # a span with more rows is not extended: damage is reported by span
_EMPTY_RANGE = 1 << 32  # so many positions without a row get a manifest: retention could pass them otherwise
_NEAR, _HALVINGS = 1 << 20, 64


@dataclass(frozen=True)
class _PositionRange:
    """All rows from `first` (None: from the oldest) to before `end`: positions."""

    first: int | None
    start: int
    end: int
    journal: str
    gaps: list[list[int]]
    pieces: dict[str, tuple[ScanPiece, ...]]

    @property
    def bytes(self) -> int:
        """Of the pieces, roughly; both tables are read from the same ones."""
        return max(sum(piece.bytes for piece in pieces) for pieces in self.pieces.values())

    def selection(self, table: str) -> Selection:
        return Selection(table, first_position=self.first, end_position=self.end)


@dataclass(frozen=True)
class _PieceTask:
    history: RemoteHistory
    selection: Selection
    pieces: list[ScanPiece]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    def write(self, archive: str) -> list[WrittenFile]:
        table = self.selection.table
        written = write_rows(archive, table, self._checked_rows())
        have = sum((each for file in written for each in file.sums.values()), RowChecksum())
        rows, seqs = self._count_on_server()
        if (have.rows, have.seqs) != (rows, seqs):
            raise ArchiveDamaged(
                f"positions {self.selection.first_position or 0} to {self.selection.end_position}",
                f"{have.rows} rows of {table} were written and the server counts {rows}"
                + (", with other sequence numbers" if have.rows == rows else ""),
            )
        return written

    def _checked_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows, each body compared with the hash that the server computed."""
        schema = arrow_schema(self.selection.table)
        for batch in self.history.read_many(self.pieces, self.selection):
            if "body" in schema.names:
                pairs = zip(batch.column("body"), batch.column("body_sha256"), strict=True)
                for body, digest in pairs:
                    if (
                        body.is_valid
                        and digest.is_valid
                        and sha256(body.as_buffer()).digest() != digest.as_py()
                    ):
                        raise ArchiveDamaged(self.history.link.url, "a body does not match its hash")
            yield conform(batch, schema)

    def _count_on_server(self) -> tuple[int, int]:
        """The number of rows and the sum of their sequence numbers; read once more, without bodies."""
        narrow = replace(self.selection, columns=("position", "seq"))
        rows = seqs = 0
        for batch in self.history.read_many(self.pieces, narrow):
            rows += batch.num_rows
            seqs += int(numbers(batch.column("seq")).astype(np.uint64).sum())
        return rows, seqs & ((1 << 64) - 1)


@dataclass(frozen=True)
class _ServerStep(ArchiveStep):
    is_last: bool = True  # False: more is known to follow


class ServerSource:
    def __init__(
        self,
        archive: Archive,
        history: RemoteHistory,
        through: int | None,
        accept_gap: bool,
        task_bytes: int,
    ) -> None:
        self._archive = archive
        self._history = history
        self._through = through
        self._accept_gap = accept_gap
        self._task_bytes = task_bytes
        self.url = history.link.url
        self._origin = _origin(history)
        self.id_prefix: str = self._origin["id_prefix"]
        self.journal = ""
        self._range: _PositionRange | None = None

    def plan(self) -> ArchivePlan:
        whole = self._range = self._remaining()
        self._through = whole.end  # rows that come later are for the next run
        self.journal = whole.journal
        return ArchivePlan(whole.start, whole.end, whole.bytes, gaps=whole.gaps)

    def _remaining(self) -> _PositionRange:
        manifest, archive, end = self._archive.latest(), self._archive.path, self._through
        if manifest is not None and not manifest.origin:
            raise InvalidSetting(
                f"the archive {archive} was made from the files of a journal: continue with path (--data), "
                "or choose another directory for what comes from a server"
            )
        first = None if manifest is None else manifest.through
        if end is not None and first is not None:
            end = max(first, end)
        found = _plan_range(self._history, first, end)
        if manifest is not None and manifest.journal != found.journal:
            raise InvalidSetting(
                f"the archive {archive} was made from another journal or store than that of {self.url}"
            )
        if first is not None and found.end < first and self._origin["storage"] != "redis":
            raise InvalidSetting(
                f"the history of {self.url} ends at {found.end} and the archive at {first}: the server was "
                "set back to an older state, so choose another directory for its archive"
            )
        if found.gaps and not self._accept_gap:
            [[lost, kept]] = found.gaps
            raise HistoryUnavailable(
                f"positions {lost} to {kept} were dropped by the server, all or some of them, before they "
                "were archived; their rows are lost: accept_gap (--accept-gap) continues without them"
            )
        return found

    def steps(self, cores: int) -> Iterator[_ServerStep]:
        whole = self._range
        assert whole is not None
        limit = TASKS_PER_CORE * cores * self._task_bytes
        while whole.bytes > limit:
            part = _limit_range(self._history, whole, limit)
            yield self._step(part, is_last=False)
            whole = self._remaining()
        yield self._step(whole, is_last=True)

    def _step(self, part: _PositionRange, is_last: bool) -> _ServerStep:
        tasks = [
            _PieceTask(self._history, part.selection(table), pieces)
            for table in TABLES
            for pieces in _group_pieces(part.pieces[table], self._task_bytes)
        ]
        return _ServerStep(part.start, part.end, part.bytes, tasks, part.gaps, is_last)

    def changes(
        self, previous: Manifest | None, step: _ServerStep, written: Sequence[WrittenFile]
    ) -> dict[str, Any] | None:
        is_long = previous is not None and step.end - step.start >= _EMPTY_RANGE
        if not (written or step.gaps or is_long) and step.is_last:
            return None
        span = {"start": step.start, "stop": step.end, "gaps": step.gaps, **_table_checksums(written)}
        if previous is None:
            return {"origin": self._origin, "spans": [span]}
        complete = bool(self._origin["complete"] and previous.origin["complete"])
        return {
            "origin": {**self._origin, "complete": complete},
            "spans": append_span(previous.spans, span),
        }

    def committed(self, position: int) -> None:
        pass


def _origin(history: RemoteHistory) -> dict[str, Any]:
    """Which server this is, and whether this user sees all of its queues."""
    who = history.link.call("GET", "whoami").json()
    server = history.link.call("GET", "server").json()
    return {
        "server": history.link.url,
        "storage": server["storage"],
        "id_prefix": server["id_prefix"],
        "user": who["user"],
        "complete": bool(who["open"] or who["is_root"]),
    }


def _plan_range(history: RemoteHistory, first: int | None, end: int | None) -> _PositionRange:
    pieces: dict[str, tuple[ScanPiece, ...]] = {}
    gaps: list[tuple[int, int]] = []
    oldest: list[int] = []
    journal = ""
    for table in TABLES:
        # A history may end before the archive does: that of another server, or of one that was set back.
        limit = None if end is None else max(end, first or 0)
        snapshot = history.snapshot(Selection(table, first_position=first, end_position=limit))
        # Rows that come meanwhile are for the next run, in both tables.
        end = snapshot.end_position if end is None else min(end, snapshot.end_position)
        pieces[table] = snapshot.pieces
        journal = snapshot.journal
        oldest.append(snapshot.oldest_position)
        gaps += [] if snapshot.gap is None else [snapshot.gap]
    assert end is not None
    lost = [[min(low for low, _ in gaps), max(high for _, high in gaps)]] if gaps else []
    start = min(*oldest, end) if first is None else first
    return _PositionRange(first, start, end, journal, lost, pieces)


def _limit_range(history: RemoteHistory, whole: _PositionRange, limit: int) -> _PositionRange:
    """As much of it, from its beginning, as is committed at once."""
    low, high = whole.start, whole.end
    best, near = whole, _NEAR
    for _ in range(_HALVINGS):
        # Positions on Redis begin in 1970 and rows are near the end: begin the search there.
        middle = max((low + high) // 2, whole.end - near)
        near *= 16
        if middle <= low:
            break
        part = _plan_range(history, whole.first, middle)
        if part.bytes > limit:
            best, high = part, middle
        elif part.bytes < limit // 4:
            low = middle
        else:
            best = part
            break
    gaps = [[first, min(end, best.end)] for first, end in whole.gaps]
    return replace(best, start=whole.start, gaps=gaps)


def _group_pieces(pieces: Iterable[ScanPiece], limit: int) -> Iterator[list[ScanPiece]]:
    """Groups for one task each, which holds their rows in memory."""
    group: list[ScanPiece] = []
    weight = 0
    for piece in pieces:
        more = piece.bytes + ROW_BYTES * piece.rows
        if group and weight + more > limit:
            yield group
            group, weight = [], 0
        group.append(piece)
        weight += more
    if group:
        yield group


def _table_checksums(written: Iterable[WrittenFile]) -> dict[str, Any]:
    sums = dict.fromkeys(TABLES, RowChecksum())
    for each in written:
        sums[each.file.table] = sum(each.sums.values(), sums[each.file.table])
    return {table: each.to_json() for table, each in sums.items()}


def append_span(spans: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Extends the last span by the new one if they are adjacent and small enough; otherwise adds it."""
    last = spans[-1] if spans else None
    if last is None or last["stop"] != new["start"] or _rows_of(last) + _rows_of(new) > SPAN_ROWS:
        return [*spans, new]
    sums = {table: (entry_checksum(last, table) + entry_checksum(new, table)).to_json() for table in TABLES}
    return [*spans[:-1], {**last, **sums, "stop": new["stop"], "gaps": last["gaps"] + new["gaps"]}]


def _rows_of(span: dict[str, Any]) -> int:
    return sum(entry_checksum(span, table).rows for table in TABLES)
