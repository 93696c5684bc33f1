"""How the servers behind a URL are set: asks each master for `safety`, without a broker."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ..errors import InvalidSetting, StoreError, StoreUnavailable
from .safety import Info, Report, check, gather
from .topology import asking, named_master, sentinel_settings, slots_of
from .url import Address, Host
from .wire import NOT_REDIS

_ANSWER_S = 5.0  # who starts a server wants to hear soon what is wrong
_WATCHED = ("down-after-milliseconds",)
_NOT_LET_IN = ("WRONGPASS", "NOAUTH", "ERR AUTH")


class Unreachable(StoreError, ConnectionError):
    """A server that is needed does not answer, or not to us."""

    code = "store_unreachable"


def survey(address: Address, profile: str | None = None) -> Report:
    """Raises Unreachable if a server that is needed does not answer."""
    infos = _infos(address)
    if address.kind == "single" and any(info.in_cluster for info in infos):
        raise InvalidSetting(f"{address} is a node of a cluster: the URL begins with redis+cluster://")
    return check(infos, profile or address.profile, address.replicas)


def _infos(address: Address) -> list[Info]:
    impatient = replace(address, timeout_s=min(_ANSWER_S, address.timeout_s))
    try:
        if address.kind == "cluster":
            return [_ask(impatient, host, f"{host[0]}:{host[1]}") for host in _masters(impatient)]
        if address.kind == "sentinel":
            return [_watched(address, _ask(impatient, named_master(address).host))]
        return [_ask(impatient, address.hosts[0] if address.hosts else None)]
    except StoreUnavailable as error:
        if error.detail.startswith(NOT_REDIS):
            raise Unreachable(f"{address} {error.detail}") from None
        hint = "; if it speaks no TLS, the URL begins with redis://" if address.tls else ""
        raise Unreachable(f"{address} does not answer: {error.detail}{hint}") from None
    except StoreError as error:
        if str(error).startswith(_NOT_LET_IN):
            raise Unreachable(f"{address} lets nobody in: {error}; put user:password@ into the URL") from None
        raise Unreachable(f"{address} cannot be used: {error}") from None


def _ask(address: Address, host: Host | None, node: str = "") -> Info:
    with asking(address, host) as ask:
        return gather(ask, node, command_line(address, host))


def _watched(address: Address, info: Info) -> Info:
    """With how the sentinels watch it."""
    host, said = sentinel_settings(address)
    settings = {name: said[name] for name in _WATCHED if name in said}
    own = replace(address, user=address.sentinel_user, password=address.sentinel_password)
    cli = f"{command_line(own, host)} sentinel set {shlex.quote(address.service or '')}"
    return replace(info, settings={**info.settings, **settings}, sentinel_cli=cli)


def command_line(address: Address, host: Host | None) -> str:
    """How an operator reaches a server with redis-cli; it asks for the password."""
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
    found = sorted({each.master for each in slots_of(address, address.hosts)})
    if not found:
        raise InvalidSetting(f"{address} serves no slots: the cluster is not made yet")
    return found
