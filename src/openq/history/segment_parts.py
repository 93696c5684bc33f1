"""Ranges of a segment for one task each: how large they are, and where they can be cut."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from openq.engine.records import PUBLISH, ROUTE, RUN
from openq.history.segments import SegmentRef, rows_array
from openq.journal.format import make_location, offset_of, segment_of

__all__ = ["ROW_BYTES", "SegmentPart", "segment_of"]

ROW_BYTES = 150  # of a row beside its body, roughly: one record may acknowledge thousands of messages


@dataclass(frozen=True)
class SegmentPart:
    """The records of a segment from `start` to before `stop`: positions."""

    ref: SegmentRef
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return max(0, min(self.stop, make_location(self.ref.number, self.ref.size)) - self.start)

    @property
    def weight(self) -> int:
        """In memory, roughly; its share of the segment's rows is estimated."""
        return self.bytes + ROW_BYTES * self.ref.rows * self.bytes // max(1, self.ref.size)

    @property
    def inner_stop(self) -> int | None:
        """None if it reaches to the end of its segment."""
        return self.stop if segment_of(self.stop) == self.ref.number else None

    def cut(self, index: Any, limit: int) -> list[SegmentPart]:
        """Parts of about `limit`. Cuts are at records of one message: of a record with many messages the
        index has only the places inside."""
        rows = rows_array(index)
        offsets = rows["offset"]
        end = self.ref.size if self.inner_stop is None else offset_of(self.stop)
        first, last = np.searchsorted(offsets, [offset_of(self.start), end])
        safe = first + np.flatnonzero(rows["kind"][first:last] != RUN)
        count = -(-(self.bytes + ROW_BYTES * int(last - first)) // limit)
        wanted = first + (last - first) * np.arange(1, count) // count
        at = np.searchsorted(safe, wanted)
        places = np.unique(offsets[safe[at[at < len(safe)]]])
        cuts = [self.start, *(make_location(self.ref.number, int(place)) for place in places), self.stop]
        pairs = pairwise(sorted({each for each in cuts if self.start <= each <= self.stop}))
        return [SegmentPart(self.ref, start, stop) for start, stop in pairs]

    def count_published(self, index: Any) -> int:
        """The number of messages by the journal's own index, without decoding them."""
        rows = rows_array(index)
        offsets = rows["offset"]
        inside = np.isin(rows["kind"], (PUBLISH, RUN, ROUTE)) & (offsets >= offset_of(self.start))
        if self.inner_stop is not None:
            inside &= offsets < offset_of(self.stop)
        return int(inside.sum())
