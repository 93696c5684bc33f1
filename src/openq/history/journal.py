"""Reads a journal as Arrow batches, segment by segment.

files = JournalFiles(path)
tracker = MessageTracker()
for ref in files.segments():
    index = files.index(ref.number)
    context = tracker.context_for(ref, index)      # or bare_context(ref, index), see `needs_tracker`
    for batch in read_segment(ref, selection, index=index, context=context):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from openq.history.decode import decode_rows
from openq.history.segments import JournalFiles, SegmentBytes, SegmentRef
from openq.history.selection import Selection
from openq.history.tracker import MessageTracker, SegmentContext, bare_context
from openq.journal.index import SegmentIndex

__all__ = [
    "JournalFiles",
    "MessageTracker",
    "SegmentBytes",
    "SegmentContext",
    "SegmentRef",
    "bare_context",
    "needs_tracker",
    "read_segment",
]

_OFFSET = 0xFFFF_FFFF


def needs_tracker(selection: Selection) -> bool:
    """Whether the rows depend on earlier segments. Those of the table messages never do."""
    if selection.table != "events":
        return False
    return not {"message_id", "receive_count"}.isdisjoint(selection.read_columns)


def read_segment(
    ref: SegmentRef,
    selection: Selection,
    *,
    context: SegmentContext,
    start: int | None = None,
    stop: int | None = None,
    index: SegmentIndex | None = None,
) -> Iterator[pa.RecordBatch]:
    """The selected rows whose records begin in [start, stop), positions or offsets, in journal order.

    Raises JournalDamaged if bytes do not match their checksum, HistoryUnavailable if the segment is gone.
    Batches yielded before that are valid.
    """
    selection.validate()
    first = 0 if start is None else _offset(ref, start)
    end = ref.size if stop is None else min(ref.size, _offset(ref, stop))
    if index is None:
        directory = os.path.dirname(os.path.dirname(ref.path))
        index = JournalFiles(directory).index(ref.number)
    return decode_rows(ref, index, selection, first, end, context)


def _offset(ref: SegmentRef, at: int) -> int:
    """The offset of a position in the segment; positions before or after it become its beginning or end."""
    if at <= _OFFSET:
        return at
    return min(max(at - (ref.number << 32), 0), _OFFSET)
