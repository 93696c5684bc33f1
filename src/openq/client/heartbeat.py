"""One thread per broker that keeps leases alive while their messages are worked on."""

from __future__ import annotations

import logging
import math
import threading
import time
from heapq import heapify, heappop, heappush
from itertools import count

from ..errors import Closed, MessageNotFoundError, OpenQError, QueueNotFound, VisibilityTimeoutExpired
from ..model import Delivery
from .interface import LibraryBroker

log = logging.getLogger("openq")

_MIN_SWEEP = 16  # not worth a sweep
_LEASE_LOST = (VisibilityTimeoutExpired, MessageNotFoundError, QueueNotFound, Closed)
_HeldLease = tuple[str, Delivery, int]  # queue, delivery, length of the lease in ms


class Heartbeat:
    """Extends each lease it was given when a third of it has passed, until told to stop.

    Most messages are settled long before: for them it costs a lock and an entry, and wakes no thread.
    """

    def __init__(self, broker: LibraryBroker) -> None:
        self._broker = broker
        self._condition = threading.Condition()
        self._due: list[tuple[float, int]] = []  # when a hold is to be extended, and its number
        self._held: dict[int, _HeldLease] = {}
        self._numbers: dict[int, int] = {}  # identity of a delivery -> number of its hold
        self._count = count(1)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._wakes_at = 0.0  # when the thread looks again by itself

    def hold(self, queue: str, delivery: Delivery) -> None:
        lease_ms = delivery.until_ms - delivery.delivered_ms
        if lease_ms <= 0:
            return  # bound to its holder, or over already: there is nothing to extend
        due = time.monotonic() + lease_ms / 3000
        with self._condition:
            if self._stopped:
                return
            number = next(self._count)
            self._numbers[id(delivery)] = number
            self._held[number] = (queue, delivery, lease_ms)
            heappush(self._due, (due, number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openq-heartbeat", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._condition.notify()

    def drop(self, delivery: Delivery) -> None:
        """From here on the lease ends by itself."""
        with self._condition:
            number = self._numbers.pop(id(delivery), None)
            if number is not None:
                self._held.pop(number, None)
                self._sweep()

    def _sweep(self) -> None:
        """A long lease comes due long after its message was acked: such leftovers are thrown out
        together, once they are more than half of all."""
        if len(self._due) > 2 * len(self._held) + _MIN_SWEEP:
            self._due = [due for due in self._due if due[1] in self._held]
            heapify(self._due)

    def halt(self) -> None:
        """Extend nothing more, without a wait for an extension that is under way."""
        with self._condition:
            self._stopped = True
            self._held.clear()
            self._numbers.clear()
            self._condition.notify()

    def stop(self) -> None:
        self.halt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._wakes_at = self._due[0][0] if self._due else math.inf
                    self._condition.wait(self._due[0][0] - time.monotonic() if self._due else None)
                self._wakes_at = 0.0
                if self._stopped:
                    return
                number = heappop(self._due)[1]
                held = self._held.get(number)
            if held is not None:
                wait_s = self._extend(number, *held)
                with self._condition:
                    if number in self._held:
                        heappush(self._due, (time.monotonic() + wait_s, number))

    def _extend(self, number: int, queue: str, delivery: Delivery, lease_ms: int) -> float:
        """Seconds until the next try."""
        try:
            until_ms = self._broker.extend(queue, (delivery.entry.seq, delivery.number), lease_ms)
        except OpenQError as error:
            is_lost = isinstance(error, _LEASE_LOST)
            with self._condition:
                still_held = number in self._held
                if is_lost:
                    self._held.pop(number, None)
            if still_held:
                what = "lost" if is_lost else "could not extend"
                log.warning("the heartbeat %s a lease in queue %r: %s", what, queue, error)
            return lease_ms / 9000  # while the lease lasts, whatever stood in the way may pass
        if until_ms != delivery.until_ms:
            delivery.until_ms = until_ms  # a server extended its own lease, and not this picture of it
        return lease_ms / 3000
