"""Receiving on a channel: consumers, prefetch, basic.get, deliveries, direct replies."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from ..errors import OpenQError, OutOfRoom, StoreError, public_text
from ..model import NO_DEADLINE, Delivery
from ..names import qualified_name
from ..server.buffers import SMALL
from ..server.dispatcher import UNLIMITED
from . import methods as m
from .arguments import encoded_arguments, type_of
from .channel_context import ChannelContext
from .consumer import AmqpConsumer
from .delivery_properties import DeliveryRoute, delivery_properties, exchange_and_key, fit_properties
from .dispatchers import is_exclusive
from .errors import (
    ACCESS_REFUSED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
)
from .frames import CONTENT_OVERHEAD, END_BYTE, FRAME_OVERHEAD, content_head
from .publishing import MAX_CACHED_BYTES
from .replies import DIRECT_REPLY_TO
from .unacked import UnackedDeliveries

_U64 = Struct(">Q")
_METHOD_HEAD = Struct(">BHI")
_DELIVER = b"\x00\x3c\x00\x3c"
_FLAGS = (b"\x00", b"\x01")
# Encoded content headers and routes are cached for the next delivery with the same ones. The limits are
# shared by all channels of a connection, and by all consumers of a channel.
_MAX_CACHED_HEADERS = 1024
_MAX_CACHED_ROUTES = 256
_MIN_CACHED = 8
MAX_CONSUMERS = 10_000
_MAX_LOADED = 1000  # unacknowledged deliveries of a channel whose bodies stay in memory
_LARGE_BODY = 64 * 1024


class ChannelConsumers:
    """Implements `consumer.ConsumerChannel`."""

    def __init__(self, channel: ChannelContext, unacked: UnackedDeliveries) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._unacked = unacked
        self._access = channel.connection.access
        self._dispatchers = channel.server.dispatchers
        self._replies = channel.server.replies
        self.by_tag: dict[str, AmqpConsumer] = {}
        self.is_flowing = True  # channel.flow
        self.in_flight = 0  # unacknowledged deliveries of its consumers
        self.prefetch = 0  # of new consumers
        self.shared_prefetch = 0  # of all its consumers together; 0: unlimited
        self.reply_tag: str | None = None  # the consumer of direct replies
        self.reply_address = ""
        self._cancelled: list[str] | None = None  # see `collect_cancelled`
        self._content_headers: dict[tuple[bytes, int], bytes] = {}

    # -- flow and prefetch

    def capacity(self) -> int:
        if self._channel.is_closing or not self.is_flowing or not self._connection.can_write:
            return 0
        return max(self.shared_prefetch - self.in_flight, 0) if self.shared_prefetch else UNLIMITED

    def flush(self) -> None:
        self._connection.flush()

    def flow(self, method: m.ChannelFlow) -> None:
        self.is_flowing = method.active
        self._channel.send(m.ChannelFlowOk(method.active))
        if method.active:
            self.dispatch()

    def qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.shared_prefetch = method.prefetch_count
            self.dispatch()
        else:
            self.prefetch = method.prefetch_count
        self._channel.send(m.BasicQosOk())

    def dispatch(self) -> None:
        """Its consumers may have capacity again."""
        for consumer in self.by_tag.values():
            self._connection.to_dispatch[consumer.dispatcher] = None

    # -- consumers

    def consume(self, method: m.BasicConsume) -> None:
        channel, connection = self._channel, self._connection
        if method.queue == DIRECT_REPLY_TO:
            self._consume_replies(method)
            return
        name, vhost = channel.queue_name(method.queue), connection.vhost
        self._access.require("receive", "queue", name)
        tag = method.consumer_tag or _new_consumer_tag()
        if len(self.by_tag) >= MAX_CONSUMERS:
            raise AmqpError(NOT_ALLOWED, f"more than {MAX_CONSUMERS} consumers on one channel")
        if tag in self.by_tag or tag == self.reply_tag:
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        channel.topology.check_access(vhost, name, connection)
        queue_key = qualified_name(connection.account, name)
        priority = _priority(method, name, vhost)
        arguments = encoded_arguments(method.arguments) if method.arguments else b""
        others = channel.topology.peers.consumers_elsewhere(queue_key, now=True)
        dispatcher = self._dispatchers.open(queue_key)
        is_taken = is_exclusive(dispatcher) or any(each.exclusive for each in others)
        is_used = bool(dispatcher.consumers or dispatcher.single_active or others)
        if is_taken or (method.exclusive and is_used):
            self._dispatchers.discard_unused(dispatcher)
            raise AmqpError(ACCESS_REFUSED, f"queue '{name}' in vhost '{vhost}' in exclusive use")
        consumer = AmqpConsumer(
            self,
            dispatcher,
            tag,
            f"{connection.label}/{channel.number}/{tag}",
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            priority=priority,
            prefetch=self.prefetch,
            arguments=arguments,
            since_ms=connection.context.now_ms(),
        )
        self.by_tag[tag] = consumer
        connection.argument_bytes += len(arguments)
        dispatcher.add(consumer)
        channel.topology.mark_used(queue_key)
        if not method.no_wait:
            channel.send(m.BasicConsumeOk(tag))
        self._dispatchers.consumer_added(dispatcher)
        connection.to_dispatch[dispatcher] = None
        if connection.argument_bytes > SMALL:
            connection.report_buffered()

    def _consume_replies(self, method: m.BasicConsume) -> None:
        if not method.no_ack:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_tag is not None:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
        self.reply_tag = method.consumer_tag or _new_consumer_tag()
        self.reply_address = self.reply_address or self._replies.new_address()
        self._replies.add(self.reply_address, self)
        if not method.no_wait:
            self._channel.send(m.BasicConsumeOk(self.reply_tag))

    def cancel(self, method: m.BasicCancel) -> None:
        tag = method.consumer_tag
        if tag == self.reply_tag:
            self._remove_reply_consumer()
        consumer = self.by_tag.pop(tag, None)
        if not method.no_wait:
            self._channel.send(m.BasicCancelOk(tag))
        if consumer is not None:
            self._remove(consumer)
            self._connection.release_arguments([consumer])

    def _remove_reply_consumer(self) -> None:
        self._replies.remove(self.reply_address)
        self.reply_tag = None

    def _remove(self, consumer: AmqpConsumer) -> None:
        if not consumer.is_removed:
            consumer.dispatcher.remove(consumer)
            self._dispatchers.consumer_removed(consumer.dispatcher)
            self._connection.to_dispatch[consumer.dispatcher] = None

    def on_queue_deleted(self, consumer: AmqpConsumer) -> None:
        if self.by_tag.pop(consumer.tag, None) is not None:
            self._connection.release_arguments([consumer])
        if self._channel.is_closing or not self._connection.client_supports("consumer_cancel_notify"):
            return
        if self._cancelled is not None:
            self._cancelled.append(consumer.tag)
            return
        self._channel.send(m.BasicCancel(consumer.tag, True))
        self._connection.flush_soon()

    @contextmanager
    def collect_cancelled(self) -> Iterator[list[str]]:
        """Collect the tags of consumers that are cancelled meanwhile, instead of sending basic.cancel."""
        collected: list[str] = []
        self._cancelled = collected
        try:
            yield collected
        finally:
            self._cancelled = None

    def release(self) -> None:
        """The channel ends: remove all consumers."""
        if self.reply_tag is not None:
            self._remove_reply_consumer()
        consumers = list(self.by_tag.values())
        self.by_tag.clear()
        for consumer in consumers:
            self._remove(consumer)
        self._connection.release_arguments(consumers)

    # -- basic.get

    def get(self, method: m.BasicGet) -> None:
        connection = self._connection
        name = self._channel.queue_name(method.queue)
        self._access.require("receive", "queue", name)
        self._channel.topology.check_access(connection.vhost, name, connection)
        queue_key = qualified_name(connection.account, name)
        self._channel.topology.mark_used(queue_key)
        while not self._get_one(method, name, queue_key):
            pass  # an unreadable message is set aside: get the next one

    def _get_one(self, method: m.BasicGet, name: str, queue_key: str) -> bool:
        """Answer now or after the commit. False: the message cannot be read."""
        channel, connection, broker = self._channel, self._connection, self._channel.broker
        deliveries = broker.receive(queue_key, 1, NO_DEADLINE, f"{connection.label}/{channel.number}")
        if not deliveries:
            channel.send(m.BasicGetEmpty())
            return True
        [delivery] = deliveries
        receipt = [(delivery.entry.seq, delivery.number)]

        def show() -> bool:
            try:
                readable = broker.load(deliveries, queue_key)
            except OpenQError as error:
                lost()
                raise AmqpError(
                    INTERNAL_ERROR, f"a message cannot be read: {public_text(error)}", ends_connection=False
                ) from error
            if not readable:
                return False
            channel.traffic.delivered += 1
            connection.delivered += 1
            if method.no_ack:
                channel.traffic.acking()
                broker.ack(queue_key, receipt)
                channel.traffic.acked += 1
            ready = broker.waiting(queue_key).ready
            exchange, key = exchange_and_key(delivery.entry, name)
            amqp_properties = delivery_properties(broker, delivery, self._dispatchers.count_mode(queue_key))
            # Nothing suspends from here on, so that method and content are written together.
            tag = self._unacked.new_tag()
            if not method.no_ack:
                self._unacked.by_tag[tag] = (None, queue_key, delivery)
            channel.send(m.BasicGetOk(tag, delivery.count > 1, exchange, key, ready))
            connection.write(channel.content(amqp_properties, delivery.entry.body or b""))
            if not method.no_ack and (len(self._unacked) > _MAX_LOADED or delivery.entry.size > _LARGE_BODY):
                broker.drop_bodies(deliveries)  # as in `deliver`
            connection.apply_backpressure()
            return True

        def show_or_get_next() -> None:
            if not show():
                self.get(method)

        def lost() -> None:
            try:
                broker.release(queue_key, receipt)
            except (OutOfRoom, StoreError):
                self._dispatchers.hub.requeue_later(queue_key, receipt)
            except OpenQError:
                pass  # the queue is deleted, and the message with it

        if broker.commit_location(deliveries) is None:
            return show()
        channel.answer_after_commit(show_or_get_next, lost)
        return True

    # -- deliveries

    def deliver(self, consumer: AmqpConsumer, deliveries: list[Delivery]) -> None:
        """Write basic.deliver for each. Bodies are loaded, and the consumer's capacity is reserved."""
        connection = self._connection
        self._channel.traffic.delivered += len(deliveries)
        connection.delivered += len(deliveries)
        dispatcher = consumer.dispatcher
        out = connection.out
        unacked = self._unacked.by_tag
        needs_ack = not consumer.no_ack
        queue_key = dispatcher.queue_key
        tag = self._unacked.next_tag
        max_payload = connection.max_frame - FRAME_OVERHEAD
        count_mode = self._dispatchers.pushed_count_modes.get(queue_key, 0)
        broker = self._channel.broker
        headers = self._content_headers
        routes = consumer.routes
        pack = _U64.pack
        route: DeliveryRoute | None = None
        last_options: object = self  # equal to no options
        start = b""
        tail = b""
        for delivery in deliveries:
            entry = delivery.entry
            options = entry.options
            if options is not last_options:
                last_options = options
                key = None if options is None else options.route
                route = routes.get(key)
                if route is None:
                    if len(routes) >= max(_MIN_CACHED, _MAX_CACHED_ROUTES // (len(self.by_tag) or 1)):
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
            if needs_ack:
                unacked[tag] = (consumer, queue_key, delivery)
            body = entry.body or b""
            size = len(body)
            if 0 < size <= max_payload:
                header = headers.get((amqp_properties, size))
                if header is None:
                    header = self._encode_header(amqp_properties, size, max_payload)
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, header, body, END_BYTE)
            else:
                content = self._channel.content(amqp_properties, body)
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, content)
            tag += 1
        self._unacked.next_tag = tag
        if needs_ack and (len(unacked) > _MAX_LOADED or deliveries[-1].entry.size > _LARGE_BODY):
            broker.drop_bodies(deliveries)  # they may stay unacknowledged for days
        connection.flush_soon()

    def _encode_header(self, amqp_properties: bytes, size: int, max_payload: int) -> bytes:
        headers = self._content_headers
        fitting = fit_properties(amqp_properties, max_payload - CONTENT_OVERHEAD)
        header = content_head(self._channel.number, fitting, size)
        if len(amqp_properties) <= MAX_CACHED_BYTES:
            if len(headers) >= max(_MIN_CACHED, _MAX_CACHED_HEADERS // (len(self._connection.channels) or 1)):
                headers.clear()
            headers[amqp_properties, size] = header
        return header

    def _encode_route(self, consumer: AmqpConsumer, route: DeliveryRoute) -> None:
        """Encode basic.deliver for this consumer and route, except for tag and redelivered flag."""
        name = consumer.tag.encode()
        size = 4 + 1 + len(name) + 8 + 1 + len(route.tail)
        head = _METHOD_HEAD.pack(1, self._channel.number, size)
        route.start = b"".join((head, _DELIVER, bytes((len(name),)), name))
        route.tail += END_BYTE

    def deliver_reply(self, exchange: str, key: str, amqp_properties: bytes, body: bytes) -> None:
        """A direct reply goes past all queues; it is dropped if the client does not read."""
        assert self.reply_tag is not None
        if self._connection.transport.is_write_buffer_full:
            return
        tag = self._unacked.new_tag()
        self._channel.send(m.BasicDeliver(self.reply_tag, tag, False, exchange, key))
        self._connection.write(self._channel.content(amqp_properties, body))
        self._connection.flush_soon()


def _new_consumer_tag() -> str:
    return f"amq.ctag-{secrets.token_urlsafe(16)}"


def _priority(method: m.BasicConsume, name: str, vhost: str) -> int:
    priority = method.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise AmqpError(
            PRECONDITION_FAILED,
            f"invalid arg 'x-priority' for queue '{name}' in vhost '{vhost}': "
            f'"expected integer, got {type_of(priority)}"',
        )
    if "x-stream-offset" in method.arguments:
        raise AmqpError(
            PRECONDITION_FAILED,
            f"invalid arg 'x-stream-offset' for queue '{name}' in vhost '{vhost}' "
            "of queue type rabbit_classic_queue",
        )
    return priority
