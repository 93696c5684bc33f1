"""Tasks, consumers and schedules over OpenQ's queues, and the worker that runs them.

    app = App(url="http://127.0.0.1:9324")

    @app.task(queue="mail", retries=5)
    def send_mail(to: str, *, subject: str) -> None: ...

    send_mail.send("a@example.org", subject="hi")
    Worker(app).run()

The names are imported on first use: a program that only sends jobs does not load the worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..client.message import Message as Message
    from .active import ActiveJob as ActiveJob
    from .active import current_job as current_job
    from .app import App as App
    from .calls import Call as Call
    from .calls import Chain as Chain
    from .calls import Group as Group
    from .calls import group as group
    from .effects import once as once
    from .errors import InvalidArguments as InvalidArguments
    from .errors import InvalidTask as InvalidTask
    from .errors import JobCancelled as JobCancelled
    from .errors import JobFailed as JobFailed
    from .errors import JobWasCancelled as JobWasCancelled
    from .errors import LeaseLost as LeaseLost
    from .errors import ResultNotKept as ResultNotKept
    from .errors import ResultTimeout as ResultTimeout
    from .errors import Retry as Retry
    from .errors import TimeLimitExceeded as TimeLimitExceeded
    from .errors import WorkerError as WorkerError
    from .errors import WorkerStopped as WorkerStopped
    from .groups import GroupJob as GroupJob
    from .job import Job as Job
    from .middleware import LogJobs as LogJobs
    from .middleware import Middleware as Middleware
    from .middleware import ReportErrors as ReportErrors
    from .runner import Worker as Worker
    from .task import AsyncTask as AsyncTask
    from .task import Task as Task
    from .tracing import TraceContext as TraceContext

_HOMES = {
    "active": ("ActiveJob", "current_job"),
    "app": ("App",),
    "calls": ("Call", "Chain", "Group", "group"),
    "groups": ("GroupJob",),
    "effects": ("once",),  # a module `once` would hide it
    "errors": (
        *("InvalidArguments", "InvalidTask", "JobCancelled", "JobFailed", "JobWasCancelled"),
        *(
            "LeaseLost",
            "ResultNotKept",
            "ResultTimeout",
            "Retry",
            "TimeLimitExceeded",
            "WorkerError",
            "WorkerStopped",
        ),
    ),
    "job": ("Job",),
    "middleware": ("LogJobs", "Middleware", "ReportErrors"),
    "runner": ("Worker",),
    "task": ("AsyncTask", "Task"),
    "tracing": ("TraceContext",),
}
_HOME = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
_HOME["Message"] = "openq.client.message"

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
