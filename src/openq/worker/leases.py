"""Heartbeats: the leases of all jobs in a worker are extended until the jobs are settled.

Leases are short, so the jobs of a worker that died return within seconds. A job whose lease is lost anyway
gets an exception: the process was paused, or could not reach the broker for longer than the lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError
from .outage import Outage, is_closed, is_lost

if TYPE_CHECKING:
    from ..client.queues import Queue
    from .active import ActiveJob
    from .effects import once

log = logging.getLogger("openq.worker")

MAX_TICK_S = 1.0


class LeaseKeeper:
    """The jobs that this worker holds, and the thread that extends their leases."""

    def __init__(
        self,
        lease_s: float,
        outage: Outage,
        on_lost: Callable[[ActiveJob], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._lease_s = lease_s
        self._tick_s = min(MAX_TICK_S, lease_s / 6)
        self._outage = outage
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._held: dict[int, ActiveJob] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"{name}-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def hold(self, jobs: list[ActiveJob]) -> None:
        held = self._held
        was_idle = not held
        for job in jobs:
            held[id(job)] = job
        if was_idle:
            self._wake.set()

    def drop(self, job: ActiveJob) -> None:
        self._held.pop(id(job), None)

    def held(self) -> list[ActiveJob]:
        return list(self._held.copy().values())

    def __len__(self) -> int:
        return len(self._held)

    def _run(self) -> None:
        while not self._stopped:
            if self._wake.wait(self._tick_s if self._held else None):
                self._wake.clear()  # the first job came just now, or the worker stops: nothing is due
                continue
            for work in (self.extend_due, self._on_tick):
                try:
                    work()
                except Exception:
                    log.exception("housekeeping of the worker failed")

    def owns(self, job: ActiveJob) -> bool:
        """Whether no other worker can have the job. Asks the broker if the lease should be over by now."""
        if job.is_lost:
            return False
        return time.monotonic() < job.lease_until or self.extend(job)

    def extend_due(self) -> None:
        now = time.monotonic()
        due: dict[Any, list[ActiveJob]] = {}
        for job in self.held():
            if now >= job.extend_at:
                due.setdefault(job.source, []).append(job)
            for claim in list(job.claims or ()):
                if now >= claim.extend_at:
                    self._extend_claim(claim, job.source.queue)
        error: OpenQError | None = None
        for source, jobs in due.items():
            if error is not None:
                self._failed(jobs, error)  # without a call: each would wait for the same broker
            elif not self._stopped:
                error = self._extend(source, jobs)

    def _extend_claim(self, claim: once, queue: Queue) -> None:
        try:
            claim.extend(queue)
        except OpenQError as error:
            self._outage.began(error)

    def extend(self, job: ActiveJob) -> bool:
        """Extend the lease of a job now. False if it is lost."""
        self._extend(job.source, [job])
        return not job.is_lost

    def _extend(self, source: Any, jobs: list[ActiveJob]) -> OpenQError | None:
        """Returns the error if the broker cannot be reached."""
        began = time.monotonic()
        leased = [(job, message) for job in jobs for message in job.messages if not message.settled]
        try:
            errors = source.queue.extend_many([message for _, message in leased], self._lease_s)
        except OpenQError as error:
            if is_closed(error):
                return None
            self._failed(jobs, error)
            return error
        self._outage.ended()
        for job in jobs:
            job.lease_until = began + self._lease_s
            job.extend_at = began + self._lease_s / 3
        for (job, message), problem in zip(leased, errors, strict=True):
            # A message that was settled meanwhile has no lease, which is no loss.
            if problem is None or message.settled or job.is_lost or id(job) not in self._held:
                continue
            if is_lost(problem):
                self._lose(job, problem)
        return None

    def _failed(self, jobs: list[ActiveJob], error: OpenQError) -> None:
        """The broker cannot be reached. A job whose lease has ended meanwhile may run elsewhere by now."""
        self._outage.began(error)
        now = time.monotonic()
        for job in jobs:
            job.extend_at = now + self._lease_s / 9
            if now > job.lease_until:
                self._lose(job, error)

    def _lose(self, job: ActiveJob, error: OpenQError) -> None:
        log.warning("lost the lease of %s: %s", job.describe(), error)
        self._on_lost(job)
