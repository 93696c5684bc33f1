"""What goes wrong with jobs, and the exceptions that a handler raises or is given.

`TimeLimitExceeded` is an `Exception`: a handler may catch it and clean up. `JobCancelled` and its children
are not: an `except Exception` in a handler must not swallow them.
"""

from __future__ import annotations

from ..errors import Interruption, OpenQError


class WorkerError(OpenQError):
    """The errors of `openq.worker`."""

    code = "worker_error"


class InvalidTask(WorkerError):
    """A task, consumer or schedule that cannot be declared this way."""

    code = "invalid_task"


class InvalidArguments(WorkerError, TypeError):
    """Arguments that do not fit the signature of a task, or that cannot be encoded."""

    code = "invalid_arguments"


class InvalidResult(WorkerError):
    """A result that cannot be encoded."""

    code = "invalid_result"


class UnknownTask(WorkerError):
    """A message whose type is not the name of a task of this app."""

    code = "unknown_task"

    def __init__(self, name: object, queue: str) -> None:
        what = "a message without a type" if name is None else f"unknown task {name!r}"
        super().__init__(f"{what} in queue {queue!r}")
        self.name = name
        self.queue = queue


class ResultNotKept(WorkerError):
    """The task keeps no results, or the result has expired."""

    code = "result_not_kept"

    def __init__(self, task: str, why: str = "declare it with result_ttl= to keep results") -> None:
        super().__init__(f"there is no result of task {task!r}: {why}")
        self.task = task


class ResultTimeout(WorkerError, TimeoutError):
    """The job did not end in time. It goes on."""

    code = "result_timeout"

    def __init__(self, job_id: str, timeout: float) -> None:
        super().__init__(f"job {job_id} did not end within {timeout:g} s")
        self.job_id = job_id


class JobWasCancelled(WorkerError):
    """The job was cancelled, so it has no result."""

    code = "job_cancelled"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was cancelled")
        self.job_id = job_id


class JobFailed(WorkerError):
    """The job failed for good. `reason` is the type and text of its exception."""

    code = "job_failed"

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} failed: {reason}")
        self.job_id = job_id
        self.reason = reason


class Retry(Exception):
    """Raise it in a handler to run the job again after `after` seconds (None: as its back-off says).

    The attempt counts: after the last one the job is dead-lettered.
    """

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        super().__init__(reason or ("retry" if after is None else f"retry after {after:g} s"))
        self.after = after


class TimeLimitExceeded(Interruption, Exception):
    """Raised in a handler that runs longer than its `timeout`."""


class JobCancelled(Interruption):
    """Raised in a handler whose job was cancelled. The job ends and does not run again."""


class LeaseLost(JobCancelled):
    """Raised in a handler whose lease is over, so that another worker may run the job.

    This happens to a process that was paused or could not reach the broker for longer than the lease.
    """


class WorkerStopped(JobCancelled):
    """Raised in a handler that still runs when the grace period of its worker is over.

    The job is given back and runs again elsewhere.
    """
