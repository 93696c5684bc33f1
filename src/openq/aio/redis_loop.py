"""asyncio over Redis: verbs run in greenlets on the loop, which goes on while they wait for Redis.

No threads, and no locks over a wait: what any number of tasks ask in one turn of the loop leaves together.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

from ..broker.waiters import Waiter
from ..client.interface import LoopBroker
from ..client.parts import QueuePart
from ..client.queues import Queue
from ..client.waiting import WaitRegistry, release_unseen
from ..errors import Closed
from ..model import Delivery
from ..redis.net import greenlets

T = TypeVar("T")


class LoopQueue(Queue):
    """The queue inside, as one loop may use it: its verbs suspend the greenlet that calls them."""

    _broker: LoopBroker

    def __init__(self, origin: Queue, broker: LoopBroker) -> None:
        # Not opened again: all but the way to Redis is the origin's.
        self.__dict__.update(origin.__dict__)
        self._origin = origin
        self._loop_broker = broker  # also when the queue is closed: to give back what comes too late
        self._bind(broker)

    def _shares_broker(self, other: QueuePart) -> bool:
        return other._broker is self._broker or other._broker is self._origin._broker

    def __del__(self) -> None:
        pass  # the origin is the one who leaves the place


class LoopQueues:
    """The loops on which one queue object is used; each has its own way to Redis."""

    def __init__(self, origin: Queue) -> None:
        self._origin = origin
        self._broker = cast(LoopBroker, origin.broker)
        self._last: tuple[AbstractEventLoop, LoopQueue] | None = None
        self._known: dict[AbstractEventLoop, LoopQueue] = {}
        self._lock = threading.Lock()
        self._closed = False

    def current(self) -> LoopQueue:
        """The queue for the loop that runs us."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            found = self._known.get(loop)
            if found is None:
                self._remove_closed()
                found = self._known[loop] = LoopQueue(self._origin, _attach(self._broker, loop))
                if self._closed:
                    found._unbind()
            self._last = (loop, found)
        return found

    def _remove_closed(self) -> None:
        for loop in [each for each in self._known if each.is_closed()]:
            del self._known[loop]
            _detach(self._broker, loop)

    async def run(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """Carried out to its end even if the task is cancelled meanwhile: a call cannot be called back."""
        return await greenlets.run(partial(verb, **options) if options else verb, *args)

    def wait(
        self, limit: int, lease_ms: int | None, consumer: str | None, types: Iterable[str] | None
    ) -> RedisTaskWait:
        return RedisTaskWait(self.current(), limit, lease_ms, consumer, types, self._origin._waits)

    async def load(self, deliveries: list[Delivery]) -> None:
        queue = self.current()
        if queue._loop_broker.is_loaded(deliveries):
            return
        try:
            await greenlets.run(queue._load, deliveries)
        except asyncio.CancelledError:
            greenlets.spawn(release_unseen, queue._loop_broker, queue.name, deliveries)
            raise

    def start(self, verb: Callable[..., object], *args: Any) -> None:
        """The same for work whose end nobody waits for."""
        greenlets.spawn(verb, *args)

    def close(self) -> None:
        """After the queue: nothing is asked any more, and nothing is under way that anybody waits for."""
        with self._lock:
            self._closed = True
            known, self._known, self._last = self._known, {}, None
        for loop, queue in known.items():
            queue._unbind()
            _detach(self._broker, loop)


class _LoopConnection:
    """What the queue objects on one loop share of one broker. The last one of them hangs up; or the loop,
    if it ends before them: then a connection could not be closed any more."""

    def __init__(self, broker: LoopBroker, loop: AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self.users = 0
        self._closer = self._close_with_loop()
        _run_sync(self._closer.__anext__())

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """A loop that is run as `asyncio.run` does it closes the generators that were begun on it."""
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
    """What never waits, done at once."""
    try:
        awaitable.__await__().send(None)
    except (StopIteration, StopAsyncIteration):
        pass


_connections: dict[tuple[LoopBroker, AbstractEventLoop], _LoopConnection] = {}
_connections_lock = threading.Lock()


def _attach(broker: LoopBroker, loop: AbstractEventLoop) -> LoopBroker:
    with _connections_lock:
        link = _connections.get((broker, loop))
        if link is None:
            link = _connections[broker, loop] = _LoopConnection(broker, loop)
        link.users += 1
    return broker.on_loop(loop)


def _detach(broker: LoopBroker, loop: AbstractEventLoop) -> None:
    with _connections_lock:
        link = _connections[broker, loop]
        link.users -= 1
        if link.users:
            return
        del _connections[broker, loop]
    link.close()


class RedisTaskWait:
    """One wait of one task for messages. What it was served is either returned or given back.

    Everything happens on the loop's thread, so nothing can come between a look and the act that follows.
    """

    __slots__ = (
        "_ended",
        "_future",
        "_loop",
        "_queue",
        "_served",
        "_task_cancelled",
        "_timed_out",
        "_waiter",
        "_waits",
    )

    def __init__(
        self,
        queue: LoopQueue,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
        waits: WaitRegistry,
    ) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._waits = waits
        self._ended = False  # the queue is closed, or the consumer is to stop: nobody wants anything any more
        self._task_cancelled = False  # the task was cancelled
        self._timed_out = False  # the time is up: what is on its way is still welcome
        self._served: list[Delivery] = []
        self._future: Future[None] = self._loop.create_future()
        self._waiter = Waiter(limit, lease_ms, consumer, types, self._serve)

    async def wait(self, timeout: float | None) -> list[Delivery]:
        """What came, or nothing when the time is up. None waits for ever."""
        self._waits.add(self)
        timer = None
        try:
            if timeout is not None and timeout <= 0:
                greenlets.spawn(self._poll, done=self._on_registered)
            else:
                greenlets.spawn(self._attend, done=self._on_registered)
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

    def _poll(self) -> None:
        waiter = self._waiter
        queue = self._queue
        self._on_deliveries(
            queue._broker.receive(queue.name, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)
        )

    def _attend(self) -> None:
        deliveries = self._queue._broker.add_waiter(self._queue.name, self._waiter)
        if deliveries is not None:
            self._on_deliveries(deliveries)
        elif self._ended or self._task_cancelled or self._timed_out:
            # It all was over before we stood in line, where nobody could find us.
            self._unregister()

    def _on_registered(self, _: object, error: BaseException | None) -> None:
        if self._ended and isinstance(error, Closed):
            self._wake()
        elif error is not None and not self._future.done():
            self._future.set_exception(error)

    def _serve(self, deliveries: list[Delivery]) -> None:
        """Any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._on_deliveries(deliveries)
            return
        try:
            self._loop.call_soon_threadsafe(self._on_deliveries, deliveries)
        except RuntimeError:
            # A loop that was closed over a waiting task. We may hold a lock, so somebody else must do it.
            threading.Thread(
                target=release_unseen,
                args=(self._queue._origin._handle.broker, self._queue.name, deliveries),
                name="openq-release",
                daemon=True,
            ).start()

    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        if self._task_cancelled or self._ended:
            self._release(deliveries)
        else:
            self._served = deliveries
        self._wake()

    def _release(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            # The broker itself: the queue may be closed by now.
            greenlets.spawn(release_unseen, self._queue._loop_broker, self._queue.name, deliveries)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _unregister(self) -> None:
        """Out of the line. Who does not stand there (yet, or any more) is still to hear: see `_arrived`."""
        if self._queue._loop_broker.remove_waiter(self._queue.name, self._waiter) or self._ended:
            self._wake()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._unregister()

    def take_served(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        """End the wait, from any thread: nothing came."""
        self._ended = True
        if asyncio._get_running_loop() is self._loop:
            self._unregister()
            return
        try:
            self._loop.call_soon_threadsafe(self._unregister)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more
