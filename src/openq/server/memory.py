"""Returns unused memory to the system: when the server is idle, and from time to time anyway.

The server makes few cycles, so the collector runs rarely, and glibc keeps freed memory for the next
allocation. So a full collection and a `malloc_trim` follow each burst of work. Both are limited to a small
share of the time.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

TICK_S = 5.0
BUSY_S = 60.0  # under load: how often the young generations are collected and memory is trimmed
FULL_S = 3600.0  # under load: how often all generations are collected
SHARE = 1000  # work of one millisecond is done at most once a second
ARENAS = 2
MMAP_BYTES = 512 << 10
# Parameters of glibc's `mallopt`.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def _libc() -> Any:
    """glibc, if this process runs on it; None otherwise."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return libc


def limit_arenas() -> bool:
    """Let threads share two arenas and map large blocks separately, so that freed memory is returned.

    Call it before threads are started. Otherwise glibc raises the mmap threshold to the largest block that
    was ever freed, up to 32 MiB. False without glibc.
    """
    libc = _libc()
    if libc is None:
        return False
    return bool(libc.mallopt(_M_ARENA_MAX, ARENAS)) and bool(libc.mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))


class MemoryReclaimer:
    """`activity` returns a value that changes with every activity of a client."""

    def __init__(
        self,
        activity: Callable[[], object],
        run: Callable[[Callable[[], object]], object],
        clock: Callable[[], float] = time.monotonic,
        clear_caches: Callable[[], object] = lambda: None,
    ) -> None:
        self._activity = activity
        self._clear_caches = clear_caches
        self._run = run  # in a thread
        self._clock = clock
        self._last: object = None
        self._is_due = True  # there was work since memory was returned
        self._not_before = 0.0
        self._young_s = self._full_s = clock()
        self._libc = _libc()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_S, self._again, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tick()
        self.start(loop)

    def tick(self) -> None:
        current = self._activity()
        is_quiet = current == self._last
        self._last = current
        if not is_quiet:
            self._is_due = True
        now = self._clock()
        if not self._is_due or now < self._not_before:
            return
        if is_quiet or now - self._full_s >= FULL_S:
            self._is_due = not is_quiet
            self._full_s = self._young_s = now
            self._reclaim(2)
        elif now - self._young_s >= BUSY_S:
            self._young_s = now
            self._reclaim(1)

    def _reclaim(self, generation: int) -> None:
        started = self._clock()
        if not self._is_due:
            self._clear_caches()  # idle: no reads for a while
        gc.collect(generation)
        self._not_before = self._clock() + SHARE * (self._clock() - started)
        if self._libc is not None:
            self._run(self._trim)

    def _trim(self) -> None:
        """ctypes releases the GIL meanwhile."""
        self._libc.malloc_trim(0)
