"""A message as AMQP delivers it: its properties, and the exchange and key it was published with."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from .. import amqp_fields
from ..amqp_fields import Long, Timestamp
from ..broker.interface import Broker
from ..model import DeadLetterEvent, Delivery, DeliveryOptions, Entry
from ..names import split_name

_REASONS = {
    "max_receives": "delivery_limit",
    "rejected": "rejected",
    "expired": "expired",
    "overflow": "maxlen",
}
_NO_EXTRA = DeliveryOptions()


class DeliveryRoute:
    """Exchange and key of a delivery, encoded for one consumer."""

    __slots__ = ("start", "tail")

    def __init__(self, exchange: str, key: str) -> None:
        self.start = b""  # of basic.deliver, up to the delivery tag
        # The end of basic.deliver: two short strings.
        self.tail = b"".join(_short_string(text) for text in (exchange, key))


def _short_string(text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:255]
    return bytes((len(data),)) + data


def exchange_and_key(entry: Entry, queue: str) -> tuple[str, str]:
    """Without the account. `queue`: the name of the queue, for messages of the default exchange."""
    options = entry.options
    if options is None or options.route is None:
        return "", queue
    exchange, key = options.route
    return split_name(exchange)[1], key


_COUNT_HEADER = "x-delivery-count"
# When `x-delivery-count` is shown.
COUNT_NEVER, COUNT_REDELIVERED, COUNT_ALWAYS = range(3)


def delivery_properties(broker: Broker, delivery: Delivery, count_mode: int) -> bytes:
    """The properties as they were published, with the headers that the broker adds."""
    entry = delivery.entry
    options = entry.options or _NO_EXTRA
    properties = entry.properties
    amqp_properties = (
        _translate_properties(broker, entry)
        if properties is None or properties.amqp_properties is None
        else properties.amqp_properties
    )
    is_counted = count_mode > (delivery.count == 1)
    if not options.deaths:
        return _with_delivery_count(amqp_properties, delivery.count - 1) if is_counted else amqp_properties
    headers = _x_death_headers(options, amqp_properties)
    if is_counted:
        headers[_COUNT_HEADER] = Long(delivery.count - 1)
    # A dead-letter routing key replaces the CC keys too.
    drop = ("CC",) if options.route and options.route[1] != options.deaths[0].key else ()
    return amqp_fields.with_headers(amqp_properties, headers, drop=drop, drop_expiration=True)


@lru_cache(256)
def _with_delivery_count(amqp_properties: bytes, count: int) -> bytes:
    return amqp_fields.with_headers(amqp_properties, {_COUNT_HEADER: Long(count)})


def fit_properties(amqp_properties: bytes, max_bytes: int) -> bytes:
    """Properties never span frames: headers that do not fit a small frame are left out."""
    if len(amqp_properties) <= max_bytes:
        return amqp_properties
    props = amqp_fields.decode(amqp_properties)
    props.headers = {"openq.headers-too-large": True}
    return amqp_fields.encode(props)


def _translate_properties(broker: Broker, entry: Entry) -> bytes:
    """For a message of another protocol."""
    options = entry.options or _NO_EXTRA
    properties = entry.properties
    return amqp_fields.amqp_properties_of(
        {} if properties is None else properties.attributes,
        encoding=entry.encoding,
        type=options.type,
        priority=options.priority,
        group=options.group,
        dedup=options.dedup,
        message_id=broker.inspect.message_id(entry),
        expiration=str(options.expires_ms - entry.sent_ms) if options.expires_ms else None,
    )


def _x_death_headers(options: DeliveryOptions, amqp_properties: bytes) -> dict[str, object]:
    """The history of a dead letter, newest first, as RabbitMQ shows it."""
    own = amqp_fields.decode(amqp_properties)
    tables = [_x_death_entry(death) for death in options.deaths]
    if own.expiration is not None:
        tables[-1]["original-expiration"] = own.expiration
    known = (own.headers or {}).get("x-death")
    if isinstance(known, list):
        # It was republished with the history of an earlier message.
        tables += [each for each in known if isinstance(each, dict)]
    copies = (own.headers or {}).get("CC")
    if isinstance(copies, list):
        keys = cast("list[object]", tables[-1]["routing-keys"])
        keys += [each for each in copies if isinstance(each, str)]
    if any(name.startswith("x-first-death-") for name in own.headers or ()):
        return {"x-death": tables}
    first = options.deaths[-1]
    return {
        "x-death": tables,
        "x-first-death-exchange": split_name(first.exchange)[1],
        "x-first-death-queue": split_name(first.queue)[1],
        "x-first-death-reason": _REASONS.get(first.kind, "rejected"),
    }


def _x_death_entry(death: DeadLetterEvent) -> dict[str, object]:
    queue, exchange = split_name(death.queue)[1], split_name(death.exchange)[1]
    return {
        "count": Long(death.times),
        "reason": _REASONS.get(death.kind, "rejected"),
        "queue": queue,
        "time": Timestamp((death.first_ms or death.time_ms) // 1000),
        "exchange": exchange,
        "routing-keys": [death.key if death.key or exchange else queue],
    }
