"""Memory that nobody needs goes back to the system: when the server has been quiet, and now and then anyway.

The server collects cycles rarely, because it makes very few. Those that there are must not stay for ever, and
glibc keeps freed memory for the next allocation. So a full collection and a `malloc_trim` follow each burst
of work. Both are limited to a small share of the time, however much there is to look through.
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
FULL_S = 3600.0  # under load: how often all of them are
SHARE = 1000  # what takes a millisecond is done once a second at most
ARENAS = 2
MMAP_BYTES = 512 << 10
# Of glibc's `mallopt`.
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
    """Threads share two arenas, and large blocks are always mapped by themselves: freed means returned.

    To be called before threads are started. glibc would otherwise raise the size from which blocks are mapped
    with the largest block it ever freed, up to 32 MiB. False where there is no glibc.
    """
    libc = _libc()
    if libc is None:
        return False
    return bool(libc.mallopt(_M_ARENA_MAX, ARENAS)) and bool(libc.mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))


class MemoryReclaimer:
    """`activity` returns something that changes whenever clients do something."""

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
        self._is_due = True  # something was done since memory was given back
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
            self._clear_caches()  # nobody has read anything for a while
        gc.collect(generation)
        self._not_before = self._clock() + SHARE * (self._clock() - started)
        if self._libc is not None:
            self._run(self._trim)

    def _trim(self) -> None:
        """ctypes lets the other threads run meanwhile."""
        self._libc.malloc_trim(0)
