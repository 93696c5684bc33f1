"""Lending: receive, ack, nack, reject, extend, and what time alone brings about.

A delivery is a lease with one receipt. It ends by ack, by being given back, or by its deadline; a receipt
whose lease is over never touches another consumer's delivery.

Nobody waits for the record of a lease, with one exception: `guarded` names deliveries that must not be seen
before it is on disk. These are redeliveries, and all deliveries of messages that were there when an earlier
process died (`suspects_below`), for it may have delivered them unrecorded. So crashes forget one delivery of
a message at most, whatever dies and how often: its first, in the process that published or moved it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat, takewhile
from typing import Any

from ..errors import MessageNotFoundError, OpenQError
from ..model import (
    MAX_DEAD_LETTER_EVENTS,
    MAX_SPAN_MS,
    NO_DEADLINE,
    Delivery,
    DeliveryOptions,
    Entry,
    span_error,
    split_failure,
)
from .delayed import Bucket, due_of
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
    REMOVED_EXPIRED,
    REMOVED_RECEIVES,
    REMOVED_REJECTED,
    RETURN,
)
from .state import DELAY, DELAYS, LEASE, LEASES, TTL, WAKE, EngineState, with_options
from .timers import Timers

STUCK_RECEIVES = 10
MAX_TIMERS_PER_STEP = 1000  # deadlines dealt with before others get their turn
_RETRY_MS = 200
_MAX_SPREAD = (
    4096  # delayed messages of a far bucket that are spread at a time, before others have their turn
)
_BUCKET_BITS = 10  # leases are kept by bits of their deadline: 1,024 ms together


class Leases(EngineState):
    def receive(
        self,
        queue: QueueState,
        limit: int,
        now_ms: int,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]:
        """Lend up to `limit` messages, in order. `lease_ms` NO_DEADLINE binds them to the consumer."""
        if now_ms >= self.timers.next_ms:
            self.advance(now_ms, MAX_TIMERS_PER_STEP)
        if lease_ms is not None and not NO_DEADLINE <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)  # now, and not only when there is something to lend
        settings = queue.settings
        ready = queue.ready
        if not ready.count or settings.paused or limit < 1:
            return []
        if lease_ms is None:
            lease_ms = settings.visibility_ms
        until_ms = 0 if lease_ms == NO_DEADLINE else now_ms + lease_ms
        if limit > 1 and types is None and isinstance(ready, StandardOrder):
            entries = ready.pop_plain(limit, now_ms - settings.retention_ms)
            if entries:
                return self._deliver_plain_batch(queue, entries, now_ms, until_ms, consumer)
        entry = ready.pop(now_ms) if limit == 1 and types is None and not queue.fifo else None
        if (
            entry is not None
            and (entry.options is None or entry.options.is_plain)
            and entry.sent_ms > now_ms - settings.retention_ms
        ):
            return [self._deliver_plain(queue, entry, now_ms, until_ms, consumer)]
        return self._receive(queue, limit, now_ms, until_ms, consumer, types, entry)

    def _deliver_plain(
        self, queue: QueueState, entry: Entry, now_ms: int, until_ms: int, consumer: str | None
    ) -> Delivery:
        """The short way: one message that nothing is known of but its body."""
        number = self.next_number
        seq = entry.seq
        if self.log is not None:
            try:
                location = self.log((DELIVER, now_ms, queue.number, number, until_ms, consumer, (seq,)))
            except BaseException:
                queue.ready.put_back(entry)
                raise
            if seq < self.maybe_delivered_below and location:
                self.guarded[number] = self.guard_location = location
        self.next_number = number + 1
        delivery = queue.leases[seq] = Delivery(entry, number, now_ms, until_ms, 1, consumer)
        queue.waiting_bytes -= entry.size
        queue.counters.delivered += 1
        if until_ms:
            bucket = queue.lease_buckets.get(until_ms >> _BUCKET_BITS)
            if bucket is not None:
                bucket.append(seq)
            else:
                self._arm_leases(queue, (seq,), until_ms, now_ms)
        if self.observer is not None:
            self.observer("received", queue.name, self.id_of(entry), now_ms, consumer or "")
        return delivery

    def _deliver_plain_batch(
        self, queue: QueueState, entries: list[Entry], now_ms: int, until_ms: int, consumer: str | None
    ) -> list[Delivery]:
        """The short way for several of that kind."""
        number = self.next_number
        seqs = [entry.seq for entry in entries]
        if self.log is not None:
            try:
                location = self.log((DELIVER, now_ms, queue.number, number, until_ms, consumer, tuple(seqs)))
            except BaseException:
                for entry in entries:
                    queue.ready.put_back(entry)
                raise
            if self.maybe_delivered_below and location:
                self._guard(seqs, number, location)
        self.next_number = number + len(entries)
        numbers = range(number, self.next_number)
        each = repeat(now_ms), repeat(until_ms), repeat(1), repeat(consumer)
        deliveries = list(map(Delivery, entries, numbers, *each))
        queue.leases.update(zip(seqs, deliveries, strict=True))
        queue.waiting_bytes -= sum([entry.size for entry in entries])
        queue.counters.delivered += len(entries)
        if until_ms:
            self._arm_leases(queue, seqs, until_ms, now_ms)
        if self.observer is not None:
            for entry in entries:
                self.observer("received", queue.name, self.id_of(entry), now_ms, consumer or "")
        return deliveries

    def _receive(
        self,
        queue: QueueState,
        limit: int,
        now_ms: int,
        until_ms: int,
        consumer: str | None,
        types: Iterable[str] | None,
        taken: Entry | None = None,
    ) -> list[Delivery]:
        """The long way; `taken` is the first of them where it is out of its place already."""
        settings = queue.settings
        number = self.next_number
        horizon_ms = now_ms - settings.retention_ms
        max_receives = settings.max_receives
        entries = [] if types is None else self._of_types(queue, frozenset(types), limit, now_ms)
        deliveries: list[Delivery] = []
        pop = queue.ready.pop
        entry: Entry | None = None
        location: int | None = 0
        try:
            while len(deliveries) < limit:
                if taken is not None:
                    entry, taken = taken, None
                elif types is None:
                    entry = pop(now_ms)
                else:
                    entry = entries.pop() if entries else None
                if entry is None:
                    break
                options = entry.options
                if options is None:
                    if entry.sent_ms <= horizon_ms:
                        self._expire_taken(queue, entry, now_ms)
                        continue
                    count = 1
                else:
                    if _is_expired(entry, horizon_ms, now_ms) and not _is_zero_ttl(entry, horizon_ms, now_ms):
                        self._expire_taken(queue, entry, now_ms)
                        continue
                    count = options.count + 1
                    if max_receives is not None and count > max_receives:
                        targets = self._exhausted_targets(queue, entry)
                        if targets is not None:
                            self._dead_letter_taken(queue, entry, targets, DEAD_RECEIVES, now_ms)
                            continue
                deliveries.append(Delivery(entry, number, now_ms, until_ms, count, consumer))
                entry = None
                number += 1
            if deliveries and self.log is not None:
                seqs = tuple([delivery.entry.seq for delivery in deliveries])
                location = self.log(
                    (DELIVER, now_ms, queue.number, self.next_number, until_ms, consumer, seqs)
                )
                if self.maybe_delivered_below and location:
                    self._guard(seqs, self.next_number, location)
        except BaseException:
            # The log refused: nothing was lent, all go back to their places.
            back = [delivery.entry for delivery in deliveries] + entries[::-1]
            for each in back if entry is None else [*back, entry]:
                queue.ready.put_back(each)
                queue.ready.delivery_ended(each, now_ms)
            raise
        finally:
            queue.ready.end_batch()
        if deliveries:
            self.next_number = number
            self._deliver(queue, deliveries, until_ms, now_ms, location or 0)
            if self.observer is not None:
                for delivery in deliveries:
                    self.observer("received", queue.name, self.id_of(delivery.entry), now_ms, consumer or "")
        return deliveries

    def _guard(self, seqs: Sequence[int], number: int, location: int) -> None:
        """Of consecutive deliveries recorded at `at`, those of suspects."""
        for i, seq in enumerate(seqs):
            if seq < self.maybe_delivered_below:
                self.guarded[number + i] = self.guard_location = location

    def _deliver(
        self, queue: QueueState, deliveries: list[Delivery], until_ms: int, now_ms: int, location: int = 0
    ) -> None:
        """Their record is at `at`, if it is one that may still be on its way to the disk."""
        leases = queue.leases
        counters = queue.counters
        for delivery in deliveries:
            entry = delivery.entry
            leases[entry.seq] = delivery
            queue.waiting_bytes -= entry.size
            if delivery.count > 1:
                counters.redelivered += 1
                if location:
                    self.guarded[delivery.number] = self.guard_location = location
                if delivery.count == STUCK_RECEIVES and queue.settings.max_receives is None:
                    counters.stuck += 1
        counters.delivered += len(deliveries)
        if until_ms:
            self._arm_leases(queue, [delivery.entry.seq for delivery in deliveries], until_ms, now_ms)

    def _arm_leases(self, queue: QueueState, seqs: Sequence[int], until_ms: int, now_ms: int) -> None:
        bucket = until_ms >> _BUCKET_BITS
        known = queue.lease_buckets.get(bucket)
        if known is not None:
            known.extend(seqs)
        elif bucket << _BUCKET_BITS <= now_ms:
            self.timers.add(until_ms, (LEASE, queue, seqs))
        else:
            self._compact_lease_buckets(queue)
            queue.forget_dedup(now_ms)
            queue.lease_buckets[bucket] = list(seqs)
            self.timers.add(bucket << _BUCKET_BITS, (LEASES, queue, bucket))

    def _compact_lease_buckets(self, queue: QueueState) -> None:
        """Long leases that were acked early must not be remembered until their deadlines."""
        buckets = queue.lease_buckets
        leases = queue.leases
        total = sum(map(len, buckets.values()))
        if total > 8192 and total > 4 * len(leases):
            for bucket, seqs in buckets.items():
                buckets[bucket] = [
                    seq for seq in seqs if seq in leases and leases[seq].until_ms >> _BUCKET_BITS == bucket
                ]

    def _open_bucket(self, queue: QueueState, bucket: int, now_ms: int) -> None:
        """Its second has come: exact deadlines for what is still on loan.

        Leases that end together end in the order of their messages, as on Redis: FIFO groups stand in line in
        the order in which they come back.
        """
        for seq in sorted(queue.lease_buckets.pop(bucket, ())):
            delivery = queue.leases.get(seq)
            if delivery is not None and delivery.until_ms >> _BUCKET_BITS == bucket:
                self.timers.add(delivery.until_ms, (LEASE, queue, (seq,)))

    def _of_types(self, queue: QueueState, types: frozenset[str], limit: int, now_ms: int) -> list[Entry]:
        """The first messages of these types, taken out; last one first. Walks past the others."""
        found: list[Entry] = []
        held: set[str | None] = set()
        for entry in queue.ready:
            if len(found) == limit:
                break
            group = entry.group
            if queue.settings.fifo and (
                group in held or queue.ready.is_held(entry) or entry.seq in queue.delayed  # type: ignore[union-attr]
            ):
                held.add(group)
            elif entry.options is not None and entry.options.type in types:
                found.append(entry)
            else:
                held.add(group)  # what comes later in a FIFO group must not overtake this one
        taken = [queue.ready.take(entry.seq, now_ms) for entry in found]
        return [entry for entry in reversed(taken) if entry is not None]

    def ack(self, queue: QueueState, seq: int, number: int, now_ms: int) -> None:
        """Finish a delivery. Its receipt must be the live one."""
        delivery = queue.leases.get(seq)
        if delivery is None or delivery.number != number or 0 < delivery.until_ms <= now_ms:
            raise queue.receipt_error(seq)
        if self.log is not None:
            self.log((ACK, now_ms, queue.number, seq, (seq,)))
        del queue.leases[seq]
        queue.counters.acked += 1
        entry = delivery.entry
        options = entry.options
        if (options is not None and not options.is_plain) or queue.fifo:
            self._forget_entry(queue, entry)
            self._delivery_ended(queue, entry, now_ms)
        if self.observer is not None:
            self.observer("acked", queue.name, self.id_of(entry), now_ms, "")

    def ack_many(
        self, queue: QueueState, receipts: Sequence[tuple[int, int]], now_ms: int
    ) -> list[OpenQError | None]:
        """One record for all that can be acked; the error of each that cannot."""
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
            self.log_record((ACK, now_ms, queue.number, 0, tuple(done)))
            for seq, delivery in done.items():
                del leases[seq]
                entry = delivery.entry
                options = entry.options
                if (options is not None and not options.is_plain) or queue.fifo:
                    self._forget_entry(queue, entry)
                    self._delivery_ended(queue, entry, now_ms)
                if self.observer is not None:
                    self.observer("acked", queue.name, self.id_of(entry), now_ms, "")
            queue.counters.acked += len(done)
        return results

    def ack_late(self, queue: QueueState, seq: int, number: int, now_ms: int) -> bool:
        """Ack by any receipt of a message that nobody holds now; never what another consumer holds.

        A crash may have forgotten a delivery: for a suspect every number of an earlier process counts.
        """
        delivery = queue.leases.get(seq)
        if delivery is not None:
            if 0 < delivery.until_ms <= now_ms:
                self.advance(now_ms)
            elif delivery.number == number:
                self.ack(queue, seq, number, now_ms)
                return True
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None:
            return False
        known = 0 if entry.options is None else entry.options.number
        is_forgotten = seq < self.maybe_delivered_below and number < self.first_number
        if not 0 < number <= known and not (number > 0 and is_forgotten):
            return False
        self.log_record((ACK, now_ms, queue.number, seq, (seq,)))
        self._ack_waiting(queue, seq)
        self._emit("acked", queue, entry, now_ms)
        return True

    def _ack_waiting(self, queue: QueueState, seq: int) -> None:
        entry = queue.take_waiting(seq)
        if entry is not None:
            self._forget_entry(queue, entry)
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
        """Give a delivery back. Without a delay the queue's retry policy says when it is tried again.

        Returns "returned" or, when its receives are used up, "dead-lettered".
        """
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        delivery = queue.lease(seq, number, now_ms)
        return self._return_delivery(queue, delivery, NACKED, reason, delay_ms, now_ms)

    def nack_many(
        self,
        queue: QueueState,
        receipts: Iterable[tuple[int, int]],
        now_ms: int,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> int:
        """The same for many, those that simply go back as one record; late ones are passed over."""
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        settings = queue.settings
        horizon_ms = now_ms - settings.retention_ms
        max_receives = settings.max_receives
        given = self._live(queue, receipts, now_ms)
        back: list[tuple[Delivery, int]] = []
        for delivery in given:
            entry = delivery.entry
            used_up = max_receives is not None and delivery.count >= max_receives
            if used_up or _is_expired(entry, horizon_ms, now_ms):
                self._return_delivery(queue, delivery, NACKED, reason, delay_ms, now_ms)
            else:
                back.append((delivery, self._due_again(queue, delivery, NACKED, delay_ms, now_ms)))
        if back:
            pairs = tuple([(delivery.entry.seq, due_ms) for delivery, due_ms in back])
            self.log_record((RETURN, now_ms, queue.number, 0, NACKED, reason, pairs))
        for delivery, due_ms in back:
            self._requeue(queue, delivery, NACKED, reason, due_ms, now_ms)
            self._emit("requeued", queue, delivery.entry, now_ms, split_failure(reason)[0] or "")
        return len(given)

    def reject_many(
        self, queue: QueueState, receipts: Iterable[tuple[int, int]], now_ms: int, reason: str | None = None
    ) -> int:
        """The same for many, those without dead letters as one record; late ones are passed over."""
        given = self._live(queue, receipts, now_ms)
        gone: list[Delivery] = []
        for delivery in given:
            targets = self._dead_letter_targets(queue, delivery.entry, DEAD_REJECTED)
            if targets:
                self._dead_letter_delivery(queue, delivery, targets, DEAD_REJECTED, reason, now_ms)
            else:
                gone.append(delivery)
        if gone:
            seqs = [delivery.entry.seq for delivery in gone]
            self.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_REJECTED, seqs))
        queue.counters.nacked += len(gone)
        for delivery in gone:
            del queue.leases[delivery.entry.seq]
            self._removed(queue, delivery.entry, REMOVED_REJECTED, now_ms)
            self._delivery_ended(queue, delivery.entry, now_ms)
        return len(given)

    def _live(self, queue: QueueState, receipts: Iterable[tuple[int, int]], now_ms: int) -> list[Delivery]:
        """The deliveries behind those receipts that are still good, each once."""
        found: dict[int, Delivery] = {}
        for seq, number in receipts:
            delivery = queue.leases.get(seq)
            if delivery is not None and delivery.number == number and not 0 < delivery.until_ms <= now_ms:
                found[seq] = delivery
        return list(found.values())

    def release(self, queue: QueueState, seq: int, number: int, now_ms: int, delay_ms: int = 0) -> None:
        """Give a delivery back as if it had never been made (its holder is gone)."""
        delivery = queue.lease(seq, number, now_ms)
        self._return_delivery(queue, delivery, RELEASED, None, delay_ms, now_ms)

    def reject(self, queue: QueueState, seq: int, number: int, now_ms: int, reason: str | None = None) -> str:
        """To the dead letters at once; without any, the message is removed."""
        delivery = queue.lease(seq, number, now_ms)
        targets = self._dead_letter_targets(queue, delivery.entry, DEAD_REJECTED) or []
        self._dead_letter_delivery(queue, delivery, targets, DEAD_REJECTED, reason, now_ms)
        return "dead-lettered" if targets else "removed"

    def set_aside(self, queue: QueueState, seq: int, now_ms: int) -> None:
        """Take out a message whose body cannot be read, wherever it is; a delivery of it never was."""
        entry = queue.find(seq)
        if entry is None:
            return
        self.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_DAMAGED, [seq]))
        delivery = queue.leases.pop(seq, None)
        if delivery is None:
            self.remove_waiting(queue, entry)
        else:
            queue.counters.released += 1
        self._removed(queue, entry, REMOVED_DAMAGED, now_ms)
        if delivery is not None:
            self._delivery_ended(queue, entry, now_ms)

    def extend(self, queue: QueueState, seq: int, number: int, now_ms: int, lease_ms: int) -> int:
        """A new deadline, counted from now. Returns it."""
        if lease_ms < NO_DEADLINE or lease_ms > MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        delivery = queue.lease(seq, number, now_ms)
        until_ms = 0 if lease_ms == NO_DEADLINE else now_ms + lease_ms
        self.log_record((EXTEND, now_ms, queue.number, seq, until_ms, (seq,)))
        self.set_deadline(queue, delivery, until_ms, now_ms)
        return until_ms

    def extend_late(self, queue: QueueState, seq: int, number: int, now_ms: int, lease_ms: int) -> int | None:
        """`extend` by the last receipt of a message, whose lease may be over: it is in flight again.

        The delivery keeps its number and count. Returns the deadline; None: the message is gone, or
        was handed out again since. A lease of no time leaves a waiting message where it is.
        """
        if not 0 <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        delivery = queue.leases.get(seq)
        if delivery is not None and 0 < delivery.until_ms <= now_ms:
            self.advance(now_ms)
        elif delivery is not None:
            return self.extend(queue, seq, number, now_ms, lease_ms) if delivery.number == number else None
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None or entry.options is None or not 0 < number == entry.options.number:
            return None
        until_ms = now_ms + lease_ms
        if lease_ms:
            self.log_record((EXTEND, now_ms, queue.number, seq, until_ms, (seq,)))
            self._deliver_again(queue, seq, until_ms, now_ms)
        return until_ms

    def _deliver_again(self, queue: QueueState, seq: int, until_ms: int, now_ms: int) -> None:
        """A waiting message under the delivery it had last."""
        known = queue.find(seq)
        if known is None or known.options is None or not known.options.number:
            return
        entry = queue.take_for_delivery(seq, now_ms)
        queue.ready.end_batch()
        if entry is not None and entry.options is not None:
            options = entry.options
            queue.leases[seq] = Delivery(entry, options.number, now_ms, until_ms, options.count, None)
            queue.waiting_bytes -= entry.size
            if until_ms:
                self._arm_leases(queue, (seq,), until_ms, now_ms)

    def extend_many(
        self, queue: QueueState, receipts: Iterable[tuple[int, int]], now_ms: int, until_ms: int
    ) -> int:
        """One deadline for many, as one record; late ones are passed over. How many there were."""
        given = self._live(queue, receipts, now_ms)
        if given:
            seqs = tuple([delivery.entry.seq for delivery in given])
            self.log_record((EXTEND, now_ms, queue.number, 0, until_ms, seqs))
            for delivery in given:
                delivery.until_ms = until_ms
            self._arm_leases(queue, seqs, until_ms, now_ms)
        return len(given)

    def set_deadline(self, queue: QueueState, delivery: Delivery, until_ms: int, now_ms: int) -> None:
        delivery.until_ms = until_ms
        if until_ms:
            self._arm_leases(queue, (delivery.entry.seq,), until_ms, now_ms)

    def _return_delivery(
        self,
        queue: QueueState,
        delivery: Delivery,
        why: int,
        reason: str | None,
        delay_ms: int | None,
        now_ms: int,
    ) -> str:
        settings = queue.settings
        entry = delivery.entry
        if _is_expired(entry, now_ms - settings.retention_ms, now_ms):
            targets: list[QueueState] | None = self._expiry_targets(queue, entry, now_ms)
            self._dead_letter_delivery(queue, delivery, targets or [], DEAD_EXPIRED, reason, now_ms)
            return "dead-lettered" if targets else "expired"
        max_receives = settings.max_receives
        if why != RELEASED and max_receives is not None and delivery.count >= max_receives:
            targets = self._exhausted_targets(queue, entry)
            if targets is not None:
                self._dead_letter_delivery(queue, delivery, targets, DEAD_RECEIVES, reason, now_ms)
                return "dead-lettered" if targets else "removed"
        due_ms = self._due_again(queue, delivery, why, delay_ms, now_ms)
        seq = entry.seq
        self.log_record((RETURN, now_ms, queue.number, seq, why, reason, ((seq, due_ms),)))
        self._requeue(queue, delivery, why, reason, due_ms, now_ms)
        self._emit(
            "expired" if why == EXPIRED else "requeued", queue, entry, now_ms, split_failure(reason)[0] or ""
        )
        return "returned"

    def _due_again(
        self, queue: QueueState, delivery: Delivery, why: int, delay_ms: int | None, now_ms: int
    ) -> int:
        """When a message that goes back is tried again; 0: at once."""
        if delay_ms is None:
            retry = queue.settings.retry
            if why == EXPIRED and not retry.on_expiry:
                return 0
            random_fraction = self._random_fraction(delivery.entry.seq, delivery.count)
            delay_ms = retry.delay_ms(delivery.count, random_fraction)
        return now_ms + delay_ms if delay_ms > 0 else 0

    def _requeue(
        self, queue: QueueState, delivery: Delivery, why: int, reason: str | None, due_ms: int, now_ms: int
    ) -> None:
        """From loan back to its place; not before `due_ms`."""
        entry = delivery.entry
        del queue.leases[entry.seq]
        if why != RELEASED:
            entry = self._with_delivery_count(delivery, reason)
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
        self.put_back(queue, entry, now_ms)
        self._delivery_ended(queue, entry, now_ms)

    def _dead_letter_delivery(
        self,
        queue: QueueState,
        delivery: Delivery,
        targets: list[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        """A delivery that ends with its message going to the dead letters, or away."""
        entry = self._with_delivery_count(delivery, reason)
        if targets:
            self._log_move(queue, entry, targets, why, reason, now_ms)
        else:
            self.log_record((REMOVE, now_ms, queue.number, 0, _removal_reason(why), [entry.seq]))
        del queue.leases[entry.seq]
        self._count_end(queue, delivery, now_ms)
        if targets:
            self._finish_move(queue, entry, targets, why, reason, now_ms)
        else:
            self._removed(queue, entry, _removal_reason(why), now_ms)
        self._delivery_ended(queue, entry, now_ms)

    def _count_end(self, queue: QueueState, delivery: Delivery, now_ms: int) -> None:
        """Its record does not say who ended it. Nobody can end a lease after its deadline, and nothing else
        before it."""
        if 0 < delivery.until_ms <= now_ms:
            queue.counters.lease_expired += 1
        else:
            queue.counters.nacked += 1

    def _with_delivery_count(self, delivery: Delivery, reason: str | None) -> Entry:
        """The entry as it goes back: with its deliveries counted and the reason kept."""
        entry = delivery.entry
        options = entry.options.copy() if entry.options is not None else DeliveryOptions()
        options.count = delivery.count
        options.number = delivery.number
        options.first_ms = options.first_ms or delivery.delivered_ms
        if reason is not None:
            options.failure = reason
        return with_options(entry, options)

    def _random_fraction(self, seq: int, count: int) -> float:
        """A number in [0, 1) that depends on nothing but the seed and the delivery."""
        x = (self.seed ^ seq * 0x9E3779B97F4A7C15 ^ count * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        return (x ^ x >> 31) / 2**64

    def _expire_taken(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """A message whose time to live is over, met while handing out."""
        self._dead_letter_taken(
            queue, entry, self._expiry_targets(queue, entry, now_ms), DEAD_EXPIRED, now_ms
        )

    def _expiry_targets(self, queue: QueueState, entry: Entry, now_ms: int) -> list[QueueState]:
        if not queue.settings.dead_letter_expired:
            return []
        deaths = () if entry.options is None else entry.options.deaths
        if len(deaths) == MAX_DEAD_LETTER_EVENTS and deaths[-1].time_ms == now_ms:
            # Queues that expire at once into each other, more than a message remembers: no circle would show.
            return []
        return self._dead_letter_targets(queue, entry, DEAD_EXPIRED) or []

    def _exhausted_targets(self, queue: QueueState, entry: Entry) -> list[QueueState] | None:
        """Where a message goes whose receives are used up; None: it stays."""
        targets = self._dead_letter_targets(queue, entry, DEAD_RECEIVES)
        return [] if targets is None and queue.settings.exhausted == "drop" else targets

    def _dead_letter_taken(
        self, queue: QueueState, entry: Entry, targets: list[QueueState], why: int, now_ms: int
    ) -> None:
        """To the dead letters, or away, straight from the hand-out."""
        reason = None if entry.options is None else entry.options.failure
        if targets:
            self._log_move(queue, entry, targets, why, reason, now_ms)
        else:
            self.log_record((REMOVE, now_ms, queue.number, 0, _removal_reason(why), [entry.seq]))
        queue.waiting_bytes -= entry.size
        queue.ready.delivery_ended(entry, now_ms)
        if targets:
            self._finish_move(queue, entry, targets, why, reason, now_ms)
        else:
            self._removed(queue, entry, _removal_reason(why), now_ms)

    def advance(self, now_ms: int, limit: int = 1 << 60) -> int:
        """What time alone brings about up to `now_ms`, or the first `most` of it. How many leases ended."""
        expired = 0
        while self.timers.next_ms <= now_ms and limit > 0:
            payloads = self.timers.due(now_ms, limit)
            limit -= len(payloads)
            for payload in payloads:
                try:
                    expired += self._fire(payload, now_ms)
                except OpenQError:
                    # The log refused (disk full to the last byte): the deadline stands, try again.
                    self.timers.add(now_ms + _RETRY_MS, payload)
        if self.timers.size > 8192 and self.timers.size > 4 * self._deadlines():
            self.rebuild_timers()
        return expired

    def _fire(self, payload: tuple[int, QueueState, Any], now_ms: int) -> int:
        kind, queue, data = payload
        if queue.deleted:
            return 0
        expired = 0
        if kind == LEASE:
            for seq in sorted(data):
                delivery = queue.leases.get(seq)
                if delivery is not None and 0 < delivery.until_ms <= now_ms:
                    self._return_delivery(queue, delivery, EXPIRED, None, None, now_ms)
                    expired += 1
        elif kind == WAKE:
            if queue.watched:
                self.woken.append(queue)
        elif kind == LEASES:
            self._open_bucket(queue, data, now_ms)
        elif kind == DELAY:
            queue.delayed.near.pop(data, None)
            entry = queue.delayed.get(data)
            if entry is not None and due_of(entry) <= now_ms:
                self._come_due(queue, entry, now_ms)
        elif kind == DELAYS:
            self._open_delays(queue, data, now_ms)
        elif kind == TTL:
            self._expire_waiting(queue, data, now_ms)
        elif data == queue.retention_armed:
            self._expire_old(queue, now_ms)
        return expired

    def _open_delays(self, queue: QueueState, bucket: Bucket, now_ms: int) -> None:
        """Exact deadlines for what is due in this second, narrower buckets for what is due in this hour.

        What is due already gets its deadline too: it comes due in its order among all other deadlines.
        """
        width, number = bucket
        is_early = now_ms < number << width
        for seq, due_ms in queue.delayed.open(bucket, _MAX_SPREAD if is_early else 1 << 60):
            self.arm_delay(queue, seq, due_ms, now_ms)
        if bucket in queue.delayed.buckets:
            self.timers.add(now_ms + 1, (DELAYS, queue, bucket))

    def _come_due(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        queue.delayed.pop(entry.seq)
        queue.ready.due(entry)
        if entry.options is not None and 0 < entry.options.expires_ms <= now_ms:
            self._offer_zero_ttl(queue, entry, now_ms)
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def _expire_waiting(self, queue: QueueState, seq: int, now_ms: int, even_zero_ttl: bool = False) -> None:
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None or entry.options is None or not 0 < entry.options.expires_ms <= now_ms:
            return
        if not even_zero_ttl and _is_zero_ttl(entry, now_ms - queue.settings.retention_ms, now_ms):
            self.timers.add(now_ms + 1, (TTL, queue, seq))
        else:
            self._expire_one(queue, entry, now_ms)

    def expire_zero_ttl(self, now_ms: int) -> None:
        """Those who waited have had their chance: what had no time to live and was not taken expires."""
        expired_now, self.zero_ttl = self.zero_ttl, []
        for _, queue, seq in expired_now:
            if not queue.deleted:
                try:
                    self._expire_waiting(queue, seq, now_ms, even_zero_ttl=True)
                except OpenQError:
                    continue  # the log refused; its timer tries again

    def _expire_old(self, queue: QueueState, now_ms: int) -> None:
        horizon_ms = now_ms - queue.settings.retention_ms
        for ready_list in queue.ready.ready_lists():
            while True:
                entry = ready_list.first()
                if (
                    entry is None
                    or not _is_expired(entry, horizon_ms, now_ms)
                    or _is_zero_ttl(entry, horizon_ms, now_ms)
                ):
                    break
                self._expire_one(queue, entry, now_ms)
            # One that was delayed is kept longer than some behind it.
            early = takewhile(lambda each: each.sent_ms <= horizon_ms, ready_list)
            for entry in [each for each in early if _is_expired(each, horizon_ms, now_ms)]:
                self._expire_one(queue, entry, now_ms)
        self._arm_retention(queue, now_ms)

    def _expire_one(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        targets = self._expiry_targets(queue, entry, now_ms)
        if targets:
            self._log_move(queue, entry, targets, DEAD_EXPIRED, None, now_ms)
        else:
            self.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_EXPIRED, [entry.seq]))
        self.remove_waiting(queue, entry)
        if targets:
            self._finish_move(queue, entry, targets, DEAD_EXPIRED, None, now_ms)
        else:
            self._removed(queue, entry, REMOVED_EXPIRED, now_ms)

    def _deadlines(self) -> int:
        return sum(queue.count + len(queue.lease_buckets) + 1 for queue in self.queues.values())

    def rebuild_timers(self) -> None:
        """Only live deadlines: what was acked long before a distant deadline must not stay for it."""
        self.timers = Timers()
        for queue in self.queues.values():
            queue.lease_buckets.clear()
            for delivery in queue.leases.values():
                if delivery.until_ms:
                    self._arm_leases(queue, (delivery.entry.seq,), delivery.until_ms, 0)
            queue.delayed.clear_timers()
            for seq, due_ms in queue.delayed.dues():
                self.arm_delay(queue, seq, due_ms, 0)
            for seq, expires_ms in queue.delayed.expiries():
                self.timers.add(expires_ms, (TTL, queue, seq))
            for ready_list in queue.ready.ready_lists():
                for seq, expires_ms in ready_list.expiries():
                    self.timers.add(expires_ms, (TTL, queue, seq))
            for entry in (delivery.entry for delivery in queue.leases.values()):
                if entry.options is not None and entry.options.expires_ms:
                    self.timers.add(entry.options.expires_ms, (TTL, queue, entry.seq))
            self._arm_retention(queue, 0)


def _is_expired(entry: Entry, horizon_ms: int, now_ms: int) -> bool:
    """Past its own time to live or the queue's retention, which counts from when it came due."""
    options = entry.options
    if options is None:
        return entry.sent_ms <= horizon_ms
    if 0 < options.expires_ms <= now_ms:
        return True
    return max(entry.sent_ms, options.due_ms) <= horizon_ms


def _is_zero_ttl(entry: Entry, horizon_ms: int, now_ms: int) -> bool:
    """Over as soon as it could be had, and that is now: one who waits may still take it."""
    options = entry.options
    if options is None or options.count or options.expires_ms != now_ms:
        return False
    return max(entry.sent_ms, options.due_ms) == now_ms > horizon_ms


def _removal_reason(why: int) -> int:
    """The reason to remove that answers to a reason to dead-letter, where there are no dead letters."""
    return _REMOVAL_REASONS[why]


_REMOVAL_REASONS = {
    DEAD_EXPIRED: REMOVED_EXPIRED,
    DEAD_REJECTED: REMOVED_REJECTED,
    DEAD_RECEIVES: REMOVED_RECEIVES,
}
