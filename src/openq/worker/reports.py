"""What a worker process reports of itself, as JSON: to its supervisor, and to the registry of workers.

{"queues": ["mail"], "slots": 8, "connected": true, "memory": 31457280,
 "running": [{"id": ..., "task": ..., "queue": ..., "attempt": 1, "since_ms": ...}],
 "tasks": [{"name": ..., "queue": ..., "outcomes": {"done": 12}, "run": {"counts": [...], "sum": 1.5},
            "wait": {...}}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..broker.workers import MAX_TASKS, HistogramCounts, TaskCounts, WorkerStats
from .stats import BOUNDS, DurationHistogram, TaskStats

NOT_RUN = ("released",)  # outcomes of jobs that were given back


def stats_json(stats: Iterable[TaskStats]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "queue": each.queue,
            "outcomes": dict(each.outcomes),
            "run": _histogram_json(each.run),
            "wait": _histogram_json(each.wait),
        }
        for each in stats
    ]


def jobs_run(snapshot: Mapping[str, Any]) -> int:
    """Attempts that ended in this process."""
    return sum(
        count
        for task in snapshot.get("tasks", ())
        for outcome, count in task["outcomes"].items()
        if outcome not in NOT_RUN
    )


def _histogram_json(histogram: DurationHistogram) -> dict[str, Any]:
    return {"counts": list(histogram.counts), "sum": round(histogram.total_s, 6)}


def stats_of(report: Mapping[str, Any], instance: str) -> WorkerStats:
    """The statistics of a snapshot."""
    return WorkerStats(
        instance=instance,
        bounds=list(BOUNDS),
        tasks=[
            TaskCounts(
                name=task["name"],
                queue=task["queue"],
                outcomes=task["outcomes"],
                run=HistogramCounts(**task["run"]),
                wait=HistogramCounts(**task["wait"]),
            )
            for task in report.get("tasks", [])[:MAX_TASKS]
        ],
    )
