"""One channel: what a client does with queues, exchanges and messages on it.

Everything runs on the loop. Whatever must be on disk before it is answered goes through
`Connection.answer_when_safe`: the connection reads on when the answer is out, as RabbitMQ's channels do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from struct import Struct
from typing import TYPE_CHECKING, Any

from .. import amqp_fields
from ..amqp_fields import is_plain
from ..auth.policy import LIST_ACTION
from ..broker.full_interface import KnownQueue
from ..errors import OpenQError, OutOfRoom, StoreError, public_text
from ..model import NO_DEADLINE, Delivery
from ..names import qualified_name
from ..server.buffers import SMALL
from . import methods as m
from .arguments import type_of
from .delivery_properties import DeliveryRoute, delivery_properties, exchange_and_key, fit_properties
from .dispatcher import UNLIMITED, AmqpConsumer
from .errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    INTERNAL_ERROR,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    AmqpError,
)
from .frames import CONTENT_OVERHEAD, END_BYTE, FRAME_OVERHEAD, content_frames, content_head
from .publishing import (
    DIRECT_REPLY_TO,
    MAX_CACHED_BYTES,
    DiskFull,
    PublishProperties,
    PublishTarget,
    publish_size,
)
from .topology import encoded_arguments, is_built_in, strip_line_ends

if TYPE_CHECKING:
    from .connection import AmqpConnection

_CONFIRM = Struct(">BHIHHQBB")
_ACK_ID = (60, 80)
_NACK_ID = (60, 120)
_U64 = Struct(">Q")
_METHOD_HEAD = Struct(">BHI")
_DELIVER = b"\x00\x3c\x00\x3c"
_FLAGS = (b"\x00", b"\x01")
# Remembered for the next delivery like it: by all channels of a connection, and all consumers of a channel.
_MAX_CACHED_HEADERS = 1024
_MAX_CACHED_ROUTES = 256
_MIN_CACHED = 8
MAX_CONSUMERS = 10_000
_MAX_LOADED = 1000  # open deliveries of a channel whose bodies stay in memory
_LARGE_BODY = 64 * 1024

SettleAction = Callable[
    [str, list[tuple[int, int]]], object
]  # with receipts of a queue: a verb of the broker
UnackedDelivery = tuple[
    "AmqpConsumer | None", str, Delivery
]  # who got it (None: by get), the engine's queue, the delivery


class AmqpChannel:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.is_closing = False
        self.is_confirming = False
        self.is_transactional = False
        self.is_flowing = True
        self.published = 0  # messages since confirm.select
        self.confirmed = 0
        self._refused: set[int] = set()  # those after `confirmed` that were answered with a nack already
        self.consumers: dict[str, AmqpConsumer] = {}
        self.unacked: dict[int, UnackedDelivery] = {}
        self.in_flight = 0
        self.prefetch = 0  # of consumers to come
        self.shared_prefetch = 0  # of all its consumers together; 0 = none
        self.last_declared_queue = ""
        self.reply_tag: str | None = None  # the consumer of direct replies
        self.reply_token = ""
        # Who deletes a queue hears that before what became of its own consumers: py-amqp relies on it.
        self._is_deleting = False
        self._cancelled_tags: list[str] = []
        self._next_tag = 1
        self._content_headers: dict[tuple[bytes, int], bytes] = {}
        self._tx_publishes: list[tuple[bytes, bytes | list[bytes], list[bytes]]] = []
        self._transaction_bytes = 0
        self._tx_settlements: list[
            tuple[SettleAction, dict[int, UnackedDelivery]]
        ] = []  # what is to be done, by tag

    # -- what comes in

    def method(self, payload: bytes) -> None:
        method = self.connection.decode(payload)
        if self.is_closing:
            if isinstance(method, m.ChannelCloseOk):
                self.connection.drop_channel(self)
            elif isinstance(method, m.ChannelClose):
                self.send(m.ChannelCloseOk())
            return
        act = _HANDLERS.get(type(method))
        if act is None:
            raise AmqpError(COMMAND_INVALID, "unimplemented method")
        act(self, method)

    def send(self, method: m.Method) -> None:
        self.connection.send(self.number, method)

    def reply(self, no_wait: bool, method: m.Method) -> None:
        """Once what was done is on disk."""
        if no_wait:
            return
        self.connection.answer_after_commit(self, lambda: self.send(method))

    def _open(self, method: m.ChannelOpen) -> None:
        raise AmqpError(CHANNEL_ERROR, "second 'channel.open' seen")

    def _close(self, method: m.ChannelClose) -> None:
        self.release()
        self.send(m.ChannelCloseOk())
        self.connection.drop_channel(self)

    def _close_ok(self, method: m.ChannelCloseOk) -> None:
        raise AmqpError(COMMAND_INVALID, "unimplemented method")

    def _flow(self, method: m.ChannelFlow) -> None:
        self.is_flowing = method.active
        self.send(m.ChannelFlowOk(method.active))
        if method.active:
            self.dispatch()

    def _access_request(self, method: m.AccessRequest) -> None:
        self.send(m.AccessRequestOk())

    # -- exchanges

    def _exchange_declare(self, method: m.ExchangeDeclare) -> None:
        connection = self.connection
        name = strip_line_ends(method.exchange)
        if method.passive:
            # RabbitMQ asks for no right here. What is in every vhost anyway may be asked for by anybody.
            if not is_built_in(name):
                connection.require(LIST_ACTION, "exchange", name)
        else:
            connection.require("manage", "exchange", name)
            connection.require_forwarding(method.arguments.get("alternate-exchange"), None)
        connection.topology.declare_exchange(
            connection.vhost,
            name,
            method.type,
            passive=method.passive,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )
        self.reply(method.no_wait, m.ExchangeDeclareOk())

    def _exchange_delete(self, method: m.ExchangeDelete) -> None:
        connection = self.connection
        name = strip_line_ends(method.exchange)
        connection.require("manage", "exchange", name)
        connection.topology.delete_exchange(connection.vhost, name, method.if_unused)
        self.reply(method.no_wait, m.ExchangeDeleteOk())

    def _exchange_bind(self, method: m.ExchangeBind) -> None:
        connection = self.connection
        connection.require("manage", "exchange", method.destination)
        connection.require("manage", "exchange", method.source)
        connection.topology.bind_exchange(
            connection.vhost, method.destination, method.source, method.routing_key, method.arguments
        )
        self.reply(method.no_wait, m.ExchangeBindOk())

    def _exchange_unbind(self, method: m.ExchangeUnbind) -> None:
        connection = self.connection
        connection.require("manage", "exchange", method.destination)
        connection.require("manage", "exchange", method.source)
        connection.topology.unbind_exchange(
            connection.vhost, method.destination, method.source, method.routing_key, method.arguments
        )
        self.reply(method.no_wait, m.ExchangeUnbindOk())

    # -- queues

    def _queue_name(self, queue: str) -> str:
        """An empty name is the queue that was declared last on this channel."""
        if queue:
            return queue
        if not self.last_declared_queue:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        return self.last_declared_queue

    def _queue_declare(self, method: m.QueueDeclare) -> None:
        connection = self.connection
        name = strip_line_ends(method.queue)
        if name == DIRECT_REPLY_TO or name.startswith(f"{DIRECT_REPLY_TO}."):
            if name != DIRECT_REPLY_TO and not connection.server.can_reply(name):
                raise AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '{connection.vhost}'")
            self.last_declared_queue = name
            self.reply(method.no_wait, m.QueueDeclareOk(name, 0, 1))
            return
        if method.passive:
            connection.require(
                LIST_ACTION, "queue", name
            )  # RabbitMQ asks for no right, and tells of every queue
        else:
            connection.require("manage", "queue", name or f"amq.gen-{secrets.token_urlsafe(16)}")
            onward = method.arguments.get("x-dead-letter-exchange")
            connection.require_forwarding(onward, method.arguments.get("x-dead-letter-routing-key"))
        name = connection.topology.declare_queue(
            connection.vhost,
            name,
            passive=method.passive,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
            owner=connection,
        )
        self.last_declared_queue = name
        queue_key = qualified_name(connection.account, name)
        ready = connection.broker.ready_count(queue_key)
        connection.topology.mark_used(queue_key)
        count = connection.server.consumers_of(queue_key)
        self.reply(method.no_wait, m.QueueDeclareOk(name, ready, count))

    def _queue_bind(self, method: m.QueueBind) -> None:
        connection = self.connection
        name = self._queue_name(method.queue)
        key = method.routing_key or (self.last_declared_queue if not method.queue else "")
        connection.require("manage", "queue", name)
        if method.exchange:
            connection.require("manage", "exchange", method.exchange)
        connection.topology.bind_queue(
            connection.vhost, name, method.exchange, key, method.arguments, connection
        )
        self.reply(method.no_wait, m.QueueBindOk())

    def _queue_unbind(self, method: m.QueueUnbind) -> None:
        connection = self.connection
        name = self._queue_name(method.queue)
        connection.require("manage", "queue", name)
        if method.exchange:
            connection.require("manage", "exchange", method.exchange)
        connection.topology.unbind_queue(
            connection.vhost, name, method.exchange, method.routing_key, method.arguments, connection
        )
        self.reply(False, m.QueueUnbindOk())

    def _queue_purge(self, method: m.QueuePurge) -> None:
        connection = self.connection
        name = self._queue_name(method.queue)
        connection.require("manage", "queue", name)
        count = connection.topology.purge_queue(connection.vhost, name, connection)
        self.reply(method.no_wait, m.QueuePurgeOk(count))

    def _queue_delete(self, method: m.QueueDelete) -> None:
        connection = self.connection
        name = self._queue_name(method.queue)
        connection.require("manage", "queue", name)
        queue_key = qualified_name(connection.account, name)
        self._is_deleting = True
        try:
            count = connection.topology.delete_queue(
                connection.vhost,
                name,
                connection,
                if_unused=method.if_unused,
                if_empty=method.if_empty,
                has_consumers=method.if_unused and connection.server.consumers_of(queue_key, now=True) > 0,
            )
        finally:
            self._is_deleting = False
        cancelled_tags, self._cancelled_tags = self._cancelled_tags, []

        def answer() -> None:
            if not method.no_wait:
                self.send(m.QueueDeleteOk(count))
            for tag in cancelled_tags:
                self.send(m.BasicCancel(tag, True))

        connection.answer_after_commit(self, answer)

    # -- consuming

    def capacity(self) -> int:
        if self.is_closing or not self.is_flowing or not self.connection.can_write:
            return 0
        return max(self.shared_prefetch - self.in_flight, 0) if self.shared_prefetch else UNLIMITED

    def _qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.shared_prefetch = method.prefetch_count
            self.dispatch()
        else:
            self.prefetch = method.prefetch_count
        self.send(m.BasicQosOk())

    def _consume(self, method: m.BasicConsume) -> None:
        connection = self.connection
        if method.queue == DIRECT_REPLY_TO:
            self._consume_replies(method)
            return
        name = self._queue_name(method.queue)
        connection.require("receive", "queue", name)
        tag = method.consumer_tag or self._new_tag()
        if len(self.consumers) >= MAX_CONSUMERS:
            raise AmqpError(NOT_ALLOWED, f"more than {MAX_CONSUMERS} consumers on one channel")
        if tag in self.consumers or tag == self.reply_tag:
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        connection.topology.check_access(connection.vhost, name, connection)
        queue_key = qualified_name(connection.account, name)
        priority = method.arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            kind = type_of(priority)
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid arg 'x-priority' for queue '{name}' in vhost '{connection.vhost}': "
                f'"expected integer, got {kind}"',
            )
        if "x-stream-offset" in method.arguments:
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid arg 'x-stream-offset' for queue '{name}' in vhost '{connection.vhost}' "
                "of queue type rabbit_classic_queue",
            )
        arguments = encoded_arguments(method.arguments) if method.arguments else b""
        others = connection.topology.peers.consumers_elsewhere(queue_key, now=True)
        dispatcher = connection.server.dispatcher(queue_key)
        is_exclusive = dispatcher.exclusive or any(each.exclusive for each in others)
        if is_exclusive or (
            method.exclusive and (dispatcher.consumers or dispatcher.single_active or others)
        ):
            connection.server.discard_unused(dispatcher)
            raise AmqpError(ACCESS_REFUSED, f"queue '{name}' in vhost '{connection.vhost}' in exclusive use")
        consumer = AmqpConsumer(
            self,
            dispatcher,
            tag,
            f"{connection.label}/{self.number}/{tag}",
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            priority=priority,
            prefetch=self.prefetch,
            arguments=arguments,
        )
        self.consumers[tag] = consumer
        connection.argument_bytes += len(arguments)
        dispatcher.add(consumer)
        connection.topology.mark_used(queue_key)
        if not method.no_wait:
            self.send(m.BasicConsumeOk(tag))
        connection.server.consumer_added(dispatcher)
        connection.to_dispatch[dispatcher] = None
        if connection.argument_bytes > SMALL:
            connection.report_buffered()

    def _new_tag(self) -> str:
        return f"amq.ctag-{secrets.token_urlsafe(16)}"

    def _consume_replies(self, method: m.BasicConsume) -> None:
        if not method.no_ack:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_tag is not None:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
        self.reply_tag = method.consumer_tag or self._new_tag()
        self.connection.server.add_reply_consumer(self)
        if not method.no_wait:
            self.send(m.BasicConsumeOk(self.reply_tag))

    def _cancel(self, method: m.BasicCancel) -> None:
        tag = method.consumer_tag
        if tag == self.reply_tag:
            self.connection.server.remove_reply_consumer(self)
            self.reply_tag = None
        consumer = self.consumers.pop(tag, None)
        if not method.no_wait:
            self.send(m.BasicCancelOk(tag))
        if consumer is not None:
            self._remove_consumer(consumer)
            self.connection.release_arguments([consumer])

    def _cancel_ok(self, method: m.BasicCancelOk) -> None:
        """The client has heard that its consumer is gone."""

    def _remove_consumer(self, consumer: AmqpConsumer) -> None:
        if not consumer.is_removed:
            consumer.dispatcher.remove(consumer)
            self.connection.server.consumer_removed(consumer.dispatcher)
            self.connection.to_dispatch[consumer.dispatcher] = None

    def on_queue_deleted(self, consumer: AmqpConsumer) -> None:
        """By the server: its queue is gone."""
        if self.consumers.pop(consumer.tag, None) is not None:
            self.connection.release_arguments([consumer])
        if self.is_closing or not self.connection.client_supports("consumer_cancel_notify"):
            return
        if self._is_deleting:
            self._cancelled_tags.append(consumer.tag)
            return
        self.send(m.BasicCancel(consumer.tag, True))
        self.connection.flush_soon()

    def _get(self, method: m.BasicGet) -> None:
        connection = self.connection
        name = self._queue_name(method.queue)
        connection.require("receive", "queue", name)
        connection.topology.check_access(connection.vhost, name, connection)
        queue_key = qualified_name(connection.account, name)
        connection.topology.mark_used(queue_key)
        while not self._get_one(method, name, queue_key):
            pass  # what could not be read is set aside: the next one, then

    def _get_one(self, method: m.BasicGet, name: str, queue_key: str) -> bool:
        """The answer is given or on its way. False: the message cannot be read."""
        connection = self.connection
        broker = connection.broker
        deliveries = broker.receive(queue_key, 1, NO_DEADLINE, f"{connection.label}/{self.number}")
        if not deliveries:
            self.send(m.BasicGetEmpty())
            return True
        [delivery] = deliveries
        receipt = [(delivery.entry.seq, delivery.number)]

        def show() -> bool:
            try:
                readable = broker.load(deliveries)
            except OpenQError as error:
                lost()
                raise AmqpError(
                    INTERNAL_ERROR, f"a message cannot be read: {public_text(error)}", ends_connection=False
                ) from error
            if not readable:
                return False
            if method.no_ack:
                broker.ack(queue_key, receipt)
            ready = broker.ready_count(queue_key)
            exchange, key = exchange_and_key(delivery.entry, name)
            redelivered = delivery.count > 1
            amqp_properties = delivery_properties(broker, delivery, connection.server.count_mode(queue_key))
            # Nothing waits from here on: what belongs together is written together.
            tag = self._new_delivery_tag()
            if not method.no_ack:
                self.unacked[tag] = (None, queue_key, delivery)
            self.send(m.BasicGetOk(tag, redelivered, exchange, key, ready))
            connection.write(self._content(amqp_properties, delivery.entry.body or b""))
            if not method.no_ack and (len(self.unacked) > _MAX_LOADED or delivery.entry.size > _LARGE_BODY):
                broker.drop_bodies(deliveries)  # as `deliver` does
            connection.apply_backpressure()
            return True

        def show_or_next() -> None:
            if not show():
                self._get(method)

        def lost() -> None:
            try:
                broker.release(queue_key, receipt)
            except (OutOfRoom, StoreError):
                connection.server.requeue_later(queue_key, receipt)
            except OpenQError:
                pass  # the queue is gone, and the message with it

        if broker.is_loaded(deliveries):
            return show()
        connection.answer_after_commit(self, show_or_next, lost)
        return True

    def _new_delivery_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag - 1

    def deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None:
        """Messages to a consumer, bodies loaded, room reserved."""
        connection = self.connection
        dispatcher = consumer.dispatcher
        out = connection.out
        unacked = self.unacked
        keeps = not consumer.no_ack
        queue_key = dispatcher.queue_key
        tag = self._next_tag
        most = connection.max_frame - FRAME_OVERHEAD
        count_mode = dispatcher.count_mode
        broker = connection.broker
        heads = self._content_headers
        routes = consumer.routes
        pack = _U64.pack
        route: DeliveryRoute | None = None
        last_extra: object = self  # nothing is this
        start = b""
        tail = b""
        for delivery in deliveries:
            entry = delivery.entry
            options = entry.options
            if options is not last_extra:
                last_extra = options
                key = None if options is None else options.route
                route = routes.get(key)
                if route is None:
                    if len(routes) >= max(_MIN_CACHED, _MAX_CACHED_ROUTES // (len(self.consumers) or 1)):
                        routes.clear()
                    route = routes[key] = DeliveryRoute(*exchange_and_key(entry, dispatcher.queue))
                    self._encode_route(consumer, route)
                start = route.start
                tail = route.tail
            properties = entry.properties
            if (
                properties is not None
                and properties.amqp_properties is not None
                and (options is None or not options.deaths)
                and count_mode <= (delivery.count == 1)
            ):
                amqp_properties = properties.amqp_properties
            else:
                amqp_properties = delivery_properties(broker, delivery, count_mode)
            if keeps:
                unacked[tag] = (consumer, queue_key, delivery)
            body = entry.body or b""
            size = len(body)
            if 0 < size <= most:
                head = heads.get((amqp_properties, size))
                if head is None:
                    head = content_head(
                        self.number, fit_properties(amqp_properties, most - CONTENT_OVERHEAD), size
                    )
                    if len(amqp_properties) <= MAX_CACHED_BYTES:
                        if len(heads) >= max(
                            _MIN_CACHED, _MAX_CACHED_HEADERS // (len(connection.channels) or 1)
                        ):
                            heads.clear()
                        heads[amqp_properties, size] = head
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, head, body, END_BYTE)
            else:
                content = self._content(amqp_properties, body)
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, content)
            tag += 1
        self._next_tag = tag
        if keeps and (len(unacked) > _MAX_LOADED or deliveries[-1].entry.size > _LARGE_BODY):
            broker.drop_bodies(deliveries)  # they may stay open for days
        connection.flush_soon()

    def flush(self) -> None:
        self.connection.flush()

    def _content(self, amqp_properties: bytes, body: bytes) -> bytes:
        max_frame = self.connection.max_frame
        amqp_properties = fit_properties(amqp_properties, max_frame - FRAME_OVERHEAD - CONTENT_OVERHEAD)
        return content_frames(self.number, amqp_properties, body, max_frame)

    def _encode_route(self, consumer: AmqpConsumer, route: DeliveryRoute) -> None:
        """How a deliver by this route begins, up to its tag."""
        name = consumer.tag.encode()
        size = 4 + 1 + len(name) + 8 + 1 + len(route.tail)
        head = _METHOD_HEAD.pack(1, self.number, size)
        route.start = b"".join((head, _DELIVER, bytes((len(name),)), name))
        route.tail += END_BYTE

    def deliver_reply(self, target: PublishTarget, amqp_properties: bytes, body: bytes) -> None:
        """A direct reply: to the consumer, past all queues."""
        assert self.reply_tag is not None
        if self.connection.transport.is_write_buffer_full:
            return  # nobody reads them; replies are a promise to nobody
        tag = self._new_delivery_tag()
        self.send(m.BasicDeliver(self.reply_tag, tag, False, target.exchange, target.key))
        self.connection.write(self._content(amqp_properties, body))
        self.connection.flush_soon()

    # -- settling

    def ack(self, tags: list[int]) -> None:
        if self.is_closing:
            return
        self._settle_or_defer(tags, self.connection.broker.ack)

    def _settle_or_defer(self, tags: list[int], settle: SettleAction) -> None:
        if self.is_transactional:
            self._defer_settlement(tags, settle)
        else:
            self._settle(tags, settle)

    def _settle(self, tags: Iterable[int], settle: SettleAction) -> None:
        """Take these out of the open ones, and tell the broker queue by queue."""
        unacked = self.unacked
        connection = self.connection
        last = ""
        receipts: list[tuple[int, int]] = []
        groups: dict[str, list[tuple[int, int]]] = {}
        taken: list[tuple[int, UnackedDelivery]] = []
        unknown: int | None = None
        for tag in tags:
            unacked_delivery = unacked.pop(tag, None)
            if unacked_delivery is None:
                unknown = tag
                break
            taken.append((tag, unacked_delivery))
            consumer, queue_key, delivery = unacked_delivery
            if queue_key != last:
                last = queue_key
                receipts = groups.setdefault(queue_key, [])
            receipts.append((delivery.entry.seq, delivery.number))
        for queue_key, group in groups.items():
            try:
                settle(queue_key, group)
            except (OutOfRoom, StoreError):
                unacked.update(taken)  # full to the last byte, or away: they are still lent
                self.unacked = dict(sorted(unacked.items()))
                raise
            except OpenQError:
                continue  # the queue is gone, and its messages with it
        for _, (consumer, _, _) in taken:
            if consumer is not None:
                consumer.unacked -= 1
                self.in_flight -= 1
                if not consumer.is_removed:
                    connection.to_dispatch[consumer.dispatcher] = None
        if self.shared_prefetch:
            self.dispatch()
        if unknown is not None:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {unknown}")

    def _tags_up_to(self, tag: int, multiple: bool) -> list[int]:
        if not multiple:
            return [tag]
        if not tag:
            return list(self.unacked)
        if tag not in self.unacked:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        # Tags rise, so those up to this one come first.
        return list(takewhile(lambda each: each <= tag, self.unacked))

    def _defer_settlement(self, tags: list[int], settle: SettleAction) -> None:
        """Settled by the client, though not before it commits."""
        deferred: dict[int, UnackedDelivery] = {}
        self._tx_settlements.append((settle, deferred))
        for tag in tags:
            unacked_delivery = self.unacked.pop(tag, None)
            if unacked_delivery is None:
                raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            deferred[tag] = unacked_delivery

    def _restore_deferred(self) -> None:
        """What was put aside is open again, each in its place."""
        held, self._tx_settlements = self._tx_settlements, []
        for _, deferred in held:
            self.unacked.update(deferred)
        if held:
            self.unacked = dict(sorted(self.unacked.items()))

    def _ack(self, method: m.BasicAck) -> None:
        self.ack(self._tags_up_to(method.delivery_tag, method.multiple))

    def _reject(self, method: m.BasicReject) -> None:
        self._requeue_or_reject([method.delivery_tag], method.requeue)

    def _nack(self, method: m.BasicNack) -> None:
        self._requeue_or_reject(self._tags_up_to(method.delivery_tag, method.multiple), method.requeue)

    def _requeue_or_reject(self, tags: list[int], requeue: bool) -> None:
        broker = self.connection.broker
        self._settle_or_defer(tags, broker.nack_many if requeue else broker.reject_many)

    def _recover(self, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
        broker = self.connection.broker
        is_answered = isinstance(method, m.BasicRecover)
        if is_answered and broker.waits:
            self.send(m.BasicRecoverOk())  # first: messages may be back before the store has answered
        self._settle(list(self.unacked), broker.nack_many)
        if is_answered and not broker.waits:
            self.send(m.BasicRecoverOk())

    # -- publishing

    def publish(self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]) -> None:
        """`wires`: the properties of all, or of each."""
        if self.is_closing:
            return
        if self.is_transactional:
            for amqp_properties in [all_properties] if isinstance(all_properties, bytes) else all_properties:
                self.connection.publisher.queues(*self._check_publish(method, amqp_properties))
            self._tx_publishes.append((method, all_properties, bodies))
            size = publish_size(method, all_properties, bodies) + 100 * len(bodies)
            self._transaction_bytes += size
            self.connection.add_transaction_bytes(size)
            return
        connection = self.connection
        first = self.published + 1
        if self.is_confirming:
            self.published += len(bodies)
            connection.to_confirm[self] = None
        done, refused = self._publish_all(method, all_properties, bodies)
        if done < len(bodies):
            connection.server.on_disk_full()
            if not self.is_confirming:
                # Nobody would hear of it: the client has to wait until there is room.
                rest = all_properties if isinstance(all_properties, bytes) else all_properties[done:]
                connection.block_publish(self, method, rest, bodies[done:])
            refused += range(done, len(bodies))
        if refused and self.is_confirming:
            for at in refused:
                self._confirm(first + at, False, False)
                self._refused.add(first + at)

    def retry_publish(self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]) -> int:
        """Publishes that were held back: how many there is room for now."""
        return self._publish_all(method, all_properties, bodies)[0]

    def _publish_all(
        self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> tuple[int, list[int]]:
        """How many were dealt with before the disk was full, and which of them a queue refused."""
        if isinstance(all_properties, bytes):
            try:
                return len(bodies), self._publish(method, all_properties, bodies)
            except DiskFull as no_room:
                return no_room.done, no_room.refused
        publisher = self.connection.publisher
        queue = publisher.single_plain_queue(self._authorized_target(method))
        refused: list[int] = []
        at = 0
        while at < len(bodies):
            end = at
            if queue is not None:
                while end < len(bodies) and is_plain(all_properties[end]):
                    end += 1
            try:
                if queue is None or end == at:
                    end = at + 1
                    refused += [at for _ in self._publish(method, all_properties[at], bodies[at:end])]
                elif not publisher.publish_each(
                    self._authorized_target(method), queue, all_properties[at:end], bodies[at:end]
                ):
                    queue = None  # it is not what it was a moment ago
                    continue
            except DiskFull:
                return at, refused
            at = end
        return at, refused

    def _authorized_target(self, method: bytes) -> PublishTarget:
        """What a publish is directed to, by somebody who may."""
        connection = self.connection
        target = connection.publisher.target(method)
        if not target.exchange:
            if target.key.startswith(f"{DIRECT_REPLY_TO}."):
                return target  # whoever knows such an address was asked for an answer
            connection.require("send", "queue", target.key, of_exchange="amq.default")
        else:
            connection.require("send", "exchange", target.exchange)
        return target

    def _check_publish(
        self, method: bytes, amqp_properties: bytes
    ) -> tuple[PublishTarget, PublishProperties]:
        target = self._authorized_target(method)
        publish_properties = self.connection.publisher.publish_properties(amqp_properties, target)
        if not target.exchange:
            for key in publish_properties.keys:
                self.connection.require("send", "queue", key, of_exchange="amq.default")
        return target, publish_properties

    def _publish(self, method: bytes, amqp_properties: bytes, bodies: list[bytes]) -> list[int]:
        connection = self.connection
        target, publish_properties = self._check_publish(method, amqp_properties)
        if publish_properties.props.reply_to == DIRECT_REPLY_TO:
            if self.reply_tag is None:
                raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            props = amqp_fields.decode(publish_properties.amqp_properties)
            props.reply_to = connection.server.reply_address(self)
            publish_properties = PublishProperties(amqp_fields.encode(props), props, target)
        if not target.exchange and target.key.startswith(DIRECT_REPLY_TO):
            replying = connection.server.reply_channel(target.key)
            if replying is not None:
                for body in bodies:
                    replying.deliver_reply(target, publish_properties.amqp_properties, body)
                return []
            queues: Sequence[KnownQueue] = []
        else:
            queues = connection.publisher.queues(target, publish_properties)
        if not queues:
            if target.mandatory:
                self._return_messages(NO_ROUTE, "NO_ROUTE", target, amqp_properties, bodies)
            return []
        return connection.publisher.publish(target, publish_properties, queues, bodies)

    def _return_messages(
        self, code: int, text: str, target: PublishTarget, amqp_properties: bytes, bodies: list[bytes]
    ) -> None:
        connection = self.connection
        for body in bodies:
            self.send(m.BasicReturn(code, text, target.exchange, target.key))
            connection.write(self._content(amqp_properties, body))

    def _select_confirms(self, method: m.ConfirmSelect) -> None:
        if self.is_transactional:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.is_confirming = True
        if not method.no_wait:
            self.send(m.ConfirmSelectOk())

    def confirm_up_to(self, tag: int, error: OpenQError | None) -> None:
        """Everything published up to this one is on disk, or never will be."""
        if tag > self.confirmed and not self.is_closing:
            last, count = tag, tag - self.confirmed
            if self._refused:
                answered = {each for each in self._refused if each <= tag}
                self._refused -= answered
                count -= len(answered)
                while last in answered:
                    last -= 1
            if count:
                self._confirm(last, count > 1, error is None)
            self.confirmed = tag

    def _confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        class_id, method_id = _ACK_ID if is_ack else _NACK_ID
        self.connection.write(_CONFIRM.pack(1, self.number, 13, class_id, method_id, tag, multiple, 0xCE))

    # -- transactions

    def _select_tx(self, method: m.TxSelect) -> None:
        if self.is_confirming:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        self.is_transactional = True
        self.send(m.TxSelectOk())

    def _require_tx(self) -> None:
        if not self.is_transactional:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")

    def _commit(self, method: m.TxCommit) -> None:
        self._require_tx()
        publishes, self._tx_publishes = self._tx_publishes, []
        self._release_transaction_bytes()
        is_whole = True
        for method_bytes, all_properties, bodies in publishes:
            done, refused = self._publish_all(method_bytes, all_properties, bodies)
            if done < len(bodies):
                raise AmqpError(RESOURCE_ERROR, "the disk is full; the transaction is only done in part")
            is_whole = is_whole and not refused
        while self._tx_settlements:
            settle, deferred = self._tx_settlements.pop(0)
            self.unacked.update(deferred)
            self._settle(deferred, settle)
        if not is_whole:
            raise AmqpError(PRECONDITION_FAILED, "partial tx completion")
        self.reply(False, m.TxCommitOk())

    def _rollback(self, method: m.TxRollback) -> None:
        self._require_tx()
        self._tx_publishes = []
        self._release_transaction_bytes()
        self._restore_deferred()
        self.send(m.TxRollbackOk())

    def _release_transaction_bytes(self) -> None:
        self.connection.add_transaction_bytes(-self._transaction_bytes)
        self._transaction_bytes = 0

    # -- the end

    def dispatch(self) -> None:
        """All its consumers may have room now."""
        for consumer in self.consumers.values():
            self.connection.to_dispatch[consumer.dispatcher] = None

    def release(self) -> None:
        """Consumers go, and what they had not settled returns to its place, marked as delivered."""
        self.is_closing = True
        if self.reply_tag is not None:
            self.connection.server.remove_reply_consumer(self)
            self.reply_tag = None
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            self._remove_consumer(consumer)
        self.connection.release_arguments(consumers)
        self._tx_publishes = []
        self._release_transaction_bytes()
        self._restore_deferred()
        groups: dict[str, list[tuple[int, int]]] = {}
        for _, queue_key, delivery in self.unacked.values():
            groups.setdefault(queue_key, []).append((delivery.entry.seq, delivery.number))
        self.unacked.clear()
        for queue_key, receipts in groups.items():
            try:
                self.connection.broker.nack_many(queue_key, receipts)
            except (OutOfRoom, StoreError):
                self.connection.server.requeue_later(queue_key, receipts)
            except OpenQError:
                pass  # the queue is gone, or the broker is


_HANDLERS: dict[type[m.Method], Callable[[AmqpChannel, Any], None]] = {
    m.ChannelOpen: AmqpChannel._open,
    m.ChannelClose: AmqpChannel._close,
    m.ChannelCloseOk: AmqpChannel._close_ok,
    m.ChannelFlow: AmqpChannel._flow,
    m.AccessRequest: AmqpChannel._access_request,
    m.ExchangeDeclare: AmqpChannel._exchange_declare,
    m.ExchangeDelete: AmqpChannel._exchange_delete,
    m.ExchangeBind: AmqpChannel._exchange_bind,
    m.ExchangeUnbind: AmqpChannel._exchange_unbind,
    m.QueueDeclare: AmqpChannel._queue_declare,
    m.QueueBind: AmqpChannel._queue_bind,
    m.QueueUnbind: AmqpChannel._queue_unbind,
    m.QueuePurge: AmqpChannel._queue_purge,
    m.QueueDelete: AmqpChannel._queue_delete,
    m.BasicQos: AmqpChannel._qos,
    m.BasicConsume: AmqpChannel._consume,
    m.BasicCancel: AmqpChannel._cancel,
    m.BasicCancelOk: AmqpChannel._cancel_ok,
    m.BasicGet: AmqpChannel._get,
    m.BasicAck: AmqpChannel._ack,
    m.BasicReject: AmqpChannel._reject,
    m.BasicNack: AmqpChannel._nack,
    m.BasicRecover: AmqpChannel._recover,
    m.BasicRecoverAsync: AmqpChannel._recover,
    m.ConfirmSelect: AmqpChannel._select_confirms,
    m.TxSelect: AmqpChannel._select_tx,
    m.TxCommit: AmqpChannel._commit,
    m.TxRollback: AmqpChannel._rollback,
}
