"""The unacknowledged deliveries of a channel, and how they are settled: ack, nack, reject, recover."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby, takewhile
from operator import itemgetter

from ..broker.interface import Receipt
from ..errors import OpenQError, OutOfRoom, StoreError
from ..model import Delivery
from .channel_context import ChannelContext
from .consumer import AmqpConsumer
from .errors import PRECONDITION_FAILED, AmqpError

# A verb of the broker that settles deliveries of one queue: ack, reject, or nack without a delay.
SettleAction = Callable[[str, list[Receipt]], object]
# The consumer (None for basic.get), the key of the queue, and the delivery.
UnackedDelivery = tuple["AmqpConsumer | None", str, Delivery]
_consumer_of: Callable[[UnackedDelivery], AmqpConsumer | None] = itemgetter(0)


class UnackedDeliveries:
    """By delivery tag. Tags rise, and the dict keeps their order."""

    def __init__(self, channel: ChannelContext) -> None:
        self._channel = channel
        self._connection = channel.connection
        self.by_tag: dict[int, UnackedDelivery] = {}
        self.next_tag = 1

    def __len__(self) -> int:
        return len(self.by_tag)

    def new_tag(self) -> int:
        self.next_tag += 1
        return self.next_tag - 1

    def up_to(self, tag: int, multiple: bool) -> list[int]:
        """The tags that an ack or nack means."""
        if not multiple:
            return [tag]
        if not tag:
            return list(self.by_tag)
        if tag not in self.by_tag:
            raise _unknown(tag)
        return list(takewhile(lambda each: each <= tag, self.by_tag))

    def settle(self, tags: Iterable[int], action: SettleAction) -> None:
        """Remove these deliveries, and settle them in the broker, queue by queue."""
        pop = self.by_tag.pop
        last = ""
        receipts: list[Receipt] = []
        groups: dict[str, list[Receipt]] = {}
        taken: dict[int, UnackedDelivery] = {}
        unknown: int | None = None
        for tag in tags:
            found = pop(tag, None)
            if found is None:
                unknown = tag
                break
            taken[tag] = found
            _, queue_key, delivery = found
            if queue_key != last:
                last = queue_key
                receipts = groups.setdefault(queue_key, [])
            receipts.append((delivery.entry.seq, delivery.number))
        for queue_key, group in groups.items():
            try:
                action(queue_key, group)
            except (OutOfRoom, StoreError):
                self.restore(taken)  # the disk is full, or Redis unreachable: they stay in flight
                raise
            except OpenQError:
                continue  # the queue is deleted, and its messages with it
        to_dispatch = self._connection.to_dispatch
        for consumer, deliveries in groupby(taken.values(), _consumer_of):
            if consumer is not None:
                count = sum(1 for _ in deliveries)
                consumer.unacked -= count
                consumer.channel.in_flight -= count
                if not consumer.is_removed:
                    to_dispatch[consumer.dispatcher] = None
        if unknown is not None:
            raise _unknown(unknown)

    def take(self, tags: Iterable[int], into: dict[int, UnackedDelivery]) -> None:
        """Remove these deliveries without settling them."""
        for tag in tags:
            found = self.by_tag.pop(tag, None)
            if found is None:
                raise _unknown(tag)
            into[tag] = found

    def restore(self, deliveries: dict[int, UnackedDelivery]) -> None:
        """Undo a removal; the order of the tags is kept."""
        self.by_tag.update(deliveries)
        self.by_tag = dict(sorted(self.by_tag.items()))

    def release(self) -> None:
        """Requeue everything, marked as redelivered: the channel ends."""
        groups: dict[str, list[Receipt]] = {}
        for _, queue_key, delivery in self.by_tag.values():
            groups.setdefault(queue_key, []).append((delivery.entry.seq, delivery.number))
        self.by_tag.clear()
        for queue_key, receipts in groups.items():
            self._channel.server.dispatchers.hub.requeue(queue_key, receipts)


def _unknown(tag: int) -> AmqpError:
    return AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
