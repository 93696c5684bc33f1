"""The interface of the standard library's `queue.Queue`, over the same messages.

An item from `get` belongs to this process until `task_done`: no visibility timeout returns it, as with
`queue.Queue`. If the process dies before `task_done`, a durable queue delivers the item again after the
restart.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty, Full
from typing import TYPE_CHECKING, Any

from ..errors import MessageNotFoundError, OpenQError, QueueFull
from ..model import NO_DEADLINE
from . import checks
from .parts import QueuePart
from .receiving import collect

if TYPE_CHECKING:
    from .message import ReceivedMessage
    from .queues import Queue

# Stores that cannot report changes (a server, Redis) are polled at this interval.
_RECHECK_S = 0.5


class TakenItems:
    """The items that `get` returned and `task_done` has not finished, by thread."""

    def __init__(self) -> None:
        self._by_thread: dict[int, deque[ReceivedMessage]] = {}
        self._lock = threading.Lock()

    def add(self, message: ReceivedMessage) -> None:
        with self._lock:
            self._by_thread.setdefault(threading.get_ident(), deque()).append(message)

    def pop(self) -> ReceivedMessage:
        """The oldest item of this thread; if it has none, the oldest of another thread."""
        with self._lock:
            own = threading.get_ident()
            thread = own if own in self._by_thread else next(iter(self._by_thread), None)
            if thread is None:
                raise ValueError("task_done() called too many times")
            message = self._by_thread[thread].popleft()
            if not self._by_thread[thread]:
                del self._by_thread[thread]
        return message


class StdlibQueue(QueuePart):
    __slots__ = ()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. With a `maxsize` it waits for room, or raises `queue.Full`."""
        timeout = _timeout(timeout)
        try:
            self.queue.publish(item)
            return
        except QueueFull:
            if not block or timeout == 0:
                raise Full from None
        with _ChangeListener(self.queue, timeout) as changes:
            while True:
                try:
                    self.queue.publish(item)
                    return
                except QueueFull:
                    if not changes.wait():
                        raise Full from None

    def put_nowait(self, item: Any) -> None:
        """`put` without waiting for room."""
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item itself, not a message. Raises `queue.Empty` if none came within `timeout`."""
        timeout = _timeout(timeout)
        wait = self.core.new_wait(1, lease_ms=NO_DEADLINE)
        received = collect(self.queue, wait, timeout if block else 0)
        if not received:
            raise Empty
        self.queue.taken.add(received[0])
        return received[0].body

    def get_nowait(self) -> Any:
        """`get` without waiting for an item."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Finish the oldest item that this thread got; if it got none, the oldest of another thread."""
        message = self.queue.taken.pop()
        try:
            message.ack()
        except MessageNotFoundError:
            pass  # purged in the meantime

    def join(self) -> None:
        """Wait until every item is done: no message is ready, delayed or in flight."""
        with _ChangeListener(self.queue, None) as changes:
            while self.unfinished():
                changes.wait()

    def unfinished(self) -> int:
        stats = self.queue.stats()
        return stats.ready + stats.delayed + stats.in_flight

    def qsize(self) -> int:
        """The number of ready and delayed messages."""
        return len(self.queue)

    def empty(self) -> bool:
        return len(self.queue) == 0

    def full(self) -> bool:
        return 0 < self.queue.maxsize <= len(self.queue)


def _timeout(timeout: float | None) -> float | None:
    timeout = checks.timeout_or_none(timeout)
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return timeout


class _ChangeListener:
    """Waits for the next change of a queue. Costs the queue nothing while it is not in use."""

    def __init__(self, queue: Queue, timeout: float | None) -> None:
        self._queue = queue
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._changed = threading.Event()

    def __enter__(self) -> _ChangeListener:
        try:
            self._stop = self._queue.subscribe(lambda event: self._changed.set())
        except OpenQError:
            self._stop = self._changed.clear  # not permitted: `wait` polls instead
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def wait(self) -> bool:
        """False when the timeout is over."""
        left_s = _RECHECK_S
        if self._deadline is not None:
            left_s = min(left_s, self._deadline - time.monotonic())
            if left_s <= 0:
                return False
        self._changed.wait(left_s)
        self._changed.clear()
        return True
