"""The exchange and queue methods of a channel: permissions, then `topology.py`, then the answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ..auth.rules import LIST_ACTION
from ..broker.audit import FAILED, OK, REFUSED
from ..names import qualified_name
from . import methods as m
from .arguments import strip_line_ends
from .channel_consumers import ChannelConsumers
from .channel_context import ChannelContext
from .errors import ACCESS_REFUSED, NOT_FOUND, AmqpError
from .exchanges import is_built_in
from .replies import DIRECT_REPLY_TO, is_reply_address


class TopologyMethods:
    def __init__(self, channel: ChannelContext, consumers: ChannelConsumers) -> None:
        self._channel = channel
        self._consumers = consumers
        self._connection = channel.connection
        self._topology = channel.topology
        self._access = channel.connection.access
        self._vhost = channel.connection.vhost
        self._account = channel.connection.account

    @contextmanager
    def _audited(self, action: str, target: str, **detail: object) -> Iterator[dict[str, object]]:
        """Record what is done inside, unless it sets `unchanged`: clients declare what exists already each
        time they start. Refusals are always recorded, other errors are not: nothing was changed."""
        outcome = OK
        try:
            yield detail
        except AmqpError as error:
            outcome = REFUSED if error.code == ACCESS_REFUSED else FAILED
            raise
        finally:
            if outcome == REFUSED or (outcome == OK and not detail.pop("unchanged", False)):
                connection = self._connection
                if self._vhost != "/":
                    detail["vhost"] = self._vhost
                connection.context.audit.record(
                    "amqp",
                    action,
                    str(detail.pop("target", target)),
                    outcome,
                    user=connection.user,
                    peer=connection.peer,
                    detail={name: value for name, value in detail.items() if name != "unchanged"},
                )

    # -- exchanges

    def exchange_declare(self, method: m.ExchangeDeclare) -> None:
        name = strip_line_ends(method.exchange)
        with self._audited("exchange.declare", name, type=method.type, durable=method.durable) as audited:
            audited["unchanged"] = method.passive or self._has_exchange(name)
            if method.passive:
                # RabbitMQ checks no permission here. The predeclared exchanges exist in every vhost.
                if not is_built_in(name):
                    self._access.require(LIST_ACTION, "exchange", name)
            else:
                self._access.require("manage", "exchange", name)
                self._access.require_forwarding(method.arguments.get("alternate-exchange"), None)
            self._topology.declare_exchange(
                self._vhost,
                name,
                method.type,
                passive=method.passive,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=method.arguments,
            )
        self._channel.reply(method.no_wait, m.ExchangeDeclareOk())

    def exchange_delete(self, method: m.ExchangeDelete) -> None:
        name = strip_line_ends(method.exchange)
        with self._audited("exchange.delete", name):
            self._access.require("manage", "exchange", name)
            self._topology.delete_exchange(self._vhost, name, method.if_unused)
        self._channel.reply(method.no_wait, m.ExchangeDeleteOk())

    def exchange_bind(self, method: m.ExchangeBind) -> None:
        with self._audited(
            "exchange.bind", method.destination, source=method.source, routing_key=method.routing_key
        ) as audited:
            self._access.require("manage", "exchange", method.destination)
            self._access.require("manage", "exchange", method.source)
            audited["unchanged"] = not self._topology.bind_exchange(
                self._vhost, method.destination, method.source, method.routing_key, method.arguments
            )
        self._channel.reply(method.no_wait, m.ExchangeBindOk())

    def exchange_unbind(self, method: m.ExchangeUnbind) -> None:
        with self._audited(
            "exchange.unbind", method.destination, source=method.source, routing_key=method.routing_key
        ):
            self._access.require("manage", "exchange", method.destination)
            self._access.require("manage", "exchange", method.source)
            self._topology.unbind_exchange(
                self._vhost, method.destination, method.source, method.routing_key, method.arguments
            )
        self._channel.reply(method.no_wait, m.ExchangeUnbindOk())

    # -- queues

    def queue_declare(self, method: m.QueueDeclare) -> None:
        channel = self._channel
        name = strip_line_ends(method.queue)
        if name == DIRECT_REPLY_TO or is_reply_address(name):
            if name != DIRECT_REPLY_TO and channel.server.replies.find(name) is None:
                raise AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '{self._vhost}'")
            channel.last_declared_queue = name
            channel.reply(method.no_wait, m.QueueDeclareOk(name, 0, 1))
            return
        with self._audited("queue.declare", name, durable=method.durable) as audited:
            # Exclusive queues end with their connection: they are not administration.
            audited["unchanged"] = method.passive or method.exclusive or self._has_queue(name)
            if method.passive:
                self._access.require(LIST_ACTION, "queue", name)  # RabbitMQ checks no permission here
            else:
                self._access.require("manage", "queue", name or f"amq.gen-{secrets.token_urlsafe(16)}")
                self._access.require_forwarding(
                    method.arguments.get("x-dead-letter-exchange"),
                    method.arguments.get("x-dead-letter-routing-key"),
                )
            name = self._topology.declare_queue(
                self._vhost,
                name,
                passive=method.passive,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
                owner=self._connection,
            )
            audited["target"] = name
        channel.last_declared_queue = name
        queue_key = qualified_name(self._account, name)
        ready = channel.broker.waiting(queue_key).ready
        self._topology.mark_used(queue_key)
        consumers = channel.server.dispatchers.consumers_of(queue_key)
        channel.reply(method.no_wait, m.QueueDeclareOk(name, ready, consumers))

    def _has_exchange(self, name: str) -> bool:
        try:
            self._topology.exchange(self._vhost, name)
        except AmqpError:
            return False
        return True

    def _has_queue(self, name: str) -> bool:
        return bool(name) and self._channel.broker.find_queue(qualified_name(self._account, name)) is not None

    def queue_bind(self, method: m.QueueBind) -> None:
        name = self._channel.queue_name(method.queue)
        key = method.routing_key or (self._channel.last_declared_queue if not method.queue else "")
        with self._audited("queue.bind", name, source=method.exchange, routing_key=key) as audited:
            self._require_binding(name, method.exchange)
            audited["unchanged"] = not self._topology.bind_queue(
                self._vhost, name, method.exchange, key, method.arguments, self._connection
            )
        self._channel.reply(method.no_wait, m.QueueBindOk())

    def queue_unbind(self, method: m.QueueUnbind) -> None:
        name = self._channel.queue_name(method.queue)
        with self._audited("queue.unbind", name, source=method.exchange, routing_key=method.routing_key):
            self._require_binding(name, method.exchange)
            self._topology.unbind_queue(
                self._vhost, name, method.exchange, method.routing_key, method.arguments, self._connection
            )
        self._channel.reply(False, m.QueueUnbindOk())

    def _require_binding(self, queue: str, exchange: str) -> None:
        self._access.require("manage", "queue", queue)
        if exchange:
            self._access.require("manage", "exchange", exchange)

    def queue_purge(self, method: m.QueuePurge) -> None:
        name = self._channel.queue_name(method.queue)
        with self._audited("queue.purge", name) as audited:
            self._access.require("manage", "queue", name)
            audited["messages"] = count = self._topology.purge_queue(self._vhost, name, self._connection)
        self._channel.reply(method.no_wait, m.QueuePurgeOk(count))

    def queue_delete(self, method: m.QueueDelete) -> None:
        channel = self._channel
        name = channel.queue_name(method.queue)
        with self._audited("queue.delete", name) as audited:
            self._access.require("manage", "queue", name)
            queue_key = qualified_name(self._account, name)
            # py-amqp relies on delete-ok coming before the cancellation of own consumers.
            with self._consumers.collect_cancelled() as cancelled_tags:
                audited["messages"] = count = self._topology.delete_queue(
                    self._vhost,
                    name,
                    self._connection,
                    if_unused=method.if_unused,
                    if_empty=method.if_empty,
                    has_consumers=method.if_unused
                    and channel.server.dispatchers.consumers_of(queue_key, now=True) > 0,
                )

        def answer() -> None:
            if not method.no_wait:
                channel.send(m.QueueDeleteOk(count))
            for tag in cancelled_tags:
                channel.send(m.BasicCancel(tag, True))

        channel.answer_after_commit(answer)
