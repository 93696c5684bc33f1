"""How tasks wait: for the disk, and for a message. Nothing here starts a task or a thread."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Iterable
from functools import partial
from weakref import WeakValueDictionary

from ..broker.waiters import Waiter
from ..client.waiting import WaitRegistry, release_unseen
from ..errors import Closed, JournalFailed, OpenQError
from ..local.broker import LocalBroker
from ..model import Delivery

CommitFuture = Future[None]


class CommitFutures:
    """One loop's wait for one broker's disk: a list of futures per group commit, one call to wake them.

    Publishers of the same tick of the loop share a commit, because the journal is asked to write only
    when the tick is over.
    """

    def __init__(self, broker: LocalBroker, loop: AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self._group = -1
        self._futures: list[CommitFuture] = []
        self._flushing = False

    def future(self) -> CommitFuture | None:
        """For everything done so far: None if it is on disk already. Raises JournalFailed."""
        broker = self.broker
        journal = broker.journal
        assert journal is not None, "without a disk there is nothing to wait for"
        with broker.lock:
            if journal.error is not None:
                raise _failure(journal.error)
            if journal.end_location <= journal.durable_location:
                return None
            future: CommitFuture = self.loop.create_future()
            if journal.group != self._group:
                futures: list[CommitFuture] = []
                journal.after_commit(partial(self._committed, futures))
                self._group, self._futures = journal.group, futures
            self._futures.append(future)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flushing = False
        assert self.broker.journal is not None
        self.broker.journal.flush()

    def _committed(self, futures: list[CommitFuture]) -> None:
        """In the thread that wrote. Whether it failed is known for sure only here: the next group may."""
        assert self.broker.journal is not None
        error = self.broker.journal.error
        try:
            self.loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more


def _resolve(futures: list[CommitFuture], error: OpenQError | None) -> None:
    for future in futures:
        if future.done():
            continue  # its task was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(_failure(error))


def _failure(error: OpenQError) -> OpenQError:
    # A new one for each task: a raised exception carries that task's traceback.
    return JournalFailed(error.reason) if isinstance(error, JournalFailed) else Closed()


_known: WeakValueDictionary[tuple[int, int], CommitFutures] = WeakValueDictionary()
_known_lock = threading.Lock()


def commit_futures(broker: LocalBroker, loop: AbstractEventLoop) -> CommitFutures:
    """The one that all queue objects on this loop share."""
    key = (id(broker), id(loop))
    with _known_lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = CommitFutures(broker, loop)
        return found


class TaskWait:
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
        waits: WaitRegistry,
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
                target=release_unseen,
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
            await self._register(timeout)
        except BaseException:
            self._broker.remove_waiter(self._queue, self._waiter)
            release_unseen(self._broker, self._queue, self._waits.finish(self))
            raise
        return self._waits.finish(self)

    async def _register(self, timeout: float | None) -> None:
        broker, waiter = self._broker, self._waiter
        self._future = self._loop.create_future()
        deliveries = broker.add_waiter(self._queue, waiter)
        if deliveries is not None:
            self._served = deliveries
            return
        # Checked after we stand in line: an end that came before found nobody to take out of it.
        if self._ended and broker.remove_waiter(self._queue, waiter):
            return
        timer = None if timeout is None else self._loop.call_later(max(timeout, 0), self.end)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()

    def take_served(self) -> list[Delivery]:
        served, self._served = self._served, []
        return served

    def end(self) -> None:
        """End the wait, from any thread: nothing came."""
        self._ended = True
        # If it is too late to leave we were served, and `_wake` is on its way.
        if self._broker.remove_waiter(self._queue, self._waiter):
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop was closed: nobody waits any more
