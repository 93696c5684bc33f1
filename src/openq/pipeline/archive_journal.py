"""The archive job's source that reads the segments of a journal by path."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client.http import Refused, TimedOut, Unreachable
from ..errors import HistoryUnavailable, InvalidSetting
from ..history.archive import Archive, ArchiveDamaged, Manifest
from ..history.journal import JournalFiles, SegmentContext, read_segment
from ..history.schema import TABLES
from ..history.segment_parts import SegmentPart, segment_of
from ..history.selection import Selection
from ..history.tracker import MessageTracker
from .archive_files import MIB, RowChecksum, RowChecksums, WrittenFile, add_checksums, write_rows
from .archive_job import TASKS_PER_CORE, ArchivePlan, ArchiveStep
from .archive_maintenance import entry_checksum
from .link import Link

CURSOR = "archive"
MIN_TASK_BYTES = 32 * MIB


@dataclass(frozen=True)
class _SegmentTask:
    table: str
    parts: list[SegmentPart]
    contexts: list[SegmentContext]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def write(self, archive: str) -> list[WrittenFile]:
        first = self.parts[0].ref
        if not os.path.exists(first.path) and not os.path.isdir(os.path.dirname(first.path)):
            raise InvalidSetting(
                f"an executor cannot see the journal ({first.path}): run with --master local[*]"
            )
        return write_rows(archive, self.table, self._batches())

    def _batches(self) -> Iterator[Any]:
        for part, context in zip(self.parts, self.contexts, strict=True):
            yield from read_segment(
                part.ref, Selection(self.table), context=context, start=part.start, stop=part.stop
            )


@dataclass(frozen=True)
class _JournalStep(ArchiveStep):
    tracker: MessageTracker = field(default_factory=MessageTracker)  # after the step
    published: dict[int, int] = field(default_factory=dict)  # messages by segment, as the index counts them


class JournalSource:
    url = ""

    def __init__(
        self,
        archive: Archive,
        path: str,
        cursor: ArchiveCursor,
        through: int | None,
        include_open: bool,
        accept_gap: bool,
        task_bytes: int,
    ) -> None:
        self._archive = archive
        self._files = JournalFiles(path)
        self._cursor = cursor
        self._through = through
        self._include_open = include_open
        self._accept_gap = accept_gap
        self._task_bytes = task_bytes
        self._parts: list[SegmentPart] = []
        self.journal = self.id_prefix = ""

    def plan(self) -> ArchivePlan:
        refs = self._files.segments()
        manifest = self._archive.latest()
        self.journal = f"{refs[0].salt:016x}"
        oldest = refs[0].start_position
        start = oldest if manifest is None else manifest.through
        if manifest is not None and manifest.origin:
            raise InvalidSetting(
                "the archive was read from a server: continue with url (--url), or choose another directory"
            )
        if manifest is not None and manifest.journal != self.journal:
            raise InvalidSetting(
                f"the archive was made from another journal than the one in {self._files.path}"
            )
        if start < oldest:
            if not self._accept_gap:
                first, last = segment_of(start), refs[0].number - 1
                raise HistoryUnavailable(
                    f"segments {first} to {last} were dropped by the journal before they were archived; "
                    "their rows are lost: accept_gap (--accept-gap) continues after them"
                )
            start = oldest
        end = refs[-1].end_position if self._include_open else refs[-1].start_position
        if self._through is not None:
            end = min(end, self._through)
        end = self._through = max(start, end)  # rows that come later are for the next run
        parts = [
            SegmentPart(ref, max(start, ref.start_position), min(end, ref.end_position))
            for ref in refs
            if ref.end_position > start and ref.start_position < end
        ]
        self._parts = [part for part in parts if part.start < part.stop]
        return ArchivePlan(start, end, sum(part.bytes for part in self._parts), len(self._parts))

    def steps(self, cores: int) -> Iterator[_JournalStep]:
        for groups in _waves(self._cut(), self._task_bytes, cores):
            yield self._step(groups)

    def _cut(self) -> list[SegmentPart]:
        """The parts, with those cut that are too large for a task."""
        found: list[SegmentPart] = []
        for part in self._parts:
            is_large = part.weight > self._task_bytes
            index = self._files.index(part.ref.number) if is_large else None
            found += part.cut(index, self._task_bytes) if is_large else [part]
        return found

    def _step(self, groups: list[list[SegmentPart]]) -> _JournalStep:
        manifest = self._archive.latest()
        tracker = MessageTracker() if manifest is None else MessageTracker.from_state(manifest.lineage)
        contexts: list[list[SegmentContext]] = []
        published: dict[int, int] = {}
        for group in groups:
            contexts.append([])
            for part in group:
                number = part.ref.number
                index = self._files.index(number)
                contexts[-1].append(
                    tracker.context_for(part.ref, index, start=part.start, stop=part.inner_stop)
                )
                published[number] = published.get(number, 0) + part.count_published(index)
        tasks = [
            _SegmentTask(table, group, each)
            for table in TABLES
            for group, each in zip(groups, contexts, strict=True)
        ]
        self.id_prefix = tracker.id_prefix
        size = sum(part.bytes for group in groups for part in group)
        return _JournalStep(
            groups[0][0].start, groups[-1][-1].stop, size, tasks, tracker=tracker, published=published
        )

    def changes(
        self, previous: Manifest | None, step: _JournalStep, written: Sequence[WrittenFile]
    ) -> dict[str, Any]:
        """The entries of all segments, if the files hold as many messages of each as the journal's index."""
        sums: dict[str, RowChecksums] = {table: {} for table in TABLES}
        for each in written:
            add_checksums(sums[each.file.table], each.sums)
        for number, count in step.published.items():
            have = sums["messages"].get(number, RowChecksum()).rows
            if have != count:
                raise ArchiveDamaged(
                    f"segment {number}", f"{have} messages were written and the journal's index has {count}"
                )
        entries = {entry["segment"]: entry for entry in ([] if previous is None else previous.segments)}
        for number in step.published:
            before = entries.get(number, {"segment": number})
            after = {
                table: (entry_checksum(before, table) + sums[table].get(number, RowChecksum())).to_json()
                for table in TABLES
            }
            entries[number] = {**before, **after}
        return {"lineage": step.tracker.state(), "segments": [entries[number] for number in sorted(entries)]}

    def committed(self, position: int) -> None:
        self._cursor.move(position)


def _waves(parts: Sequence[SegmentPart], task_bytes: int, cores: int) -> Iterator[list[list[SegmentPart]]]:
    """Groups of parts, one for each task, as many as are committed at once."""
    left = list(parts)
    while left:
        size = sum(part.weight for part in left)
        # A few segments are shared out too, as long as the files do not get too small.
        tasks = max(1, math.ceil(size / task_bytes), min(cores, size // MIN_TASK_BYTES))
        share = size / tasks
        wave: list[list[SegmentPart]] = []
        while left and len(wave) < TASKS_PER_CORE * cores:
            group = [left.pop(0)]
            while left and sum(part.weight for part in group) + left[0].weight / 2 <= share:
                group.append(left.pop(0))
            wave.append(group)
        yield wave


class ArchiveCursor:
    """The cursor `archive` of the server that owns the journal, if there is one: it keeps unarchived
    segments.

    A server that the caller named must accept the cursor; refusals of one that was found are only noted.
    """

    def __init__(self, path: str, url: str | None, token: str | None) -> None:
        self.problem = ""
        self._is_required = url is not None
        url = url or JournalFiles(path).server_url()
        self._link = None if url is None else Link(url, token, retry_s=10.0)

    def move(self, position: int) -> None:
        """All rows before `position` are archived."""
        if self._link is None:
            return
        try:
            self._link.call("PUT", f"pipeline/cursors/{CURSOR}", json={"position": position})
        except (Refused, Unreachable, TimedOut) as error:
            if self._is_required:
                raise
            self.problem = str(error)
