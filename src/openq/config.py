"""The configuration of a server: flags, environment, file and defaults, read once into one frozen value.

Every key is a flag (`--idle-timeout-s`), an environment variable (`OPENQ_IDLE_TIMEOUT_S`) and a key of the
TOML file (`idle_timeout_s`). Flags take precedence over the environment, the environment over the file, the
file over the default. Each value has its origin.
To add a key: a field of `Config` and its line in `KEYS`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .alert_rules.tables import AlertConfig, InvalidAlerts, read_alerts
from .errors import InvalidSetting
from .model import check_name
from .parsing import (
    matching,
    one_of,
    read_amqp_port,
    read_flag,
    read_hosts,
    read_int,
    read_names,
    read_number,
    read_patterns,
    read_port_or_off,
    read_seconds,
    read_size,
    read_text,
    toml_key,
    toml_text,
    within,
    without_password,
)
from .schedule_tables import SCHEDULE_KEYS
from .settings import SETTINGS, TABLE_KEYS, merge_settings, suggestion
from .webhook_tables import WEBHOOK_KEYS, shown_webhook

DEFAULT_FILE = "openq.toml"
DEFAULT_PORT = 9324
DEFAULT_AMQP_PORT = 5672
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

_MIB, _GIB = 1 << 20, 1 << 30


class ConfigError(InvalidSetting):
    """An invalid key or value; the text names it, its origin and what is expected."""

    code = "invalid_config"


class Key(NamedTuple):
    """The reader and the help of a key. `metavar` is None for a switch."""

    read: Callable[[object], Any]
    help: str
    metavar: str | None = "VALUE"


_MIN_SEGMENT, _MAX_SEGMENT = 1 << 16, 1 << 30
_seconds = within(read_seconds, 0.001, 1e9, "a time of more than 0 seconds, such as 30 or 2m")

KEYS: dict[str, Key] = {
    "data": Key(read_text, "the data directory: everything acknowledged is on disk there", "DIR"),
    "memory": Key(read_flag, "keep nothing on disk: everything is lost when the server stops", None),
    "store": Key(
        matching(
            r"(redis|rediss|valkey|valkeys)(\+(unix|sentinel|cluster))?://\S+",
            "an address such as redis://host:6379",
        ),
        "keep messages, users and all state in Redis or Valkey, shared by all servers with this URL",
        "URL",
    ),
    "profile": Key(
        one_of("safe", "fast"),
        "safe: answers wait for Redis's copies, and settings that lose messages are refused; fast: neither "
        "(default safe)",
        "KIND",
    ),
    "archive": Key(
        read_text, "where the archive of the history is; default: archive in the data directory", "DIR"
    ),
    "processes": Key(
        within(read_int, 1, 256, "1 to 256"),
        "processes that serve the same ports, one for each core to use; more than 1 needs a store that they "
        "share",
        "N",
    ),
    "host": Key(read_text, "the address to listen on; other addresses than loopback need users", "ADDRESS"),
    "port": Key(
        within(read_int, 0, 65535, "a port, 0 to 65535; 0 picks a free one"), "0 picks a free one", "N"
    ),
    "amqp_port": Key(
        read_amqp_port,
        "for AMQP 0.9.1; 0 picks a free one, auto does if 5672 is taken, off serves none",
        "N",
    ),
    "amqps_port": Key(read_port_or_off, "for AMQP over TLS, commonly 5671; needs tls_cert", "N"),
    "region": Key(
        matching(r"[a-z0-9-]{1,32}", "a region such as us-east-1"),
        "the server's own region; SQS requests signed for other regions have separate queues",
        "NAME",
    ),
    "queue_urls": Key(
        one_of("path", "plain"),
        "path: SQS URLs of queues in other regions contain the region; plain: they do not",
        "KIND",
    ),
    "limits": Key(
        one_of("strict", "testing", "relaxed"),
        "strict: those of Amazon SQS; testing: the same, deleted names can be reused at once; relaxed: wider",
        "KIND",
    ),
    "relaxed": Key(read_flag, "answer before the sync: up to 50 ms of writes at risk in a power cut", None),
    "auth": Key(
        one_of("auto", "on"),
        "auto: open until the first user exists; on: authentication required from the start",
        "WHEN",
    ),
    "insecure": Key(
        read_flag, "listen on any address without users: open access for everyone who can reach it", None
    ),
    "hosts": Key(read_names, "further host names of this server", "NAMES"),
    "ui": Key(read_flag, "serve the dashboard at /ui/", None),
    "ui_read_only": Key(
        read_flag,
        "the dashboard only shows: it offers no actions, and its logins may not change anything",
        None,
    ),
    "ui_trace_url": Key(
        matching(
            r"https?://[^\s/{}@]+/[^\s{}]*\{trace_id\}[^\s{}]*",
            "an address with {trace_id} in its path, such as https://tempo.example/trace/{trace_id}",
        ),
        "the dashboard links the trace of a message to this address, in which {trace_id} stands for its id",
        "URL",
    ),
    "session_idle_s": Key(
        _seconds, "a login of the dashboard ends after this time without a request", "SECONDS"
    ),
    "session_max_s": Key(_seconds, "a login of the dashboard ends after this time in any case", "SECONDS"),
    "tls_cert": Key(read_text, "certificate chain (PEM): serve HTTPS", "FILE"),
    "tls_key": Key(read_text, "private key of the certificate (PEM)", "FILE"),
    "tls_ca": Key(
        read_text,
        "authorities (PEM) of client certificates, which authenticate AMQP clients by name (EXTERNAL)",
        "FILE",
    ),
    "definitions": Key(read_text, "definitions of RabbitMQ (JSON) to apply at every start", "FILE"),
    "log_format": Key(
        one_of("auto", "text", "json"), "auto: text on a terminal, JSON lines otherwise", "KIND"
    ),
    "log_level": Key(one_of("debug", "info", "warning", "error"), "minimum log level", "LEVEL"),
    "log_requests": Key(read_flag, "log every HTTP request, when it is answered", None),
    "log_slow": Key(
        within(read_seconds, 0, 1e9, "0 or more seconds; 0 logs none"),
        "log operations that take longer than this; 0: none",
        "SECONDS",
    ),
    "log_events": Key(
        read_patterns,
        "log every state change in the queues with these names (orders*,mail); on: in all; off: in none",
        "NAMES",
    ),
    "log_events_sample": Key(
        within(read_number, 0, 1, "a share from 0 to 1"),
        "share of the messages whose state changes are logged; of a message all or none are",
        "SHARE",
    ),
    "tracing": Key(
        read_flag, "record OpenTelemetry spans of messages and send them by OTLP; needs openq[otel]", None
    ),
    "otlp_endpoint": Key(
        matching(r"https?://\S+", "an address such as http://127.0.0.1:4318"),
        "where spans are sent; default: OTEL_EXPORTER_OTLP_ENDPOINT, else this machine",
        "URL",
    ),
    "otlp_protocol": Key(
        one_of("http", "grpc"), "how spans are sent; default: OTEL_EXPORTER_OTLP_PROTOCOL, else http", "KIND"
    ),
    "trace_sample": Key(
        within(read_number, 0, 1, "a share from 0 to 1"),
        "share of the publishes without a trace context that start a trace; default: OTEL_TRACES_SAMPLER, "
        "else 0.01",
        "SHARE",
    ),
    "audit_bytes": Key(
        within(read_size, 1 << 20, None, "at least 1 MiB"),
        "maximum size of the audit log; the oldest records are dropped",
        "SIZE",
    ),
    "audit_age_s": Key(
        within(read_seconds, 3600, 1e10, "at least 1h"),
        "maximum age of records in the audit log",
        "SECONDS",
    ),
    "max_request_bytes": Key(
        within(read_size, 1024, None, "at least 1024 bytes"), "maximum bytes of a request", "SIZE"
    ),
    "max_message_bytes": Key(
        within(read_size, 1, None, "at least 1 byte"), "maximum bytes of an AMQP message", "SIZE"
    ),
    "max_buffer_bytes": Key(
        within(read_size, 1 << 20, None, "at least 1 MiB"),
        "maximum memory for partial requests and unread replies, over all connections",
        "SIZE",
    ),
    "max_connections": Key(
        within(read_int, 1, 10**7, "1 to 10000000"),
        "maximum number of connections, of all protocols together",
        "N",
    ),
    "header_timeout_s": Key(_seconds, "timeout for the head of a request", "SECONDS"),
    "body_timeout_s": Key(_seconds, "timeout between two parts of the body of a request", "SECONDS"),
    "idle_timeout_s": Key(_seconds, "timeout between two requests of a connection", "SECONDS"),
    "drain_timeout_s": Key(
        within(read_seconds, 0, 1e9, "0 or more seconds"),
        "maximum time for running requests when the server stops",
        "SECONDS",
    ),
    "segment_bytes": Key(
        within(read_size, _MIN_SEGMENT, _MAX_SEGMENT, f"{_MIN_SEGMENT} to {_MAX_SEGMENT} bytes"),
        "the size of a journal file",
        "SIZE",
    ),
    "history_bytes": Key(read_size, "maximum bytes that are kept for replay, over all queues", "SIZE"),
    "max_kv_bytes": Key(
        within(read_size, 1 << 16, None, "at least 65536 bytes"),
        "maximum memory for key-values, over all buckets; not for Redis, which has its own limit",
        "SIZE",
    ),
    "webhook_allow": Key(
        read_hosts,
        "host names, addresses and networks that webhooks may reach besides public addresses",
        "NAMES",
    ),
}


# -- the configuration --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a server. `origins` has the source of each value."""

    data: str = "./openq-data"
    memory: bool = False
    store: str | None = None
    profile: str | None = None
    archive: str | None = None
    processes: int = 1
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
    ui: bool = True
    ui_read_only: bool = False
    ui_trace_url: str | None = None
    session_idle_s: float = 8 * 3600
    session_max_s: float = 7 * 86_400
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    definitions: str | None = None
    log_format: str = "auto"
    log_level: str = "info"
    log_requests: bool = False
    log_slow: float = 0
    log_events: tuple[str, ...] = ()
    log_events_sample: float = 1
    tracing: bool = False
    otlp_endpoint: str | None = None
    otlp_protocol: str | None = None
    trace_sample: float | None = None
    audit_bytes: int = 64 * _MIB
    audit_age_s: float = 400 * 86_400
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
    max_kv_bytes: int = 256 * _MIB
    webhook_allow: tuple[str, ...] = ()
    # Queues of the default account to be there from the start: name -> settings by the names of
    # `QueueSettings`, only what was named; see `merge_settings`.
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Schedules of the default account: name -> fields of `openq.broker.schedules.Schedule`.
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Webhooks of the default account: name -> fields of `openq.webhooks.model.Webhook`, and its secret.
    webhooks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    # Alert rules and destinations; see docs/ALERTS.md.
    alerts: AlertConfig = field(default_factory=AlertConfig, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None  # the file that was read

    @property
    def path(self) -> str | None:
        """The data directory of the local broker; None for memory and Redis."""
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
        if self.otlp_endpoint is not None:
            values["otlp_endpoint"] = without_password(self.otlp_endpoint)
        rows = [(key, value, self.origin(key)) for key, value in values.items()]
        rows += [
            (f"queues.{toml_key(name)}", dict(named), self.origin("queues"))
            for name, named in self.queues.items()
        ]
        rows += [
            (f"schedules.{toml_key(name)}", dict(named), self.origin("schedules"))
            for name, named in self.schedules.items()
        ]
        rows += [
            (f"webhooks.{toml_key(name)}", shown_webhook(named), self.origin("webhooks"))
            for name, named in self.webhooks.items()
        ]
        if shown := self.alerts.shown():
            rows.append(("alerts", shown, self.origin("alerts")))
        return rows


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
# the address and credentials of a server for commands. Not keys of the file.
OTHER_VARIABLES = frozenset(
    [
        *(setting.variable for setting in SETTINGS if setting.in_library),
        *("OPENQ_CONFIG", "OPENQ_URL", "OPENQ_TOKEN", "OPENQ_TOKEN_FILE", "OPENQ_USER", "OPENQ_PASSWORD"),
        *("OPENQ_PASSWORD_FILE", "OPENQ_CA", "OPENQ_PATH"),
        *("OPENQ_NUM_TASKS", "OPENQ_IDLE_TIMEOUT", "OPENQ_RECEIVE_TIMEOUT"),
    ]
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
    """The configuration from all its sources. Raises ConfigError, and OSError if the file does not exist.

    `flags` holds only what was given on the command line (None means not given), under the names of
    the keys; `environ` is empty unless it is given; without `file` none is read.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    queues: dict[str, dict[str, Any]] = {}
    schedules: dict[str, dict[str, Any]] = {}
    webhooks: dict[str, dict[str, Any]] = {}
    alerts = AlertConfig()
    ranks: dict[str, int] = {}

    def take(key: str, value: object, origin: str, rank: int) -> None:
        values[key] = _read(KEYS[key].read, value, origin)
        origins[key] = origin
        ranks[key] = rank

    if file is not None:
        path = os.fspath(file)
        for key, value in read_file(path).items():
            if key == "queues":
                queues = _read_tables(value, path, "queue", "orders", queue_settings)
                origins["queues"] = f"{path}: queues"
            elif key == "schedules":
                schedules = _read_tables(value, path, "schedule", "tidy", _schedule_fields)
                origins["schedules"] = f"{path}: schedules"
            elif key == "webhooks":
                webhooks = _read_tables(value, path, "webhook", "shop", _webhook_fields)
                origins["webhooks"] = f"{path}: webhooks"
            elif key == "alerts":
                alerts = _read_alerts(value, path)
                origins["alerts"] = f"{path}: alerts"
            elif key in KEYS:
                take(key, value, f"{path}: {key}", 1)
            else:
                known = [*KEYS, "queues", "schedules", "webhooks", "alerts"]
                raise ConfigError(f"{path}: unknown key {key!r}{suggestion(key, known)}")
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
            # Other names may belong to other programs.
            if near:
                raise ConfigError(f"environment: unknown variable {name}; did you mean {near[0]}?")
    for key, given in (flags or {}).items():
        if given is None:
            continue
        if key not in KEYS:
            raise ConfigError(f"unknown flag {flag_of(key)}{suggestion(key, KEYS)}")
        take(key, given, f"flag {flag_of(key)}", 3)

    _resolve_memory(values, origins, ranks)
    _resolve_store(values, origins, ranks)
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if values.get(one) and not values.get(other):
            raise ConfigError(f"{origins[one]} needs {other} too")
    if values.get("amqps_port") is not None and not values.get("tls_cert"):
        raise ConfigError(f"{origins['amqps_port']} needs tls_cert and tls_key too")
    if values.get("processes", 1) > 1 and not values.get("store"):
        raise ConfigError(
            f"{origins['processes']} needs a store that processes can share (--store redis://host:6379): "
            "a journal belongs to one process, and so does memory"
        )
    if values.get("port") == 0:
        values.setdefault("amqp_port", 0)  # a free port for HTTP means a free port for AMQP
    return Config(
        **values,
        queues=MappingProxyType({name: MappingProxyType(named) for name, named in queues.items()}),
        schedules=MappingProxyType({name: MappingProxyType(named) for name, named in schedules.items()}),
        webhooks=MappingProxyType({name: MappingProxyType(named) for name, named in webhooks.items()}),
        alerts=alerts,
        origins=MappingProxyType(origins),
        file=None if file is None else os.fspath(file),
    )


def _resolve_memory(values: dict[str, Any], origins: dict[str, str], ranks: dict[str, int]) -> None:
    """`--memory` and a data directory contradict each other: the source with the higher precedence wins."""
    if not values.get("memory") or "data" not in values or ranks["data"] < ranks["memory"]:
        return
    if ranks["data"] == ranks["memory"]:
        raise ConfigError(
            f"{origins['memory']} and {origins['data']} contradict each other: give one of them"
        )
    values["memory"] = False
    origins["memory"] = origins["data"]


def _resolve_store(values: dict[str, Any], origins: dict[str, str], ranks: dict[str, int]) -> None:
    """Redis contradicts both of them."""
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


def queue_settings(table: Mapping[str, object], where: str) -> dict[str, Any]:
    """The settings in a `[queues.NAME]` table by the fields of `QueueSettings`, checked as a whole."""
    named: dict[str, Any] = {}
    for name, value in table.items():
        if name not in TABLE_KEYS:
            raise ConfigError(f"{where}: a queue has no setting {name!r}{suggestion(name, TABLE_KEYS)}")
        target, read = TABLE_KEYS[name]
        if target in named:
            raise ConfigError(f"{where}: {name} and another key set the same value")
        named[target] = _read(read, value, f"{where}: {name}")
    try:
        merge_settings(None, named)
    except InvalidSetting as error:
        raise ConfigError(f"{where}: {error}") from None
    return named


def read_file(path: str) -> dict[str, Any]:
    import tomllib  # imported only if there is a file

    with open(path, "rb") as source:
        data = source.read()
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_tables(
    tables: object,
    path: str,
    kind: str,
    example: str,
    read: Callable[[Mapping[str, object], str], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """The tables `[KINDs.NAME]` of a file: name -> what `read` makes of each."""
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{path}: {kind}s must be tables, such as [{kind}s.{example}]")
    found: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        where = f"{path}: {kind}s.{name}"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where} must be a table, such as [{kind}s.{example}]")
        _read(lambda value: check_name(str(value), kind), name, where)
        found[name] = read(table, where)
    return found


def _schedule_fields(table: Mapping[str, object], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in SCHEDULE_KEYS:
            raise ConfigError(f"{where}: a schedule has no key {key!r}{suggestion(key, SCHEDULE_KEYS)}")
        name, read = SCHEDULE_KEYS[key]
        fields[name] = _read(read, value, f"{where}: {key}")
    if "queue" not in fields:
        raise ConfigError(f'{where}: the queue is missing, such as queue = "orders"')
    if ("cron" in fields) == ("every_ms" in fields):
        raise ConfigError(f"{where}: give either cron or every")
    if "body" in fields:
        fields["body"], fields["encoding"] = fields["body"]
    return fields


def _webhook_fields(table: Mapping[str, object], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in WEBHOOK_KEYS:
            raise ConfigError(f"{where}: a webhook has no key {key!r}{suggestion(key, WEBHOOK_KEYS)}")
        name, read = WEBHOOK_KEYS[key]
        # A wrong secret is not repeated.
        fields[name] = (
            _read(read, value, f"{where}: {key}")
            if name != "secret"
            else _read_hidden(read, value, f"{where}: {key}")
        )
    if "url" not in fields:
        raise ConfigError(f'{where}: the URL is missing, such as url = "https://example.com/hook"')
    if ("queue" in fields) == ("events" in fields):
        raise ConfigError(f"{where}: give either queue or events")
    return fields


def _read_alerts(value: object, path: str) -> AlertConfig:
    try:
        return read_alerts(value)
    except InvalidAlerts as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_hidden(read: Callable[[object], Any], value: object, origin: str) -> Any:
    """Like `_read`, for a value that an error must not show."""
    try:
        return read(value)
    except ValueError as error:
        raise ConfigError(f"{origin} must be {error}") from None


def find_file(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """The file to read: the given one, else `openq.toml` in the working directory if it exists."""
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
    """A file with every key, its default and its help, all commented out: `openq config init`."""
    default = Config()
    lines = [
        "# Configuration of the OpenQ server. Every key is also a flag of `openq serve` and an environment",
        "# variable: flags take precedence over the environment, the environment over this file.",
        "# `openq config check` validates this file, `openq config show --origin` shows the values in force.",
        "",
    ]
    for key, row in KEYS.items():
        value = getattr(default, key)
        if value is None:
            value = "off" if row.read is read_port_or_off else ""
        lines += [f"# {row.help}", f"#{key} = {toml_text(value)}", ""]
    lines += [
        "# Queues to create at the start. Settings that are named here are set at every start; other",
        '# settings of a queue stay as they are. Times are seconds, or text such as "5m".',
        "#[queues.orders]",
        "#visibility_timeout = 30",
        '#dlq = "orders-dead"',
        "#max_receives = 3",
        "",
        '#[queues."orders-dead"]',
        '#retention = "14d"',
        "",
        "# Messages that the server publishes by itself. Each table is declared at every start.",
        "#[schedules.report]",
        '#queue = "orders"',
        '#cron = "0 7 * * mon-fri"',
        '#timezone = "Europe/Berlin"',
        '#body = "make the report"',
        "",
        "# Messages that the server sends to a URL. Each table is declared at every start.",
        "#[webhooks.shop]",
        '#queue = "orders"',
        '#url = "https://example.com/hook"',
        '#mode = "json"',
        "",
        "# Alerts. The rules are on without this table; a destination makes them reach you.",
        "#[alerts]",
        '#webhook = "https://example.com/alerts"',
        "",
        "# Other limits of a rule (`openq alert rules`), or a rule of your own.",
        "#[alerts.rules.oldest-message]",
        '#age = "1h"',
        "",
        "#[alerts.destinations.ops]",
        '#kind = "smtp"',
        '#host = "mail.example.com"',
        '#from = "openq@example.com"',
        '#to = ["ops@example.com"]',
        "",
    ]
    return "\n".join(lines)
