"""The configuration of a server: flags, environment, file and defaults, read once into one frozen value.

Every key exists three times: as a flag (`--idle-timeout-s`), as an environment variable
(`OPENQ_IDLE_TIMEOUT_S`) and as a key of the TOML file (`idle_timeout_s`). A flag goes before the
environment, that before the file, that before the default; each value remembers where it came from.
To add a key: a field of `Config` and its line in `KEYS`.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .errors import InvalidSetting
from .model import FOREVER_MS, QueueSettings, RetryPolicy, check_name

DEFAULT_FILE = "openq.toml"
DEFAULT_PORT = 9324
DEFAULT_AMQP_PORT = 5672
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
FOREVER = "forever"
DEFAULT_MAX_RECEIVES = 3  # where there is a dead-letter queue

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


class ConfigError(InvalidSetting):
    """A key or a value that cannot be; the sentence names it, where it stands, and what would do."""

    code = "invalid_config"


# -- reading one value --------------------------------------------------------------------------
# A value is text from a flag or the environment, and a TOML value from the file. Each reader takes
# both and raises ValueError with what it wants to see.


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
_SIZES = {"": 1, "b": 1, "k": _KIB, "kib": _KIB, "kb": 1000, "m": _MIB, "mib": _MIB, "mb": 10**6}
_SIZES |= {"g": _GIB, "gib": _GIB, "gb": 10**9}
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    raise ValueError("true or false")


def read_text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("text")


def read_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value, re.ASCII):
        return int(value)
    raise ValueError("a whole number")


def _parse_quantity(value: object, units: Mapping[str, float]) -> float | None:
    """A number, alone or with one of `units`; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if math.isfinite(value) else None
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        return None
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * unit


def read_size(value: object) -> int:
    size = _parse_quantity(value, _SIZES)
    if size is None or size < 0 or size != int(size) or size >= 1 << 62:
        raise ValueError("a number of bytes, such as 1048576 or 20MiB")
    return int(size)


def read_seconds(value: object) -> float:
    seconds = _parse_quantity(value, _DURATIONS)
    if seconds is None or not 0 <= seconds <= 1e12:
        raise ValueError("a number of seconds, or a time such as 500ms, 30s, 5m, 2h, 4d")
    return int(seconds) if seconds == int(seconds) else seconds


def read_ms(value: object) -> int:
    return round(read_seconds(value) * 1000)


def read_ms_or_forever(value: object) -> int:
    """TOML has no null: a time that never ends is the word."""
    if isinstance(value, str) and value.strip().lower() == FOREVER:
        return FOREVER_MS
    try:
        return read_ms(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def read_retention(value: object) -> int:
    ms = read_ms_or_forever(value)
    if ms == 0:
        raise ValueError(f"more than 0 seconds, or {FOREVER}")
    return ms


def read_port(value: object) -> int:
    number = read_int(value)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def read_port_or_off(value: object) -> int | None:
    """None: this protocol is not served."""
    if value is False or (isinstance(value, str) and value.strip().lower() == "off"):
        return None
    try:
        return read_port(value)
    except ValueError:
        raise ValueError("a port, 0 to 65535 (0 picks a free one), or off") from None


def read_amqp_port(value: object) -> int | Literal["auto"] | None:
    """Like `read_port_or_off`; "auto" is the default port if it is free, else any free one."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return read_port_or_off(value)
    except ValueError:
        raise ValueError("a port, 0 to 65535 (0 picks a free one), auto, or off") from None


def read_names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, Iterable):
        names = list(value)
        if all(isinstance(name, str) for name in names):
            return tuple(name.strip().lower() for name in names if name.strip())
    raise ValueError("names, as a list in the file and with commas between them elsewhere")


def _one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in words:
            return value.strip().lower()
        raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")

    return read


def _within(
    read: Callable[[object], Any], minimum: float, maximum: float | None, what: str
) -> Callable[[object], Any]:
    def read_within(value: object) -> Any:
        number = read(value)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(what)
        return number

    return read_within


def _matching(pattern: str, what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
            return value
        raise ValueError(what)

    return read


class Key(NamedTuple):
    """How one key is read, and what help says of it. `metavar` is None for a switch."""

    read: Callable[[object], Any]
    help: str
    metavar: str | None = "VALUE"


_MIN_SEGMENT, _MAX_SEGMENT = 1 << 16, 1 << 30
_seconds = _within(read_seconds, 0.001, 1e9, "a time of more than 0 seconds, such as 30 or 2m")

KEYS: dict[str, Key] = {
    "data": Key(read_text, "the data directory: everything acknowledged is on disk there", "DIR"),
    "memory": Key(read_flag, "keep nothing on disk: all is gone when the server ends", None),
    "store": Key(
        _matching(
            r"(redis|rediss|valkey|valkeys)(\+(unix|sentinel|cluster))?://\S+",
            "an address such as redis://host:6379",
        ),
        "keep messages, users and all else in Redis or Valkey, shared by every server that names it",
        "URL",
    ),
    "profile": Key(
        _one_of("safe", "fast"),
        "safe: answers wait for Redis's copies, and settings that lose messages are refused; fast: neither "
        "(default safe)",
        "KIND",
    ),
    "archive": Key(
        read_text, "where the archive of the history is; default: archive in the data directory", "DIR"
    ),
    "host": Key(read_text, "the address to listen on; another than loopback needs users", "ADDRESS"),
    "port": Key(
        _within(read_int, 0, 65535, "a port, 0 to 65535; 0 picks a free one"), "0 picks a free one", "N"
    ),
    "amqp_port": Key(
        read_amqp_port,
        "for AMQP 0.9.1; 0 picks a free one, auto does if 5672 is taken, off serves none",
        "N",
    ),
    "amqps_port": Key(read_port_or_off, "for AMQP over TLS, commonly 5671; needs tls_cert", "N"),
    "region": Key(
        _matching(r"[a-z0-9-]{1,32}", "a region such as us-east-1"),
        "the server's own region; SQS requests signed for another one have queues of their own",
        "NAME",
    ),
    "queue_urls": Key(
        _one_of("path", "plain"),
        "path: the SQS URL of a queue in another region names that region; plain: all look alike",
        "KIND",
    ),
    "limits": Key(
        _one_of("strict", "testing", "relaxed"),
        "strict: those of Amazon SQS; testing: the same, deleted names are free at once; relaxed: wider",
        "KIND",
    ),
    "relaxed": Key(read_flag, "answer before the sync: up to 50 ms of answers at risk in a power cut", None),
    "auth": Key(
        _one_of("auto", "on"),
        "auto: open until the first user exists; on: sign-in needed from the start",
        "WHEN",
    ),
    "insecure": Key(
        read_flag, "listen on any address without users: everybody who reaches it may do all", None
    ),
    "hosts": Key(read_names, "more names that clients may call this server by", "NAMES"),
    "tls_cert": Key(read_text, "certificate chain (PEM): serve HTTPS", "FILE"),
    "tls_key": Key(read_text, "private key of the certificate (PEM)", "FILE"),
    "tls_ca": Key(
        read_text, "authorities (PEM) whose certificates sign AMQP clients in by name (EXTERNAL)", "FILE"
    ),
    "definitions": Key(read_text, "definitions of RabbitMQ (JSON) to apply at every start", "FILE"),
    "log_format": Key(
        _one_of("auto", "text", "json"), "auto: text on a terminal, JSON lines otherwise", "KIND"
    ),
    "log_level": Key(_one_of("debug", "info", "warning", "error"), "minimum log level", "LEVEL"),
    "max_request_bytes": Key(
        _within(read_size, 1024, None, "at least 1024 bytes"), "the largest request that is read", "SIZE"
    ),
    "max_message_bytes": Key(
        _within(read_size, 1, None, "at least 1 byte"), "the largest message that AMQP takes", "SIZE"
    ),
    "max_buffer_bytes": Key(
        _within(read_size, 1 << 20, None, "at least 1 MiB"),
        "memory for what clients sent in part and for answers they do not read, over all connections",
        "SIZE",
    ),
    "max_connections": Key(
        _within(read_int, 1, 10**7, "1 to 10000000"),
        "more than these, of all protocols together, are refused",
        "N",
    ),
    "header_timeout_s": Key(_seconds, "for a client to send the head of a request", "SECONDS"),
    "body_timeout_s": Key(_seconds, "for a client to go on with the body of a request", "SECONDS"),
    "idle_timeout_s": Key(_seconds, "for a connection between two requests", "SECONDS"),
    "drain_timeout_s": Key(
        _within(read_seconds, 0, 1e9, "0 or more seconds"),
        "for running requests when the server stops",
        "SECONDS",
    ),
    "segment_bytes": Key(
        _within(read_size, _MIN_SEGMENT, _MAX_SEGMENT, f"{_MIN_SEGMENT} to {_MAX_SEGMENT} bytes"),
        "the size of a journal file",
        "SIZE",
    ),
    "history_bytes": Key(read_size, "the most that is kept for replay, over all queues", "SIZE"),
}


# -- queues declared in the file ----------------------------------------------------------------


def _read_retry(value: object) -> RetryPolicy:
    if isinstance(value, str):
        return RetryPolicy.named(value)
    if not isinstance(value, Mapping):
        raise ValueError(
            "default, none, fixed, exponential or a table with kind, base, max, factor, jitter and on_expiry"
        )
    known = {"base": "base_ms", "max": "max_ms"}
    chosen: dict[str, Any] = {"kind": "exponential"}
    for name, each in value.items():
        target = known.get(name, name)
        if target not in RetryPolicy.__slots__:
            raise ValueError(
                f"kind, base, max, factor, jitter and on_expiry, not {name!r}{_near(name, [*known, 'kind'])}"
            )
        if name in known:
            each = read_ms(each)
        chosen[target] = each
    try:
        return RetryPolicy(**chosen)
    except TypeError:
        raise ValueError("a table in which factor and jitter are numbers") from None


def _read_int_ms(value: object) -> int:
    number = read_int(value)
    if number < 0:
        raise ValueError("a whole number of milliseconds, 0 or more")
    return number


# What a queue's table may hold -> the field of QueueSettings, and how it is read. Times are seconds
# under the names of the library and of the REST API, milliseconds under those of the model.
_QUEUE_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "fifo": ("fifo", read_flag),
    "visibility_timeout": ("visibility_ms", read_ms),
    "delay": ("delay_ms", read_ms),
    "retention": ("retention_ms", read_retention),
    "message_ttl": ("ttl_ms", read_ms),
    "ttl": ("ttl_ms", read_ms),
    "max_receives": ("max_receives", read_int),
    "exhausted": ("exhausted", read_text),
    "dlq": ("dead_letter", read_text),
    "dead_letter": ("dead_letter", read_text),
    "dead_letter_exchange": ("dead_letter_exchange", read_text),
    "dead_letter_key": ("dead_letter_key", read_text),
    "dead_letter_expired": ("dead_letter_expired", read_flag),
    "max_length": ("max_length", read_int),
    "max_bytes": ("max_bytes", read_size),
    "max_body": ("max_body", read_size),
    "overflow": ("overflow", read_text),
    "max_priority": ("max_priority", read_int),
    "dedup_window": ("dedup_window_ms", read_ms),
    "dedup_by_content": ("dedup_by_content", read_flag),
    "dedup_per_group": ("dedup_per_group", read_flag),
    "retry": ("retry", _read_retry),
    "history": ("history_ms", read_ms_or_forever),
    "paused": ("paused", read_flag),
    "relaxed": ("relaxed", read_flag),
    **{
        name: (name, _read_int_ms)
        for name in ("visibility_ms", "delay_ms", "retention_ms", "ttl_ms", "dedup_window_ms", "history_ms")
    },
}


def queue_settings(table: Mapping[str, object], where: str) -> dict[str, Any]:
    """What a table says of a queue, under the names of `QueueSettings`; checked as a whole."""
    named: dict[str, Any] = {}
    for name, value in table.items():
        if name not in _QUEUE_KEYS:
            raise ConfigError(f"{where}: a queue has no setting {name!r}{_near(name, _QUEUE_KEYS)}")
        target, read = _QUEUE_KEYS[name]
        if target in named:
            raise ConfigError(f"{where}: {name} says a second time what another key says")
        named[target] = _read(read, value, f"{where}: {name}")
    try:
        declared_settings(None, named)
    except InvalidSetting as error:
        raise ConfigError(f"{where}: {error}") from None
    return named


def declared_settings(stored: QueueSettings | None, named: Mapping[str, Any]) -> QueueSettings:
    """The settings a declared queue is to have: those it has, as far as nothing else is named."""
    base = QueueSettings() if stored is None else stored
    values = dict(named)
    has_target = values.get("dead_letter", base.dead_letter) or values.get(
        "dead_letter_exchange", base.dead_letter_exchange
    )
    if has_target and "max_receives" not in values and base.max_receives is None:
        values["max_receives"] = DEFAULT_MAX_RECEIVES
    drops = values.get("exhausted", base.exhausted) == "drop"
    if values.get("max_receives") is not None and not has_target and not drops:
        raise InvalidSetting('max_receives needs a dlq for the messages that reach it, or exhausted = "drop"')
    return base.with_(**values)


# -- the configuration --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Config:
    """What a server is told. `origins` says of each key where its value came from."""

    data: str = "./openq-data"
    memory: bool = False
    store: str | None = None
    profile: str | None = None
    archive: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    amqp_port: int | Literal["auto"] | None = DEFAULT_AMQP_PORT
    amqps_port: int | None = None
    region: str = "us-east-1"
    queue_urls: str = "path"
    limits: str = "strict"
    relaxed: bool = False
    auth: str = "auto"
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    definitions: str | None = None
    log_format: str = "auto"
    log_level: str = "info"
    max_request_bytes: int = 20 * _MIB
    max_message_bytes: int = 128 * _MIB
    max_buffer_bytes: int = 256 * _MIB
    max_connections: int = 20_000
    header_timeout_s: float = 10
    body_timeout_s: float = 30
    idle_timeout_s: float = 120
    drain_timeout_s: float = 10
    segment_bytes: int = 64 * _MIB
    history_bytes: int = _GIB
    # Queues of the default account to be there from the start: name -> settings by the names of
    # `QueueSettings`, only what was named; see `declared_settings`.
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None  # the file that was read

    @property
    def path(self) -> str | None:
        """The data directory, or None for memory and for Redis: what a local broker is opened with."""
        return None if self.memory or self.store else self.data

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")

    def describe(self) -> list[tuple[str, object, str]]:
        """Every key with its value and its origin, in the order of the file."""
        values = {key: getattr(self, key) for key in KEYS}
        if self.store is not None:
            values["store"] = without_password(self.store)
        rows = [(key, value, self.origin(key)) for key, value in values.items()]
        rows += [
            (f"queues.{toml_key(name)}", dict(named), self.origin("queues"))
            for name, named in self.queues.items()
        ]
        return rows


def without_password(url: str) -> str:
    """An address that may be shown."""
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:...@", url)


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name in ("localhost", "::1"):
        return True
    return re.fullmatch(r"127(\.\d{1,3}){1,3}", name, re.ASCII) is not None


def flag_of(key: str) -> str:
    return "--" + key.replace("_", "-")


def variable_of(key: str) -> str:
    return "OPENQ_" + key.upper()


# Variables with our prefix that other parts of OpenQ read: the library's settings of new queues, and
# what the commands need to find a server. Not in the file, and no mistake in the environment.
OTHER_VARIABLES = frozenset(
    "OPENQ_" + name
    for name in (
        *("CONFIG", "URL", "TOKEN", "TOKEN_FILE", "USER", "PASSWORD", "PASSWORD_FILE", "CA", "PATH"),
        *("VISIBILITY_TIMEOUT", "MAX_RECEIVES", "DEAD_LETTER_EXPIRED", "DELAY", "RETENTION", "MESSAGE_TTL"),
        *("MAX_LENGTH", "MAX_BYTES", "MAX_BODY", "OVERFLOW", "FIFO", "DEDUP_WINDOW", "DEDUP_BY_CONTENT"),
        *("EXHAUSTED", "MAX_PRIORITY"),
        *("DEDUP_PER_GROUP", "RETRY", "HISTORY", "NUM_TASKS", "IDLE_TIMEOUT", "RECEIVE_TIMEOUT"),
    )
)
# Kubernetes gives every container of a namespace with a service named openq these variables, and
# `OPENQ_PORT=tcp://...` among them.
_KUBERNETES = re.compile(r"OPENQ_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.ASCII)
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.*")


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> Config:
    """The configuration from all its sources. Raises ConfigError, and OSError for a file that is not there.

    `flags` holds only what was given on the command line (None means not given), under the names of
    the keys; `environ` is empty unless it is given; without `file` none is read.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    queues: dict[str, dict[str, Any]] = {}
    ranks: dict[str, int] = {}

    def take(key: str, value: object, origin: str, rank: int) -> None:
        values[key] = _read(KEYS[key].read, value, origin)
        origins[key] = origin
        ranks[key] = rank

    if file is not None:
        path = os.fspath(file)
        for key, value in read_file(path).items():
            if key == "queues":
                queues = _read_queues(value, path)
                origins["queues"] = f"{path}: queues"
            elif key in KEYS:
                take(key, value, f"{path}: {key}", 1)
            else:
                raise ConfigError(f"{path}: there is no key {key!r}{_near(key, [*KEYS, 'queues'])}")
    for name, text in (environ or {}).items():
        if not name.startswith("OPENQ_") or not text:
            continue
        key = name.removeprefix("OPENQ_").lower()
        if name == "OPENQ_PORT" and _KUBERNETES_PORT.fullmatch(text):
            continue
        if key in KEYS and name == variable_of(key):
            take(key, text, f"environment variable {name}", 2)
        elif name not in OTHER_VARIABLES and not _KUBERNETES.fullmatch(name):
            near = difflib.get_close_matches(name, [*map(variable_of, KEYS), *OTHER_VARIABLES], 1, 0.8)
            # A name that resembles none of ours is somebody else's business.
            if near:
                raise ConfigError(f"environment: there is no variable {name}; did you mean {near[0]}?")
    for key, given in (flags or {}).items():
        if given is None:
            continue
        if key not in KEYS:
            raise ConfigError(f"there is no flag {flag_of(key)}{_near(key, KEYS)}")
        take(key, given, f"flag {flag_of(key)}", 3)

    _resolve_memory(values, origins, ranks)
    _resolve_store(values, origins, ranks)
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if values.get(one) and not values.get(other):
            raise ConfigError(f"{origins[one]} needs {other} beside it")
    if values.get("amqps_port") is not None and not values.get("tls_cert"):
        raise ConfigError(f"{origins['amqps_port']} needs tls_cert and tls_key beside it")
    if values.get("port") == 0:
        values.setdefault("amqp_port", 0)  # who wants a free port wants no fixed one beside it
    return Config(
        **values,
        queues=MappingProxyType({name: MappingProxyType(named) for name, named in queues.items()}),
        origins=MappingProxyType(origins),
        file=None if file is None else os.fspath(file),
    )


def _resolve_memory(values: dict[str, Any], origins: dict[str, str], ranks: dict[str, int]) -> None:
    """`--memory` and a data directory contradict each other: the one that is nearer to the user counts."""
    if not values.get("memory") or "data" not in values or ranks["data"] < ranks["memory"]:
        return
    if ranks["data"] == ranks["memory"]:
        raise ConfigError(
            f"{origins['memory']} and {origins['data']} contradict each other: give one of them"
        )
    values["memory"] = False
    origins["memory"] = origins["data"]


def _resolve_store(values: dict[str, Any], origins: dict[str, str], ranks: dict[str, int]) -> None:
    """So do Redis and either of them."""
    for other in ("memory", "data"):
        if not values.get("store") or not values.get(other):
            continue
        if ranks["store"] == ranks[other]:
            raise ConfigError(
                f"{origins['store']} and {origins[other]} contradict each other: messages are kept in "
                "Redis or here; give one of them"
            )
        loser = other if ranks["store"] > ranks[other] else "store"
        del values[loser], origins[loser], ranks[loser]


def _read(read: Callable[[object], Any], value: object, origin: str) -> Any:
    try:
        return read(value)
    except InvalidSetting as error:  # a whole sentence already
        raise ConfigError(f"{origin}: {error}") from None
    except ValueError as error:
        wanted = str(error)
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    raise ConfigError(f"{origin} must be {wanted}, not {shown}")


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_file(path: str) -> dict[str, Any]:
    import tomllib  # only who has a file pays for it

    with open(path, "rb") as source:
        data = source.read()
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_queues(tables: object, path: str) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{path}: queues must be tables, such as [queues.orders]")
    found: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        where = f"{path}: queues.{name}"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where} must be a table, such as [queues.orders]")
        try:
            check_name(name)
        except InvalidSetting as error:
            raise ConfigError(f"{where}: {error}") from None
        found[name] = queue_settings(table, where)
    return found


def find_file(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """The file to read: the one that was named, else `openq.toml` in the working directory if it is there."""
    named = given or environ.get("OPENQ_CONFIG")
    if named:
        return named
    return DEFAULT_FILE if os.path.isfile(DEFAULT_FILE) else None


def secret(name: str, environ: Mapping[str, str]) -> str | None:
    """A secret from the variable `name`, or from the file that `name`_FILE names."""
    text = environ.get(name)
    path = environ.get(f"{name}_FILE")
    if text and path:
        raise ConfigError(f"{name} and {name}_FILE contradict each other: set one of them")
    if path:
        with open(path, encoding="utf-8") as source:
            text = source.read().rstrip("\r\n")
        if not text:
            raise ConfigError(f"{name}_FILE: {path} is empty")
    return text or None


def commented_file() -> str:
    """A file with every key, its default and what it is for, all commented out: `openq config init`."""
    default = Config()
    lines = [
        "# Configuration of the OpenQ server. Every key is also a flag of `openq serve` and an environment",
        "# variable: a flag goes before the environment, the environment before this file.",
        "# `openq config check` says whether this file is right, `openq config show --origin` what counts.",
        "",
    ]
    for key, row in KEYS.items():
        value = getattr(default, key)
        if value is None:
            value = "off" if row.read is read_port_or_off else ""
        lines += [f"# {row.help}", f"#{key} = {toml_text(value)}", ""]
    lines += [
        "# Queues that are to be there from the start. What is named here is set at every start; other",
        '# settings of a queue stay as they are. Times are seconds, or text such as "5m".',
        "#[queues.orders]",
        "#visibility_timeout = 30",
        '#dlq = "orders-dead"',
        "#max_receives = 3",
        "",
        '#[queues."orders-dead"]',
        '#retention = "14d"',
        "",
    ]
    return "\n".join(lines)


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def toml_text(value: object) -> str:
    """A value as TOML writes it; JSON's text and numbers are TOML's too."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, RetryPolicy):
        return toml_text({name: getattr(value, name) for name in RetryPolicy.__slots__})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_text(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
