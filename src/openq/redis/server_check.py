"""Check the settings of the servers behind a URL: reads those of each master for `safety`, without a
broker."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ..errors import InvalidSetting, StoreError, StoreUnavailable
from .net.resp import NOT_REDIS
from .net.topology import admin_connection, find_master, read_slots, sentinel_settings
from .net.url import Address, Host
from .safety import SafetyReport, ServerInfo, evaluate, read_server_info

_TIMEOUT_S = 5.0  # a failing start must fail soon
_SENTINEL_SETTINGS = ("down-after-milliseconds",)
_AUTH_ERRORS = ("WRONGPASS", "NOAUTH", "ERR AUTH")


class StoreUnreachable(StoreError, ConnectionError):
    """A required server does not answer, or rejects this client."""

    code = "store_unreachable"


def check_servers(address: Address, profile: str | None = None) -> SafetyReport:
    """Raises StoreUnreachable if a required server does not answer."""
    infos = _read_infos(address)
    if address.kind == "single" and any(info.in_cluster for info in infos):
        raise InvalidSetting(f"{address} is a node of a cluster: the URL begins with redis+cluster://")
    return evaluate(infos, profile or address.profile, address.replicas)


def _read_infos(address: Address) -> list[ServerInfo]:
    quick = replace(address, timeout_s=min(_TIMEOUT_S, address.timeout_s))
    try:
        if address.kind == "cluster":
            return [_read_info(quick, host, f"{host[0]}:{host[1]}") for host in _masters(quick)]
        if address.kind == "sentinel":
            return [_with_sentinel_settings(address, _read_info(quick, find_master(address).host))]
        return [_read_info(quick, address.hosts[0] if address.hosts else None)]
    except StoreUnavailable as error:
        if error.detail.startswith(NOT_REDIS):
            raise StoreUnreachable(f"{address} {error.detail}") from None
        hint = "; if it speaks no TLS, the URL begins with redis://" if address.tls else ""
        unreachable = StoreUnreachable(f"{address} does not answer: {error.detail}{hint}")
        unreachable.may_pass = True
        raise unreachable from None
    except StoreError as error:
        if str(error).startswith(_AUTH_ERRORS):
            raise StoreUnreachable(
                f"{address} refuses the login: {error}; put user:password@ into the URL"
            ) from None
        raise StoreUnreachable(f"{address} cannot be used: {error}") from None


def _read_info(address: Address, host: Host | None, node: str = "") -> ServerInfo:
    with admin_connection(address, host) as ask:
        return read_server_info(ask, node, command_line(address, host))


def _with_sentinel_settings(address: Address, info: ServerInfo) -> ServerInfo:
    """Add the settings of the sentinels that watch it."""
    host, reported = sentinel_settings(address)
    settings = {name: reported[name] for name in _SENTINEL_SETTINGS if name in reported}
    own = replace(address, user=address.sentinel_user, password=address.sentinel_password)
    cli = f"{command_line(own, host)} sentinel set {shlex.quote(address.service or '')}"
    return replace(info, settings={**info.settings, **settings}, sentinel_cli=cli)


def command_line(address: Address, host: Host | None) -> str:
    """The redis-cli command by which an operator reaches a server; it prompts for the password."""
    words = ["redis-cli"]
    if address.path is not None:
        words += ["-s", address.path]
    elif host is not None:
        words += ["-h", host[0], "-p", str(host[1])]
    if address.tls:
        words += [
            "--tls",
            *(["--cacert", address.ca] if address.ca else ["--insecure"] if address.insecure else []),
        ]
    if address.password is not None:
        words += [*(["--user", address.user] if address.user else []), "--askpass"]
    return shlex.join(words)


def _masters(address: Address) -> list[Host]:
    found = sorted({each.master for each in read_slots(address, address.hosts)})
    if not found:
        raise InvalidSetting(f"{address} serves no slots: the cluster is not made yet")
    return found
