"""One thread per broker that extends leases while their messages are processed."""

from __future__ import annotations

import logging
import math
import threading
import time
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from ..broker.interface import only
from ..errors import Closed, MessageNotFoundError, OpenQError, QueueNotFound, VisibilityTimeoutExpired
from ..model import Delivery
from .interface import LibraryBroker

log = logging.getLogger("openq")

_MIN_SWEEP = 16  # fewer entries are not worth a sweep
_LEASE_LOST = (VisibilityTimeoutExpired, MessageNotFoundError, QueueNotFound, Closed)


class Settleable(Protocol):
    """A message that its consumer settles without a word to the heartbeat."""

    @property
    def settled(self) -> bool: ...


# Queue, delivery, length of the lease in ms, and the message, if the caller may settle it before `drop`.
_HeldLease = tuple[str, Delivery, int, Settleable | None]


class Heartbeat:
    """Extends each held lease when a third of it has passed, until it is dropped.

    Most messages are settled long before: for them it costs a lock and an entry, and wakes no thread.
    """

    def __init__(self, broker: LibraryBroker) -> None:
        self._broker = broker
        self._condition = threading.Condition()
        self._due: list[tuple[float, int]] = []  # when a lease is to be extended, and its number
        self._held: dict[int, _HeldLease] = {}
        self._numbers: dict[int, int] = {}  # identity of a delivery -> number of its lease
        self._count = count(1)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._wakes_at = 0.0  # when the thread wakes up by itself

    def hold(self, queue: str, delivery: Delivery, message: Settleable | None = None) -> None:
        """With `message`, its lease is dropped when it comes due and the message is settled."""
        lease_ms = delivery.until_ms - delivery.delivered_ms
        if lease_ms <= 0:
            return  # without deadline, or over already: there is nothing to extend
        due = time.monotonic() + lease_ms / 3000
        with self._condition:
            if self._stopped:
                return
            number = next(self._count)
            self._numbers[id(delivery)] = number
            self._held[number] = (queue, delivery, lease_ms, message)
            heappush(self._due, (due, number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openq-heartbeat", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._condition.notify()

    def drop(self, delivery: Delivery) -> None:
        """Stop extending a lease."""
        with self._condition:
            number = self._numbers.pop(id(delivery), None)
            if number is not None:
                self._held.pop(number, None)
                self._sweep()

    def _sweep(self) -> None:
        """Remove the entries of dropped leases once they are more than half of all: long leases come due
        long after their messages were acked."""
        if len(self._due) > 2 * len(self._held) + _MIN_SWEEP:
            self._due = [due for due in self._due if due[1] in self._held]
            heapify(self._due)

    def halt(self) -> None:
        """Extend nothing more, without waiting for an extension under way."""
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
                if held is not None and _is_settled(held):
                    self._numbers.pop(id(held[1]), None)
                    del self._held[number]
                    held = None
            if held is not None:
                wait_s = self._extend(number, held)
                with self._condition:
                    if number in self._held:
                        heappush(self._due, (time.monotonic() + wait_s, number))

    def _extend(self, number: int, held: _HeldLease) -> float:
        """Seconds until the next try."""
        queue, delivery, lease_ms, _ = held
        try:
            until_ms = only(self._broker.extend(queue, [(delivery.entry.seq, delivery.number)], lease_ms))
        except OpenQError as error:
            is_lost = isinstance(error, _LEASE_LOST)
            with self._condition:
                still_held = number in self._held and not _is_settled(held)
                if is_lost:
                    self._held.pop(number, None)
            if still_held:
                what = "lost" if is_lost else "could not extend"
                log.warning("the heartbeat %s a lease in queue %r: %s", what, queue, error)
            return lease_ms / 9000  # the failure may be transient: try again while the lease lasts
        if until_ms != delivery.until_ms:
            delivery.until_ms = until_ms  # a server extended its own lease, not this copy
        return lease_ms / 3000


def _is_settled(held: _HeldLease) -> bool:
    return held[3] is not None and held[3].settled
