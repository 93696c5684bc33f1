"""Entries of the registry that are not of a worker: any program may write there."""

from __future__ import annotations

import pytest

from openq.broker.worker_totals import MAX_SERIES, RegistryTotals
from openq.broker.workers import MAX_TASKS, HistogramCounts, TaskCounts, WorkerStats
from openq.cli.workers import seconds_since


def stats(instance: str, *tasks: TaskCounts) -> WorkerStats:
    return WorkerStats(instance=instance, bounds=[1.0], tasks=list(tasks))


def task(name: str, count: int = 1, seconds: float = 1.0, outcome: str = "done") -> TaskCounts:
    histogram = HistogramCounts(counts=[count, 0], sum=seconds)
    return TaskCounts(name=name, queue="q", outcomes={outcome: count}, run=histogram, wait=histogram)


def jobs(totals: RegistryTotals, *found: WorkerStats) -> int:
    families = totals.update([("a", each) for each in found]).families()
    return len(families[0].samples)


@pytest.mark.parametrize(
    "forged",
    [
        stats("i", task("t", -1)),
        stats("i", task("t", 1 << 70)),
        stats("i", task("t", seconds=-1.0)),
        stats("i", task("t", seconds=float("nan"))),
        stats("i", task("x" * 1000)),
        stats("i", task("t", outcome="x" * 1000)),
        stats("i", *(task(f"t{number}") for number in range(MAX_TASKS + 1))),
    ],
    ids=["negative", "huge", "negative sum", "not a number", "long name", "long outcome", "many tasks"],
)
def test_impossible_numbers_are_not_counted(forged: WorkerStats) -> None:
    assert jobs(RegistryTotals(), forged, stats("j", task("good"))) == 1


def test_names_that_never_come_again_do_not_fill_the_memory() -> None:
    totals = RegistryTotals()
    for number in range(MAX_SERIES // MAX_TASKS + 20):
        totals.update([("a", stats(f"i{number}", *(task(f"t{number}-{i}") for i in range(MAX_TASKS))))])
    assert jobs(totals) <= MAX_SERIES


def test_a_time_that_cannot_be_read_is_now() -> None:
    assert seconds_since("garbage") == 0
