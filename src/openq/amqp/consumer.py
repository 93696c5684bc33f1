"""One AMQP consumer, as its dispatcher and its channel see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..model import Delivery
from ..server.dispatcher import UNLIMITED, QueueDispatcher

if TYPE_CHECKING:
    from .delivery_properties import DeliveryRoute


class ConsumerChannel(Protocol):
    """The channel of a consumer."""

    in_flight: int  # unsettled deliveries of all its consumers

    def capacity(self) -> int: ...
    def flush(self) -> None: ...
    def deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None: ...
    def on_queue_deleted(self, consumer: AmqpConsumer) -> None: ...


class AmqpConsumer:
    __slots__ = (
        "arguments",
        "channel",
        "dispatcher",
        "exclusive",
        "is_removed",
        "label",
        "limits_bytes",
        "no_ack",
        "prefetch",
        "priority",
        "routes",
        "since_ms",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        channel: ConsumerChannel,
        dispatcher: QueueDispatcher[AmqpConsumer],
        tag: str,
        label: str,
        *,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: bytes,
        since_ms: int,
    ) -> None:
        self.channel = channel
        self.dispatcher = dispatcher
        self.tag = tag
        self.label = label
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.prefetch = prefetch  # 0: unlimited
        self.arguments = arguments  # encoded: a decoded table may take 30 times the memory
        self.since_ms = since_ms
        self.unacked = 0
        self.is_removed = False
        self.limits_bytes = False  # prefetch_size is not supported
        self.routes: dict[tuple[str, str] | None, DeliveryRoute] = {}

    def capacity(self) -> int:
        if self.no_ack:
            return UNLIMITED if self.channel.capacity() else 0
        own = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(own, self.channel.capacity()) if own > 0 else 0

    def reserve(self, deliveries: list[Delivery]) -> None:
        self._reserve(len(deliveries))

    def take(self, size: int) -> bool:
        self._reserve(1)
        return True

    def cancel(self, deliveries: list[Delivery]) -> None:
        self._reserve(-len(deliveries))

    def _reserve(self, count: int) -> None:
        if not self.no_ack:
            self.unacked += count
            self.channel.in_flight += count

    def flush(self) -> None:
        self.channel.flush()

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.channel.deliver(self, deliveries)

    def on_queue_deleted(self) -> None:
        self.channel.on_queue_deleted(self)
