"""The circuit breaker of an endpoint. Pure: time is an argument.

    closed     requests are sent; `failures` failures in a row open it
    open       nothing is sent until `until_ms`; then it is half-open
    half-open  one request is sent: a success closes it, a failure opens it for twice as long

A pause that the endpoint asks for (Retry-After) is beside it: nothing is sent until it is over.
"""

from __future__ import annotations

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"
FIRST_PAUSE_MS = 1_000
MAX_PAUSE_MS = 300_000


class Breaker:
    __slots__ = ("_failures", "_pause_ms", "_paused_until_ms", "_threshold", "_until_ms", "state")

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.state = CLOSED
        self._failures = 0  # in a row
        self._pause_ms = FIRST_PAUSE_MS  # the next one
        self._until_ms = 0
        self._paused_until_ms = 0

    @property
    def until_ms(self) -> int:
        """When requests may be sent again; 0: now."""
        return max(self._until_ms if self.state == OPEN else 0, self._paused_until_ms)

    def capacity(self, limit: int, running: int, now_ms: int) -> int:
        """How many further requests may be started now."""
        if self._paused_until_ms > now_ms:
            return 0
        if self.state == OPEN:
            if self._until_ms > now_ms:
                return 0
            self.state = HALF_OPEN
        if self.state == HALF_OPEN:
            return 0 if running else 1
        return max(0, limit - running)

    def succeeded(self) -> None:
        self.state = CLOSED
        self._failures = 0
        self._pause_ms = FIRST_PAUSE_MS

    def failed(self, now_ms: int) -> bool:
        """Whether this opened it."""
        self._failures += 1
        if self.state == OPEN or (self.state == CLOSED and self._failures < self._threshold):
            return False
        self.state = OPEN
        self._until_ms = now_ms + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, MAX_PAUSE_MS)
        return True

    def pause(self, until_ms: int) -> None:
        self._paused_until_ms = max(self._paused_until_ms, until_ms)
