"""Waiters of each queue: threads, long polls, consumers.

The call that makes a message available serves the waiters, under the broker's lock. A waiter gets its
deliveries directly, so no other consumer can take them between the wake-up and the receive. n messages wake n
waiters, no more and no fewer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..model import Delivery, MessageFilter


class Waiter:
    """One call that waits.

    `deliver` runs with the broker's lock held: it must only pass the deliveries on. A remote store may call
    `on_ready` instead, in any thread, when there may be messages: the waiter is removed then, and added again
    to get them.
    """

    __slots__ = (
        "consumer",
        "deliver",
        "lease_ms",
        "limit",
        "max_bytes",
        "notify_only",
        "on_ready",
        "seen_empty",
        "wanted",
    )

    def __init__(
        self,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        wanted: MessageFilter | None,
        deliver: Callable[[list[Delivery]], None],
        notify_only: bool = False,
        on_ready: Callable[[], None] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.limit = limit
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.wanted = wanted
        self.deliver = deliver
        self.notify_only = notify_only  # only notify that there are messages: it receives none this way
        self.on_ready = on_ready
        self.max_bytes = max_bytes  # about the size of a batch that a remote store delivers to it
        self.seen_empty: object = None  # the store's note of when it found no message for this waiter


class Waiters:
    def __init__(self) -> None:
        self._lines: dict[str, deque[Waiter]] = {}

    def add(self, queue: str, waiter: Waiter) -> None:
        self._lines.setdefault(queue, deque()).append(waiter)

    def remove(self, queue: str, waiter: Waiter) -> bool:
        """False if it was served meanwhile."""
        line = self._lines.get(queue)
        if line is None or waiter not in line:
            return False
        line.remove(waiter)
        if not line:
            del self._lines[queue]
        return True

    def count(self, queue: str) -> int:
        return len(self._lines.get(queue, ()))

    def count_unselective(self, queue: str) -> int:
        """Those that take any message. The others were offered all that is ready, and did not select it."""
        return sum(waiter.wanted is None for waiter in self._lines.get(queue, ()))

    def serve(self, queue: str, receive: Callable[[Waiter], list[Delivery]]) -> None:
        """First come, first served, until a waiter gets nothing.

        A waiter that selects messages may get nothing where the next one does. Such a waiter is skipped and
        keeps its place.
        """
        line = self._lines.get(queue)
        passed: list[Waiter] = []
        while line:
            waiter = line.popleft()
            if waiter.notify_only:
                waiter.deliver([])
                continue
            deliveries = receive(waiter)
            if deliveries:
                waiter.deliver(deliveries)
                continue
            passed.append(waiter)
            if waiter.wanted is None:
                break
        if line is not None:
            line.extendleft(reversed(passed))
            if not line:
                del self._lines[queue]

    def drain(self, queue: str | None = None) -> list[Waiter]:
        """Remove and return all waiters, or those of one queue (the broker closes, the queue is deleted)."""
        if queue is not None:
            return list(self._lines.pop(queue, ()))
        everyone = [waiter for line in self._lines.values() for waiter in line]
        self._lines.clear()
        return everyone
