"""Events of the local broker, read from its records: the part `broker.events`.

With a journal, the position of an event is the location of its record and its number in the record. Only
durable records are read, so a crash never takes back an event, and its id is never used again. In memory, the
position is the number of the record since the first reader; records are counted only while events are read,
because publishing must cost nothing while nobody does.

A reader continues at an id that an earlier call returned. Its state (the block that it reads, names and ids
that it has seen) is kept under that id for some readers, so that the next page costs no seek.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from threading import Lock
from typing import Any, Protocol

from ..broker.events import EVENT_NAMES, Event, EventFilter, EventPage
from ..broker.record_events import EVENTS_OF_KIND, events_of
from ..engine import records as r
from ..engine.records import Record
from ..errors import InvalidSetting, OpenQError
from ..journal.file_journal import Journal
from ..journal.tail import RecordTail
from .core import BrokerCore
from .event_histories import EventHistories, open_histories
from .event_names import JournalLookup, MemoryLookup, RecordNames

MAX_PAGE_BYTES = 4 << 20  # of records that one page reads, wanted or not
_MAX_READERS = 16  # whose state is kept between calls
_PAGE_RECORDS = 1_000  # in memory: records taken under one hold of the lock
_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,16})-([0-9a-f]{1,8})")
# Single records about one queue: the filter can leave them out before they are decoded.
_ONE_QUEUE = frozenset(EVENTS_OF_KIND) - {r.ROUTE, r.MOVE, r.EVENT, r.QUEUE}
# Records that teach names and ids: they are decoded whatever the filter says.
_TEACHING = frozenset((r.ROUTE, r.MOVE, r.EDIT, r.COPY, r.QUEUE, r.CHECKPOINT))
_ENDING = frozenset((r.ACK, r.REMOVE, r.MOVE, r.PURGE, r.UNQUEUE))
_HAS_OPTIONS = 1
_ALL = 0xFFFF_FFFF  # all events of a record were seen

Position = tuple[int, int]  # the record, and the number of the last event seen in it


class RecordSource(Protocol):
    """Records in order. A record of a journal is bytes, one in memory a tuple."""

    @property
    def position(self) -> int:
        """All later records have this position or a greater one."""

    @property
    def skipped(self) -> bool:
        """Whether records were left out since `clear_skipped`: they are not kept any more, or damaged."""

    def clear_skipped(self) -> None: ...
    def next_records(self) -> list[tuple[int, bytes]] | list[tuple[int, Record]]: ...
    def release(self) -> None: ...


class LocalEvents:
    """The `Events` role of the local broker. The calls of a reader may read the disk."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._engine = core.engine
        self._store: _JournalStore | _MemoryStore = (
            _MemoryStore(core) if core.journal is None else _JournalStore(core, core.journal)
        )
        first = core.engine.id_prefix[:8]
        self._histories = (
            EventHistories(first)
            if core.journal is None
            else open_histories(core.journal.path, first, core.journal.durable_location, core.journal.io)
        )
        self._mutex = Lock()
        self._readers: dict[str, _Reader] = {}  # by the id at which each continues; the oldest first

    def end(self) -> str:
        return self._id(self._store.end(), 0)

    def read(self, after: str | None, limit: int, wanted: EventFilter) -> EventPage:
        self._core.check_open()
        reader = None
        if after is not None:
            with self._mutex:
                reader = self._readers.pop(after, None)
        if reader is None:
            reader = self._open(after)
        page = reader.page(max(1, limit), wanted)
        if page.is_end:
            reader.release()
        with self._mutex:
            self._readers[page.next] = reader
            if len(self._readers) > _MAX_READERS:
                del self._readers[next(iter(self._readers))]
        return page

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(callback)

    def add(self, event: str, queue: str, detail: Mapping[str, Any]) -> None:
        core = self._core
        if event not in EVENT_NAMES:
            raise InvalidSetting(f"{event!r} is not the name of an event")
        with core.lock, core.guard:
            if core.is_closed:
                return
            found = core.engine.queues.get(queue)
            number = 0 if found is None else found.number
            try:
                core.require_settings_room(detail)
                core.engine.log_record((r.EVENT, core.now_ms(), number, 0, event, queue, dict(detail)))
            except OpenQError:
                pass  # the disk is full, where the reserve is for acks, or the journal has failed

    # -- ids and readers

    def first_ms(self, position: int) -> int | None:
        """The time of the first event at or after a position of the journal; None: there is none."""
        after: str | None = self._id(position, 0) if position else None
        while True:
            page = self.read(after, 1, EventFilter())
            if page.events:
                return page.events[0].time_ms
            if page.is_end:
                return None
            after = page.next

    def _id(self, position: int, number: int) -> str:
        return f"{self._histories.name_at(position, number)}-{position:x}-{number:x}"

    def _open(self, after: str | None) -> _Reader:
        position, number, is_foreign = 0, 0, False
        if after is not None:
            parsed = _ID.fullmatch(after)
            if parsed is None:
                raise InvalidSetting(f"{after[:60]!r} is not the id of an event here")
            position, number = int(parsed[2], 16), int(parsed[3], 16)
            try:
                end = self._histories.end_of(parsed[1])
            except KeyError:
                position, number, is_foreign = 0, 0, True  # the data was replaced: its events are gone
            else:
                if end is not None and (position, number) > (end, 0):
                    position, number, is_foreign = end, 0, True  # a backup from before it was restored
                elif position > self._store.end():
                    raise InvalidSetting(
                        f"{after!r} is later than the last event: the id is of another store"
                    )
        reader = _Reader(self._store.source(position), self._store.names(), self._id, (position, number))
        if is_foreign:
            reader.is_foreign = True
            reader.gap_ms = self._core.now_ms()
        return reader


class _Reader:
    """One reader at one position. Used by one thread at a time."""

    def __init__(
        self, source: RecordSource, names: RecordNames, id_at: Callable[[int, int], str], after: Position
    ) -> None:
        self._source = source
        self._names = names
        self._id_at = id_at
        self._after = after  # events up to this one are left out
        self._records: list[tuple[int, Any]] = []  # of the current block, with the next one last
        self._accepted: dict[int, bool] = {}  # queue numbers, for the filter of the last page
        self._wanted = EventFilter()
        self.gap_ms: int | None = None  # events before this time are not kept, and no page said so yet
        self.is_foreign = False  # the gap ends at the first event of this store, or at `gap_ms`

    def release(self) -> None:
        self._source.release()

    def page(self, limit: int, wanted: EventFilter) -> EventPage:
        if wanted != self._wanted:
            self._wanted = wanted
            self._accepted = {}
        events: list[Event] = []
        is_end = False
        size = 0
        gap_until_ms, self.gap_ms = self.gap_ms, None
        while len(events) < limit and size < MAX_PAGE_BYTES:
            if not self._records:
                self._records = list(reversed(self._source.next_records()))
                if not self._records:
                    is_end = True
                    break
            position, data = self._records[-1]
            record = data if isinstance(data, tuple) else None
            if self._source.skipped:
                self._source.clear_skipped()
                gap_ms = record[1] if record is not None else r.HEAD.unpack_from(data)[5]
                if events:
                    self.gap_ms = gap_ms  # of the page that begins here
                    break
                gap_until_ms = gap_ms
            size += 100 if record is not None else len(data)
            if record is None and not self._is_needed(data):
                self._pass(position)
                continue
            self._take(position, r.decode(data) if record is None else record, events, limit)
        if self.is_foreign and events:
            gap_until_ms = events[0].time_ms
        self.is_foreign = False
        return EventPage(events, self._next(is_end), is_end, gap_until_ms)

    def _next(self, is_end: bool) -> str:
        position, number = self._after
        if is_end:
            position, number = max(self._after, (self._source.position, 0))
            self._after = position, number
        return self._id_at(position, number)

    def _is_needed(self, data: bytes) -> bool:
        """Whether a record must be decoded, from its first bytes."""
        kind = data[0]
        names = EVENTS_OF_KIND.get(kind)
        if kind in _TEACHING or (kind == r.PUBLISH and data[2] & _HAS_OPTIONS):
            return True
        if kind in _ENDING and self._names.needs_settled:
            return True
        if names is None:
            return False
        if self._wanted.events and not names & self._wanted.events:
            return False
        return kind not in _ONE_QUEUE or self._accepts(r.HEAD.unpack_from(data)[3])

    def _accepts(self, number: int) -> bool:
        known = self._accepted.get(number)
        if known is None:
            known = self._accepted[number] = self._wanted.accepts_queue(self._names.queue_name(number))
        return known

    def _pass(self, position: int) -> None:
        self._records.pop()
        self._after = position, _ALL

    def _take(self, position: int, record: Record, events: list[Event], limit: int) -> None:
        """Add the wanted events of a record; its rest stays for the next page if the limit is reached."""
        names = self._names
        names.location = position
        after, seen = self._after
        first = seen + 1 if after == position else 1
        if first == 1:
            names.learn(record)
        wanted = self._wanted
        kind = record[0]
        possible = EVENTS_OF_KIND.get(kind)
        if (
            possible is not None
            and (not wanted.events or possible & wanted.events)
            and (kind not in _ONE_QUEUE or self._accepts(record[2]))
        ):
            number = first - 1
            for event in events_of(record, names, lambda number: self._id_at(position, number), first):
                number += 1
                if wanted.accepts(event):
                    events.append(event)
                    if len(events) >= limit:
                        self._after = position, number
                        return
        names.forget(record)
        self._pass(position)


# -- the two kinds of records


class _JournalStore:
    def __init__(self, core: BrokerCore, journal: Journal) -> None:
        self._core = core
        self._journal = journal
        self._lookup = JournalLookup(core.engine, journal, core.report_damage)

    def end(self) -> int:
        return self._journal.durable_location

    def source(self, position: int) -> RecordSource:
        return _JournalSource(self._journal.tail(position, self._core.report_damage))

    def names(self) -> RecordNames:
        return RecordNames(self._core.engine, self._lookup, self._core.deleted_names)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        journal = self._journal
        with journal.lock:
            journal.commit_listeners = (*journal.commit_listeners, callback)

        def end() -> None:
            with journal.lock:
                listeners = list(journal.commit_listeners)
                if callback in listeners:
                    listeners.remove(callback)
                journal.commit_listeners = tuple(listeners)

        return end


class _JournalSource:
    def __init__(self, tail: RecordTail) -> None:
        self._tail = tail

    @property
    def position(self) -> int:
        return self._tail.location

    @property
    def skipped(self) -> bool:
        return self._tail.skipped

    def clear_skipped(self) -> None:
        self._tail.skipped = False

    def next_records(self) -> list[tuple[int, bytes]]:
        return self._tail.next_block()

    def release(self) -> None:
        self._tail.release()


class _MemoryStore:
    """The last records, numbered from 1.

    The deque itself has no numbers. `_total` is the number of the record `_last`; newer records are counted
    by looking for it from the end. While somebody watches, every record is counted.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._records = core.memory_records
        self._append = core.memory_records.append
        self._total = 0
        self._last: Record | None = None
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._lookup = MemoryLookup(core.engine, self._snapshot)

    def _snapshot(self) -> Iterable[Record]:
        with self._core.lock:
            return list(self._records)

    def _count(self) -> int:
        """Lock held. The number of the newest record."""
        records = self._records
        if records and records[-1] is not self._last:
            new = 0
            for record in reversed(records):
                if record is self._last:
                    break
                new += 1
            else:
                # The last one that was counted is dropped: at least one more was dropped before it came here.
                new += 1 if self._last is not None else 0
            self._total += new
            self._last = records[-1]
        return self._total

    def end(self) -> int:
        with self._core.lock:
            return self._count() + 1

    def source(self, position: int) -> RecordSource:
        return _MemorySource(self, position)

    def names(self) -> RecordNames:
        return RecordNames(self._core.engine, self._lookup, self._core.deleted_names)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        with self._core.lock:
            self._watchers = (*self._watchers, callback)
            self._core.engine.log = self._log

        def end() -> None:
            with self._core.lock:
                watchers = list(self._watchers)
                if callback in watchers:
                    watchers.remove(callback)
                self._watchers = tuple(watchers)
                if not watchers:
                    self._core.engine.log = self._append

        return end

    def _log(self, record: Record) -> None:
        """Lock held."""
        self._append(record)
        for watcher in self._watchers:
            watcher()

    def read(self, position: int) -> tuple[int, list[Record]]:
        """Records from a position on, and the position of the first of them."""
        with self._core.lock:
            first = self._count() - len(self._records) + 1
            start = max(position, first)
            return start, list(islice(self._records, start - first, start - first + _PAGE_RECORDS))


class _MemorySource:
    def __init__(self, store: _MemoryStore, position: int) -> None:
        self._store = store
        self._from_oldest = position == 0
        self.position = max(position, 1)
        self.skipped = False

    def clear_skipped(self) -> None:
        self.skipped = False

    def next_records(self) -> list[tuple[int, Record]]:
        start, records = self._store.read(self.position)
        if start > self.position and not self._from_oldest:
            self.skipped = True
        self._from_oldest = False
        self.position = start + len(records)
        return list(enumerate(records, start))

    def release(self) -> None:
        pass
