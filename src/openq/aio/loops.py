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
from ..client.base import Base
from ..client.embedded import Queue
from ..client.verbs import LoopVerbs
from ..client.waiting import Waits, give_back
from ..errors import Closed
from ..model import Delivery
from ..redis import bridge

T = TypeVar("T")


class Here(Queue):
    """The queue inside, as one loop may use it: its verbs suspend the greenlet that calls them."""

    _broker: LoopVerbs

    def __init__(self, origin: Queue, broker: LoopVerbs) -> None:
        # Not opened again: all but the way to Redis is the origin's.
        self.__dict__.update(origin.__dict__)
        self._origin = origin
        self._view = broker  # also when the queue is closed: to give back what comes too late
        self._bind(broker)

    def _shares_broker(self, other: Base) -> bool:
        return other._broker is self._broker or other._broker is self._origin._broker

    def __del__(self) -> None:
        pass  # the origin is the one who leaves the place


class Loops:
    """The loops on which one queue object is used; each has its own way to Redis."""

    def __init__(self, origin: Queue) -> None:
        self._origin = origin
        self._broker = cast(LoopVerbs, origin.broker)
        self._last: tuple[AbstractEventLoop, Here] | None = None
        self._known: dict[AbstractEventLoop, Here] = {}
        self._lock = threading.Lock()
        self._closed = False

    def here(self) -> Here:
        """The queue for the loop that runs us."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            found = self._known.get(loop)
            if found is None:
                self._forget_ended()
                found = self._known[loop] = Here(self._origin, _join(self._broker, loop))
                if self._closed:
                    found._unbind()
            self._last = (loop, found)
        return found

    def _forget_ended(self) -> None:
        for loop in [each for each in self._known if each.is_closed()]:
            del self._known[loop]
            _leave(self._broker, loop)

    async def run(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """Carried out to its end even if the task is cancelled meanwhile: a call cannot be called back."""
        return await bridge.run(partial(verb, **options) if options else verb, *args)

    def wait(
        self, limit: int, lease_ms: int | None, consumer: str | None, types: Iterable[str] | None
    ) -> LoopWait:
        return LoopWait(self.here(), limit, lease_ms, consumer, types, self._origin._waits)

    async def load(self, deliveries: list[Delivery]) -> None:
        here = self.here()
        if here._view.is_loaded(deliveries):
            return
        try:
            await bridge.run(here._load, deliveries)
        except asyncio.CancelledError:
            bridge.spawn(give_back, here._view, here.name, deliveries)
            raise

    def begin(self, verb: Callable[..., object], *args: Any) -> None:
        """The same for work whose end nobody waits for."""
        bridge.spawn(verb, *args)

    def close(self) -> None:
        """After the queue: nothing is asked any more, and nothing is under way that anybody waits for."""
        with self._lock:
            self._closed = True
            known, self._known, self._last = self._known, {}, None
        for loop, here in known.items():
            here._unbind()
            _leave(self._broker, loop)


class _Link:
    """What the queue objects on one loop share of one broker. The last one of them hangs up; or the loop,
    if it ends before them: then a connection could not be closed any more."""

    def __init__(self, broker: LoopVerbs, loop: AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self.users = 0
        self._ending = self._hang_up_at_the_end()
        _step(self._ending.__anext__())

    async def _hang_up_at_the_end(self) -> AsyncGenerator[None, None]:
        """A loop that is run as `asyncio.run` does it closes the generators that were begun on it."""
        try:
            yield
        finally:
            self._broker.leave_loop(self._loop)

    def hang_up(self) -> None:
        try:
            if self._loop.is_closed() or asyncio._get_running_loop() is self._loop:
                _step(self._ending.aclose())
            else:
                self._loop.call_soon_threadsafe(_step, self._ending.aclose())
        except RuntimeError:
            pass  # the loop was closed just now


def _step(awaitable: Awaitable[None]) -> None:
    """What never waits, done at once."""
    try:
        awaitable.__await__().send(None)
    except (StopIteration, StopAsyncIteration):
        pass


_links: dict[tuple[LoopVerbs, AbstractEventLoop], _Link] = {}
_links_lock = threading.Lock()


def _join(broker: LoopVerbs, loop: AbstractEventLoop) -> LoopVerbs:
    with _links_lock:
        link = _links.get((broker, loop))
        if link is None:
            link = _links[broker, loop] = _Link(broker, loop)
        link.users += 1
    return broker.on_loop(loop)


def _leave(broker: LoopVerbs, loop: AbstractEventLoop) -> None:
    with _links_lock:
        link = _links[broker, loop]
        link.users -= 1
        if link.users:
            return
        del _links[broker, loop]
    link.hang_up()


class LoopWait:
    """One wait of one task for messages. What it was served is either returned or given back.

    Everything happens on the loop's thread, so nothing can come between a look and the act that follows.
    """

    __slots__ = ("_ended", "_future", "_given_up", "_here", "_late", "_loop", "_served", "_waiter", "_waits")

    def __init__(
        self,
        here: Here,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
        waits: Waits,
    ) -> None:
        self._here = here
        self._loop = asyncio.get_running_loop()
        self._waits = waits
        self._ended = False  # the queue is closed, or the consumer is to stop: nobody wants anything any more
        self._given_up = False  # the task was cancelled
        self._late = False  # the time is up: what is on its way is still welcome
        self._served: list[Delivery] = []
        self._future: Future[None] = self._loop.create_future()
        self._waiter = Waiter(limit, lease_ms, consumer, types, self._serve)

    async def wait(self, timeout: float | None) -> list[Delivery]:
        """What came, or nothing when the time is up. None waits for ever."""
        self._waits.add(self)
        timer = None
        try:
            if timeout is not None and timeout <= 0:
                bridge.spawn(self._look, done=self._asked)
            else:
                bridge.spawn(self._attend, done=self._asked)
            if not self._future.done():
                if timeout is not None:
                    timer = self._loop.call_later(timeout, self._time_up)
                await self._future
            else:
                self._future.result()
        except BaseException:
            self._given_up = True
            self._leave()
            self._return(self._waits.finish(self))
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._waits.finish(self)

    def _look(self) -> None:
        waiter = self._waiter
        queue = self._here
        self._arrived(
            queue._broker.receive(queue.name, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)
        )

    def _attend(self) -> None:
        deliveries = self._here._broker.attend(self._here.name, self._waiter)
        if deliveries is not None:
            self._arrived(deliveries)
        elif self._ended or self._given_up or self._late:
            # It all was over before we stood in line, where nobody could find us.
            self._leave()

    def _asked(self, _: object, error: BaseException | None) -> None:
        if self._ended and isinstance(error, Closed):
            self._wake()
        elif error is not None and not self._future.done():
            self._future.set_exception(error)

    def _serve(self, deliveries: list[Delivery]) -> None:
        """Any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._arrived(deliveries)
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived, deliveries)
        except RuntimeError:
            # A loop that was closed over a waiting task. We may hold a lock, so somebody else must do it.
            threading.Thread(
                target=give_back,
                args=(self._here._origin._shared.broker, self._here.name, deliveries),
                name="openq-release",
                daemon=True,
            ).start()

    def _arrived(self, deliveries: list[Delivery]) -> None:
        if self._given_up or self._ended:
            self._return(deliveries)
        else:
            self._served = deliveries
        self._wake()

    def _return(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            # The broker itself: the queue may be closed by now.
            bridge.spawn(give_back, self._here._view, self._here.name, deliveries)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _leave(self) -> None:
        """Out of the line. Who does not stand there (yet, or any more) is still to hear: see `_arrived`."""
        if self._here._view.leave(self._here.name, self._waiter) or self._ended:
            self._wake()

    def _time_up(self) -> None:
        self._late = True
        self._leave()

    def surrender(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        """End the wait, from any thread: nothing came."""
        self._ended = True
        if asyncio._get_running_loop() is self._loop:
            self._leave()
            return
        try:
            self._loop.call_soon_threadsafe(self._leave)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more
