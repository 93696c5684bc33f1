"""Time limits. One thread, which sleeps until the earliest deadline and does no I/O."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .active import ActiveJob


class Watchdog:
    """Calls `act(job)` when the deadline of a job has passed and the job still runs.

    A deadline is never removed: that of a finished job is recognised when it comes due.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: list[tuple[float, int, ActiveJob, Callable[[ActiveJob], None]]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, job: ActiveJob, seconds: float, act: Callable[[ActiveJob], None]) -> None:
        deadline = time.monotonic() + seconds
        with self._condition:
            if self._stopped:
                return
            heapq.heappush(self._due, (deadline, next(self._numbers), job, act))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openq-watchdog", daemon=True)
                self._thread.start()
            elif self._due[0][2] is job:
                self._condition.notify()
            elif len(self._due) > 1_000:
                self._sweep()

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._due.clear()
            self._condition.notify()

    def _sweep(self) -> None:
        self._due = [due for due in self._due if not due[2].ended]
        heapq.heapify(self._due)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._condition.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                _, _, job, act = heapq.heappop(self._due)
            if not job.ended:
                act(job)
