"""Values of field tables as JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from .tables import Long, Timestamp


def to_json(value: Any) -> Any:
    """JSON without loss for every value that a table can hold; a dict that looks like a tag is wrapped."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, Long):
        return {"$long": int(value)}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, Mapping):
        plain = {name: to_json(item) for name, item in value.items()}
        return {"$table": plain} if any(name.startswith("$") for name in plain) else plain
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


_UNTAG: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$timestamp": Timestamp,
    "$long": Long,
    "$decimal": Decimal,
    "$float": float,
    "$table": lambda table: {name: from_json(item) for name, item in table.items()},
}


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            [(name, inner)] = value.items()
            untag = _UNTAG.get(name)
            if untag is not None:
                return untag(inner)
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value
