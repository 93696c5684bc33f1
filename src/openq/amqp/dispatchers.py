"""The dispatchers of a server: one `QueueDispatcher` for each queue with AMQP consumers.

Where servers share a store, consumers of the same queue on other servers count too (`peers.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from ..broker.interface import Receipt
from ..errors import OpenQError, OutOfRoom, StoreError
from ..model import Delivery
from ..server.context import ServerContext
from .arguments import QueueDeclaration
from .delivery_properties import COUNT_ALWAYS, COUNT_NEVER, COUNT_REDELIVERED
from .dispatcher import QueueDispatcher
from .errors import AmqpError
from .peers import ConsumerPresence, PresenceByQueue
from .topology import Topology

log = logging.getLogger("openq.amqp")


class Dispatchers:
    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self._topology = topology
        self._peers = topology.peers
        self._peers.local_consumers = self._local_consumers
        topology.has_consumers = lambda queue_key: self.consumers_of(queue_key, now=True) > 0
        topology.on_queue_deleted = self._queue_deleted
        self._by_queue: dict[str, QueueDispatcher] = {}
        self._thread = threading.get_ident()
        self._ready: list[tuple[QueueDispatcher, list[Delivery]]] = []
        self._to_requeue: list[tuple[str, list[Receipt]]] = []

    def start(self) -> None:
        """Call it on the loop's thread."""
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[QueueDispatcher]:
        return iter(list(self._by_queue.values()))

    @property
    def is_idle(self) -> bool:
        """No consumers, and no deliveries on their way to one."""
        return not self._by_queue and not self._ready

    # -- consumers

    def open(self, queue_key: str) -> QueueDispatcher:
        """The dispatcher for a new consumer. Raises QueueNotFound."""
        declared = self._topology.declaration(queue_key)  # first: it may suspend to ask the store
        dispatcher = self._by_queue.get(queue_key)
        # A dispatcher without consumers may belong to a deleted queue of the same name.
        if dispatcher is None or not dispatcher.consumers:
            is_single = declared.arguments.get("x-single-active-consumer") is True
            dispatcher = self._by_queue[queue_key] = QueueDispatcher(self, queue_key, is_single)
            # Pushed messages show the count from the second delivery on; basic.get always shows it.
            dispatcher.count_mode = min(_count_mode(declared), COUNT_REDELIVERED)
        return dispatcher

    def discard_unused(self, dispatcher: QueueDispatcher) -> None:
        """After `open`, if no consumer was added."""
        if not dispatcher.consumers:
            self._by_queue.pop(dispatcher.queue_key, None)

    def remove_dispatcher(self, dispatcher: QueueDispatcher) -> None:
        if self._by_queue.get(dispatcher.queue_key) is dispatcher:
            del self._by_queue[dispatcher.queue_key]

    def consumer_added(self, dispatcher: QueueDispatcher) -> None:
        if len(dispatcher.consumers) == 1 and not self._peers.is_single:
            try:
                self._peers.announce()
            except OpenQError as error:
                log.warning("a new consumer is not announced to the other servers yet: %s", error)

    def consumer_removed(self, dispatcher: QueueDispatcher) -> None:
        """Delete an auto-delete queue with its last consumer."""
        if dispatcher.consumers:
            return
        self.remove_dispatcher(dispatcher)
        queue_key = dispatcher.queue_key
        self._topology.mark_used(queue_key)
        try:
            if self._topology.declaration(queue_key).auto_delete:
                self._peers.announce()
                if not self.consumers_of(queue_key, now=True):
                    self._topology.delete_by_key(queue_key)
        except (OpenQError, AmqpError) as error:
            log.info("queue %r: %s", queue_key, error)  # deleted already, or the disk is full

    def consumers_of(self, queue_key: str, *, now: bool = False) -> int:
        """Consumers on all servers of the store. `now`: ask the store instead of a recent answer."""
        dispatcher = self._by_queue.get(queue_key)
        here = 0 if dispatcher is None else len(dispatcher.consumers)
        if self._peers.is_single or (now and here):
            return here
        return here + sum(each.consumers for each in self._peers.consumers_elsewhere(queue_key, now=now))

    def count_mode(self, queue_key: str) -> int:
        """For basic.get. RabbitMQ's quorum queues show the delivery count, its classic queues do not."""
        return _count_mode(self._topology.declaration(queue_key))

    def is_leader(self, dispatcher: QueueDispatcher) -> bool:
        return self._peers.is_single or self._peers.is_leader(dispatcher.queue_key, dispatcher.since_ms)

    def _local_consumers(self) -> PresenceByQueue:
        return {
            each.queue_key: ConsumerPresence(len(each.consumers), each.exclusive, each.since_ms)
            for each in self._by_queue.values()
            if each.consumers
        }

    def refresh_peers(self) -> None:
        """Announce the consumers of this server, read those of the others, and act on changes."""
        self._peers.heartbeat()
        for dispatcher in self:
            if dispatcher.single_active:
                self.context.enter(dispatcher.dispatch)  # this server may lead now

    def _queue_deleted(self, queue_key: str) -> None:
        dispatcher = self._by_queue.get(queue_key)
        if dispatcher is not None:
            dispatcher.close()

    # -- deliveries

    def deliveries_ready(self, dispatcher: QueueDispatcher, deliveries: list[Delivery]) -> None:
        """Called by the broker with its lock held, in any thread."""
        if threading.get_ident() != self._thread:
            try:
                self.context.loop.call_soon_threadsafe(
                    self.context.enter, dispatcher.on_deliveries, deliveries
                )
            except RuntimeError:
                pass  # the loop is closed; a restart requeues what connections had in flight
            return
        if not self._ready:
            self.context.loop.call_soon(self._pass_on_ready)
        self._ready.append((dispatcher, deliveries))

    def _pass_on_ready(self) -> None:
        ready, self._ready = self._ready, []
        for dispatcher, deliveries in ready:
            self.context.enter(dispatcher.on_deliveries, deliveries)

    def requeue_later(self, queue_key: str, receipts: list[Receipt]) -> None:
        """Requeue messages without a consumer later: the disk is full, or Redis is unreachable."""
        self._to_requeue.append((queue_key, receipts))

    @property
    def has_requeues(self) -> bool:
        return bool(self._to_requeue)

    def retry_requeues(self) -> None:
        pending, self._to_requeue = self._to_requeue, []
        for queue_key, receipts in pending:
            try:
                self.context.broker.nack(queue_key, receipts, 0)
            except (OutOfRoom, StoreError):
                self._to_requeue.append((queue_key, receipts))
            except OpenQError:
                pass  # the queue is deleted, or the broker is closed


def _count_mode(declared: QueueDeclaration) -> int:
    if declared.is_from_other_protocol:
        return COUNT_REDELIVERED
    return COUNT_ALWAYS if declared.arguments.get("x-queue-type") == "quorum" else COUNT_NEVER
