"""Which server serves which key: one server, the master that sentinels name, or a cluster's slots.

`refresh` finds the nodes and may block: `Calls` requests it when a call could not be served, and keeps event
loops from waiting. `node_for` never blocks.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from openq.errors import StoreError, StoreUnavailable
from openq.redis.net.connection import ThreadConnection
from openq.redis.net.copies import ReplicaFloor
from openq.redis.net.resp import CommandRefused
from openq.redis.net.topology import find_master, read_slots
from openq.redis.net.url import Address, Host

if TYPE_CHECKING:
    import asyncio

    from openq.redis.net.loop_connection import LoopConnection

SLOTS = 16384
# Many callers fail at the same moment; one refresh is enough for all of them.
REFRESH_GAP_S = 0.05
NODE_TIMEOUT_S = 1.0  # for each server that is queried: slow ones are skipped
_MAX_KEYS = 20_000


class Node:
    """One server that accepts writes, and the connections to it."""

    def __init__(
        self,
        address: Address,
        host: Host | None,
        loop: asyncio.AbstractEventLoop | None,
        floor: ReplicaFloor | None = None,
        on_stall: Callable[[], None] | None = None,
    ) -> None:
        self.host = host
        context = address.ssl_context()
        floor = floor or ReplicaFloor()
        self.threads = ThreadConnection(address, host, context, floor, on_stall)
        self.on_loop: LoopConnection | None = None
        if loop is not None:
            from openq.redis.net.loop_connection import LoopConnection

            self.on_loop = LoopConnection(address, host, loop, context, floor, on_stall)

    def close(self) -> None:
        self.threads.close()
        if self.on_loop is not None:
            self.on_loop.close_soon()


class Nodes(Protocol):
    def node_for(self, key: bytes) -> Node:
        """Raises StoreUnavailable while no node is known to serve it."""

    def redirected(self, refused: CommandRefused, node: Node) -> Node | None:
        """The node that the server redirects the call to; None: no other node, for now."""

    def refresh(self) -> None:
        """Refresh the node map. Blocking; never raises: unreachable nodes are retried."""

    def all(self) -> list[Node]: ...

    def close(self) -> None: ...


def make_nodes(address: Address, loop: asyncio.AbstractEventLoop | None) -> Nodes:
    if address.kind == "sentinel":
        return SentinelNodes(address, loop)
    if address.kind == "cluster":
        return ClusterNodes(address, loop)
    return SingleNode(address, loop)


class SingleNode:
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        self._node = Node(address, address.hosts[0] if address.hosts else None, loop)

    def node_for(self, key: bytes) -> Node:
        return self._node

    def redirected(self, refused: CommandRefused, node: Node) -> Node | None:
        return None

    def refresh(self) -> None:
        pass

    def all(self) -> list[Node]:
        return [self._node]

    def close(self) -> None:
        self._node.close()


class _DiscoveredNodes(ABC):
    """One refresh at a time, and none right after another."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        self._address = address
        self._loop = loop
        self._refresh_lock = threading.Lock()
        self._refreshed_s = float("-inf")
        self._last_error = "not looked for yet"

    def refresh(self) -> None:
        with self._refresh_lock:
            if time.monotonic() - self._refreshed_s < REFRESH_GAP_S:
                return
            try:
                self._discover()
            except (OSError, StoreError) as error:
                self._last_error = str(error)
            self._refreshed_s = time.monotonic()

    @abstractmethod
    def _discover(self) -> None:
        """Raises OSError or StoreError with the reason if discovery fails."""


class SentinelNodes(_DiscoveredNodes):
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(address, loop)
        self._node: Node | None = None
        self._floor = ReplicaFloor()
        self._epoch = -1

    def node_for(self, key: bytes) -> Node:
        node = self._node
        if node is None:
            raise StoreUnavailable(self._last_error)
        return node

    def redirected(self, refused: CommandRefused, node: Node) -> Node | None:
        return None

    def all(self) -> list[Node]:
        node = self._node
        return [] if node is None else [node]

    def close(self) -> None:
        for node in self.all():
            node.close()

    def _discover(self) -> None:
        address = self._address
        host, epoch = find_master(address)
        former = self._node
        if former is None or former.host != host:
            if former is not None and epoch > self._epoch:
                # A majority of sentinels agreed on the failover, so one server less is correct.
                self._floor = self._floor.without_one()
            self._node = Node(address, host, self._loop, self._floor, self.refresh)
            if former is not None:
                former.close()
        self._epoch = max(self._epoch, epoch)


class ClusterNodes(_DiscoveredNodes):
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(address, loop)
        self._nodes: dict[Host, Node] = {}
        self._slots: list[Node | None] = [None] * SLOTS
        self._slot_of: dict[bytes, int] = {}
        self._unresponsive: set[Host] = set()  # did not answer the last query: the others are queried first

    def node_for(self, key: bytes) -> Node:
        slot = self._slot_of.get(key)
        if slot is None:
            if len(self._slot_of) >= _MAX_KEYS:
                self._slot_of.clear()
            slot = self._slot_of[key] = slot_of(key)
        node = self._slots[slot]
        if node is None:
            raise StoreUnavailable(f"no node of the cluster serves slot {slot}: {self._last_error}")
        return node

    def redirected(self, refused: CommandRefused, node: Node) -> Node | None:
        if refused.word not in ("MOVED", "ASK"):
            return None
        _, slot, where = str(refused).split(" ")[:3]
        name, _, port = where.rpartition(":")
        # A server that does not know its own host name leaves it out.
        host = (name or (node.host[0] if node.host else ""), int(port))
        target = self._node(host)
        if refused.word == "MOVED":
            self._slots[int(slot)] = target
        return target

    def all(self) -> list[Node]:
        return list(self._nodes.values())

    def close(self) -> None:
        for node in self.all():
            node.close()

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            # If two threads create a node, `setdefault` decides which one is used.
            node = self._nodes.setdefault(host, Node(self._address, host, self._loop, None, self.refresh))
        return node

    def _discover(self) -> None:
        hosts = sorted(
            dict.fromkeys([*self._nodes, *self._address.hosts]), key=self._unresponsive.__contains__
        )
        address = replace(self._address, timeout_s=min(NODE_TIMEOUT_S, self._address.timeout_s))
        ranges = read_slots(address, hosts, self._unresponsive)
        if not ranges:
            raise StoreUnavailable("its nodes know no slots")
        slots: list[Node | None] = [None] * SLOTS
        for first, last, master in ranges:
            slots[first : last + 1] = [self._node(master)] * (last + 1 - first)
        self._slots = slots
        serving = {node.host for node in set(slots) if node is not None}
        for host in [host for host in self._nodes if host not in serving]:
            self._nodes.pop(host).close()


def slot_of(key: bytes) -> int:
    """The slot of a key in a cluster: of the part between its first braces, if it is not empty."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS
