"""How the servers behind a URL are set: asks each master for `safety`, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import InvalidSetting, StoreError, StoreUnavailable
from .nodes import named_master
from .safety import Info, Report, check, gather
from .url import Address

_CONNECT_S = 2.0
_ANSWER_S = 5.0


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
    try:
        if address.kind == "cluster":
            return [_ask(_client(address, host, port), f"{host}:{port}") for host, port in _masters(address)]
        if address.kind == "sentinel":
            return [_ask(_client(address, *named_master(address)))]
        host, port = address.hosts[0] if address.hosts else ("", 0)
        return [_ask(_client(address, host, port))]
    except StoreUnavailable as error:
        raise Unreachable(f"{address} does not answer: {error.detail}") from None
    except redis.AuthenticationError as error:
        raise Unreachable(f"{address} lets nobody in: {error}; put user:password@ into the URL") from None
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        hint = "; if it speaks no TLS, the URL begins with redis://" if address.tls else ""
        raise Unreachable(f"{address} does not answer: {error}{hint}") from None
    except redis.RedisError as error:
        raise Unreachable(f"{address} cannot be used: {error}") from None


def _ask(client: redis.Redis, node: str = "") -> Info:
    with client:
        return gather(_call(client), node)


def _call(client: redis.Redis) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        try:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise ConnectionError(str(error)) from None  # `gather` does not know redis-py's own

    return call


def _client(address: Address, host: str, port: int) -> redis.Redis:
    options = _sign_in(address, address.user, address.password)
    if address.path is not None:
        return redis.Redis(unix_socket_path=address.path, db=address.db, **_without_tls(options))
    return redis.Redis(host=host, port=port, db=address.db, **options)


def _sign_in(address: Address, user: str | None, password: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": user,
        "password": password,
        "socket_connect_timeout": _CONNECT_S,
        "socket_timeout": _ANSWER_S,
        "retry": Retry(NoBackoff(), 0),  # who starts a server wants to hear at once what is wrong
        "protocol": 2,
    }
    if address.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": address.ca,
            "ssl_cert_reqs": "none" if address.insecure else "required",
            "ssl_check_hostname": not address.insecure,
        }
    return options


def _without_tls(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not name.startswith("ssl")}


def _masters(address: Address) -> list[tuple[str, int]]:
    """Those that have slots, as the first node that answers sees them."""
    reason = "no node is named"
    for host, port in address.hosts:
        try:
            with _client(address, host, port) as client:
                slots = _call(client)("CLUSTER", "SLOTS")
        except (OSError, redis.RedisError) as error:
            reason = str(error)
            continue
        found = {_place(key, value, host) for key, value in _primaries(slots)}
        if not found:
            raise InvalidSetting(f"{address} serves no slots: the cluster is not made yet")
        return sorted(found)
    raise ConnectionError(reason)


def _primaries(slots: Any) -> list[tuple[Any, Any]]:
    """redis-py gives a map of slot ranges to nodes, or the rows as they came."""
    if isinstance(slots, dict):
        return [tuple(row["primary"][:2]) for row in slots.values()]
    return [(row[2][0], row[2][1]) for row in slots]


def _place(host: Any, port: Any, asked: str) -> tuple[str, int]:
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return name or asked, int(port)  # a node that does not know its own name leaves it out
