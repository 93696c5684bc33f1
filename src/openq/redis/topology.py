"""Who serves what, as sentinels and the nodes of a cluster tell it. Blocks.

redis-py is here and nowhere else: it knows how several sentinels are asked and which of them to believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import StoreError, StoreUnavailable
from .link import CONNECT_S, ThreadLink
from .url import Address, Host
from .wire import pack


class Slots(NamedTuple):
    first: int
    last: int
    master: Host


def named_master(address: Address) -> Host:
    """The master that the sentinels name; they are asked over TLS if the servers are."""
    import redis.backoff
    import redis.exceptions
    import redis.retry
    import redis.sentinel

    options: dict[str, Any] = {"username": address.sentinel_user, "password": address.sentinel_password}
    options = {name: value for name, value in options.items() if value is not None}
    # Who asks us tries again by itself.
    options |= {
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "socket_timeout": CONNECT_S,
        "socket_connect_timeout": CONNECT_S,
    }
    if address.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": address.ca,
            "ssl_cert_reqs": "none" if address.insecure else "required",
            "ssl_check_hostname": not address.insecure,
        }
    sentinels = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        list(address.hosts),
        sentinel_kwargs=options,
    )
    try:
        found: Any = sentinels.discover_master(address.service)  # type: ignore[no-untyped-call]
    except redis.sentinel.MasterNotFoundError as error:
        # Its own words show all the settings of a connection.
        asked = ", ".join(f"{host}:{port}" for host, port in address.hosts)
        raise StoreUnavailable(
            f"no sentinel at {asked} answers and names a master of {address.service!r}"
        ) from error
    except redis.exceptions.RedisError as error:
        raise StoreUnavailable(f"the sentinels name no master of {address.service!r}: {error}") from error
    finally:
        for sentinel in sentinels.sentinels:
            sentinel.close()
    return str(found[0]), int(found[1])


def slots_of(address: Address, hosts: Iterable[Host]) -> list[Slots]:
    """As the first of these nodes sees it that answers and knows some; none: those that answer know none.

    Raises StoreUnavailable if nobody answers.
    """
    why = "no node is named"
    answered = False
    for host in hosts:
        try:
            with asking(address, host) as ask:
                ranges = ask("CLUSTER", "SLOTS")
        except StoreError as error:
            detail = error.detail if isinstance(error, StoreUnavailable) else error
            why = f"{host[0]}:{host[1]}: {detail}"
            continue
        if ranges:
            return [Slots(first, last, _host_of(master, host)) for first, last, master, *_ in ranges]
        answered = True
    if answered:
        return []
    raise StoreUnavailable(why)


@contextmanager
def asking(address: Address, host: Host | None) -> Iterator[Callable[..., Any]]:
    """A connection to one server for some questions; what it refuses is raised as a StoreError."""
    link = ThreadLink(address, host, address.ssl_context())

    def ask(*words: str) -> Any:
        reply = link.exchange(pack(words), 1).replies[0]
        if isinstance(reply, StoreError):
            raise reply
        return reply

    try:
        yield ask
    finally:
        link.close()


def _host_of(member: list[Any], asked: Host) -> Host:
    """A server that does not know its own name leaves it out."""
    name = (member[0] or b"").decode()
    return (name if name not in ("", "?") else asked[0], int(member[1]))
