"""The signature of an error: its type, and its text without ids, numbers and other variable parts.

The same failure of a thousand messages has one signature.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MAX_SIGNATURE = 200
_MAX_INPUT = 2_000  # characters of a text that are read

_TYPE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)(?:\s*:(?!:)|\s*\Z)")
# Names that look like an exception class: with a capital or a dot, or a usual ending.
_LOOKS_LIKE_CLASS = re.compile(r"[A-Z]|\.|(?:error|exception|warning|timeout|exit)\Z")

_REPLACEMENTS = tuple(
    (re.compile(pattern, re.IGNORECASE), mark)
    for pattern, mark in (
        (r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", "<url>"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
        (r"\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)|`[^`\n]*`", "<s>"),
        (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "<address>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
        (r"\b[a-z]:\\[^\s\"'<>|]+|(?<![\w<>])(?:\.{1,2}|~)?/[^\s\"'<>:,;()]+", "<path>"),
        (r"\b\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:z|[+-]\d\d:?\d\d)?\b", "<time>"),
        (r"\b0x[0-9a-f]+\b", "<id>"),
        # Letters and digits mixed, as in hashes and generated ids; not words and plain numbers.
        (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<id>"),
        (r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "<n>"),
        (r"\d+", "<n>"),
        (r"\s+", " "),
    )
)


class ErrorSignature(NamedTuple):
    type: str | None
    text: str | None


@lru_cache(maxsize=4096)
def signature(text: str | None) -> ErrorSignature:
    """The type and the signature of an error text."""
    if not text or not text.strip():
        return ErrorSignature(None, None)
    text = text[:_MAX_INPUT]
    kind = None
    rest = text
    found = _TYPE.match(text)
    if found is not None and len(found[1]) <= MAX_SIGNATURE // 2 and _LOOKS_LIKE_CLASS.search(found[1]):
        kind, rest = found[1], text[found.end() :]
    # The first non-empty line has the message; stack traces follow.
    line = next((line for line in rest.splitlines() if line.strip()), "")
    for pattern, mark in _REPLACEMENTS:
        line = pattern.sub(mark, line)
    line = line.strip()
    whole = line if kind is None else f"{kind}: {line}" if line else kind
    return ErrorSignature(kind, whole[:MAX_SIGNATURE])
