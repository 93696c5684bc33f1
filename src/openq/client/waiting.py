"""How a thread waits for a message: without polling, and without ever losing one it was served."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError
from ..model import Delivery
from .interface import LibraryBroker


def release_unseen(broker: LibraryBroker, queue: str, deliveries: Iterable[Delivery]) -> None:
    """Back to their places at once, not counted: nobody has seen them."""
    receipts = [(delivery.entry.seq, delivery.number) for delivery in deliveries]
    if not receipts:
        return
    try:
        broker.release(queue, receipts)
    except OpenQError:
        pass  # closed or failed meanwhile; the leases end by themselves


class EndableWait(Protocol):
    """A wait, of a thread or of a task."""

    def end(self) -> None:
        """Out of the line, from any thread; a no-op if it was served already."""
        ...

    def take_served(self) -> list[Delivery]:
        """What it was served, once."""
        ...


class WaitRegistry:
    """The waits of one queue object. Closing the object ends them, whoever else uses its broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: set[EndableWait] = set()
        self._closed = False

    def add(self, wait: EndableWait) -> None:
        with self._lock:
            if self._closed:
                raise Closed()
            self._waits.add(wait)

    def finish(self, wait: EndableWait) -> list[Delivery]:
        """The wait is over. What it was served belongs to the waiter, unless `close` was faster."""
        with self._lock:
            self._waits.discard(wait)
            return wait.take_served()

    def close(self) -> list[Delivery]:
        """Ends them all. Returns what they were served and nobody will see."""
        with self._lock:
            self._closed = True
            waits = list(self._waits)
        # Without our lock: a wait leaves its line under the broker's, which its thread may hold.
        for wait in waits:
            wait.end()
        with self._lock:
            return [delivery for wait in waits if wait in self._waits for delivery in wait.take_served()]


class ThreadWait:
    """One wait of one thread. `end` ends it early, from any thread."""

    __slots__ = ("_broker", "_ended", "_queue", "_served", "_served_lock", "_waiter", "_waits")

    def __init__(
        self,
        broker: LibraryBroker,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
        waits: WaitRegistry,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._waits = waits
        self._served: list[Delivery] = []
        self._ended = False
        # A held lock is the cheapest thing to sleep on; whoever serves us releases it.
        self._served_lock = threading.Lock()
        self._served_lock.acquire()
        self._waiter = Waiter(limit, lease_ms, consumer, types, self._serve)

    def _serve(self, deliveries: list[Delivery]) -> None:
        self._served = deliveries
        self._served_lock.release()

    def poll(self) -> list[Delivery]:
        """What is there now, without standing in line."""
        waiter = self._waiter
        return self._broker.receive(self._queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)

    def wait(self, timeout: float | None) -> list[Delivery]:
        """What came, or nothing when the time is up. None waits for ever."""
        self._waits.add(self)
        try:
            self._register(timeout)
        except BaseException:
            # Ctrl-C in the middle of a wait: what we were served meanwhile goes back.
            self._broker.remove_waiter(self._queue, self._waiter)
            release_unseen(self._broker, self._queue, self._waits.finish(self))
            raise
        return self._waits.finish(self)

    def _register(self, timeout: float | None) -> None:
        broker, waiter = self._broker, self._waiter
        deliveries = broker.add_waiter(self._queue, waiter)
        if deliveries is not None:
            self._served = deliveries
            return
        # Checked after we stand in line: an end that came before found nobody to take out of it.
        if self._ended and broker.remove_waiter(self._queue, waiter):
            return
        in_time = self._served_lock.acquire(
            timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        )
        if not in_time:
            broker.remove_waiter(self._queue, waiter)

    def take_served(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        self._ended = True
        if self._broker.remove_waiter(self._queue, self._waiter):
            self._served_lock.release()
