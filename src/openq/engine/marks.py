"""How far a job's batches are published: what makes a batch that is sent twice be published once.

A mark lies in the same block of the journal as the messages it speaks of, so both are there or neither is.
The batches of a job are numbered and only grow: one mark per job is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OpenQError
from .records import MARK

if TYPE_CHECKING:
    from .core import Core

KEPT_MS = 30 * 86_400_000  # a job that was not heard of for so long is over
MOST_JOBS = 50_000
MOST_OF_OWNER = 2_000
MOST_OF_ALL = 10_000  # of the owner that everybody is where nobody signs in

# What a Spark batch write is called that was given no name: no later run can say it again.
_NAMELESS = re.compile(r"(?:@[^/]+/)?batch-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAMELESS_KEPT_MS = 3_600_000


class TooManyJobs(OpenQError):
    code = "too_many_jobs"

    def __init__(self, most: int, whose: str) -> None:
        super().__init__(
            f"{most} jobs{whose} published in the last 30 days, and none of them may be forgotten: "
            "no new one is taken; give the batches of a job one name, and numbers"
        )


class Mark(NamedTuple):
    """The newest batch of a job."""

    owner: str  # whose job it is; "" if everybody's
    batch: int
    rows: int  # so many of them, in their order, are published or rejected
    is_last: bool  # these were all
    rejected: int  # of the whole batch
    time_ms: int

    def is_done(self, batch: int) -> bool:
        return batch < self.batch or (batch == self.batch and self.is_last)


def kept_ms(job: str) -> int:
    """For how long a job that is done is remembered at least."""
    return NAMELESS_KEPT_MS if _NAMELESS.fullmatch(job) else KEPT_MS


def mark(
    engine: Core, job: str, owner: str, batch: int, rows: int, is_last: bool, rejected: int, now_ms: int
) -> int:
    """Told and remembered. Where it is stored."""
    at = engine.tell((MARK, now_ms, 0, 0, job, owner, batch, rows, is_last, rejected))
    note(engine, job, Mark(owner, batch, rows, is_last, rejected, now_ms))
    return at


def note(engine: Core, job: str, mark: Mark) -> None:
    """The latest stand at the end, so that those to forget are the first. They go by age alone: to forget one
    that may come again is to publish it twice."""
    marks = engine.marks
    marks.pop(job, None)
    marks[job] = mark
    while marks[oldest := next(iter(marks))].time_ms < mark.time_ms - KEPT_MS:
        del marks[oldest]


def make_room(engine: Core, owner: str, now_ms: int) -> None:
    """For a job that is not known yet. Nobody can make the jobs of others be forgotten."""
    marks = engine.marks
    most = MOST_OF_OWNER if owner else MOST_OF_ALL
    if len(marks) < min(most, MOST_JOBS):
        return
    for job in [job for job, each in marks.items() if each.time_ms < now_ms - KEPT_MS]:
        del marks[job]
    own = [job for job, each in marks.items() if each.owner == owner]
    if len(own) >= most or len(marks) >= MOST_JOBS:
        over = [job for job in own if _is_over(job, marks[job], now_ms)]
        for job in over:
            del marks[job]
        if len(own) - len(over) >= most:
            raise TooManyJobs(most, " of yours" if owner else "")
        if len(marks) >= MOST_JOBS:
            raise TooManyJobs(MOST_JOBS, "")


def _is_over(job: str, mark: Mark, now_ms: int) -> bool:
    return mark.is_last and kept_ms(job) != KEPT_MS and mark.time_ms < now_ms - kept_ms(job)


def dump(engine: Core) -> list[list[Any]]:
    return [[job, *mark] for job, mark in engine.marks.items()]


def load(engine: Core, rows: Sequence[Sequence[Any]]) -> None:
    """From a snapshot or a checkpoint: what is known already is at least as new."""
    for job, *fields in rows:
        if job not in engine.marks:
            engine.marks[job] = Mark(*fields)
