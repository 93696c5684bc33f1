"""How a thread waits for a message: without polling, and without ever losing one it was served."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ..broker.local import LocalBroker
from ..broker.waiters import Waiter
from ..errors import OpenQError
from ..model import Delivery


class Wait:
    """One wait of one thread. `cancel` ends it early, from any thread."""

    __slots__ = ("_broker", "_cancelled", "_gate", "_queue", "_served", "_waiter")

    def __init__(
        self,
        broker: LocalBroker,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._served: list[Delivery] = []
        self._cancelled = False
        # A held lock is the cheapest thing to sleep on; whoever serves us releases it.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._waiter = Waiter(limit, lease_ms, consumer, types, self._serve)

    def _serve(self, deliveries: list[Delivery]) -> None:
        self._served = deliveries
        self._gate.release()

    def look(self) -> list[Delivery]:
        """What is there now, without standing in line."""
        waiter = self._waiter
        return self._broker.receive(self._queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)

    def wait(self, timeout: float | None) -> list[Delivery]:
        """What came, or nothing when the time is up. None waits for ever."""
        broker, waiter = self._broker, self._waiter
        deliveries = broker.attend(self._queue, waiter)
        if deliveries is not None:
            return deliveries
        # Checked after we stand in line: a cancel that came before found nobody to take out of it.
        if self._cancelled and broker.leave(self._queue, waiter):
            return []
        try:
            in_time = self._gate.acquire(
                timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
            )
            if not in_time and broker.leave(self._queue, waiter):
                return []
        except BaseException:
            # Ctrl-C in the middle of a wait: what we were served meanwhile goes back.
            if not broker.leave(self._queue, waiter):
                self._give_back()
            raise
        return self._served

    def _give_back(self) -> None:
        try:
            receipts = [(delivery.entry.seq, delivery.number) for delivery in self._served]
            self._broker.release(self._queue, receipts)
        except OpenQError:
            pass  # closed meanwhile; the leases end by themselves

    def cancel(self) -> None:
        self._cancelled = True
        if self._broker.leave(self._queue, self._waiter):
            self._gate.release()
