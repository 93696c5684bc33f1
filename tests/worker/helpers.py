"""Types and small helpers of the tests of the worker."""

from __future__ import annotations

from collections.abc import Callable

from openq import RetryPolicy
from openq.worker import App, Worker

MakeApp = Callable[..., App]
RunWorker = Callable[..., Worker]

AT_ONCE = RetryPolicy("fixed", base_ms=1)


def outcomes(worker: Worker) -> dict[str, int]:
    """The outcomes of all tasks of a worker."""
    total: dict[str, int] = {}
    for task in worker.snapshot().tasks:
        for name, count in task.outcomes.items():
            total[name] = total.get(name, 0) + count
    return total
