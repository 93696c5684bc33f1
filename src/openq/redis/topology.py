"""Who serves what, as sentinels and the nodes of a cluster tell it. Blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import StoreError, StoreUnavailable
from .link import ThreadLink
from .url import Address, Host
from .wire import pack

SENTINEL_S = 1.0  # for a sentinel to answer


class Slots(NamedTuple):
    first: int
    last: int
    master: Host


class Master(NamedTuple):
    host: Host
    epoch: int  # grows with every failover


def named_master(address: Address) -> Master:
    """The master that the sentinels name, by the newest of their views; asked over TLS if the servers are.

    All of them are asked at once: one that is down must not hold up the others, and one that was cut off
    may not know yet of a master that most have agreed on.
    """
    assert address.service is not None
    answers: list[Master | StoreError] = []
    threads = [
        threading.Thread(target=lambda host=host: answers.append(_ask_sentinel(address, host)), daemon=True)
        for host in address.hosts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = [answer for answer in answers if isinstance(answer, Master)]
    if named:
        return max(named, key=lambda master: master.epoch)
    asked = ", ".join(f"{host}:{port}" for host, port in address.hosts)
    why = str(answers[0]) if answers else ""
    raise StoreUnavailable(f"no sentinel at {asked} answers and names a master of {address.service!r}: {why}")


def _ask_sentinel(address: Address, host: Host) -> Master | StoreError:
    try:
        said = _service(address, host)
    except StoreError as error:
        return error
    flags = said["flags"].split(",")
    if "master" not in flags or "s_down" in flags or "o_down" in flags:
        return StoreUnavailable(
            f"{said['ip']}:{said['port']} is down for the sentinel at {host[0]}:{host[1]}"
        )
    return Master((said["ip"], int(said["port"])), int(said.get("config-epoch", 0)))


def _service(address: Address, host: Host) -> dict[str, str]:
    """What one sentinel says of the service that it watches."""
    own = replace(
        address,
        kind="single",
        profile="fast",
        db=0,
        user=address.sentinel_user,
        password=address.sentinel_password,
        timeout_s=min(SENTINEL_S, address.timeout_s),
    )
    with asking(own, host) as ask:
        flat = ask("SENTINEL", "MASTER", address.service or "")
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


def sentinel_settings(address: Address) -> tuple[Host | None, dict[str, str]]:
    """The first sentinel that answers, and how it watches the service."""
    for host in address.hosts:
        try:
            return host, _service(address, host)
        except StoreError:
            continue
    return None, {}


def slots_of(address: Address, hosts: Iterable[Host], silent: set[Host] | None = None) -> list[Slots]:
    """As the first of these nodes sees it that answers and knows some; none: those that answer know none.

    Who does not answer is noted in `silent`. Raises StoreUnavailable if nobody answers.
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
            if silent is not None:
                silent.add(host)
            continue
        if silent is not None:
            silent.discard(host)
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
