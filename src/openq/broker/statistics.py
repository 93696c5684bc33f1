"""Counts and times of many queues at once, for pages of metrics and for the history of a server.

`broker.stats` answers for one queue. A page shows thousands of queues, so `Statistics.of` reads them in
slices, as plain tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ..engine.queue import COUNTERS
from ..engine.times import MessageTimes, QueueTimes
from ..metrics import Family
from .series import SeriesPages

__all__ = ["COUNTERS", "NO_TIMES", "MessageTimes", "QueueCounts", "QueueTimes", "Statistics"]

NO_TIMES = QueueTimes()  # never changed


class QueueCounts(NamedTuple):
    """One queue at one moment."""

    name: str
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_age_ms: int | None
    waiters: int
    limited: int
    counters: Sequence[int]  # in the order of COUNTERS
    times: QueueTimes  # those that this process measured


class Statistics(Protocol):
    def of(self, queues: Sequence[str]) -> list[QueueCounts]:
        """In the order of the names; queues that do not exist are left out.

        Blocking: not for an event loop.
        """

    def counters(self, queues: Sequence[str]) -> list[tuple[str, Sequence[int]]]:
        """Only the counters, which are cheaper."""

    def changed(self, queues: Sequence[str], known: dict[str, object]) -> list[str]:
        """The queues whose counts may have changed, except by delays and limits that ended, since the last
        call with the same `known`; it is brought up to date. Cheaper than the counts themselves."""

    def deleted(self) -> Mapping[str, Sequence[int]]:
        """The counters of deleted queues, by account. Sums that include them never go down."""

    def measure(self) -> MessageTimes:
        """Measure the times of messages from now on. A broker in a library does not."""

    @property
    def pages(self) -> SeriesPages:
        """Where the series of past counts are stored."""

    def gauges(self) -> list[Family]:
        """State of the store: sizes, limits, damage, schedules."""

    def families(self) -> list[Family]:
        """Histograms of the store: syncs of the journal, round trips to Redis."""
