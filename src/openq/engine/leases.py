"""Leases: receive, ack, nack, reject, extend.

A delivery is a lease with one receipt. It ends by an ack, by being returned, or at its deadline. A receipt
whose lease has ended never affects another consumer's delivery.

No caller waits for the record of a lease, with one exception: `guarded` lists deliveries that a client must
not see before their lease is on disk. These are redeliveries, and deliveries of messages that existed when
an earlier process died (`maybe_delivered_below`), which may have delivered them unrecorded. So crashes forget
at most one delivery of a message: its first, in the process that published or moved it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from ..errors import MessageNotFoundError, OpenQError
from ..model import (
    MAX_SPAN_MS,
    NO_DEADLINE,
    Delivery,
    DeliveryOptions,
    Entry,
    MessageFilter,
    span_error,
    split_failure,
)
from .lease_timers import BUCKET_BITS, arm_leases, arm_tokens
from .queue import QueueState
from .ready import StandardOrder
from .records import (
    ACK,
    DEAD_EXPIRED,
    DEAD_RECEIVES,
    DEAD_REJECTED,
    DELIVER,
    EXPIRED,
    EXTEND,
    NACKED,
    RELEASED,
    REMOVE,
    REMOVED_DAMAGED,
    REMOVED_REJECTED,
    RETURN,
)
from .rules import is_expired, is_zero_ttl, with_options
from .selection import select
from .timers import MAX_TIMERS_PER_STEP

STUCK_RECEIVES = 10

if TYPE_CHECKING:
    from .engine import Engine


class Leases:
    """Deliveries: from `receive` to the end of their lease."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def receive(
        self,
        queue: QueueState,
        limit: int,
        now_ms: int,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
    ) -> list[Delivery]:
        """Deliver up to `limit` messages, in order.

        `lease_ms` NO_DEADLINE binds the leases to the consumer.
        """
        engine = self._engine
        if now_ms >= engine.timers.next_ms:
            engine.expiry.advance(now_ms, MAX_TIMERS_PER_STEP)
        if lease_ms is not None and not NO_DEADLINE <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)  # checked even if no message can be delivered
        settings = queue.settings
        ready = queue.ready
        if not ready.count or settings.paused or limit < 1:
            return []
        if lease_ms is None:
            lease_ms = settings.visibility_ms
        until_ms = 0 if lease_ms == NO_DEADLINE else now_ms + lease_ms
        if limit > 1 and wanted is None and isinstance(ready, StandardOrder):
            entries = ready.pop_plain(limit, now_ms - settings.retention_ms)
            if entries:
                return self._deliver_plain_batch(queue, entries, now_ms, until_ms, consumer)
        entry = ready.pop(now_ms) if limit == 1 and wanted is None and not queue.ends_matter else None
        if (
            entry is not None
            and (entry.options is None or entry.options.is_plain)
            and entry.sent_ms > now_ms - settings.retention_ms
        ):
            return [self._deliver_plain(queue, entry, now_ms, until_ms, consumer)]
        return self._receive(queue, limit, now_ms, until_ms, consumer, wanted, entry)

    def _deliver_plain(
        self, queue: QueueState, entry: Entry, now_ms: int, until_ms: int, consumer: str | None
    ) -> Delivery:
        """The fast path for one plain message."""
        engine = self._engine
        number = engine.next_number
        seq = entry.seq
        log = engine.log  # a bound method in an attribute is called faster as a local variable
        if log is not None:
            try:
                location = log((DELIVER, now_ms, queue.number, number, until_ms, consumer, (seq,)))
            except BaseException:
                queue.ready.put_back(entry)
                raise
            if seq < engine.maybe_delivered_below and location:
                engine.guarded[number] = engine.guard_location = location
        engine.next_number = number + 1
        delivery = queue.leases[seq] = Delivery(entry, number, now_ms, until_ms, 1, consumer)
        queue.waiting_bytes -= entry.size
        queue.counters.delivered += 1
        if engine.times is not None:
            engine.times.delivered_one(queue.number, now_ms - entry.sent_ms)
        if until_ms:
            bucket = queue.lease_buckets.get(until_ms >> BUCKET_BITS)
            if bucket is not None:
                bucket.append(seq)
            else:
                arm_leases(engine, queue, (seq,), until_ms, now_ms)
        if engine.observer is not None:
            engine.observer("received", queue.name, engine.id_of(entry), now_ms, consumer or "")
        return delivery

    def _deliver_plain_batch(
        self, queue: QueueState, entries: list[Entry], now_ms: int, until_ms: int, consumer: str | None
    ) -> list[Delivery]:
        """The fast path for several plain messages."""
        engine = self._engine
        number = engine.next_number
        seqs = [entry.seq for entry in entries]
        if engine.log is not None:
            try:
                location = engine.log(
                    (DELIVER, now_ms, queue.number, number, until_ms, consumer, tuple(seqs))
                )
            except BaseException:
                for entry in entries:
                    queue.ready.put_back(entry)
                raise
            if engine.maybe_delivered_below and location:
                self._guard(seqs, number, location)
        engine.next_number = number + len(entries)
        numbers = range(number, engine.next_number)
        each = repeat(now_ms), repeat(until_ms), repeat(1), repeat(consumer)
        deliveries = list(map(Delivery, entries, numbers, *each))
        queue.leases.update(zip(seqs, deliveries, strict=True))
        queue.waiting_bytes -= sum([entry.size for entry in entries])
        queue.counters.delivered += len(entries)
        if engine.times is not None:
            engine.times.delivered(queue.number, [now_ms - entry.sent_ms for entry in entries])
        if until_ms:
            arm_leases(engine, queue, seqs, until_ms, now_ms)
        if engine.observer is not None:
            for entry in entries:
                engine.observer("received", queue.name, engine.id_of(entry), now_ms, consumer or "")
        return deliveries

    def _receive(
        self,
        queue: QueueState,
        limit: int,
        now_ms: int,
        until_ms: int,
        consumer: str | None,
        wanted: MessageFilter | None,
        taken: Entry | None = None,
    ) -> list[Delivery]:
        """The slow path. `taken` is the first message if it was already removed from its place."""
        engine = self._engine
        settings = queue.settings
        number = engine.next_number
        horizon_ms = now_ms - settings.retention_ms
        max_receives = settings.max_receives
        entries = [] if wanted is None else select(engine, queue, wanted, limit, now_ms)
        deliveries: list[Delivery] = []
        pop = queue.ready.pop
        entry: Entry | None = None
        location: int | None = 0
        try:
            while len(deliveries) < limit:
                if taken is not None:
                    entry, taken = taken, None
                elif wanted is None:
                    entry = pop(now_ms)
                else:
                    entry = entries.pop() if entries else None
                if entry is None:
                    break
                options = entry.options
                if options is None:
                    if entry.sent_ms <= horizon_ms:
                        engine.dead_letters.expire_taken(queue, entry, now_ms)
                        continue
                    count = 1
                else:
                    if is_expired(entry, horizon_ms, now_ms) and not is_zero_ttl(entry, horizon_ms, now_ms):
                        engine.dead_letters.expire_taken(queue, entry, now_ms)
                        continue
                    count = options.count + 1
                    if max_receives is not None and count > max_receives:
                        targets = engine.dead_letters.exhausted_targets(queue, entry)
                        if targets is not None:
                            engine.dead_letters.dead_letter_taken(
                                queue, entry, targets, DEAD_RECEIVES, now_ms
                            )
                            continue
                deliveries.append(Delivery(entry, number, now_ms, until_ms, count, consumer))
                entry = None
                number += 1
            if deliveries and engine.log is not None:
                seqs = tuple([delivery.entry.seq for delivery in deliveries])
                location = engine.log(
                    (DELIVER, now_ms, queue.number, engine.next_number, until_ms, consumer, seqs)
                )
                if engine.maybe_delivered_below and location:
                    self._guard(seqs, engine.next_number, location)
        except BaseException:
            # The log refused: nothing was delivered. All messages go back to their places.
            back = [delivery.entry for delivery in deliveries] + entries[::-1]
            limited = queue.limited_order
            for each in back if entry is None else [*back, entry]:
                queue.ready.put_back(each)
                queue.ready.delivery_ended(each, now_ms)
                if limited is not None:
                    limited.refund(each, now_ms)
            raise
        finally:
            queue.ready.end_batch()
        if queue.limits is not None and len(deliveries) < limit:
            arm_tokens(engine, queue, now_ms)
        if deliveries:
            engine.next_number = number
            self.deliver(queue, deliveries, until_ms, now_ms, location or 0)
            if engine.observer is not None:
                for delivery in deliveries:
                    engine.observer(
                        "received", queue.name, engine.id_of(delivery.entry), now_ms, consumer or ""
                    )
        return deliveries

    def _guard(self, seqs: Sequence[int], number: int, location: int) -> None:
        """Guard deliveries of messages that may have been delivered unrecorded.

        The deliveries are consecutive and recorded at `location`.
        """
        engine = self._engine
        for i, seq in enumerate(seqs):
            if seq < engine.maybe_delivered_below:
                engine.guarded[number + i] = engine.guard_location = location

    def deliver(
        self, queue: QueueState, deliveries: list[Delivery], until_ms: int, now_ms: int, location: int = 0
    ) -> None:
        """Start the leases. `location` is that of their record if it may not be on disk yet."""
        engine = self._engine
        leases = queue.leases
        counters = queue.counters
        for delivery in deliveries:
            entry = delivery.entry
            leases[entry.seq] = delivery
            queue.waiting_bytes -= entry.size
            if delivery.count > 1:
                counters.redelivered += 1
                if location:
                    engine.guarded[delivery.number] = engine.guard_location = location
                if delivery.count == STUCK_RECEIVES and queue.settings.max_receives is None:
                    counters.stuck += 1
        counters.delivered += len(deliveries)
        if engine.times is not None:
            waits = [now_ms - each.entry.sent_ms for each in deliveries if each.count == 1]
            if waits:
                engine.times.delivered(queue.number, waits)
        if until_ms:
            arm_leases(engine, queue, [delivery.entry.seq for delivery in deliveries], until_ms, now_ms)

    def ack(self, queue: QueueState, seq: int, number: int, now_ms: int) -> None:
        """Ack a delivery. Its receipt must be the live one."""
        engine = self._engine
        delivery = queue.leases.get(seq)
        if delivery is None or delivery.number != number or 0 < delivery.until_ms <= now_ms:
            raise queue.receipt_error(seq)
        log = engine.log
        if log is not None:
            log((ACK, now_ms, queue.number, seq, (seq,)))
        del queue.leases[seq]
        queue.counters.acked += 1
        entry = delivery.entry
        if engine.times is not None:
            engine.times.acked_one(queue.number, entry.sent_ms, delivery.delivered_ms, now_ms)
        options = entry.options
        if (options is not None and not options.is_plain) or queue.ends_matter:
            engine.forget_entry(queue, entry)
            engine.delivery_ended(queue, entry, now_ms)
        if engine.observer is not None:
            engine.observer("acked", queue.name, engine.id_of(entry), now_ms, "")

    def ack_many(
        self, queue: QueueState, receipts: Sequence[tuple[int, int]], now_ms: int
    ) -> list[OpenQError | None]:
        """Ack many with one record; returns the error of each that cannot be acked."""
        engine = self._engine
        leases = queue.leases
        results: list[OpenQError | None] = []
        done: dict[int, Delivery] = {}
        for seq, number in receipts:
            delivery = leases.get(seq)
            if (
                delivery is None
                or delivery.number != number
                or 0 < delivery.until_ms <= now_ms
                or seq in done
            ):
                results.append(
                    MessageNotFoundError(seq, queue.name) if seq in done else queue.receipt_error(seq)
                )
            else:
                done[seq] = delivery
                results.append(None)
        if done:
            engine.log_record((ACK, now_ms, queue.number, 0, tuple(done)))
            for seq, delivery in done.items():
                del leases[seq]
                entry = delivery.entry
                options = entry.options
                if (options is not None and not options.is_plain) or queue.ends_matter:
                    engine.forget_entry(queue, entry)
                    engine.delivery_ended(queue, entry, now_ms)
                if engine.observer is not None:
                    engine.observer("acked", queue.name, engine.id_of(entry), now_ms, "")
            queue.counters.acked += len(done)
            if engine.times is not None:
                engine.times.acked(queue.number, done.values(), now_ms)
        return results

    def ack_late(self, queue: QueueState, seq: int, number: int, now_ms: int) -> bool:
        """Ack by any receipt of a message that is not in flight.

        A delivery of another consumer is never acked. A crash may have forgotten a delivery. For a message
        that may have been delivered unrecorded, every delivery number of an earlier process is accepted.
        """
        engine = self._engine
        delivery = queue.leases.get(seq)
        if delivery is not None:
            if 0 < delivery.until_ms <= now_ms:
                engine.expiry.advance(now_ms)
            elif delivery.number == number:
                self.ack(queue, seq, number, now_ms)
                return True
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None:
            return False
        known = 0 if entry.options is None else entry.options.number
        is_forgotten = seq < engine.maybe_delivered_below and number < engine.first_number
        if not 0 < number <= known and not (number > 0 and is_forgotten):
            return False
        engine.log_record((ACK, now_ms, queue.number, seq, (seq,)))
        self.ack_waiting(queue, seq)
        engine.emit("acked", queue, entry, now_ms)
        return True

    def ack_waiting(self, queue: QueueState, seq: int) -> None:
        entry = queue.take_waiting(seq)
        if entry is not None:
            self._engine.forget_entry(queue, entry)
            queue.counters.acked += 1

    def nack(
        self,
        queue: QueueState,
        seq: int,
        number: int,
        now_ms: int,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> str:
        """Return a delivery to its queue.

        Without a delay, the queue's retry policy decides when it is retried. Returns "returned" or, when its
        receives are used up, "dead-lettered".
        """
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        delivery = queue.lease(seq, number, now_ms)
        return self.return_delivery(queue, delivery, NACKED, reason, delay_ms, now_ms)

    def nack_many(
        self,
        queue: QueueState,
        receipts: Sequence[tuple[int, int]],
        now_ms: int,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]:
        """`nack` for many: the outcome of each, or its error. Messages that simply return are one record."""
        engine = self._engine
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        settings = queue.settings
        horizon_ms = now_ms - settings.retention_ms
        max_receives = settings.max_receives
        given = self._live(queue, receipts, now_ms)
        outcomes = dict.fromkeys(given, "returned")
        back: list[tuple[Delivery, int]] = []
        for seq, delivery in given.items():
            used_up = max_receives is not None and delivery.count >= max_receives
            if used_up or is_expired(delivery.entry, horizon_ms, now_ms):
                outcomes[seq] = self.return_delivery(queue, delivery, NACKED, reason, delay_ms, now_ms)
            else:
                back.append((delivery, self._due_again(queue, delivery, NACKED, delay_ms, now_ms)))
        if back:
            pairs = tuple([(delivery.entry.seq, due_ms) for delivery, due_ms in back])
            engine.log_record((RETURN, now_ms, queue.number, 0, NACKED, reason, pairs))
        for delivery, due_ms in back:
            self.requeue(queue, delivery, NACKED, reason, due_ms, now_ms)
            engine.emit("requeued", queue, delivery.entry, now_ms, split_failure(reason)[0] or "")
        return self._outcomes(queue, receipts, given, outcomes)

    def reject_many(
        self, queue: QueueState, receipts: Sequence[tuple[int, int]], now_ms: int, reason: str | None = None
    ) -> list[str | OpenQError]:
        """`reject` for many: the outcome of each, or its error.

        Messages without a dead-letter target are one record.
        """
        engine = self._engine
        given = self._live(queue, receipts, now_ms)
        outcomes = dict.fromkeys(given, "dead-lettered")
        gone: list[Delivery] = []
        for delivery in given.values():
            targets = engine.dead_letters.dead_letter_targets(queue, delivery.entry, DEAD_REJECTED)
            if targets:
                engine.dead_letters.dead_letter_delivery(
                    queue, delivery, targets, DEAD_REJECTED, reason, now_ms
                )
            else:
                gone.append(delivery)
        if gone:
            seqs = [delivery.entry.seq for delivery in gone]
            outcomes.update(dict.fromkeys(seqs, "removed"))
            engine.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_REJECTED, seqs))
        queue.counters.nacked += len(gone)
        for delivery in gone:
            del queue.leases[delivery.entry.seq]
            engine.dead_letters.removed(queue, delivery.entry, REMOVED_REJECTED, now_ms)
            engine.delivery_ended(queue, delivery.entry, now_ms)
        return self._outcomes(queue, receipts, given, outcomes)

    def _outcomes(
        self,
        queue: QueueState,
        receipts: Sequence[tuple[int, int]],
        given: dict[int, Delivery],
        outcomes: dict[int, str],
    ) -> list[str | OpenQError]:
        """The outcome of each receipt; of two equal receipts the second one is an error."""
        if len(outcomes) == len(receipts):
            return [outcomes[seq] for seq, _ in receipts]
        results: list[str | OpenQError] = []
        for seq, number in receipts:
            is_live = seq in outcomes and given[seq].number == number
            results.append(outcomes.pop(seq) if is_live else queue.receipt_error(seq))
        return results

    def _live(
        self, queue: QueueState, receipts: Iterable[tuple[int, int]], now_ms: int
    ) -> dict[int, Delivery]:
        """The deliveries of the receipts that are still valid, by sequence."""
        found: dict[int, Delivery] = {}
        for seq, number in receipts:
            delivery = queue.leases.get(seq)
            if delivery is not None and delivery.number == number and not 0 < delivery.until_ms <= now_ms:
                found[seq] = delivery
        return found

    def release(self, queue: QueueState, seq: int, number: int, now_ms: int, delay_ms: int = 0) -> None:
        """Return a delivery as if it had never been made (its consumer is gone)."""
        delivery = queue.lease(seq, number, now_ms)
        self.return_delivery(queue, delivery, RELEASED, None, delay_ms, now_ms)

    def reject(self, queue: QueueState, seq: int, number: int, now_ms: int, reason: str | None = None) -> str:
        """Dead-letter a message at once. Without a dead-letter target it is removed."""
        delivery = queue.lease(seq, number, now_ms)
        targets = self._engine.dead_letters.dead_letter_targets(queue, delivery.entry, DEAD_REJECTED) or []
        self._engine.dead_letters.dead_letter_delivery(
            queue, delivery, targets, DEAD_REJECTED, reason, now_ms
        )
        return "dead-lettered" if targets else "removed"

    def set_aside(self, queue: QueueState, seq: int, now_ms: int) -> None:
        """Remove a message whose body cannot be read, wherever it is. A delivery of it is not counted."""
        engine = self._engine
        entry = queue.find(seq)
        if entry is None:
            return
        engine.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_DAMAGED, [seq]))
        delivery = queue.leases.pop(seq, None)
        if delivery is None:
            engine.remove_waiting(queue, entry)
        else:
            queue.counters.released += 1
        engine.dead_letters.removed(queue, entry, REMOVED_DAMAGED, now_ms)
        if delivery is not None:
            engine.delivery_ended(queue, entry, now_ms)

    def extend(self, queue: QueueState, seq: int, number: int, now_ms: int, lease_ms: int) -> int:
        """Set a new deadline, counted from now. Returns it."""
        if lease_ms < NO_DEADLINE or lease_ms > MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        delivery = queue.lease(seq, number, now_ms)
        until_ms = 0 if lease_ms == NO_DEADLINE else now_ms + lease_ms
        self._engine.log_record((EXTEND, now_ms, queue.number, seq, until_ms, (seq,)))
        self.set_deadline(queue, delivery, until_ms, now_ms)
        return until_ms

    def extend_late(self, queue: QueueState, seq: int, number: int, now_ms: int, lease_ms: int) -> int | None:
        """`extend` by the last receipt of a message, even if its lease has ended: it is in flight again.

        The delivery keeps its number and count. Returns the deadline; None if the message is gone or was
        delivered again since. A lease of 0 leaves a message that is not in flight where it is.
        """
        engine = self._engine
        if not 0 <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        delivery = queue.leases.get(seq)
        if delivery is not None and 0 < delivery.until_ms <= now_ms:
            engine.expiry.advance(now_ms)
        elif delivery is not None:
            return self.extend(queue, seq, number, now_ms, lease_ms) if delivery.number == number else None
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None or entry.options is None or not 0 < number == entry.options.number:
            return None
        until_ms = now_ms + lease_ms
        if lease_ms and queue.limits is not None and not queue.limits.has_slot(entry.group):
            return None  # another message has its slot by now
        if lease_ms:
            engine.log_record((EXTEND, now_ms, queue.number, seq, until_ms, (seq,)))
            self.deliver_again(queue, seq, until_ms, now_ms)
        return until_ms

    def deliver_again(self, queue: QueueState, seq: int, until_ms: int, now_ms: int) -> None:
        """Put a ready or delayed message in flight again, under its last delivery."""
        known = queue.find(seq)
        if known is None or known.options is None or not known.options.number:
            return
        entry = queue.take_for_delivery(seq, now_ms)
        queue.ready.end_batch()
        limited = queue.limited_order
        if entry is not None and limited is not None:
            limited.refund(entry, now_ms)  # no new delivery
        if entry is not None and entry.options is not None:
            options = entry.options
            queue.leases[seq] = Delivery(entry, options.number, now_ms, until_ms, options.count, None)
            queue.waiting_bytes -= entry.size
            if until_ms:
                arm_leases(self._engine, queue, (seq,), until_ms, now_ms)

    def extend_many(
        self, queue: QueueState, receipts: Iterable[tuple[int, int]], now_ms: int, until_ms: int
    ) -> int:
        """One deadline for many, as one record.

        Receipts whose lease has ended are skipped. Returns how many were extended.
        """
        given = self._live(queue, receipts, now_ms)
        if given:
            seqs = tuple(given)
            self._engine.log_record((EXTEND, now_ms, queue.number, 0, until_ms, seqs))
            for delivery in given.values():
                delivery.until_ms = until_ms
            arm_leases(self._engine, queue, seqs, until_ms, now_ms)
        return len(given)

    def set_deadline(self, queue: QueueState, delivery: Delivery, until_ms: int, now_ms: int) -> None:
        delivery.until_ms = until_ms
        if until_ms:
            arm_leases(self._engine, queue, (delivery.entry.seq,), until_ms, now_ms)

    def return_delivery(
        self,
        queue: QueueState,
        delivery: Delivery,
        why: int,
        reason: str | None,
        delay_ms: int | None,
        now_ms: int,
    ) -> str:
        engine = self._engine
        settings = queue.settings
        entry = delivery.entry
        if is_expired(entry, now_ms - settings.retention_ms, now_ms):
            targets: list[QueueState] | None = engine.dead_letters.expiry_targets(queue, entry, now_ms)
            engine.dead_letters.dead_letter_delivery(
                queue, delivery, targets or [], DEAD_EXPIRED, reason, now_ms
            )
            return "dead-lettered" if targets else "expired"
        max_receives = settings.max_receives
        if why != RELEASED and max_receives is not None and delivery.count >= max_receives:
            targets = engine.dead_letters.exhausted_targets(queue, entry)
            if targets is not None:
                engine.dead_letters.dead_letter_delivery(
                    queue, delivery, targets, DEAD_RECEIVES, reason, now_ms
                )
                return "dead-lettered" if targets else "removed"
        due_ms = self._due_again(queue, delivery, why, delay_ms, now_ms)
        seq = entry.seq
        engine.log_record((RETURN, now_ms, queue.number, seq, why, reason, ((seq, due_ms),)))
        self.requeue(queue, delivery, why, reason, due_ms, now_ms)
        engine.emit(
            "expired" if why == EXPIRED else "requeued", queue, entry, now_ms, split_failure(reason)[0] or ""
        )
        return "returned"

    def _due_again(
        self, queue: QueueState, delivery: Delivery, why: int, delay_ms: int | None, now_ms: int
    ) -> int:
        """When a returned message is retried; 0: at once."""
        if delay_ms is None:
            retry = queue.settings.retry
            if why == EXPIRED and not retry.on_expiry:
                return 0
            random_fraction = self._random_fraction(delivery.entry.seq, delivery.count)
            delay_ms = retry.delay_ms(delivery.count, random_fraction)
        return now_ms + delay_ms if delay_ms > 0 else 0

    def requeue(
        self, queue: QueueState, delivery: Delivery, why: int, reason: str | None, due_ms: int, now_ms: int
    ) -> None:
        """Return a message in flight to its place, not before `due_ms`."""
        engine = self._engine
        entry = delivery.entry
        del queue.leases[entry.seq]
        if why != RELEASED:
            entry = self.with_delivery_count(delivery, reason)
            if why == EXPIRED:
                queue.counters.lease_expired += 1
            else:
                queue.counters.nacked += 1
        else:
            queue.counters.released += 1
        if due_ms or (entry.options is not None and entry.options.due_ms):
            options = entry.options.copy() if entry.options is not None else DeliveryOptions()
            options.due_ms = due_ms
            entry = with_options(entry, options)
        engine.put_back(queue, entry, now_ms)
        engine.delivery_ended(queue, entry, now_ms)
        limited = queue.limited_order if why == RELEASED and queue.limits is not None else None
        if limited is not None:
            limited.refund(entry, now_ms)

    def with_delivery_count(self, delivery: Delivery, reason: str | None) -> Entry:
        """The entry as it returns to the queue: with its deliveries counted and the failure reason kept."""
        entry = delivery.entry
        options = entry.options.copy() if entry.options is not None else DeliveryOptions()
        options.count = delivery.count
        options.number = delivery.number
        options.first_ms = options.first_ms or delivery.delivered_ms
        if reason is not None:
            options.failure = reason
        return with_options(entry, options)

    def _random_fraction(self, seq: int, count: int) -> float:
        """A number in [0, 1) that depends only on the seed and the delivery."""
        x = (self._engine.seed ^ seq * 0x9E3779B97F4A7C15 ^ count * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        return (x ^ x >> 31) / 2**64
