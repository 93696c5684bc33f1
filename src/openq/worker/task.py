"""Tasks: functions that run as jobs. The type checker knows the arguments of `send`.

`Task` is made from a function, `AsyncTask` from a coroutine function; they differ in what a direct call
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar

from ..client.settings import unknown_keyword
from .retry import RetryRules
from .signature import TaskSignature

if TYPE_CHECKING:
    from typing import Unpack

    from .app import App
    from .calls import Call
    from .job import Job

P = ParamSpec("P")
R = TypeVar("R")


class SendOptions(TypedDict, total=False):
    """How one job is sent; see `Task.send_with`."""

    delay: float  # seconds before it may run
    at: datetime | float | str  # an absolute time instead
    priority: int  # 0 to 255, higher first
    key: str | None  # the group of the message: limits and FIFO order are per key
    unique: str | None  # while a job with this key is in the queue, another is not added
    dedup: str | None  # sent again within the window (5 minutes): the first job is returned
    ttl: float | None  # seconds until the job is removed if it did not start
    attributes: dict[str, Any] | None  # headers of the message


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What was declared with a task."""

    name: str
    queue: str
    rules: RetryRules = field(default_factory=RetryRules)
    timeout: float | None = None
    hard_timeout: float | None = None
    result_ttl: float | None = None
    priority: int | None = None
    codec: str = "json"


class BaseTask(Generic[P, R]):
    """A function with the options of its jobs."""

    is_coroutine = False

    def __init__(self, app: App, function: Callable[..., Any], declared: TaskOptions) -> None:
        self.app = app
        self.function = function
        self.declared = declared
        self.name = declared.name
        self.queue = declared.queue
        self._signature: TaskSignature | None = None
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", declared.name)
        self.__module__ = function.__module__

    @property
    def signature(self) -> TaskSignature:
        found = self._signature
        if found is None:
            found = self._signature = TaskSignature(self.function, self.name)
        return found

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a job with these arguments. Returns when the broker has it."""
        return self.app.enqueue(self, args, kwargs)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`send` without blocking the event loop."""
        return await self.app.aenqueue(self, args, kwargs)

    def send_with(self, **options: Unpack[SendOptions]) -> Sender[P, R]:
        """How one job is sent; the result is called with the arguments: `task.send_with(delay=60)(...)`.

        `delay` or `at`, `priority`, `key`, `unique`, `dedup`, `ttl` and `attributes`; see `SendOptions`.
        """
        for name in options:
            if name not in SendOptions.__annotations__:
                raise unknown_keyword("send_with", name, SendOptions.__annotations__)
        return Sender(self, options)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call that is sent later, alone or in a chain or group."""
        from .calls import Call

        self.signature.check(args, kwargs)
        return Call(self, args, kwargs, {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of queue {self.queue!r}>"


class Task(BaseTask[P, R]):
    """A task made from a function. Calling it calls the function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(BaseTask[P, R]):
    """A task made from a coroutine function. Calling it returns the coroutine."""

    is_coroutine = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class Sender(Generic[P, R]):
    """A task with options of its jobs, made by `send_with`. Its calls have the types of the task."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: BaseTask[P, R], options: SendOptions) -> None:
        self._task = task
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a job with these arguments."""
        return self._task.app.enqueue(self._task, args, kwargs, self._options)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return await self._task.app.aenqueue(self._task, args, kwargs, self._options)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        from .calls import Call

        self._task.signature.check(args, kwargs)
        return Call(self._task, args, kwargs, self._options)
