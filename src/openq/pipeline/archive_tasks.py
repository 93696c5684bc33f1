"""What all jobs on the archive share: tasks on Spark's executors, and that there is one job at a time."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..errors import DirectoryInUse, InvalidSetting, OpenQError
from ..journal.lockfile import DirectoryLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..history.archive import ArchiveFile

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")
# Called with how much is done, and of how much; both in the same unit, whichever the job counts in.
Progress = Callable[[int, int], None]
_POLL_S = 0.25
_TASKS_PER_CORE = 16
_MIN_TASK_BYTES = 32 << 20


@dataclass(frozen=True)
class ArchiveResult:
    """What a run of the archive job did, or in a dry run would do."""

    version: int | None  # the newest it committed; None: nothing was changed
    through: int  # position; all before it is in the archive
    segments: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0  # of the files
    journal_bytes: int = 0  # of what was read; of a server's history roughly
    removed: int = 0  # files that a killed job had left
    # Why the server was not told how far the archive reaches; empty: it was, or there is none to be told.
    cursor: str = ""
    server: str = ""  # where the rows came from, if not from a journal's files
    gaps: list[list[int]] = field(default_factory=list)  # positions that were lost, and accepted as such

    def with_files(self, version: int, through: int, files: Sequence[ArchiveFile]) -> ArchiveResult:
        """After these files were committed."""
        rows = dict(self.rows)
        for file in files:
            rows[file.table] = rows.get(file.table, 0) + file.rows
        return replace(
            self,
            version=version,
            through=through,
            rows=rows,
            files=self.files + len(files),
            bytes=self.bytes + sum(file.bytes for file in files),
        )


class ArchiveBusy(OpenQError):
    code = "archive_busy"

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{who} is at work on the archive {path}: wait until it is done, and run this again")


class TaskFailed(OpenQError):
    """An error of ours in a task on an executor, under its own code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def archive_lock(archive: str) -> Iterator[None]:
    """One job at a time changes an archive. Readers take no part in this: they see finished versions only."""
    os.makedirs(archive, exist_ok=True)
    try:
        lock = DirectoryLock(archive, time.time_ns() // 1_000_000)
    except DirectoryInUse as error:
        raise ArchiveBusy(archive, error.pid) from None
    try:
        yield
    finally:
        lock.release()


def archive_path(path: str | None, archive: str | None) -> str:
    if archive is not None:
        return os.path.abspath(archive)
    if path is None:
        raise InvalidSetting("which archive? give archive=, or path= of a data directory for the one in it")
    return os.path.join(os.path.abspath(path), "archive")


def run_tasks(
    spark: SparkSession | None,
    work: Callable[[TaskT], AnswerT],
    jobs: Sequence[TaskT],
    tick: Callable[[int], None] | None = None,
    weight: int | None = None,
) -> list[AnswerT]:
    """`work(job)` for each job; the answers in the order of the jobs.

    A task each; with `weight`, the bytes of all jobs, several make a task where they are many or small.
    Without Spark they run here, one after the other. `tick` is told how many are done.
    """
    if not jobs:
        return []
    tick = tick or _ignore
    if spark is None:
        answers = []
        for job in jobs:
            answers.append(work(job))
            tick(len(answers))
        return answers
    tasks = len(jobs)
    if weight is not None:
        tasks = min(tasks, _TASKS_PER_CORE * cores_of(spark), weight // _MIN_TASK_BYTES + 1)
    return _run_on_spark(spark, work, jobs, tasks, tick)


def cores_of(spark: SparkSession | None) -> int:
    if spark is None:
        return 1
    return 2 if _is_remote(spark) else max(1, spark.sparkContext.defaultParallelism)


def _run_on_spark(
    spark: SparkSession,
    work: Callable[[TaskT], AnswerT],
    jobs: Sequence[TaskT],
    tasks: int,
    tick: Callable[[int], None],
) -> list[AnswerT]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = pickle.dumps(_outcome(work, jobs[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [answer]})

    rows = spark.range(0, len(jobs), 1, tasks).mapInArrow(run, "number bigint, answer binary")
    tag = f"openq-{uuid.uuid4().hex}"

    def collect() -> list[Any]:
        spark.addTag(tag)
        return rows.collect()

    with ThreadPoolExecutor(1, "openq-spark") as aside:
        pending = aside.submit(collect)
        try:
            _watch(spark, pending, lambda done: tick(done * len(jobs) // tasks))
        except BaseException:
            spark.interruptTag(tag)
            raise
        found = {row.number: pickle.loads(row.answer) for row in pending.result()}
    answers: list[AnswerT] = []
    for number in range(len(jobs)):
        ok, answer = found[number]
        if not ok:
            raise TaskFailed(*answer)
        answers.append(answer)
    return answers


def _outcome(work: Callable[[TaskT], AnswerT], job: TaskT) -> tuple[bool, Any]:
    """Errors of ours come back as answers: to try again would not help, and Spark would wrap them up."""
    try:
        return True, work(job)
    except OpenQError as error:
        return False, (getattr(error, "code", "failed"), str(error))
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return False, ("failed", f"an executor failed: {text}")


def _watch(spark: SparkSession, pending: Future[list[Any]], tick: Callable[[int], None]) -> None:
    tracker = None if _is_remote(spark) else spark.sparkContext.statusTracker()
    while True:
        try:
            pending.exception(_POLL_S)
            return
        except TimeoutError:
            if tracker is not None:
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                tick(sum(stage.numCompletedTasks for stage in stages if stage is not None))


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _ignore(done: int) -> None:
    """For those who do not watch."""
