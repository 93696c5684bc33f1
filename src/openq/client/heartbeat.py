"""One thread per broker that keeps leases alive while their messages are worked on."""

from __future__ import annotations

import logging
import threading
import time
from heapq import heapify, heappop, heappush

from ..errors import OpenQError
from ..model import Delivery
from .verbs import Verbs

log = logging.getLogger("openq")

_FEW = 16  # not worth a sweep


class Heartbeat:
    """Extends each lease it was given when a third of it has passed, until told to stop."""

    def __init__(self, broker: Verbs) -> None:
        self._broker = broker
        self._condition = threading.Condition()
        self._due: list[tuple[float, int]] = []
        self._held: dict[int, tuple[str, Delivery, int]] = {}  # delivery number -> queue, delivery, lease
        self._thread: threading.Thread | None = None
        self._stopped = False

    def hold(self, queue: str, delivery: Delivery) -> None:
        if not delivery.until_ms:
            return  # bound to its holder: there is nothing to extend
        lease_ms = max(delivery.until_ms - delivery.lent_ms, 1)
        with self._condition:
            if self._stopped:
                return
            self._held[delivery.number] = (queue, delivery, lease_ms)
            heappush(self._due, (time.monotonic() + lease_ms / 3000, delivery.number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openq-heartbeat", daemon=True)
                self._thread.start()
            self._condition.notify()

    def drop(self, delivery: Delivery) -> None:
        """From here on the lease ends by itself."""
        with self._condition:
            if self._held.pop(delivery.number, None) is not None:
                self._sweep()

    def _sweep(self) -> None:
        """A long lease comes due long after its message was acked: such leftovers are thrown out
        together, once they are more than half of all."""
        if len(self._due) > 2 * len(self._held) + _FEW:
            self._due = [due for due in self._due if due[1] in self._held]
            heapify(self._due)

    def halt(self) -> None:
        """Extend nothing more, without a wait for an extension that is under way."""
        with self._condition:
            self._stopped = True
            self._held.clear()
            self._condition.notify()

    def stop(self) -> None:
        self.halt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._condition.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                number = heappop(self._due)[1]
                held = self._held.get(number)
            if held is not None:
                self._extend(number, *held)

    def _extend(self, number: int, queue: str, delivery: Delivery, lease_ms: int) -> None:
        try:
            until_ms = self._broker.extend(queue, (delivery.entry.seq, number), lease_ms)
        except OpenQError as error:
            with self._condition:
                still_held = self._held.pop(number, None) is not None
            if still_held:
                log.warning("the heartbeat lost a lease in queue %r: %s", queue, error)
            return
        if until_ms != delivery.until_ms:
            delivery.until_ms = until_ms  # a server extended its own lease, and not this picture of it
        with self._condition:
            if number in self._held:
                heappush(self._due, (time.monotonic() + lease_ms / 3000, number))
