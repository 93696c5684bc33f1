"""`Job`: a job as its sender sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..client.message import PeekedMessage
from ..errors import MessageNotFoundError, OpenQError, QueueInUse
from . import codec
from .endings import Ending, cancelled
from .errors import InvalidArguments, JobFailed, JobWasCancelled, ResultNotKept, ResultTimeout
from .store import RESULTS, JobOutcome, Progress, read_outcome

if TYPE_CHECKING:
    from ..client.queues import Queue
    from .app import App

R = TypeVar("R")
T = TypeVar("T")

_STATES = {"unprocessed": "waiting", "processing": "running", "processed": "done", "dead": "failed"}
_WAIT_SLICE_S = 60.0  # one wait; then the next


async def in_thread(work: Callable[[], T]) -> T:
    import asyncio  # imported late: most programs that send jobs have no event loop

    return await asyncio.to_thread(work)


def _document(queue: Queue, job_id: str) -> dict[str, Any]:
    """The body of a job that waits: the steps after it, and its group. Raises MessageNotFoundError."""
    found = PeekedMessage(queue, queue.core.broker.inspect.find(queue.core.name, job_id))
    try:
        return codec.read_body(found.body)
    except (InvalidArguments, OpenQError):
        return {}  # an unreadable one has no steps after it


class Job(Generic[R]):
    """One job. Its id is that of its message."""

    __slots__ = ("app", "earlier", "id", "queue", "result_ttl", "task")

    def __init__(self, app: App, id: str, task: str, queue: str, result_ttl: float | None = None) -> None:
        self.app = app
        self.id = id
        self.task = task
        self.queue = queue
        self.result_ttl = result_ttl  # seconds that its result is kept; None: not at all
        self.earlier: tuple[Job[Any], ...] = ()  # of a chain or group: the jobs that run before it, in order

    # -- its end ------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> R:
        """What the task returned, waiting up to `timeout` seconds (None: for ever) for its end.

        Raises JobFailed, JobWasCancelled, ResultTimeout, or ResultNotKept for a task without result_ttl.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        outcome = self._ended_before()
        while outcome is None:
            left = _WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), _WAIT_SLICE_S)
            if left <= 0:
                raise ResultTimeout(self.id, timeout or 0)
            outcome = self.app.store.wait_outcome(self.id, left)
        return self.read(outcome)

    async def aresult(self, timeout: float | None = None) -> R:
        """`result` for coroutines."""
        deadline = None if timeout is None else time.monotonic() + timeout
        kv = (await self.app.queues.open_async(self.queue)).kv(RESULTS)
        outcome = await in_thread(self._ended_before)
        while outcome is None:
            left = _WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), _WAIT_SLICE_S)
            if left <= 0:
                raise ResultTimeout(self.id, timeout or 0)
            entry = await kv.wait(self.id, left)
            outcome = None if entry is None else read_outcome(entry.value)
        return self.read(outcome)

    def _ended_before(self) -> JobOutcome | None:
        """The outcome, if there is one. Raises ResultNotKept if waiting for one would never end."""
        outcome = self.app.store.outcome(self.id)
        if outcome is not None:
            return outcome
        if self.result_ttl is None:
            raise ResultNotKept(self.task)
        if self.app.queues.open(self.queue).status(self.id) in ("processed", "dead"):
            # It is stored before the message is settled: if it is not there now, it has expired.
            outcome = self.app.store.outcome(self.id)
            if outcome is None:
                raise ResultNotKept(self.task, "the result has expired")
        return outcome

    def read(self, outcome: JobOutcome) -> R:
        if outcome.state == "failed":
            raise JobFailed(self.id, outcome.error)
        if outcome.state == "cancelled":
            raise JobWasCancelled(self.id)
        task = self.app.tasks.get(self.task)
        kind = None if task is None else task.signature.returns
        value: R = outcome.result if kind is None else codec.convert(outcome.result, kind)
        return value

    # -- meanwhile ----------------------------------------------------------------------------

    def status(self) -> str:
        """waiting (ready or delayed), running, done, failed, cancelled or unknown."""
        outcome = self.app.store.outcome(self.id)
        if outcome is not None and outcome.state != "failed":
            return outcome.state
        status = self.app.queues.open(self.queue).status(self.id)
        if status == "unknown" and outcome is not None:
            return outcome.state
        if status == "unknown" and any(each.status() != "unknown" for each in reversed(self.earlier)):
            return "waiting"  # for the jobs before it
        return _STATES.get(status, "unknown")

    def progress(self) -> Progress | None:
        """What its handler reported last."""
        return self.app.store.progress(self.id)

    def cancel(self) -> bool:
        """Remove the job if it waits; if it runs, raise JobCancelled in its handler, within about a second.

        False if it had ended before. A handler that does not stop, or ends first, is not undone. The job of
        a chain, or of a step after a group, is cancelled with those before it.
        """
        # In order: a step is sent before the one before it is acked, so none is missed.
        return any([each.cancel() for each in self.earlier] + [self._cancel()])

    def _cancel(self) -> bool:
        store = self.app.store
        queue = self.app.queues.open(self.queue)
        store.flag_cancelled(self.id)  # first: a worker that receives it now sees the flag
        try:
            document = _document(queue, self.id)
            queue.cancel(self.id)
        except QueueInUse:
            return True  # it runs, or waits in a worker, which looks for the flag
        except MessageNotFoundError:
            store.unflag_cancelled(self.id)
            return False
        Ending(self.app, self.id, self.task, self.result_ttl, document, cancelled()).write()
        store.unflag_cancelled(self.id)
        return True

    async def astatus(self) -> str:
        return await in_thread(self.status)

    async def aprogress(self) -> Progress | None:
        return await in_thread(self.progress)

    async def acancel(self) -> bool:
        return await in_thread(self.cancel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self.queue) == (other.id, other.queue)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id} of task {self.task!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Job holds connections: keep its id, and use app.job(id, task)")
