"""asyncio over Redis: calls run in greenlets on the loop, which continues while they wait for Redis.

No threads, and no locks held over a wait: the commands of all tasks in one tick of the loop leave together.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from ..client.core import QueueCore
from ..client.interface import LoopBroker
from ..client.queues import Queue, QueueView
from ..client.waiting import MessageWait, release_unseen
from ..errors import Closed
from ..model import Delivery, MessageFilter
from ..redis.net import greenlets
from .waiting import release_in_thread

T = TypeVar("T")


class LoopQueue(NamedTuple):
    """A queue as one loop uses it: its calls suspend the greenlet that makes them."""

    queue: Queue
    broker: LoopBroker  # stays when the queue is closed: to release deliveries that come too late


class LoopQueues:
    """The loops on which one queue object is used; each has its own connection to Redis."""

    def __init__(self, origin: Queue) -> None:
        self._origin = origin
        self._broker = cast(LoopBroker, origin.broker)
        self._last: tuple[AbstractEventLoop, LoopQueue] | None = None
        self._known: dict[AbstractEventLoop, LoopQueue] = {}
        self._lock = threading.Lock()
        self._closed = False

    def current(self) -> LoopQueue:
        """The queue for the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            found = self._known.get(loop)
            if found is None:
                self._remove_closed()
                broker = _attach(self._broker, loop)
                found = self._known[loop] = LoopQueue(QueueView(self._origin, broker), broker)
                if self._closed:
                    found.queue.core.unbind()
            self._last = (loop, found)
        return found

    def _remove_closed(self) -> None:
        for loop in [each for each in self._known if each.is_closed()]:
            del self._known[loop]
            _detach(self._broker, loop)

    async def run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """The call runs to its end even if the task is cancelled."""
        return await greenlets.run(partial(call, **options) if options else call, *args)

    def wait(
        self, limit: int, lease_ms: int | None, consumer: str | None, wanted: MessageFilter | None
    ) -> RedisTaskWait:
        return RedisTaskWait(self.current(), self._origin.core, limit, lease_ms, consumer, wanted)

    async def load(self, deliveries: list[Delivery]) -> None:
        queue, broker = self.current()
        if broker.commit_location(deliveries) is None:
            return
        try:
            await greenlets.run(queue.core.load, deliveries)
        except asyncio.CancelledError:
            greenlets.spawn(release_unseen, broker, queue.name, deliveries)
            raise

    def start(self, call: Callable[..., object], *args: Any) -> None:
        """`run` without waiting for the end."""
        greenlets.spawn(call, *args)

    def close(self) -> None:
        """After the queue was closed: no call is made any more, and none is under way."""
        with self._lock:
            self._closed = True
            known, self._known, self._last = self._known, {}, None
        for loop, (queue, _) in known.items():
            queue.core.unbind()
            _detach(self._broker, loop)


class _LoopConnection:
    """The connection of one broker on one loop, shared by the queue objects there.

    The last of them closes it; or the loop, if it ends first: after that it could not be closed any more.
    """

    def __init__(self, broker: LoopBroker, loop: AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self.users = 0
        self._closer = self._close_with_loop()
        _run_sync(self._closer.__anext__())

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """`asyncio.run` closes the asynchronous generators that were started on its loop."""
        try:
            yield
        finally:
            self._broker.leave_loop(self._loop)

    def close(self) -> None:
        try:
            if self._loop.is_closed() or asyncio._get_running_loop() is self._loop:
                _run_sync(self._closer.aclose())
            else:
                self._loop.call_soon_threadsafe(_run_sync, self._closer.aclose())
        except RuntimeError:
            pass  # the loop was closed just now


def _run_sync(awaitable: Awaitable[None]) -> None:
    """Run an awaitable that never waits."""
    try:
        awaitable.__await__().send(None)
    except (StopIteration, StopAsyncIteration):
        pass


_connections: dict[tuple[LoopBroker, AbstractEventLoop], _LoopConnection] = {}
_connections_lock = threading.Lock()


def _attach(broker: LoopBroker, loop: AbstractEventLoop) -> LoopBroker:
    with _connections_lock:
        connection = _connections.get((broker, loop))
        if connection is None:
            connection = _connections[broker, loop] = _LoopConnection(broker, loop)
        connection.users += 1
    return broker.on_loop(loop)


def _detach(broker: LoopBroker, loop: AbstractEventLoop) -> None:
    with _connections_lock:
        connection = _connections[broker, loop]
        connection.users -= 1
        if connection.users:
            return
        del _connections[broker, loop]
    connection.close()


class RedisTaskWait(MessageWait):
    """A wait of a task. Its deliveries are either returned or released.

    Everything runs in the loop's thread, so nothing happens between a check and the act that follows.
    """

    __slots__ = ("_future", "_handle", "_loop", "_loop_queue", "_task_cancelled", "_timed_out")

    def __init__(
        self,
        loop_queue: LoopQueue,
        origin: QueueCore,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        wanted: MessageFilter | None,
    ) -> None:
        super().__init__(
            loop_queue.broker, loop_queue.queue.name, limit, lease_ms, consumer, wanted, origin.waits
        )
        self._loop_queue = loop_queue
        self._handle = origin.handle
        self._loop = asyncio.get_running_loop()
        self._task_cancelled = False
        self._timed_out = False  # deliveries that are on their way are still returned
        self._future: Future[None] = self._loop.create_future()

    async def wait(self, timeout: float | None) -> list[Delivery]:
        """The messages that came, or none when the timeout is over. None waits for ever."""
        self._waits.add(self)
        timer = None
        try:
            if timeout is not None and timeout <= 0:
                greenlets.spawn(self._poll, done=self._on_registered)
            else:
                greenlets.spawn(self._add_waiter, done=self._on_registered)
            if not self._future.done():
                if timeout is not None:
                    timer = self._loop.call_later(timeout, self._on_timeout)
                await self._future
            else:
                self._future.result()
        except BaseException:
            self._task_cancelled = True
            self._unregister()
            self._release(self._waits.finish(self))
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._waits.finish(self)

    # `_poll` and `_add_waiter` call the broker of the queue, which refuses once the queue is closed.

    def _poll(self) -> None:
        waiter = self._waiter
        self._on_deliveries(
            self._loop_queue.queue.core.broker.receive(
                self._queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.wanted
            )
        )

    def _add_waiter(self) -> None:
        deliveries = self._loop_queue.queue.core.broker.add_waiter(self._queue, self._waiter)
        if deliveries is not None:
            self._on_deliveries(deliveries)
        elif self._ended or self._task_cancelled or self._timed_out:
            # It was over before we registered, so nothing could remove us then.
            self._unregister()

    def _on_registered(self, _: object, error: BaseException | None) -> None:
        if self._ended and isinstance(error, Closed):
            self._set_result()
        elif error is not None and not self._future.done():
            self._future.set_exception(error)

    def _serve(self, deliveries: list[Delivery]) -> None:
        """Called from any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._on_deliveries(deliveries)
            return
        try:
            self._loop.call_soon_threadsafe(self._on_deliveries, deliveries)
        except RuntimeError:
            release_in_thread(self._handle.broker, self._queue, deliveries)  # the loop is closed

    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        if self._task_cancelled or self._ended:
            self._release(deliveries)
        else:
            self._served = deliveries
        self._set_result()

    def _release(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            greenlets.spawn(self.release, deliveries)

    def _set_result(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _unregister(self) -> None:
        """A wait that is not registered (yet, or any more) hears of its deliveries in `_on_deliveries`."""
        if self._broker.remove_waiter(self._queue, self._waiter) or self._ended:
            self._set_result()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._unregister()

    def end(self) -> None:
        """End the wait, from any thread."""
        self._ended = True
        if asyncio._get_running_loop() is self._loop:
            self._unregister()
            return
        try:
            self._loop.call_soon_threadsafe(self._unregister)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more
