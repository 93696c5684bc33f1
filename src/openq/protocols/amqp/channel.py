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

from ... import properties
from ...broker.full import KnownQueue
from ...errors import OpenQError, OutOfRoom, StoreError, public_text
from ...model import NO_DEADLINE, Delivery
from ...names import full_name
from ...properties import is_plain
from ...security.policy import SEE
from ..buffers import SMALL
from . import methods as m
from .arguments import type_of
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
from .outgoing import Route, fitted, route_of, wire_of
from .outlet import UNLIMITED, Consumer
from .publishing import MAX_KEPT_BYTES, REPLY_TO, NoRoom, Stamp, Target, size_of_publishes
from .topology import encoded_arguments, is_built_in, stripped

if TYPE_CHECKING:
    from .connection import Connection

_CONFIRM = Struct(">BHIHHQBB")
_ACK_ID = (60, 80)
_NACK_ID = (60, 120)
_U64 = Struct(">Q")
_METHOD_HEAD = Struct(">BHI")
_DELIVER = b"\x00\x3c\x00\x3c"
_FLAGS = (b"\x00", b"\x01")
# Remembered for the next delivery like it: by all channels of a connection, and all consumers of a channel.
_MAX_HEADS = 1024
_MAX_ROUTES = 256
_MIN_HEADS = 8
MAX_CONSUMERS = 10_000
_MAX_LOADED = 1000  # open deliveries of a channel whose bodies stay in memory
_HEAVY = 64 * 1024

Settle = Callable[[str, list[tuple[int, int]]], object]  # with receipts of a queue: a verb of the broker
Lent = tuple["Consumer | None", str, Delivery]  # who got it (None: by get), the engine's queue, the delivery


class Channel:
    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.is_closing = False
        self.is_confirming = False
        self.is_transactional = False
        self.is_flowing = True
        self.published = 0  # messages since confirm.select
        self.confirmed = 0
        self._refused: set[int] = set()  # those after `confirmed` that were answered with a nack already
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, Lent] = {}
        self.lent = 0
        self.prefetch = 0  # of consumers to come
        self.shared_prefetch = 0  # of all its consumers together; 0 = none
        self.last_queue = ""
        self.reply_tag: str | None = None  # the consumer of direct replies
        self.reply_token = ""
        # Who deletes a queue hears that before what became of its own consumers: py-amqp relies on it.
        self._is_deleting = False
        self._orphans: list[str] = []
        self._next_tag = 1
        self._heads: dict[tuple[bytes, int], bytes] = {}
        self._held_publishes: list[tuple[bytes, bytes | list[bytes], list[bytes]]] = []
        self._held_bytes = 0
        self._held_settlements: list[tuple[Settle, dict[int, Lent]]] = []  # what is to be done, by tag

    # -- what comes in

    def method(self, payload: bytes) -> None:
        method = self.connection.decode(payload)
        if self.is_closing:
            if isinstance(method, m.ChannelCloseOk):
                self.connection.drop_channel(self)
            elif isinstance(method, m.ChannelClose):
                self.send(m.ChannelCloseOk())
            return
        act = _ACTS.get(type(method))
        if act is None:
            raise AmqpError(COMMAND_INVALID, "unimplemented method")
        act(self, method)

    def send(self, method: m.Method) -> None:
        self.connection.send(self.number, method)

    def reply(self, no_wait: bool, method: m.Method) -> None:
        """Once what was done is on disk."""
        if no_wait:
            return
        self.connection.answer_when_safe(self, lambda: self.send(method))

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
            self.pump()

    def _access_request(self, method: m.AccessRequest) -> None:
        self.send(m.AccessRequestOk())

    # -- exchanges

    def _exchange_declare(self, method: m.ExchangeDeclare) -> None:
        connection = self.connection
        name = stripped(method.exchange)
        if method.passive:
            # RabbitMQ asks for no right here. What is in every vhost anyway may be asked for by anybody.
            if not is_built_in(name):
                connection.require(SEE, "exchange", name)
        else:
            connection.require("manage", "exchange", name)
            connection.require_onward(method.arguments.get("alternate-exchange"), None)
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
        name = stripped(method.exchange)
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

    def _named(self, queue: str) -> str:
        """An empty name is the queue that was declared last on this channel."""
        if queue:
            return queue
        if not self.last_queue:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def _queue_declare(self, method: m.QueueDeclare) -> None:
        connection = self.connection
        name = stripped(method.queue)
        if name == REPLY_TO or name.startswith(f"{REPLY_TO}."):
            if name != REPLY_TO and not connection.door.can_reply(name):
                raise AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '{connection.vhost}'")
            self.last_queue = name
            self.reply(method.no_wait, m.QueueDeclareOk(name, 0, 1))
            return
        if method.passive:
            connection.require(SEE, "queue", name)  # RabbitMQ asks for no right, and tells of every queue
        else:
            connection.require("manage", "queue", name or f"amq.gen-{secrets.token_urlsafe(16)}")
            onward = method.arguments.get("x-dead-letter-exchange")
            connection.require_onward(onward, method.arguments.get("x-dead-letter-routing-key"))
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
        self.last_queue = name
        full = full_name(connection.account, name)
        ready = connection.broker.ready_count(full)
        connection.topology.touch(full)
        count = connection.door.consumers_of(full)
        self.reply(method.no_wait, m.QueueDeclareOk(name, ready, count))

    def _queue_bind(self, method: m.QueueBind) -> None:
        connection = self.connection
        name = self._named(method.queue)
        key = method.routing_key or (self.last_queue if not method.queue else "")
        connection.require("manage", "queue", name)
        if method.exchange:
            connection.require("manage", "exchange", method.exchange)
        connection.topology.bind_queue(
            connection.vhost, name, method.exchange, key, method.arguments, connection
        )
        self.reply(method.no_wait, m.QueueBindOk())

    def _queue_unbind(self, method: m.QueueUnbind) -> None:
        connection = self.connection
        name = self._named(method.queue)
        connection.require("manage", "queue", name)
        if method.exchange:
            connection.require("manage", "exchange", method.exchange)
        connection.topology.unbind_queue(
            connection.vhost, name, method.exchange, method.routing_key, method.arguments, connection
        )
        self.reply(False, m.QueueUnbindOk())

    def _queue_purge(self, method: m.QueuePurge) -> None:
        connection = self.connection
        name = self._named(method.queue)
        connection.require("manage", "queue", name)
        count = connection.topology.purge_queue(connection.vhost, name, connection)
        self.reply(method.no_wait, m.QueuePurgeOk(count))

    def _queue_delete(self, method: m.QueueDelete) -> None:
        connection = self.connection
        name = self._named(method.queue)
        connection.require("manage", "queue", name)
        full = full_name(connection.account, name)
        self._is_deleting = True
        try:
            count = connection.topology.delete_queue(
                connection.vhost,
                name,
                connection,
                if_unused=method.if_unused,
                if_empty=method.if_empty,
                in_use=method.if_unused and connection.door.consumers_of(full, now=True) > 0,
            )
        finally:
            self._is_deleting = False
        orphans, self._orphans = self._orphans, []

        def answer() -> None:
            if not method.no_wait:
                self.send(m.QueueDeleteOk(count))
            for tag in orphans:
                self.send(m.BasicCancel(tag, True))

        connection.answer_when_safe(self, answer)

    # -- consuming

    def room(self) -> int:
        if self.is_closing or not self.is_flowing or not self.connection.can_write:
            return 0
        return max(self.shared_prefetch - self.lent, 0) if self.shared_prefetch else UNLIMITED

    def _qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.shared_prefetch = method.prefetch_count
            self.pump()
        else:
            self.prefetch = method.prefetch_count
        self.send(m.BasicQosOk())

    def _consume(self, method: m.BasicConsume) -> None:
        connection = self.connection
        if method.queue == REPLY_TO:
            self._consume_replies(method)
            return
        name = self._named(method.queue)
        connection.require("receive", "queue", name)
        tag = method.consumer_tag or self._new_tag()
        if len(self.consumers) >= MAX_CONSUMERS:
            raise AmqpError(NOT_ALLOWED, f"more than {MAX_CONSUMERS} consumers on one channel")
        if tag in self.consumers or tag == self.reply_tag:
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        connection.topology.check_access(connection.vhost, name, connection)
        full = full_name(connection.account, name)
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
        others = connection.topology.neighbours.elsewhere(full, now=True)
        outlet = connection.door.outlet(full)
        is_exclusive = outlet.exclusive or any(each.exclusive for each in others)
        if is_exclusive or (method.exclusive and (outlet.consumers or outlet.single_active or others)):
            connection.door.forget_outlet(outlet)
            raise AmqpError(ACCESS_REFUSED, f"queue '{name}' in vhost '{connection.vhost}' in exclusive use")
        consumer = Consumer(
            self,
            outlet,
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
        outlet.add(consumer)
        connection.topology.touch(full)
        if not method.no_wait:
            self.send(m.BasicConsumeOk(tag))
        connection.door.consumer_came(outlet)
        connection.to_pump[outlet] = None
        if connection.argument_bytes > SMALL:
            connection.report()

    def _new_tag(self) -> str:
        return f"amq.ctag-{secrets.token_urlsafe(16)}"

    def _consume_replies(self, method: m.BasicConsume) -> None:
        if not method.no_ack:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_tag is not None:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
        self.reply_tag = method.consumer_tag or self._new_tag()
        self.connection.door.add_reply_consumer(self)
        if not method.no_wait:
            self.send(m.BasicConsumeOk(self.reply_tag))

    def _cancel(self, method: m.BasicCancel) -> None:
        tag = method.consumer_tag
        if tag == self.reply_tag:
            self.connection.door.remove_reply_consumer(self)
            self.reply_tag = None
        consumer = self.consumers.pop(tag, None)
        if not method.no_wait:
            self.send(m.BasicCancelOk(tag))
        if consumer is not None:
            self._retire(consumer)
            self.connection.let_go_of_arguments([consumer])

    def _cancel_ok(self, method: m.BasicCancelOk) -> None:
        """The client has heard that its consumer is gone."""

    def _retire(self, consumer: Consumer) -> None:
        if not consumer.gone:
            consumer.outlet.remove(consumer)
            self.connection.door.consumer_left(consumer.outlet)
            self.connection.to_pump[consumer.outlet] = None

    def cancelled(self, consumer: Consumer) -> None:
        """By the server: its queue is gone."""
        if self.consumers.pop(consumer.tag, None) is not None:
            self.connection.let_go_of_arguments([consumer])
        if self.is_closing or not self.connection.is_capable("consumer_cancel_notify"):
            return
        if self._is_deleting:
            self._orphans.append(consumer.tag)
            return
        self.send(m.BasicCancel(consumer.tag, True))
        self.connection.flush_soon()

    def _get(self, method: m.BasicGet) -> None:
        connection = self.connection
        name = self._named(method.queue)
        connection.require("receive", "queue", name)
        connection.topology.check_access(connection.vhost, name, connection)
        full = full_name(connection.account, name)
        connection.topology.touch(full)
        while not self._get_one(method, name, full):
            pass  # what could not be read is set aside: the next one, then

    def _get_one(self, method: m.BasicGet, name: str, full: str) -> bool:
        """The answer is given or on its way. False: the message cannot be read."""
        connection = self.connection
        broker = connection.broker
        deliveries = broker.receive(full, 1, NO_DEADLINE, f"{connection.label}/{self.number}")
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
                broker.ack(full, receipt)
            ready = broker.ready_count(full)
            exchange, key = route_of(delivery.entry, name)
            redelivered = delivery.count > 1
            wire = wire_of(broker, delivery, connection.door.counting(full))
            # Nothing waits from here on: what belongs together is written together.
            tag = self._new_delivery_tag()
            if not method.no_ack:
                self.unacked[tag] = (None, full, delivery)
            self.send(m.BasicGetOk(tag, redelivered, exchange, key, ready))
            connection.write(self._content(wire, delivery.entry.body or b""))
            if not method.no_ack and (len(self.unacked) > _MAX_LOADED or delivery.entry.size > _HEAVY):
                broker.unload(deliveries)  # as `deliver` does
            connection.ease()
            return True

        def show_or_next() -> None:
            if not show():
                self._get(method)

        def lost() -> None:
            try:
                broker.release(full, receipt)
            except (OutOfRoom, StoreError):
                connection.door.return_later(full, receipt)
            except OpenQError:
                pass  # the queue is gone, and the message with it

        if broker.is_loaded(deliveries):
            return show()
        connection.answer_when_safe(self, show_or_next, lost)
        return True

    def _new_delivery_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag - 1

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages to a consumer, bodies loaded, room reserved."""
        connection = self.connection
        outlet = consumer.outlet
        out = connection.out
        unacked = self.unacked
        keeps = not consumer.no_ack
        full = outlet.full
        tag = self._next_tag
        most = connection.max_frame - FRAME_OVERHEAD
        counting = outlet.counting
        broker = connection.broker
        heads = self._heads
        routes = consumer.routes
        pack = _U64.pack
        route: Route | None = None
        last_extra: object = self  # nothing is this
        start = b""
        tail = b""
        for delivery in deliveries:
            entry = delivery.entry
            extra = entry.extra
            if extra is not last_extra:
                last_extra = extra
                key = None if extra is None else extra.route
                route = routes.get(key)
                if route is None:
                    if len(routes) >= max(_MIN_HEADS, _MAX_ROUTES // (len(self.consumers) or 1)):
                        routes.clear()
                    route = routes[key] = Route(*route_of(entry, outlet.queue))
                    self._start_of(consumer, route)
                start = route.start
                tail = route.tail
            info = entry.info
            if (
                info is not None
                and info.wire is not None
                and (extra is None or not extra.deaths)
                and counting <= (delivery.count == 1)
            ):
                wire = info.wire
            else:
                wire = wire_of(broker, delivery, counting)
            if keeps:
                unacked[tag] = (consumer, full, delivery)
            body = entry.body or b""
            size = len(body)
            if 0 < size <= most:
                head = heads.get((wire, size))
                if head is None:
                    head = content_head(self.number, fitted(wire, most - CONTENT_OVERHEAD), size)
                    if len(wire) <= MAX_KEPT_BYTES:
                        if len(heads) >= max(_MIN_HEADS, _MAX_HEADS // (len(connection.channels) or 1)):
                            heads.clear()
                        heads[wire, size] = head
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, head, body, END_BYTE)
            else:
                content = self._content(wire, body)
                out += (start, pack(tag), _FLAGS[delivery.count > 1], tail, content)
            tag += 1
        self._next_tag = tag
        if keeps and (len(unacked) > _MAX_LOADED or deliveries[-1].entry.size > _HEAVY):
            broker.unload(deliveries)  # they may stay open for days
        connection.flush_soon()

    def flush(self) -> None:
        self.connection.flush()

    def _content(self, wire: bytes, body: bytes) -> bytes:
        max_frame = self.connection.max_frame
        wire = fitted(wire, max_frame - FRAME_OVERHEAD - CONTENT_OVERHEAD)
        return content_frames(self.number, wire, body, max_frame)

    def _start_of(self, consumer: Consumer, route: Route) -> None:
        """How a deliver by this route begins, up to its tag."""
        name = consumer.tag.encode()
        size = 4 + 1 + len(name) + 8 + 1 + len(route.tail)
        head = _METHOD_HEAD.pack(1, self.number, size)
        route.start = b"".join((head, _DELIVER, bytes((len(name),)), name))
        route.tail += END_BYTE

    def deliver_reply(self, target: Target, wire: bytes, body: bytes) -> None:
        """A direct reply: to the consumer, past all queues."""
        assert self.reply_tag is not None
        if self.connection.transport.is_overfull:
            return  # nobody reads them; replies are a promise to nobody
        tag = self._new_delivery_tag()
        self.send(m.BasicDeliver(self.reply_tag, tag, False, target.exchange, target.key))
        self.connection.write(self._content(wire, body))
        self.connection.flush_soon()

    # -- settling

    def acks(self, tags: list[int]) -> None:
        if self.is_closing:
            return
        self._settle_or_hold(tags, self.connection.broker.ack)

    def _settle_or_hold(self, tags: list[int], settle: Settle) -> None:
        if self.is_transactional:
            self._put_aside(tags, settle)
        else:
            self._settle(tags, settle)

    def _settle(self, tags: Iterable[int], settle: Settle) -> None:
        """Take these out of the open ones, and tell the broker queue by queue."""
        unacked = self.unacked
        connection = self.connection
        last = ""
        receipts: list[tuple[int, int]] = []
        groups: dict[str, list[tuple[int, int]]] = {}
        taken: list[tuple[int, Lent]] = []
        unknown: int | None = None
        for tag in tags:
            lent = unacked.pop(tag, None)
            if lent is None:
                unknown = tag
                break
            taken.append((tag, lent))
            consumer, full, delivery = lent
            if full != last:
                last = full
                receipts = groups.setdefault(full, [])
            receipts.append((delivery.entry.seq, delivery.number))
        for full, group in groups.items():
            try:
                settle(full, group)
            except (OutOfRoom, StoreError):
                unacked.update(taken)  # full to the last byte, or away: they are still lent
                self.unacked = dict(sorted(unacked.items()))
                raise
            except OpenQError:
                continue  # the queue is gone, and its messages with it
        for _, (consumer, _, _) in taken:
            if consumer is not None:
                consumer.unacked -= 1
                self.lent -= 1
                if not consumer.gone:
                    connection.to_pump[consumer.outlet] = None
        if self.shared_prefetch:
            self.pump()
        if unknown is not None:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {unknown}")

    def _up_to(self, tag: int, multiple: bool) -> list[int]:
        if not multiple:
            return [tag]
        if not tag:
            return list(self.unacked)
        if tag not in self.unacked:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        # Tags rise, so those up to this one come first.
        return list(takewhile(lambda each: each <= tag, self.unacked))

    def _put_aside(self, tags: list[int], settle: Settle) -> None:
        """Settled by the client, though not before it commits."""
        aside: dict[int, Lent] = {}
        self._held_settlements.append((settle, aside))
        for tag in tags:
            lent = self.unacked.pop(tag, None)
            if lent is None:
                raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            aside[tag] = lent

    def _take_back(self) -> None:
        """What was put aside is open again, each in its place."""
        held, self._held_settlements = self._held_settlements, []
        for _, aside in held:
            self.unacked.update(aside)
        if held:
            self.unacked = dict(sorted(self.unacked.items()))

    def _ack(self, method: m.BasicAck) -> None:
        self.acks(self._up_to(method.delivery_tag, method.multiple))

    def _reject(self, method: m.BasicReject) -> None:
        self._turn_down([method.delivery_tag], method.requeue)

    def _nack(self, method: m.BasicNack) -> None:
        self._turn_down(self._up_to(method.delivery_tag, method.multiple), method.requeue)

    def _turn_down(self, tags: list[int], requeue: bool) -> None:
        broker = self.connection.broker
        self._settle_or_hold(tags, broker.nack_many if requeue else broker.reject_many)

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

    def publishes(self, method: bytes, wires: bytes | list[bytes], bodies: list[bytes]) -> None:
        """`wires`: the properties of all, or of each."""
        if self.is_closing:
            return
        if self.is_transactional:
            for wire in [wires] if isinstance(wires, bytes) else wires:
                self.connection.publisher.queues(*self._check_publish(method, wire))
            self._held_publishes.append((method, wires, bodies))
            size = size_of_publishes(method, wires, bodies) + 100 * len(bodies)
            self._held_bytes += size
            self.connection.hold_bytes(size)
            return
        connection = self.connection
        first = self.published + 1
        if self.is_confirming:
            self.published += len(bodies)
            connection.to_confirm[self] = None
        done, refused = self._publish_all(method, wires, bodies)
        if done < len(bodies):
            connection.door.disk_is_full()
            if not self.is_confirming:
                # Nobody would hear of it: the client has to wait until there is room.
                rest = wires if isinstance(wires, bytes) else wires[done:]
                connection.hold_publishes(self, method, rest, bodies[done:])
            refused += range(done, len(bodies))
        if refused and self.is_confirming:
            for at in refused:
                self._confirm(first + at, False, False)
                self._refused.add(first + at)

    def try_again(self, method: bytes, wires: bytes | list[bytes], bodies: list[bytes]) -> int:
        """Publishes that were held back: how many there is room for now."""
        return self._publish_all(method, wires, bodies)[0]

    def _publish_all(
        self, method: bytes, wires: bytes | list[bytes], bodies: list[bytes]
    ) -> tuple[int, list[int]]:
        """How many were dealt with before the disk was full, and which of them a queue refused."""
        if isinstance(wires, bytes):
            try:
                return len(bodies), self._publish(method, wires, bodies)
            except NoRoom as full:
                return full.done, full.refused
        publisher = self.connection.publisher
        queue = publisher.only_queue(self._target(method))
        refused: list[int] = []
        at = 0
        while at < len(bodies):
            end = at
            if queue is not None:
                while end < len(bodies) and is_plain(wires[end]):
                    end += 1
            try:
                if queue is None or end == at:
                    end = at + 1
                    refused += [at for _ in self._publish(method, wires[at], bodies[at:end])]
                elif not publisher.put_each(self._target(method), queue, wires[at:end], bodies[at:end]):
                    queue = None  # it is not what it was a moment ago
                    continue
            except NoRoom:
                return at, refused
            at = end
        return at, refused

    def _target(self, method: bytes) -> Target:
        """What a publish is directed to, by somebody who may."""
        connection = self.connection
        target = connection.publisher.target(method)
        if not target.exchange:
            if target.key.startswith(f"{REPLY_TO}."):
                return target  # whoever knows such an address was asked for an answer
            connection.require("send", "queue", target.key, of_exchange="amq.default")
        else:
            connection.require("send", "exchange", target.exchange)
        return target

    def _check_publish(self, method: bytes, wire: bytes) -> tuple[Target, Stamp]:
        target = self._target(method)
        stamp = self.connection.publisher.stamp(wire, target)
        if not target.exchange:
            for key in stamp.keys:
                self.connection.require("send", "queue", key, of_exchange="amq.default")
        return target, stamp

    def _publish(self, method: bytes, wire: bytes, bodies: list[bytes]) -> list[int]:
        connection = self.connection
        target, stamp = self._check_publish(method, wire)
        if stamp.props.reply_to == REPLY_TO:
            if self.reply_tag is None:
                raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            props = properties.decode(stamp.wire)
            props.reply_to = connection.door.reply_address(self)
            stamp = Stamp(properties.encode(props), props, target)
        if not target.exchange and target.key.startswith(REPLY_TO):
            replying = connection.door.reply_channel(target.key)
            if replying is not None:
                for body in bodies:
                    replying.deliver_reply(target, stamp.wire, body)
                return []
            queues: Sequence[KnownQueue] = []
        else:
            queues = connection.publisher.queues(target, stamp)
        if not queues:
            if target.mandatory:
                self._return(NO_ROUTE, "NO_ROUTE", target, wire, bodies)
            return []
        return connection.publisher.put(target, stamp, queues, bodies)

    def _return(self, code: int, text: str, target: Target, wire: bytes, bodies: list[bytes]) -> None:
        connection = self.connection
        for body in bodies:
            self.send(m.BasicReturn(code, text, target.exchange, target.key))
            connection.write(self._content(wire, body))

    def _select_confirms(self, method: m.ConfirmSelect) -> None:
        if self.is_transactional:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.is_confirming = True
        if not method.no_wait:
            self.send(m.ConfirmSelectOk())

    def safe_up_to(self, tag: int, error: OpenQError | None) -> None:
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
        publishes, self._held_publishes = self._held_publishes, []
        self._let_go()
        is_whole = True
        for method_bytes, wires, bodies in publishes:
            done, refused = self._publish_all(method_bytes, wires, bodies)
            if done < len(bodies):
                raise AmqpError(RESOURCE_ERROR, "the disk is full; the transaction is only done in part")
            is_whole = is_whole and not refused
        while self._held_settlements:
            settle, aside = self._held_settlements.pop(0)
            self.unacked.update(aside)
            self._settle(aside, settle)
        if not is_whole:
            raise AmqpError(PRECONDITION_FAILED, "partial tx completion")
        self.reply(False, m.TxCommitOk())

    def _rollback(self, method: m.TxRollback) -> None:
        self._require_tx()
        self._held_publishes = []
        self._let_go()
        self._take_back()
        self.send(m.TxRollbackOk())

    def _let_go(self) -> None:
        self.connection.hold_bytes(-self._held_bytes)
        self._held_bytes = 0

    # -- the end

    def pump(self) -> None:
        """All its consumers may have room now."""
        for consumer in self.consumers.values():
            self.connection.to_pump[consumer.outlet] = None

    def release(self) -> None:
        """Consumers go, and what they had not settled returns to its place, marked as delivered."""
        self.is_closing = True
        if self.reply_tag is not None:
            self.connection.door.remove_reply_consumer(self)
            self.reply_tag = None
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            self._retire(consumer)
        self.connection.let_go_of_arguments(consumers)
        self._held_publishes = []
        self._let_go()
        self._take_back()
        groups: dict[str, list[tuple[int, int]]] = {}
        for _, full, delivery in self.unacked.values():
            groups.setdefault(full, []).append((delivery.entry.seq, delivery.number))
        self.unacked.clear()
        for full, receipts in groups.items():
            try:
                self.connection.broker.nack_many(full, receipts)
            except (OutOfRoom, StoreError):
                self.connection.door.return_later(full, receipts)
            except OpenQError:
                pass  # the queue is gone, or the broker is


_ACTS: dict[type[m.Method], Callable[[Channel, Any], None]] = {
    m.ChannelOpen: Channel._open,
    m.ChannelClose: Channel._close,
    m.ChannelCloseOk: Channel._close_ok,
    m.ChannelFlow: Channel._flow,
    m.AccessRequest: Channel._access_request,
    m.ExchangeDeclare: Channel._exchange_declare,
    m.ExchangeDelete: Channel._exchange_delete,
    m.ExchangeBind: Channel._exchange_bind,
    m.ExchangeUnbind: Channel._exchange_unbind,
    m.QueueDeclare: Channel._queue_declare,
    m.QueueBind: Channel._queue_bind,
    m.QueueUnbind: Channel._queue_unbind,
    m.QueuePurge: Channel._queue_purge,
    m.QueueDelete: Channel._queue_delete,
    m.BasicQos: Channel._qos,
    m.BasicConsume: Channel._consume,
    m.BasicCancel: Channel._cancel,
    m.BasicCancelOk: Channel._cancel_ok,
    m.BasicGet: Channel._get,
    m.BasicAck: Channel._ack,
    m.BasicReject: Channel._reject,
    m.BasicNack: Channel._nack,
    m.BasicRecover: Channel._recover,
    m.BasicRecoverAsync: Channel._recover,
    m.ConfirmSelect: Channel._select_confirms,
    m.TxSelect: Channel._select_tx,
    m.TxCommit: Channel._commit,
    m.TxRollback: Channel._rollback,
}
