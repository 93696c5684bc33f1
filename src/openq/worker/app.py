"""`App`: tasks, consumers and schedules, and the target on which their queues are."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from .. import tracing
from ..model import RetryPolicy
from . import codec as codecs
from .consumers import Consumer
from .enqueue import JobDraft, check_body, make_draft
from .errors import InvalidTask
from .flows import Flows
from .job import Job
from .queues import QueueDeclaration, Queues, target_keywords
from .retry import DEFAULT_BACKOFF, ExceptionTypes, RetryRules, exception_types
from .schedules import DeclaredSchedule, make_schedule
from .store import JobStore
from .task import AsyncTask, BaseTask, SendOptions, Task, TaskOptions

if TYPE_CHECKING:
    from ..client.interface import LibraryBroker
    from ..client.message import Message
    from ..clock import Clock, VirtualClock
    from .calls import Call
    from .middleware import Middleware
    from .testing import TestWorker

P = ParamSpec("P")
R = TypeVar("R")
TaskT = TypeVar("TaskT", bound=BaseTask[..., Any])

DEFAULT_LEASE_S = 15.0


class App:
    """The tasks of a program, and where their queues are.

    With `url` the queues are on a server or in Redis, with `path` in a directory, with neither in memory.
    `queue`, `retries`, `timeout`, `result_ttl` and `codec` are the defaults of the tasks.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        path: str | os.PathLike[str] | None = None,
        broker: LibraryBroker | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        ca: str | None = None,
        reconnect: float | None = None,
        queue: str = "default",
        retries: int = 3,
        timeout: float | None = None,
        hard_timeout: float | None = None,
        result_ttl: float | None = None,
        lease: float = DEFAULT_LEASE_S,
        codec: str = "json",
        middleware: Iterable[Middleware] = (),
    ) -> None:
        if codec not in codecs.CODECS:
            raise InvalidTask(f"codec must be one of {', '.join(codecs.CODECS)}, not {codec!r}")
        if not lease >= 1:
            raise InvalidTask(f"lease must be at least 1 second, not {lease!r}")
        target = target_keywords(
            url=url, path=path, broker=broker, clock=clock, token=token, ca=ca, reconnect=reconnect
        )
        self.queues = Queues(target)
        self.tasks: dict[str, BaseTask[..., Any]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.schedules: dict[str, DeclaredSchedule] = {}
        self.middleware: list[Middleware] = list(middleware)
        if tracing.current() is not None:
            from .tracing import TraceContext

            if not any(isinstance(each, TraceContext) for each in self.middleware):
                self.middleware.insert(0, TraceContext())
        self.store = JobStore(self.queues)
        self.flows = Flows(self)
        self.lease = lease
        self.default_queue = queue
        self._defaults: dict[str, Any] = {
            "retries": retries,
            "timeout": timeout,
            "hard_timeout": hard_timeout,
            "result_ttl": result_ttl,
            "codec": codec,
        }

    # -- declaring ----------------------------------------------------------------------------

    def queue(self, name: str, *, dlq: str | None = None, **settings: Any) -> QueueDeclaration:
        """Declare a queue with any setting of `OpenQ`.

        `dlq` is its dead-letter queue: by default the name with "-dead"; "" is none.
        """
        declaration = self.queues.declare(name)
        declaration.settings.update(settings)
        if dlq is not None:
            declaration.dead_letter = dlq
        return declaration

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: int | None = None,
        backoff: RetryPolicy | None = None,
        retry_on: ExceptionTypes = ...,
        give_up_on: ExceptionTypes = ...,
        timeout: float | None = None,
        hard_timeout: float | None = None,
        result_ttl: float | None = None,
        priority: int | None = None,
        codec: str | None = None,
    ) -> TaskDecorator: ...

    def task(self, *function: Any, **options: Any) -> Any:
        """Make a task of a function or a coroutine function.

        `retries` further attempts follow a failure, after the `backoff`; `retry_on` and `give_up_on` select
        exceptions. `timeout` seconds after the start TimeLimitExceeded is raised in the handler, after
        `hard_timeout` the process is replaced. `result_ttl` keeps the result for that many seconds.
        """
        decorator = TaskDecorator(self, options)
        return decorator(*function) if function else decorator

    @overload
    def consumer(
        self,
        queue: str,
        *,
        batch: None = None,
        concurrency: int = ...,
        timeout: float | None = None,
        **settings: Any,
    ) -> Callable[[Callable[[Message], R]], Callable[[Message], R]]: ...
    @overload
    def consumer(
        self,
        queue: str,
        *,
        batch: int,
        concurrency: int = ...,
        timeout: float | None = None,
        **settings: Any,
    ) -> Callable[[Callable[[list[Message]], R]], Callable[[list[Message]], R]]: ...

    def consumer(
        self,
        queue: str,
        *,
        batch: int | None = None,
        concurrency: int = 1,
        timeout: float | None = None,
        **settings: Any,
    ) -> Any:
        """Handle the messages of a queue that others send to: each `Message`, or lists of up to `batch`.

        They are acked when the handler returns, and nacked with the exception when it raises; a message that
        the handler settled itself is left alone. `concurrency` calls run at a time in each worker.
        `settings` are settings of the queue; without them it is used as it is.
        """
        declaration = self.queues.declare(queue)
        if queue in self.consumers or declaration.attempts:
            raise InvalidTask(f"queue {queue!r} has a task or a consumer already")
        if concurrency < 1 or (batch is not None and batch < 1):
            raise InvalidTask("batch and concurrency must be at least 1")
        declaration.is_raw = True
        declaration.settings.update(settings)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            self.consumers[queue] = Consumer(queue, function, batch, concurrency, timeout)
            return function

        return decorate

    def add_task(self, function: Callable[..., Any], options: dict[str, Any]) -> BaseTask[..., Any]:
        if not callable(function):
            raise InvalidTask(f"a task is a function, not {function!r}")
        declared = self._task_options(function, options)
        if declared.name in self.tasks:
            raise InvalidTask(f"two tasks have the name {declared.name!r}: give one of them name=")
        declaration = self.queues.declare(declared.queue)
        if declaration.is_raw:
            raise InvalidTask(f"queue {declared.queue!r} has a consumer: tasks need a queue of their own")
        declaration.attempts = max(declaration.attempts, declared.rules.retries + 1)
        kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
        task: BaseTask[..., Any] = kind(self, function, declared)
        self.tasks[declared.name] = task
        return task

    def _task_options(self, function: Callable[..., Any], given: dict[str, Any]) -> TaskOptions:
        unknown = given.keys() - _TASK_KEYWORDS
        if unknown:
            raise InvalidTask(f"unknown option of a task: {', '.join(sorted(unknown))}")
        merged = {**self._defaults, **{name: value for name, value in given.items() if value is not None}}
        for name in ("timeout", "hard_timeout", "result_ttl"):
            value = merged[name]
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidTask(f"{name} must be a number of seconds, more than 0, not {value!r}")
        if merged["codec"] not in codecs.CODECS:
            raise InvalidTask(f"codec must be one of {', '.join(codecs.CODECS)}, not {merged['codec']!r}")
        rules = RetryRules(
            retries=merged["retries"],
            backoff=merged.get("backoff") or DEFAULT_BACKOFF,
            retry_on=exception_types(merged.get("retry_on", (Exception, SystemExit)), "retry_on"),
            give_up_on=exception_types(merged.get("give_up_on", ()), "give_up_on"),
        )
        return TaskOptions(
            name=str(merged.get("name") or getattr(function, "__name__", "task")),
            queue=merged.get("queue") or self.default_queue,
            rules=rules,
            timeout=merged["timeout"],
            hard_timeout=merged["hard_timeout"],
            result_ttl=merged["result_ttl"],
            priority=merged.get("priority"),
            codec=merged["codec"],
        )

    # -- schedules ----------------------------------------------------------------------------

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        misfire: str = "once",
        jitter: float = 0,
        **task_options: Any,
    ) -> ScheduleDecorator:
        """Run a task at the times of a cron expression of five fields, in the wall time of `timezone`.

        It decorates a function, which becomes a task with `task_options`, or a task. `misfire` is for runs
        that are more than a minute late: "skip", "once" (one for all) or "all". A run adds no job while the
        job of the last run waits or runs.
        """
        when = {"cron": expression, "timezone": timezone, "misfire": misfire, "jitter": jitter}
        return ScheduleDecorator(self, name, when, task_options)

    def every(
        self,
        seconds: float,
        *,
        name: str | None = None,
        misfire: str = "once",
        jitter: float = 0,
        **task_options: Any,
    ) -> ScheduleDecorator:
        """Run a task every so many seconds; see `cron`."""
        when = {"every": seconds, "misfire": misfire, "jitter": jitter}
        return ScheduleDecorator(self, name, when, task_options)

    def add_schedule(self, task: BaseTask[..., Any], name: str | None, when: dict[str, Any]) -> None:
        schedule = make_schedule(task, name, when)
        if schedule.name in self.schedules:
            raise InvalidTask(f"two schedules have the name {schedule.name!r}: give one of them name=")
        self.schedules[schedule.name] = schedule

    def declare(self) -> None:
        """Declare the queues and schedules. A worker does so when it starts."""
        self.queues.declare_all()
        for schedule in self.schedules.values():
            schedule.declare(self)

    def testing(
        self, *, eager: bool = False, clock: VirtualClock | None = None
    ) -> AbstractContextManager[TestWorker]:
        """For tests: queues in memory, on a clock that is moved by hand; see `openq.worker.testing`."""
        from .testing import testing

        return testing(self, clock, eager)

    # -- sending ------------------------------------------------------------------------------

    def enqueue(
        self,
        task: BaseTask[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: SendOptions | None = None,
    ) -> Job[R]:
        """Send a job; `Task.send` is the typed form."""
        draft = make_draft(task, args, kwargs, options, self.queues.is_server)
        return self.publish(draft)

    async def aenqueue(
        self,
        task: BaseTask[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: SendOptions | None = None,
    ) -> Job[R]:
        draft = make_draft(task, args, kwargs, options, self.queues.is_server)
        return await self.apublish(draft)

    def publish(self, draft: JobDraft, check: bool = True) -> Job[Any]:
        body = self._prepare(draft, check)
        queue = self.queues.open(draft.queue, _BODY_CODECS[draft.codec])
        job_id = queue.publish(body, **draft.publish_options())
        return self._sent(draft, job_id)

    async def apublish(self, draft: JobDraft) -> Job[Any]:
        body = self._prepare(draft, True)
        queue = await self.queues.open_async(draft.queue, _BODY_CODECS[draft.codec])
        job_id = await queue.publish(body, **draft.publish_options())
        return self._sent(draft, job_id)

    def send_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Send many jobs with one wait for the broker: `app.send_many(resize.s(name) for name in names)`.

        Returns the jobs in the same order. If one is refused, its error is raised after the others were sent.
        """
        return self.publish_all([self._draft_of(call) for call in calls])

    def publish_all(self, drafts: list[JobDraft]) -> list[Job[Any]]:
        """Send drafts with one call for each queue. Returns the jobs in their order."""
        bodies = [self._prepare(draft, True) for draft in drafts]
        by_queue: dict[tuple[str, str], list[int]] = {}
        for number, draft in enumerate(drafts):
            by_queue.setdefault((draft.queue, draft.codec), []).append(number)
        jobs: dict[int, Job[Any]] = {}
        for (name, codec), numbers in by_queue.items():
            items = [{"body": bodies[number], **drafts[number].publish_options()} for number in numbers]
            ids = self.queues.open(name, _BODY_CODECS[codec]).publish_many(items)
            for number, job_id in zip(numbers, ids, strict=True):
                jobs[number] = self._sent(drafts[number], job_id)
        return [jobs[number] for number in range(len(drafts))]

    def _draft_of(self, call: Call[Any]) -> JobDraft:
        if len(call.steps) > 1:
            raise InvalidTask("send_many takes calls (task.s(...)): send a chain by itself, or in a group")
        [step] = call.steps
        return make_draft(step.task, step.args, step.kwargs, step.options, self.queues.is_server)

    async def asend_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """`send_many` without blocking the event loop."""
        from .job import in_thread

        return await in_thread(lambda: self.send_many(calls))

    def _prepare(self, draft: JobDraft, check: bool) -> Any:
        for each in self.middleware:
            each.before_enqueue(draft)
        body = draft.encoded()
        if check and draft.task is not None:
            check_body(draft.task, body)
        return body

    def _sent(self, draft: JobDraft, job_id: str) -> Job[Any]:
        ttl = None if draft.task is None else draft.task.declared.result_ttl
        job: Job[Any] = Job(self, job_id, draft.name, draft.queue, ttl)
        for each in self.middleware:
            each.after_enqueue(draft, job)
        return job

    def job(self, id: str, task: BaseTask[..., R]) -> Job[R]:
        """The job of an id that was kept: `app.job(id, send_mail).result()`."""
        return Job(self, id, task.name, task.queue, task.declared.result_ttl)

    def close(self) -> None:
        """Close the queue objects. Further calls open them again; queues in memory are gone."""
        self.queues.close()


class ScheduleDecorator:
    """`app.cron(...)` and `app.every(...)`: make a task of a function, if it is none, and schedule it."""

    def __init__(self, app: App, name: str | None, when: dict[str, Any], options: dict[str, Any]) -> None:
        self._app = app
        self._name = name
        self._when = when
        self._options = options

    @overload
    def __call__(self, function: TaskT, /) -> TaskT: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Any, /) -> Any:
        task = function
        if not isinstance(function, BaseTask):
            task = self._app.add_task(function, self._options)
        elif self._options:
            raise InvalidTask("options of a task belong to app.task(), not to its schedule")
        self._app.add_schedule(task, self._name, self._when)
        return task


class TaskDecorator:
    """`app.task(...)` with options."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app.add_task(function, self._options)


_TASK_KEYWORDS = {
    *("name", "queue", "retries", "backoff", "retry_on", "give_up_on", "timeout", "hard_timeout"),
    *("result_ttl", "priority", "codec"),
}
_BODY_CODECS = {"json": "auto", "msgpack": "msgpack"}  # codec of a task -> codec of its queue object
