"""Words of the command line as the REST API wants them: filters, attributes, points in time."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ..parsing import read_seconds
from .api import UsageError


def filter_of(options: Namespace, text: str | None = None) -> dict[str, Any] | None:
    """Which messages are meant; None for all of them."""
    chosen = {
        "text": text if text is not None else getattr(options, "text", None),
        "message_type": options.type,
        "reason": options.reason,
        "ids": options.ids,
        "attributes": attributes_of(options.attribute),
        "json": {path: _scalar(value) for path, value in options.where} if options.where else None,
    }
    return {name: value for name, value in chosen.items() if value is not None} or None


def attributes_of(pairs: Iterable[tuple[str, str]] | None) -> dict[str, Any] | None:
    """`name=text`, or `name:=5` for a value that is written as JSON."""
    if not pairs:
        return None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name.endswith(":") and len(name) > 1:
            found[name[:-1]] = parse_json(value, f"the value of attribute {name[:-1]}")
        else:
            found[name] = value
    return found


def parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {error}") from None


def _scalar(text: str) -> Any:
    """A number, true, false, null or quoted text as JSON has it; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_time(text: str) -> str:
    """`2h` ago, an ISO-8601 time, or epoch seconds; as ISO-8601."""
    try:
        ago = read_seconds(text)
    except ValueError:
        return _checked_iso(text)
    if text.replace(".", "", 1).isdigit() and ago > 1e8:  # no span: nobody means more than three years
        return iso_time(ago)
    return iso_time(time.time() - ago)


def _checked_iso(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"a time is 2h (ago), 2026-01-31T10:30:00Z or epoch seconds, not {text!r}") from None
    return text


def iso_time(epoch_s: float) -> str:
    try:
        found = datetime.fromtimestamp(epoch_s, UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError("that time is before 1970 or after the year 9999") from None
    return found.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
