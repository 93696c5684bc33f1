"""Time, injected everywhere. The engine never asks; brokers do, through one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    @property
    def now_ms(self) -> Callable[[], int]: ...

    def on_advance(self, callback: Callable[[], None], next_ms: Callable[[], int] | None = None) -> None:
        """Call back when time was moved by hand; a real clock never does.

        Time moved by hand stops at each time that `next_ms` returns, so that runs of schedules are on time.
        """
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

    def on_advance(self, callback: Callable[[], None], next_ms: Callable[[], int] | None = None) -> None:
        pass


class VirtualClock:
    """Time that stands still until it is moved: a twelve-hour test in a millisecond."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._callbacks: list[Callable[[], None]] = []
        self._stops: list[Callable[[], int]] = []

    @property
    def now_ms(self) -> Callable[[], int]:
        return self._now

    def _now(self) -> int:
        return self._now_ms

    def on_advance(self, callback: Callable[[], None], next_ms: Callable[[], int] | None = None) -> None:
        self._callbacks.append(callback)
        if next_ms is not None:
            self._stops.append(next_ms)

    def advance(self, seconds: float) -> None:
        """Move on; everything that comes due on the way has happened when this returns."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        end_ms = self._now_ms + round(seconds * 1000)
        while self._now_ms < end_ms:
            stops = [next_ms() for next_ms in self._stops]
            self._now_ms = min([stop_ms for stop_ms in stops if stop_ms > self._now_ms] + [end_ms])
            self._call_back()
        if not seconds:
            self._call_back()

    def _call_back(self) -> None:
        for callback in list(self._callbacks):
            callback()
