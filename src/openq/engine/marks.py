"""How far a job's batches are published: what makes a batch that is sent twice be published once.

A mark lies in the same block of the journal as the messages it speaks of, so both are there or neither is.
The batches of a job are numbered and only grow: one mark per job is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .records import MARK

if TYPE_CHECKING:
    from .core import Core

KEPT_MS = 30 * 86_400_000  # a job that was not heard of for so long is over
MOST_JOBS = 10_000


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


def mark(
    engine: Core, job: str, owner: str, batch: int, rows: int, is_last: bool, rejected: int, now_ms: int
) -> int:
    """Told and remembered. Where it is stored."""
    at = engine.tell((MARK, now_ms, 0, 0, job, owner, batch, rows, is_last, rejected))
    note(engine, job, Mark(owner, batch, rows, is_last, rejected, now_ms))
    return at


def note(engine: Core, job: str, mark: Mark) -> None:
    """The latest stand at the end, so that those to forget are the first."""
    marks = engine.marks
    marks.pop(job, None)
    marks[job] = mark
    while True:
        oldest = next(iter(marks))
        if len(marks) <= MOST_JOBS and marks[oldest].time_ms >= mark.time_ms - KEPT_MS:
            return
        del marks[oldest]


def dump(engine: Core) -> list[list[Any]]:
    return [[job, *mark] for job, mark in engine.marks.items()]


def load(engine: Core, rows: Sequence[Sequence[Any]]) -> None:
    """From a snapshot or a checkpoint: what is known already is at least as new."""
    for job, *fields in rows:
        if job not in engine.marks:
            engine.marks[job] = Mark(*fields)
