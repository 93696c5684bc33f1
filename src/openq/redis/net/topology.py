"""The master or the slots, as reported by sentinels or by the nodes of a cluster. Blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import StoreError, StoreUnavailable
from .connection import ThreadConnection
from .resp import pack
from .url import Address, Host

SENTINEL_TIMEOUT_S = 1.0  # for a sentinel to answer


class SlotRange(NamedTuple):
    first: int
    last: int
    master: Host


class MasterInfo(NamedTuple):
    host: Host
    epoch: int  # increases with every failover


def find_master(address: Address) -> MasterInfo:
    """The master that the sentinels name, by the newest of their views; queried over TLS if the servers use
    it.

    All sentinels are queried at once: one that is down must not delay the others, and one that was cut off
    may not know yet of a master that the majority has agreed on.
    """
    assert address.service is not None
    answers: list[MasterInfo | StoreError] = []
    threads = [
        threading.Thread(target=lambda host=host: answers.append(_ask_sentinel(address, host)), daemon=True)
        for host in address.hosts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = [answer for answer in answers if isinstance(answer, MasterInfo)]
    if named:
        return max(named, key=lambda master: master.epoch)
    asked = ", ".join(f"{host}:{port}" for host, port in address.hosts)
    why = str(answers[0]) if answers else ""
    raise StoreUnavailable(f"no sentinel at {asked} answers and names a master of {address.service!r}: {why}")


def _ask_sentinel(address: Address, host: Host) -> MasterInfo | StoreError:
    try:
        fields = _read_service(address, host)
    except StoreError as error:
        return error
    flags = fields["flags"].split(",")
    if "master" not in flags or "s_down" in flags or "o_down" in flags:
        return StoreUnavailable(
            f"{fields['ip']}:{fields['port']} is down for the sentinel at {host[0]}:{host[1]}"
        )
    return MasterInfo((fields["ip"], int(fields["port"])), int(fields.get("config-epoch", 0)))


def _read_service(address: Address, host: Host) -> dict[str, str]:
    """The report of one sentinel on the service that it watches."""
    own = replace(
        address,
        kind="single",
        profile="fast",
        db=0,
        user=address.sentinel_user,
        password=address.sentinel_password,
        timeout_s=min(SENTINEL_TIMEOUT_S, address.timeout_s),
    )
    with admin_connection(own, host) as ask:
        flat = ask("SENTINEL", "MASTER", address.service or "")
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


def sentinel_settings(address: Address) -> tuple[Host | None, dict[str, str]]:
    """The first sentinel that answers, and its settings for the service."""
    for host in address.hosts:
        try:
            return host, _read_service(address, host)
        except StoreError:
            continue
    return None, {}


def read_slots(
    address: Address, hosts: Iterable[Host], unresponsive: set[Host] | None = None
) -> list[SlotRange]:
    """The slots as seen by the first of these nodes that answers and knows any; empty if those that answer
    know none.

    Nodes that do not answer are added to `unresponsive`. Raises StoreUnavailable if none answers.
    """
    why = "no node is named"
    answered = False
    for host in hosts:
        try:
            with admin_connection(address, host) as ask:
                ranges = ask("CLUSTER", "SLOTS")
        except StoreError as error:
            detail = error.detail if isinstance(error, StoreUnavailable) else error
            why = f"{host[0]}:{host[1]}: {detail}"
            if unresponsive is not None:
                unresponsive.add(host)
            continue
        if unresponsive is not None:
            unresponsive.discard(host)
        if ranges:
            return [SlotRange(first, last, _host_of(master, host)) for first, last, master, *_ in ranges]
        answered = True
    if answered:
        return []
    raise StoreUnavailable(why)


@contextmanager
def admin_connection(address: Address, host: Host | None) -> Iterator[Callable[..., Any]]:
    """A connection to one server for a few commands; refusals are raised as StoreError."""
    connection = ThreadConnection(address, host, address.ssl_context())

    def ask(*words: str) -> Any:
        reply = connection.exchange(pack(words), 1).replies[0]
        if isinstance(reply, StoreError):
            raise reply
        return reply

    try:
        yield ask
    finally:
        connection.close()


def _host_of(member: list[Any], asked: Host) -> Host:
    """A server that does not know its own host name leaves it out."""
    name = (member[0] or b"").decode()
    return (name if name not in ("", "?") else asked[0], int(member[1]))
