"""What the readers of events of one process remember: their places in the streams, and ids of messages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from ..broker.events import EventFilter

_MAX_READERS = 8  # whose places in the streams are remembered
_MAX_IDS = 50_000

# Stream -> where to go on, and whether all entries before it were read: an entry that is found later and
# belongs before it was late.
Places = dict[bytes, tuple[str, bool]]


@dataclass
class ReaderState:
    """What the readers of one process remember. Used by several threads."""

    places: OrderedDict[tuple[str, EventFilter], Places] = field(default_factory=OrderedDict)
    ids: dict[tuple[bytes, int], str] = field(default_factory=dict)  # '': it follows from the sequence
    lock: threading.Lock = field(default_factory=threading.Lock)

    def place(self, after: str | None, wanted: EventFilter) -> Places:
        """Where a reader that has read until `after` is in each stream. Readers with other filters may have
        read further in some."""
        with self.lock:
            return {} if after is None else self.places.get((after, wanted), {})

    def remember(self, after: str, wanted: EventFilter, places: Places) -> None:
        with self.lock:
            self.places[after, wanted] = places
            self.places.move_to_end((after, wanted))
            if len(self.places) > _MAX_READERS:
                self.places.popitem(last=False)

    def learn_id(self, queue_key: bytes, seq: int, own_id: str) -> None:
        if len(self.ids) >= _MAX_IDS:
            with self.lock:
                for key in list(self.ids)[: _MAX_IDS // 2]:
                    del self.ids[key]
        self.ids[queue_key, seq] = own_id
