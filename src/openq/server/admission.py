"""The limit of connections, over all protocols.

Every connection is a file descriptor. The journal, snapshots, Redis and the processes that read history need
descriptors too, so connections stay below the limit of the process by a reserve. Refused connections are
counted and get an error; a few at a time stay open until they have read it, the others are closed at once.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

RESERVE = 192  # descriptors that are not for connections; at most a quarter of the limit
MAX_LINGERING = 32  # refused connections that are still reading the error
MEASURE_S = 1.0
_LARGE_LIMIT = 65_536  # with a limit above this, descriptors are only counted when they could become scarce


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_descriptors() -> int:
    """Open descriptors of this process; 0 if the system does not report them."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


class Admission:
    """Called on the loop only."""

    def __init__(
        self,
        max_connections: int,
        limit: int | None = None,
        count: Callable[[], int] = open_descriptors,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = descriptor_limit() if limit is None else limit
        self.reserve = min(RESERVE, self.limit // 4)
        self.open = 0
        self.lingering = 0
        self.refused: dict[str, int] = {}  # by protocol
        self._max_connections = max_connections
        self._count = count
        self._now = now
        self._other_descriptors = 0  # descriptors of everything but connections
        self._measured_s = 0.0

    def set_max_connections(self, max_connections: int) -> None:
        """Connections that are open stay."""
        self._max_connections = max_connections

    @property
    def max_connections(self) -> int:
        """The current limit."""
        return max(
            1,
            min(self._max_connections, self.limit - self.reserve - self._other_descriptors - self.lingering),
        )

    def enter(self, protocol: str) -> bool:
        """Admit one connection if there is room. The caller calls `leave` when it ends."""
        if self.limit <= _LARGE_LIMIT or self.open > self.limit // 2:
            self._measure()
        if self.open >= self.max_connections:
            self.refused[protocol] = self.refused.get(protocol, 0) + 1
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        self.open -= 1

    def _measure(self) -> None:
        """Counting thousands of descriptors takes a while: not for every connection."""
        now = self._now()
        if now - self._measured_s >= MEASURE_S:
            self._measured_s = now
            self._other_descriptors = max(0, self._count() - self.open - self.lingering)
