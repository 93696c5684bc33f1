"""Changing fields of JSON bodies by their paths: `a.b.0.c`. Pure.

A body keeps what is not changed, numbers to the digit: they are read as decimals, not as floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from ..errors import InvalidSetting, OpenQError

MAX_CHANGES = 100
_MAX_PATH = 1_000
_MAX_DIGITS = 9

_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class NotTransformed(OpenQError):
    """The body is not JSON, or has no place for the change."""

    code = "not_transformed"


class Transform:
    """`set` gives fields new values and adds those that are missing; `remove` deletes fields."""

    def __init__(self, set: Mapping[str, Any], remove: Sequence[str]) -> None:
        if not 0 < len(set) + len(remove) <= MAX_CHANGES:
            raise InvalidSetting(f"a transform has 1 to {MAX_CHANGES} changes")
        self._set = [(_parts(path), value) for path, value in set.items()]
        self._remove = [_parts(path) for path in remove]

    def apply(self, body: bytes) -> bytes:
        """The changed body. Raises NotTransformed."""
        try:
            document = _DECODER.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise NotTransformed("the body is not JSON") from None
        for parts in self._remove:
            _remove(document, parts)
        for parts, value in self._set:
            _set(document, parts, value)
        return _ENCODER.encode(document)


def _parts(path: str) -> list[str]:
    parts = path.split(".")
    if not path or len(path) > _MAX_PATH or not all(parts):
        raise InvalidSetting(f"{path[:40]!r} is not a path: names and list indexes, joined by dots")
    return parts


def _index(part: str, items: list[Any]) -> int | None:
    if part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS and int(part) < len(items):
        return int(part)
    return None


def _child(holder: Any, part: str) -> Any:
    """The value at a part, or None if there is none."""
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and (index := _index(part, holder)) is not None:
        return holder[index]
    return None


def _set(document: Any, parts: Sequence[str], value: Any) -> None:
    path, holder = ".".join(parts), document
    for part in parts[:-1]:
        child = _child(holder, part)
        if child is None and isinstance(holder, dict) and part not in holder:
            child = holder[part] = {}
        holder = child
    last = parts[-1]
    if isinstance(holder, dict):
        holder[last] = value
    elif isinstance(holder, list) and (index := _index(last, holder)) is not None:
        holder[index] = value
    else:
        raise NotTransformed(f"the body has no place for {path[:100]!r}")


def _remove(document: Any, parts: Sequence[str]) -> None:
    """A field that is not there is no error."""
    holder = document
    for part in parts[:-1]:
        holder = _child(holder, part)
    last = parts[-1]
    if isinstance(holder, dict):
        holder.pop(last, None)
    elif isinstance(holder, list) and (index := _index(last, holder)) is not None:
        del holder[index]
