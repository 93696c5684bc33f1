"""From a segment's bytes and its index to Arrow batches, for all rows of a batch at once.

The index says where everything is; numpy and Arrow do the rest. Nothing here runs once per message, except
for distinct properties and for hashes of bodies if they are selected. `decode_messages.py` and
`decode_events.py` decode one table each, `decode_table.py` has what they share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from openq.history.decode_events import EventDecoder
from openq.history.decode_messages import MessageDecoder
from openq.history.decode_table import SegmentSource
from openq.history.segments import SegmentRef, rows_array
from openq.history.selection import Selection
from openq.history.tracker import SegmentContext
from openq.journal.index import SegmentIndex


def decode_rows(
    ref: SegmentRef, index: SegmentIndex, selection: Selection, start: int, stop: int, context: SegmentContext
) -> Iterator[pa.RecordBatch]:
    """The selected rows of a segment whose records begin in [start, stop), in order."""
    rows = rows_array(index)
    low, high = np.searchsorted(rows["offset"], (start, stop))
    maker = EventDecoder if selection.table == "events" else MessageDecoder
    with SegmentSource(ref) as source:
        yield from maker(ref, source, selection, context).batches(rows, int(low), int(high))
