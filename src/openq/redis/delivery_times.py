"""The times of messages that this process delivered.

A process knows when a message was sent and delivered if it delivered the message itself. It keeps both for
its last deliveries, so that Redis need not be asked at an ack. An ack of a message that another server
delivered is counted, but not timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine.times import MessageTimes
from ..histograms import Histogram
from ..model import Delivery
from .registry import CachedQueue

MAX_REMEMBERED = 100_000  # deliveries whose ack can be timed


class DeliveryTimes:
    """Without a lock: an entry that two threads miss is not timed."""

    def __init__(self) -> None:
        self.times = MessageTimes()
        self._delivered: dict[int, tuple[int, int]] = {}  # sequence -> sent, delivered

    def delivered(self, view: CachedQueue, deliveries: Sequence[Delivery]) -> None:
        known = self._delivered
        for each in deliveries:
            known[each.entry.seq] = each.entry.sent_ms, each.delivered_ms
        waits = [each.delivered_ms - each.entry.sent_ms for each in deliveries if each.count == 1]
        if waits:
            self.times.delivered(view.number, waits)
        while len(known) > MAX_REMEMBERED:
            try:
                known.pop(next(iter(known)), None)
            except (StopIteration, RuntimeError):  # another thread changed it
                break

    def acked(self, view: CachedQueue, seqs: Iterable[int], now_ms: int, total: Histogram) -> None:
        """`total` is the histogram of the protocol that acked them."""
        self.times.total = total
        for seq in seqs:
            found = self._delivered.pop(seq, None)
            if found is not None:
                self.times.acked_one(view.number, *found, now_ms)
