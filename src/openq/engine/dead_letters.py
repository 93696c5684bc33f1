"""Dead-lettering, moves between queues, and overflow: one record for each move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import OpenQError
from ..model import (
    MAX_DEAD_LETTER_EVENTS,
    Delivery,
    DeliveryOptions,
    Entry,
    Properties,
    split_failure,
)
from .queue import QueueState
from .records import (
    DEAD_EXPIRED,
    DEAD_LETTER_NAMES,
    DEAD_OVERFLOW,
    DEAD_RECEIVES,
    DEAD_REJECTED,
    MOVE,
    REDRIVEN,
    REMOVE,
    REMOVE_NAMES,
    REMOVED_DAMAGED,
    REMOVED_EXPIRED,
    REMOVED_OVERFLOW,
    REMOVED_RECEIVES,
    REMOVED_REJECTED,
)
from .rules import REJECTING_OVERFLOWS, add_dead_letter_event, dead_letter_route, route_before, would_loop

if TYPE_CHECKING:
    from .engine import Engine

_MAX_CASCADE = 8  # how many dead-letter queues may overflow into each other


class DeadLetters:
    """Messages that leave a queue without an ack."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def end_deferred_overflow(self, now_ms: int) -> None:
        """End the deferral: full queues drop messages at once again, and deferred queues do it now."""
        held, self._engine.deferred_overflow = self._engine.deferred_overflow or (), None
        for queue in dict.fromkeys(held):
            self.overflow(queue, now_ms)

    def overflow(self, queue: QueueState, now_ms: int, cascade: int = 0) -> None:
        engine = self._engine
        settings = queue.settings
        if (
            settings.max_length is None and settings.max_bytes is None
        ) or settings.overflow in REJECTING_OVERFLOWS:
            return
        if engine.deferred_overflow is not None:
            engine.deferred_overflow.append(queue)
            return
        while (settings.max_length is not None and queue.waiting_count > settings.max_length) or (
            settings.max_bytes is not None and queue.waiting_bytes > settings.max_bytes
        ):
            entry = queue.ready.lowest()
            if entry is None:
                # All waiting messages are delayed: the newest is dropped.
                entry = queue.delayed.newest()
            try:
                self._drop_overflowed(queue, entry, now_ms, cascade)
            except OpenQError:
                # The log refused. The change that caused the overflow is already recorded and applied, so the
                # queue stays over its limit until the next overflow check.
                return

    def _drop_overflowed(self, queue: QueueState, entry: Entry, now_ms: int, cascade: int) -> None:
        engine = self._engine
        targets = None
        if queue.settings.overflow == "dead-letter" and cascade < _MAX_CASCADE:
            targets = self.dead_letter_targets(queue, entry, DEAD_OVERFLOW)
        if targets:
            self.log_move(queue, entry, targets, DEAD_OVERFLOW, None, now_ms)
            engine.remove_waiting(queue, entry)
            self.finish_move(queue, entry, targets, DEAD_OVERFLOW, None, now_ms, cascade + 1)
        else:
            engine.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_OVERFLOW, [entry.seq]))
            engine.remove_waiting(queue, entry)
            self.removed(queue, entry, REMOVED_OVERFLOW, now_ms)

    def dead_letter_targets(self, queue: QueueState, entry: Entry, why: int) -> list[QueueState] | None:
        """The queues for this queue's dead letters.

        None: there is none, so the message should be kept.
        """
        engine = self._engine
        settings = queue.settings
        if settings.dead_letter_exchange is not None:
            if settings.dead_letter_exchange not in engine.router:
                return None
            _, key = dead_letter_route(queue, entry.options) or ("", "")
            headers = self._headers(settings.dead_letter_exchange, entry)
            names = engine.router.route(settings.dead_letter_exchange, key, headers)
            targets = [engine.queues[name] for name in names if name in engine.queues]
        elif settings.dead_letter in engine.queues:
            targets = [engine.queues[settings.dead_letter]]
        else:
            return None
        return [target for target in targets if not would_loop(queue, entry.options, target, why)]

    def _headers(self, exchange: str, entry: Entry) -> Properties | None:
        """The properties that hold the attributes, read from disk if needed.

        Only an exchange that looks at headers is worth that read.
        """
        properties = entry.properties
        looks = self._engine.router.get(exchange).kind == "headers"
        if looks and properties is None and entry.location and self._engine.load_properties is not None:
            properties = self._engine.load_properties(entry.location)
        return properties

    def log_move(
        self,
        queue: QueueState,
        entry: Entry,
        targets: Sequence[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        """Log the whole move as one record. `finish_move` follows once the entry is out of its queue."""
        self._engine.log_record(
            (MOVE, now_ms, queue.number, entry.seq, why, reason, self._moves(entry.seq, targets))
        )

    def _moves(self, seq: int, targets: Sequence[QueueState]) -> tuple[tuple[int, int, int], ...]:
        return tuple((seq, target.number, self._engine.next_seq + i) for i, target in enumerate(targets))

    def finish_move(
        self,
        queue: QueueState,
        entry: Entry,
        targets: Sequence[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
        cascade: int = 0,
    ) -> None:
        engine = self._engine
        moves = self._moves(entry.seq, targets)
        engine.next_seq += len(targets)
        self.moved(queue, entry, moves, why, reason, now_ms)
        if why in DEAD_LETTER_NAMES:
            engine.emit(
                "dead-lettered", queue, entry, now_ms, split_failure(reason)[0] or DEAD_LETTER_NAMES[why]
            )
        else:
            engine.emit("moved", queue, entry, now_ms, targets[0].name)
        for target in targets:
            self.overflow(target, now_ms, cascade)

    def moved(
        self,
        queue: QueueState,
        entry: Entry,
        moves: Iterable[tuple[int, int, int]],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        engine = self._engine
        engine.forget_entry(queue, entry)
        old = entry.options
        queue.counters.moved_out += 1
        if why in DEAD_LETTER_NAMES:
            queue.counters.dead_lettered += 1
        if why == DEAD_EXPIRED:
            queue.counters.expired += 1
        for _, number, seq in moves:
            target = engine.numbered[number]
            options = old.copy() if old is not None else DeliveryOptions()
            options.id = engine.id_of(entry)
            options.born_ms = options.born_ms or entry.sent_ms
            if why in DEAD_LETTER_NAMES:
                options.deaths = add_dead_letter_event(queue, options, why, reason, now_ms)
                options.route = dead_letter_route(queue, old)
            elif why == REDRIVEN and options.deaths and options.deaths[0].queue == target.name:
                options.route = route_before(target, options.deaths[0])
            options.count = 0
            options.number = 0
            options.first_ms = 0
            options.due_ms = 0
            options.expires_ms = 0
            options.unique = None
            options.dedup = None
            ttl_ms = target.settings.ttl_ms
            if ttl_ms is not None:
                options.expires_ms = now_ms + ttl_ms
            target.counters.moved_in += 1
            moved = Entry(
                seq, now_ms, entry.location, entry.size, entry.encoding, entry.body, entry.properties, options
            )
            engine.add_entry(target, moved, now_ms)

    def removed(self, queue: QueueState, entry: Entry, why: int, now_ms: int) -> None:
        """A message was removed without an ack. It is already logged and out of its structures."""
        self._engine.forget_entry(queue, entry)
        queue.counters.removed += 1
        if why == REMOVED_EXPIRED:
            queue.counters.expired += 1
        elif why == REMOVED_DAMAGED:
            queue.counters.damaged += 1
        self._engine.emit("removed", queue, entry, now_ms, REMOVE_NAMES[why])

    def dead_letter_delivery(
        self,
        queue: QueueState,
        delivery: Delivery,
        targets: list[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        """End a delivery by dead-lettering its message, or by removing it."""
        engine = self._engine
        entry = engine.leases.with_delivery_count(delivery, reason)
        if targets:
            self.log_move(queue, entry, targets, why, reason, now_ms)
        else:
            engine.log_record((REMOVE, now_ms, queue.number, 0, _removal_reason(why), [entry.seq]))
        del queue.leases[entry.seq]
        self.count_end(queue, delivery, now_ms)
        if targets:
            self.finish_move(queue, entry, targets, why, reason, now_ms)
        else:
            self.removed(queue, entry, _removal_reason(why), now_ms)
        engine.delivery_ended(queue, entry, now_ms)

    def count_end(self, queue: QueueState, delivery: Delivery, now_ms: int) -> None:
        """Count how a delivery ended. Its record does not say.

        A consumer cannot end a lease after its deadline, and before it nothing else can.
        """
        if 0 < delivery.until_ms <= now_ms:
            queue.counters.lease_expired += 1
        else:
            queue.counters.nacked += 1

    def expire_taken(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """A message whose TTL is over, found during a receive."""
        self.dead_letter_taken(queue, entry, self.expiry_targets(queue, entry, now_ms), DEAD_EXPIRED, now_ms)

    def expiry_targets(self, queue: QueueState, entry: Entry, now_ms: int) -> list[QueueState]:
        if not queue.settings.dead_letter_expired:
            return []
        deaths = () if entry.options is None else entry.options.deaths
        if len(deaths) == MAX_DEAD_LETTER_EVENTS and deaths[-1].time_ms == now_ms:
            # Queues that expire at once into each other, more of them than a message remembers: the loop
            # would not show.
            return []
        return self.dead_letter_targets(queue, entry, DEAD_EXPIRED) or []

    def exhausted_targets(self, queue: QueueState, entry: Entry) -> list[QueueState] | None:
        """Where a message goes whose receives are used up; None: it stays."""
        targets = self.dead_letter_targets(queue, entry, DEAD_RECEIVES)
        return [] if targets is None and queue.settings.exhausted == "drop" else targets

    def dead_letter_taken(
        self, queue: QueueState, entry: Entry, targets: list[QueueState], why: int, now_ms: int
    ) -> None:
        """Dead-letter or remove a message that a receive has taken."""
        reason = None if entry.options is None else entry.options.failure
        if targets:
            self.log_move(queue, entry, targets, why, reason, now_ms)
        else:
            self._engine.log_record((REMOVE, now_ms, queue.number, 0, _removal_reason(why), [entry.seq]))
        queue.waiting_bytes -= entry.size
        queue.ready.delivery_ended(entry, now_ms)
        limited = queue.limited_order if queue.limits is not None else None
        if limited is not None:
            limited.refund(entry, now_ms)
        if targets:
            self.finish_move(queue, entry, targets, why, reason, now_ms)
        else:
            self.removed(queue, entry, _removal_reason(why), now_ms)

    def expire_one(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        engine = self._engine
        targets = self.expiry_targets(queue, entry, now_ms)
        if targets:
            self.log_move(queue, entry, targets, DEAD_EXPIRED, None, now_ms)
        else:
            engine.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_EXPIRED, [entry.seq]))
        engine.remove_waiting(queue, entry)
        if targets:
            self.finish_move(queue, entry, targets, DEAD_EXPIRED, None, now_ms)
        else:
            self.removed(queue, entry, REMOVED_EXPIRED, now_ms)


def _removal_reason(why: int) -> int:
    """The removal reason for a dead-letter reason, where there is no dead-letter queue."""
    return _REMOVAL_REASONS[why]


_REMOVAL_REASONS = {
    DEAD_EXPIRED: REMOVED_EXPIRED,
    DEAD_REJECTED: REMOVED_REJECTED,
    DEAD_RECEIVES: REMOVED_RECEIVES,
}
