"""Why a message failed, and which failures are of the same kind."""

from __future__ import annotations

import re

from ..model import Entry

MAX_REASON = 500  # characters that are compared and shown

_VARYING = [
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
]


def reason_of(entry: Entry) -> str:
    """The reason of the last consumer, else the reason of the dead-lettering."""
    options = entry.options
    if options is None:
        return ""
    return options.reason or (options.deaths[0][1] if options.deaths else "")


def normalised(reason: str) -> str:
    """The reason without ids, addresses and numbers, which differ between failures of the same kind."""
    text = reason[:MAX_REASON]
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text.strip()
