"""Middleware: one small interface around sending and running jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .active import ActiveJob
    from .enqueue import JobDraft
    from .job import Job

log = logging.getLogger("openq.worker")


class Middleware:
    """Override what you need. The methods run in the thread or coroutine of the job.

    They are called in the order of the list, those after a job in the opposite order. An exception in
    `before_enqueue` refuses the job; one in `before_process` fails it, like one in the handler. Exceptions in
    the other methods are logged.
    """

    def before_enqueue(self, draft: JobDraft) -> None:
        """Before a job is sent: may change `draft.attributes` and `draft.options`."""

    def after_enqueue(self, draft: JobDraft, job: Job[Any]) -> None:
        """The broker has the job."""

    def before_process(self, job: ActiveJob) -> None:
        """Before the handler runs."""

    def after_process(self, job: ActiveJob, result: Any) -> None:
        """The handler returned."""

    def after_failure(self, job: ActiveJob, error: BaseException, retry_in: float | None) -> None:
        """The handler raised. `retry_in` is None if the job is dead-lettered."""

    def after_interruption(self, job: ActiveJob, error: BaseException) -> None:
        """The handler was ended from outside: the job was cancelled, lost its lease or was given back."""


class LogJobs(Middleware):
    """A log line for each job that was sent, started and done; failures are logged by the worker itself."""

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level

    def after_enqueue(self, draft: JobDraft, job: Job[Any]) -> None:
        log.log(self._level, "sent job %s of task %r to queue %r", job.id, job.task, job.queue)

    def before_process(self, job: ActiveJob) -> None:
        log.log(self._level, "%s started", job.describe())

    def after_process(self, job: ActiveJob, result: Any) -> None:
        log.log(self._level, "%s done in %.3f s", job.describe(), job.runs_s)


class ReportErrors(Middleware):
    """Calls a function with each exception that ends a job for good: `sentry_sdk.capture_exception`.

    With `retried=True` also with those after which the job runs again.
    """

    def __init__(self, report: Callable[[BaseException], object], *, retried: bool = False) -> None:
        self._report = report
        self._retried = retried

    def after_failure(self, job: ActiveJob, error: BaseException, retry_in: float | None) -> None:
        if retry_in is None or self._retried:
            self._report(error)
