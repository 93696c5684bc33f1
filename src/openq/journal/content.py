"""What the journal knows of its records and snapshots: the only module here that imports the engine.

Everything else treats them as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from openq.engine.engine import Engine
from openq.engine.records import PUBLISH, ROUTE, RUN, decode
from openq.engine.records import assigned_seqs as assigned_seqs
from openq.engine.records import index_rows as index_rows
from openq.engine.replay import apply
from openq.engine.snapshot import decode as load_snapshot
from openq.engine.snapshot import live_locations as live_locations
from openq.engine.snapshot import oldest_segment

PUBLISHING = frozenset((PUBLISH, RUN, ROUTE))  # kinds of records that hold new messages


def oldest_needed_segment(snapshot: Sequence[bytes], records: Iterable[tuple[int, bytes]]) -> int:
    """The oldest segment with a message that is not settled, after a snapshot and the records behind it."""
    engine = Engine("")  # the prefix comes from the snapshot
    load_snapshot(snapshot, engine)
    for location, record in records:
        apply(engine, decode(record), location)
    return oldest_segment(engine)
