"""How many jobs a worker takes ahead, fitted to how long they run.

Short jobs are taken in large batches, so that threads never wait for the broker. Long jobs are not taken
ahead at all: another worker could run them now.
"""

from __future__ import annotations

TARGET_S = 0.25  # the work that may wait in the process
MAX_PREFETCH = 1_000
_WEIGHT = 0.05  # of a new run time in the average


class Prefetch:
    """The limit of one queue. `fixed` is a number given by the user."""

    def __init__(self, fixed: int | None, max_jobs: int = MAX_PREFETCH) -> None:
        self._fixed = fixed
        self._max_jobs = max_jobs
        self._average_s: float | None = None

    def observe(self, run_s: float) -> None:
        """Without a lock: an update that is lost among threads changes the average by nothing."""
        average_s = self._average_s
        if average_s is None or run_s > 8 * average_s + 0.01:
            # The first job, or one that shows that jobs of this queue may be long: stop taking ahead at once.
            self._average_s = run_s
        else:
            self._average_s = average_s + _WEIGHT * (run_s - average_s)

    def limit(self, slots: int) -> int:
        """Jobs to hold beyond those that run."""
        if self._fixed is not None:
            return self._fixed
        average_s = self._average_s
        if average_s is None or average_s >= TARGET_S:
            return 0
        return min(int(slots * TARGET_S / max(average_s, 1e-6)), self._max_jobs)
