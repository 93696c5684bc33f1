"""The deliveries of a subscription batch as columns, named as in the table `messages`.

Columns that would be empty throughout are left out. Times are microseconds (`ts_us`, `expires_us`).
Attributes and headers are JSON: `{name: {"type", "string", "binary" in base64}}` and `{name: text}`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ..history.property_values import clean, property_values
from ..model import Delivery, DeliveryOptions, Entry, Properties

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
    # Most messages are only a body. Neighbours with properties or options mostly share them.
    for i, entry in enumerate(entries):
        if entry.options is not None:
            for name, value in _options_columns(entry.options, entry.sent_ms).items():
                columns.setdefault(name, [None] * count)[i] = value
    known: Properties | None = None
    said: dict[str, Any] = {}
    for i, entry in enumerate(entries):
        if entry.properties is not None:
            if entry.properties is not known:
                known, said = entry.properties, _properties_columns(entry.properties)
            for name, value in said.items():
                columns.setdefault(name, [None] * count)[i] = value
    return columns


def _options_columns(options: DeliveryOptions, sent_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if options.id is not None:
        found["message_id"] = clean(options.id)
    if options.type is not None:
        found["type"] = clean(options.type)
    if options.group is not None:
        found["group"] = clean(options.group)
    if options.dedup is not None:
        found["dedup_id"] = clean(options.dedup)
    if options.priority:
        found["priority"] = options.priority
    if options.due_ms > sent_ms:
        found["delay_us"] = (options.due_ms - sent_ms) * 1000
    if options.expires_ms:
        found["expires_us"] = options.expires_ms * 1000
    if options.route is not None:
        found["exchange"], found["routing_key"] = map(clean, options.route)
    return found


def _properties_columns(properties: Properties) -> dict[str, Any]:
    """The columns as in the history. Values that JSON cannot hold are in base64."""
    columns = {
        name: value for name, value in property_values(properties)._asdict().items() if value is not None
    }
    if "attributes" in columns:
        columns["attributes"] = {
            name: {
                "type": kind,
                "string": text,
                "binary": None if data is None else base64.b64encode(data).decode(),
            }
            for name, (kind, text, data) in columns["attributes"]
        }
    if "headers" in columns:
        columns["headers"] = dict(columns["headers"])
    return columns
