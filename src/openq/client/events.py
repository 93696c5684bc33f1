"""`queue.events()`: what happens to a queue, as an iterator that can be resumed; and listeners in a thread.

In memory and on disk these are the events of the store that this process has open; on a server or in Redis
they come from every process and every protocol.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..broker import events as e
from ..broker.events import EVENT_NAMES, EventFilter
from ..errors import InvalidSetting, OpenQError
from . import checks
from .event_pages import GAP, EventItem, EventPages, open_pages
from .message import Message, PeekedMessage
from .parts import QueuePart
from .times import from_ms, moment_ms, parse_iso

if TYPE_CHECKING:
    from .core import QueueObject
    from .interface import LibraryBroker

log = logging.getLogger("openq")

OLDEST = "oldest"  # as `after`: from the oldest event that is kept
_TIMES = ("until", "due")


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """One event. `id` is where a reader continues: `queue.events(after=event.id)`.

    `event` is published, delivered, acked, nacked, released, lease_expired, extended, dead_lettered,
    redriven, moved, expired, removed, edited, rescheduled, purged, queue_created, queue_changed,
    queue_deleted, consumer_joined, consumer_left, alert, or gap: events before `time` are not kept any more.
    """

    id: str
    event: str
    time: datetime
    queue: str | None
    message_id: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    message_type: str | None = None  # of `published`
    message: Message | None = None  # of `published`, if bodies were asked for


def make_event(queue: QueueObject, item: EventItem) -> QueueEvent:
    detail = {
        name: parse_iso(value, name) if name in _TIMES and isinstance(value, str) else value
        for name, value in item.detail.items()
    }
    return QueueEvent(
        id=item.id,
        event=item.event,
        time=from_ms(item.time_ms),
        queue=item.queue,
        message_id=item.message_id,
        detail=detail,
        message_type=item.message_type,
        message=None if item.entry is None else PeekedMessage(queue, item.entry),
    )


def make_event_filter(
    queue: str,
    events: str | Iterable[str] | None,
    types: str | Iterable[str] | None,
    attributes: Mapping[str, object] | None,
) -> EventFilter:
    chosen = frozenset(_names(events, "events"))
    unknown = sorted(chosen.difference(EVENT_NAMES))
    if unknown:
        raise InvalidSetting(f"{unknown[0]!r} is not an event; there are {', '.join(EVENT_NAMES)}")
    messages = checks.message_filter(_names(types, "types") or None, attributes)
    return EventFilter((), chosen, messages, frozenset((queue,)))


def _names(given: str | Iterable[str] | None, what: str) -> list[str]:
    if given is None:
        return []
    return checks.text_list([given] if isinstance(given, str) else list(given), what)


class EventStream:
    """An iterator over events. It ends when it is closed, or at the last event if it does not follow.

    `position` is the id after which it continues. As a context manager it closes at the end.
    """

    def __init__(self, queue: QueueObject, pages: EventPages) -> None:
        self._queue = queue
        self._pages = pages
        self._ready: Iterator[QueueEvent] = iter(())
        self._position = pages.position

    @property
    def position(self) -> str | None:
        return self._position

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> QueueEvent:
        while True:
            for event in self._ready:
                if event.event != GAP:
                    self._position = event.id
                return event
            self._position = self._pages.position
            page = self._pages.next_page()
            if page is None:
                raise StopIteration
            queue = self._queue
            self._ready = iter([make_event(queue, item) for item in page])

    def close(self) -> None:
        """End the iteration, also in another thread that waits for the next event."""
        self._pages.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class QueueEvents(QueuePart):
    __slots__ = ()

    def events(
        self,
        after: str | None = None,
        *,
        events: str | Iterable[str] | None = None,
        types: str | Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        bodies: bool = False,
        follow: bool = True,
    ) -> EventStream:
        """The events of this queue, as an iterator of `QueueEvent`s.

        It begins after the event with the id `after`; with "oldest" at the oldest that is kept; by default
        now, or at the oldest if it does not `follow`. `events` and `types` select events by name and
        published messages by type. With `bodies` a published event has its message. `follow=False` ends at
        the last event instead of waiting for the next one. A `gap` event says that events before it are not
        kept any more.
        """
        if after is not None:
            checks.text(after, "after")
        wanted = make_event_filter(self.core.name, events, types, attributes)
        return EventStream(self.queue, open_queue_pages(self.core.broker, wanted, after, bodies, follow))


def open_queue_pages(
    broker: LibraryBroker, wanted: EventFilter, after: str | None, bodies: bool, follow: bool
) -> EventPages:
    from_end = after is None and follow
    after = None if after == OLDEST else after
    return open_pages(broker, wanted, after, from_end=from_end, bodies=bodies, follow=follow)


# -- listeners ----------------------------------------------------------------------------------

# The names under which `subscribe` reports events.
_LISTENER_NAMES = {
    e.PUBLISHED: "published",
    e.DELIVERED: "received",
    e.ACKED: "acked",
    e.LEASE_EXPIRED: "expired",
    e.NACKED: "requeued",
    e.RELEASED: "requeued",
    e.DEAD_LETTERED: "dead-lettered",
    e.REDRIVEN: "moved",
    e.MOVED: "moved",
    e.REMOVED: "removed",
    e.EXPIRED: "removed",
    e.PURGED: "purged",
}


def listener_event(event: QueueEvent, queue: str) -> dict[str, Any]:
    """An event as `subscribe` reports it."""
    detail = event.detail
    name = _LISTENER_NAMES[event.event]
    text = detail.get("consumer") or detail.get("reason") or detail.get("why") or detail.get("to") or ""
    if event.event == e.EXPIRED:
        text = "expired"
    return {
        "event": name,
        "queue": queue,
        "id": event.message_id,
        "time_ms": moment_ms(event.time, "time"),
        "detail": text,
    }


def listen(
    queue: QueueObject, broker: LibraryBroker, name: str, listener: Callable[[dict[str, Any]], None]
) -> Callable[[], None]:
    """Call `listener` in a thread with every event of the queue, from any cause."""
    wanted = EventFilter(events=frozenset(_LISTENER_NAMES), names=frozenset((name,)))
    pages = open_queue_pages(broker, wanted, None, bodies=False, follow=True)

    def run() -> None:
        try:
            while (page := pages.next_page()) is not None:
                for item in page:
                    event = make_event(queue, item)
                    if event.event != GAP and event.queue == name:
                        report(event)
        except OpenQError as error:
            log.error("the events of queue %r are not reported any more: %s", name, error)

    def report(event: QueueEvent) -> None:
        try:
            listener(listener_event(event, name))
        except Exception:
            log.exception("a listener failed on %s", event.event)

    threading.Thread(target=run, name="openq-listener", daemon=True).start()
    return pages.close
