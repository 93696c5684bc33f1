"""In through an exchange: what a publish says, remembered, so that the next one like it costs little.

A *target* is what the method says (exchange, key, mandatory), a *stamp* what the properties say. Both are
worked out once and found again by their very bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from .. import amqp_fields
from ..amqp_fields import AmqpProperties, MalformedProperties
from ..broker.full_interface import KnownQueue
from ..errors import OutOfRoom
from ..model import ENCODING_BYTES, MAX_SPAN_MS, Draft, Properties, plain_options
from ..names import qualified_name
from ..server.context import ServerContext
from . import methods
from .arguments import type_of
from .errors import ACCESS_REFUSED, NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, SYNTAX_ERROR, AmqpError
from .topology import Topology

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
DELAY, OWN_DELAY = amqp_fields.DELAY_HEADERS
_MAX_CACHED = 1000  # by a connection
MAX_CACHED_TOTAL = 50_000  # by all of them
MAX_CACHED_BYTES = 512  # properties of more than that are hardly ever the same again
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class DiskFull(Exception):
    """The disk is full: after `done` messages, of which a queue refused some."""

    def __init__(self, done: int, refused: list[int]) -> None:
        super().__init__("the disk is full")
        self.done = done
        self.refused = refused


class PublishTarget:
    __slots__ = ("exchange", "exchange_key", "is_default", "key", "mandatory")

    def __init__(self, method: methods.BasicPublish, account: str) -> None:
        self.exchange = method.exchange
        self.key = method.routing_key
        self.mandatory = method.mandatory
        self.exchange_key = qualified_name(account, method.exchange)
        self.is_default = not method.exchange


class PublishProperties:
    """Properties as the broker takes them. `is_plain`: the engine need not look at any of them."""

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
    """Milliseconds, as a number or as text; 0 for whatever is no delay."""
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


def publish_size(method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]) -> int:
    """The bytes of publishes that wait. `wires`: the properties of all, or of each."""
    properties_size = (
        len(all_properties) if isinstance(all_properties, bytes) else sum(map(len, all_properties))
    )
    return len(method) + properties_size + sum(map(len, bodies))


class PublishCacheCount:
    """How many targets and stamps all publishers remember together."""

    count = 0


class Publisher:
    """Of one connection: its account's exchanges, its user's permissions."""

    def __init__(
        self,
        context: ServerContext,
        topology: Topology,
        vhost: str,
        account: str,
        user: str,
        cache_count: PublishCacheCount | None = None,
    ) -> None:
        self._cache_count = cache_count or PublishCacheCount()
        self._broker = context.broker
        self._topology = topology
        self._vhost = vhost
        self._account = account
        self._user = user
        self._targets: dict[bytes, PublishTarget] = {}
        self._properties: dict[tuple[bytes, PublishTarget], PublishProperties] = {}

    def target(self, method: bytes) -> PublishTarget:
        target = self._targets.get(method)
        if target is None:
            decoded = methods.decode(method)
            assert isinstance(decoded, methods.BasicPublish)
            if decoded.immediate:  # RabbitMQ has not had it since 3.0, and clients know its refusal
                raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
            self._reserve_cache_entry(self._targets)
            target = self._targets[method] = PublishTarget(decoded, self._account)
        return target

    def _reserve_cache_entry(self, memo: Sized) -> None:
        """For one more; stamps belong to their targets and go with them."""
        if len(memo) >= _MAX_CACHED or self._cache_count.count >= MAX_CACHED_TOTAL:
            self.clear_cache()
        self._cache_count.count += 1

    def clear_cache(self) -> None:
        """What was worked out is worked out again when it is needed."""
        self._cache_count.count -= len(self._targets) + len(self._properties)
        self._targets.clear()
        self._properties.clear()

    def publish_properties(self, amqp_properties: bytes, target: PublishTarget) -> PublishProperties:
        """Raises AmqpError if the properties are not what they should be."""
        publish_properties = self._properties.get((amqp_properties, target))
        if publish_properties is None:
            try:
                props = amqp_fields.decode(amqp_properties)
            except MalformedProperties as error:
                raise AmqpError(SYNTAX_ERROR, f"malformed properties: {error}") from error
            if props.user_id is not None and props.user_id != self._user:
                raise AmqpError(
                    PRECONDITION_FAILED,
                    f"user_id property set to '{props.user_id}' but authenticated user was '{self._user}'",
                )
            publish_properties = PublishProperties(amqp_properties, props, target)
            if len(amqp_properties) <= MAX_CACHED_BYTES:
                self._reserve_cache_entry(self._properties)
                self._properties[amqp_properties, target] = publish_properties
        return publish_properties

    def queues(self, target: PublishTarget, publish_properties: PublishProperties) -> Sequence[KnownQueue]:
        """Where it leads now. Raises AmqpError if there is no such exchange, or it is internal."""
        if not self._broker.is_shared:
            return self._known_queues(target, publish_properties)
        try:
            found = self._known_queues(target, publish_properties)
        except AmqpError:
            found = []
        if not found:
            # What another server declared a moment ago may not be known here yet.
            self._broker.exchanges()
            found = self._known_queues(target, publish_properties)
        return found

    def _known_queues(
        self, target: PublishTarget, publish_properties: PublishProperties
    ) -> Sequence[KnownQueue]:
        if target.is_default:
            names = dict.fromkeys(
                qualified_name(self._account, key) for key in (target.key, *publish_properties.keys)
            )
            return [queue for queue in map(self._broker.find_queue, names) if queue is not None]
        elif target.exchange_key not in self._broker.router:
            raise AmqpError(NOT_FOUND, f"no exchange '{target.exchange}' in vhost '{self._vhost}'")
        elif self._broker.router.get(target.exchange_key).internal:
            raise AmqpError(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{target.exchange}' in vhost '{self._vhost}'",
            )
        return self._broker.routed_queues(
            target.exchange_key, [target.key, *publish_properties.keys], publish_properties.headers
        )

    def single_plain_queue(self, target: PublishTarget) -> KnownQueue | None:
        """The one queue that this leads to whatever the headers say, if plain messages go in as they are."""
        broker = self._broker
        if target.is_default:
            queue = broker.find_queue(qualified_name(self._account, target.key))
        else:
            router = broker.router
            names = router.fixed_route(target.exchange_key, target.key)
            if names is None or len(names) != 1 or router.get(target.exchange_key).internal:
                return None
            queue = broker.find_queue(names[0])
        return queue if queue is not None and queue.is_plain else None

    def publish_each(
        self, target: PublishTarget, queue: KnownQueue, all_properties: list[bytes], bodies: list[bytes]
    ) -> bool:
        """Plain messages with properties of their own. False: they must go one by one. Raises NoRoom."""
        options = None if target.is_default else plain_options((target.exchange_key, target.key))
        properties_each = list(map(Properties.from_amqp, all_properties))
        try:
            return self._broker.publish_with_properties(
                queue.name, bodies, ENCODING_BYTES, properties_each, options
            )
        except OutOfRoom:
            raise DiskFull(0, []) from None

    def publish(
        self,
        target: PublishTarget,
        publish_properties: PublishProperties,
        queues: Sequence[KnownQueue],
        bodies: list[bytes],
    ) -> list[int]:
        """Into the queues. The indexes of those that a queue refused. Raises NoRoom."""
        if publish_properties.is_plain and len(queues) == 1:
            queue = queues[0]
            is_own = target.is_default and publish_properties.props.type is None
            options = None if is_own else publish_properties.options
            try:
                if (
                    self._broker.publish_bodies(
                        queue.name, bodies, ENCODING_BYTES, publish_properties.properties, options
                    )
                    is not None
                ):
                    return []
            except OutOfRoom:
                raise DiskFull(0, []) from None
        draft = publish_properties.draft
        if DELAY in publish_properties.headers and self._topology.is_delayed(target.exchange_key):
            delay = _parse_delay(publish_properties.headers[DELAY])
            if delay:
                # Told the other way round: who publishes it again does not delay it again.
                amqp_properties = amqp_fields.with_headers(
                    publish_properties.amqp_properties, {DELAY: -delay}
                )
                draft = {**draft, "delay_ms": delay, "properties": Properties.from_amqp(amqp_properties)}
        names = [queue.name for queue in queues]
        refused: list[int] = []
        for at, body in enumerate(bodies):
            try:
                _, _, error = self._broker.route_to(names, Draft(body, ENCODING_BYTES, **draft))
            except OutOfRoom:
                raise DiskFull(at, refused) from None
            if error is not None:
                refused.append(at)
        return refused
