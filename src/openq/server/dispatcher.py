"""Distributes the messages of one queue among consumers that are pushed to: by priority, in turn, within the
capacity of each. AMQP consumers and subscriptions of the WebSocket stream use it.

All consumers of a dispatcher share one `Waiter` of the broker, so that they take turns message by message
even when many messages arrive at once. Everything here runs on the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..broker.interface import Receipt
from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError, OutOfRoom, QueueNotFound, StoreError
from ..model import NO_DEADLINE, Delivery, MessageFilter
from ..names import split_name
from .context import ServerContext

MAX_BATCH = 500  # messages taken from the broker at a time
MAX_BATCHES = 4  # in a row, before the loop runs other work
MAX_BATCH_BYTES = 4 * 1024 * 1024  # in memory at once; a single message may be larger
FEW_CONSUMERS = 16  # of a queue: dispatching to them costs about as much as a callback
UNLIMITED = 1 << 30
RETRY_S = 0.5

log = logging.getLogger("openq.server")


class PushConsumer(Protocol):
    """A consumer, as a dispatcher uses it."""

    label: str  # the name that leases, timelines and metrics show
    no_ack: bool  # its deliveries are acked when they are sent
    priority: int
    is_removed: bool

    @property
    def limits_bytes(self) -> bool: ...  # `take` decides about each message

    def capacity(self) -> int: ...
    def reserve(self, deliveries: list[Delivery]) -> None:
        """Count deliveries that are on their way, until they are settled."""

    def take(self, size: int) -> bool:
        """Reserve one message of this size if it fits; otherwise the capacity is 0 until one is settled."""

    def cancel(self, deliveries: list[Delivery]) -> None:
        """Undo `reserve` or `take` for deliveries that are not sent after all."""

    def flush(self) -> None: ...
    def deliver(self, deliveries: list[Delivery]) -> None: ...
    def on_queue_deleted(self) -> None: ...


C = TypeVar("C", bound=PushConsumer)


class DispatchHub:
    """What the dispatchers of a protocol share: the way from the broker's threads to the loop, and messages
    to be requeued once the store can."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.traffic = context.traffic.amqp  # another protocol sets its own
        self._thread = threading.get_ident()
        self._ready: list[tuple[Callable[[list[Delivery]], None], list[Delivery]]] = []
        self._to_requeue: list[tuple[str, list[Receipt]]] = []

    def start(self) -> None:
        """Call it on the loop's thread."""
        self._thread = threading.get_ident()

    @property
    def is_idle(self) -> bool:
        return not self._ready

    def deliveries_ready(self, then: Callable[[list[Delivery]], None], deliveries: list[Delivery]) -> None:
        """Called by the broker with its lock held, in any thread: `then` gets them on the loop."""
        if threading.get_ident() != self._thread:
            self.run_on_loop(then, deliveries)
            return
        if not self._ready:
            self.context.loop.call_soon(self._pass_on_ready)
        self._ready.append((then, deliveries))

    def run_on_loop(self, work: Callable[..., object], *arguments: object) -> None:
        """From any thread."""
        try:
            self.context.loop.call_soon_threadsafe(self.context.enter, work, *arguments)
        except RuntimeError:
            pass  # the loop is closed; a restart requeues what connections had in flight

    def _pass_on_ready(self) -> None:
        ready, self._ready = self._ready, []
        for then, deliveries in ready:
            self.context.enter(then, deliveries)

    def requeue_later(self, queue_key: str, receipts: list[Receipt]) -> None:
        """Requeue messages without a consumer later: the disk is full, or Redis is unreachable."""
        self._to_requeue.append((queue_key, receipts))

    @property
    def has_requeues(self) -> bool:
        return bool(self._to_requeue)

    def retry_requeues(self) -> None:
        pending, self._to_requeue = self._to_requeue, []
        for queue_key, receipts in pending:
            self.requeue(queue_key, receipts)

    def requeue(self, queue_key: str, receipts: list[Receipt]) -> None:
        """Return deliveries whose consumer is gone: at once, in their order, and counted as deliveries."""
        try:
            self.context.broker.nack(queue_key, receipts, 0)
        except (OutOfRoom, StoreError):
            self._to_requeue.append((queue_key, receipts))
        except OpenQError:
            pass  # the queue is deleted, or the broker is closed


class QueueDispatcher(Generic[C]):
    """One queue with consumers that have the same lease and the same filter.

    `single_active`: only the first consumer gets messages, on the server for which `is_leader` is true.
    """

    def __init__(
        self,
        hub: DispatchHub,
        queue_key: str,
        *,
        shared_label: str,
        on_unused: Callable[[QueueDispatcher[C]], None],
        lease_ms: int | None = NO_DEADLINE,
        wanted: MessageFilter | None = None,
        single_active: bool = False,
        is_leader: Callable[[QueueDispatcher[C]], bool] | None = None,
    ) -> None:
        self.context = hub.context
        self._hub = hub
        self._shared_label = shared_label
        self._on_unused = on_unused
        self._is_leader = is_leader
        self.queue_key = queue_key
        self.account, self.queue = split_name(queue_key)
        self.single_active = single_active
        self.since_ms = 0  # when the first consumer was added
        self.consumers: list[C] = []  # by priority, then by age
        self._single_active: C | None = None  # set if `single_active`
        self._next_index = 0
        self._is_waiting = False
        self._is_loading = False
        self._is_retrying = False
        self._is_scheduled = False  # see `dispatch`
        self._unrecorded_acks: list[Receipt] = []  # of no-ack deliveries; recorded later
        self._is_dispatching = self._is_requested = False  # see `dispatch`
        self._is_limited_by_bytes = False  # the ready messages exceed MAX_BATCH_BYTES
        self.lease_ms = lease_ms
        self.wanted = wanted
        self._waiter = Waiter(
            *(1, lease_ms, None, wanted, self._on_served),
            on_ready=self._on_ready,
            max_bytes=MAX_BATCH_BYTES,
        )

    def add(self, consumer: C) -> None:
        at = len(self.consumers)
        if not at:
            self.since_ms = self.context.now_ms()
        while at and self.consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.consumers.insert(at, consumer)
        self.context.consumer_events.joined(self.queue_key, consumer.label, self._shared_label)

    def remove(self, consumer: C) -> None:
        consumer.is_removed = True
        self.consumers.remove(consumer)
        self.context.consumer_events.left(self.queue_key, consumer.label, self._shared_label)
        if consumer is self._single_active:
            self._single_active = None
        if not self.consumers:
            self._stop_waiting()

    def _active_consumers(self) -> list[C]:
        if not self.single_active:
            return self.consumers
        if self._is_leader is not None and not self._is_leader(self):
            return []
        if self._single_active is None and self.consumers:
            self._single_active = self.consumers[0]  # until it is removed, whatever priority others have
        return [] if self._single_active is None else [self._single_active]

    def is_active(self, consumer: C) -> bool:
        return not self.single_active or consumer is self._single_active

    def _capacity(self) -> int:
        capacity = 0
        for consumer in self._active_consumers():
            capacity += consumer.capacity()
            if capacity >= MAX_BATCH:
                return MAX_BATCH
        return capacity

    def _batch_limit(self) -> int:
        """How many messages to take, by their mean size. A remote store applies `max_bytes` itself."""
        if self.context.broker.storage.waits:
            return MAX_BATCH
        _, count, size = self.context.broker.waiting(self.queue_key)
        self._is_limited_by_bytes = size > MAX_BATCH_BYTES
        return max(1, MAX_BATCH_BYTES * max(count, 1) // size) if self._is_limited_by_bytes else MAX_BATCH

    def dispatch(self) -> None:
        """Take as many messages as the consumers have capacity for, then wait for more."""
        if len(self.consumers) <= FEW_CONSUMERS:
            self._dispatch_now()
        elif not self._is_scheduled:
            # Their capacity is the result of a scan. A thousand consumers that ack in the same iteration of
            # the loop must not cause a thousand scans.
            self._is_scheduled = True
            self.context.loop.call_soon(self.context.enter, self._dispatch_scheduled)

    def _dispatch_scheduled(self) -> None:
        self._is_scheduled = False
        if self.consumers:
            self._dispatch_now()

    def _dispatch_now(self) -> None:
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
                    consumer.flush()
                capacity = self._capacity()
            if capacity <= 0:
                self._stop_waiting()
                return
            if self._is_waiting:
                self._waiter.limit = capacity
                return
            try:
                self._waiter.limit = min(capacity, self._batch_limit())
                self._waiter.consumer = (
                    self.consumers[0].label if len(self.consumers) == 1 else self._shared_label
                )
                self._is_waiting = True
                deliveries = self.context.broker.add_waiter(self.queue_key, self._waiter)
            except (QueueNotFound, Closed):
                self._is_waiting = False
                self.close()
                return
            except OpenQError as error:  # the disk is full or broken, or the store is unreachable
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
        self._hub.deliveries_ready(self.on_deliveries, deliveries)

    def _on_ready(self) -> None:
        """Called in any thread, by a remote store: there may be messages."""
        self._hub.run_on_loop(self._wake)

    def _wake(self) -> None:
        self._is_waiting = False
        self.dispatch()

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
            if consumer.limits_bytes:
                count = _count_taken(consumer, deliveries[:count])
            taken, rest = (
                (deliveries, []) if count == len(deliveries) else (deliveries[:count], deliveries[count:])
            )
            if taken:
                if not consumer.limits_bytes:
                    consumer.reserve(taken)
                self._deliver(consumer, taken)
            return rest
        rest = []
        shares: dict[C, list[Delivery]] = {}
        for at, delivery in enumerate(deliveries):
            chosen = self._next_consumer(consumers, shares)
            while chosen is not None and not chosen.take(delivery.entry.size):
                chosen = self._next_consumer(consumers, shares)
            if chosen is None:
                rest = deliveries[at:]
                break
            shares.setdefault(chosen, []).append(delivery)
            if chosen.label != delivery.consumer:
                delivery.consumer = chosen.label
        for consumer, share in shares.items():
            self._deliver(consumer, share)
        return rest

    def _next_consumer(self, consumers: list[C], shares: dict[C, list[Delivery]]) -> C | None:
        """The consumer with capacity that has the highest priority; among equals, in turn."""
        count = len(consumers)
        best: C | None = None
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

    def _deliver(self, consumer: C, deliveries: list[Delivery]) -> None:
        broker = self.context.broker
        try:
            readable = broker.load(deliveries, self.queue_key)
        except OpenQError as error:
            consumer.cancel(deliveries)
            self._requeue(deliveries)
            self._retry_later(error)
            return
        if len(readable) < len(deliveries):  # the others are set aside
            kept = set(map(id, readable))
            consumer.cancel([each for each in deliveries if id(each) not in kept])
            deliveries = readable
        if consumer.no_ack and deliveries and broker.storage.waits:
            self._unrecorded_acks += [(each.entry.seq, each.number) for each in deliveries]
        elif consumer.no_ack and deliveries:
            try:
                self._hub.traffic.acking()
                broker.ack(self.queue_key, [(each.entry.seq, each.number) for each in deliveries])
                self._hub.traffic.acked += len(deliveries)
            except OpenQError as error:
                self._requeue(deliveries)
                self._retry_later(error)
                return
        if deliveries:
            consumer.deliver(deliveries)

    def _record_acks(self) -> None:
        """Ack no-ack deliveries. If the store fails now, they are delivered again rather than lost."""
        receipts, self._unrecorded_acks = self._unrecorded_acks, []
        try:
            self._hub.traffic.acking()
            results = self.context.broker.ack(self.queue_key, receipts)
            self._hub.traffic.acked += results.count(None)
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
            self._hub.requeue_later(self.queue_key, receipts)
        except OpenQError:
            pass  # the queue is deleted, or the broker is closed

    def close(self) -> None:
        """The queue is deleted: cancel its consumers."""
        self._on_unused(self)
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.on_queue_deleted()


def _count_taken(consumer: PushConsumer, deliveries: list[Delivery]) -> int:
    for at, delivery in enumerate(deliveries):
        if not consumer.take(delivery.entry.size):
            return at
    return len(deliveries)
