"""What all jobs on an archive share: its lock, and tasks on the executors of Spark."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..errors import InvalidSetting, OpenQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..history.archive import ArchiveFile

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")
# Called with the amount done and the total, both in the unit of the job.
Progress = Callable[[int, int], None]
_POLL_S = 0.25
_TASKS_PER_CORE = 16
_MIN_TASK_BYTES = 32 << 20


@dataclass(frozen=True)
class ArchiveResult:
    """What a run of the archive job did, or would do in a dry run."""

    version: int | None  # the newest one committed; None: nothing changed
    through: int  # position; all rows before it are in the archive
    segments: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0  # of the files
    journal_bytes: int = 0  # read; an estimate if from a server
    removed: int = 0  # files left from a killed job
    # Why the cursor of the server could not be moved; empty: it was, or there is no server.
    cursor: str = ""
    server: str = ""  # the URL, if the rows came from a server
    gaps: list[list[int]] = field(default_factory=list)  # lost positions that were accepted

    def with_files(self, version: int, through: int, files: Sequence[ArchiveFile]) -> ArchiveResult:
        """The result after these files were committed."""
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


class TaskFailed(OpenQError):
    """An error of OpenQ in a task on an executor, with its own code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


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
    """`work(job)` for each job; the answers are in the order of the jobs.

    Each is a task; with `weight`, the bytes of all jobs, many or small jobs share tasks. Without Spark they
    run here, one after the other. `tick` is called with the number done.
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
    """Errors of OpenQ are returned as answers: Spark would repeat the task and wrap them."""
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
    """The default of `tick`."""
