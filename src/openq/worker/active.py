"""A job in this worker: leased, waiting for a thread or running. `current_job()` gives it to its handler."""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError
from .store import Progress, now_ms

if TYPE_CHECKING:
    from asyncio import Task as AsyncioTask

    from ..client.message import ReceivedMessage
    from ..client.queues import Queue
    from ..engine.key_values import KvPut
    from .app import App
    from .effects import once as Once
    from .errors import JobCancelled
    from .slots import Slot
    from .task import BaseTask

log = logging.getLogger("openq.worker")

_PROGRESS_PAUSE_S = 0.25
_current: ContextVar[ActiveJob] = ContextVar("openq_current_job")


class ActiveJob:
    """One delivery of a job. Times are those of `time.monotonic`."""

    __slots__ = (
        "app",
        "claims",
        "document",
        "ended",
        "extend_at",
        "interrupt",
        "is_lost",
        "lease_until",
        "message",
        "messages",
        "received",
        "reported_at",
        "reporting",
        "result_put",
        "slot",
        "source",
        "started",
        "state",
        "task",
        "unreported",
    )

    def __init__(
        self,
        app: App,
        task: BaseTask[..., Any] | None,
        messages: list[ReceivedMessage],
        source: Any,
        received: float,
        leased: float | None = None,
    ) -> None:
        self.app = app
        self.task = task
        self.message = messages[0]
        self.messages = messages  # a task has one; a consumer may have a batch
        self.source = source  # the QueueRunner that received it
        self.received = received
        self.started = 0.0
        self.ended = 0.0
        self.reported_at = 0.0  # its last progress
        self.unreported: Progress | None = None  # a later one, which is not written yet
        self.reporting = Lock()  # held by the thread that writes a report: none overtakes another
        # When the lease began is not known exactly: `leased` is a moment before, when the receive call began.
        leased = received if leased is None else leased
        self.lease_until = leased + app.lease
        self.extend_at = leased + app.lease / 3
        self.slot: Slot | AsyncioTask[Any] | None = None  # where it runs
        self.interrupt: type[BaseException] | None = None  # what was raised in it from outside
        self.is_lost = False
        self.document: dict[str, Any] | None = None  # the decoded body
        self.claims: list[Once] | None = None  # of `once`, extended with the lease
        self.result_put: KvPut | None = None  # its outcome, written together with the ack
        self.state: dict[str, Any] | None = None  # for middleware

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def name(self) -> str:
        """The name of the task; of a consumer the name of its queue."""
        return self.queue if self.task is None else self.task.name

    @property
    def queue(self) -> str:
        name: str = self.source.name
        return name

    @property
    def attempt(self) -> int:
        """1 for the first. Deliveries whose worker died are counted too."""
        return self.message.receive_count

    @property
    def is_last_attempt(self) -> bool:
        return self.task is not None and self.attempt > self.task.declared.rules.retries

    @property
    def attributes(self) -> Any:
        """The headers of the message."""
        return self.message.attributes

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler should end: it was cancelled, lost its lease, or exceeded its time."""
        return self.interrupt is not None

    @property
    def wait_s(self) -> float:
        """Seconds that the job was ready before it started, by the clock of its broker."""
        delivery = self.message.delivery
        entry = delivery.entry
        due_ms = entry.sent_ms if entry.options is None else max(entry.sent_ms, entry.options.due_ms)
        return max(delivery.delivered_ms - due_ms, 0) / 1000 + max(self.started - self.received, 0.0)

    @property
    def runs_s(self) -> float:
        return (self.ended or time.monotonic()) - self.started if self.started else 0.0

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report how far the job is: a fraction from 0 to 1, a text, or both.

        At most four reports a second are written, and the last one; in a coroutine this does not block.
        """
        now = time.monotonic()
        is_end = fraction is not None and fraction >= 1
        self.unreported = Progress(fraction, text, now_ms())
        if now - self.reported_at < _PROGRESS_PAUSE_S and not is_end:
            return  # written within about a second, or when the handler ends
        self.reported_at = now
        if self.task is not None and self.task.is_coroutine:
            from asyncio import get_running_loop

            get_running_loop().run_in_executor(None, self.write_unreported)
        else:
            self._write_newest()

    @property
    def has_unreported(self) -> bool:
        """Whether a report is not written yet, or is being written."""
        return self.unreported is not None or self.reporting.locked()

    def write_unreported(self, queue: Queue | None = None) -> None:
        """Write the newest report, if it is not written yet. Raises nothing: the job goes on."""
        if not self.has_unreported:
            return
        self.reported_at = time.monotonic()
        try:
            self._write_newest(queue)
        except OpenQError as error:
            log.warning("the progress of %s could not be written: %s", self.describe(), error)

    def _write_newest(self, queue: Queue | None = None) -> None:
        with self.reporting:
            report, self.unreported = self.unreported, None
            if report is not None:
                self.app.store.put_progress(self.id, report, queue)

    def once(self, key: str, **options: Any) -> Once:
        """`once` with the key in the namespace of this task."""
        from .effects import once as make

        return make(f"{self.name}/{key}", **options)

    def describe(self) -> str:
        what = "batch of queue" if self.task is None else "job"
        who = repr(self.queue) if self.task is None else f"{self.id} of task {self.task.name!r}"
        return f"{what} {who}, attempt {self.attempt}"

    def __repr__(self) -> str:
        return f"<ActiveJob {self.describe()}>"


def set_current(job: ActiveJob) -> Any:
    return _current.set(job)


def reset_current(token: Any) -> None:
    _current.reset(token)


def current_job() -> ActiveJob:
    """The job that the calling handler runs. Raises LookupError outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no job runs here: current_job() is for handlers") from None


def current_job_or_none() -> ActiveJob | None:
    return _current.get(None)


def interruption(job: ActiveJob, error: BaseException) -> type[JobCancelled] | None:
    """The kind of interruption that ended the job; None if the handler failed by itself."""
    from .errors import JobCancelled

    kind = job.interrupt
    if kind is not None and issubclass(kind, JobCancelled):
        return kind
    return type(error) if isinstance(error, JobCancelled) else None
