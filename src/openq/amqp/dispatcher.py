"""Out of a queue to its AMQP consumers: fairly, by priority, and never more than each can take.

All consumers of a queue share one place in the broker's line, so that they take turns message by message
however many messages come at once. Everything here runs on the loop.
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
MAX_BATCHES = 4  # of them before others have their turn
MAX_BATCH_BYTES = 4 * 1024 * 1024  # and no more than this, or one: they are all in memory at once
UNLIMITED = 1 << 30
RETRY_S = 0.5

log = logging.getLogger("openq.amqp")


class ConsumerChannel(Protocol):
    """The channel of a consumer, as an outlet sees it."""

    in_flight: int  # deliveries of all its consumers that are not settled

    def capacity(self) -> int: ...
    def flush(self) -> None: ...
    def deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None: ...
    def on_queue_deleted(self, consumer: AmqpConsumer) -> None: ...


class DispatcherHost(Protocol):
    """The door, as an outlet sees it."""

    context: ServerContext

    def deliveries_ready(self, dispatcher: QueueDispatcher, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""

    def remove_dispatcher(self, dispatcher: QueueDispatcher) -> None: ...
    def requeue_later(self, queue_key: str, receipts: list[Receipt]) -> None: ...
    def is_leader(self, dispatcher: QueueDispatcher) -> bool:
        """Whether no other server has a consumer of it that goes before."""


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
        self.prefetch = prefetch  # 0 = as much as it likes
        self.arguments = arguments  # encoded: a table of many small values takes 30 times as much memory
        self.unacked = 0
        self.is_removed = False
        self.routes: dict[tuple[str, str] | None, DeliveryRoute] = {}

    def capacity(self) -> int:
        if self.no_ack:
            return UNLIMITED if self.channel.capacity() else 0
        own = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(own, self.channel.capacity()) if own > 0 else 0

    def reserve(self, count: int) -> None:
        """Room that is spoken for: by deliveries on their way, and until they are settled."""
        if not self.no_ack:
            self.unacked += count
            self.channel.in_flight += count


class QueueDispatcher:
    """One queue with consumers. `full` is the engine's name."""

    def __init__(self, host: DispatcherHost, queue_key: str, single_active: bool) -> None:
        self.context = host.context
        self._host = host
        self.queue_key = queue_key
        self.account, self.queue = split_name(queue_key)
        self.single_active = single_active
        self.since_ms = 0  # when the first of them came
        self.consumers: list[AmqpConsumer] = []  # by priority, then in the order they came
        self._single_active: AmqpConsumer | None = None  # of a queue with a single active one
        self.count_mode = 0  # see `outgoing`
        self._next_index = 0
        self._is_waiting = False
        self._is_loading = False
        self._is_retrying = False
        self._unrecorded_acks: list[Receipt] = []  # given for good, and the store does not know it yet
        self._is_dispatching = self._is_requested = False  # see `pump`
        self._is_limited_by_bytes = False  # what waits is more than may be taken at once
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
        return len(self.consumers) == 1 and self.consumers[0].exclusive  # where one is, there is no other

    def _active_consumers(self) -> list[AmqpConsumer]:
        if not self.single_active:
            return self.consumers
        if not self._host.is_leader(self):
            return []
        if self._single_active is None and self.consumers:
            self._single_active = self.consumers[0]  # it stays until it goes, whoever comes
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
        """How many to take, going by the mean size of what waits."""
        count, size = self.context.broker.waiting(self.queue_key)
        self._is_limited_by_bytes = size > MAX_BATCH_BYTES
        return max(1, MAX_BATCH_BYTES * max(count, 1) // size) if self._is_limited_by_bytes else MAX_BATCH

    def dispatch(self) -> None:
        """Take what is there, as much as the consumers have room for; then stand in line."""
        if not self.context.broker.waits:
            self._dispatch()
            return
        # While the store is waited for nobody else takes from it: messages would overtake each other.
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
                # Others have their turn on the loop, however fast this client reads.
                if not self._is_retrying:
                    self._is_retrying = True
                    self.context.loop.call_soon(self.context.enter, self._retry)
                return
            if capacity > 0 and taken:
                # Only what was written tells whether a client takes it.
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
            except OpenQError as error:  # a disk that is full to the last byte, or broken
                self._is_waiting = False
                self._retry_later(error)
                return
            if deliveries is None:
                if self._is_waiting and self._capacity() <= 0:  # a broker that waits: it was otherwise before
                    self._stop_waiting()
                return
            self._is_waiting = False
            if self._is_limited_by_bytes or self.context.broker.waits:
                deliveries = self._limit_bytes(deliveries)
            self.distribute_when_durable(deliveries)
            taken += 1

    def _retry_later(self, error: OpenQError) -> None:
        if not self._is_retrying:
            log.error("queue %r: nothing can be handed out now: %s", self.queue_key, error)
            self._is_retrying = True
            self.context.loop.call_later(RETRY_S, self.context.enter, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._unrecorded_acks:
            self._record_acks()
        if self.consumers:
            self.dispatch()

    def _limit_bytes(self, deliveries: list[Delivery]) -> list[Delivery]:
        """As many of them as may be in memory at once. The rest goes back to its place."""
        total = 0
        for at, delivery in enumerate(deliveries):
            total += delivery.entry.size
            if total > MAX_BATCH_BYTES and at:
                self._requeue(deliveries[at:])
                return deliveries[:at]
        return deliveries

    def _stop_waiting(self) -> None:
        if self._is_waiting and self.context.broker.remove_waiter(self.queue_key, self._waiter):
            self._is_waiting = False  # else it was served in this very moment, and `arrived` is on its way
            if self.context.broker.waits and self._capacity() > 0:
                self.dispatch()  # somebody came meanwhile, and took it for granted that we stood in line

    def _on_served(self, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        self._host.deliveries_ready(self, deliveries)

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self._is_waiting = False
        if not deliveries:
            self.close()  # the queue is gone, or the broker closes
            return
        is_first, self._is_dispatching = not self._is_dispatching, True
        try:
            self.distribute_when_durable(self._limit_bytes(deliveries))
        finally:
            if is_first:
                self._is_dispatching = False
        self.dispatch()

    def distribute_when_durable(self, deliveries: list[Delivery]) -> None:
        """No message before its publish is on disk; one such wait at a time keeps them in order."""
        if self.context.broker.is_loaded(deliveries):
            self._distribute(deliveries)
            return
        self._is_loading = True

        def committed(error: OpenQError | None) -> None:
            self._is_loading = False
            if error is None:
                self._distribute(deliveries)
                self.dispatch()

        self.context.after_commit(committed, self.context.broker.commit_location(deliveries))

    def _distribute(self, deliveries: list[Delivery]) -> None:
        """The store is not waited for before all of it is given: in between, consumers might go."""
        rest = self._assign(deliveries)
        if rest:
            self._requeue(rest)
        if self._unrecorded_acks:
            self._record_acks()

    def _assign(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that nobody has room for."""
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
        """Whose turn it is: the highest priority that has room; of equals, the one after the last."""
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
                    break  # there is none higher
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
        if consumer.no_ack and deliveries and broker.waits:
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
        """What was given to who never acknowledges. Rather twice, if the store fails now, than never."""
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
            pass  # the queue is gone, or the broker is: nothing is held any more

    def close(self) -> None:
        """The queue is gone: whoever consumed from it is told."""
        self._host.remove_dispatcher(self)
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.channel.on_queue_deleted(consumer)
