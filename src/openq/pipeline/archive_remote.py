"""The archive job where the journal is not to be seen: its rows come from a server, over HTTP.

A server shows no segments, and one on Redis has none. What it gives is an end: whatever comes later has a
position behind it. So a run takes all rows from where the archive ends up to there, and its manifest tells of
spans of positions where that of a journal's files tells of segments. Each task has the server count its rows
once more before a manifest names its files. No cursor is moved: what is archived this way allows no journal
to free anything.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..client.http import TimedOut, Unreachable
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..history.archive import Archive, ArchiveDamaged, Manifest, conform
from ..history.local import Piece
from ..history.schema import TABLES, arrow_schema
from ..history.selection import Selection
from .archive_files import MIB, RowChecksum, WrittenFile, numbers, write_rows
from .archive_maintenance import entry_checksum
from .archive_tasks import ArchiveResult, Progress, archive_lock, cores_of, run_tasks
from .remote_history import RemoteHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("openq.pipeline")

TASK_BYTES = 384 * MIB  # of rows, roughly, as for a journal
WAVES = 4  # tasks of each table per core between two manifests
SPAN_ROWS = 1 << 20  # a span with more is not joined by the next run: damage is told by spans
_ROW_BYTES = 150  # what a row takes beside its body
_EMPTY_RANGE = (
    1 << 32
)  # so many positions without a row are worth a manifest: retention may pass them otherwise
_NEAR, _HALVINGS = 1 << 20, 64
_MAX_ATTEMPTS = 5
_KEEP_ALL = 1 << 30


def archive_server(
    spark: SparkSession | None,
    history: RemoteHistory,
    path: str,
    *,
    through: int | None = None,
    accept_gap: bool = False,
    task_bytes: int = TASK_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArchiveResult:
    """Archive what the server has behind the end of the archive at `path`, or behind nothing."""
    place = Archive(path)
    origin = _origin(history)
    url = history.link.url
    if dry_run:
        whole = _remaining_range(history, place, origin, through, accept_gap)
        return ArchiveResult(None, whole.end, journal_bytes=whole.bytes, server=url, gaps=whole.gaps)
    with archive_lock(place.path):
        removed = len(place.vacuum(_KEEP_ALL, orphan_s=0.0))
        whole = _remaining_range(history, place, origin, through, accept_gap)
        total, end = whole.bytes, whole.end
        result = ArchiveResult(None, whole.start, removed=removed, server=url)
        tries = _MAX_ATTEMPTS
        while True:
            part = _limit_range(history, whole, WAVES * cores_of(spark) * task_bytes)

            def report(done: int, before: int = result.journal_bytes) -> None:
                if progress is not None:
                    progress(min(before + done, total), total)

            try:
                result = _archive_range(spark, place, history, origin, part, task_bytes, result, report)
            except OpenQError as error:
                # Dropped since we looked: another look finds the gap, or that its queue was deleted.
                tries -= 1
                if error.code != HistoryUnavailable.code or not tries:
                    raise
                place.vacuum(_KEEP_ALL, orphan_s=0.0)
                whole = _remaining_range(history, place, origin, end, accept_gap)
                continue
            if part.is_last:
                report(total)
                return result
            whole = _remaining_range(history, place, origin, end, accept_gap)


def watch_server(
    spark: SparkSession | None,
    history: RemoteHistory,
    path: str,
    stop: threading.Event,
    on_result: Callable[[ArchiveResult], None] | None,
    every_s: float,
    **options: Any,
) -> None:
    """Again and again until `stop` is set. A server that was there once is waited for."""
    is_known = False
    while not stop.is_set():
        try:
            result = archive_server(spark, history, path, **options)
        except (Unreachable, TimedOut) as error:
            if not is_known:
                raise
            log.warning("%s", error)
        else:
            is_known = True
            if on_result is not None and result.version is not None:
                on_result(result)
        stop.wait(every_s)


def _origin(history: RemoteHistory) -> dict[str, Any]:
    """Which server this is, and whether we see all of its queues: who may see only some gets only those."""
    who = history.link.call("GET", "whoami").json()
    server = history.link.call("GET", "server").json()
    return {
        "server": history.link.url,
        "storage": server["storage"],
        "id_prefix": server["id_prefix"],
        "user": who["user"],
        "complete": bool(who["open"] or who["is_root"]),
    }


# -- what there is to do -------------------------------------------------------------------------


@dataclass(frozen=True)
class _PositionRange:
    """All rows from `first` (None: from the oldest there is) to before `end`: positions."""

    first: int | None
    start: int
    end: int
    journal: str
    gaps: list[list[int]]
    pieces: dict[str, tuple[Piece, ...]]
    is_last: bool = True  # False: more is known to follow

    @property
    def bytes(self) -> int:
        """Of what holds the rows, roughly; both tables come out of the same."""
        return max(sum(piece.bytes for piece in pieces) for pieces in self.pieces.values())

    def selection(self, table: str) -> Selection:
        return Selection(table, first_position=self.first, end_position=self.end)


def _remaining_range(
    history: RemoteHistory, place: Archive, origin: dict[str, Any], end: int | None, accept_gap: bool
) -> _PositionRange:
    """Everything behind the archive's end. Raises HistoryUnavailable if some of it is lost."""
    manifest = place.latest()
    if manifest is not None and not manifest.origin:
        raise InvalidSetting(
            f"the archive {place.path} was made from the files of a journal: go on with path (--data), "
            "or choose another place for what comes from a server"
        )
    first = None if manifest is None else manifest.through
    if end is not None and first is not None:
        end = max(first, end)
    found = _plan_range(history, first, end)
    if manifest is not None and manifest.journal != found.journal:
        raise InvalidSetting(
            f"the archive {place.path} was made from another journal or store than that of {history.link.url}"
        )
    if first is not None and found.end < first and origin["storage"] != "redis":
        raise InvalidSetting(
            f"the history of {history.link.url} ends at {found.end} and the archive at {first}: the server "
            "was set back to an older state, so choose another place for its archive"
        )
    if found.gaps and not accept_gap:
        [[lost, kept]] = found.gaps
        raise HistoryUnavailable(
            f"positions {lost} to {kept} were dropped by the server, all or some of them, before they were "
            "archived; their rows are lost: accept_gap (--accept-gap) goes on without them"
        )
    return found


def _plan_range(history: RemoteHistory, first: int | None, end: int | None) -> _PositionRange:
    pieces: dict[str, tuple[Piece, ...]] = {}
    gaps: list[tuple[int, int]] = []
    oldest: list[int] = []
    journal = ""
    for table in TABLES:
        # A history may end before the archive does: another server's, or one that was set back.
        limit = None if end is None else max(end, first or 0)
        snapshot = history.snapshot(Selection(table, first_position=first, end_position=limit))
        # What comes while we look is for the next run, in both tables.
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
    if whole.bytes <= limit:
        return whole
    low, high = whole.start, whole.end
    best, near = whole, _NEAR
    for _ in range(_HALVINGS):
        # Positions on Redis begin in 1970, and rows lie near the end: that is where to look first.
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
    return replace(best, start=whole.start, gaps=gaps, is_last=False)


# -- one commit ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PieceTask:
    selection: Selection
    pieces: list[Piece]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


def _archive_range(
    spark: SparkSession | None,
    place: Archive,
    history: RemoteHistory,
    origin: dict[str, Any],
    part: _PositionRange,
    task_bytes: int,
    result: ArchiveResult,
    report: Callable[[int], None],
) -> ArchiveResult:
    tasks = [
        _PieceTask(part.selection(table), pieces)
        for table in TABLES
        for pieces in _group_pieces(part.pieces[table], task_bytes)
    ]
    weights = [task.bytes // len(TABLES) for task in tasks]
    done = run_tasks(
        spark,
        partial(_write_task, place.path, history),
        tasks,
        lambda count: report(sum(weights[:count])),
    )
    written = [each for answer in done for each in answer]
    manifest = place.latest()
    is_long = manifest is not None and part.end - part.start >= _EMPTY_RANGE
    if not (written or part.gaps or is_long) and part.is_last:
        return result
    span = {"start": part.start, "stop": part.end, "gaps": part.gaps, **_table_checksums(written)}
    files = [each.file for each in written]
    if manifest is None:
        first = Manifest(
            1, 0, part.journal, origin["id_prefix"], part.end, files, first=part.start,
            origin=origin, spans=[span],
        )  # fmt: skip
        version = place.commit(first)
    else:
        complete = bool(origin["complete"] and manifest.origin["complete"])
        version = place.commit(
            manifest.next(
                through=part.end,
                files=manifest.files + files,
                origin={**origin, "complete": complete},
                spans=append_span(manifest.spans, span),
            )
        )
    return replace(
        result.with_files(version, part.end, files),
        journal_bytes=result.journal_bytes + part.bytes,
        gaps=result.gaps + part.gaps,
    )


def _group_pieces(pieces: Iterable[Piece], limit: int) -> Iterator[list[Piece]]:
    """Groups for a task each: it holds their rows in memory."""
    share: list[Piece] = []
    weight = 0
    for piece in pieces:
        more = piece.bytes + _ROW_BYTES * piece.rows
        if share and weight + more > limit:
            yield share
            share, weight = [], 0
        share.append(piece)
        weight += more
    if share:
        yield share


def _table_checksums(written: Iterable[WrittenFile]) -> dict[str, Any]:
    sums = dict.fromkeys(TABLES, RowChecksum())
    for each in written:
        sums[each.file.table] = sum(each.sums.values(), sums[each.file.table])
    return {table: each.to_json() for table, each in sums.items()}


def append_span(spans: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """With the new one: as part of the last, which it follows, unless that has enough rows already."""
    last = spans[-1] if spans else None
    if last is None or last["stop"] != new["start"] or _rows_of(last) + _rows_of(new) > SPAN_ROWS:
        return [*spans, new]
    sums = {table: (entry_checksum(last, table) + entry_checksum(new, table)).to_json() for table in TABLES}
    return [*spans[:-1], {**last, **sums, "stop": new["stop"], "gaps": last["gaps"] + new["gaps"]}]


def _rows_of(span: dict[str, Any]) -> int:
    return sum(entry_checksum(span, table).rows for table in TABLES)


# -- on an executor ------------------------------------------------------------------------------


def _write_task(archive: str, history: RemoteHistory, task: _PieceTask) -> list[WrittenFile]:
    """Fetch, sort, write, read back; then let the server count."""
    if not os.path.isdir(archive):
        raise InvalidSetting(f"an executor does not see the archive {archive}: it must be on a shared disk")
    table = task.selection.table
    written = write_rows(archive, table, _checked_rows(history, task))
    have = sum((each for file in written for each in file.sums.values()), RowChecksum())
    rows, seqs = _count_on_server(history, task)
    if (have.rows, have.seqs) != (rows, seqs):
        raise ArchiveDamaged(
            f"positions {task.selection.first_position or 0} to {task.selection.end_position}",
            f"{have.rows} rows of {table} were written and the server counts {rows}"
            + (", with other sequences" if have.rows == rows else ""),
        )
    return written


def _checked_rows(history: RemoteHistory, task: _PieceTask) -> Iterator[pa.RecordBatch]:
    """The rows, each body as its hash says it was on the server."""
    schema = arrow_schema(task.selection.table)
    for batch in history.read_many(task.pieces, task.selection):
        if "body" in schema.names:
            pairs = zip(batch.column("body"), batch.column("body_sha256"), strict=True)
            for body, digest in pairs:
                if body.is_valid and digest.is_valid and sha256(body.as_buffer()).digest() != digest.as_py():
                    raise ArchiveDamaged(history.link.url, "a body does not match its hash")
        yield conform(batch, schema)


def _count_on_server(history: RemoteHistory, task: _PieceTask) -> tuple[int, int]:
    """How many rows the server has there, and the sum of their sequences; read once more, without bodies."""
    narrow = replace(task.selection, columns=("position", "seq"))
    rows = seqs = 0
    for batch in history.read_many(task.pieces, narrow):
        rows += batch.num_rows
        seqs += int(numbers(batch.column("seq")).astype(np.uint64).sum())
    return rows, seqs & ((1 << 64) - 1)
