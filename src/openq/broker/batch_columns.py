"""Deliveries as columns, named as in the table `messages`: what a batch of a subscription looks like.

Columns that would be empty throughout are left out; times are microseconds (`ts_us`, `expires_us`).
Attributes and headers are JSON: `{name: {"type", "string", "binary" in base64}}` and `{name: text}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..model import Delivery, Entry, Extra, Info
from ..properties import MalformedProperties
from ..properties import decode as decode_properties

KINDS = {
    "seq": "int",
    "message_id": "text",
    "ts_us": "int",
    "queue": "text",
    "receive_count": "int",
    "size": "int",
    "body": "bytes",
    "type": "text",
    "group": "text",
    "dedup_id": "text",
    "priority": "int",
    "delay_us": "int",
    "expires_us": "int",
    "exchange": "text",
    "routing_key": "text",
    "content_type": "text",
    "attributes": "json",
    "headers": "json",
    "trace_id": "text",
    "producer": "text",
    "replay_of": "text",
    "replay_count": "int",
    "batch": "text",
}
_SQS_TYPES = "openq.sqs-types"
_MAX_COUNT = (1 << 31) - 1


def columns_of(
    prefix: str, queue: str, deliveries: Sequence[Delivery], entries: Sequence[Entry]
) -> dict[str, list[Any]]:
    """`prefix` is that of message ids; `entries` are those of the deliveries, with bodies."""
    count = len(entries)
    columns: dict[str, list[Any]] = {
        "seq": [each.seq for each in entries],
        "message_id": [f"{prefix}{each.seq:012x}" for each in entries],
        "ts_us": [each.sent_ms * 1000 for each in entries],
        "queue": [queue] * count,
        "receive_count": [each.count for each in deliveries],
        "priority": [0] * count,
        "delay_us": [0] * count,
        "size": [each.size for each in entries],
        "body": [each.body for each in entries],
    }
    # Most messages are nothing but a body; neighbours that say more mostly say the same.
    for i, entry in enumerate(entries):
        if entry.extra is not None:
            for name, value in _of_extra(entry.extra, entry.sent_ms).items():
                columns.setdefault(name, [None] * count)[i] = value
    known: Info | None = None
    told: dict[str, Any] = {}
    for i, entry in enumerate(entries):
        if entry.info is not None:
            if entry.info is not known:
                known, told = entry.info, _of_info(entry.info)
            for name, value in told.items():
                columns.setdefault(name, [None] * count)[i] = value
    return columns


def _of_extra(extra: Extra, sent_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if extra.id is not None:
        found["message_id"] = _clean(extra.id)
    if extra.type is not None:
        found["type"] = _clean(extra.type)
    if extra.group is not None:
        found["group"] = _clean(extra.group)
    if extra.dedup is not None:
        found["dedup_id"] = _clean(extra.dedup)
    if extra.priority:
        found["priority"] = extra.priority
    if extra.due_ms > sent_ms:
        found["delay_us"] = (extra.due_ms - sent_ms) * 1000
    if extra.expires_ms:
        found["expires_us"] = extra.expires_ms * 1000
    if extra.route is not None:
        found["exchange"], found["routing_key"] = map(_clean, extra.route)
    return found


# What follows says the same as the decoder of the journal (`openq.columns.stamps.told`), without what that
# needs and a server does not have. A test holds one against the other.


def _of_info(info: Info) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if info.wire is not None:
        try:
            headers = decode_properties(info.wire).headers or {}
        except MalformedProperties:
            return _given(producer=_text(info.publisher))
    attributes = info.attributes
    types = attributes.get(_SQS_TYPES)
    kinds: Mapping[str, object] = types if isinstance(types, Mapping) else {}
    return _given(
        content_type=_text(attributes.get("content_type")),
        attributes={
            _clean(str(name)): _attribute(value, kinds.get(name))
            for name, value in attributes.items()
            if value is not None and name != _SQS_TYPES
        },
        headers={_clean(name): _text(value) for name, value in headers.items()},
        trace_id=_trace_id(attributes) or _trace_id(headers),
        producer=_text(info.publisher),
        replay_of=_text(attributes.get("openq.replay_of")),
        replay_count=_count(attributes.get("openq.replay_count")),
        batch=_text(attributes.get("openq.batch")),
    )


def _given(**columns: Any) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value not in (None, {})}


def _attribute(value: object, kind: object) -> dict[str, str | None]:
    text = binary = None
    if isinstance(value, bytes):
        default, binary = "Binary", base64.b64encode(value).decode()
    else:
        text = _text(value)
        if isinstance(value, str):
            default = "String"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            default = "Number"
        else:
            default = "Json"
    return {"type": _clean(kind) if isinstance(kind, str) else default, "string": text, "binary": binary}


def _text(value: object) -> str | None:
    """Text as it is, everything else as JSON would write it."""
    if value is None:
        return None
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return _clean(json.dumps(value, default=_text, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return _clean(str(value))


def _clean(text: str) -> str:
    """Text that can be encoded: a message that says something odd must not keep its batch from being read."""
    return text.encode("utf-8", "replace").decode()


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return None


def _trace_id(values: Mapping[str, Any]) -> str | None:
    parent = values.get("traceparent")
    if isinstance(parent, str) and parent.count("-") >= 2:
        return _clean(parent.split("-")[1]) or None
    for name in ("AWSTraceHeader", "X-Amzn-Trace-Id", "x-amzn-trace-id", "openq.trace"):
        text = values.get(name)
        if isinstance(text, str):
            for part in text.split(";"):
                key, _, value = part.strip().partition("=")
                if key == "Root" and value:
                    return _clean(value)
    return _text(values.get("trace_id"))
