"""Publishing into the exchanges of a vhost, with caches for repeated publishes.

A `PublishTarget` is what the method says (exchange, key, mandatory), `PublishProperties` what the properties
say. Both are decoded once and found again by their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

from .. import amqp_fields
from ..amqp_fields import AmqpProperties, MalformedProperties, PlainShapes
from ..broker.interface import KnownQueue
from ..errors import OutOfRoom
from ..model import ENCODING_BYTES, MAX_SPAN_MS, Draft, Properties, plain_options
from ..names import qualified_name
from ..server.context import ServerContext
from .arguments import type_of
from .errors import ACCESS_REFUSED, NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, SYNTAX_ERROR, AmqpError
from .method_codec import decode_method
from .methods import BasicPublish
from .replies import DIRECT_REPLY_TO
from .topology import Topology

DELAY, OWN_DELAY = amqp_fields.DELAY_HEADERS
_MAX_CACHED = 1000  # per connection
MAX_CACHED_TOTAL = 50_000  # of all connections
MAX_CACHED_BYTES = 512  # longer properties are hardly ever repeated
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class PublishingBlocked(Exception):
    """The disk is full. `done` messages were processed; a queue refused those in `refused`."""

    def __init__(self, done: int, refused: list[int]) -> None:
        super().__init__("the disk is full")
        self.done = done
        self.refused = refused


class PublishRun(NamedTuple):
    """Publishes with the same method that wait: for a commit of their transaction, or for disk space."""

    method: bytes
    all_properties: bytes | list[bytes]  # one value for all messages, or one per message
    bodies: list[bytes]

    @property
    def size(self) -> int:
        each = self.all_properties
        properties_size = len(each) if isinstance(each, bytes) else sum(map(len, each))
        return len(self.method) + properties_size + sum(map(len, self.bodies))

    def after(self, count: int) -> PublishRun:
        """Without the first `count` messages."""
        each = self.all_properties
        return PublishRun(self.method, each if isinstance(each, bytes) else each[count:], self.bodies[count:])


class PublishTarget:
    """`queue_key`: the queue that the default exchange routes to. `is_reply`: a direct reply."""

    __slots__ = ("exchange", "exchange_key", "is_default", "is_reply", "key", "mandatory", "queue_key")

    def __init__(self, method: BasicPublish, account: str) -> None:
        self.exchange = method.exchange
        self.key = method.routing_key
        self.mandatory = method.mandatory
        self.exchange_key = qualified_name(account, method.exchange)
        self.is_default = not method.exchange
        self.is_reply = self.is_default and method.routing_key.startswith(DIRECT_REPLY_TO)
        self.queue_key = qualified_name(account, method.routing_key) if self.is_default else ""


class PublishProperties:
    """Properties as the broker takes them. `is_plain`: none of them affects routing or delivery.

    `keys`: further routing keys (CC, BCC).
    """

    __slots__ = ("amqp_properties", "draft", "headers", "is_plain", "keys", "options", "properties", "props")

    def __init__(self, amqp_properties: bytes, props: AmqpProperties, target: PublishTarget) -> None:
        self.props = props
        headers: dict[str, Any] = props.headers or {}
        self.headers = headers
        self.keys = [*_copy_keys(headers, "CC"), *_copy_keys(headers, "BCC")]
        self.amqp_properties = (
            amqp_fields.with_headers(amqp_properties, {}, drop=("BCC",))
            if "BCC" in headers
            else amqp_properties
        )
        self.properties = Properties.from_amqp(self.amqp_properties)
        if props.delivery_mode not in (None, 1, 2):
            mode = props.delivery_mode
            raise AmqpError(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{mode}}}")
        self.draft: dict[str, Any] = {}
        if props.priority:
            self.draft["priority"] = props.priority
        if props.expiration is not None:
            self.draft["ttl_ms"] = _parse_expiration(props.expiration)
        if group := amqp_fields.group_of(headers):
            self.draft["group"] = group
        if dedup := amqp_fields.dedup_of(headers):
            self.draft["dedup"] = dedup
        delay = _parse_delay(headers.get(OWN_DELAY))
        if delay:
            self.draft["delay_ms"] = delay
        self.is_plain = not self.draft and not self.keys and DELAY not in headers
        if props.type is not None:
            self.draft["type"] = props.type
        route = (target.exchange_key, target.key)
        self.options = plain_options(route, props.type)
        self.draft["route"] = route
        self.draft["properties"] = self.properties


def _copy_keys(headers: dict[str, Any], name: str) -> list[str]:
    value = headers.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise AmqpError(
            PRECONDITION_FAILED,
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_of(value)}}}',
        )
    return [each for each in value if isinstance(each, str)]


def _parse_delay(value: object) -> int:
    """Milliseconds, from a number or text; 0 if the value is not a valid delay."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if len(text) <= 20 and _NUMBER.fullmatch(text) else 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 < value <= MAX_SPAN_MS else 0


def _parse_expiration(text: str) -> int:
    found = _NUMBER.match(text)
    if found is None:
        problem = "no_integer"
    elif found.end() < len(text):
        problem = f'{{leftover_string,"{text[found.end() :][:40]}"}}'
    elif text.startswith("-"):
        problem = f"{{value_negative,{text[:20]}}}"
    elif len(text) > 18:
        problem = f"{{value_too_large,{text[:40]}}}"
    else:
        return min(int(text), MAX_SPAN_MS)
    raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text[:40]}': {problem}")


class PublishCacheCount:
    """Cached targets and properties of all connections."""

    count = 0


class VhostPublisher:
    """Publishes into one vhost, for one user. Permissions are checked by the caller."""

    def __init__(
        self,
        context: ServerContext,
        topology: Topology,
        *,
        vhost: str,
        account: str,
        user: str,
        cache_count: PublishCacheCount | None = None,
    ) -> None:
        self._broker = context.broker
        self._topology = topology
        self._vhost = vhost
        self._account = account
        self._user = user
        self._cache_count = cache_count or PublishCacheCount()
        self._targets: dict[bytes, PublishTarget] = {}
        self._properties: dict[tuple[bytes, PublishTarget], PublishProperties] = {}
        self.shapes = PlainShapes()

    # -- decoding, cached

    def target(self, method: bytes) -> PublishTarget:
        target = self._targets.get(method)
        if target is None:
            decoded = decode_method(method)
            assert isinstance(decoded, BasicPublish)
            if decoded.immediate:  # removed in RabbitMQ 3.0; clients expect this error
                raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
            self._reserve_cache_entry(self._targets)
            target = self._targets[method] = PublishTarget(decoded, self._account)
        return target

    def properties(self, amqp_properties: bytes, target: PublishTarget) -> PublishProperties:
        """Raises AmqpError if the properties are malformed or not allowed."""
        properties = self._properties.get((amqp_properties, target))
        if properties is None:
            try:
                props = amqp_fields.decode(amqp_properties)
            except MalformedProperties as error:
                raise AmqpError(SYNTAX_ERROR, f"malformed properties: {error}") from error
            if props.user_id is not None and props.user_id != self._user:
                raise AmqpError(
                    PRECONDITION_FAILED,
                    f"user_id property set to '{props.user_id}' but authenticated user was '{self._user}'",
                )
            properties = PublishProperties(amqp_properties, props, target)
            if len(amqp_properties) <= MAX_CACHED_BYTES:
                self._reserve_cache_entry(self._properties)
                self._properties[amqp_properties, target] = properties
        return properties

    def _reserve_cache_entry(self, cache: Sized) -> None:
        if len(cache) >= _MAX_CACHED or self._cache_count.count >= MAX_CACHED_TOTAL:
            self.clear_cache()
        self._cache_count.count += 1

    def clear_cache(self) -> None:
        """Both caches: properties are cached for a target."""
        self._cache_count.count -= len(self._targets) + len(self._properties)
        self._targets.clear()
        self._properties.clear()

    # -- routing

    def queues(
        self, target: PublishTarget, properties: PublishProperties, queue: KnownQueue | None = None
    ) -> Sequence[KnownQueue]:
        """The queues that a message is routed to now. Raises AmqpError for an unknown or internal exchange.

        `queue`: the queue of the default exchange, if the caller has looked it up already.
        """
        if queue is not None and not properties.keys:
            return (queue,)
        try:
            found = self._known_queues(target, properties)
        except AmqpError:
            if not self._broker.exchanges.refresh():
                raise
        else:
            if found or not self._broker.exchanges.refresh():
                return found
        # Another server may just have declared it.
        return self._known_queues(target, properties)

    def _known_queues(self, target: PublishTarget, properties: PublishProperties) -> Sequence[KnownQueue]:
        broker, keys = self._broker, properties.keys
        if target.is_default:
            names = dict.fromkeys((target.queue_key, *(qualified_name(self._account, key) for key in keys)))
            return [queue for queue in map(broker.find_queue, names) if queue is not None]
        if target.exchange_key not in broker.exchanges.router:
            raise AmqpError(NOT_FOUND, f"no exchange '{target.exchange}' in vhost '{self._vhost}'")
        if broker.exchanges.router.get(target.exchange_key).internal:
            raise AmqpError(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{target.exchange}' in vhost '{self._vhost}'",
            )
        return broker.exchanges.routed_queues(target.exchange_key, [target.key, *keys], properties.headers)

    def single_plain_queue(self, target: PublishTarget, queue: KnownQueue | None) -> KnownQueue | None:
        """The queue for `publish_many`: the only one for any headers, and without settings that need each
        message examined. `queue` as in `queues`."""
        if not target.is_default:
            router = self._broker.exchanges.router
            names = router.fixed_route(target.exchange_key, target.key)
            if names is None or len(names) != 1 or router.get(target.exchange_key).internal:
                return None
            queue = self._broker.find_queue(names[0])
        return queue if queue is not None and queue.is_plain else None

    # -- into the broker

    def publish_many(
        self, target: PublishTarget, queue: KnownQueue, all_properties: list[bytes], bodies: list[bytes]
    ) -> bool:
        """Plain messages with properties of their own. False: publish them one by one. Raises DiskFull."""
        options = None if target.is_default else plain_options((target.exchange_key, target.key))
        properties_each = list(map(Properties.from_amqp, all_properties))
        try:
            seqs = self._broker.publish_bodies(queue.name, bodies, ENCODING_BYTES, properties_each, options)
            return seqs is not None
        except OutOfRoom:
            raise PublishingBlocked(0, []) from None

    def publish(
        self,
        target: PublishTarget,
        properties: PublishProperties,
        queues: Sequence[KnownQueue],
        bodies: list[bytes],
    ) -> list[int]:
        """Returns the indexes of messages that a queue refused. Raises DiskFull."""
        if properties.is_plain and len(queues) == 1:
            queue = queues[0]
            has_no_options = target.is_default and properties.props.type is None
            options = None if has_no_options else properties.options
            try:
                published = self._broker.publish_bodies(
                    queue.name, bodies, ENCODING_BYTES, properties.properties, options
                )
            except OutOfRoom:
                raise PublishingBlocked(0, []) from None
            if published is not None:
                return []
        draft = properties.draft
        if DELAY in properties.headers and self._topology.is_delayed(target.exchange_key):
            delay = _parse_delay(properties.headers[DELAY])
            if delay:
                # The header is negated, as RabbitMQ's plugin does, so that a republish is not delayed again.
                amqp_properties = amqp_fields.with_headers(properties.amqp_properties, {DELAY: -delay})
                draft = {**draft, "delay_ms": delay, "properties": Properties.from_amqp(amqp_properties)}
        names = [queue.name for queue in queues]
        refused: list[int] = []
        for at, body in enumerate(bodies):
            try:
                _, _, error = self._broker.exchanges.route_to(names, Draft(body, ENCODING_BYTES, **draft))
            except OutOfRoom:
                raise PublishingBlocked(at, refused) from None
            if error is not None:
                refused.append(at)
        return refused
