"""AMQP properties as the other protocols show them: attributes, group, deduplication id, body encoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ..trace_context import AMAZON, AMAZON_HEADER
from .content_header import SHORT_KIND, AmqpProperties, decode, encode, end_of_field, flags_of
from .tables import (
    MAX_DEPTH,
    MAX_SHORT,
    MalformedProperties,
    Timestamp,
    short,
    write_value,
)

MAX_ID_CHARS = 1024  # characters of a group or a deduplication id, which are kept in memory

GROUP_HEADER = "x-group-id"
DEDUP_HEADER = "x-deduplication-header"
DELAY_HEADERS = ("x-delay", "openq.delay")


# Properties that are attributes elsewhere; the others are parts of a message of their own.
ATTRIBUTE_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "user_id",
    "app_id",
    "cluster_id",
)
# Elsewhere a message's delay, receive count and deaths say what these say; BCC is for nobody's eyes.
HIDDEN_HEADERS = frozenset(
    (
        *("BCC", *DELAY_HEADERS, "x-delivery-count", "x-death"),
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("exchange", "queue", "reason")
        ),
    )
)


def group_of(headers: Mapping[str, Any] | None) -> str | None:
    """The group that a publisher asks for; only text names one."""
    return _id_header(headers, GROUP_HEADER)


def dedup_of(headers: Mapping[str, Any] | None) -> str | None:
    """The deduplication id that a publisher gives; only text is one."""
    return _id_header(headers, DEDUP_HEADER)


def _id_header(headers: Mapping[str, Any] | None, name: str) -> str | None:
    value = headers.get(name) if headers else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS else None


def attributes_of(amqp_properties: bytes) -> dict[str, object]:
    """The attributes that other protocols show: JSON values and bytes, for any AMQP properties."""
    return attributes_from(decode(amqp_properties))


def attributes_from(properties: AmqpProperties) -> dict[str, object]:
    """`attributes_of`, for who has read the properties already."""
    headers = properties.headers or {}
    attributes: dict[str, object] = {}
    for name, value in headers.items():
        if name in HIDDEN_HEADERS:
            continue
        if (name == GROUP_HEADER and group_of(headers)) or (name == DEDUP_HEADER and dedup_of(headers)):
            continue
        attributes[AMAZON if name == AMAZON_HEADER else _clean_name(name)] = plain_value(value)
    for name in ATTRIBUTE_PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            attributes[name] = plain_value(value)
    return attributes


def _clean_name(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def plain_value(value: Any) -> object:
    """A value of a table as JSON or bytes can hold it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
        return value
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        return {_clean_name(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value


# By the form of the body: FORM_BYTES and its followers in `model`, which stands on this module.
CONTENT_TYPES = (
    "application/octet-stream",
    "text/plain",
    "application/json",
    "application/msgpack",
    "application/octet-stream",
)
_BYTES_ENCODING, _TEXT_ENCODING, _JSON_ENCODING, _MSGPACK_ENCODING = range(4)
_ENCODINGS = {
    "application/json": _JSON_ENCODING,
    "application/msgpack": _MSGPACK_ENCODING,
    "application/x-msgpack": _MSGPACK_ENCODING,
}
_CONTENT_TYPE_FLAG, _CONTENT_ENCODING_FLAG = 0x8000, 0x4000
# Those that leave a body as it is; any other (gzip, base64, ...) makes bytes of it.
_PLAIN_ENCODINGS = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii", "binary", "8bit", "7bit", "identity"))


def encoding_of(amqp_properties: bytes) -> int:
    """The form that the content type claims for the body; whether it is true only the body can tell."""
    flags = flags_of(amqp_properties)
    if not flags & _CONTENT_TYPE_FLAG:
        return _BYTES_ENCODING
    end = end_of_field(amqp_properties, 2, SHORT_KIND)
    kind, _, parameters = amqp_properties[3:end].decode("utf-8", "replace").lower().partition(";")
    if flags & _CONTENT_ENCODING_FLAG:
        encoding = amqp_properties[end + 1 : end_of_field(amqp_properties, end, SHORT_KIND)].decode(
            "utf-8", "replace"
        )
        if encoding.strip().lower() not in _PLAIN_ENCODINGS:
            return _BYTES_ENCODING
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset not in _PLAIN_ENCODINGS:
        return _BYTES_ENCODING
    kind = kind.strip()
    if kind in _ENCODINGS:
        return _ENCODINGS[kind]
    if kind.endswith("+json"):
        return _JSON_ENCODING
    return _TEXT_ENCODING if kind.startswith("text/") else _BYTES_ENCODING


_PERSISTENT = 2
# Of a message that is only a body: all its properties but the text of its id, which is the last of them.
_PLAIN = tuple(
    encode(AmqpProperties(content_type=name, delivery_mode=_PERSISTENT, message_id=""))[:-1]
    for name in CONTENT_TYPES
)


def amqp_properties_of(
    attributes: Mapping[str, object],
    *,
    encoding: int,
    type: str | None,
    priority: int,
    group: str | None,
    dedup: str | None,
    message_id: str,
    expiration: str | None,
) -> bytes:
    """The properties of a message that was published by another protocol.

    Never refuses: by now the message is queued, and a name that is cut is better than one that cannot leave.
    """
    if not attributes and type is group is dedup is expiration is None and priority <= 0:
        return _PLAIN[encoding] + short(_truncated(message_id))
    properties = AmqpProperties(
        content_type=CONTENT_TYPES[encoding],
        delivery_mode=_PERSISTENT,
        priority=min(priority, 255) if priority > 0 else None,
        expiration=expiration,
        message_id=_truncated(message_id),
        type=None if type is None else _truncated(type),
    )
    headers: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in ATTRIBUTE_PROPERTIES and _fits(name, value):
            setattr(properties, name, value)
        else:
            name = AMAZON_HEADER if name == AMAZON else _truncated(name)
            headers.setdefault(name, _table_value(value, 0))
    if group is not None:
        headers[GROUP_HEADER] = _table_value(group, 0)
    if dedup is not None:
        headers[DEDUP_HEADER] = _table_value(dedup, 0)
    properties.headers = headers or None
    return encode(properties)


def _fits(name: str, value: object) -> bool:
    if name == "timestamp":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
    return isinstance(value, str) and _truncated(value) == value


def _truncated(text: str) -> str:
    """As much of a text as a short string holds, without half a character at its end."""
    return text.encode("utf-8", "replace")[:MAX_SHORT].decode("utf-8", "ignore")


def _table_value(value: object, depth: int) -> object:
    """The value itself where a table can hold it, else a text that says the same."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, Mapping):
            return {_truncated(str(name)): _table_value(item, depth + 1) for name, item in value.items()}
        return [_table_value(item, depth + 1) for item in value]
    try:
        write_value(value, depth)
    except MalformedProperties:
        return _text_of(value)
    return value


def _text_of(value: object) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except ValueError:  # a number of more digits than Python cares to print
        return hex(value) if isinstance(value, int) else "..."
