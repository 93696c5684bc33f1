"""How tasks wait: for the disk, and for a message. Nothing here starts a task; waking starts no thread."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from weakref import WeakValueDictionary

from ..client.interface import LibraryBroker
from ..client.waiting import MessageWait, WaitRegistry, release_unseen
from ..local.broker import LocalBroker
from ..local.commits import CommitNotifier
from ..model import Delivery, MessageFilter

_known: WeakValueDictionary[tuple[int, int], CommitNotifier] = WeakValueDictionary()
_known_lock = threading.Lock()


def commit_notifier(broker: LocalBroker, loop: AbstractEventLoop) -> CommitNotifier:
    """The one that all queue objects on this loop share."""
    key = (id(broker), id(loop))
    with _known_lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = CommitNotifier(broker, loop)
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
        wanted: MessageFilter | None,
        waits: WaitRegistry,
    ) -> None:
        super().__init__(broker, queue, limit, lease_ms, consumer, wanted, waits)
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
