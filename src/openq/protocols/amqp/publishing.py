"""In through an exchange: what a publish says, remembered, so that the next one like it costs little.

A *target* is what the method says (exchange, key, mandatory), a *stamp* what the properties say. Both are
worked out once and found again by their very bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from ... import properties
from ...broker.full import KnownQueue
from ...errors import OutOfRoom
from ...model import FORM_BYTES, MAX_SPAN_MS, Draft, Info, light_extra
from ...names import full_name
from ...properties import MalformedProperties, Properties
from ..site import Site
from . import methods
from .arguments import type_of
from .errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    AmqpError,
)
from .topology import Topology

REPLY_TO = "amq.rabbitmq.reply-to"
DELAY, OWN_DELAY = properties.DELAY_HEADERS
_MAX_KEPT = 1000  # by a connection
MAX_KEPT_IN_ALL = 50_000  # by all of them
MAX_KEPT_BYTES = 512  # properties of more than that are hardly ever the same again
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class NoRoom(Exception):
    """The disk is full: after `done` messages, of which a queue refused some."""

    def __init__(self, done: int, refused: list[int]) -> None:
        super().__init__("the disk is full")
        self.done = done
        self.refused = refused


class Target:
    __slots__ = ("exchange", "full", "is_default", "key", "mandatory")

    def __init__(self, method: methods.BasicPublish, account: str) -> None:
        self.exchange = method.exchange
        self.key = method.routing_key
        self.mandatory = method.mandatory
        self.full = full_name(account, method.exchange)
        self.is_default = not method.exchange


class Stamp:
    """Properties as the broker takes them. `is_plain`: the engine need not look at any of them."""

    __slots__ = ("draft", "extra", "headers", "info", "is_plain", "keys", "props", "wire")

    def __init__(self, wire: bytes, props: Properties, target: Target) -> None:
        self.props = props
        headers: dict[str, Any] = props.headers or {}
        self.headers = headers
        self.keys = [*_keys(headers, "CC"), *_keys(headers, "BCC")]
        self.wire = properties.with_headers(wire, {}, drop=("BCC",)) if "BCC" in headers else wire
        self.info = Info.of_wire(self.wire)
        if props.delivery_mode not in (None, 1, 2):
            mode = props.delivery_mode
            raise AmqpError(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{mode}}}")
        self.draft: dict[str, Any] = {}
        if props.priority:
            self.draft["priority"] = props.priority
        if props.expiration is not None:
            self.draft["ttl_ms"] = _expiration(props.expiration)
        if group := properties.group_of(headers):
            self.draft["group"] = group
        if dedup := properties.dedup_of(headers):
            self.draft["dedup"] = dedup
        delay = _delay(headers.get(OWN_DELAY))
        if delay:
            self.draft["delay_ms"] = delay
        self.is_plain = not self.draft and not self.keys and DELAY not in headers
        if props.type is not None:
            self.draft["type"] = props.type
        route = (target.full, target.key)
        self.extra = light_extra(route, props.type)
        self.draft["route"] = route
        self.draft["info"] = self.info


def _keys(headers: dict[str, Any], name: str) -> list[str]:
    value = headers.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise AmqpError(
            PRECONDITION_FAILED,
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_of(value)}}}',
        )
    return [each for each in value if isinstance(each, str)]


def _delay(value: object) -> int:
    """Milliseconds, as a number or as text; 0 for whatever is no delay."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if len(text) <= 20 and _NUMBER.fullmatch(text) else 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 < value <= MAX_SPAN_MS else 0


def _expiration(text: str) -> int:
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


def size_of_publishes(method: bytes, wires: bytes | list[bytes], bodies: list[bytes]) -> int:
    """The bytes of publishes that wait. `wires`: the properties of all, or of each."""
    properties_size = len(wires) if isinstance(wires, bytes) else sum(map(len, wires))
    return len(method) + properties_size + sum(map(len, bodies))


class Kept:
    """How many targets and stamps all publishers remember together."""

    count = 0


class Publisher:
    """Of one connection: its account's exchanges, its user's permissions."""

    def __init__(
        self, site: Site, topology: Topology, vhost: str, account: str, user: str, kept: Kept | None = None
    ) -> None:
        self._kept = kept or Kept()
        self._broker = site.broker
        self._topology = topology
        self._vhost = vhost
        self._account = account
        self._user = user
        self._targets: dict[bytes, Target] = {}
        self._stamps: dict[tuple[bytes, Target], Stamp] = {}

    def target(self, method: bytes) -> Target:
        target = self._targets.get(method)
        if target is None:
            decoded = methods.decode(method)
            assert isinstance(decoded, methods.BasicPublish)
            if decoded.immediate:  # RabbitMQ has not had it since 3.0, and clients know its refusal
                raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
            self._make_room(self._targets)
            target = self._targets[method] = Target(decoded, self._account)
        return target

    def _make_room(self, memo: Sized) -> None:
        """For one more; stamps belong to their targets and go with them."""
        if len(memo) >= _MAX_KEPT or self._kept.count >= MAX_KEPT_IN_ALL:
            self.forget()
        self._kept.count += 1

    def forget(self) -> None:
        """What was worked out is worked out again when it is needed."""
        self._kept.count -= len(self._targets) + len(self._stamps)
        self._targets.clear()
        self._stamps.clear()

    def stamp(self, wire: bytes, target: Target) -> Stamp:
        """Raises AmqpError if the properties are not what they should be."""
        stamp = self._stamps.get((wire, target))
        if stamp is None:
            try:
                props = properties.decode(wire)
            except MalformedProperties as error:
                raise AmqpError(SYNTAX_ERROR, f"malformed properties: {error}") from error
            if props.user_id is not None and props.user_id != self._user:
                raise AmqpError(
                    PRECONDITION_FAILED,
                    f"user_id property set to '{props.user_id}' but authenticated user was '{self._user}'",
                )
            stamp = Stamp(wire, props, target)
            if len(wire) <= MAX_KEPT_BYTES:
                self._make_room(self._stamps)
                self._stamps[wire, target] = stamp
        return stamp

    def queues(self, target: Target, stamp: Stamp) -> Sequence[KnownQueue]:
        """Where it leads now. Raises AmqpError if there is no such exchange, or it is internal."""
        if not self._broker.is_shared:
            return self._known_queues(target, stamp)
        try:
            found = self._known_queues(target, stamp)
        except AmqpError:
            found = []
        if not found:
            # What another server declared a moment ago may not be known here yet.
            self._broker.exchanges()
            found = self._known_queues(target, stamp)
        return found

    def _known_queues(self, target: Target, stamp: Stamp) -> Sequence[KnownQueue]:
        if target.is_default:
            names = dict.fromkeys(full_name(self._account, key) for key in (target.key, *stamp.keys))
            return [queue for queue in map(self._broker.known, names) if queue is not None]
        elif target.full not in self._broker.router:
            raise AmqpError(NOT_FOUND, f"no exchange '{target.exchange}' in vhost '{self._vhost}'")
        elif self._broker.router.get(target.full).internal:
            raise AmqpError(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{target.exchange}' in vhost '{self._vhost}'",
            )
        return self._broker.where(target.full, [target.key, *stamp.keys], stamp.headers)

    def only_queue(self, target: Target) -> KnownQueue | None:
        """The one queue that this leads to whatever the headers say, if plain messages go in as they are."""
        broker = self._broker
        if target.is_default:
            queue = broker.known(full_name(self._account, target.key))
        else:
            router = broker.router
            names = router.fixed_route(target.full, target.key)
            if names is None or len(names) != 1 or router.get(target.full).internal:
                return None
            queue = broker.known(names[0])
        return queue if queue is not None and queue.simple else None

    def put_each(self, target: Target, queue: KnownQueue, wires: list[bytes], bodies: list[bytes]) -> bool:
        """Plain messages with properties of their own. False: they must go one by one. Raises NoRoom."""
        extra = None if target.is_default else light_extra((target.full, target.key))
        infos = list(map(Info.of_wire, wires))
        try:
            return self._broker.publish_stamped(queue.name, bodies, FORM_BYTES, infos, extra)
        except OutOfRoom:
            raise NoRoom(0, []) from None

    def put(
        self, target: Target, stamp: Stamp, queues: Sequence[KnownQueue], bodies: list[bytes]
    ) -> list[int]:
        """Into the queues. The indexes of those that a queue refused. Raises NoRoom."""
        if stamp.is_plain and len(queues) == 1:
            queue = queues[0]
            is_own = target.is_default and stamp.props.type is None
            extra = None if is_own else stamp.extra
            try:
                if self._broker.publish_bodies(queue.name, bodies, FORM_BYTES, stamp.info, extra) is not None:
                    return []
            except OutOfRoom:
                raise NoRoom(0, []) from None
        draft = stamp.draft
        if DELAY in stamp.headers and self._topology.is_delayed(target.full):
            delay = _delay(stamp.headers[DELAY])
            if delay:
                # Told the other way round: who publishes it again does not delay it again.
                wire = properties.with_headers(stamp.wire, {DELAY: -delay})
                draft = {**draft, "delay_ms": delay, "info": Info.of_wire(wire)}
        names = [queue.name for queue in queues]
        refused: list[int] = []
        for at, body in enumerate(bodies):
            try:
                _, _, error = self._broker.route_to(names, Draft(body, FORM_BYTES, **draft))
            except OutOfRoom:
                raise NoRoom(at, refused) from None
            if error is not None:
                refused.append(at)
        return refused
