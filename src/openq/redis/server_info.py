"""What a Redis server reports about itself: its version, settings and replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import StoreUnavailable

_SETTINGS = (
    "appendonly",
    "appendfsync",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "save",
    "repl-timeout",
    "cluster-node-timeout",
)
# Settings that INFO shows too, for users without permission for CONFIG.
_IN_INFO = {"maxmemory": "maxmemory", "maxmemory-policy": "maxmemory_policy"}


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The report of one server. A setting that it does not report is missing."""

    product: str
    version: tuple[int, ...]
    settings: Mapping[str, str]
    role: str
    lags_s: tuple[int, ...]  # of the connected replicas
    in_cluster: bool
    aof_error: bool = False  # its last write to the append-only file failed
    config_error: str = ""  # why CONFIG was refused
    node: str = ""  # its address, if there are several
    cli: str = "redis-cli"  # how an operator reaches it
    sentinel_cli: str = ""  # the same for the sentinels that watch it
    delayed_syncs: int = 0  # how often a sync of the append-only file took longer than writes could wait

    def number(self, setting: str, default: float) -> float:
        try:
            return float(self.settings.get(setting, default))
        except ValueError:
            return default


def read_server_info(call: Callable[..., Any], node: str = "", cli: str = "redis-cli") -> ServerInfo:
    """Query one server. `call` sends one command to it and returns the answer, or raises its error.

    A refused CONFIG (an ACL, a managed service) is not an error: the values of INFO are used instead.
    """
    about = _sections(call("INFO"))
    settings: dict[str, str] = {}
    hidden = ""
    try:
        for name in _SETTINGS:
            settings.update(_pairs(call("CONFIG", "GET", name)))
    except Exception as error:
        # The class of a refusal depends on the sender; an unreachable Redis is not a refusal.
        if isinstance(error, OSError | StoreUnavailable):
            raise
        hidden = str(error) or type(error).__name__
    for name, field in _IN_INFO.items():
        if field in about:
            settings.setdefault(name, about[field])
    if "aof_enabled" in about:
        settings.setdefault("appendonly", "yes" if about["aof_enabled"] == "1" else "no")
    valkey = about.get("valkey_version")
    return ServerInfo(
        "Valkey" if valkey else "Redis",
        _version(valkey or about.get("redis_version", "0")),
        settings,
        about.get("role", "master"),
        tuple(_lags(about)),
        about.get("cluster_enabled") == "1",
        about.get("aof_last_write_status", "ok") != "ok",
        hidden,
        node,
        cli,
        delayed_syncs=int(about.get("aof_delayed_fsync", "0")),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _sections(reply: object) -> dict[str, str]:
    rows = (line.partition(":") for line in _text(reply).splitlines())
    return {name: value for name, colon, value in rows if colon}


def _pairs(reply: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _lags(about: Mapping[str, str]) -> list[int]:
    lags = []
    for name, value in about.items():
        if name.startswith("slave") and name[5:].isdigit():
            facts = dict(part.partition("=")[::2] for part in value.split(","))
            if facts.get("state") == "online":
                lags.append(max(int(facts.get("lag", "0")), 0))
    return lags
