"""The archive job: rows of the history become Parquet files, checked, under one manifest at a time.

A source (the segments of a journal, or a server) cuts the history after the end of the archive into steps.
The tasks of a step run on the executors; each sorts and writes its rows and reads back what it wrote. Only
when the files agree with the source is the manifest committed, and only then does the cursor move that lets a
server free its segments. A job that is killed anywhere leaves at most files that no manifest names; the next
one removes them and continues.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..history.archive import Archive, Manifest
from ..history.schema import TABLES
from .archive_files import MIB, WrittenFile
from .archive_tasks import ArchiveResult, Progress, cores_of, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 384 * MIB  # of rows, roughly: a task holds them in memory, and they make a file
TASKS_PER_CORE = 4  # of each table, between two manifests
_KEEP_ALL = 1 << 30
_MAX_ATTEMPTS = 5


class ArchiveTask(Protocol):
    """Rows of one table that make the files of one task. Pickled to an executor."""

    @property
    def bytes(self) -> int: ...

    def write(self, archive: str) -> list[WrittenFile]:
        """Write the rows below the directory `archive`. Raises OpenQError if they are not what the source
        has."""


@dataclass(frozen=True)
class ArchivePlan:
    """What is left to archive: positions from `start` to before `end`."""

    start: int
    end: int
    bytes: int
    segments: int = 0
    gaps: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class ArchiveStep:
    """What one manifest adds: positions from `start` to before `end`."""

    start: int
    end: int
    bytes: int
    tasks: Sequence[ArchiveTask]
    gaps: list[list[int]] = field(default_factory=list)


class ArchiveSource(Protocol):
    """Where rows come from: `archive_journal.py` reads segments, `archive_server.py` asks a server."""

    url: str  # of the server; "" for a journal
    journal: str
    id_prefix: str

    def plan(self) -> ArchivePlan:
        """Everything after the end of the archive. Raises HistoryUnavailable if some of it is lost."""

    def steps(self, cores: int) -> Iterator[Any]:
        """The steps of the last plan. The next one is asked for when the previous one is committed."""

    def changes(
        self, previous: Manifest | None, step: Any, written: Sequence[WrittenFile]
    ) -> dict[str, Any] | None:
        """Fields of the next manifest, after a check of the files; None: nothing is worth a manifest."""

    def committed(self, position: int) -> None:
        """All rows before `position` are in the archive."""


def run_archive(
    spark: SparkSession | None,
    archive: Archive,
    source: ArchiveSource,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArchiveResult:
    if dry_run:
        plan = source.plan()
        return ArchiveResult(
            None, plan.end, plan.segments, journal_bytes=plan.bytes, server=source.url, gaps=plan.gaps
        )
    with archive.locked():
        removed = len(archive.vacuum(_KEEP_ALL, orphan_s=0.0))
        plan = source.plan()
        source.committed(plan.start)  # before the first byte is read: what is being archived is not freed
        run = _ArchiveRun(spark, archive, source, plan.bytes, progress)
        run.result = ArchiveResult(None, plan.start, removed=removed, server=source.url)
        for attempt in range(_MAX_ATTEMPTS):
            try:
                for step in source.steps(cores_of(spark)):
                    run.archive_step(step)
                break
            except OpenQError as error:
                if error.code != HistoryUnavailable.code or attempt == _MAX_ATTEMPTS - 1:
                    raise
            # Rows were dropped since they were planned: a new plan finds the gap, or that their queue is
            # deleted.
            archive.vacuum(_KEEP_ALL, orphan_s=0.0)
            source.plan()
        run.report(plan.bytes)
    return run.result


class _ArchiveRun:
    def __init__(
        self,
        spark: SparkSession | None,
        archive: Archive,
        source: ArchiveSource,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._source = source
        self._total = total
        self._progress = progress
        self.result: ArchiveResult

    def report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self._total), self._total)

    def archive_step(self, step: ArchiveStep) -> None:
        before = self.result.journal_bytes
        weights = [task.bytes // len(TABLES) for task in step.tasks]
        answers = run_tasks(
            self._spark,
            partial(_write, self._archive.path),
            step.tasks,
            lambda count: self.report(before + sum(weights[:count])),
        )
        written = [each for answer in answers for each in answer]
        previous = self._archive.latest()
        changes = self._source.changes(previous, step, written)
        if changes is None:
            return
        manifest = self._manifest(previous, step, written, changes)
        version = self._archive.commit(manifest)
        known = 0 if previous is None else len(previous.segments)
        self.result = replace(
            self.result.with_files(version, step.end, [each.file for each in written]),
            segments=self.result.segments + len(manifest.segments) - known,
            journal_bytes=before + step.bytes,
            gaps=self.result.gaps + step.gaps,
        )
        self._source.committed(step.end)
        self.report(self.result.journal_bytes)

    def _manifest(
        self,
        previous: Manifest | None,
        step: ArchiveStep,
        written: Sequence[WrittenFile],
        changes: dict[str, Any],
    ) -> Manifest:
        files = [each.file for each in written]
        if previous is not None:
            return previous.next(through=step.end, files=previous.files + files, **changes)
        source = self._source
        return Manifest(1, 0, source.journal, source.id_prefix, step.end, files, first=step.start, **changes)


def _write(archive: str, task: ArchiveTask) -> list[WrittenFile]:
    """On an executor."""
    if not os.path.isdir(archive):
        raise InvalidSetting(f"an executor cannot see the archive {archive}: it must be on a shared disk")
    return task.write(archive)
