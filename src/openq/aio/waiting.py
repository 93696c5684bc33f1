"""How tasks wait: for the disk, and for a message. Nothing here starts a task or a thread."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Iterable
from functools import partial
from weakref import WeakValueDictionary

from ..broker.local import LocalBroker
from ..broker.waiters import Waiter
from ..client.waiting import Waits, give_back
from ..errors import Closed, JournalFailed, OpenQError
from ..model import Delivery

Promise = Future[None]


class Commits:
    """One loop's wait for one broker's disk: a list of futures per group commit, one call to wake them.

    Publishers of the same tick of the loop share a commit, because the journal is asked to write only
    when the tick is over.
    """

    def __init__(self, broker: LocalBroker, loop: AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self._group = -1
        self._promises: list[Promise] = []
        self._flushing = False

    def promise(self) -> Promise | None:
        """For everything done so far: None if it is on disk already. Raises JournalFailed."""
        broker = self.broker
        journal = broker.journal
        assert journal is not None, "without a disk there is nothing to wait for"
        with broker.lock:
            if journal.error is not None:
                raise _failure(journal.error)
            if journal.end_at <= journal.durable_at:
                return None
            promise: Promise = self.loop.create_future()
            if journal.group != self._group:
                promises: list[Promise] = []
                journal.when_durable(partial(self._committed, promises))
                self._group, self._promises = journal.group, promises
            self._promises.append(promise)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return promise

    def _flush(self) -> None:
        self._flushing = False
        assert self.broker.journal is not None
        self.broker.journal.flush()

    def _committed(self, promises: list[Promise]) -> None:
        """In the thread that wrote. Whether it failed is known for sure only here: the next group may."""
        assert self.broker.journal is not None
        error = self.broker.journal.error
        try:
            self.loop.call_soon_threadsafe(_resolve, promises, error)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more


def _resolve(promises: list[Promise], error: OpenQError | None) -> None:
    for promise in promises:
        if promise.done():
            continue  # its task was cancelled
        if error is None:
            promise.set_result(None)
        else:
            promise.set_exception(_failure(error))


def _failure(error: OpenQError) -> OpenQError:
    # A new one for each task: a raised exception carries that task's traceback.
    return JournalFailed(error.reason) if isinstance(error, JournalFailed) else Closed()


_known: WeakValueDictionary[tuple[int, int], Commits] = WeakValueDictionary()
_known_lock = threading.Lock()


def commits_of(broker: LocalBroker, loop: AbstractEventLoop) -> Commits:
    """The one that all queue objects on this loop share."""
    key = (id(broker), id(loop))
    with _known_lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = Commits(broker, loop)
        return found


class Wait:
    """One wait of one task for messages. What it was served is either returned or given back."""

    __slots__ = ("_broker", "_ended", "_future", "_loop", "_queue", "_served", "_waiter", "_waits")

    def __init__(
        self,
        broker: LocalBroker,
        loop: AbstractEventLoop,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
        waits: Waits,
    ) -> None:
        self._broker = broker
        self._loop = loop
        self._queue = queue
        self._waits = waits
        self._ended = False
        self._served: list[Delivery] = []
        self._future: Future[None] | None = None
        self._waiter = Waiter(limit, lease_ms, consumer, types, self._serve)

    def _serve(self, deliveries: list[Delivery]) -> None:
        """Broker's lock held, any thread. Noted first: a task that is cancelled before the loop comes
        to wake it finds here what to give back."""
        self._served = deliveries
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # A loop that was closed over a waiting task. The lock is ours, so somebody else must do it.
            threading.Thread(
                target=give_back,
                args=(self._broker, self._queue, deliveries),
                name="openq-release",
                daemon=True,
            ).start()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None) -> list[Delivery]:
        """What came, or nothing when the time is up. None waits for ever."""
        self._waits.add(self)
        try:
            await self._stand_in_line(timeout)
        except BaseException:
            self._broker.leave(self._queue, self._waiter)
            give_back(self._broker, self._queue, self._waits.finish(self))
            raise
        return self._waits.finish(self)

    async def _stand_in_line(self, timeout: float | None) -> None:
        broker, waiter = self._broker, self._waiter
        self._future = self._loop.create_future()
        deliveries = broker.attend(self._queue, waiter)
        if deliveries is not None:
            self._served = deliveries
            return
        # Checked after we stand in line: an end that came before found nobody to take out of it.
        if self._ended and broker.leave(self._queue, waiter):
            return
        timer = None if timeout is None else self._loop.call_later(max(timeout, 0), self.end)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()

    def surrender(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        """End the wait, from any thread: nothing came."""
        self._ended = True
        # If it is too late to leave we were served, and `_wake` is on its way.
        if self._broker.leave(self._queue, self._waiter):
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop was closed: nobody waits any more
