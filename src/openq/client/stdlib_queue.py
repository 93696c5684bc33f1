"""The shape of the standard library's `queue.Queue`, over the same messages.

`get` hands out an item for as long as this process lives, as `queue.Queue` does: no visibility
timeout brings it back while it is worked on. A process that dies before `task_done`
loses nothing on a durable queue: the item is there again after the restart.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty, Full
from typing import TYPE_CHECKING, Any, cast

from ..errors import MessageNotFoundError, NotOnThisStore, QueueFull
from ..model import NO_DEADLINE
from . import checks
from .interface import OnlyInProcess

if TYPE_CHECKING:
    from .message import ReceivedMessage
    from .queues import Queue

# Listeners are called by whoever makes a change. One that makes it without telling them at
# once (an event loop) is noticed this late.
_RECHECK_S = 0.5


class StdlibQueue:
    def _init_standard(self) -> None:
        self._taken: dict[int, deque[ReceivedMessage]] = {}  # thread -> what it got and has not done
        self._taken_lock = threading.Lock()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. With a `maxsize` it waits for room, or raises `queue.Full`."""
        this = cast("Queue", self)
        timeout = checks.timeout_or_none(timeout)
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        try:
            this.publish(item)
            return
        except QueueFull:
            if not block or timeout == 0:
                raise Full from None
        with _ChangeListener(this, timeout) as changes:
            while True:
                try:
                    this.publish(item)
                    return
                except QueueFull:
                    if not changes.wait():
                        raise Full from None

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item itself, not a message. Raises `queue.Empty` when the time is up."""
        this = cast("Queue", self)
        timeout = checks.timeout_or_none(timeout)
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        wait = this._wait_for(1, lease_ms=NO_DEADLINE)
        received = this._received(wait, timeout if block else 0)
        if not received:
            raise Empty
        with self._taken_lock:
            self._taken.setdefault(threading.get_ident(), deque()).append(received[0])
        return received[0].body

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def task_done(self) -> None:
        """The oldest item that this thread got is finished; or, if it got none, anybody's oldest."""
        with self._taken_lock:
            own = threading.get_ident()
            thread = own if own in self._taken else next(iter(self._taken), None)
            if thread is None:
                raise ValueError("task_done() called too many times")
            message = self._taken[thread].popleft()
            if not self._taken[thread]:
                del self._taken[thread]
        try:
            message.ack()
        except MessageNotFoundError:
            pass  # purged meanwhile: as done as can be

    def join(self) -> None:
        """Wait until everything that was put in is done: nothing waits and nobody holds anything."""
        this = cast("Queue", self)
        with _ChangeListener(this, None) as changes:
            while this._unfinished():
                changes.wait()

    def _unfinished(self) -> int:
        stats = cast("Queue", self).stats()
        return stats.ready + stats.delayed + stats.in_flight

    @property
    def unfinished_tasks(self) -> int:
        return self._unfinished()

    def qsize(self) -> int:
        return len(cast("Queue", self))

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        maxsize = cast("Queue", self).maxsize
        return 0 < maxsize <= self.qsize()


class _ChangeListener:
    """Sleeps until something happens in the queue; costs the queue nothing while nobody sleeps."""

    def __init__(self, queue: Queue, timeout: float | None) -> None:
        self._queue = queue
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._changed = threading.Event()

    def __enter__(self) -> _ChangeListener:
        try:
            self._stop = self._queue.subscribe(lambda event: self._changed.set())
        except (OnlyInProcess, NotOnThisStore):
            self._stop = self._changed.clear  # nobody tells us of changes elsewhere: we look now and then
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def wait(self) -> bool:
        """False when the time is up."""
        left_s = _RECHECK_S
        if self._deadline is not None:
            left_s = min(left_s, self._deadline - time.monotonic())
            if left_s <= 0:
                return False
        self._changed.wait(left_s)
        self._changed.clear()
        return True
