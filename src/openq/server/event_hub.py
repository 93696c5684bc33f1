"""Server-sent events: one follower of `broker.events` for all readers of a server.

Theory of operation. A reader is in one of these states:

    CATCHING_UP   pages are read for it alone, from its position on, in a thread
    JOINING       it has reached the end: the follower takes it in
    LIVE          it gets what the follower reads; each event is decoded and encoded once for all
    BEHIND        its client does not read; nothing is buffered for it
    ENDED

    CATCHING_UP --end reached--> JOINING --next cycle of the follower--> LIVE
    CATCHING_UP, LIVE --unsent bytes--> BEHIND --client has read--> CATCHING_UP

The follower works in cycles, in a thread of its own. A cycle reads on from its position; if that reaches the
end, it also reads the last page of each reader that joins. This page was read later, so it has every event
that the follower has passed: there is no gap. Events of this page that the follower reads afterwards are left
out for this reader: nothing is repeated.

Readers with the same filter and the same permissions form a group, for which a batch is put together once.
While there is no reader, nothing is watched and nothing is read.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..broker.events import Event, EventFilter, EventPage, Events
from ..documents.events import encode_event
from ..documents.values import iso
from ..errors import Closed
from ..metrics import Family
from .event_access import EventAccess
from .http_stream import HttpStream
from .threads import submit

if TYPE_CHECKING:
    from .context import ServerContext

log = logging.getLogger("openq.server")

T = TypeVar("T")

PAGE_EVENTS = 500
PIECE_BYTES = 32 << 10  # written to a reader at once; then its buffer is looked at again
READERS_PER_STEP = 256  # written to in one iteration of the loop
HEARTBEAT_S = 15.0
HEARTBEATS_PER_TICK = 2_000
RETRY_MS = 2_000  # after which a browser connects again
TICK_S = 1.0
_NOTHING = EventFilter(queues=("\0",))
RETRY_S = 1.0  # after an error of the store
CATCH_UP_THREADS = 2
_FULL_S = 0.05  # a buffer that is full without a pause of the transport is looked at again


class HubReaderState(Enum):
    CATCHING_UP = auto()
    JOINING = auto()
    LIVE = auto()
    BEHIND = auto()
    ENDED = auto()


class Encoded(NamedTuple):
    """One event, and its bytes without and with the body of its message, as far as a reader wants them."""

    event: Event
    plain: bytes
    full: bytes


class EventPiece(NamedTuple):
    """Bytes to write, the number of events in them, and the position of a reader that got them."""

    data: bytes
    events: int
    position: str


def event_block(event: Event, bodies: bool) -> bytes:
    document = encode_event(event, bodies)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), event.event.encode(), document)


def gap_block(after: str | None, until_ms: int) -> bytes:
    """Events between a position and a time are not kept any more."""
    start = b"null" if after is None else b'"%b"' % after.encode()
    until = iso(until_ms).encode()
    return b'event: gap\ndata: {"event":"gap","from":%b,"until":"%b"}\n\n' % (start, until)


class ReaderGroup:
    """Readers that get the same bytes."""

    def __init__(self, wanted: EventFilter, bodies: bool, access: EventAccess) -> None:
        self.wanted = wanted
        self.bodies = bodies
        self.access = access
        self.readers: set[EventReader] = set()

    def selects(self, event: Event) -> bool:
        return self.wanted.accepts(event) and self.access.may_see(event)

    def pieces(self, batch: Iterable[Encoded], skip: frozenset[str] = frozenset()) -> list[EventPiece]:
        """The selected events of a batch, joined to pieces."""
        found: list[EventPiece] = []
        parts: list[bytes] = []
        size = 0
        position = ""

        def add() -> None:
            found.append(EventPiece(b"".join(parts), len(parts), position))

        for event, plain, full in batch:
            if event.id in skip or not self.selects(event):
                continue
            data = full if self.bodies else plain
            parts.append(data)
            position = event.id
            size += len(data)
            if size >= PIECE_BYTES:
                add()
                parts, size = [], 0
        if parts:
            add()
        return found


GroupKey = tuple[EventFilter, bool, object]


class EventReader:
    """One client. Its position is the id after which it continues."""

    __slots__ = (
        "client",
        "follow",
        "group",
        "hub",
        "number",
        "position",
        "since_ms",
        "skip",
        "state",
        "stream",
        "waiting",
    )

    def __init__(
        self,
        hub: EventHub,
        group: ReaderGroup,
        position: str | None,
        follow: bool,
        client: str,
        since_ms: int,
    ) -> None:
        self.client = client  # the program, as it names itself
        self.number = 0  # see `connections.py`
        self.since_ms = since_ms
        self.hub = hub
        self.group = group
        self.position = position
        self.follow = follow
        self.state = HubReaderState.CATCHING_UP
        self.stream: HttpStream | None = None
        self.skip: frozenset[str] = frozenset()  # events that it has got and the follower has not
        self.waiting: list[EventPiece] = []  # of the page that is being written, while it catches up

    def resumed(self) -> None:
        if self.state is HubReaderState.BEHIND or self.waiting:
            self.state = HubReaderState.CATCHING_UP
            self.hub.write_page(self)

    def gone(self) -> None:
        self.hub.remove(self)

    def write(self, data: bytes) -> bool:
        return self.stream is not None and self.stream.write(data)

    def close(self, reason: str) -> None:
        """End the stream with an event that says why. A client that does not read gets no reason."""
        text = json.dumps({"event": "closed", "reason": reason})
        self.write(f"event: closed\ndata: {text}\n\n".encode())
        self.hub.end_reader(self)


class Cycle(NamedTuple):
    """What the follower read: its own page, and the last page of each reader that joins."""

    page: EventPage
    batch: list[Encoded]
    joined: list[tuple[EventReader, EventPage, list[Encoded]]]
    unwatch: Callable[[], None] | None  # the watch that it began, if it began one


class EventHub:
    """Called on the loop, except for what runs in its threads."""

    def __init__(self, context: ServerContext, events: Events) -> None:
        self._context = context
        self._events = events
        self._groups: dict[GroupKey, ReaderGroup] = {}
        self._joining: list[EventReader] = []
        self._live: set[EventReader] = set()
        self._follower = ThreadPoolExecutor(1, thread_name_prefix="openq-events")
        self._catch_up = ThreadPoolExecutor(CATCH_UP_THREADS, thread_name_prefix="openq-events-past")
        self._position: str | None = None  # of the follower; None: it does not run
        self._reading = False
        self._woken = False
        self._unwatch: Callable[[], None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._generation = -1
        self._is_closed = False
        self.readers: set[EventReader] = set()
        self.sent = 0
        self.gaps = 0
        self.cut = 0

    # -- readers come and go

    def open(
        self,
        wanted: EventFilter,
        bodies: bool,
        access: EventAccess,
        after: str | None,
        *,
        follow: bool,
        client: str = "",
    ) -> EventReader:
        """A reader whose stream the caller sets with `start`. `after` None: from the oldest event."""
        key = (wanted, bodies, access.key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ReaderGroup(wanted, bodies, access)
        reader = EventReader(self, group, after, follow, client, self._context.now_ms())
        group.readers.add(reader)
        self.readers.add(reader)
        return reader

    def end_position(self) -> str:
        """In a thread: where a reader begins that wants only later events."""
        return self._events.end()

    def check(self, after: str) -> str:
        """In a thread: raises InvalidSetting for an id that is not of this store."""
        self._events.read(after, 1, _NOTHING)
        return after

    def start(self, reader: EventReader, stream: HttpStream) -> None:
        reader.stream = stream
        # With the id a client that loses the connection before the first event continues here.
        position = b"" if reader.position is None else b"id: %b\n" % reader.position.encode()
        stream.write(b"retry: %d\n%b\n" % (RETRY_MS, position))
        self._context.long_polls.add(self)
        if self._ticker is None:
            self._ticker = self._context.loop.call_later(TICK_S, self._tick)
        self._read_page(reader)

    def remove(self, reader: EventReader) -> None:
        reader.state = HubReaderState.ENDED
        reader.waiting = []
        self.readers.discard(reader)
        self._live.discard(reader)
        group = reader.group
        group.readers.discard(reader)
        if not group.readers:
            key = (group.wanted, group.bodies, group.access.key)
            if self._groups.get(key) is group:
                del self._groups[key]
        if not self.readers:
            self._stop_following()

    def _stop_following(self) -> None:
        self._context.long_polls.discard(self)
        if self._unwatch is not None:
            self._follower.submit(self._unwatch)
            self._unwatch = None
        self._position = None
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def end(self) -> None:
        """The server stops: every stream ends after what is written."""
        for reader in list(self.readers):
            self.end_reader(reader)

    def end_reader(self, reader: EventReader) -> None:
        stream = reader.stream
        self.remove(reader)
        if stream is not None:
            stream.end()

    def close(self) -> None:
        self._stop_following()
        self._is_closed = True
        self._follower.shutdown(wait=False)
        self._catch_up.shutdown(wait=False, cancel_futures=True)

    # -- catching up

    def _read_page(self, reader: EventReader) -> None:
        """Read the next page of a reader that is not live, in a thread."""
        position, group = reader.position, reader.group

        def read() -> tuple[EventPage, list[Encoded]]:
            page = self._events.read(position, PAGE_EVENTS, group.wanted)
            return page, self._encode(page.events, [group])

        def then(found: tuple[EventPage, list[Encoded]] | None, error: BaseException | None) -> None:
            if reader.state is not HubReaderState.CATCHING_UP:
                return
            if found is None:
                self._fail(reader, error)
                return
            page, batch = found
            reader.waiting = self._pieces_of(reader, page, batch)
            self.write_page(reader, page.is_end)

        self._submit(self._catch_up, read, then)

    def _pieces_of(self, reader: EventReader, page: EventPage, batch: list[Encoded]) -> list[EventPiece]:
        pieces = reader.group.pieces(batch)
        if page.gap_until_ms is not None:
            self.gaps += 1
            pieces.insert(
                0, EventPiece(gap_block(reader.position, page.gap_until_ms), 0, reader.position or "")
            )
        # The rest of the page is not for this reader: it continues behind it.
        return [*pieces, EventPiece(b"", 0, page.next)]

    def write_page(self, reader: EventReader, is_end: bool = False) -> None:
        """Write what a page brought, as far as the client reads; then read on."""
        waiting, reader.waiting = reader.waiting, []
        if not self._write(reader, waiting):
            return
        if not is_end:
            self._read_page(reader)
        elif reader.follow:
            self._join(reader)
        else:
            self._write_position(reader)
            self.end_reader(reader)

    def _write(self, reader: EventReader, pieces: Sequence[EventPiece]) -> bool:
        """False: the client does not read. The rest is dropped, and read again from its position later."""
        for data, count, position in pieces:
            if data and not reader.write(data):
                self._fall_behind(reader)
                return False
            self.sent += count
            reader.position = position or reader.position
        return True

    def _fall_behind(self, reader: EventReader) -> None:
        self._live.discard(reader)
        reader.skip = frozenset()
        reader.state = HubReaderState.BEHIND
        if reader.stream is not None and not reader.stream.paused_since:
            self._context.loop.call_later(_FULL_S, reader.resumed)

    def _fail(self, reader: EventReader, error: BaseException | None) -> None:
        """The store failed: the client connects again and continues after its last event."""
        if not isinstance(error, Closed):
            log.warning("events cannot be read: %s", error)
        self.end_reader(reader)

    # -- the follower

    def _join(self, reader: EventReader) -> None:
        reader.state = HubReaderState.JOINING
        self._joining.append(reader)
        self._wake()

    def _wake(self) -> None:
        """There may be more to read."""
        self._woken = True
        if not self._reading and self.readers and not self._is_closed:
            self._run_cycle()

    def _notify(self) -> None:
        """From the store, in any thread: changes may be durable."""
        if not self._woken:
            self._woken = True
            try:
                self._context.loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop is closed

    def _run_cycle(self) -> None:
        self._reading, self._woken = True, False
        joining, self._joining = self._joining, []
        groups = list(self._groups.values())
        wanted = _union([group.wanted for group in groups])
        position = self._position
        needs_watch = self._unwatch is None

        def read() -> Cycle:
            unwatch = self._events.watch(self._notify) if needs_watch else None
            after = self._events.end() if position is None else position
            page = self._events.read(after, PAGE_EVENTS, wanted)
            joined: list[tuple[EventReader, EventPage, list[Encoded]]] = []
            if page.is_end:
                for reader in joining:
                    last = self._events.read(reader.position, PAGE_EVENTS, reader.group.wanted)
                    joined.append((reader, last, self._encode(last.events, [reader.group])))
            return Cycle(page, self._encode(page.events, groups), joined, unwatch)

        def then(cycle: Cycle | None, error: BaseException | None) -> None:
            if cycle is None:
                self._cycle_failed(joining, error)
                return
            if cycle.unwatch is not None:
                self._unwatch = cycle.unwatch
                if not self.readers:
                    self._stop_following()
            if not cycle.page.is_end:
                self._joining = joining + self._joining
                self._woken = True
            if cycle.page.gap_until_ms is not None:
                self.gaps += 1
            self._fan_out(cycle, list(self._live))

        self._submit(self._follower, read, then)

    def _cycle_failed(self, joining: list[EventReader], error: BaseException | None) -> None:
        """Try again in a moment. Readers keep their connection and their position."""
        self._reading = False
        if self._is_closed or isinstance(error, Closed):
            return
        log.warning("events cannot be read, trying again: %s", error)
        self._joining = joining + self._joining
        self._context.loop.call_later(RETRY_S, self._wake)

    def _fan_out(self, cycle: Cycle, readers: list[EventReader]) -> None:
        """Write a batch to the live readers, some in each iteration of the loop."""
        known: dict[ReaderGroup, list[EventPiece]] = {}
        gap_ms = cycle.page.gap_until_ms
        after = self._position

        def step() -> None:
            for reader in readers[-READERS_PER_STEP:]:
                if reader.state is not HubReaderState.LIVE:
                    continue
                group = reader.group
                if reader.skip:
                    pieces = group.pieces(cycle.batch, reader.skip)
                    if cycle.page.is_end:
                        reader.skip = frozenset()
                else:
                    found = known.get(group)
                    pieces = known[group] = group.pieces(cycle.batch) if found is None else found
                if gap_ms is not None:
                    pieces = [EventPiece(gap_block(after, gap_ms), 0, reader.position or ""), *pieces]
                if self._write(reader, pieces):
                    reader.position = cycle.page.next
            del readers[-READERS_PER_STEP:]
            if readers:
                self._context.loop.call_soon(step)
            else:
                self._end_cycle(cycle)

        step()

    def _end_cycle(self, cycle: Cycle) -> None:
        if not self.readers:
            self._reading = False
            return
        self._position = cycle.page.next
        for reader, page, batch in cycle.joined:
            if reader.state is not HubReaderState.JOINING:
                continue
            reader.state = HubReaderState.CATCHING_UP
            if not self._write(reader, self._pieces_of(reader, page, batch)):
                continue
            if page.is_end:
                self._go_live(reader, page.next, frozenset(each.event.id for each in batch))
            else:
                self._read_page(reader)
        self._reading = False
        if self._woken:
            self._wake()

    def _go_live(self, reader: EventReader, position: str, skip: frozenset[str]) -> None:
        reader.position = position
        reader.skip = skip
        reader.state = HubReaderState.LIVE
        self._live.add(reader)

    def _write_position(self, reader: EventReader) -> None:
        """An id without an event: a client that loses the connection now continues here."""
        reader.write(b"id: %b\n\n" % (reader.position or "").encode())

    def _encode(self, events: Iterable[Event], groups: Sequence[ReaderGroup]) -> list[Encoded]:
        """In a thread: the bytes of each event that some reader may want."""
        wants_plain = any(not group.bodies for group in groups)
        wants_full = any(group.bodies for group in groups)
        found = []
        for event in events:
            if len(groups) == 1 and not groups[0].selects(event):
                continue
            full = event_block(event, True) if wants_full else b""
            if event.message is None and full:
                plain = full
            else:
                plain = event_block(event, False) if wants_plain else b""
            found.append(Encoded(event, plain, full))
        return found

    # -- every second

    def _tick(self) -> None:
        context = self._context
        assert context.listener is not None
        now = context.listener.now
        generation = context.guard.store.generation
        now_ms = context.now_ms()
        for group in list(self._groups.values()):
            if not group.access.refresh(generation != self._generation, now_ms):
                for reader in list(group.readers):
                    self.end_reader(reader)
        self._generation = generation
        late_s = context.listener.limits.body_s
        due = []
        for reader in list(self.readers):
            stream = reader.stream
            if stream is None:
                continue
            if stream.paused_since and now - stream.paused_since > late_s:
                self.cut += 1
                stream.abort()
            elif now - stream.written_at >= HEARTBEAT_S:
                due.append(reader)
        for reader in due[:HEARTBEATS_PER_TICK]:
            if reader.state is HubReaderState.LIVE and reader.position:
                # The position is there for readers whose filter leaves out what happens.
                reader.write(b": alive\nid: %b\n\n" % reader.position.encode())
            else:
                reader.write(b": alive\n\n")
        if self.readers:
            self._ticker = context.loop.call_later(TICK_S, self._tick)

    # -- threads, metrics

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], T],
        then: Callable[[T | None, BaseException | None], None],
    ) -> None:
        if not self._is_closed:
            submit(threads, self._context.loop, work, then)


def event_families(hub: EventHub | None) -> list[Family]:
    """The metrics of the event streams of a server; `hub` is None before the first of them."""
    readers, sent, gaps, cut = (
        (0, 0, 0, 0) if hub is None else (len(hub.readers), hub.sent, hub.gaps, hub.cut)
    )
    return [
        Family("openq_event_readers", "gauge", "Event streams that are open.", [({}, readers)]),
        Family("openq_events_sent_total", "counter", "Events sent to event streams.", [({}, sent)]),
        Family(
            "openq_event_gaps_total",
            "counter",
            "Gaps reported to event streams: events that were not kept any more.",
            [({}, gaps)],
        ),
        Family(
            "openq_event_readers_cut_total",
            "counter",
            "Event streams closed because their client did not read.",
            [({}, cut)],
        ),
    ]


def _union(filters: Sequence[EventFilter]) -> EventFilter:
    """A filter for all events that any of these selects; types are left to each."""
    queues: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    if filters and all(each.queues or each.names for each in filters):
        queues = tuple(dict.fromkeys(pattern for each in filters for pattern in each.queues))
        names = frozenset().union(*(each.names for each in filters))
    if filters and all(each.events for each in filters):
        events = frozenset().union(*(each.events for each in filters))
    return EventFilter(queues, events, names=names)
