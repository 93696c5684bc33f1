"""The state of one queue: ready, delayed and in-flight messages, and the ids it remembers.

No decisions across queues and no records here; `engine.py` makes those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from operator import attrgetter

from ..errors import MessageNotFoundError, OpenQError, VisibilityTimeoutExpired
from ..model import MAX_PRIORITY, Delivery, Entry, QueueSettings
from .delayed import DelayedMessages
from .limited_order import LimitedFifoOrder, LimitedOrder
from .limits import QueueLimits
from .ready import FifoOrder, StandardOrder


def is_plain_queue(settings: QueueSettings) -> bool:
    """Whether a plain message needs no further checks in this queue."""
    return (
        not settings.fifo
        and not settings.delay_ms
        and settings.ttl_ms is None
        and settings.max_length is None
        and settings.max_bytes is None
        and settings.max_body is None
        and not settings.dedup_by_content
    )


class Counters:
    """Counts of events since the queue was created. None of them ever goes down.

    They are kept over restarts: a snapshot holds them, and the records after it are counted again. A journal
    that is opened without any snapshot counts from its oldest segment on. Events that were not on disk when a
    process died are missing: at most the leases of its last milliseconds.

    Every delivery ends in one of five ways: acked, nacked, lease_expired, released, or with its message
    (purged, or its queue deleted). So `delivered` minus the first four is the number of messages in flight
    plus those that ended with their message.
    """

    __slots__ = (
        "acked",
        "damaged",
        "dead_lettered",
        "deduplicated",
        "delivered",
        "expired",
        "lease_expired",
        "moved_in",
        "moved_out",
        "nacked",
        "published",
        "redelivered",
        "released",
        "removed",
        "stuck",
    )

    def __init__(self) -> None:
        self.published = 0
        self.deduplicated = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0  # also by a reject, a lost connection, or the last delivery of a message
        self.lease_expired = 0
        self.released = 0  # no consumer saw the delivery: the client hung up, or the body cannot be read
        self.damaged = 0  # set aside: the body cannot be read
        self.dead_lettered = 0
        self.expired = 0
        self.removed = 0
        self.moved_in = 0
        self.moved_out = 0
        self.stuck = 0  # messages delivered STUCK_RECEIVES times with nowhere to go: worth a warning

    def as_dict(self) -> dict[str, int]:
        return dict(zip(COUNTERS, read_counters(self), strict=True))

    def add(self, other: Counters) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTERS: tuple[str, ...] = Counters.__slots__
# All values of a `Counters` in this order, in one call: pages of metrics read those of thousands of queues.
read_counters: Callable[[Counters], tuple[int, ...]] = attrgetter(*COUNTERS)


class QueueState:
    __slots__ = (
        "counters",
        "created_ms",
        "dedup",
        "dedup_order",
        "delayed",
        "deleted",
        "ends_matter",
        "fifo",
        "ids",
        "is_plain",
        "lease_buckets",
        "leases",
        "limits",
        "name",
        "number",
        "ready",
        "retention_armed",
        "settings",
        "unique_keys",
        "waiting_bytes",
        "watched",
    )

    def __init__(self, name: str, number: int, settings: QueueSettings, created_ms: int) -> None:
        self.name = name
        self.number = number
        self.created_ms = created_ms
        self.delayed = DelayedMessages()  # on FIFO queues these are also in `ready`
        self.limits = QueueLimits(settings) if settings.has_limits else None
        self.ready = self.new_order(settings, created_ms)
        self.leases: dict[int, Delivery] = {}  # sequence -> the live delivery
        # Deadlines of leases by the second, as bare sequences: an acked lease must not keep its message in
        # memory.
        self.lease_buckets: dict[int, list[int]] = {}
        self.ids: dict[str, int] = {}  # only ids that do not follow from the sequence number
        self.unique_keys: dict[str, tuple[int, str]] = {}  # key -> sequence and own id of the message
        self.dedup: dict[str, tuple[str, int]] = {}  # key -> id given out, end of the window
        self.dedup_order: deque[tuple[int, str]] = deque()
        self.waiting_bytes = 0
        self.counters = Counters()
        self.retention_armed = 0  # when the live retention timer fires; 0: there is none
        self.watched = False  # a consumer waits for messages of this queue
        self.deleted = False
        self.settings = settings
        self.set_settings(settings)

    def new_order(self, settings: QueueSettings, now_ms: int) -> StandardOrder | FifoOrder:
        """An empty order. That of a FIFO queue knows the delayed messages, which are in it too.

        `mark_in_flight` follows for each message in flight.
        """
        order: StandardOrder | FifoOrder
        if self.limits is not None:
            self.limits.recount((), now_ms)
            order = (
                LimitedFifoOrder(self.delayed, self.limits) if settings.fifo else LimitedOrder(self.limits)
            )
        else:
            order = FifoOrder(self.delayed) if settings.fifo else StandardOrder()
        order.max_priority = _max_priority(settings)
        return order

    def _set_limits(self, settings: QueueSettings, now_ms: int) -> None:
        """Apply the limits to what waits and to what is in flight. Only the turns change."""
        if not settings.has_limits:
            self.limits = None
        else:
            if self.limits is None:
                self.limits = QueueLimits(settings)
            groups = [delivery.entry.group for delivery in self.leases.values()]
            self.limits.change(settings, groups, now_ms)
        order: StandardOrder | FifoOrder
        if isinstance(self.ready, FifoOrder):
            order = (
                FifoOrder(self.delayed)
                if self.limits is None
                else LimitedFifoOrder(self.delayed, self.limits)
            )
            order.adopt(self.ready)
        else:
            order = StandardOrder() if self.limits is None else LimitedOrder(self.limits)
            order.adopt(self.ready)
        self.ready = order

    def set_settings(self, settings: QueueSettings, now_ms: int = 0) -> None:
        if _limits(settings) != _limits(self.settings):
            self._set_limits(settings, now_ms)
        self.settings = settings
        self.ends_matter = settings.fifo or settings.has_limits  # the order must learn of ends of deliveries
        self.fifo = settings.fifo
        max_priority = _max_priority(settings)
        if self.ready.max_priority != max_priority:
            self.ready.set_max_priority(max_priority)
        self.is_plain = is_plain_queue(settings)

    @property
    def ready_count(self) -> int:
        return self.ready.count - (len(self.delayed) if self.settings.fifo else 0)

    @property
    def waiting_count(self) -> int:
        return self.ready.count + (0 if self.settings.fifo else len(self.delayed))

    @property
    def count(self) -> int:
        return self.waiting_count + len(self.leases)

    def find(self, seq: int) -> Entry | None:
        """Find a message in flight, delayed or ready."""
        delivery = self.leases.get(seq)
        if delivery is not None:
            return delivery.entry
        entry = self.delayed.get(seq)
        return entry if entry is not None else self.ready.find(seq)

    def take_waiting(self, seq: int, hint: Entry | None = None) -> Entry | None:
        """Remove a ready or delayed message for good.

        `hint`, if known, is its entry and identifies its list.
        """
        entry = self.delayed.pop(seq)
        if entry is None or self.settings.fifo:
            entry = self.ready.remove(seq, entry or hint)
        if entry is not None:
            self.waiting_bytes -= entry.size
        return entry

    def take_for_delivery(self, seq: int, now_ms: int) -> Entry | None:
        """Take a ready or delayed message for a delivery; `ready.end_batch` follows."""
        delayed = self.delayed.pop(seq)
        if delayed is not None and not self.settings.fifo:
            self.ready.delivery_started(delayed, now_ms)
            return delayed
        return self.ready.take(seq, now_ms)

    @property
    def limited_order(self) -> LimitedOrder | LimitedFifoOrder | None:
        """The order of a queue with limits."""
        ready = self.ready
        return ready if isinstance(ready, LimitedOrder | LimitedFifoOrder) else None

    def clear(self, now_ms: int) -> None:
        """Drop everything except settings and counters."""
        self.leases.clear()
        self.lease_buckets.clear()
        self.keep_dedup(())
        self.clear_waiting(now_ms)

    def clear_waiting(self, now_ms: int) -> None:
        """Drop everything except messages in flight and deduplication ids: see `keep_dedup`."""
        in_flight = {seq: delivery.entry for seq, delivery in self.leases.items()}
        self.ready = self.new_order(self.settings, now_ms)
        for entry in in_flight.values():
            self.ready.mark_in_flight(entry)
        self.delayed.clear()
        self.ids = {key: seq for key, seq in self.ids.items() if seq in in_flight}
        self.unique_keys = {key: there for key, there in self.unique_keys.items() if there[0] in in_flight}
        self.waiting_bytes = 0
        self.retention_armed = 0

    def lease(self, seq: int, number: int, now_ms: int) -> Delivery:
        """The live delivery of a receipt, or the error that says why there is none."""
        delivery = self.leases.get(seq)
        if delivery is None or delivery.number != number or 0 < delivery.until_ms <= now_ms:
            raise self.receipt_error(seq)
        return delivery

    def receipt_error(self, seq: int) -> OpenQError:
        if self.find(seq) is None:
            return MessageNotFoundError(seq, self.name)
        return VisibilityTimeoutExpired(seq, self.name)

    def keep_dedup(self, message_ids: Container[str]) -> None:
        """Keep only the deduplication ids of these messages."""
        self.dedup = {key: kept for key, kept in self.dedup.items() if kept[0] in message_ids}
        self.dedup_order = deque(sorted((end_ms, key) for key, (_, end_ms) in self.dedup.items()))

    def forget_dedup(self, now_ms: int) -> None:
        order = self.dedup_order
        while order and order[0][0] <= now_ms:
            end_ms, key = order.popleft()
            kept = self.dedup.get(key)
            if kept is not None and kept[1] == end_ms:
                del self.dedup[key]


def _limits(settings: QueueSettings) -> tuple[object, ...]:
    return (
        settings.concurrency,
        settings.rate,
        settings.key_concurrency,
        settings.key_rate,
        settings.key_limits,
    )


def _max_priority(settings: QueueSettings) -> int:
    return MAX_PRIORITY if settings.max_priority is None else settings.max_priority
