"""Where the events of a queue come from: a store that this process reads, or the stream of a server.

Both give `EventItem`s: the document of an event (see `openq.documents.events`) and the published message, if
bodies were asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..broker.events import Event, EventFilter, Events
from ..errors import Closed
from ..model import DeliveryOptions, Entry

if TYPE_CHECKING:
    from .interface import LibraryBroker

PAGE_EVENTS = 200
GAP = "gap"  # events between two others are not kept any more
_WAIT_S = 1.0  # then the store is looked at again: it may have been closed


class EventItem(NamedTuple):
    document: Mapping[str, Any]
    entry: Entry | None  # the published message with its body


class EventPages(Protocol):
    """Pages of events, for one thread; `close` from any thread."""

    def next_page(self) -> Sequence[EventItem] | None:
        """The next events, waiting for some; empty: none came for a while; None: there are no more."""

    @property
    def position(self) -> str | None:
        """The id after which this reader continues; None: nothing is known yet."""

    def close(self) -> None: ...


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
        found = [self._item(event) for event in page.events]
        if page.gap_until_ms is not None:
            found.insert(0, EventItem(gap_document(self.position, page.gap_until_ms), None))
        self.position = page.next
        if found or not page.is_end:
            return found
        if not self._follow:
            return None
        self._changed.wait(_WAIT_S)
        return ()

    def _item(self, event: Event) -> EventItem:
        import msgspec

        from ..documents.events import event_document

        entry = None
        past = event.message
        if self._bodies and past is not None:
            options = past.options
            if options is None or options.id != event.message_id:
                options = DeliveryOptions() if options is None else options.copy()
                options.id = event.message_id
            entry = Entry(
                past.seq, past.time_ms, 0, len(past.body), past.encoding, past.body, past.properties, options
            )
        return EventItem(msgspec.to_builtins(event_document(event)), entry)

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()


def gap_document(after: str | None, until_ms: int) -> Mapping[str, Any]:
    from ..documents.values import iso

    return {"id": after or "", "event": GAP, "time": iso(until_ms), "queue": None, "detail": {"from": after}}


def open_pages(
    broker: LibraryBroker,
    wanted: EventFilter,
    after: str | None,
    *,
    from_end: bool,
    bodies: bool,
    follow: bool,
) -> EventPages:
    from .remote import RemoteBroker

    broker.is_free()  # raises if the queue is closed
    if isinstance(broker, RemoteBroker):
        return broker.open_events(wanted, after, from_end=from_end, bodies=bodies, follow=follow)
    events: Events = broker.events  # type: ignore[attr-defined]
    return StorePages(events, wanted, after, from_end=from_end, bodies=bodies, follow=follow)
