"""Publishing on a channel: permissions, routing, confirms, returns.

A run of messages with the same method is authorized once, and goes to the broker in as few calls as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from .. import amqp_fields
from ..broker.interface import KnownQueue
from ..errors import OpenQError
from ..names import qualified_name
from . import methods as m
from .channel_consumers import ChannelConsumers
from .channel_context import ChannelContext
from .errors import NO_ROUTE, PRECONDITION_FAILED, AmqpError
from .publishing import PublishingBlocked, PublishProperties, PublishRun, PublishTarget
from .replies import DIRECT_REPLY_TO, is_reply_address

_CONFIRM = Struct(">BHIHHQBB")
_ACK_ID = (60, 80)
_NACK_ID = (60, 120)


class ChannelPublisher:
    def __init__(self, channel: ChannelContext, consumers: ChannelConsumers) -> None:
        connection = channel.connection
        self._channel = channel
        self._connection = connection
        self._consumers = consumers
        self._access = connection.access
        self._account = connection.account
        self._vhost = connection.publisher
        self._replies = channel.server.replies
        self._find_queue = channel.broker.find_queue
        self.is_confirming = False
        self.published = 0  # messages since confirm.select
        self.confirmed = 0
        self._refused: set[int] = set()  # tags above `confirmed` that were nacked already

    @property
    def channel_number(self) -> int:
        return self._channel.number

    # -- publishing

    def publish(self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]) -> None:
        """`all_properties`: one value for all messages, or one per message."""
        first = self.published + 1
        if self.is_confirming:
            self.published += len(bodies)
            self._connection.to_confirm[self] = None
        done, refused = self.publish_all(method, all_properties, bodies)
        if done < len(bodies):
            self._channel.server.disk_alarm.raise_()
            if not self.is_confirming:
                # The client would not learn of a refusal: it has to wait until there is space.
                run = PublishRun(method, all_properties, bodies).after(done)
                self._connection.block_publish(self, run)
            refused += range(done, len(bodies))
        if refused and self.is_confirming:
            for at in refused:
                self._send_confirm(first + at, False, False)
                self._refused.add(first + at)

    def retry(self, run: PublishRun) -> PublishRun | None:
        """Publish a blocked run; returns what is still without space."""
        if self._channel.is_closing:
            return None
        done = self.publish_all(*run)[0]
        return run.after(done) if done < len(run.bodies) else None

    def check(self, run: PublishRun) -> None:
        """Raise what publishing the run would raise now."""
        target = self._vhost.target(run.method)
        queue = self._authorize(target)
        each = run.all_properties
        for amqp_properties in [each] if isinstance(each, bytes) else each:
            self._vhost.queues(target, self._properties(target, amqp_properties), queue)

    def publish_all(
        self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> tuple[int, list[int]]:
        """How many messages were processed before the disk was full, and which of them a queue refused."""
        done, refused = self._publish_run(method, all_properties, bodies)
        self._channel.traffic.published += done - len(refused)
        self._connection.published += done - len(refused)
        return done, refused

    def _publish_run(
        self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> tuple[int, list[int]]:
        target = self._vhost.target(method)
        queue = self._authorize(target)
        if isinstance(all_properties, bytes):
            try:
                return len(bodies), self._publish(target, queue, all_properties, bodies)
            except PublishingBlocked as error:
                return error.done, error.refused
        single = self._vhost.single_plain_queue(target, queue)
        refused: list[int] = []
        at = 0
        while at < len(bodies):
            end = at if single is None else self._vhost.shapes.plain_until(all_properties, at)
            try:
                if single is None or end == at:
                    end = at + 1
                    refused += [at for _ in self._publish(target, queue, all_properties[at], bodies[at:end])]
                elif not self._vhost.publish_many(target, single, all_properties[at:end], bodies[at:end]):
                    single = None  # its settings changed meanwhile
                    continue
            except PublishingBlocked:
                return at, refused
            at = end
        return at, refused

    def _authorize(self, target: PublishTarget) -> KnownQueue | None:
        """Raises 403. Returns the queue that the default exchange routes to."""
        if not target.is_default:
            self._access.require("send", "exchange", target.exchange)
            return None
        if is_reply_address(target.key):
            return None  # the address itself is the permission
        queue = self._find_queue(target.queue_key)
        self._access.require_send(target.key, queue)
        return queue

    def _properties(self, target: PublishTarget, amqp_properties: bytes) -> PublishProperties:
        properties = self._vhost.properties(amqp_properties, target)
        if properties.keys and target.is_default:
            for key in properties.keys:
                self._access.require_send(key, self._find_queue(qualified_name(self._account, key)))
        return properties

    def _publish(
        self, target: PublishTarget, queue: KnownQueue | None, amqp_properties: bytes, bodies: list[bytes]
    ) -> list[int]:
        """Messages with the same properties. Returns the indexes of those that a queue refused."""
        properties = self._properties(target, amqp_properties)
        if properties.props.reply_to == DIRECT_REPLY_TO:
            properties = self._with_reply_address(target, properties)
        queues: Sequence[KnownQueue] = ()
        if not target.is_reply:
            queues = self._vhost.queues(target, properties, queue)
        else:
            replying = self._replies.find(target.key)
            if replying is not None:
                for body in bodies:
                    replying.deliver_reply(target.exchange, target.key, properties.amqp_properties, body)
                return []
        if not queues:
            if target.mandatory:
                self._return(target, amqp_properties, bodies)
            return []
        return self._vhost.publish(target, properties, queues, bodies)

    def _with_reply_address(self, target: PublishTarget, properties: PublishProperties) -> PublishProperties:
        if self._consumers.reply_tag is None:
            raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
        props = amqp_fields.decode(properties.amqp_properties)
        props.reply_to = self._consumers.reply_address
        return PublishProperties(amqp_fields.encode(props), props, target)

    def _return(self, target: PublishTarget, amqp_properties: bytes, bodies: list[bytes]) -> None:
        for body in bodies:
            self._channel.send(m.BasicReturn(NO_ROUTE, "NO_ROUTE", target.exchange, target.key))
            self._connection.write(self._channel.content(amqp_properties, body))

    # -- confirms

    def confirm_select(self, method: m.ConfirmSelect) -> None:
        self.is_confirming = True
        if not method.no_wait:
            self._channel.send(m.ConfirmSelectOk())

    def confirm_up_to(self, tag: int, error: OpenQError | None) -> None:
        """Everything published up to this tag is durable, or has failed with `error`."""
        if tag > self.confirmed and not self._channel.is_closing:
            last, count = tag, tag - self.confirmed
            if self._refused:
                answered = {each for each in self._refused if each <= tag}
                self._refused -= answered
                count -= len(answered)
                while last in answered:
                    last -= 1
            if count:
                self._send_confirm(last, count > 1, error is None)
            self.confirmed = tag

    def _send_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        class_id, method_id = _ACK_ID if is_ack else _NACK_ID
        number = self._channel.number
        self._connection.write(_CONFIRM.pack(1, number, 13, class_id, method_id, tag, multiple, 0xCE))
