"""The archive job: what the journal holds becomes Parquet, proved, under one manifest at a time.

A wave of segments is decoded, sorted and written by tasks on the executors, each of which reads back what it
wrote. Only when the files agree with the journal's own index the manifest is committed, and only then the
cursor moves that lets the server free these segments. Killed anywhere, a run leaves at most files that no
manifest names; the next one removes them and does what is missing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..client.http import Refused, TimedOut, Unreachable
from ..engine.records import PUBLISH, ROUTE, RUN
from ..errors import HistoryUnavailable, InvalidSetting
from ..history.archive import Archive, ArchiveDamaged, Manifest
from ..history.journal import JournalFiles, SegmentContext, SegmentRef, read_segment
from ..history.schema import TABLES
from ..history.segments import rows_array
from ..history.selection import Selection
from ..history.tracker import MessageTracker
from ..journal.format import make_location, offset_of, segment_of
from ..journal.lockfile import holder
from .archive_files import MIB, RowChecksum, RowChecksums, WrittenFile, add_checksums, write_rows
from .archive_maintenance import compact, entry_checksum, erase, vacuum
from .archive_tasks import ArchiveResult, Progress, archive_lock, archive_path, cores_of, run_tasks
from .archive_verify import verify
from .link import Link
from .remote_history import RemoteHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveResult", "archive", "compact", "erase", "vacuum", "verify", "watch"]

CURSOR = "archive"
TASK_BYTES = 384 * MIB  # of rows, roughly: a task holds them in memory, and they make a file
_ROW_BYTES = 150  # what a row takes beside its body: one record may acknowledge thousands of messages
MIN_TASK_BYTES = 32 * MIB
WAVES = 4  # tasks of each table per core between two manifests
_POLL_S = 2.0
_KEEP_ALL = 1 << 30


def archive(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    url: str | None = None,
    archive: str | None = None,
    token: str | None = None,
    through: int | None = None,
    include_open: bool = False,
    accept_gap: bool = False,
    task_bytes: int = TASK_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArchiveResult:
    """Archive all full segments that are not archived yet; with `include_open` what the open one has, too.

    `through` (a position) ends it earlier. With `url` beside `path` the server there is told how far the
    archive reaches; without, the one that holds `path` is, if it lets us. With `url` and `archive` alone the
    rows come from the server, up to its last one. `spark=None` works in this process.
    """
    if task_bytes < 1:
        raise InvalidSetting(f"task_bytes must be 1 or more, not {task_bytes}")
    if path is None:
        if url is None:
            raise InvalidSetting(
                "where is the history? give path=, a data directory, or url=, a server, and archive="
            )
        from .archive_remote import archive_server

        return archive_server(
            spark,
            RemoteHistory(url, token),
            archive_path(None, archive),
            through=through,
            accept_gap=accept_gap,
            task_bytes=task_bytes,
            dry_run=dry_run,
            progress=progress,
        )
    place = Archive(archive_path(path, archive))
    journal = JournalFiles(path)
    if dry_run:
        plan = _plan(journal, place.latest(), through, include_open, accept_gap)
        size = sum(part.bytes for part in plan.parts)
        return ArchiveResult(None, plan.end, len(plan.parts), journal_bytes=size)
    with archive_lock(place.path):
        removed = len(place.vacuum(_KEEP_ALL, orphan_s=0.0))
        plan = _plan(journal, place.latest(), through, include_open, accept_gap)
        server = _ArchiveCursor(path, url, token)
        server.move(plan.start)  # before the first byte is read: what is being archived is not freed
        result = ArchiveResult(None, plan.start, removed=removed)
        total = sum(part.bytes for part in plan.parts)
        for wave in _waves(_cut(journal, plan.parts, task_bytes), task_bytes, cores_of(spark)):
            before = result.journal_bytes

            def report(done: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, total)

            result = _archive_wave(spark, place, plan, wave, result, report)
            server.move(result.through)
            report(0, result.journal_bytes)
        return replace(result, cursor=server.problem)


_archive = archive


# -- what there is to do -------------------------------------------------------------------------


@dataclass(frozen=True)
class _SegmentPart:
    """The records of a segment from `start` to before `stop`: positions."""

    ref: SegmentRef
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return max(0, min(self.stop, make_location(self.ref.number, self.ref.size)) - self.start)

    @property
    def weight(self) -> int:
        """In memory, roughly; its share of the segment's rows is only guessed."""
        return self.bytes + _ROW_BYTES * self.ref.rows * self.bytes // max(1, self.ref.size)

    @property
    def inner_stop(self) -> int | None:
        """None: it goes to the end of its segment."""
        return self.stop if segment_of(self.stop) == self.ref.number else None

    def cut(self, index: Any, limit: int) -> list[_SegmentPart]:
        """Parts of about `limit`. Only where a record begins that is not many messages in one: of those the
        index knows just the places inside."""
        rows = rows_array(index)
        offsets = rows["offset"]
        end = self.ref.size if self.inner_stop is None else offset_of(self.stop)
        first, last = np.searchsorted(offsets, [offset_of(self.start), end])
        safe = first + np.flatnonzero(rows["kind"][first:last] != RUN)
        count = -(-(self.bytes + _ROW_BYTES * int(last - first)) // limit)
        wanted = first + (last - first) * np.arange(1, count) // count
        at = np.searchsorted(safe, wanted)
        places = np.unique(offsets[safe[at[at < len(safe)]]])
        cuts = [self.start, *(make_location(self.ref.number, int(place)) for place in places), self.stop]
        pairs = pairwise(sorted({each for each in cuts if self.start <= each <= self.stop}))
        return [_SegmentPart(self.ref, start, stop) for start, stop in pairs]


@dataclass(frozen=True)
class _ArchivePlan:
    journal: JournalFiles
    start: int
    end: int
    parts: list[_SegmentPart]


def _plan(
    journal: JournalFiles,
    manifest: Manifest | None,
    through: int | None,
    include_open: bool,
    accept_gap: bool,
) -> _ArchivePlan:
    refs = journal.segments()
    oldest = make_location(refs[0].number, 0)
    start = oldest if manifest is None else manifest.through
    if manifest is not None and manifest.origin:
        raise InvalidSetting(
            "the archive was read from a server: go on with url (--url), or choose another place for this one"
        )
    if manifest is not None and manifest.journal != f"{refs[0].salt:016x}":
        raise InvalidSetting(f"the archive was made from another journal than the one in {journal.path}")
    if start < oldest:
        if not accept_gap:
            first, last = segment_of(start), refs[0].number - 1
            raise HistoryUnavailable(
                f"segments {first} to {last} were dropped by the journal before they were archived; "
                "their rows are lost: accept_gap (--accept-gap) goes on behind them"
            )
        start = oldest
    end = refs[-1].end_position if include_open else make_location(refs[-1].number, 0)
    if through is not None:
        end = min(end, through)
    end = max(start, end)
    parts = [
        _SegmentPart(ref, max(start, make_location(ref.number, 0)), min(end, ref.end_position))
        for ref in refs
        if ref.end_position > start and make_location(ref.number, 0) < end
    ]
    return _ArchivePlan(journal, start, end, [part for part in parts if part.start < part.stop])


def _cut(journal: JournalFiles, parts: Sequence[_SegmentPart], limit: int) -> list[_SegmentPart]:
    """The same, with those cut that would be too much for a task."""
    found: list[_SegmentPart] = []
    for part in parts:
        found += part.cut(journal.index(part.ref.number), limit) if part.weight > limit else [part]
    return found


def _waves(parts: Sequence[_SegmentPart], task_bytes: int, cores: int) -> Iterator[list[list[_SegmentPart]]]:
    """Groups of segments, a task each, as many as are committed at once."""
    left = list(parts)
    while left:
        size = sum(part.weight for part in left)
        # Few segments are shared out too, as long as the files do not get too small.
        tasks = max(1, math.ceil(size / task_bytes), min(cores, size // MIN_TASK_BYTES))
        share = size / tasks
        wave: list[list[_SegmentPart]] = []
        while left and len(wave) < WAVES * cores:
            group = [left.pop(0)]
            while left and sum(part.weight for part in group) + left[0].weight / 2 <= share:
                group.append(left.pop(0))
            wave.append(group)
        yield wave


# -- one wave ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SegmentTask:
    table: str
    parts: list[_SegmentPart]
    contexts: list[SegmentContext]


def _archive_wave(
    spark: SparkSession | None,
    place: Archive,
    plan: _ArchivePlan,
    wave: list[list[_SegmentPart]],
    result: ArchiveResult,
    report: Callable[[int], None],
) -> ArchiveResult:
    manifest = place.latest()
    known = {each["segment"] for each in ([] if manifest is None else manifest.segments)}
    lineage = MessageTracker() if manifest is None else MessageTracker.from_state(manifest.lineage)
    contexts: list[list[SegmentContext]] = []
    published: dict[int, int] = {}
    for group in wave:
        contexts.append([])
        for part in group:
            index = plan.journal.index(part.ref.number)
            number, stop = part.ref.number, part.inner_stop
            contexts[-1].append(lineage.context_for(part.ref, index, start=part.start, stop=stop))
            published[number] = published.get(number, 0) + _count_published(index, part)
    tasks = [
        _SegmentTask(table, group, each)
        for table in TABLES
        for group, each in zip(wave, contexts, strict=True)
    ]
    weights = [sum(part.bytes for part in task.parts) // len(TABLES) for task in tasks]
    done = run_tasks(
        spark, partial(_write_task, place.path), tasks, lambda count: report(sum(weights[:count]))
    )
    written = [each for answer in done for each in answer]
    segments = _checked_entries(manifest, written, published)
    end = wave[-1][-1].stop
    files = [each.file for each in written]
    if manifest is None:
        ref = wave[0][0].ref
        first = Manifest(
            1, 0, f"{ref.salt:016x}", lineage.id_prefix, end, files, lineage.state(), [], segments, plan.start
        )
        version = place.commit(first)
    else:
        version = place.commit(
            manifest.next(
                through=end, files=manifest.files + files, lineage=lineage.state(), segments=segments
            )
        )
    return replace(
        result.with_files(version, end, files),
        segments=result.segments + len({each["segment"] for each in segments} - known),
        journal_bytes=result.journal_bytes + sum(part.bytes for group in wave for part in group),
    )


def _write_task(archive: str, task: _SegmentTask) -> list[WrittenFile]:
    """On an executor: decode, sort, write, read back."""
    first = task.parts[0].ref
    if not os.path.isdir(archive):
        raise InvalidSetting(f"an executor does not see the archive {archive}: it must be on a shared disk")
    if not os.path.exists(first.path) and not os.path.isdir(os.path.dirname(first.path)):
        raise InvalidSetting(
            f"an executor does not see the journal ({first.path}): run with --master local[*]"
        )

    def batches() -> Iterator[Any]:
        for part, context in zip(task.parts, task.contexts, strict=True):
            yield from read_segment(
                part.ref, Selection(task.table), context=context, start=part.start, stop=part.stop
            )

    return write_rows(archive, task.table, batches())


def _count_published(index: Any, part: _SegmentPart) -> int:
    """How many messages the journal's own index knows of: counted without decoding them."""
    rows = rows_array(index)
    offsets = rows["offset"]
    inside = np.isin(rows["kind"], (PUBLISH, RUN, ROUTE)) & (offsets >= offset_of(part.start))
    if part.inner_stop is not None:
        inside &= offsets < offset_of(part.stop)
    return int(inside.sum())


def _checked_entries(
    manifest: Manifest | None,
    written: Sequence[WrittenFile],
    published: dict[int, int],
) -> list[dict[str, Any]]:
    """The entries of all segments, if the files hold of each what the journal's index says."""
    sums: dict[str, RowChecksums] = {table: {} for table in TABLES}
    for each in written:
        add_checksums(sums[each.file.table], each.sums)
    for number, count in published.items():
        have = sums["messages"].get(number, RowChecksum()).rows
        if have != count:
            raise ArchiveDamaged(
                f"segment {number}", f"{have} messages were written and the journal's index has {count}"
            )
    entries = {entry["segment"]: entry for entry in ([] if manifest is None else manifest.segments)}
    for number in published:
        before = entries.get(number, {"segment": number})
        entries[number] = {
            **before,
            **{
                table: (entry_checksum(before, table) + sums[table].get(number, RowChecksum())).to_json()
                for table in TABLES
            },
        }
    return [entries[number] for number in sorted(entries)]


# -- the server ----------------------------------------------------------------------------------


class _ArchiveCursor:
    """The server whose journal this is, if there is one: its cursor keeps what is not archived yet."""

    def __init__(self, path: str, url: str | None, token: str | None) -> None:
        self.problem = ""
        self._asked = url is not None
        if url is None:
            pid, url = holder(path)
            if url is None or pid is None or not _is_alive(pid):
                url = None
        self._link = None if url is None else Link(url, token, retry_s=10.0)

    def move(self, position: int) -> None:
        """All before `position` is safe elsewhere. Refusals of a server that nobody named are only noted."""
        if self._link is None:
            return
        try:
            self._link.call("PUT", f"pipeline/cursors/{CURSOR}", json={"position": position})
        except (Refused, Unreachable, TimedOut) as error:
            if self._asked:
                raise
            self.problem = str(error)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# -- again and again -----------------------------------------------------------------------------


def watch(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    url: str | None = None,
    archive: str | None = None,
    token: str | None = None,
    stop: threading.Event | None = None,
    on_result: Callable[[ArchiveResult], None] | None = None,
    every_s: float = _POLL_S,
    **options: Any,
) -> None:
    """Run again whenever a segment is full, until `stop` is set; from a server (`url` without `path`), every
    `every_s`. `told` hears of runs that did something."""
    stop = stop or threading.Event()
    if path is None and url is not None:
        from .archive_remote import watch_server

        history = RemoteHistory(url, token)
        options.pop("include_open", None)
        watch_server(spark, history, archive_path(None, archive), stop, on_result, every_s, **options)
        return
    if path is None:
        raise InvalidSetting(
            "where is the history? give path=, a data directory, or url=, a server, and archive="
        )
    journal = JournalFiles(path)
    seen: int | None = None
    touched = 0.0
    while not stop.is_set():
        newest = journal.segments()[-1].number
        # Now and then without need: the server lets go of a cursor that nobody moves for days.
        if newest != seen or time.monotonic() - touched > 3600:
            result = _archive(spark, path=path, url=url, archive=archive, token=token, **options)
            seen, touched = newest, time.monotonic()
            if on_result is not None and result.version is not None:
                on_result(result)
        stop.wait(every_s)
