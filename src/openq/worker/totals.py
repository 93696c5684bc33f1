"""The numbers of a whole service, over all its processes and those that have ended: for /metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..metrics import Family, HistogramValue
from .reports import read_stats
from .stats import BOUNDS, Histogram, TaskStats


class Totals:
    """Sums the statistics of processes. Counters never go back: a process that ends stays counted."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], TaskStats] = {}

    def add(self, snapshot: Mapping[str, Any]) -> None:
        for value in snapshot.get("tasks", ()):
            stats = read_stats(value)
            known = self._tasks.setdefault((stats.name, stats.queue), TaskStats(stats.name, stats.queue))
            for outcome, count in stats.outcomes.items():
                known.outcomes[outcome] = known.outcomes.get(outcome, 0) + count
            _sum(known.run, stats.run)
            _sum(known.wait, stats.wait)

    def plus(self, snapshots: Iterable[Mapping[str, Any]]) -> Totals:
        """These totals and what the given processes have done so far."""
        found = Totals()
        found._tasks = {key: stats.copy() for key, stats in self._tasks.items()}
        for snapshot in snapshots:
            found.add(snapshot)
        return found

    def families(self) -> list[Family]:
        tasks = [self._tasks[key] for key in sorted(self._tasks)]
        labels = [{"task": stats.name, "queue": stats.queue} for stats in tasks]
        outcomes = [
            ({**label, "outcome": outcome}, count)
            for label, stats in zip(labels, tasks, strict=True)
            for outcome, count in sorted(stats.outcomes.items())
        ]
        return [
            Family(
                "openq_worker_jobs_total", "counter", "Jobs that ended in a worker, by outcome.", outcomes
            ),
            Family(
                "openq_worker_job_run_seconds",
                "histogram",
                "How long jobs ran.",
                [(label, _value(stats.run)) for label, stats in zip(labels, tasks, strict=True)],
            ),
            Family(
                "openq_worker_job_wait_seconds",
                "histogram",
                "How long jobs were ready before they ran.",
                [(label, _value(stats.wait)) for label, stats in zip(labels, tasks, strict=True)],
            ),
        ]


def _sum(total: Histogram, other: Histogram) -> None:
    total.counts = [a + b for a, b in zip(total.counts, other.counts, strict=True)]
    total.total_s += other.total_s


def _value(histogram: Histogram) -> HistogramValue:
    return HistogramValue(BOUNDS, histogram.counts, histogram.total_s)
