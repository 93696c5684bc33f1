"""One ceiling for what clients make this server hold in memory: messages half sent, answers not read.

Every connection, of whatever protocol, reports how many such bytes it holds. When all of them together are
over the ceiling, the connections that hold most are shed until they are not. Small amounts are not reported:
a connection may hold `SMALL` bytes in each direction without a word. Everything runs on the loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from ..config import Config

log = logging.getLogger("openq.server")

PROTOCOLS = ("http", "amqp")
SMALL = 64 << 10
DEFAULT_BYTES = 256 << 20


def buffer_bytes(config: Config) -> int:
    """The ceiling. One message or request of the largest size always fits, twice."""
    return max(config.max_buffer_bytes, 2 * config.max_request_bytes, 2 * config.max_message_bytes)


class BufferOwner(Protocol):
    """A connection. `shed` frees what it holds at once, and tells its client if that is possible."""

    protocol: str
    peer: str

    def shed(self) -> None: ...


class BufferLimit:
    """`held` counts the bytes that are held now, `shed` the connections that were cut, by protocol."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self.shed: Counter[str] = Counter()
        self._sizes: dict[BufferOwner, int] = {}
        self._is_shedding = False

    def hold(self, holder: BufferOwner, size: int) -> None:
        """`holder` holds `size` bytes now; 0 when it lets go of everything."""
        before = self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        self.held += size - before
        if self.held > self.max_bytes and size > before and not self._is_shedding:
            self._shed_largest()

    def of(self, protocol: str) -> int:
        """Any thread."""
        return sum(size for holder, size in list(self._sizes.items()) if holder.protocol == protocol)

    def _shed_largest(self) -> None:
        """The largest first: small requests go on while somebody tries to fill the memory."""
        self._is_shedding = True
        try:
            while self.held > self.max_bytes:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                size = self._sizes.pop(largest)
                self.held -= size
                self.shed[largest.protocol] += 1
                log.warning(
                    "clients made this server hold more than %d bytes: the connection from %s with %d bytes "
                    "is closed (max_buffer_bytes sets the limit)",
                    self.max_bytes,
                    largest.peer,
                    size,
                )
                largest.shed()
        finally:
            self._is_shedding = False
