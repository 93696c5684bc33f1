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
from ..columns.archive import Archive, ArchiveDamaged, Manifest, conform
from ..columns.history import Piece
from ..columns.schema import TABLES, arrow_schema
from ..columns.select import Selection
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from .archive_care import entry_sum
from .archive_files import MIB, Sum, Written, numbers, write_rows
from .archive_tasks import Progress, Result, alone, cores_of, on_executors
from .remote import RemoteHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("openq.pipeline")

TASK_BYTES = 384 * MIB  # of rows, roughly, as for a journal
WAVES = 4  # tasks of each table per core between two manifests
SPAN_ROWS = 1 << 20  # a span with more is not joined by the next run: damage is told by spans
_ROW_BYTES = 150  # what a row takes beside its body
_QUIET = 1 << 32  # so many positions without a row are worth a manifest: retention may pass them otherwise
_NEAR, _HALVINGS = 1 << 20, 64
_TRIES = 5
_ALL = 1 << 30


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
) -> Result:
    """Archive what the server has behind the end of the archive at `path`, or behind nothing."""
    place = Archive(path)
    origin = _origin(history)
    url = history.link.url
    if dry_run:
        whole = _stretch(history, place, origin, through, accept_gap)
        return Result(None, whole.end, journal_bytes=whole.bytes, server=url, gaps=whole.gaps)
    with alone(place.path):
        removed = len(place.vacuum(_ALL, orphan_s=0.0))
        whole = _stretch(history, place, origin, through, accept_gap)
        total, end = whole.bytes, whole.end
        result = Result(None, whole.start, removed=removed, server=url)
        tries = _TRIES
        while True:
            part = _fitting(history, whole, WAVES * cores_of(spark) * task_bytes)

            def tell(done: int, before: int = result.journal_bytes) -> None:
                if progress is not None:
                    progress(min(before + done, total), total)

            try:
                result = _archive_stretch(spark, place, history, origin, part, task_bytes, result, tell)
            except OpenQError as error:
                # Dropped since we looked: another look finds the gap, or that its queue was deleted.
                tries -= 1
                if error.code != HistoryUnavailable.code or not tries:
                    raise
                place.vacuum(_ALL, orphan_s=0.0)
                whole = _stretch(history, place, origin, end, accept_gap)
                continue
            if part.is_last:
                tell(total)
                return result
            whole = _stretch(history, place, origin, end, accept_gap)


def watch_server(
    spark: SparkSession | None,
    history: RemoteHistory,
    path: str,
    stop: threading.Event,
    told: Callable[[Result], None] | None,
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
            if told is not None and result.version is not None:
                told(result)
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
class _Stretch:
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


def _stretch(
    history: RemoteHistory, place: Archive, origin: dict[str, Any], end: int | None, accept_gap: bool
) -> _Stretch:
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
    found = _planned(history, first, end)
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


def _planned(history: RemoteHistory, first: int | None, end: int | None) -> _Stretch:
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
    return _Stretch(first, start, end, journal, lost, pieces)


def _fitting(history: RemoteHistory, whole: _Stretch, limit: int) -> _Stretch:
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
        part = _planned(history, whole.first, middle)
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
class _Task:
    selection: Selection
    pieces: list[Piece]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


def _archive_stretch(
    spark: SparkSession | None,
    place: Archive,
    history: RemoteHistory,
    origin: dict[str, Any],
    part: _Stretch,
    task_bytes: int,
    result: Result,
    tell: Callable[[int], None],
) -> Result:
    tasks = [
        _Task(part.selection(table), pieces)
        for table in TABLES
        for pieces in _shares(part.pieces[table], task_bytes)
    ]
    weights = [task.bytes // len(TABLES) for task in tasks]
    done = on_executors(
        spark,
        partial(_write_task, place.path, history),
        tasks,
        lambda count: tell(sum(weights[:count])),
    )
    written = [each for answer in done for each in answer]
    manifest = place.latest()
    is_long = manifest is not None and part.end - part.start >= _QUIET
    if not (written or part.gaps or is_long) and part.is_last:
        return result
    span = {"start": part.start, "stop": part.end, "gaps": part.gaps, **_sums(written)}
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
                spans=joined(manifest.spans, span),
            )
        )
    return replace(
        result.grown(version, part.end, files),
        journal_bytes=result.journal_bytes + part.bytes,
        gaps=result.gaps + part.gaps,
    )


def _shares(pieces: Iterable[Piece], limit: int) -> Iterator[list[Piece]]:
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


def _sums(written: Iterable[Written]) -> dict[str, Any]:
    sums = dict.fromkeys(TABLES, Sum())
    for each in written:
        sums[each.file.table] = sum(each.sums.values(), sums[each.file.table])
    return {table: each.to_json() for table, each in sums.items()}


def joined(spans: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """With the new one: as part of the last, which it follows, unless that has enough rows already."""
    last = spans[-1] if spans else None
    if last is None or last["stop"] != new["start"] or _rows_of(last) + _rows_of(new) > SPAN_ROWS:
        return [*spans, new]
    sums = {table: (entry_sum(last, table) + entry_sum(new, table)).to_json() for table in TABLES}
    return [*spans[:-1], {**last, **sums, "stop": new["stop"], "gaps": last["gaps"] + new["gaps"]}]


def _rows_of(span: dict[str, Any]) -> int:
    return sum(entry_sum(span, table).rows for table in TABLES)


# -- on an executor ------------------------------------------------------------------------------


def _write_task(archive: str, history: RemoteHistory, task: _Task) -> list[Written]:
    """Fetch, sort, write, read back; then let the server count."""
    if not os.path.isdir(archive):
        raise InvalidSetting(f"an executor does not see the archive {archive}: it must be on a shared disk")
    table = task.selection.table
    written = write_rows(archive, table, _intact(history, task))
    have = sum((each for file in written for each in file.sums.values()), Sum())
    rows, seqs = _counted(history, task)
    if (have.rows, have.seqs) != (rows, seqs):
        raise ArchiveDamaged(
            f"positions {task.selection.first_position or 0} to {task.selection.end_position}",
            f"{have.rows} rows of {table} were written and the server counts {rows}"
            + (", with other sequences" if have.rows == rows else ""),
        )
    return written


def _intact(history: RemoteHistory, task: _Task) -> Iterator[pa.RecordBatch]:
    """The rows, each body as its hash says it was on the server."""
    schema = arrow_schema(task.selection.table)
    for batch in history.read_many(task.pieces, task.selection):
        if "body" in schema.names:
            pairs = zip(batch.column("body"), batch.column("body_sha256"), strict=True)
            for body, digest in pairs:
                if body.is_valid and digest.is_valid and sha256(body.as_buffer()).digest() != digest.as_py():
                    raise ArchiveDamaged(history.link.url, "a body does not match its hash")
        yield conform(batch, schema)


def _counted(history: RemoteHistory, task: _Task) -> tuple[int, int]:
    """How many rows the server has there, and the sum of their sequences; read once more, without bodies."""
    narrow = replace(task.selection, columns=("position", "seq"))
    rows = seqs = 0
    for batch in history.read_many(task.pieces, narrow):
        rows += batch.num_rows
        seqs += int(numbers(batch.column("seq")).astype(np.uint64).sum())
    return rows, seqs & ((1 << 64) - 1)
