"""Texts of HTTP that come from strangers: times to wait, excerpts of responses, values of headers. Pure."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

MAX_RETRY_AFTER_S = 86400.0
MAX_EXCERPT = 300  # characters of a response in a reason
_HEADER_SAFE = " !\"#$&'()*+,-./:;<=>?@[]^_`{|}~"


def retry_after_s(text: str | None, now_s: float) -> float | None:
    """Retry-After in seconds, from a number or a date; None if there is none that can be read."""
    if text is None:
        return None
    try:
        seconds = float(min(int(text), MAX_RETRY_AFTER_S))
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)


def excerpt(data: bytes) -> str:
    """One short line that a terminal shows as it is."""
    text = " ".join(data[: 8 * MAX_EXCERPT].decode(errors="replace").split())[:MAX_EXCERPT]
    return "".join(char if char.isprintable() else "?" for char in text)


def header_text(value: object) -> str:
    """A value that a header can hold: other characters, and the percent sign with them, are encoded."""
    text = str(value)
    return text if text.isascii() and text.isprintable() else quote(text, safe=_HEADER_SAFE)


def attribute_text(value: Any) -> str:
    """Text as it is, bytes as UTF-8 if they are, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return json.dumps(value, default=str, ensure_ascii=False)
