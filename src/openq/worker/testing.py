"""Jobs in tests, run in the calling thread on a clock that is moved by hand.

    with app.testing() as testing:
        send_mail.send("a@example.org", subject="hi")
        testing.run()               # everything that is due
        testing.advance(3600)       # retries, delays and schedules of an hour

The queues are in memory meanwhile. With `eager=True` each `send` runs its job at once and raises its
exception.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..client.message import ReceivedMessage
from ..clock import VirtualClock
from .active import ActiveJob, reset_current, set_current
from .errors import UnknownTask
from .execution import Execution
from .middleware import Middleware
from .outage import Outage

if TYPE_CHECKING:
    from .app import App
    from .enqueue import JobDraft
    from .job import Job

_MAX_RUNS = 1_000_000  # a task that sends itself for ever is an error of the test


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a handler."""

    task: str
    job_id: str
    attempt: int
    error: BaseException | None


class TestWorker:
    """Runs jobs in the calling thread. `ran` lists every run of a handler, in order."""

    __test__ = False  # for pytest

    def __init__(self, app: App, clock: VirtualClock) -> None:
        self.app = app
        self.clock = clock
        self.ran: list[Ran] = []
        self._execution = Execution(
            app, self._ack, _set_ended, lambda job, outcome: None, lambda job: True, Outage()
        )
        self._sources: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- running ------------------------------------------------------------------------------

    def run(self) -> int:
        """Run everything that is due, and what it sends in turn. Returns the number of handler runs."""
        before = len(self.ran)
        while self._run_some():
            if len(self.ran) - before > _MAX_RUNS:
                raise AssertionError(f"more than {_MAX_RUNS} jobs: does a task send itself?")
        return len(self.ran) - before

    def advance(self, seconds: float) -> int:
        """Move the clock, running each job when it comes due. Returns the number of handler runs."""
        end_ms = self.clock.now_ms() + round(seconds * 1000)
        count = self.run()
        while True:
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.clock.advance(max(due_ms - self.clock.now_ms(), 1) / 1000)
            count += self.run()
        self.clock.advance(max(end_ms - self.clock.now_ms(), 0) / 1000)
        return count + self.run()

    def next_due_ms(self) -> int | None:
        """When the next delayed job or schedule is due, in milliseconds since the epoch."""
        due: list[int] = []
        for name in self.app.queues.with_handlers():
            queue: Any = self.app.queues.open(name)
            entries = queue.broker.inspect.entries(name, "delayed")
            due += [entry.options.due_ms for entry in entries if entry.options is not None]
            if self.app.schedules:
                runs = [each.next_run for each in queue.schedules.list()]
                due += [round(run.timestamp() * 1000) for run in runs if run is not None]
        return min(due, default=None)

    def _run_some(self) -> bool:
        is_any = False
        for name in self.app.queues.with_handlers():
            source = self._source(name)
            limit = 1 if source.consumer is None else source.consumer.batch or 1
            messages = source.queue.receive_many(limit, 0, visibility_timeout=self.app.lease)
            if messages:
                is_any = True
                self._run_job(source, messages)
        return is_any

    def _source(self, name: str) -> Any:
        found = self._sources.get(name)
        if found is None:
            found = self._sources[name] = SimpleNamespace(
                name=name, queue=self.app.queues.open(name), consumer=self.app.consumers.get(name)
            )
        return found

    def _run_job(self, source: Any, messages: list[ReceivedMessage]) -> None:
        task = self.app.tasks.get(messages[0].message_type or "")
        if task is None and source.consumer is None:
            source.queue.reject(messages[0], UnknownTask(messages[0].message_type, source.name))
            return
        job = ActiveJob(self.app, task, messages, source, time.monotonic())
        job.started = time.monotonic()
        token = set_current(job)
        try:
            function, args, kwargs = self._execution.prepare(job)
            try:
                result = function(*args, **kwargs)
                if asyncio.iscoroutine(result):
                    result = self._await(result)
            finally:
                job.write_unreported()
        except BaseException as error:
            self.ran.append(Ran(job.name, job.id, job.attempt, error))
            if not isinstance(error, Exception | SystemExit) and job.interrupt is None:
                raise  # Ctrl-C of the test
            self._execution.failed(job, error)
        else:
            self.ran.append(Ran(job.name, job.id, job.attempt, None))
            self._execution.succeeded(job, result)
        finally:
            reset_current(token)

    def _await(self, coroutine: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:  # a coroutine sent the job: its own loop cannot run another coroutine to its end
            run = contextvars.copy_context().run
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(run, asyncio.run, coroutine).result()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def _ack(self, job: ActiveJob) -> None:
        if job.result_put is not None:
            self.app.store.put_outcome(job.result_put)
        job.source.queue.ack_many([message for message in job.messages if not message.settled])

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    # -- eager --------------------------------------------------------------------------------

    def run_at_once(self, job: Job[Any]) -> None:
        """Run until this job has ended, and raise the exception of its last attempt."""
        self.run()
        while job.status() == "waiting":  # it is delayed, or will be tried again
            due_ms = self.next_due_ms()
            if due_ms is None:
                return
            self.clock.advance(max(due_ms - self.clock.now_ms(), 1) / 1000)
            self.run()
        last = next((each for each in reversed(self.ran) if each.job_id == job.id), None)
        if last is not None and last.error is not None:
            raise last.error


class _RunAtOnce(Middleware):
    def __init__(self, worker: TestWorker) -> None:
        self._worker = worker

    def after_enqueue(self, draft: JobDraft, job: Job[Any]) -> None:
        self._worker.run_at_once(job)


def _set_ended(job: ActiveJob) -> None:
    job.ended = time.monotonic()


@contextmanager
def testing(app: App, clock: VirtualClock | None, eager: bool) -> Iterator[TestWorker]:
    """See `App.testing`."""
    clock = clock or VirtualClock()
    worker = TestWorker(app, clock)
    middleware = app.middleware
    with app.queues.replaced({"clock": clock}):
        app.declare()
        if eager:
            app.middleware = [*middleware, _RunAtOnce(worker)]
        try:
            yield worker
        finally:
            app.middleware = middleware
            worker.close()
