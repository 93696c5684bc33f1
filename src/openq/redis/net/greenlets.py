"""Greenlets: code that looks synchronous, runs on an event loop and may wait for Redis.

The broker's methods are plain functions, for threads and for loops. On a loop they run in a greenlet: where a
thread would block, the greenlet is suspended, the loop continues, and a callback wakes the greenlet. Code
that never waits costs one switch in and one out: no task, no loop iteration.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
DoneCallback = Callable[[Any, BaseException | None], None]

log = logging.getLogger("openq.redis")

_PENDING = object()


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio  # imported late: a program without an event loop does without its memory

    return asyncio.get_running_loop()


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller is on this loop."""
    import asyncio

    return asyncio._get_running_loop() is loop


class _IdleTasks(threading.local):
    def __init__(self) -> None:
        self.tasks: list[GreenletTask] = []


# A new greenlet costs 14 us since Python 3.11 (a stack of its own), a reused one 1: measured.
_idle = _IdleTasks()
_MAX_IDLE = 1000


class GreenletTask(greenlet):  # type: ignore[misc]
    """Runs one piece of work after the other. Its `parent` is the greenlet that woke it; it returns there."""

    loop: asyncio.AbstractEventLoop
    marks: dict[Any, Any]
    """What was written through which connection, and is not known to be safe yet (see `Calls`)."""

    def __init__(self) -> None:
        super().__init__(self._run_tasks)
        self._idle = _idle.tasks

    def start(self, work: Callable[..., Any], args: tuple[Any, ...], done: DoneCallback | None) -> None:
        self.loop = _running_loop()
        self.marks = {}
        # As in a task, context variables set by the work stay local; it reads those of its starter.
        self.gr_context = contextvars.copy_context()
        self.parent = getcurrent()
        self.switch(work, args, done)

    def resume(self) -> None:
        self.parent = getcurrent()
        self.switch()

    def _run_tasks(self, work: Callable[..., Any], args: tuple[Any, ...], done: DoneCallback | None) -> None:
        while True:
            result: Any = None
            error: BaseException | None = None
            try:
                result = work(*args)
            except GreenletExit:
                raise  # the loop is gone: nothing can wake this task
            except BaseException as raised:
                error = raised
            if done is not None:
                try:
                    done(result, error)
                except Exception:
                    log.exception("the callback of work on the loop failed")
            elif error is not None:
                log.error("work on the loop failed", exc_info=error)
            # An idle task must keep nothing alive.
            del work, args, done, result, error
            if len(self._idle) >= _MAX_IDLE:
                return
            self._idle.append(self)
            work, args, done = self.parent.switch()


def _start_task(work: Callable[..., Any], args: tuple[Any, ...], done: DoneCallback | None) -> None:
    idle = _idle.tasks
    (idle.pop() if idle else GreenletTask()).start(work, args, done)


def in_greenlet() -> bool:
    """Whether `wait` would suspend the caller rather than block a loop."""
    return type(getcurrent()) is GreenletTask


def current_task() -> GreenletTask | None:
    """The task that runs the caller, if there is one."""
    current = getcurrent()
    return current if type(current) is GreenletTask else None


def spawn(work: Callable[..., Any], *args: Any, done: DoneCallback | None = None) -> None:
    """Run `work(*args)` on this loop; if it never waits, it is done when this returns.

    `done(result, error)` is called once, on the loop; without it an error is logged.
    """
    _start_task(work, args, done)


async def run(work: Callable[..., Result], *args: Any) -> Result:
    """Run `work(*args)` and wait for its result. If the caller is cancelled, the work still runs to its
    end."""
    outcome: list[Any] = []
    future: asyncio.Future[None] | None = None

    def done(result: Any, error: BaseException | None) -> None:
        outcome.append(result)
        outcome.append(error)
        if future is None:
            return
        if future.cancelled():
            if error is not None:
                log.error("work whose caller was cancelled failed", exc_info=error)
        elif not future.done():
            future.set_result(None)

    _start_task(work, args, done)
    if not outcome:
        future = _running_loop().create_future()
        await future
    result, error = outcome
    if error is not None:
        try:
            raise error
        finally:
            # The traceback would keep this frame, and so itself, alive.
            del error, outcome
    return result  # type: ignore[no-any-return]


def wait(start: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Suspend this work until the callback that `start` gets is called.

    Returns the argument of the callback, or raises it if it is an exception. The callback may be called
    before `start` returns, and on the loop's thread only; a second call is ignored.
    """
    current = getcurrent()
    if type(current) is not GreenletTask:
        raise RuntimeError("only work that was started by spawn() or run() can wait")
    value: Any = _PENDING
    suspended = False

    def callback(given: Any) -> None:
        nonlocal value
        if value is not _PENDING:
            return
        value = given
        if suspended:
            current.resume()

    start(callback)
    if value is _PENDING:
        suspended = True
        current.parent.switch()
    if isinstance(value, BaseException):
        raise value
    return value


def sleep(seconds: float) -> None:
    current = getcurrent()
    if type(current) is not GreenletTask:
        raise RuntimeError("only work that was started by spawn() or run() can wait")
    loop = current.loop
    wait(lambda callback: loop.call_later(seconds, callback, None))


def wait_for_reply(
    current: GreenletTask, send: Callable[[bytes, Callable[[Any], None]], Any], data: bytes
) -> Any:
    """`wait` for the most frequent case: `send(data, callback)`.

    Returns the value even if it is an exception.
    """
    value: Any = _PENDING
    suspended = False

    def callback(given: Any) -> None:
        nonlocal value
        value = given
        if suspended:
            current.resume()

    send(data, callback)
    if value is _PENDING:
        suspended = True
        current.parent.switch()
    return value
