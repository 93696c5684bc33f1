"""The numbers of many worker processes, as metrics. A process that ends stays counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..metrics import Family, HistogramValue
from .workers import MAX_TASKS, HistogramCounts, TaskCounts, WorkerStats

MAX_SERIES = 10_000  # tasks of all workers together
MAX_LABEL = 256  # characters of a name
MAX_OUTCOMES = 32

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Task:
    outcomes: dict[str, int] = field(default_factory=dict)
    run: HistogramCounts | None = None
    wait: HistogramCounts | None = None


class WorkerTotals:
    """Sums the statistics of processes, by task and queue."""

    def __init__(self) -> None:
        self._bounds: list[float] = []
        self._tasks: dict[Labels, _Task] = {}

    def add(self, stats: WorkerStats, **labels: str) -> None:
        """Statistics with other bounds, of another version, are counted by outcome only."""
        self._bounds = self._bounds or stats.bounds
        for each in stats.tasks:
            key = (*labels.items(), ("task", each.name), ("queue", each.queue))
            if key not in self._tasks and len(self._tasks) >= MAX_SERIES:
                continue  # metrics of a scrape, and our memory, have a bound
            self._add(self._tasks.setdefault(key, _Task()), each, stats.bounds == self._bounds)

    def _add(self, task: _Task, counts: TaskCounts, fits: bool) -> None:
        for outcome, number in counts.outcomes.items():
            task.outcomes[outcome] = task.outcomes.get(outcome, 0) + number
        if fits:
            task.run = _sum(task.run, counts.run)
            task.wait = _sum(task.wait, counts.wait)

    def copy(self) -> WorkerTotals:
        found = WorkerTotals()
        found._bounds = self._bounds
        found._tasks = {
            key: _Task(dict(task.outcomes), task.run, task.wait) for key, task in self._tasks.items()
        }
        return found

    def families(self) -> list[Family]:
        tasks = [(dict(key), self._tasks[key]) for key in sorted(self._tasks)]
        outcomes = [
            ({**labels, "outcome": outcome}, number)
            for labels, task in tasks
            for outcome, number in sorted(task.outcomes.items())
        ]
        run = [(labels, self._value(task.run)) for labels, task in tasks if task.run is not None]
        wait = [(labels, self._value(task.wait)) for labels, task in tasks if task.wait is not None]
        return [
            Family(
                "openq_worker_jobs_total", "counter", "Jobs that ended in a worker, by outcome.", outcomes
            ),
            Family("openq_worker_job_run_seconds", "histogram", "How long jobs ran.", run),
            Family(
                "openq_worker_job_wait_seconds",
                "histogram",
                "How long jobs were ready before they ran.",
                wait,
            ),
        ]

    def _value(self, histogram: HistogramCounts) -> HistogramValue:
        return HistogramValue(self._bounds, histogram.counts, histogram.sum)


def _sum(one: HistogramCounts | None, other: HistogramCounts) -> HistogramCounts:
    if one is None:
        return other
    counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    return HistogramCounts(counts=counts, sum=one.sum + other.sum)


class RegistryTotals:
    """The totals of the processes in a registry, for as long as this object has seen them.

    The registry forgets a process that ended: its last statistics are kept here.
    """

    def __init__(self) -> None:
        self._ended = WorkerTotals()
        self._alive: dict[tuple[str, str], WorkerStats] = {}  # by account and instance

    def update(self, found: Iterable[tuple[str, WorkerStats]]) -> WorkerTotals:
        """With the statistics of all processes that are registered now, each with its account."""
        alive = {(account, stats.instance): stats for account, stats in found if _is_sound(stats)}
        for (account, instance), stats in self._alive.items():
            if (account, instance) not in alive:
                self._ended.add(stats, account=account)
        self._alive = alive
        totals = self._ended.copy()
        for (account, _), stats in alive.items():
            totals.add(stats, account=account)
        return totals


def _is_sound(stats: WorkerStats) -> bool:
    """Any program may write to the registry."""
    size = len(stats.bounds) + 1
    return len(stats.tasks) <= MAX_TASKS and all(
        len(each.run.counts) == len(each.wait.counts) == size
        and len(each.name) <= MAX_LABEL
        and len(each.queue) <= MAX_LABEL
        and len(each.outcomes) <= MAX_OUTCOMES
        and all(len(outcome) <= MAX_LABEL for outcome in each.outcomes)
        and all(
            0 <= count < 1 << 63 for count in (*each.outcomes.values(), *each.run.counts, *each.wait.counts)
        )
        and each.run.sum >= 0
        and each.wait.sum >= 0
        for each in stats.tasks
    )
