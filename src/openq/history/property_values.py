"""The properties of one message (attributes, or AMQP properties) as values of the columns of `messages`.

Pure, and without numpy: a server uses it for the messages of a lease batch, which have the same columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from openq.amqp_fields import MalformedProperties, attributes_from, decode
from openq.model import Properties
from openq.trace_context import AMAZON, AMAZON_HEADER, AMAZON_SYSTEM_ATTRIBUTE

Attribute = tuple[str, str | None, bytes | None]  # type, string, binary


class PropertyValues(NamedTuple):
    """The properties of one message, in the columns of the table messages."""

    content_type: str | None = None
    attributes: list[tuple[str, Attribute]] | None = None
    headers: list[tuple[str, str | None]] | None = None
    trace_id: str | None = None
    producer: str | None = None
    replay_of: str | None = None
    replay_count: int | None = None
    batch: str | None = None


TYPES_NAME = "openq.sqs-types"
_AMAZON_NAMES = (AMAZON_SYSTEM_ATTRIBUTE, "X-Amzn-Trace-Id", AMAZON_HEADER, AMAZON)
TRACE_NAMES = ("traceparent", *_AMAZON_NAMES, "trace_id")
_MAX_COUNT = (1 << 31) - 1


def property_values(properties: Properties) -> PropertyValues:
    headers: dict[str, Any] = {}
    attributes: Mapping[str, object]
    if properties.amqp_properties is None:
        attributes = properties.attributes
    else:
        try:
            decoded = decode(properties.amqp_properties)
        except MalformedProperties:
            return PropertyValues(producer=text_of(properties.publisher))
        headers = decoded.headers or {}
        attributes = attributes_from(decoded)
    types = attributes.get(TYPES_NAME)
    if not isinstance(types, Mapping):
        types = {}
    shown = [
        (clean(str(name)), attribute_of(value, types.get(name)))
        for name, value in attributes.items()
        if value is not None and name != TYPES_NAME
    ]
    known = attributes.get
    return PropertyValues(
        text_of(known("content_type")),
        shown or None,
        [(clean(name), text_of(value)) for name, value in headers.items()] or None,
        trace_of(attributes) or trace_of(headers),
        text_of(properties.publisher),
        text_of(known("openq.replay_of")),
        count_of(known("openq.replay_count")),
        text_of(known("openq.batch")),
    )


def attribute_of(value: object, kind: object) -> Attribute:
    if type(value) is str:
        return clean(kind) if isinstance(kind, str) else "String", clean(value), None
    if isinstance(value, bytes):
        default, text, data = "Binary", None, value
    else:
        text, data = text_of(value), None
        if isinstance(value, int | float) and not isinstance(value, bool):
            default = "Number"
        else:
            default = "Json"
    return clean(kind) if isinstance(kind, str) else default, text, data


def text_of(value: object) -> str | None:
    """Text as it is, everything else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    try:
        return clean(json.dumps(value, default=_json, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return clean(str(value))


def _json(value: object) -> str:
    """Values that JSON lacks, as text, which it never refuses."""
    return text_of(value) or "" if isinstance(value, bytes | Decimal) else clean(str(value))


def count_of(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return None


def trace_of(values: Mapping[str, Any]) -> str | None:
    """The trace id of a message, in any of the usual headers."""
    parent = values.get("traceparent")
    if isinstance(parent, str) and parent.count("-") >= 2:
        return clean(parent.split("-")[1]) or None
    for name in _AMAZON_NAMES:
        text = values.get(name)
        if isinstance(text, str):
            for part in text.split(";"):
                key, _, value = part.strip().partition("=")
                if key == "Root" and value:
                    return clean(value)
    return text_of(values.get("trace_id"))


def clean(text: str) -> str:
    """Text that can be encoded: a lone surrogate becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
