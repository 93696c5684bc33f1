"""Options as the REST API takes them: filters, attributes, times."""

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
    """The filter of the given options; None if there is none."""
    chosen = {
        "text": text if text is not None else getattr(options, "text", None),
        "message_type": options.type,
        "reason": options.reason,
        "reason_group": options.reason_group,
        "ids": options.ids,
        "attributes": attributes_of(options.attribute),
        "json": {path: _scalar(value) for path, value in options.where} if options.where else None,
    }
    for name in ("min_age", "max_age", "min_receives", "max_receives"):
        chosen[name] = getattr(options, name, None)
    return {name: value for name, value in chosen.items() if value is not None} or None


def attributes_of(pairs: Iterable[tuple[str, str]] | None) -> dict[str, Any] | None:
    """`name=text`, or `name:=5` for a JSON value."""
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


def changes_of(pairs: Iterable[tuple[str, str]] | None) -> dict[str, Any] | None:
    """New values by their paths: `order.total=12`."""
    return {path: _scalar(value) for path, value in pairs} if pairs else None


def _scalar(text: str) -> Any:
    """The value if the text is JSON (a number, true, false, null, quoted text), otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_time(text: str) -> str:
    """From `2h` (ago), an ISO-8601 time, or epoch seconds; as ISO-8601."""
    try:
        ago = read_seconds(text)
    except ValueError:
        return _checked_iso(text)
    if text.replace(".", "", 1).isdigit() and ago > 1e8:  # more than three years: a point in time
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
        raise UsageError("the time must be between the years 1970 and 9999") from None
    return found.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
