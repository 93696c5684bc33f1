"""Messages whose task this worker does not know.

During a rolling deploy, jobs of new tasks reach workers with the old code. They are held for some seconds and
given back uncounted, so that a worker with the new code gets them. A job that stays unknown for minutes is
dead-lettered.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..errors import OpenQError
from .errors import UnknownTask

if TYPE_CHECKING:
    from .active import ActiveJob

log = logging.getLogger("openq.worker")

HOLD_S = 5.0
GIVE_UP_S = 600.0
_MAX_KNOWN = 100_000


class UnknownJobs:
    """Unknown jobs of one worker. `add` comes from fetch threads, `due` from the lease thread."""

    def __init__(self) -> None:
        self._held: dict[int, ActiveJob] = {}
        self._first_seen: dict[str, float] = {}
        self._logged: set[tuple[str, str | None]] = set()

    def add(self, jobs: list[ActiveJob]) -> None:
        for job in jobs:
            self._held[id(job)] = job
            self._first_seen.setdefault(job.id, job.received)
            kind = (job.queue, job.message.message_type)
            if kind not in self._logged:
                self._logged.add(kind)
                log.error("%s: given back for other workers", UnknownTask(kind[1], kind[0]))
        if len(self._first_seen) > _MAX_KNOWN:
            self._first_seen.clear()

    def due(self) -> list[ActiveJob]:
        """Jobs that were held long enough. Those that are unknown for too long are dead-lettered here."""
        now = time.monotonic()
        due = [job for job in self._held.copy().values() if now - job.received >= HOLD_S]
        back: list[ActiveJob] = []
        for job in due:
            self._held.pop(id(job), None)
            if now - self._first_seen.get(job.id, now) >= GIVE_UP_S:
                self._reject(job)
            back.append(job)
        return back

    def clear(self) -> list[ActiveJob]:
        taken = list(self._held.copy().values())
        self._held.clear()
        return taken

    def _reject(self, job: ActiveJob) -> None:
        self._first_seen.pop(job.id, None)
        error = UnknownTask(job.message.message_type, job.queue)
        log.error("message %s: %s", job.id, error)
        try:
            job.source.queue.reject(job.message, error)
        except OpenQError as problem:
            log.warning("message %s could not be dead-lettered: %s", job.id, problem)
