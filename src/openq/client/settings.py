"""Keywords and environment variables of a queue, turned into `QueueSettings`.

A new queue takes each setting from its keyword, else from the environment variable `OPENQ_<KEYWORD>`, else
the default. An existing queue keeps its settings; only those that are named change.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from .. import settings as queue_settings
from ..errors import InvalidSetting
from ..limits import check_key_limits, parse_key_limits, rate_text
from ..model import FOREVER_MS, QueueSettings, RetryPolicy
from ..parsing import read_flag
from ..settings import RETRY_DURATIONS, SETTINGS, Kind, Setting
from .times import to_ms

log = logging.getLogger("openq")


class QueueOptions(TypedDict, total=False):
    """Every setting a queue may be opened with; see `openq.Queue`."""

    max_receives: int | None
    exhausted: str
    dead_letter_expired: bool
    delay: float
    retention: float | None
    message_ttl: float | None
    max_length: int | None
    max_bytes: int | None
    max_body: int | None
    overflow: str
    max_priority: int | None
    fifo: bool
    dedup_window: float
    dedup_by_content: bool
    dedup_per_group: bool
    retry: RetryPolicy | str | Mapping[str, Any] | None
    history: float | None
    relaxed: bool
    concurrency: int | None
    rate: str | None
    key_concurrency: int | None
    key_rate: str | None
    key_limits: Mapping[str, Mapping[str, Any]]


def _count_or_none(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSetting(f"{name} must be a whole number or None, not {value!r}")
    return value


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"{name} must be True or False, not {value!r}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(f"{name} must be text, not {value!r}")
    return value


def _key_limits(value: Any, name: str) -> dict[str, dict[str, Any]]:
    return parse_key_limits(value) if isinstance(value, str) else check_key_limits(value)


def retry_policy(value: Any, name: str = "retry") -> RetryPolicy:
    """A policy, its kind alone, or a dict with kind, base and max (seconds), factor, jitter and on_expiry."""
    if value is None:
        return RetryPolicy()
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, str):
        return RetryPolicy.named(value)
    if not isinstance(value, Mapping):
        raise InvalidSetting(f"{name} must be a RetryPolicy, its kind or a dict, not {value!r}")
    fields: dict[str, Any] = {"kind": "exponential"}
    for key, each in value.items():
        if key in RETRY_DURATIONS:
            fields[RETRY_DURATIONS[key]] = to_ms(each, f"{name}[{key!r}]")
        elif key in RetryPolicy.__slots__:
            fields[key] = each
        else:
            raise InvalidSetting(f"{name} takes kind, base, max, factor, jitter and on_expiry, not {key!r}")
    try:
        return RetryPolicy(**fields)
    except TypeError:
        raise InvalidSetting(f"{name}: factor and jitter must be numbers") from None


_READERS: dict[Kind, Callable[[Any, str], Any]] = {
    "duration": to_ms,
    "count": _count_or_none,
    "bytes": _count_or_none,
    "flag": _flag,
    "text": _text,
    "choice": _text,
    "retry": retry_policy,
    "rate": rate_text,
    "key_limits": _key_limits,
}
LIBRARY_SETTINGS = {setting.name: setting for setting in SETTINGS if setting.in_library}


def _read(setting: Setting, value: Any, name: str) -> Any:
    """The value for `QueueSettings`; `name` is for the error."""
    if value is None and setting.kind == "duration" and setting.is_optional:
        return setting.none
    if value == 0 and not isinstance(value, bool) and setting.name == "retention":
        raise InvalidSetting(f"{name} must be more than 0 seconds; None keeps messages for ever")
    return _READERS[setting.kind](value, name)


# Keywords of the constructor that are not settings.
TARGET_KEYWORDS = (
    *("name", "dlq", "path", "url", "broker", "clock", "codec", "storage", "maxsize", "token", "ca"),
    "reconnect",
)


def unknown_keyword(function: str, keyword: str, known: Iterable[str]) -> TypeError:
    near = difflib.get_close_matches(keyword, list(known), 1)
    hint = f"; did you mean {near[0]!r}?" if near else f". It takes {', '.join(sorted(known))}"
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{hint}")


def named_settings(options: Mapping[str, Any], visibility_timeout: float | None = None) -> dict[str, Any]:
    """The settings that the caller named, under the names of `QueueSettings`."""
    named: dict[str, Any] = {}
    if visibility_timeout is not None:
        options = {**options, "visibility_timeout": visibility_timeout}
    for keyword, value in options.items():
        if keyword not in LIBRARY_SETTINGS:
            raise unknown_keyword("OpenQ", keyword, [*LIBRARY_SETTINGS, *TARGET_KEYWORDS])
        setting = LIBRARY_SETTINGS[keyword]
        named[setting.field] = _read(setting, value, keyword)
    return named


def merge_settings(stored: QueueSettings | None, named: Mapping[str, Any]) -> QueueSettings:
    """The stored settings, changed by what is named; those of a new queue come from the environment too."""
    return queue_settings.merge_settings(stored, named, _from_environment() if stored is None else None)


def log_changes(queue: str, stored: QueueSettings | None, settings: QueueSettings) -> None:
    """Log that opening an existing queue changed its settings, which affects all its users."""
    if stored is None or stored == settings:
        return
    changes = []
    for setting in SETTINGS:
        before, after = getattr(stored, setting.field), getattr(settings, setting.field)
        if before != after:
            changes.append(f"{setting.name} from {_display(before, setting)} to {_display(after, setting)}")
    if changes:
        log.info("opening queue %r changed its settings: %s", queue, ", ".join(changes))


def _display(value: Any, setting: Setting) -> str:
    if isinstance(value, RetryPolicy):
        return repr(value.to_json())
    if setting.kind == "duration":
        return "None" if value is None or value == FOREVER_MS else f"{value / 1000:g} s"
    return repr(value)


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in LIBRARY_SETTINGS.values():
        text = os.environ.get(setting.variable)
        if text:
            name = f"the environment variable {setting.variable}"
            found[setting.field] = _read(setting, _from_text(setting, text, name), name)
    return found


def _from_text(setting: Setting, text: str, name: str) -> Any:
    if setting.kind == "flag":
        try:
            return read_flag(text)
        except ValueError:
            return text  # `_read` refuses it
    return _number(text, name) if setting.kind in ("duration", "count", "bytes") else text


def _number(text: str, variable: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidSetting(f"{variable} must be a number, not {text!r}") from None


def environment_number(keyword: str, default: float) -> float:
    """A number that is not a setting of a queue: from `OPENQ_<KEYWORD>`, else the default."""
    text = os.environ.get(f"OPENQ_{keyword.upper()}")
    return _number(text, f"the environment variable OPENQ_{keyword.upper()}") if text else default
