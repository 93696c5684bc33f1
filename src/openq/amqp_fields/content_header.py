"""The properties of a message as bytes (`amqp_properties`): flags and property list of the content header.

They are sent again unchanged, and decoded only on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .tables import (
    ARRAY,
    BYTES,
    FIXED_SIZES,
    TABLE,
    TEXT,
    U16,
    U64,
    MalformedProperties,
    encode_table,
    read_table,
    short,
    sized,
    sized_range,
    write_table,
)


@dataclass(slots=True, kw_only=True)
class AmqpProperties:
    """What a message says about itself. None: it does not say."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_HEADERS_FLAG = 0x2000
_EXPIRATION_FLAG = 0x0100
# The two lowest bits mean nothing in the only word of flags there is: ignored, as RabbitMQ does.
_KNOWN_FLAGS = 0xFFFC
SHORT_KIND, TABLE_KIND, OCTET_KIND, TIME_KIND = range(4)
_KINDS = {
    "headers": TABLE_KIND,
    "delivery_mode": OCTET_KIND,
    "priority": OCTET_KIND,
    "timestamp": TIME_KIND,
}
FIELDS = tuple(
    (0x8000 >> place, name, _KINDS.get(name, SHORT_KIND))
    for place, name in enumerate(AmqpProperties.__slots__)
)


@lru_cache(maxsize=256)  # clients use a handful of combinations; strangers must not fill the memory
def _fields_of(flags: int) -> tuple[tuple[int, str, int], ...]:
    return tuple(field for field in FIELDS if flags & field[0])


def flags_of(amqp_properties: bytes) -> int:
    if len(amqp_properties) < 2:
        raise MalformedProperties("properties without their flags")
    return amqp_properties[0] << 8 | amqp_properties[1]


def end_of_field(amqp_properties: bytes, at: int, kind: int) -> int:
    if kind == TABLE_KIND:
        return sized_range(amqp_properties, at, len(amqp_properties))[1]
    if kind == SHORT_KIND:
        end = at + 1 + amqp_properties[at] if at < len(amqp_properties) else at + 1
    else:
        end = at + (1 if kind == OCTET_KIND else 8)
    if end > len(amqp_properties):
        raise MalformedProperties("properties end within a field")
    return end


def decode(amqp_properties: bytes) -> AmqpProperties:
    properties = AmqpProperties()
    at = 2
    for _, name, kind in _fields_of(flags_of(amqp_properties) & _KNOWN_FLAGS):
        end = end_of_field(amqp_properties, at, kind)
        value: Any
        if kind == SHORT_KIND:
            # Escaped where it is not UTF-8: RabbitMQ does not look into these either.
            value = amqp_properties[at + 1 : end].decode("utf-8", "surrogateescape")
        elif kind == OCTET_KIND:
            value = amqp_properties[at]
        elif kind == TIME_KIND:
            (value,) = U64.unpack_from(amqp_properties, at)
        else:
            value = read_table(amqp_properties, at + 4, end, 0)
        setattr(properties, name, value)
        at = end
    if at != len(amqp_properties):
        raise MalformedProperties(f"{len(amqp_properties) - at} bytes after the last property")
    return properties


def encode(properties: AmqpProperties) -> bytes:
    flags = 0
    fields = []
    for flag, name, kind in FIELDS:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= flag
        if kind == SHORT_KIND:
            fields.append(short(value))
        elif kind == TABLE_KIND:
            fields.append(write_table(value, 0))
        elif not 0 <= value < (256 if kind == OCTET_KIND else 1 << 64):
            raise MalformedProperties(f"{name} is out of its range: {value}")
        else:
            fields.append(bytes((value,)) if kind == OCTET_KIND else U64.pack(value))
    return U16.pack(flags) + b"".join(fields)


def with_headers(
    amqp_properties: bytes,
    extra: Mapping[str, object],
    drop: Iterable[str] = (),
    drop_expiration: bool = False,
) -> bytes:
    """The same properties with other headers; what is not named stays byte for byte as it was sent."""
    flags = flags_of(amqp_properties)
    gone = {short(name)[1:] for name in (*extra, *drop)}
    fields: list[bytes] = []
    before_headers = 0
    table = b""
    at = 2
    for flag, _, kind in _fields_of(flags & _KNOWN_FLAGS):
        end = end_of_field(amqp_properties, at, kind)
        if flag == _HEADERS_FLAG:
            table = b"".join(
                item for name, item in _raw_items(amqp_properties, at + 4, end) if name not in gone
            )
        elif flag != _EXPIRATION_FLAG or not drop_expiration:
            fields.append(amqp_properties[at:end])
        if flag > _HEADERS_FLAG:
            before_headers = len(fields)
        at = end
    if at != len(amqp_properties):
        raise MalformedProperties(f"{len(amqp_properties) - at} bytes after the last property")
    if extra:
        flags |= _HEADERS_FLAG
        table += encode_table(extra)[4:]
    if drop_expiration:
        flags &= ~_EXPIRATION_FLAG
    if flags & _HEADERS_FLAG:
        fields.insert(before_headers, sized(table))
    return U16.pack(flags) + b"".join(fields)


def _raw_items(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Names and whole items of a table; a value is stepped over, not looked into."""
    while at < end:
        start = at
        at += 1 + data[at]
        if at >= end:
            raise MalformedProperties("a table ends within a name")
        name = data[start + 1 : at]
        code = data[at]
        size = FIXED_SIZES.get(code)
        if size is not None:
            at += 1 + size
        elif code in (TEXT, BYTES, ARRAY, TABLE):
            at = sized_range(data, at + 1, end)[1]
        else:
            raise MalformedProperties(f"a value of unknown type {chr(code)!r} in a table")
        if at > end:
            raise MalformedProperties("a table ends within a value")
        yield name, data[start:at]
