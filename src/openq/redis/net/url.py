"""The URLs of a Redis or Valkey, and their options.

    redis://[user:password@]host[:port][/db]           one server; rediss:// is the same over TLS
    redis+unix:///path/to/socket[?db=n]                one server on this machine
    redis+sentinel://host1:26379,host2:26379/service   the master that the sentinels name
    redis+cluster://host1:7000,host2:7001              a cluster; any of its nodes will do

Options follow a `?`: `profile`, `prefix`, `timeout`, `reconnect`, `replicas`, `tls`, `ca`, `insecure`,
`sentinel_user`, `sentinel_password`, `history` and `heartbeat`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, quote, unquote

from openq.errors import InvalidSetting
from openq.parsing import without_password

if TYPE_CHECKING:
    import ssl

Kind = Literal["single", "cluster", "sentinel"]
Profile = Literal["safe", "fast"]
Host = tuple[str, int]

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "valkey": ("single", False),
    "valkeys": ("single", True),
    "redis+unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_OPTIONS = {
    *("profile", "prefix", "timeout", "reconnect", "replicas", "history", "heartbeat"),
    *("tls", "ca", "insecure", "db", "sentinel_user", "sentinel_password"),
}
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Address:
    """The location of Redis and the settings of connections to it."""

    kind: Kind
    hosts: tuple[Host, ...]
    path: str | None = None
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str | None = None
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    insecure: bool = False
    profile: Profile = "safe"
    prefix: str = "oq"
    timeout_s: float = 10.0
    reconnect_s: float = 30.0
    replicas: int | None = None
    """How many copies a safe write waits for; None: all that were connected when last looked at."""
    heartbeat_s: float = 15.0
    """How long leases that are bound to a connection outlive a process that died with it."""
    history: int = 100_000
    """Acknowledged messages that a queue keeps at most, besides its own setting in time."""

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        import ssl  # imported late, for its memory

        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(f"cannot use the authorities {self.ca}: {error}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def __str__(self) -> str:
        """For logs and users: without the password."""
        if self.path is not None:
            return f"redis+unix://{quote(self.path)}?db={self.db}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "single" else f"+{self.kind}")
        who = f"{quote(self.user or '', safe='')}:***@" if self.password is not None else ""
        where = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = f"/{quote(self.service, safe='')}" if self.service else ""
        if self.db:
            path += f"/{self.db}"
        return f"{scheme}://{who}{where}{path}" + ("" if self.prefix == "oq" else f"?prefix={self.prefix}")

    def with_profile(self) -> str:
        """The same with the profile, for commands that are to be copied."""
        text = str(self)
        if self.profile == "safe":
            return text
        return f"{text}{'&' if '?' in text else '?'}profile={self.profile}"


def is_redis_url(url: str) -> bool:
    return url.partition("://")[0].lower() in _SCHEMES and "://" in url


def parse(url: str, **overrides: str) -> Address:
    """Parse a URL; `overrides` are options given elsewhere (a flag, an argument), and take precedence."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise InvalidSetting(
            f"{without_password(url)!r} is not a Redis URL; it begins with one of {', '.join(_SCHEMES)}"
        )
    kind, tls = _SCHEMES[scheme.lower()]
    rest, _, query = rest.partition("?")
    options = {**dict(parse_qsl(query, keep_blank_values=True)), **overrides}
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InvalidSetting(
            f"unknown option {unknown[0]!r} in a Redis URL; there are {', '.join(sorted(_OPTIONS))}"
        )
    authority, _, path = rest.partition("/")
    userinfo, at, where = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    parts = [unquote(part) for part in path.split("/") if part]
    unix_path = None
    service = None
    if scheme.lower() == "redis+unix":
        unix_path = "/" + unquote(path)
        parts = []
        if where or not path:
            raise InvalidSetting("a Unix socket's URL has three slashes: redis+unix:///path/to/socket")
        hosts: tuple[Host, ...] = ()
    else:
        default = SENTINEL_PORT if kind == "sentinel" else REDIS_PORT
        hosts = tuple(_host(text, default) for text in where.split(","))
    if kind == "sentinel":
        if not parts:
            raise InvalidSetting("a sentinel URL names its service: redis+sentinel://host:26379/mymaster")
        service = parts.pop(0)
    elif kind == "single" and len(hosts) > 1:
        raise InvalidSetting("several hosts are for redis+cluster:// and redis+sentinel://; redis:// has one")
    if len(parts) > 1:
        raise InvalidSetting(f"too many parts in the path of a Redis URL: {path!r}")
    db = _integer("db", parts[0] if parts else options.get("db", "0"))
    if kind == "cluster" and db:
        raise InvalidSetting("a Redis cluster has only database 0")
    profile = options.get("profile", "safe")
    if profile not in ("safe", "fast"):
        raise InvalidSetting(f"profile is 'safe' or 'fast', not {profile!r}")
    prefix = options.get("prefix", "oq")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidSetting(f"prefix {prefix!r} may have letters, digits and _ . - only, at most 64")
    return Address(
        kind=kind,
        hosts=hosts,
        path=unix_path,
        db=db,
        user=unquote(user) or None,
        password=unquote(password) if at and password else None,
        service=service,
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls or _boolean("tls", options.get("tls", "no")),
        ca=options.get("ca"),
        insecure=_boolean("insecure", options.get("insecure", "no")),
        profile=profile,  # type: ignore[arg-type]
        prefix=prefix,
        timeout_s=_seconds("timeout", options.get("timeout", "10")),
        reconnect_s=_seconds("reconnect", options.get("reconnect", "30"), minimum=0.0),
        replicas=_integer("replicas", options["replicas"]) if "replicas" in options else None,
        heartbeat_s=_seconds("heartbeat", options.get("heartbeat", "15"), minimum=0.5),
        history=_integer("history", options.get("history", "100000")),
    )


def _host(text: str, default_port: int) -> Host:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text.strip())
    if found is None:
        # It may be a part of a password that contains a slash: not shown.
        raise InvalidSetting("no host:port in the URL; a / or @ in a password is written %2F or %40")
    port = int(found[3]) if found[3] else default_port
    if not 0 < port < 65536:
        raise InvalidSetting(f"port {port} is not between 1 and 65535")
    return unquote(found[1] or found[2] or "localhost"), port


def _integer(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise InvalidSetting(f"{name} in a Redis URL is a whole number, not {text!r}")
    return int(text)


def _seconds(name: str, text: str, minimum: float = 0.001) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not minimum <= seconds <= 86_400:
        raise InvalidSetting(f"{name} in a Redis URL is a number of seconds up to 86400, not {text!r}")
    return seconds


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on", ""):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise InvalidSetting(f"{name} in a Redis URL is yes or no, not {text!r}")
