"""Where the events of a queue come from: a store that this process reads, or the stream of a server.

Both give `EventItem`s. Those of a server are read from its documents (see `openq.documents.events`). Those of
a store come from the events themselves: the standard library is enough.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from ..broker.events import Event, EventFilter, Events
from ..errors import Closed
from ..model import DeliveryOptions, Entry
from ..names import split_name

if TYPE_CHECKING:
    from ..broker.history import PastMessage
    from .interface import LibraryBroker

PAGE_EVENTS = 200
GAP = "gap"  # events between two others are not kept any more
_WAIT_S = 1.0  # then the store is looked at again: it may have been closed


class EventItem(NamedTuple):
    id: str
    event: str
    time_ms: int
    queue: str | None  # its name without the account; None: an event of the whole store
    message_id: str | None
    detail: Mapping[str, Any]  # as in documents
    message_type: str | None  # of `published`
    entry: Entry | None  # of `published`, if bodies were asked for


class EventPages(Protocol):
    """Pages of events, for one thread; `close` from any thread."""

    def next_page(self) -> Sequence[EventItem] | None:
        """The next events, waiting for some; empty: none came for a while; None: there are no more."""

    @property
    def position(self) -> str | None:
        """The id after which this reader continues; None: nothing is known yet."""

    def close(self) -> None: ...


@runtime_checkable
class StreamBroker(Protocol):
    """A broker behind a server. Its module needs other packages, so it is known by this method."""

    def open_events(
        self, wanted: EventFilter, after: str | None, *, from_end: bool, bodies: bool, follow: bool
    ) -> EventPages: ...


class StorePages:
    """The events of a store that this process reads: memory, a directory or Redis."""

    def __init__(
        self,
        events: Events,
        wanted: EventFilter,
        after: str | None,
        *,
        from_end: bool,
        bodies: bool,
        follow: bool,
    ) -> None:
        self._events = events
        self._wanted = wanted
        self._bodies = bodies
        self._follow = follow
        self._changed = threading.Event()
        self._is_closed = False
        # Before the position is taken: what comes after it is noticed.
        self._unwatch = events.watch(self._changed.set) if follow else None
        try:
            self.position = events.end() if from_end else after
            if after is not None:
                events.read(after, 1, EventFilter(queues=("\0",)))  # refuses an invalid id now, not later
        except BaseException:
            self.close()
            raise

    def next_page(self) -> Sequence[EventItem] | None:
        if self._is_closed:
            return None
        self._changed.clear()
        try:
            page = self._events.read(self.position, PAGE_EVENTS, self._wanted)
        except Closed:
            self.close()
            return None
        found = [_item(event, self._bodies) for event in page.events]
        if page.gap_until_ms is not None:
            found.insert(0, gap_item(self.position, page.gap_until_ms))
        self.position = page.next
        if found or not page.is_end:
            return found
        if not self._follow:
            return None
        self._changed.wait(_WAIT_S)
        return ()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()


def _item(event: Event, bodies: bool) -> EventItem:
    # Not before the first event: most users of the library have no use for it.
    from ..documents.event_details import show_detail

    past = event.message
    options = None if past is None else past.options
    return EventItem(
        id=event.id,
        event=event.event,
        time_ms=event.time_ms,
        queue=split_name(event.queue)[1] or None,
        message_id=event.message_id,
        detail=show_detail(event.detail) if event.detail else {},
        message_type=None if options is None else options.type,
        entry=_entry(past, event.message_id) if bodies and past is not None else None,
    )


def _entry(past: PastMessage, message_id: str | None) -> Entry:
    options = past.options
    if options is None or options.id != message_id:
        options = DeliveryOptions() if options is None else options.copy()
        options.id = message_id
    return Entry(
        past.seq, past.time_ms, 0, len(past.body), past.encoding, past.body, past.properties, options
    )


def gap_item(after: str | None, until_ms: int) -> EventItem:
    return EventItem(after or "", GAP, until_ms, None, None, {"from": after}, None, None)


def open_pages(
    broker: LibraryBroker,
    wanted: EventFilter,
    after: str | None,
    *,
    from_end: bool,
    bodies: bool,
    follow: bool,
) -> EventPages:
    broker.is_free()  # raises if the queue is closed
    if isinstance(broker, StreamBroker):
        return broker.open_events(wanted, after, from_end=from_end, bodies=bodies, follow=follow)
    events: Events = broker.events  # type: ignore[attr-defined]
    return StorePages(events, wanted, after, from_end=from_end, bodies=bodies, follow=follow)
