"""The servers of a store: who they are, what they do for all, and their connections.

Servers that share a store announce themselves in entries that expire: `fleet` has one line about each server,
`connections` the first connections of each. To close a connection of another server, a server puts an entry
`closings`, which the other one reads with its next announcement. A server with a local broker does none of
this.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from .._version import __version__
from ..broker.interface import Cluster
from ..errors import OpenQError, public_text
from .connection_info import ConnectionInfo

if TYPE_CHECKING:
    from .context import ServerContext

log = logging.getLogger("openq.server")

ANNOUNCE_S = 2.0
TTL_MS = 10_000  # without an announcement, a server is gone then
MAX_CONNECTIONS = 100  # that a server announces to the others
MAX_CONSUMERS = 20  # of each of them
FLEET, CONNECTIONS, CLOSINGS = "fleet", "connections", "closings"

T = TypeVar("T")


class ServerEntry(msgspec.Struct, kw_only=True):
    instance: str  # names this run of the server
    name: str  # host and port
    url: str
    amqp_url: str
    version: str
    pid: int
    started_ms: int
    store: str
    healthy: bool
    detail: str
    roles: list[str]
    connections: dict[str, int]  # by protocol


class Announcement(msgspec.Struct, kw_only=True):
    connections: list[ConnectionInfo]
    total: int


class Closing(msgspec.Struct, kw_only=True):
    id: str
    reason: str


class Fleet:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._cluster: Cluster | None = context.broker.cluster  # None: there is only this server
        self.instance = secrets.token_hex(4)
        self.name = socket.gethostname()[:60]
        self._url = self._amqp_url = ""
        self._timer: asyncio.TimerHandle | None = None
        self._is_announcing = False
        self._has_failed = False
        # Each returns what this server does for all servers of the store, or ""; called in a thread.
        self.roles: Sequence[Callable[[], str]] = ()

    # -- announcements

    def start(self, url: str, amqp_url: str, process: int = 0) -> None:
        """`process` is the number of this process, if the server has several."""
        self._url, self._amqp_url = url, amqp_url
        self.name = f"{socket.gethostname()[:60]}:{url.rpartition(':')[2]}"
        if process:
            self.name += f"/{process}"
        if self._cluster is not None:
            self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """In a thread, at the end."""
        if self._cluster is not None:
            for kind in (FLEET, CONNECTIONS):
                self._cluster.remove_server(self.instance, kind)

    def _tick(self) -> None:
        if not self._is_announcing:  # the store may be slow or unreachable
            self._is_announcing = True
            self._context.run(self._announce, self._announced)
        self._timer = self._context.loop.call_later(ANNOUNCE_S, self._tick)

    def _announce(self) -> list[Closing]:
        """In a thread. Returns what other servers want to have closed here."""
        cluster = self._cluster
        assert cluster is not None
        cluster.heartbeat(self.instance, msgspec.json.encode(self.own_entry()), TTL_MS, FLEET)
        found = self._context.connections.here()
        shown = found[:MAX_CONNECTIONS]
        for each in shown:
            del (
                each.consumers[MAX_CONSUMERS:],
                each.channels[MAX_CONSUMERS:],
                each.subscriptions[MAX_CONSUMERS:],
            )
        data = msgspec.json.encode(Announcement(connections=shown, total=len(found)))
        cluster.heartbeat(self.instance, data, TTL_MS, CONNECTIONS)
        closings = [each for each in _decoded(cluster.servers(CLOSINGS), Closing) if self.is_own(each.id)]
        for closing in closings:
            cluster.remove_server(closing.id, CLOSINGS)
        return closings

    def _announced(self, closings: list[Closing] | None, error: BaseException | None) -> None:
        self._is_announcing = False
        if error is not None:
            if not isinstance(error, OpenQError):
                log.error("the fleet", exc_info=error)
            elif not self._has_failed:
                log.warning("this server is not announced to the others of its store: %s", error)
        self._has_failed = error is not None
        for each in closings or ():
            self._context.connections.close(each.id, each.reason)

    # -- servers

    def own_entry(self) -> ServerEntry:
        """In a thread."""
        context = self._context
        try:
            health = context.broker.health()
            healthy, detail = health.ok, health.detail
        except OpenQError as error:
            healthy, detail = False, public_text(error)
        # A server that is alone does everything.
        roles = (
            ["all"] if self._cluster is None else [*(each() for each in self.roles), *self._cluster.roles()]
        )
        return ServerEntry(
            instance=self.instance,
            name=self.name,
            url=self._url,
            amqp_url=self._amqp_url,
            version=__version__,
            pid=os.getpid(),
            started_ms=context.started_ms,
            store=context.broker.storage.name,
            healthy=healthy,
            detail=detail,
            roles=sorted(filter(None, roles)),
            connections=context.connections.counts(),
        )

    def servers(self) -> list[ServerEntry]:
        """In a thread: this server first, then the others by name. Raises StoreError."""
        others = [] if self._cluster is None else _decoded(self._cluster.servers(FLEET), ServerEntry)
        found = [each for each in others if each.instance != self.instance]
        return [self.own_entry(), *sorted(found, key=lambda each: (each.name, each.instance))]

    # -- connections of the other servers

    def is_own(self, id: str) -> bool:
        return id.rpartition("-")[0] == self.instance

    def connections_elsewhere(self) -> list[ConnectionInfo]:
        """In a thread: as the other servers announced them. Raises StoreError."""
        if self._cluster is None:
            return []
        announced = self._cluster.servers(CONNECTIONS)
        announced.pop(self.instance, None)
        return [one for each in _decoded(announced, Announcement) for one in each.connections]

    def close_elsewhere(self, id: str, reason: str) -> None:
        """In a thread: its server closes it with its next announcement."""
        assert self._cluster is not None
        self._cluster.heartbeat(id, msgspec.json.encode(Closing(id=id, reason=reason)), TTL_MS, CLOSINGS)


def _decoded(entries: dict[str, bytes], kind: type[T]) -> list[T]:
    found: list[T] = []
    for data in entries.values():
        try:
            found.append(msgspec.json.decode(data, type=kind))
        except msgspec.DecodeError:
            pass  # of another version
    return found
