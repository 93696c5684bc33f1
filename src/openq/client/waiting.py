"""Waiting for messages: without polling, and without losing a message that was served."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError
from ..model import Delivery, MessageFilter
from .interface import LibraryBroker


def release_unseen(broker: LibraryBroker, queue: str, deliveries: Iterable[Delivery]) -> None:
    """Return deliveries that no consumer has seen, at once and uncounted."""
    receipts = [(delivery.entry.seq, delivery.number) for delivery in deliveries]
    if not receipts:
        return
    try:
        broker.release(queue, receipts)
    except OpenQError:
        pass  # closed or failed in the meantime; the leases end by themselves


class EndableWait(Protocol):
    """A wait of a thread or of a task."""

    def end(self) -> None:
        """End the wait, from any thread; no effect if it was served already."""
        ...

    def take_served(self) -> list[Delivery]:
        """The deliveries that it was served, once."""
        ...


class WaitRegistry:
    """The waits of one queue object. Closing the object ends them and no others."""

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
        """Remove a wait. Its deliveries belong to the caller, unless `close` came first."""
        with self._lock:
            self._waits.discard(wait)
            return wait.take_served()

    def close(self) -> list[Delivery]:
        """End all waits. Returns the deliveries that they were served and no caller will see."""
        with self._lock:
            self._closed = True
            waits = list(self._waits)
        # Not under our lock: `end` takes the lock of the broker, which the thread of a wait may hold.
        for wait in waits:
            wait.end()
        with self._lock:
            return [delivery for wait in waits if wait in self._waits for delivery in wait.take_served()]


class MessageWait:
    """One receive call that waits. Its deliveries are either returned or released.

    A subclass says how the caller sleeps: `_serve` is called with the broker's lock held, from any thread.
    """

    __slots__ = ("_broker", "_ended", "_queue", "_served", "_waiter", "_waits")

    def __init__(
        self,
        broker: LibraryBroker,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        wanted: MessageFilter | None,
        waits: WaitRegistry,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._waits = waits
        self._served: list[Delivery] = []
        self._ended = False
        self._waiter = Waiter(limit, lease_ms, consumer, wanted, self._serve)

    def _serve(self, deliveries: list[Delivery]) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        """Wake the caller, from any thread."""
        raise NotImplementedError

    def poll(self) -> list[Delivery]:
        """The messages that are ready now."""
        waiter = self._waiter
        return self._broker.receive(
            self._queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.wanted
        )

    def _register(self) -> bool:
        """Add the waiter to the queue. True if there is no need to wait: it was served, or ended before."""
        deliveries = self._broker.add_waiter(self._queue, self._waiter)
        if deliveries is not None:
            self._served = deliveries
            return True
        # Checked after registering: an `end` before that found no waiter to remove.
        return self._ended and self._broker.remove_waiter(self._queue, self._waiter)

    def _abort(self) -> None:
        """The caller was interrupted: release what it was served in the meantime."""
        self._broker.remove_waiter(self._queue, self._waiter)
        self.release(self._waits.finish(self))

    def release(self, deliveries: list[Delivery]) -> None:
        release_unseen(self._broker, self._queue, deliveries)

    def take_served(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        self._ended = True
        # False: it was served just before, and the caller is being woken.
        if self._broker.remove_waiter(self._queue, self._waiter):
            self._wake()


class ThreadWait(MessageWait):
    """A wait of a thread."""

    __slots__ = ("_served_lock",)

    def __init__(
        self,
        broker: LibraryBroker,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        wanted: MessageFilter | None,
        waits: WaitRegistry,
    ) -> None:
        super().__init__(broker, queue, limit, lease_ms, consumer, wanted, waits)
        # A held lock is the cheapest thing to sleep on; `_wake` releases it.
        self._served_lock = threading.Lock()
        self._served_lock.acquire()

    def _serve(self, deliveries: list[Delivery]) -> None:
        self._served = deliveries
        self._served_lock.release()

    def _wake(self) -> None:
        self._served_lock.release()

    def wait(self, timeout: float | None) -> list[Delivery]:
        """The messages that came, or none when the timeout is over. None waits for ever."""
        self._waits.add(self)
        try:
            if not self._register():
                self._sleep(timeout)
        except BaseException:  # for example Ctrl-C
            self._abort()
            raise
        return self._waits.finish(self)

    def _sleep(self, timeout: float | None) -> None:
        in_time = self._served_lock.acquire(
            timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        )
        if not in_time:
            self._broker.remove_waiter(self._queue, self._waiter)
