"""How long messages wait, are processed, and take from publish to ack. Measured only if a server asks for it.

Times are differences of the `now_ms` that the engine is given anyway. A message that moves to another queue
starts anew there. A redelivery is not a second wait: the wait of a message ends with its first delivery.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..histograms import Histogram
from ..model import Delivery

MS = 0.001


class QueueTimes:
    """Sums of one queue, since this process started."""

    __slots__ = ("acked", "processing_ms", "total_ms", "wait_ms", "waited")

    def __init__(self) -> None:
        self.waited = 0  # first deliveries
        self.wait_ms = 0
        self.acked = 0
        self.processing_ms = 0
        self.total_ms = 0


class MessageTimes:
    """Histograms of all queues. `total` is that of the protocol whose acks come next: see `of_protocol`."""

    __slots__ = ("processing", "queues", "total", "totals", "wait")

    def __init__(self) -> None:
        self.wait = Histogram(MS)
        self.processing = Histogram(MS)
        self.totals: dict[str, Histogram] = {}
        self.total = self.of_protocol("other")
        self.queues: dict[int, QueueTimes] = {}  # by the number of the queue

    def of_protocol(self, name: str) -> Histogram:
        """The histogram of a protocol from publish to ack. A protocol sets `total` to it before it acks."""
        return self.totals.setdefault(name, Histogram(MS))

    def queue(self, number: int) -> QueueTimes:
        found = self.queues.get(number)
        if found is None:
            found = self.queues[number] = QueueTimes()
        return found

    def delivered_one(self, number: int, wait_ms: int) -> None:
        self.wait.observe(wait_ms)
        of_queue = self.queues.get(number) or self.queue(number)
        of_queue.waited += 1
        of_queue.wait_ms += wait_ms

    def delivered(self, number: int, waits_ms: Sequence[int]) -> None:
        """First deliveries of one call."""
        self.wait.observe_many(waits_ms)
        of_queue = self.queues.get(number) or self.queue(number)
        of_queue.waited += len(waits_ms)
        of_queue.wait_ms += sum(waits_ms)

    def acked_one(self, number: int, sent_ms: int, delivered_ms: int, now_ms: int) -> None:
        total_ms = now_ms - sent_ms
        processing_ms = now_ms - delivered_ms
        self.total.observe(total_ms)
        self.processing.observe(processing_ms)
        of_queue = self.queues.get(number) or self.queue(number)
        of_queue.acked += 1
        of_queue.total_ms += total_ms
        of_queue.processing_ms += processing_ms

    def acked(self, number: int, deliveries: Collection[Delivery], now_ms: int) -> None:
        totals_ms = [now_ms - delivery.entry.sent_ms for delivery in deliveries]
        processing_ms = [now_ms - delivery.delivered_ms for delivery in deliveries]
        self.total.observe_many(totals_ms)
        self.processing.observe_many(processing_ms)
        of_queue = self.queues.get(number) or self.queue(number)
        of_queue.acked += len(totals_ms)
        of_queue.total_ms += sum(totals_ms)
        of_queue.processing_ms += sum(processing_ms)
