"""What records say only by number: names of queues, ids of messages.

Most ids follow from the sequence number of a message. The others (chosen by a publisher, or kept by a message
that moved) are in the record of the arrival. A reader that follows the records has seen that record, and
remembers such ids until the message leaves. For messages that arrived before the reader began, the engine is
asked, and then the segment in which the sequence was assigned. If that segment is not kept any more, the id
that follows from the number is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Protocol

from ..engine import records as r
from ..engine.engine import Engine
from ..engine.records import Record
from ..errors import JournalDamaged
from ..journal.file_journal import Journal
from ..journal.format import HEADER_BYTES, make_location, segment_of
from ..journal.tail import RecordTail
from ..model import DeliveryOptions

MAX_IDS = 100_000  # that a reader remembers; for older messages it looks them up
_MAX_SEGMENTS = 4  # whose ids are remembered for messages that arrived before a reader began
_SETTLED = (r.ACK, r.REMOVE)


class Lookup(Protocol):
    """The past, for what a reader has not seen. None: unknown."""

    def message_id(self, number: int, seq: int) -> str | None: ...
    def queue_name(self, number: int, location: int) -> str | None: ...


class RecordNames:
    """Names and ids at one position of the records. It is fed with every record, in order."""

    def __init__(self, engine: Engine, lookup: Lookup, deleted: dict[int, str]) -> None:
        self._engine = engine
        self._lookup = lookup
        self._deleted = deleted
        self._names: dict[int, str] = {}
        self._ids: dict[int, tuple[int, str]] = {}  # sequence -> queue number, id; in order of arrival
        self._first_seq: int | None = None  # all ids from this sequence on are known
        self._found: dict[int, str] = {}  # ids that were looked up
        self.location = 0  # of the current record

    @property
    def needs_settled(self) -> bool:
        """Whether records that only end messages must be shown to `forget`."""
        return bool(self._ids)

    def queue_name(self, number: int) -> str:
        name = self._names.get(number) or self._deleted.get(number)
        if name is None:
            queue = self._engine.numbered.get(number)
            found = queue.name if queue is not None else self._lookup.queue_name(number, self.location)
            name = found or f"(deleted queue {number})"
            if found is not None:
                self._names[number] = name
        return name

    def message_id(self, number: int, seq: int) -> str:
        own = self._ids.get(seq)
        if own is not None:
            return own[1]
        if self._first_seq is not None and seq >= self._first_seq:
            return f"{self._engine.id_prefix}{seq:012x}"
        found = self._found.get(seq)
        if found is None:
            found = self._look_up(number, seq)
            if len(self._found) >= MAX_IDS:
                self._found.clear()
            self._found[seq] = found
        return found

    def _look_up(self, number: int, seq: int) -> str:
        queue = self._engine.numbered.get(number)
        if queue is not None:
            delivery = queue.leases.get(seq)
            entry = delivery.entry if delivery is not None else queue.delayed.get(seq)
            if entry is not None:
                return self._engine.id_of(entry)
        return self._lookup.message_id(number, seq) or f"{self._engine.id_prefix}{seq:012x}"

    def learn(self, record: Record) -> None:
        """Before the events of the record are made."""
        kind = record[0]
        if kind in (r.PUBLISH, r.RUN):
            self._assigned(record[3])
            if kind == r.PUBLISH:
                self._keep_id(record[2], record[3], record[7])
        elif kind == r.ROUTE:
            for number, seq in record[8]:
                self._assigned(seq)
                self._keep_id(number, seq, record[7])
        elif kind == r.MOVE:
            for old, to, new in record[6]:
                self._assigned(new)
                self._add(new, to, self.message_id(record[2], old))
        elif kind in (r.EDIT, r.COPY):
            self._keep_id(record[2], record[3], record[8])
        elif kind == r.QUEUE:
            self._names[record[2]] = record[4]
        elif kind == r.CHECKPOINT:
            self._names.update((number, name) for number, name, *_ in record[4]["queues"])
            self._assigned(record[4]["seq"])

    def forget(self, record: Record) -> None:
        """After all events of the record were made."""
        kind = record[0]
        if kind in _SETTLED:
            for seq in record[-1]:
                self._ids.pop(seq, None)
        elif kind == r.MOVE:
            for old, _, _ in record[6]:
                self._ids.pop(old, None)
        elif kind in (r.PURGE, r.UNQUEUE):
            if kind == r.UNQUEUE:
                self._names.pop(record[2], None)
            if kind == r.UNQUEUE or not record[3]:
                self._ids = {seq: own for seq, own in self._ids.items() if own[0] != record[2]}

    def _assigned(self, seq: int) -> None:
        if self._first_seq is None:
            self._first_seq = seq

    def _keep_id(self, number: int, seq: int, options: DeliveryOptions | None) -> None:
        if options is not None and options.id is not None:
            self._add(seq, number, options.id)

    def _add(self, seq: int, number: int, own: str) -> None:
        self._ids[seq] = (number, own)
        if len(self._ids) > MAX_IDS:
            oldest = next(iter(self._ids))
            del self._ids[oldest]
            # Sequences grow, so all that were dropped so far are below this one.
            self._first_seq = max(self._first_seq or 0, oldest + 1)


class MemoryLookup:
    """The records in memory, all of them."""

    def __init__(self, engine: Engine, records: Callable[[], Iterable[Record]]) -> None:
        self._engine = engine
        self._records = records
        self._ids: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._until_seq = 0

    def message_id(self, number: int, seq: int) -> str | None:
        if seq >= self._until_seq:
            self._scan()
        return self._ids.get(seq)

    def queue_name(self, number: int, location: int) -> str | None:
        if number not in self._names:
            self._scan()
        return self._names.get(number)

    def _scan(self) -> None:
        names = RecordNames(self._engine, _NOTHING, {})
        self._until_seq = self._engine.next_seq
        self._ids.clear()
        for record in self._records():
            names.learn(record)
            for queue, seq in r.touched_messages(record):
                self._ids[seq] = names.message_id(queue, seq)
            if record[0] == r.QUEUE:
                self._names[record[2]] = record[4]


class _NoLookup:
    def message_id(self, number: int, seq: int) -> str | None:
        return None

    def queue_name(self, number: int, location: int) -> str | None:
        return None


_NOTHING = _NoLookup()


class _SegmentNames:
    """The ids and names that the records of one segment brought. It reads on when the segment has grown."""

    def __init__(self, tail: RecordTail, number: int) -> None:
        self._tail = tail
        self._number = number
        self.ids: dict[int, str | int] = {}  # of a message that moved: the sequence that it had before
        self.names: dict[int, str] = {}

    def read(self) -> None:
        end = make_location(self._number + 1, 0)
        while self._tail.location < end:
            block = self._tail.next_block()
            if not block:
                break
            for location, data in block:
                if location < end:
                    self._add(data)
        self._tail.release()

    def _add(self, data: bytes) -> None:
        kind = data[0]
        if kind == r.PUBLISH and data[2]:
            record = r.decode(data)
            self._keep_id(record[3], record[7])
        elif kind == r.ROUTE:
            record = r.decode(data)
            for _, seq in record[8]:
                self._keep_id(seq, record[7])
        elif kind in (r.EDIT, r.COPY) and data[2]:
            record = r.decode(data)
            self._keep_id(record[3], record[8])
        elif kind == r.MOVE:
            self.ids.update((new, old) for old, _, new in r.decode(data)[6])
        elif kind == r.QUEUE:
            record = r.decode(data)
            self.names[record[2]] = record[4]
        elif kind == r.CHECKPOINT:
            self.names.update((number, name) for number, name, *_ in r.decode(data)[4]["queues"])

    def _keep_id(self, seq: int, options: DeliveryOptions | None) -> None:
        if options is not None and options.id is not None:
            self.ids[seq] = options.id


class JournalLookup:
    """The segments of the journal. Each is read once, when something in it is asked for."""

    def __init__(self, engine: Engine, journal: Journal, damaged: Callable[[JournalDamaged], None]) -> None:
        self._engine = engine
        self._journal = journal
        self._damaged = damaged
        self._mutex = Lock()
        self._first_seqs: dict[int, int] = {}  # segment -> the next sequence when it began
        self._segments: dict[int, _SegmentNames] = {}  # least recently used first

    def message_id(self, number: int, seq: int) -> str | None:
        with self._mutex:
            while True:
                found = self._find(seq)
                if not isinstance(found, int):
                    return found or f"{self._engine.id_prefix}{seq:012x}"
                seq = found

    def _find(self, seq: int) -> str | int | None:
        """The id, or the sequence before a move."""
        for segment in reversed(self._journal.segments()):
            first = self._first_seq(segment.number)
            if first is not None and first <= seq:
                return self._names_of(segment.number).ids.get(seq)
        # Its segment was freed: if the message was live then, it was copied forward.
        for names in self._segments.values():
            if seq in names.ids:
                return names.ids[seq]
        return None

    def queue_name(self, number: int, location: int) -> str | None:
        with self._mutex:
            return self._names_of(segment_of(location)).names.get(number)

    def _first_seq(self, segment: int) -> int | None:
        known = self._first_seqs.get(segment)
        if known is None:
            tail = self._journal.tail(make_location(segment, HEADER_BYTES), self._damaged)
            block = tail.next_block()
            if not block or segment_of(block[0][0]) != segment or block[0][1][0] != r.CHECKPOINT:
                return None
            known = self._first_seqs[segment] = r.decode(block[0][1])[4]["seq"]
        return known

    def _names_of(self, segment: int) -> _SegmentNames:
        names = self._segments.pop(segment, None)
        if names is None:
            tail = self._journal.tail(make_location(segment, HEADER_BYTES), self._damaged)
            names = _SegmentNames(tail, segment)
            while len(self._segments) >= _MAX_SEGMENTS:
                del self._segments[next(iter(self._segments))]
        names.read()
        self._segments[segment] = names
        return names
