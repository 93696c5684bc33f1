"""New messages of clients as drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import UNSET, Raw, UnsetType

from ..errors import InvalidSetting
from ..model import DeliveryOptions, Draft, MessageFilter
from ..trace_context import AMAZON, TRACEPARENT
from .formats import Format
from .messages import NewMessage
from .payloads import Body, read_json, read_msgpack
from .problem import Problem
from .values import moment_ms, read_attributes, span_ms


class HasPayload(Protocol):
    """A request with a body under one of its two names."""

    payload: Raw | UnsetType
    body: Raw | UnsetType
    payload_encoding: Literal["base64", "msgpack+base64", "json"] | UnsetType


def read_payload(message: HasPayload, format: Format) -> Body:
    if (message.payload is UNSET) == (message.body is UNSET):
        raise Problem("invalid", "a message needs a payload (`body` is another name of it: give one of them)")
    raw = message.body if message.payload is UNSET else message.payload
    assert isinstance(raw, Raw)
    read = read_json if format.is_json else read_msgpack
    return read(raw, message.payload_encoding)


def with_trace(attributes: Mapping[str, object] | None, trace: Mapping[str, str]) -> Mapping[str, object]:
    """The attributes with this trace context, unless they have one."""
    if not attributes:
        return trace
    if TRACEPARENT in attributes or AMAZON in attributes:
        return attributes
    return {**attributes, **trace}


def make_draft(
    message: NewMessage,
    format: Format,
    past: DeliveryOptions | None = None,
    trace: Mapping[str, str] | None = None,
) -> Draft:
    """`trace`: the trace context of the request, for a message that has none of its own."""
    body, encoding = read_payload(message, format)
    if message.at is not None and message.delay is not None:
        raise InvalidSetting("give either delay or at, not both")
    if message.timestamp is not None and past is None:
        # The sender's time: consumers see it; the queue uses its own.
        past = DeliveryOptions(born_ms=moment_ms(message.timestamp, "timestamp"))
    attributes: Mapping[str, object] | None = None
    if message.attributes:
        attributes = read_attributes(message.attributes, format.is_json)
    if trace is not None:
        attributes = with_trace(attributes, trace)
    return Draft(
        body,
        encoding,
        delay_ms=None if message.delay is None else span_ms(message.delay, "delay"),
        due_ms=0 if message.at is None else max(moment_ms(message.at, "at"), 1),
        priority=message.priority,
        group=message.group,
        type=message.message_type,
        dedup=message.dedup_id,
        unique=message.unique_key,
        ttl_ms=None if message.ttl is None else span_ms(message.ttl, "ttl"),
        id=message.id,
        attributes=attributes,
        publisher=message.publisher,
        past=past,
    )


def message_filter(
    types: Sequence[str] | None, attributes: dict[str, object] | None, format: Format
) -> MessageFilter | None:
    """Which messages a request wants. Raises InvalidSetting."""
    return MessageFilter.of(types, attributes and read_attributes(attributes, format.is_json))
