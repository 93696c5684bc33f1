"""What a worker did: jobs by task and outcome, and how long they ran and waited."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

# Upper bounds in seconds, as Prometheus writes them.
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
OUTCOMES = ("done", "retried", "dead", "cancelled", "released", "lost")


@dataclass(slots=True)
class DurationHistogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total_s += seconds

    def copy(self) -> DurationHistogram:
        return DurationHistogram(list(self.counts), self.total_s)


@dataclass(slots=True)
class TaskStats:
    """The counts of one task, or of the consumer of one queue."""

    name: str
    queue: str
    outcomes: dict[str, int] = field(default_factory=dict)
    run: DurationHistogram = field(default_factory=DurationHistogram)
    wait: DurationHistogram = field(default_factory=DurationHistogram)

    def copy(self) -> TaskStats:
        return TaskStats(self.name, self.queue, dict(self.outcomes), self.run.copy(), self.wait.copy())


class Stats:
    """Shared by the threads of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[tuple[str, str], TaskStats] = {}

    def count(self, name: str, queue: str, outcome: str, run_s: float, wait_s: float) -> None:
        with self._lock:
            stats = self._tasks.get((name, queue))
            if stats is None:
                stats = self._tasks[name, queue] = TaskStats(name, queue)
            stats.outcomes[outcome] = stats.outcomes.get(outcome, 0) + 1
            stats.run.observe(run_s)
            stats.wait.observe(wait_s)

    def add(self, name: str, queue: str, outcome: str, number: int = 1) -> None:
        """Jobs that ended without running."""
        with self._lock:
            stats = self._tasks.get((name, queue))
            if stats is None:
                stats = self._tasks[name, queue] = TaskStats(name, queue)
            stats.outcomes[outcome] = stats.outcomes.get(outcome, 0) + number

    def copy(self) -> list[TaskStats]:
        with self._lock:
            return [stats.copy() for stats in self._tasks.values()]
