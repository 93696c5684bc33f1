"""The settings of a queue, described once.

`SETTINGS` has a row for each setting. Its name is what users write: a keyword of the library, a field of
the REST API, a key of a `[queues.NAME]` table, a flag of `openq queue create` (`--visibility-timeout`) and,
for new queues of the library, an environment variable (`OPENQ_VISIBILITY_TIMEOUT`). Its field is the
attribute of `QueueSettings` that holds it: durations are seconds outside and milliseconds inside.

To add a setting: a field of `QueueSettings`, a row here, its rule in `engine/`, and for Redis
`redis/records.py:pack_settings` and the functions in `redis/lua/`. The library's `QueueOptions` repeats the
names for type checkers. Tests compare the names, and what is packed for Redis.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from .errors import InvalidSetting
from .limits import KEY_LIMITS_FORM, MAX_COUNT, RATE_FORM, check_key_limits, parse_key_limits, parse_rate
from .model import FOREVER_MS, MAX_PRIORITY, OVERFLOWS, QueueSettings, RetryPolicy
from .parsing import (
    read_flag,
    read_int,
    read_ms,
    read_ms_or_forever,
    read_retention,
    read_size,
    read_text,
)

DEFAULT_MAX_RECEIVES = 3  # of a queue with a dead-letter target

Kind = Literal[
    "duration",
    "count",
    "bytes",
    "flag",
    "text",
    "choice",
    "queue",
    "exchange",
    "retry",
    "rate",
    "key_limits",
]


class Setting(NamedTuple):
    name: str
    field: str
    kind: Kind
    help: str
    is_optional: bool = False  # None (null in JSON) is a value: no limit, no target, no end
    none: int | None = None  # what None is stored as
    minimum: int = 0
    maximum: int = 1 << 60
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # other keys of a `[queues.NAME]` table
    in_library: bool = True  # a keyword of `Queue`
    in_cli: bool = True  # a flag of `openq queue`

    @property
    def is_endless(self) -> bool:
        """None is a time without end."""
        return self.none == FOREVER_MS

    @property
    def variable(self) -> str:
        return f"OPENQ_{self.name.upper()}"


SETTINGS = (
    Setting(
        "visibility_timeout",
        "visibility_ms",
        "duration",
        "how long a delivery is invisible to other consumers: 30, 500ms, 5m (default 30s)",
    ),
    Setting(
        "dlq",
        "dead_letter",
        "queue",
        "dead-letter queue; created if it does not exist",
        is_optional=True,
        aliases=("dead_letter",),
        in_library=False,  # an argument of its own
    ),
    Setting(
        "max_receives",
        "max_receives",
        "count",
        f"deliveries before a message is dead-lettered (default {DEFAULT_MAX_RECEIVES} with a dlq)",
        is_optional=True,
        minimum=1,
    ),
    Setting(
        "exhausted",
        "exhausted",
        "choice",
        "keep or drop a message after max_receives deliveries, where there is no dlq",
        choices=("keep", "drop"),
    ),
    Setting(
        "dead_letter_exchange",
        "dead_letter_exchange",
        "exchange",
        "exchange that dead letters are published to",
        is_optional=True,
        in_library=False,
        in_cli=False,
    ),
    Setting(
        "dead_letter_key",
        "dead_letter_key",
        "text",
        "routing key of dead letters; default: their own",
        is_optional=True,
        in_library=False,
        in_cli=False,
    ),
    Setting("dead_letter_expired", "dead_letter_expired", "flag", "dead-letter expired messages too"),
    Setting("delay", "delay_ms", "duration", "delay of new messages (default 0)"),
    Setting(
        "retention",
        "retention_ms",
        "duration",
        "how long messages are kept: 14d, forever (default 4d)",
        is_optional=True,
        none=FOREVER_MS,
    ),
    Setting(
        "message_ttl",
        "ttl_ms",
        "duration",
        "how long messages may wait for delivery",
        is_optional=True,
        aliases=("ttl",),
    ),
    Setting("max_length", "max_length", "count", "maximum number of messages", is_optional=True),
    Setting("max_bytes", "max_bytes", "bytes", "maximum bytes of all messages", is_optional=True),
    Setting("max_body", "max_body", "bytes", "maximum bytes of one body", is_optional=True),
    Setting(
        "overflow",
        "overflow",
        "choice",
        f"what a full queue does: {', '.join(OVERFLOWS)}",
        choices=OVERFLOWS,
    ),
    Setting(
        "max_priority",
        "max_priority",
        "count",
        "higher priorities count as this one; 0: the order ignores priorities",
        is_optional=True,
        maximum=MAX_PRIORITY,
    ),
    Setting("fifo", "fifo", "flag", "strict order within a message group"),
    Setting("dedup_window", "dedup_window_ms", "duration", "how long deduplication ids count (default 5m)"),
    Setting("dedup_by_content", "dedup_by_content", "flag", "deduplicate messages by their body"),
    Setting("dedup_per_group", "dedup_per_group", "flag", "deduplicate within a message group only"),
    Setting(
        "retry",
        "retry",
        "retry",
        "wait after a failed delivery: default (1s, doubled, at most 15m), none, fixed or exponential",
        is_optional=True,
        choices=("default", "none", "fixed", "exponential"),
    ),
    Setting(
        "history",
        "history_ms",
        "duration",
        "how long messages can be replayed: 7d, forever (default 1d)",
        is_optional=True,
        none=FOREVER_MS,
    ),
    Setting("paused", "paused", "flag", "deliver nothing until resumed", in_library=False, in_cli=False),
    Setting("relaxed", "relaxed", "flag", "answer before the sync: up to 50 ms at risk in a power cut"),
    Setting(
        "concurrency",
        "concurrency",
        "count",
        "maximum number of messages in flight",
        is_optional=True,
        minimum=1,
        maximum=MAX_COUNT,
    ),
    Setting(
        "rate",
        "rate",
        "rate",
        "maximum rate of deliveries, a token bucket: 100/s, 100/m, 6000/h, 100/m burst 20",
        is_optional=True,
    ),
    Setting(
        "key_concurrency",
        "key_concurrency",
        "count",
        "maximum number of messages in flight for each key (message group)",
        is_optional=True,
        minimum=1,
        maximum=MAX_COUNT,
    ),
    Setting("key_rate", "key_rate", "rate", "maximum rate of deliveries for each key", is_optional=True),
    Setting(
        "key_limits",
        "key_limits",
        "key_limits",
        "limits of single keys, instead of those of each key: tenant-17=concurrency:3,rate:100/m",
    ),
)


# -- tables of a configuration file ---------------------------------------------------------------


def suggestion(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _read_retry(value: object) -> RetryPolicy:
    if isinstance(value, str):
        return RetryPolicy.named(value)
    if not isinstance(value, Mapping):
        raise ValueError(
            "default, none, fixed, exponential or a table with kind, base, max, factor, jitter and on_expiry"
        )
    fields: dict[str, Any] = {"kind": "exponential"}
    for name, each in value.items():
        target = RETRY_DURATIONS.get(name, name)
        if target not in RetryPolicy.__slots__:
            raise ValueError(
                "kind, base, max, factor, jitter and on_expiry, "
                f"not {name!r}{suggestion(name, [*RETRY_DURATIONS, 'kind'])}"
            )
        fields[target] = read_ms(each) if name in RETRY_DURATIONS else each
    try:
        return RetryPolicy(**fields)
    except TypeError:
        raise ValueError("a table in which factor and jitter are numbers") from None


RETRY_DURATIONS = {"base": "base_ms", "max": "max_ms"}


def _read_int_ms(value: object) -> int:
    number = read_int(value)
    if number < 0:
        raise ValueError("a whole number of milliseconds, 0 or more")
    return number


def _read_rate(value: object) -> str:
    try:
        return parse_rate(read_text(value)).text
    except InvalidSetting:
        raise ValueError(RATE_FORM) from None


def _read_key_limits(value: object) -> dict[str, dict[str, Any]]:
    try:
        return parse_key_limits(value) if isinstance(value, str) else check_key_limits(value)
    except InvalidSetting as error:
        raise ValueError(f"{KEY_LIMITS_FORM} ({error})") from None


_READERS: dict[Kind, Callable[[object], Any]] = {
    "duration": read_ms,
    "count": read_int,
    "bytes": read_size,
    "flag": read_flag,
    "text": read_text,
    "choice": read_text,
    "queue": read_text,
    "exchange": read_text,
    "retry": _read_retry,
    "rate": _read_rate,
    "key_limits": _read_key_limits,
}


def _reader_of(setting: Setting) -> Callable[[object], Any]:
    if setting.name == "retention":
        return read_retention
    return read_ms_or_forever if setting.is_endless else _READERS[setting.kind]


# Key of a `[queues.NAME]` table -> the field of QueueSettings and the reader of its value. The fields that
# are durations are keys too, in milliseconds.
TABLE_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    **{
        key: (setting.field, _reader_of(setting))
        for setting in SETTINGS
        for key in (setting.name, *setting.aliases)
    },
    **{setting.field: (setting.field, _read_int_ms) for setting in SETTINGS if setting.kind == "duration"},
}


# -- changing settings ----------------------------------------------------------------------------


def merge_settings(
    stored: QueueSettings | None, named: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> QueueSettings:
    """The stored settings, changed by what is named (by field). `defaults` count for a new queue only."""
    base = QueueSettings() if stored is None else stored
    values = {**(defaults or {}), **named} if stored is None else dict(named)
    has_target = values.get("dead_letter", base.dead_letter) or values.get(
        "dead_letter_exchange", base.dead_letter_exchange
    )
    if has_target:
        if "max_receives" not in values and base.max_receives is None:
            values["max_receives"] = DEFAULT_MAX_RECEIVES
    elif values.get("exhausted", base.exhausted) == "keep":
        if named.get("max_receives") is not None:
            raise InvalidSetting(
                'max_receives needs a dlq for the messages that reach it, or exhausted="drop"'
            )
        if "max_receives" not in named:
            values.pop("max_receives", None)
    return base.with_(**values)
