"""Progress of batches: how far they are published, so that a batch sent twice is published once.

A job, here, is a program that publishes in numbered batches under one name (a Spark query, a pipeline), not a
job of a worker. A mark is in the same block of the journal as the messages it counts, so both are on disk or
neither is. Batch numbers of a job only grow, so one mark per job is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OpenQError
from .records import MARK

if TYPE_CHECKING:
    from .engine import Engine

KEPT_MS = 30 * 86_400_000  # a job without news for this long is over
MAX_JOBS = 50_000
MAX_JOBS_PER_OWNER = 2_000
MAX_SHARED_JOBS = 10_000  # of the owner "", which all users share without authentication

# The name of a Spark batch write that was given no name. No later run can use it again.
_UNNAMED = re.compile(r"(?:@[^/]+/)?batch-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNNAMED_KEPT_MS = 3_600_000


class TooManyJobs(OpenQError):
    code = "too_many_jobs"

    def __init__(self, max_jobs: int, whose: str) -> None:
        super().__init__(
            f"{max_jobs} jobs{whose} published in the last 30 days, and none of them may be forgotten: "
            "no new one is taken; give the batches of a job one name, and numbers"
        )


class BatchProgress(NamedTuple):
    """How far the newest batch of a job is published."""

    owner: str  # whose job it is; "" if shared by all users
    batch: int
    rows: int  # how many rows, in order, are published or rejected
    is_last: bool  # these were all rows
    rejected: int  # of the whole batch
    time_ms: int

    def is_done(self, batch: int) -> bool:
        return batch < self.batch or (batch == self.batch and self.is_last)


def kept_ms(job: str) -> int:
    """For how long at least a finished job is remembered."""
    return UNNAMED_KEPT_MS if _UNNAMED.fullmatch(job) else KEPT_MS


def record_progress(
    engine: Engine,
    job: str,
    owner: str,
    batch: int,
    rows: int,
    is_last: bool,
    rejected: int,
    now_ms: int,
) -> int:
    """Log and remember the progress of a job. Returns the location of the record."""
    location = engine.log_record((MARK, now_ms, 0, 0, job, owner, batch, rows, is_last, rejected))
    set_progress(engine, job, BatchProgress(owner, batch, rows, is_last, rejected, now_ms))
    return location


def set_progress(engine: Engine, job: str, record_progress: BatchProgress) -> None:
    """Remember the progress of a job, and forget jobs that are too old.

    The latest are at the end, so the oldest are first. Jobs are forgotten by age alone: a batch of a
    forgotten job that is sent again would be published twice.
    """
    all_progress = engine.progress
    all_progress.pop(job, None)
    all_progress[job] = record_progress
    while all_progress[oldest := next(iter(all_progress))].time_ms < record_progress.time_ms - KEPT_MS:
        del all_progress[oldest]


def make_room(engine: Engine, owner: str, now_ms: int) -> None:
    """Make room for a new job. An owner cannot cause the jobs of other owners to be forgotten."""
    all_progress = engine.progress
    max_jobs = MAX_JOBS_PER_OWNER if owner else MAX_SHARED_JOBS
    if len(all_progress) < min(max_jobs, MAX_JOBS):
        return
    for job in [job for job, each in all_progress.items() if each.time_ms < now_ms - KEPT_MS]:
        del all_progress[job]
    own = [job for job, each in all_progress.items() if each.owner == owner]
    if len(own) >= max_jobs or len(all_progress) >= MAX_JOBS:
        over = [job for job in own if _is_over(job, all_progress[job], now_ms)]
        for job in over:
            del all_progress[job]
        if len(own) - len(over) >= max_jobs:
            raise TooManyJobs(max_jobs, " of yours" if owner else "")
        if len(all_progress) >= MAX_JOBS:
            raise TooManyJobs(MAX_JOBS, "")


def _is_over(job: str, record_progress: BatchProgress, now_ms: int) -> bool:
    return (
        record_progress.is_last
        and kept_ms(job) != KEPT_MS
        and record_progress.time_ms < now_ms - kept_ms(job)
    )


def dump(engine: Engine) -> list[list[Any]]:
    return [[job, *record_progress] for job, record_progress in engine.progress.items()]


def load(engine: Engine, rows: Sequence[Sequence[Any]]) -> None:
    """From a snapshot or a checkpoint. Jobs that are known already are at least as new."""
    for job, *fields in rows:
        if job not in engine.progress:
            engine.progress[job] = BatchProgress(*fields)
