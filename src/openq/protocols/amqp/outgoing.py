"""A message as AMQP shows it: its properties, and the exchange and key it came by."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from ... import properties
from ...broker.full import FullBroker
from ...model import Death, Delivery, Entry, Extra
from ...names import split_name
from ...properties import Long, Timestamp

_REASONS = {
    "max_receives": "delivery_limit",
    "rejected": "rejected",
    "expired": "expired",
    "overflow": "maxlen",
}
_NO_EXTRA = Extra()


class Route:
    """Where a message was published, as its consumer is told."""

    __slots__ = ("start", "tail")

    def __init__(self, exchange: str, key: str) -> None:
        self.start = b""  # up to the tag, for one consumer
        # As two short strings: how every deliver ends.
        self.tail = b"".join(_short(text) for text in (exchange, key))


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:255]
    return bytes((len(data),)) + data


def route_of(entry: Entry, queue: str) -> tuple[str, str]:
    """Exchange and key by their bare names; `queue` is the bare name of the queue."""
    extra = entry.extra
    if extra is None or extra.route is None:
        return "", queue
    exchange, key = extra.route
    return split_name(exchange)[1], key


_COUNT = "x-delivery-count"
# Whether a consumer is told how often a message was delivered before.
NEVER, WHEN_AGAIN, ALWAYS = range(3)


def wire_of(broker: FullBroker, delivery: Delivery, counting: int) -> bytes:
    """The properties of a message that leaves: as they came, with what happened to it since."""
    entry = delivery.entry
    extra = entry.extra or _NO_EXTRA
    info = entry.info
    wire = _translated(broker, entry) if info is None or info.wire is None else info.wire
    is_counted = counting > (delivery.count == 1)
    if not extra.deaths:
        return _counted(wire, delivery.count - 1) if is_counted else wire
    headers = _death_headers(extra, wire)
    if is_counted:
        headers[_COUNT] = Long(delivery.count - 1)
    # With a key of its own a dead-letter exchange takes the place of the other keys too.
    drop = ("CC",) if extra.route and extra.route[1] != extra.deaths[0].key else ()
    return properties.with_headers(wire, headers, drop=drop, drop_expiration=True)


@lru_cache(256)
def _counted(wire: bytes, count: int) -> bytes:
    return properties.with_headers(wire, {_COUNT: Long(count)})


def fitted(wire: bytes, room: int) -> bytes:
    """Properties never span frames: what a client with small frames cannot be told of is left out."""
    if len(wire) <= room:
        return wire
    props = properties.decode(wire)
    props.headers = {"openq.headers-too-large": True}
    return properties.encode(props)


def _translated(broker: FullBroker, entry: Entry) -> bytes:
    """A message of another door."""
    extra = entry.extra or _NO_EXTRA
    info = entry.info
    return properties.wire_of(
        {} if info is None else info.attributes,
        form=entry.form,
        type=extra.type,
        priority=extra.priority,
        group=extra.group,
        dedup=extra.dedup,
        message_id=broker.message_id(entry),
        expiration=str(extra.expires_ms - entry.sent_ms) if extra.expires_ms else None,
    )


def _death_headers(extra: Extra, wire: bytes) -> dict[str, object]:
    """The history of a dead letter, newest first, in the words of RabbitMQ."""
    own = properties.decode(wire)
    tables = [_table(death) for death in extra.deaths]
    if own.expiration is not None:
        tables[-1]["original-expiration"] = own.expiration
    known = (own.headers or {}).get("x-death")
    if isinstance(known, list):
        # Published again with the history of its former life.
        tables += [each for each in known if isinstance(each, dict)]
    copies = (own.headers or {}).get("CC")
    if isinstance(copies, list):
        keys = cast("list[object]", tables[-1]["routing-keys"])
        keys += [each for each in copies if isinstance(each, str)]
    if any(name.startswith("x-first-death-") for name in own.headers or ()):
        return {"x-death": tables}
    first = extra.deaths[-1]
    return {
        "x-death": tables,
        "x-first-death-exchange": split_name(first.exchange)[1],
        "x-first-death-queue": split_name(first.queue)[1],
        "x-first-death-reason": _REASONS.get(first.kind, "rejected"),
    }


def _table(death: Death) -> dict[str, object]:
    queue, exchange = split_name(death.queue)[1], split_name(death.exchange)[1]
    return {
        "count": Long(death.times),
        "reason": _REASONS.get(death.kind, "rejected"),
        "queue": queue,
        "time": Timestamp((death.first_ms or death.time_ms) // 1000),
        "exchange": exchange,
        "routing-keys": [death.key if death.key or exchange else queue],
    }
