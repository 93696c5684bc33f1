"""The keys of a `[schedules.NAME]` table in `openq.toml`: the field of the schedule, and its reader.

A schedule is declared by code, over REST or on the command line too; see `openq.broker.schedules`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from .cron import Cron, find_zone
from .model import ENCODING_JSON, ENCODING_TEXT, check_name
from .parsing import one_of, read_int, read_ms, read_text, within


def _read_body(value: object) -> tuple[bytes, int]:
    """Text as it is; any other value as JSON."""
    if isinstance(value, str):
        return value.encode(), ENCODING_TEXT
    return json.dumps(value, ensure_ascii=False, default=str).encode(), ENCODING_JSON


def _read_queue(value: object) -> str:
    return check_name(read_text(value))


def _read_cron(value: object) -> str:
    return Cron(read_text(value)).text


def _read_zone(value: object) -> str:
    text = read_text(value)
    find_zone(text)
    return text


def _read_moment(value: object) -> int:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(read_text(value))
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00Z") from None
    return round((moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp() * 1000)


def _read_attributes(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError('a table, such as { tenant = "a" }')
    return dict(value)


SCHEDULE_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "queue": ("queue", _read_queue),
    "body": ("body", _read_body),
    "cron": ("cron", _read_cron),
    "every": ("every_ms", read_ms),
    "timezone": ("timezone", _read_zone),
    "misfire": ("misfire", one_of("skip", "once", "all")),
    "jitter": ("jitter_ms", read_ms),
    "start": ("start_ms", _read_moment),
    "end": ("end_ms", _read_moment),
    "priority": ("priority", within(read_int, 0, 255, "a priority, 0 to 255")),
    "group": ("group", read_text),
    "message_type": ("type", read_text),
    "attributes": ("attributes", _read_attributes),
    "delay": ("delay_ms", read_ms),
    "ttl": ("ttl_ms", read_ms),
    "unique_key": ("unique", read_text),
}
