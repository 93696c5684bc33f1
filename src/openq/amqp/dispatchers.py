"""The dispatchers of a server: one `QueueDispatcher` for each queue with AMQP consumers.

Where servers share a store, consumers of the same queue on other servers count too (`peers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ..errors import OpenQError
from ..server.context import ServerContext
from ..server.dispatcher import DispatchHub, QueueDispatcher
from .arguments import QueueDeclaration
from .consumer import AmqpConsumer
from .delivery_properties import COUNT_ALWAYS, COUNT_NEVER, COUNT_REDELIVERED
from .errors import AmqpError
from .peers import ConsumerPresence, PresenceByQueue
from .topology import Topology

log = logging.getLogger("openq.amqp")


class Dispatchers:
    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self.hub = DispatchHub(context)
        self._topology = topology
        self._peers = topology.peers
        self._peers.local_consumers = self._local_consumers
        topology.has_consumers = lambda queue_key: self.consumers_of(queue_key, now=True) > 0
        topology.on_queue_deleted = self._queue_deleted
        self._by_queue: dict[str, QueueDispatcher[AmqpConsumer]] = {}
        self.pushed_count_modes: dict[str, int] = {}  # by queue; see `delivery_properties`

    def start(self) -> None:
        """Call it on the loop's thread."""
        self.hub.start()

    def __iter__(self) -> Iterator[QueueDispatcher[AmqpConsumer]]:
        return iter(list(self._by_queue.values()))

    @property
    def is_idle(self) -> bool:
        """No consumers, and no deliveries on their way to one."""
        return not self._by_queue and self.hub.is_idle

    # -- consumers

    def open(self, queue_key: str) -> QueueDispatcher[AmqpConsumer]:
        """The dispatcher for a new consumer. Raises QueueNotFound."""
        declared = self._topology.declaration(queue_key)  # first: it may suspend to ask the store
        dispatcher = self._by_queue.get(queue_key)
        # A dispatcher without consumers may belong to a deleted queue of the same name.
        if dispatcher is None or not dispatcher.consumers:
            is_single = declared.arguments.get("x-single-active-consumer") is True
            dispatcher = self._by_queue[queue_key] = QueueDispatcher(
                self.hub,
                queue_key,
                shared_label="amqp",
                on_unused=self.remove_dispatcher,
                single_active=is_single,
                is_leader=self.is_leader,
            )
            # Pushed messages show the count from the second delivery on; basic.get always shows it.
            self.pushed_count_modes[queue_key] = min(_count_mode(declared), COUNT_REDELIVERED)
        return dispatcher

    def discard_unused(self, dispatcher: QueueDispatcher[AmqpConsumer]) -> None:
        """After `open`, if no consumer was added."""
        if not dispatcher.consumers:
            self.remove_dispatcher(dispatcher)

    def remove_dispatcher(self, dispatcher: QueueDispatcher[AmqpConsumer]) -> None:
        if self._by_queue.get(dispatcher.queue_key) is dispatcher:
            del self._by_queue[dispatcher.queue_key]
            self.pushed_count_modes.pop(dispatcher.queue_key, None)

    def consumer_added(self, dispatcher: QueueDispatcher[AmqpConsumer]) -> None:
        if len(dispatcher.consumers) == 1 and not self._peers.is_single:
            try:
                self._peers.announce()
            except OpenQError as error:
                log.warning("a new consumer is not announced to the other servers yet: %s", error)

    def consumer_removed(self, dispatcher: QueueDispatcher[AmqpConsumer]) -> None:
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

    def is_leader(self, dispatcher: QueueDispatcher[AmqpConsumer]) -> bool:
        return self._peers.is_single or self._peers.is_leader(dispatcher.queue_key, dispatcher.since_ms)

    def _local_consumers(self) -> PresenceByQueue:
        return {
            each.queue_key: ConsumerPresence(len(each.consumers), is_exclusive(each), each.since_ms)
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


def is_exclusive(dispatcher: QueueDispatcher[AmqpConsumer]) -> bool:
    return len(dispatcher.consumers) == 1 and dispatcher.consumers[0].exclusive


def _count_mode(declared: QueueDeclaration) -> int:
    if declared.is_from_other_protocol:
        return COUNT_REDELIVERED
    return COUNT_ALWAYS if declared.arguments.get("x-queue-type") == "quorum" else COUNT_NEVER
