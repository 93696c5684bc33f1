"""How tasks wait: for the disk, and for a message. Nothing here starts a task; waking starts no thread."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Iterable
from functools import partial
from weakref import WeakValueDictionary

from ..client.interface import LibraryBroker
from ..client.waiting import MessageWait, WaitRegistry, release_unseen
from ..errors import Closed, JournalFailed, OpenQError
from ..local.broker import LocalBroker
from ..model import Delivery

CommitFuture = Future[None]


class CommitFutures:
    """One loop's wait for one broker's disk: a list of futures per group commit, one call to wake them.

    Publishers of the same tick of the loop share a commit: the journal is flushed when the tick is over.
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
        """Called in the writer thread. Only here is it certain whether this group failed."""
        assert self.broker.journal is not None
        error = self.broker.journal.error
        try:
            self.loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more


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


class TaskWait(MessageWait):
    """A wait of a task."""

    __slots__ = ("_future", "_loop")

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
        super().__init__(broker, queue, limit, lease_ms, consumer, types, waits)
        self._loop = loop
        self._future: Future[None] | None = None

    def _serve(self, deliveries: list[Delivery]) -> None:
        # Stored before the wake-up: a task that is cancelled in between finds here what to release.
        self._served = deliveries
        try:
            self._loop.call_soon_threadsafe(self._set_result)
        except RuntimeError:
            release_in_thread(self._broker, self._queue, deliveries)  # the loop is closed

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set_result)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    def _set_result(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None) -> list[Delivery]:
        """The messages that came, or none when the timeout is over. None waits for ever."""
        self._waits.add(self)
        try:
            self._future = self._loop.create_future()
            if not self._register():
                await self._sleep(self._future, timeout)
        except BaseException:
            self._abort()
            raise
        return self._waits.finish(self)

    async def _sleep(self, future: Future[None], timeout: float | None) -> None:
        timer = None if timeout is None else self._loop.call_later(max(timeout, 0), self.end)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()


def release_in_thread(broker: LibraryBroker, queue: str, deliveries: list[Delivery]) -> None:
    """Release from where the broker's lock may be held."""
    threading.Thread(
        target=release_unseen, args=(broker, queue, deliveries), name="openq-release", daemon=True
    ).start()
