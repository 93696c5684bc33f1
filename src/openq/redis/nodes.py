"""Which server serves which key: one server, the master that sentinels name, or a cluster's slots.

Finding out may take a while and is done by `look`, which blocks: `Calls` asks for it when a call could not be
served, and keeps loops from waiting. `of` never waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from openq.errors import StoreError, StoreUnavailable
from openq.redis.copies import Floor
from openq.redis.link import ThreadLink
from openq.redis.looplink import LoopLink
from openq.redis.topology import named_master, slots_of
from openq.redis.url import Address, Host
from openq.redis.wire import Refused

SLOTS = 16384
# Many callers fail at the same moment, and one look is enough for them all.
LOOK_GAP_S = 0.05
LOOK_S = 1.0  # for each server that is asked: one that is slow to tell is passed over
_MOST_KEYS = 20_000


class Node:
    """One server that takes writes, and the connections to it."""

    def __init__(
        self,
        address: Address,
        host: Host | None,
        loop: asyncio.AbstractEventLoop | None,
        floor: Floor | None = None,
        stalled: Callable[[], None] | None = None,
    ) -> None:
        self.host = host
        context = address.ssl_context()
        floor = floor or Floor()
        self.threads = ThreadLink(address, host, context, floor, stalled)
        self.on_loop = LoopLink(address, host, loop, context, floor, stalled) if loop is not None else None

    def close(self) -> None:
        self.threads.close()
        if self.on_loop is not None:
            self.on_loop.close_soon()


class Nodes(Protocol):
    def of(self, key: bytes) -> Node:
        """Raises StoreUnavailable while nobody is known to serve it."""

    def redirected(self, refused: Refused, node: Node) -> Node | None:
        """Where the server says the call belongs; None: nowhere else, for now."""

    def look(self) -> None:
        """Find out again who serves what. Blocks; raises nothing: who is away is looked for again."""

    def all(self) -> list[Node]: ...

    def close(self) -> None: ...


def nodes_of(address: Address, loop: asyncio.AbstractEventLoop | None) -> Nodes:
    if address.kind == "sentinel":
        return SentinelNodes(address, loop)
    if address.kind == "cluster":
        return ClusterNodes(address, loop)
    return SingleNode(address, loop)


class SingleNode:
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        self._node = Node(address, address.hosts[0] if address.hosts else None, loop)

    def of(self, key: bytes) -> Node:
        return self._node

    def redirected(self, refused: Refused, node: Node) -> Node | None:
        return None

    def look(self) -> None:
        pass

    def all(self) -> list[Node]:
        return [self._node]

    def close(self) -> None:
        self._node.close()


class _Looking(ABC):
    """One look at a time, and none right after another."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        self._address = address
        self._loop = loop
        self._looking = threading.Lock()
        self._looked_s = float("-inf")
        self._why = "not looked for yet"

    def look(self) -> None:
        with self._looking:
            if time.monotonic() - self._looked_s < LOOK_GAP_S:
                return
            try:
                self._find()
            except (OSError, StoreError) as error:
                self._why = str(error)
            self._looked_s = time.monotonic()

    @abstractmethod
    def _find(self) -> None:
        """Raises OSError or StoreError: why it could not be found out."""


class SentinelNodes(_Looking):
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(address, loop)
        self._node: Node | None = None
        self._floor = Floor()
        self._epoch = -1

    def of(self, key: bytes) -> Node:
        node = self._node
        if node is None:
            raise StoreUnavailable(self._why)
        return node

    def redirected(self, refused: Refused, node: Node) -> Node | None:
        return None

    def all(self) -> list[Node]:
        node = self._node
        return [] if node is None else [node]

    def close(self) -> None:
        for node in self.all():
            node.close()

    def _find(self) -> None:
        address = self._address
        host, epoch = named_master(address)
        former = self._node
        if former is None or former.host != host:
            if former is not None and epoch > self._epoch:
                # Most sentinels agreed on it: it is rightly one server short.
                self._floor = self._floor.without_one()
            self._node = Node(address, host, self._loop, self._floor, self.look)
            if former is not None:
                former.close()
        self._epoch = max(self._epoch, epoch)


class ClusterNodes(_Looking):
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(address, loop)
        self._nodes: dict[Host, Node] = {}
        self._slots: list[Node | None] = [None] * SLOTS
        self._slot_of: dict[bytes, int] = {}
        self._silent: set[Host] = set()  # who did not answer when last asked: the others first

    def of(self, key: bytes) -> Node:
        slot = self._slot_of.get(key)
        if slot is None:
            if len(self._slot_of) >= _MOST_KEYS:
                self._slot_of.clear()
            slot = self._slot_of[key] = slot_of(key)
        node = self._slots[slot]
        if node is None:
            raise StoreUnavailable(f"no node of the cluster serves slot {slot}: {self._why}")
        return node

    def redirected(self, refused: Refused, node: Node) -> Node | None:
        if refused.word not in ("MOVED", "ASK"):
            return None
        _, slot, where = str(refused).split(" ")[:3]
        name, _, port = where.rpartition(":")
        # A server that does not know its own name leaves it out.
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
            # Of two threads that make one, one loses: `setdefault` says which.
            node = self._nodes.setdefault(host, Node(self._address, host, self._loop, None, self.look))
        return node

    def _find(self) -> None:
        hosts = sorted(dict.fromkeys([*self._nodes, *self._address.hosts]), key=self._silent.__contains__)
        impatient = replace(self._address, timeout_s=min(LOOK_S, self._address.timeout_s))
        ranges = slots_of(impatient, hosts, self._silent)
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
    """Where a key lives in a cluster: by what is between its first braces, if there is something."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS
