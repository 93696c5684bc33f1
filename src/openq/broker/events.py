"""Events: what happened to messages, queues and consumers, in one order that readers can resume.

The record of a change is its event: nothing is written twice, and an event is readable once its record is
durable. Every event has an id, the position of its record. A reader continues after the last id that it has
seen and misses nothing, as long as the history reaches back so far; if it does not, the page says so.

`read` returns pages, `watch` calls back when there may be more. While nobody reads, events cost nothing.
Pushed messages are not events: they are deliveries of a subscription, with a lease each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..auth.rules import matches
from ..model import MessageFilter

if TYPE_CHECKING:
    from .history import PastMessage

# Of messages.
PUBLISHED = "published"
DELIVERED = "delivered"  # detail: consumer, until_ms (0: while it is connected)
ACKED = "acked"
NACKED = "nacked"  # detail: reason, due_ms (0: at once)
RELEASED = "released"  # its consumer disconnected before it saw the message
LEASE_EXPIRED = "lease_expired"  # detail: due_ms (0: at once)
EXTENDED = "extended"  # detail: until_ms
DEAD_LETTERED = "dead_lettered"  # detail: to, why (max_receives, rejected, expired, overflow), reason
REDRIVEN = "redriven"  # detail: to
MOVED = "moved"  # detail: to
EXPIRED = "expired"  # its TTL was over
REMOVED = "removed"  # detail: why (overflow, cancelled, rejected, max_receives, damaged)
EDITED = "edited"
RESCHEDULED = "rescheduled"  # detail: due_ms
# Of queues; they have no message id.
PURGED = "purged"  # detail: keeps_in_flight
QUEUE_CREATED = "queue_created"  # detail: settings, those that differ from the defaults
QUEUE_CHANGED = "queue_changed"  # detail: settings, the new ones that differ from the defaults
QUEUE_DELETED = "queue_deleted"
# Of consumers and of the server.
CONSUMER_JOINED = "consumer_joined"  # detail: consumer, protocol
CONSUMER_LEFT = "consumer_left"  # detail: consumer, protocol
ALERT = "alert"

EVENT_NAMES = (
    PUBLISHED,
    DELIVERED,
    ACKED,
    NACKED,
    RELEASED,
    LEASE_EXPIRED,
    EXTENDED,
    DEAD_LETTERED,
    REDRIVEN,
    MOVED,
    EXPIRED,
    REMOVED,
    EDITED,
    RESCHEDULED,
    PURGED,
    QUEUE_CREATED,
    QUEUE_CHANGED,
    QUEUE_DELETED,
    CONSUMER_JOINED,
    CONSUMER_LEFT,
    ALERT,
)


@dataclass(slots=True)
class Event:
    id: str  # opaque; ids of one store are comparable only for equality
    event: str
    time_ms: int
    queue: str  # the queue key; empty for an event of the whole store
    message_id: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    message: PastMessage | None = None  # of `published`: the message as it was published


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events. A condition that is not set holds for all."""

    queues: tuple[str, ...] = ()  # patterns of queue keys, with * and ?
    events: frozenset[str] = frozenset()
    messages: MessageFilter | None = None  # only `published` events have a message
    names: frozenset[str] = frozenset()  # queue keys; a queue whose name has a * is no pattern here

    def accepts_queue(self, queue: str) -> bool:
        if not self.queues and not self.names:
            return True
        return queue in self.names or any(matches(pattern, queue) for pattern in self.queues)

    def accepts_message(self, message: PastMessage | None) -> bool:
        wanted = self.messages
        if wanted is None:
            return True
        return (
            message is not None
            and wanted.has_type(message.options)
            and wanted.has_attributes(message.properties)
        )

    def accepts(self, event: Event) -> bool:
        if self.events and event.event not in self.events:
            return False
        if not self.accepts_message(event.message):
            return False
        if self.accepts_queue(event.queue):
            return True
        # A message that moves is an event of both queues.
        to = event.detail.get("to")
        return to is not None and self.accepts_queue(to)


@dataclass(slots=True)
class EventPage:
    events: list[Event]
    next: str  # continue after this id; it also passes events that the filter left out
    is_end: bool  # there are no later durable events now
    # Set if events after the requested id are not kept any more: the time of the first event that is.
    gap_until_ms: int | None = None


class Events(Protocol):
    """The part `broker.events`. Its calls may read the disk or Redis: call them in a thread or a greenlet."""

    def end(self) -> str:
        """The id after which only events come that are not durable yet."""

    def read(self, after: str | None, limit: int, wanted: EventFilter) -> EventPage:
        """At most `limit` events after an id; None: from the oldest that is kept.

        Raises InvalidSetting for an id that is not of this store.
        """

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in any thread, when later events may be durable. Returns the function that ends it.

        The callback must only wake the reader. Several changes may cause one call.
        """

    def add(self, event: str, queue: str, detail: Mapping[str, Any]) -> None:
        """Record an event that no other record tells: consumers and alerts."""
