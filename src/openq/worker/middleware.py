"""Middleware: one small interface around sending and running jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .active import ActiveJob
    from .enqueue import JobDraft
    from .job import Job


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
