"""Keywords and environment variables of a queue, turned into `QueueSettings`.

Durations are seconds here and milliseconds inside. For a new queue each setting is what the keyword
says, else the environment variable `OPENQ_<KEYWORD>`, else the default. A queue that
exists already keeps what it has; only what is named changes it.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from ..errors import InvalidSetting
from ..model import FOREVER_MS, QueueSettings, RetryPolicy
from .times import to_ms

log = logging.getLogger("openq")

DEFAULT_MAX_RECEIVES = 3  # where there is a dead-letter queue


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


def _seconds(value: Any, name: str) -> int:
    return to_ms(value, name)


def _seconds_or_forever(value: Any, name: str) -> int:
    return FOREVER_MS if value is None else to_ms(value, name)


def _retention(value: Any, name: str) -> int:
    if value == 0 and not isinstance(value, bool):
        raise InvalidSetting(f"{name} must be more than 0 seconds; None keeps messages for ever")
    return _seconds_or_forever(value, name)


def _seconds_or_none(value: Any, name: str) -> int | None:
    return None if value is None else to_ms(value, name)


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


_RETRY_SECONDS = {"base": "base_ms", "max": "max_ms"}


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
        if key in _RETRY_SECONDS:
            fields[_RETRY_SECONDS[key]] = to_ms(each, f"{name}[{key!r}]")
        elif key in RetryPolicy.__slots__:
            fields[key] = each
        else:
            raise InvalidSetting(f"{name} knows kind, base, max, factor, jitter and on_expiry, not {key!r}")
    try:
        return RetryPolicy(**fields)
    except TypeError:
        raise InvalidSetting(f"{name}: factor and jitter must be numbers") from None


# Keyword -> its name in QueueSettings, and how its value is read.
LIBRARY_SETTINGS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "visibility_timeout": ("visibility_ms", _seconds),
    "max_receives": ("max_receives", _count_or_none),
    "exhausted": ("exhausted", _text),
    "dead_letter_expired": ("dead_letter_expired", _flag),
    "delay": ("delay_ms", _seconds),
    "retention": ("retention_ms", _retention),
    "message_ttl": ("ttl_ms", _seconds_or_none),
    "max_length": ("max_length", _count_or_none),
    "max_bytes": ("max_bytes", _count_or_none),
    "max_body": ("max_body", _count_or_none),
    "overflow": ("overflow", _text),
    "max_priority": ("max_priority", _count_or_none),
    "fifo": ("fifo", _flag),
    "dedup_window": ("dedup_window_ms", _seconds),
    "dedup_by_content": ("dedup_by_content", _flag),
    "dedup_per_group": ("dedup_per_group", _flag),
    "retry": ("retry", retry_policy),
    "history": ("history_ms", _seconds_or_forever),
    "relaxed": ("relaxed", _flag),
}
_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


# Keywords of the constructor that are no settings.
TARGET_KEYWORDS = (
    *("name", "dlq", "path", "url", "broker", "clock", "codec", "storage", "maxsize", "token", "ca"),
    "reconnect",
)


def unknown_keyword(function: str, keyword: str, known: Iterable[str]) -> TypeError:
    near = difflib.get_close_matches(keyword, list(known), 1)
    hint = f"; did you mean {near[0]!r}?" if near else f". It takes {', '.join(sorted(known))}"
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{hint}")


def named_settings(options: Mapping[str, Any], visibility_timeout: float | None = None) -> dict[str, Any]:
    """What the caller named, under the names of `QueueSettings`."""
    named: dict[str, Any] = {}
    if visibility_timeout is not None:
        options = {**options, "visibility_timeout": visibility_timeout}
    for keyword, value in options.items():
        if keyword not in LIBRARY_SETTINGS:
            raise unknown_keyword("OpenQ", keyword, [*LIBRARY_SETTINGS, *TARGET_KEYWORDS])
        field, read = LIBRARY_SETTINGS[keyword]
        named[field] = read(value, keyword)
    return named


def merge_settings(stored: QueueSettings | None, named: Mapping[str, Any]) -> QueueSettings:
    """The settings a queue is to have: stored ones as far as nothing else is named."""
    values = dict(named)
    if stored is None:
        values = {**_from_environment(), **values}
    base = QueueSettings() if stored is None else stored
    dead_letter = values.get("dead_letter", base.dead_letter)
    if dead_letter is not None or base.dead_letter_exchange is not None:
        if "max_receives" not in values and base.max_receives is None:
            values["max_receives"] = DEFAULT_MAX_RECEIVES
    elif values.get("exhausted", base.exhausted) == "keep":
        if named.get("max_receives") is not None:
            raise InvalidSetting(
                'max_receives needs a dlq for the messages that reach it, or exhausted="drop"'
            )
        values.pop("max_receives", None)
    return base.with_(**values)


def log_changes(queue: str, stored: QueueSettings | None, settings: QueueSettings) -> None:
    """Opening a queue that exists may change it for everybody, which somebody may want to find in a log."""
    if stored is None or stored == settings:
        return
    changes = []
    for keyword, field in [
        *((each, field) for each, (field, _) in LIBRARY_SETTINGS.items()),
        ("dlq", "dead_letter"),
    ]:
        before, after = getattr(stored, field), getattr(settings, field)
        if before != after:
            changes.append(f"{keyword} from {_display(before, field)} to {_display(after, field)}")
    if changes:
        log.info("opening queue %r changed its settings: %s", queue, ", ".join(changes))


def _display(value: Any, field: str) -> str:
    if isinstance(value, RetryPolicy):
        return repr(value.to_json())
    if field.endswith("_ms"):
        return "None" if value is None or value == FOREVER_MS else f"{value / 1000:g} s"
    return repr(value)


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keyword, (field, read) in LIBRARY_SETTINGS.items():
        text = os.environ.get(f"OPENQ_{keyword.upper()}")
        if not text:
            continue
        variable = f"the environment variable OPENQ_{keyword.upper()}"
        value: Any = text
        if read is _flag:
            value = _FLAGS.get(text.strip().lower(), text)
        elif read not in (_text, retry_policy):
            value = _number(text, variable)
        found[field] = read(value, variable)
    return found


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
    """A number that is not a queue's: from `OPENQ_<KEYWORD>`, else the default."""
    text = os.environ.get(f"OPENQ_{keyword.upper()}")
    return _number(text, f"the environment variable OPENQ_{keyword.upper()}") if text else default
