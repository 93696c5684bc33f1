"""One limit for the memory that clients make this server hold: partial requests and unread replies.

Every connection of every protocol reports how many such bytes it holds. When the sum is over the limit, the
connections that hold most are closed until it is not. Up to `SMALL` bytes in each direction are not reported.
Everything runs on the loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from ..config import Config

log = logging.getLogger("openq.server")

PROTOCOLS = ("http", "amqp", "ws")
SMALL = 64 << 10
DEFAULT_BYTES = 256 << 20


def buffer_bytes(config: Config) -> int:
    """The ceiling. One message or request of the largest size always fits, twice."""
    return max(config.max_buffer_bytes, 2 * config.max_request_bytes, 2 * config.max_message_bytes)


class BufferOwner(Protocol):
    """A connection. `shed` frees its buffers at once and closes it, with an error reply if possible."""

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
        """Report that `holder` holds `size` bytes now; 0 if none."""
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
        """The largest first: clients with small requests are not affected by one that fills the memory."""
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
