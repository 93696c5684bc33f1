"""How long commits take and how many records each makes durable.

One thread at a time adds: the committing one.
"""

from __future__ import annotations

from openq.histograms import Histogram
from openq.logs import SLOW

_MICROSECOND = 0.000_001


class CommitFigures:
    __slots__ = ("group_records", "sync_times", "written_bytes")

    def __init__(self) -> None:
        self.sync_times = Histogram(_MICROSECOND, 5, 25)  # 32 microseconds to 34 seconds
        self.group_records = Histogram(1, 0, 16)
        self.written_bytes = 0

    def add(self, seconds: float, records: int, size: int) -> None:
        SLOW.check("slow_sync", seconds, records=records, bytes=size)
        self.sync_times.observe(int(seconds * 1_000_000))
        self.group_records.observe(records)
        self.written_bytes += size
