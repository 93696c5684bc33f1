"""Reads the events of a store: merges its streams in the order of their positions, up to the present.

No row is added to a millisecond that has passed on every node, so a page ends there. A reader that continues
where this process stopped before begins each stream exactly after the last entry that it has read. Then an
entry that is found late, because a clock was set back, is noticed: the page reports a gap.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..broker.events import DEAD_LETTERED, MOVED, PUBLISHED, REDRIVEN, Event, EventFilter, EventPage
from ..broker.history import PastMessage
from ..errors import InvalidSetting, StoreUnavailable
from .event_entries import (
    HISTORY_EVENTS,
    OF_MESSAGE,
    OF_QUEUE,
    OF_STORE,
    Arrival,
    Happening,
    Position,
    parse_history,
    parse_id,
    parse_store,
)
from .event_places import ReaderState
from .event_scripts import DELETED_QUEUES, OWN_IDS, WATCHED_INFO
from .event_streams import EventStream, find_first, find_starts, load_first_pages, replies_of, store_stream
from .records import MALFORMED, is_from_elsewhere, unpack_record
from .registry import CachedQueue
from .store import RedisStore
from .stream_positions import QueueStreams, read_id, read_queue_streams, read_script, stream_keys

_MOVES = frozenset((DEAD_LETTERED, REDRIVEN, MOVED))
_SCANNED = 5_000  # entries that one page examines, however few of them the filter accepts
_SCANNED_BYTES = 8 << 20
_IDS_AT_ONCE = 500
_RECENT_MS = 1_000  # nothing so recent was dropped, except from streams that have new entries
_SLACK_MS = 1_000  # an idle reader stays this much behind: clocks may differ after a failover
_CLOCK_MS = 60_000
_SETTLE_S = 0.05
_STUB = ("lm", "lh", "ek", "eh", "c")  # fields of a deleted queue, see `drop` in lua/7_queues.lua
_CONFIRM_MS = 60_000  # how long the keys live that readers write


class _Found(NamedTuple):
    """An event that the page will have, as far as its entry tells it."""

    position: Position
    queue: str
    queue_key: bytes
    happening: Happening
    message: PastMessage | None = None


class EventReader:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._state = store.state.reader

    @property
    def _tag(self) -> str:
        return self._store.registry.id_prefix[:6]

    def end_ms(self) -> int:
        """The millisecond before which no more events come: the earliest on the clocks of all nodes."""
        return min(self._times())

    def _times(self) -> list[int]:
        store = self._store
        if store.state.is_virtual:
            return [store.now_ms()]
        keys = [store.registry.docs_key, *[view.key for view in list(store.registry.queues.values())]]
        try:
            keys = store.calls.one_key_per_node(keys)
        except StoreUnavailable:
            pass  # the calls find the nodes again
        times = replies_of(store.calls, [(key, ("TIME",)) for key in keys])
        return [int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in times]

    def wait_for(self, ms: int) -> int:
        """Wait until a millisecond has passed, if that is soon. Returns the new end."""
        store = self._store
        end_ms = self.end_ms()
        until_s = time.monotonic() + _SETTLE_S
        while end_ms <= ms and not store.state.is_virtual and time.monotonic() < until_s:
            store.calls.pause(min((ms - end_ms + 1) / 1000, _SETTLE_S))
            end_ms = self.end_ms()
        return end_ms

    def end(self) -> str:
        """All events before the call are before it; so the current millisecond has to pass."""
        self._store.state.check_open()
        if self._store.state.is_virtual:
            return Position(self._store.now_ms()).id(self._tag)
        newest_ms = max(self._times())
        return Position(min(self.wait_for(newest_ms), newest_ms + 1)).id(self._tag)

    def read(self, after: str | None, limit: int, wanted: EventFilter) -> EventPage:
        self._store.state.check_open()
        page, newest_ms = self._read(after, limit, wanted, self.end_ms())
        if newest_ms and len(page.events) < limit:
            # These changes are done, so they must be readable; only their millisecond has not passed.
            end_ms = self.wait_for(newest_ms)
            later, _ = self._read(page.next, limit - len(page.events), wanted, end_ms)
            gaps = [gap_ms for gap_ms in (page.gap_until_ms, later.gap_until_ms) if gap_ms is not None]
            page = replace(later, events=page.events + later.events, gap_until_ms=max(gaps, default=None))
        return page

    def _read(self, after: str | None, limit: int, wanted: EventFilter, end_ms: int) -> tuple[EventPage, int]:
        """The events before `end_ms`, and the time of the newest that is later, 0 if none is."""
        store = self._store
        # After the time was read: a queue with events before it is found.
        store.refresh()
        page = _Page(self, after, wanted, end_ms)
        with store.calls.separate_writes(forget=True):
            return page.read(limit), page.newest_ms

    # -- parts of a page ----------------------------------------------------------------------

    def start_of(self, after: str | None, end_ms: int) -> tuple[Position, bool]:
        """Where to begin, and whether the id is of a store that is gone."""
        if after is None:
            return Position(0), False
        store, position = parse_id(after)
        if position.ms > end_ms + _CLOCK_MS and not self._store.state.is_virtual:
            raise InvalidSetting(f"{after[:80]!r} is not the id of an event of this store")
        # Redis was emptied or replaced: all events of its successor are later.
        return (position, False) if store == self._tag else (Position(0), True)

    def message_ids(self, found: Iterable[_Found]) -> dict[tuple[bytes, int], str]:
        """The own ids of the messages; empty where the id follows from the sequence."""
        known: dict[tuple[bytes, int], str] = {}
        missing: dict[bytes, list[int]] = {}
        ids = self._state.ids
        for each in found:
            key, seq = each.queue_key, each.happening.seq
            if not seq or each.happening.own_id is not None or (key, seq) in known:
                continue
            own_id = ids.get((key, seq))
            known[key, seq] = own_id or ""
            if own_id is None:
                missing.setdefault(key, []).append(seq)
        for key, seqs in missing.items():
            for seq, own_id in self._read_ids(key, seqs).items():
                known[key, seq] = own_id
            for seq in seqs:
                self._state.learn_id(key, seq, known[key, seq])
        return known

    def _read_ids(self, queue_key: bytes, seqs: list[int]) -> dict[int, str]:
        head = queue_key[:-1]
        found: dict[int, str] = {}
        while seqs:
            keys = (head + b"m", head + b"h", head + b"x")
            reply = self._store.calls.call(
                queue_key, *read_script(OWN_IDS, keys, *seqs[:_IDS_AT_ONCE]), idempotent=True
            )
            for at in range(1, len(reply), 2):
                found[int(reply[at])] = reply[at + 1].decode("utf-8", "replace")
            seqs = seqs[int(reply[0]) :]
        return found

    def messages(self, found: Sequence[_Found]) -> dict[int, PastMessage]:
        """The messages of queues without a history that are still there, by their place in `found`."""
        wanted = [
            (at, each)
            for at, each in enumerate(found)
            if each.happening.event == PUBLISHED and each.message is None
        ]
        commands: list[tuple[bytes, tuple[bytes | str | int, ...]]] = []
        for _, each in wanted:
            key, seq = each.queue_key[:-1] + b"m", each.happening.seq
            commands.append((key, ("XRANGE", key, seq, seq)))
        past: dict[int, PastMessage] = {}
        for (at, _), entries in zip(wanted, replies_of(self._store.calls, commands), strict=True):
            for id, fields in entries:
                message = _past_message(read_id(id), fields[1])
                if message is not None:
                    past[at] = message
        return past

    def confirm(self, streams: Iterable[EventStream]) -> None:
        """Wait until the entries that were read have the copies that the profile requires.

        WAIT covers what was written before an own write to the same node.
        """
        calls = self._store.calls
        queue_keys = calls.one_key_per_node({stream.queue_key for stream in streams})
        for key in queue_keys:
            key = key.rpartition(b":")[0] + b":ev"
            calls.call(key, "SET", key, "1", "PX", _CONFIRM_MS, idempotent=True)
        calls.wait_for_copies()

    @property
    def store(self) -> RedisStore:
        return self._store

    @property
    def state(self) -> ReaderState:
        return self._state


class _Page:
    """One call of `read`."""

    def __init__(self, reader: EventReader, after: str | None, wanted: EventFilter, end_ms: int) -> None:
        self._reader = reader
        self._store = reader.store
        self._calls = reader.store.calls
        self._registry = reader.store.registry
        self._tag = self._registry.id_prefix[:6]
        self._wanted = wanted
        self._end_ms = end_ms
        self._after, is_new_store = reader.start_of(after, end_ms)
        self._is_resumed = after is not None and not is_new_store
        self._gap_ms = end_ms if is_new_store else 0
        self._is_new_store = is_new_store
        self._places = reader.state.place(after, wanted)
        self._found: list[_Found] = []
        self._read_streams: set[EventStream] = set()
        self._scanned = self._scanned_bytes = 0
        self.newest_ms = 0  # of the entries that were seen and are not readable yet
        names = wanted.events
        self._wants_published = not names or PUBLISHED in names
        self._wants_history = wanted.messages is None and (not names or not names.isdisjoint(HISTORY_EVENTS))
        self._wants_moves = wanted.messages is None and (not names or not names.isdisjoint(_MOVES))

    def read(self, limit: int) -> EventPage:
        streams = self._streams()
        find_starts(self._calls, streams, self._places, self._after)
        is_cluster = self._store.address.kind == "cluster"
        active = find_first(self._calls, streams, is_cluster)
        load_first_pages(self._calls, active)
        last = self._merge(active, limit)
        if self._is_resumed:
            self._check_kept(streams, active)
        if self._read_streams and self._store.is_durable:
            self._reader.confirm(self._read_streams)
        events = self._events()
        if last is None:
            consumed = self._found[-1].position if self._found else Position(0)
            passed_ms = max(self._end_ms - _SLACK_MS, min(self._gap_ms, self._end_ms), 0)
            following = max(self._after, consumed, Position(passed_ms))
        else:
            following = last
        next_id = following.id(self._tag)
        if last is None:
            for stream in streams:
                stream.is_exact = True
        places = {**self._places, **{each.key: (each.start, each.is_exact) for each in streams}}
        self._reader.state.remember(next_id, self._wanted, places)
        if self._is_new_store and events:
            self._gap_ms = events[0].time_ms
        return EventPage(events, next_id, last is None, self._gap_ms or None)

    # -- which streams ------------------------------------------------------------------------

    def _streams(self) -> list[EventStream]:
        streams = [store_stream(self._store.address.prefix)]
        wanted = self._wanted
        for view in list(self._registry.queues.values()):
            if wanted.accepts_queue(view.name):
                streams += self._of_queue(view.name, view.number, view.key, view.settings.history_ms > 0)
            elif self._wants_moves:
                _, history = stream_keys(view)
                streams.append(
                    EventStream(history, OF_QUEUE, view.number, view.name, view.key, moves_only=True)
                )
        return streams + self._of_deleted(streams[0])

    def _of_queue(self, name: str, number: int, key: bytes, has_history: bool) -> list[EventStream]:
        found = []
        head = key[:-1]
        if self._wants_published and has_history:
            found.append(EventStream(head + b"m", OF_MESSAGE, number, name, key))
        # Without a history, published messages are among the events.
        if self._wants_history or (self._wants_published and not has_history):
            found.append(EventStream(head + b"h", OF_QUEUE, number, name, key, has_history=has_history))
        return found

    def _of_deleted(self, stream: EventStream) -> list[EventStream]:
        """The streams of queues that were deleted after the requested id, as long as they are kept; also of
        those whose deletion is not readable yet."""
        deleted: dict[int, tuple[str, int]] = {}
        start, _ = self._places.get(stream.key, (str(self._after.ms), False))
        while start:
            asked = read_script(DELETED_QUEUES, [stream.key], start)
            reply = self._calls.call(stream.key, *asked, idempotent=True)
            for at in range(1, len(reply), 2):
                entry = _parsed_store(reply[at + 1])
                if entry is not None and (self._wants_moves or self._wanted.accepts_queue(entry.queue)):
                    deleted[entry.number] = entry.queue, read_id(reply[at])[0]
            start = reply[0].decode()
        keys = [self._registry.key_of(number) for number in deleted]
        facts = replies_of(self._calls, [(key, ("HMGET", key, *_STUB)) for key in keys])
        found: list[EventStream] = []
        for (number, (name, ms)), key, fields in zip(deleted.items(), keys, facts, strict=True):
            last_message, last_event, kept, has_history, settings = fields
            if settings is not None:
                continue  # created again after Redis lost its counters
            if not self._wanted.accepts_queue(name):
                found.append(EventStream(key[:-1] + b"h", OF_QUEUE, number, name, key, moves_only=True))
            elif kept is not None and int(kept) > self._end_ms:
                found += self._of_queue(name, number, key, has_history == b"1")
            elif ms < self._end_ms and (
                last_message is None or self._is_behind(number, last_message, last_event)
            ):
                self._add_gap(ms)
        return found

    def _is_behind(self, number: int, last_message: bytes, last_event: bytes) -> bool:
        """Whether the reader has not seen the last entries of a queue."""
        seq, sent_ms = read_id(last_message)
        ms, place = read_id(last_event)
        return (self._wants_published and Position(sent_ms, OF_MESSAGE, seq, number) > self._after) or (
            self._wants_history and Position(ms, OF_QUEUE, place, number) > self._after
        )

    # -- merging ------------------------------------------------------------------------------

    def _merge(self, active: Sequence[EventStream], limit: int) -> Position | None:
        """Collect events in order. Returns the position at which the page was full; None: it has all."""
        # Streams have different kinds or queues, so positions of two entries differ.
        heap = [(each.first, at) for at, each in enumerate(active)]
        heapq.heapify(heap)
        while heap:
            _, at = heap[0]
            stream = active[at]
            position = stream.next_position(self._calls)
            if position is None or position.ms >= self._end_ms:
                heapq.heappop(heap)
                self.newest_ms = max(self.newest_ms, 0 if position is None else position.ms)
                continue
            if position != heap[0][0]:
                heapq.heapreplace(heap, (position, at))  # its first entries were dropped meanwhile
                continue
            full = self._take(stream, limit)
            if full is not None:
                return full
            if self._scanned >= _SCANNED or self._scanned_bytes >= _SCANNED_BYTES:
                return max(position._replace(item=_MAX_ITEM), self._after)
            following = stream.next_position(self._calls)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, at))
        return None

    def _take(self, stream: EventStream, limit: int) -> Position | None:
        """Take the next entry. Returns the position of its last event that has room on the page, if there are
        more."""
        position, _, value = stream.entries[0]
        is_exact = stream.is_exact
        start = stream.start
        found = self._parse(stream, position, value)
        self._scanned += 1
        self._scanned_bytes += len(value)
        stream.pop()
        later = [each for each in found if each.position > self._after]
        if is_exact and position._replace(item=_MAX_ITEM) <= self._after:
            # It was added after this process had read past its time.
            self._add_gap(self._after.ms + 1)
        accepted = [each for each in later if self._accepts(each)]
        room = limit - len(self._found)
        if accepted:
            self._read_streams.add(stream)
        self._found += accepted[:room]
        if len(accepted) > room:
            stream.start = start  # the rest of the entry follows on the next page
            return self._found[-1].position
        return position._replace(item=_MAX_ITEM) if accepted and len(accepted) == room else None

    def _accepts(self, found: _Found) -> bool:
        """The conditions that can be checked before the event is complete."""
        wanted, happening = self._wanted, found.happening
        if wanted.events and happening.event not in wanted.events:
            return False
        if wanted.messages is not None:
            return wanted.accepts_message(found.message)
        if wanted.accepts_queue(found.queue):
            return True
        target = happening.detail.get("to")
        return target is not None and wanted.accepts_queue(target)

    def _parse(self, stream: EventStream, position: Position, value: bytes) -> list[_Found]:
        """The events of an entry; one that another program damaged has none."""
        state, key = self._reader.state, stream.queue_key
        if stream.kind == OF_STORE:
            entry = _parsed_store(value)
            if entry is None:
                return []
            return [_Found(position, entry.queue, key, Happening(entry.event, 0, entry.detail))]
        if stream.kind == OF_MESSAGE:
            message = _past_message((position.number, position.ms), value)
            if message is None:
                return []
            own_id = "" if message.options is None else message.options.id or ""
            state.learn_id(key, message.seq, own_id)
            return [
                _Found(position, stream.name, key, Happening(PUBLISHED, message.seq, {}, own_id), message)
            ]
        try:
            happened = parse_history(value)
        except (ValueError, KeyError, IndexError):
            return []
        if isinstance(happened, Arrival):
            state.learn_id(key, happened.seq, happened.own_id)
            return []
        if stream.moves_only and happened and happened[0].event not in _MOVES:
            return []
        if happened and happened[0].event == PUBLISHED:
            if stream.has_history:
                return []  # from a time without a history; the stream of messages has it
            state.learn_id(key, happened[0].seq, happened[0].own_id or "")
        return [
            _Found(position._replace(item=item), stream.name, key, each) for item, each in enumerate(happened)
        ]

    def _events(self) -> list[Event]:
        found = self._found
        own_ids = self._reader.message_ids(found)
        messages = self._reader.messages(found)
        events = []
        for at, each in enumerate(found):
            happening = each.happening
            message_id = None
            if happening.seq:
                own_id = happening.own_id
                if own_id is None:
                    own_id = own_ids[each.queue_key, happening.seq]
                message_id = own_id or self._store.id_of(happening.seq)
            message = each.message or messages.get(at)
            id = each.position.id(self._tag)
            events.append(
                Event(
                    id,
                    happening.event,
                    each.position.ms,
                    each.queue,
                    message_id,
                    happening.detail,
                    message,
                )
            )
        return events

    # -- gaps ---------------------------------------------------------------------------------

    def _add_gap(self, until_ms: int) -> None:
        if self._is_resumed:
            self._gap_ms = max(self._gap_ms, until_ms)

    def _check_kept(self, streams: Sequence[EventStream], active: Sequence[EventStream]) -> None:
        """Find out whether events after the requested id were dropped."""
        after = self._after
        looked = streams if after.ms < self._end_ms - _RECENT_MS else active
        numbers = {each.number for each in looked if each.kind != OF_STORE and not each.moves_only}
        views = [view for number in numbers if (view := self._registry.numbered.get(number)) is not None]
        for number, facts in self._facts([each for each in views if each.settings.history_ms > 0]).items():
            view = self._registry.numbered.get(number)
            if view is not None:
                self._check_queue(view, facts)
        self._check_without_history(
            [each for each in self._registry.queues.values() if self._is_without_history(each)]
        )

    def _facts(self, views: list[CachedQueue]) -> dict[int, QueueStreams]:
        return read_queue_streams(self._calls, views) if views else {}

    def _check_queue(self, view: CachedQueue, facts: QueueStreams) -> None:
        seq, sent_ms = facts.messages.deleted
        if self._wants_published and Position(sent_ms, OF_MESSAGE, seq, view.number) > self._after:
            self._add_gap(sent_ms + 1)
        if self._wants_history:
            dropped_ms = facts.dropped_events_ms(view.settings.history_ms, self._store.address.history)
            if dropped_ms > self._after.ms:
                self._add_gap(dropped_ms)

    def _is_without_history(self, view: CachedQueue) -> bool:
        wants = self._wants_history or self._wants_published
        return wants and view.settings.history_ms == 0 and self._wanted.accepts_queue(view.name)

    def _check_without_history(self, views: Sequence[CachedQueue]) -> None:
        """Their events are kept only while readers watch. Something happened if messages were published."""
        commands = []
        for view in views:
            keys = (stream_keys(view)[0], view.key)
            commands.append((view.key, read_script(WATCHED_INFO, keys)))
        for last, since, until in replies_of(self._calls, commands):
            seq, last_ms = read_id(last)
            since_ms, until_ms = int(since), int(until)
            is_kept = until_ms > self._end_ms and since_ms <= self._after.ms
            if not is_kept and last_ms >= self._end_ms:
                self.newest_ms = max(self.newest_ms, last_ms)
            elif not is_kept and Position(last_ms, OF_MESSAGE, seq) > self._after:
                # Events before the beginning of the watch are missing; without one, all.
                gap_ms = since_ms if until_ms > self._end_ms else last_ms + 1
                if gap_ms > self._after.ms:
                    self._add_gap(gap_ms)


_MAX_ITEM = 999_999


def _parsed_store(value: bytes) -> Any:
    try:
        return parse_store(value)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _past_message(id: tuple[int, int], record: bytes) -> PastMessage | None:
    """None: it came from another queue, or another program damaged it."""
    try:
        if is_from_elsewhere(record):
            return None
        encoding, body, properties, options = unpack_record(record)
    except MALFORMED:
        return None
    return PastMessage(id[0], id[1], encoding, body, properties, options)
