"""Distributes the messages of one queue among its AMQP consumers: by priority, in turn, within the prefetch.

All consumers of a queue share one `Waiter` of the broker, so that they take turns message by message even
when many messages arrive at once. Everything here runs on the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..broker.interface import Receipt
from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError, OutOfRoom, QueueNotFound, StoreError
from ..model import NO_DEADLINE, Delivery
from ..names import split_name
from ..server.context import ServerContext

if TYPE_CHECKING:
    from .delivery_properties import DeliveryRoute

MAX_BATCH = 500  # messages taken from the broker at a time
MAX_BATCHES = 4  # in a row, before the loop runs other work
MAX_BATCH_BYTES = 4 * 1024 * 1024  # in memory at once; a single message may be larger
UNLIMITED = 1 << 30
RETRY_S = 0.5

log = logging.getLogger("openq.amqp")


class ConsumerChannel(Protocol):
    """The channel of a consumer, as a dispatcher uses it."""

    in_flight: int  # unsettled deliveries of all its consumers

    def capacity(self) -> int: ...
    def flush(self) -> None: ...
    def deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None: ...
    def on_queue_deleted(self, consumer: AmqpConsumer) -> None: ...


class DispatcherHost(Protocol):
    """The server, as a dispatcher uses it."""

    context: ServerContext

    def deliveries_ready(self, dispatcher: QueueDispatcher, deliveries: list[Delivery]) -> None:
        """Called with the broker's lock held, in any thread."""

    def remove_dispatcher(self, dispatcher: QueueDispatcher) -> None: ...
    def requeue_later(self, queue_key: str, receipts: list[Receipt]) -> None: ...
    def is_leader(self, dispatcher: QueueDispatcher) -> bool:
        """Whether no other server has an earlier consumer of the queue."""


class AmqpConsumer:
    __slots__ = (
        "arguments",
        "channel",
        "dispatcher",
        "exclusive",
        "is_removed",
        "label",
        "no_ack",
        "prefetch",
        "priority",
        "routes",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        channel: ConsumerChannel,
        dispatcher: QueueDispatcher,
        tag: str,
        label: str,
        *,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: bytes,
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
        self.unacked = 0
        self.is_removed = False
        self.routes: dict[tuple[str, str] | None, DeliveryRoute] = {}

    def capacity(self) -> int:
        if self.no_ack:
            return UNLIMITED if self.channel.capacity() else 0
        own = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(own, self.channel.capacity()) if own > 0 else 0

    def reserve(self, count: int) -> None:
        """Count deliveries that are on their way, until they are settled."""
        if not self.no_ack:
            self.unacked += count
            self.channel.in_flight += count


class QueueDispatcher:
    """One queue with AMQP consumers."""

    def __init__(self, host: DispatcherHost, queue_key: str, single_active: bool) -> None:
        self.context = host.context
        self._host = host
        self.queue_key = queue_key
        self.account, self.queue = split_name(queue_key)
        self.single_active = single_active
        self.since_ms = 0  # when the first consumer was added
        self.consumers: list[AmqpConsumer] = []  # by priority, then by age
        self._single_active: AmqpConsumer | None = None  # set if `single_active`
        self.count_mode = 0  # see `delivery_properties`
        self._next_index = 0
        self._is_waiting = False
        self._is_loading = False
        self._is_retrying = False
        self._unrecorded_acks: list[Receipt] = []  # of no-ack deliveries; the store is told later
        self._is_dispatching = self._is_requested = False  # see `dispatch`
        self._is_limited_by_bytes = False  # the ready messages exceed MAX_BATCH_BYTES
        self._waiter = Waiter(1, NO_DEADLINE, None, None, self._on_served)

    def add(self, consumer: AmqpConsumer) -> None:
        at = len(self.consumers)
        if not at:
            self.since_ms = self.context.now_ms()
        while at and self.consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.consumers.insert(at, consumer)

    def remove(self, consumer: AmqpConsumer) -> None:
        consumer.is_removed = True
        self.consumers.remove(consumer)
        if consumer is self._single_active:
            self._single_active = None
        if not self.consumers:
            self._stop_waiting()

    @property
    def exclusive(self) -> bool:
        return len(self.consumers) == 1 and self.consumers[0].exclusive

    def _active_consumers(self) -> list[AmqpConsumer]:
        if not self.single_active:
            return self.consumers
        if not self._host.is_leader(self):
            return []
        if self._single_active is None and self.consumers:
            self._single_active = self.consumers[0]  # until it is removed, whatever priority others have
        return [] if self._single_active is None else [self._single_active]

    def is_active(self, consumer: AmqpConsumer) -> bool:
        return not self.single_active or consumer is self._single_active

    def _capacity(self) -> int:
        capacity = 0
        for consumer in self._active_consumers():
            capacity += consumer.capacity()
            if capacity >= MAX_BATCH:
                return MAX_BATCH
        return capacity

    def _batch_limit(self) -> int:
        """How many messages to take, by their mean size."""
        _, count, size = self.context.broker.waiting(self.queue_key)
        self._is_limited_by_bytes = size > MAX_BATCH_BYTES
        return max(1, MAX_BATCH_BYTES * max(count, 1) // size) if self._is_limited_by_bytes else MAX_BATCH

    def dispatch(self) -> None:
        """Take as many messages as the consumers have capacity for, then wait for more."""
        if not self.context.broker.storage.waits:
            self._dispatch()
            return
        # One at a time while the store is waited for: messages would overtake each other.
        self._is_requested = True
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._is_requested:
                self._is_requested = False
                self._dispatch()
        finally:
            self._is_dispatching = False

    def _dispatch(self) -> None:
        taken = 0
        while not self._is_loading:
            capacity = self._capacity()
            if taken == MAX_BATCHES and capacity > 0:
                # Let the loop run other work, however fast this client reads.
                if not self._is_retrying:
                    self._is_retrying = True
                    self.context.loop.call_soon(self.context.enter, self._retry)
                return
            if capacity > 0 and taken:
                # Whether a client has capacity is known only after a write.
                for consumer in self._active_consumers():
                    consumer.channel.flush()
                capacity = self._capacity()
            if capacity <= 0:
                self._stop_waiting()
                return
            if self._is_waiting:
                self._waiter.limit = capacity
                return
            self._waiter.limit = min(capacity, self._batch_limit())
            self._waiter.consumer = self.consumers[0].label if len(self.consumers) == 1 else "amqp"
            self._is_waiting = True
            try:
                deliveries = self.context.broker.add_waiter(self.queue_key, self._waiter)
            except (QueueNotFound, Closed):
                self._is_waiting = False
                self.close()
                return
            except OpenQError as error:  # the disk is full or broken
                self._is_waiting = False
                self._retry_later(error)
                return
            if deliveries is None:
                if self._is_waiting and self._capacity() <= 0:  # it changed while the call was suspended
                    self._stop_waiting()
                return
            self._is_waiting = False
            if self._is_limited_by_bytes or self.context.broker.storage.waits:
                deliveries = self._limit_bytes(deliveries)
            self.distribute_when_durable(deliveries)
            taken += 1

    def _retry_later(self, error: OpenQError) -> None:
        if not self._is_retrying:
            log.error("queue %r: deliveries are suspended: %s", self.queue_key, error)
            self._is_retrying = True
            self.context.loop.call_later(RETRY_S, self.context.enter, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._unrecorded_acks:
            self._record_acks()
        if self.consumers:
            self.dispatch()

    def _limit_bytes(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Keep as many as may be in memory at once, and requeue the rest."""
        total = 0
        for at, delivery in enumerate(deliveries):
            total += delivery.entry.size
            if total > MAX_BATCH_BYTES and at:
                self._requeue(deliveries[at:])
                return deliveries[:at]
        return deliveries

    def _stop_waiting(self) -> None:
        if self._is_waiting and self.context.broker.remove_waiter(self.queue_key, self._waiter):
            self._is_waiting = False  # otherwise it was just served, and `on_deliveries` will be called
            if self.context.broker.storage.waits and self._capacity() > 0:
                self.dispatch()  # a consumer was added while the call was suspended

    def _on_served(self, deliveries: list[Delivery]) -> None:
        """Called with the broker's lock held, in any thread."""
        self._host.deliveries_ready(self, deliveries)

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self._is_waiting = False
        if not deliveries:
            self.close()  # the queue is deleted, or the broker is closed
            return
        is_first, self._is_dispatching = not self._is_dispatching, True
        try:
            self.distribute_when_durable(self._limit_bytes(deliveries))
        finally:
            if is_first:
                self._is_dispatching = False
        self.dispatch()

    def distribute_when_durable(self, deliveries: list[Delivery]) -> None:
        """Wait until the publishes are durable. One wait at a time keeps the messages in order."""
        location = self.context.broker.commit_location(deliveries)
        if location is None:
            self._distribute(deliveries)
            return
        self._is_loading = True

        def committed(error: OpenQError | None) -> None:
            self._is_loading = False
            if error is None:
                self._distribute(deliveries)
                self.dispatch()

        self.context.after_commit(committed, location)

    def _distribute(self, deliveries: list[Delivery]) -> None:
        """Assign everything before the store is called: consumers may be removed while that is suspended."""
        rest = self._assign(deliveries)
        if rest:
            self._requeue(rest)
        if self._unrecorded_acks:
            self._record_acks()

    def _assign(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Deliver them to the consumers; returns those without a consumer that has capacity."""
        consumers = self._active_consumers()
        if len(consumers) == 1:
            consumer = consumers[0]
            count = max(0, min(consumer.capacity(), len(deliveries)))
            rest = deliveries[count:]
            if count:
                consumer.reserve(count)
                self._deliver(consumer, deliveries[:count] if rest else deliveries)
            return rest
        rest = []
        shares: dict[AmqpConsumer, list[Delivery]] = {}
        for at, delivery in enumerate(deliveries):
            chosen = self._next_consumer(consumers, shares)
            if chosen is None:
                rest = deliveries[at:]
                break
            shares.setdefault(chosen, []).append(delivery)
            if chosen.label != delivery.consumer:
                delivery.consumer = chosen.label
            chosen.reserve(1)
        for consumer, share in shares.items():
            self._deliver(consumer, share)
        return rest

    def _next_consumer(
        self, consumers: list[AmqpConsumer], shares: dict[AmqpConsumer, list[Delivery]]
    ) -> AmqpConsumer | None:
        """The consumer with capacity that has the highest priority; among equals, in turn."""
        count = len(consumers)
        best: AmqpConsumer | None = None
        best_at = 0
        for step in range(count):
            at = (self._next_index + step) % count
            consumer = consumers[at]
            if best is not None and consumer.priority <= best.priority:
                continue
            if consumer.capacity() - (len(shares.get(consumer, ())) if consumer.no_ack else 0) > 0:
                best, best_at = consumer, at
                if consumer.priority == consumers[0].priority:
                    break  # no other has a higher priority
        if best is not None:
            self._next_index = best_at + 1
        return best

    def _deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None:
        broker = self.context.broker
        try:
            readable = broker.load(deliveries)
        except OpenQError as error:
            consumer.reserve(-len(deliveries))
            self._requeue(deliveries)
            self._retry_later(error)
            return
        if len(readable) < len(deliveries):  # the others are set aside
            consumer.reserve(len(readable) - len(deliveries))
            deliveries = readable
        if consumer.no_ack and deliveries and broker.storage.waits:
            self._unrecorded_acks += [(each.entry.seq, each.number) for each in deliveries]
        elif consumer.no_ack and deliveries:
            try:
                broker.ack(self.queue_key, [(each.entry.seq, each.number) for each in deliveries])
            except OpenQError as error:
                self._requeue(deliveries)
                self._retry_later(error)
                return
        if deliveries:
            consumer.channel.deliver(consumer, deliveries)

    def _record_acks(self) -> None:
        """Ack no-ack deliveries. If the store fails now, they are delivered again rather than lost."""
        receipts, self._unrecorded_acks = self._unrecorded_acks, []
        try:
            self.context.broker.ack(self.queue_key, receipts)
        except QueueNotFound:
            pass
        except OpenQError as error:
            self._unrecorded_acks += receipts
            self._retry_later(error)

    def _requeue(self, deliveries: list[Delivery]) -> None:
        receipts = [(each.entry.seq, each.number) for each in deliveries]
        try:
            self.context.broker.release(self.queue_key, receipts)
        except (OutOfRoom, StoreError):
            self._host.requeue_later(self.queue_key, receipts)
        except OpenQError:
            pass  # the queue is deleted, or the broker is closed

    def close(self) -> None:
        """The queue is deleted: cancel its consumers."""
        self._host.remove_dispatcher(self)
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.channel.on_queue_deleted(consumer)
