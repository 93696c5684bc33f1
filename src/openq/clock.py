"""Time, injected everywhere. The engine never asks; brokers do, through one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    @property
    def now_ms(self) -> Callable[[], int]: ...

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Call back when time was moved by hand; a real clock never does."""
        ...


class SystemClock:
    """Wall time at the start, monotonic from then on.

    So a wall clock that is set back or forth under a running process neither ends leases
    early nor keeps delays waiting. `floor_ms` is the latest time already on record: time never runs
    backwards over a restart either.
    """

    def __init__(self, floor_ms: int = 0) -> None:
        monotonic_ns = time.monotonic_ns
        base_ms = max(time.time_ns() // 1_000_000, floor_ms) - monotonic_ns() // 1_000_000

        def now_ms() -> int:
            return base_ms + monotonic_ns() // 1_000_000

        # A closure, not a method: it is called three times for every message.
        self._now_ms = now_ms

    @property
    def now_ms(self) -> Callable[[], int]:
        return self._now_ms

    def on_advance(self, callback: Callable[[], None]) -> None:
        pass


class VirtualClock:
    """Time that stands still until it is moved: a twelve-hour test in a millisecond."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._callbacks: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> Callable[[], int]:
        return self._now

    def _now(self) -> int:
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
