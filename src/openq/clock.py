"""Time, injected everywhere. The engine never asks; brokers do, through one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Call back when time was moved by hand; a real clock never does."""
        ...


class SystemClock:
    """Wall time at the start, monotonic from then on.

    So a wall clock that is set back or forth under a running process neither ends leases
    early nor keeps delays waiting. `floor_ms` is the latest time already on record: time never runs
    backwards over a restart either.
    """

    __slots__ = ("_base_ms",)

    def __init__(self, floor_ms: int = 0) -> None:
        wall_ms = time.time_ns() // 1_000_000
        self._base_ms = max(wall_ms, floor_ms) - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._base_ms + time.monotonic_ns() // 1_000_000

    def on_advance(self, callback: Callable[[], None]) -> None:
        pass


class VirtualClock:
    """Time that stands still until it is moved: a twelve-hour test in a millisecond."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._callbacks: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def on_advance(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def advance(self, seconds: float) -> None:
        """Move on; everything that comes due on the way has happened when this returns."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now_ms += round(seconds * 1000)
        for callback in list(self._callbacks):
            callback()
