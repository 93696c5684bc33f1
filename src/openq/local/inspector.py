"""Looking at messages without changing them: peek, search, browse, explain, history.

Long scans go over frozen references without the lock and take it only for short steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ..broker import bulk
from ..broker.explain import why_elsewhere
from ..broker.filters import needs_body
from ..broker.history import HistoryRange, PastMessage
from ..broker.interface import Filter, SearchResult, TimelineStep
from ..broker.scan_position import SECTIONS, ScannedEntry, ScanPosition, entries_after
from ..engine import admin
from ..engine.why import Why
from ..errors import MessageNotFoundError, QueueNotFound
from ..model import Delivery, Entry, QueueSettings
from .core import BrokerCore


class Inspector:
    """The `Inspect` role of the local broker."""

    def __init__(self, core: BrokerCore) -> None:
        self.damage = core.damage
        self._core = core
        self._engine = core.engine
        self._lock = core.lock
        self._guard = core.guard

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.advance()
            entries = admin.peek(self._engine, found, limit, rear)
        return self._core.with_bodies(entries)

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        """All entries in delivery order, with their bodies: for export and small queues."""
        with self._lock, self._guard:
            self._core.advance()
            entries = list(admin.browse(self._engine, self._core.queue(queue), state))
        return self._core.with_bodies(entries)

    def deliveries(self, queue: str) -> list[Delivery]:
        """The deliveries in flight, with consumer and deadline."""
        with self._lock, self._guard:
            self._core.advance()
            deliveries = list(self._core.queue(queue).leases.values())
        filled = {
            entry.seq: entry for entry in self._core.with_bodies([delivery.entry for delivery in deliveries])
        }
        return [
            Delivery(filled[d.entry.seq], d.number, d.delivered_ms, d.until_ms, d.count, d.consumer)
            for d in deliveries
            if d.entry.seq in filled
        ]

    def find(self, queue: str, message_id: str) -> Entry:
        with self._lock, self._guard:
            entry = self._engine.locate(self._core.queue(queue), message_id)
        for filled in self._core.with_bodies([entry]):
            return filled
        raise MessageNotFoundError(message_id, queue)  # set aside just now: its body cannot be read

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        """The live delivery of a message, for callers that know only its id."""
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.advance()
            return found.leases.get(self._engine.seq_of(found, message_id))

    def status(self, queue: str, message_id: str) -> str | None:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.advance()
            seq = self._engine.seq_of(found, message_id)
            return admin.status(found, seq) if seq else None

    def search(
        self,
        queue: str,
        filter: Filter,
        limit: int = 100,
        budget_s: float = 1.0,
        max_bytes: int | None = None,
    ) -> SearchResult:
        """By priority and sequence; stops at the limit, at `max_bytes` of bodies or when the time is up."""
        candidates = self._chunks(queue, filter)
        found = bulk.search(candidates, self._engine.id_of, filter, limit, budget_s, max_bytes)
        return SearchResult(self._core.with_bodies(found.entries), found.complete, found.scanned)

    def _chunks(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """Candidates for a filter, some hundred at a time, with bodies if the filter needs them."""
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.advance()
            if filter.ids is not None:
                seqs = [self._engine.seq_of(found, message_id) for message_id in filter.ids]
                if filter.state != "all":
                    seqs = [seq for seq in seqs if admin.status(found, seq) == filter.state]
                known = [found.find(seq) for seq in seqs if seq]
                candidates = iter([entry for entry in known if entry is not None])
            else:
                candidates = admin.scan(found, filter.state)
        loads = needs_body(filter)
        while part := list(islice(candidates, bulk.CHUNK)):
            if not loads:
                yield part
                continue
            for loadable in bulk.split_by_size(part):
                yield self._core.with_bodies(loadable)

    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """The matching entries as of now, some hundred at a time.

        With bodies only if the filter needs them.
        """
        return bulk.chosen(self._chunks(queue, filter), self._engine.id_of, filter)

    def why(self, queue: str, message_id: str) -> Why:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            now_ms = self._core.now_ms()
            self._engine.advance(now_ms)
            self._core.end_change()
            consumers = self._core.waiters.count_unselective(queue)
            why = admin.why(self._engine, found, message_id, now_ms, consumers)
        return why if why.code != "not_found" else why_elsewhere(self, queue, message_id) or why

    def past(self, queue: str, span: HistoryRange) -> list[PastMessage]:
        """The messages that were published to a queue, as they were published, as far as history is kept."""
        with self._lock, self._guard:
            number = self._core.queue(queue).number
        self._core.flush()
        return self._core.history.past(number, span)

    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]:
        with self._lock, self._guard:
            found = self._core.queue(queue)
        self._core.flush()
        return self._core.history.timeline(self._engine, found, message_id)

    def trace(self, message_id: str, queues: Sequence[str], budget_s: float) -> list[TimelineStep]:
        # The journal is one for all queues: the first one that exists will do.
        for name in queues:
            try:
                return self.timeline(name, message_id)
            except QueueNotFound:
                continue
        return []

    def lease(self, queue: str, seq: int) -> Delivery | None:
        """The live delivery of a sequence."""
        return self._core.queue(queue).leases.get(seq)

    def leases(self, queue: str, limit: int) -> list[Delivery]:
        with self._lock:
            return list(islice(self._core.queue(queue).leases.values(), limit))

    def leases_of(self, queue: str, seqs: Sequence[int]) -> dict[int, Delivery]:
        """The live deliveries of those that are in flight."""
        with self._lock:
            leases = self._core.queue(queue).leases
            return {seq: leases[seq] for seq in seqs if seq in leases}

    def walk(self, queue: str, state: str, after: ScanPosition | None) -> Iterator[ScannedEntry]:
        """Every entry with its state, in delivery order, as of now; bodies may be on disk only."""
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.advance()
            parts = [
                (number, admin.scan(found, section))
                for number, section in enumerate(SECTIONS)
                if state in (section, "all")
            ]
            max_priority = 0 if found.fifo else found.ready.max_priority
        return entries_after(parts, max_priority, after)

    def settings(self, queue: str) -> QueueSettings:
        with self._lock, self._guard:
            return self._core.queue(queue).settings

    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]:
        return self._core.with_bodies(entries)

    def id_of(self, seq: int) -> str:
        """The id of a message whose publisher chose none."""
        return f"{self._engine.id_prefix}{seq:012x}"

    def message_id(self, entry: Entry) -> str:
        return self._engine.id_of(entry)
