"""Whether a message matches a filter. Pure, over an entry whose body is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..model import Entry
from .interface import Filter
from .reasons import normalised, reason_of

_MISSING = object()


def needs_body(filter: Filter) -> bool:
    return bool(filter.text is not None or filter.attributes or filter.json)


def matches(id_of: Callable[[Entry], str], entry: Entry, filter: Filter) -> bool:
    options = entry.options
    if filter.dead_in is not None:
        deaths = () if options is None else options.deaths
        if not deaths or deaths[0][0] == filter.dead_in:
            return False
    if entry.sent_ms < filter.sent_from_ms:
        return False
    if filter.sent_until_ms is not None and entry.sent_ms > filter.sent_until_ms:
        return False
    if filter.min_receives or filter.max_receives is not None:
        receives = 0 if options is None else options.count
        if receives < filter.min_receives:
            return False
        if filter.max_receives is not None and receives > filter.max_receives:
            return False
    if filter.ids is not None and id_of(entry) not in filter.ids:
        return False
    if filter.type is not None and (options is None or options.type != filter.type):
        return False
    if filter.reason is not None and filter.reason not in _reasons(entry):
        return False
    if filter.reason_group is not None and normalised(reason_of(entry)) != filter.reason_group:
        return False
    body = entry.body or b""
    if filter.text is not None and filter.text.encode() not in body:
        return False
    if filter.attributes:
        attributes = {} if entry.properties is None else entry.properties.attributes
        if any(attributes.get(name, _MISSING) != value for name, value in filter.attributes.items()):
            return False
    if filter.json:
        try:
            document = json.loads(body)
            return all(_field(document, path) == value for path, value in filter.json.items())
        except (ValueError, RecursionError):
            return False
    return True


def _reasons(entry: Entry) -> str:
    options = entry.options
    if options is None:
        return ""
    return "\n".join([options.reason or "", *(death[1] for death in options.deaths)])


def _is_index(part: str) -> bool:
    """`str.isdigit` alone accepts `²`, which `int` rejects."""
    return part.isascii() and part.isdigit() and len(part) < 20


def _field(document: Any, path: str) -> Any:
    """The value at `a.b.0.c`, through objects and lists."""
    for part in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(part, _MISSING)
        elif isinstance(document, list) and _is_index(part) and int(part) < len(document):
            document = document[int(part)]
        else:
            return _MISSING
    return document
