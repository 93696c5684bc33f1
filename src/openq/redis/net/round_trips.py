"""How long event loops of this process wait for Redis. One object for all connections: they come and go."""

from __future__ import annotations

from openq.histograms import Histogram
from openq.logs import SLOW

_MICROSECOND = 0.000_001


class RoundTrips:
    def __init__(self) -> None:
        self.replies = Histogram(_MICROSECOND, 5, 25)  # 32 microseconds to 34 seconds
        self.copies = Histogram(_MICROSECOND, 5, 25)

    def replied(self, seconds: float) -> None:
        SLOW.check("slow_redis_call", seconds)
        self.replies.observe(int(seconds * 1_000_000))

    def copied(self, seconds: float) -> None:
        SLOW.check("slow_redis_copies", seconds)
        self.copies.observe(int(seconds * 1_000_000))


ROUND_TRIPS = RoundTrips()
