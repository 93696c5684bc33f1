"""A subscription of one connection: its credit, and a consumer for each of its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..auth.rules import matches
from ..broker.interface import Receipt
from ..model import Delivery, MessageFilter
from ..server.dispatcher import QueueDispatcher
from .frames import Credit, RequestId, Subscribe

if TYPE_CHECKING:
    from .connection import StreamConnection


# A delivery that the client has not settled: its consumer, receipt and size.
Unsettled = tuple["QueueConsumer", Receipt, int]


class QueueConsumer:
    """One queue of a subscription. Implements `dispatcher.PushConsumer`."""

    __slots__ = ("dispatcher", "is_removed", "label", "no_ack", "priority", "since_ms", "subscription")

    def __init__(
        self, subscription: Subscription, dispatcher: QueueDispatcher[QueueConsumer], since_ms: int
    ) -> None:
        self.since_ms = since_ms
        self.subscription = subscription
        self.dispatcher = dispatcher
        self.label = subscription.label
        self.no_ack = False
        self.priority = 0
        self.is_removed = False

    def capacity(self) -> int:
        return self.subscription.capacity()

    @property
    def limits_bytes(self) -> bool:
        return self.subscription.credit.bytes is not None

    def reserve(self, deliveries: list[Delivery]) -> None:
        subscription = self.subscription
        subscription.in_flight += len(deliveries)
        subscription.in_flight_bytes += sum([each.entry.size for each in deliveries])

    def take(self, size: int) -> bool:
        return self.subscription.take(size)

    def cancel(self, deliveries: list[Delivery]) -> None:
        self.subscription.free(len(deliveries), sum(each.entry.size for each in deliveries))

    def flush(self) -> None:
        self.subscription.connection.flush()

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.subscription.connection.deliver(self, deliveries)

    def on_queue_deleted(self) -> None:
        self.subscription.connection.on_queue_deleted(self)


class Subscription:
    """The credit of all queues of the subscription together."""

    def __init__(
        self,
        connection: StreamConnection,
        request: Subscribe,
        label: str,
        lease_ms: int | None,
        wanted: MessageFilter | None,
    ) -> None:
        self.connection = connection
        self.id: RequestId = request.sub
        self.pattern = request.pattern
        self.wanted = wanted
        self.label = label
        self.lease_ms = lease_ms  # None: that of the queue
        self.keeps_leases = request.keep  # when the connection ends
        self.consumers: dict[str, QueueConsumer] = {}  # by queue key
        self.in_flight = 0
        self.in_flight_bytes = 0
        self._credit = request.credit
        self._is_blocked = False  # the next message exceeds the bytes: until one is settled
        self._mean_bytes = 1024.0  # of its messages, to ask for about as many as fit

    def matches(self, name: str) -> bool:
        return self.pattern is not None and matches(self.pattern, name)

    def set_credit(self, credit: Credit) -> None:
        self._credit = credit
        self._is_blocked = False

    @property
    def credit(self) -> Credit:
        return self._credit

    def capacity(self) -> int:
        if self._is_blocked or not self.connection.can_deliver:
            return 0
        credit = self._credit
        left = credit.messages - self.in_flight
        if credit.bytes is None or left <= 0:
            return max(left, 0)
        if not self.in_flight:
            return max(1, min(left, int(credit.bytes / self._mean_bytes)))
        return min(left, int((credit.bytes - self.in_flight_bytes) / self._mean_bytes))

    def take(self, size: int) -> bool:
        """Reserve a message. A message larger than the whole credit is delivered alone."""
        limit = self._credit.bytes
        if limit is not None:
            if self.in_flight and self.in_flight_bytes + size > limit:
                self._is_blocked = True
                return False
            self._mean_bytes += (max(size, 1) - self._mean_bytes) / 8
        self.in_flight += 1
        self.in_flight_bytes += size
        return True

    def free(self, count: int, size: int) -> None:
        self.in_flight -= count
        self.in_flight_bytes -= size
        self._is_blocked = False
