"""What the detail of an event looks like, in documents and in the library.

The standard library is enough here: embedded queues have events too, without any other package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..names import split_name
from ..settings import SETTINGS
from .values import iso_or_none, seconds, seconds_or_forever, to_json_value

_DURATIONS_OF_RETRY = {"base_ms": "base", "max_ms": "max"}


def show_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail of an event in plain values: times are ISO-8601, names of queues are without the account."""
    shown: dict[str, Any] = {}
    for name, value in detail.items():
        if name.endswith("_ms"):
            shown[name[:-3]] = iso_or_none(value)
        elif name == "to":
            shown[name] = split_name(value)[1]
        elif name == "settings":
            shown[name] = _settings(value)
        else:
            shown[name] = to_json_value(value)
    return shown


def _settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the names and in the units of the API, as far as they differ from the defaults."""
    shown: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.field not in stored:
            continue
        value = stored[setting.field]
        if setting.kind == "retry" and isinstance(value, Mapping):
            value = {
                _DURATIONS_OF_RETRY.get(name, name): seconds(each) if name in _DURATIONS_OF_RETRY else each
                for name, each in value.items()
            }
        elif setting.kind == "duration" and value is not None:
            value = seconds_or_forever(value) if setting.is_endless else seconds(value)
        elif setting.kind in ("queue", "exchange") and value is not None:
            value = split_name(value)[1]
        shown[setting.name] = to_json_value(value)
    return shown
