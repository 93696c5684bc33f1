"""Coroutines made from the methods of `openq.Queue`, with their signatures and docstrings.

    purge = changing(queues.Queue.purge)

The type of the result is that of the method with `await` in front, so type checkers and editors know it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ..client import queues
from ..client.exchanges import QueueExchanges
from ..client.schedules import QueueSchedules
from ..client.webhooks import QueueWebhooks
from .runner import Runner

P = ParamSpec("P")
R = TypeVar("R")


class HasRunner(Protocol):
    @property
    def runner(self) -> Runner: ...


def _forward(run: Callable[..., Awaitable[Any]], method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: HasRunner, /, *args: Any, **options: Any) -> Any:
        return await run(self.runner, method, *args, **options)

    return call


def changing(
    method: Callable[Concatenate[queues.Queue, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """Changes the queue: returns when that is on disk."""
    return _forward(Runner.change, method)


def reading(
    method: Callable[Concatenate[queues.Queue, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """May read much from the disk."""
    return _forward(Runner.read, method)


def quick(
    method: Callable[Concatenate[queues.Queue, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """Needs no disk."""
    return _forward(Runner.quick, method)


def in_thread(
    method: Callable[Concatenate[queues.Queue, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """May take long."""
    return _forward(Runner.in_thread, method)


def changing_in_thread(
    method: Callable[Concatenate[queues.Queue, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """May take long, and changes the queue."""
    return _forward(Runner.change_in_thread, method)


def of_exchanges(
    method: Callable[Concatenate[QueueExchanges, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """A method of `queue.exchanges`."""

    @wraps(method)
    def on_queue(queue: queues.Queue, /, *args: P.args, **options: P.kwargs) -> R:
        return method(QueueExchanges(queue), *args, **options)

    return _forward(Runner.change, on_queue)


class AsyncExchanges:
    """The exchanges on the target of a queue: `queue.exchanges`; see `openq.client.exchanges`."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    declare = of_exchanges(QueueExchanges.declare)
    delete = of_exchanges(QueueExchanges.delete)
    bind = of_exchanges(QueueExchanges.bind)
    unbind = of_exchanges(QueueExchanges.unbind)
    bind_exchange = of_exchanges(QueueExchanges.bind_exchange)
    unbind_exchange = of_exchanges(QueueExchanges.unbind_exchange)
    publish = of_exchanges(QueueExchanges.publish)
    all = of_exchanges(QueueExchanges.all)
    bindings = of_exchanges(QueueExchanges.bindings)


def of_schedules(
    method: Callable[Concatenate[QueueSchedules, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """A method of `queue.schedules`."""

    @wraps(method)
    def on_queue(queue: queues.Queue, /, *args: P.args, **options: P.kwargs) -> R:
        return method(QueueSchedules(queue), *args, **options)

    return _forward(Runner.change, on_queue)


class AsyncSchedules:
    """The schedules that publish to a queue: `queue.schedules`; see `openq.client.schedules`."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    add = of_schedules(QueueSchedules.add)
    list = of_schedules(QueueSchedules.list)
    get = of_schedules(QueueSchedules.get)
    next_runs = of_schedules(QueueSchedules.next_runs)
    remove = of_schedules(QueueSchedules.remove)
    run = of_schedules(QueueSchedules.run)
    pause = of_schedules(QueueSchedules.pause)
    resume = of_schedules(QueueSchedules.resume)


def of_webhooks(
    method: Callable[Concatenate[QueueWebhooks, P], R],
) -> Callable[Concatenate[HasRunner, P], Coroutine[Any, Any, R]]:
    """A method of `queue.webhooks`."""

    @wraps(method)
    def on_queue(queue: queues.Queue, /, *args: P.args, **options: P.kwargs) -> R:
        return method(QueueWebhooks(queue), *args, **options)

    return _forward(Runner.in_thread, on_queue)


class AsyncWebhooks:
    """The webhooks of a queue behind a server: `queue.webhooks`; see `openq.client.webhooks`."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    add = of_webhooks(QueueWebhooks.add)
    list = of_webhooks(QueueWebhooks.list)
    get = of_webhooks(QueueWebhooks.get)
    remove = of_webhooks(QueueWebhooks.remove)
    enable = of_webhooks(QueueWebhooks.enable)
    disable = of_webhooks(QueueWebhooks.disable)
    rotate = of_webhooks(QueueWebhooks.rotate)
    test = of_webhooks(QueueWebhooks.test)
    log = of_webhooks(QueueWebhooks.log)
    replay = of_webhooks(QueueWebhooks.replay)
