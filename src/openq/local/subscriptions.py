"""Subscriptions over a journal: leases in the journal, and a file with the owners and terms.

A batch is stored in the journal, exists again after a restart, and returns to the queue when its lease ends.
A number means one set of messages while the batch is open, and nothing once it is gone.

A reader names itself (`owner`). A new name takes the subscription over, and the earlier one is refused from
then on: of two runs of the same job only the later one acknowledges anything.

Every method may block and must be called in a thread. Its changes are durable after `Broker.sync`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from ..broker.interface import Receipt
from ..broker.state_file import StateFile
from ..broker.subscriptions import (
    MAX_MESSAGES,
    MAX_RETIRED,
    BatchRows,
    FormedBatch,
    SubscriptionInUse,
    SubscriptionNotFound,
    SubscriptionState,
    SubscriptionTerms,
    check_lease,
    check_limit,
    check_number,
    check_open,
    check_part,
    check_part_size,
    check_room,
    consumer_of,
    read_consumer,
)
from ..engine.lease_timers import arm_tokens
from ..engine.queue import QueueState
from ..engine.timers import MAX_TIMERS_PER_STEP
from ..errors import HistoryUnavailable, InvalidSetting, JournalDamaged, OpenQError, OutOfRoom
from ..model import Delivery, Entry, check_name
from .unreadable import unloaded

if TYPE_CHECKING:
    from ..broker.waiters import Waiter
    from .core import BrokerCore

log = logging.getLogger("openq")

_CHECK_ORPHANS_FROM = 1_000  # subscriptions, beyond which those of deleted queues are looked for
_SETTLE_SLICE = 4 * MAX_TIMERS_PER_STEP  # messages acked, returned or extended under one hold of the lock


class OpenBatch:
    __slots__ = ("abandoned", "bytes", "queue", "receipts", "until_ms")

    def __init__(self, queue: int, receipts: list[Receipt], size: int, until_ms: int) -> None:
        self.queue = queue  # its number: a queue of the same name that is created later is another one
        self.receipts = receipts  # in delivery order
        self.bytes = size
        self.until_ms = until_ms
        self.abandoned = False  # no reader will continue from it: its lease is left to end


class LocalSubscription:
    __slots__ = ("batches", "lock", "name", "terms")

    def __init__(self, name: str, terms: SubscriptionTerms) -> None:
        self.name = name
        self.terms = terms
        self.batches: dict[int, OpenBatch] = {}  # by number, rising
        self.lock = threading.Lock()  # one change of it at a time; taken before the broker's lock

    @property
    def queue(self) -> str:
        return self.terms.queue

    @property
    def lease_ms(self) -> int:
        return self.terms.lease_ms


class LocalSubscriptions:
    def __init__(self, core: BrokerCore, file: StateFile, retired: StateFile) -> None:
        self._core = core
        self._file = file
        # Name of a deleted subscription -> its highest batch number.
        self._retired_file = retired
        self._retired = {name: number for name, number in retired.read().items() if isinstance(number, int)}
        self._lock = threading.Lock()
        self._known: dict[str, LocalSubscription] = {}
        # A subscription is on disk before its first lease, so nothing is missed if there is no file.
        for name, fields in file.read().items():
            try:
                self._known[name] = LocalSubscription(name, SubscriptionTerms.from_json(name, fields))
            except InvalidSetting as error:
                # The messages of its batches return to the queue when their leases end.
                file.mark_unreadable(f"subscription {name[:100]!r}: {error}")
        if self._known:
            self.drop_orphans()
            self._restore()

    def _restore(self) -> None:
        """Restore the open batches from the leases in the journal. Called before the broker is in use."""
        engine = self._core.engine
        by_queue: dict[str, list[LocalSubscription]] = {}
        for known in self._known.values():
            by_queue.setdefault(known.queue, []).append(known)
        for name, subscriptions in by_queue.items():
            queue = engine.queues.get(name)
            if queue is None:
                continue
            held: dict[str, list[Delivery]] = {}
            for delivery in queue.leases.values():
                if delivery.until_ms and delivery.consumer is not None:
                    held.setdefault(delivery.consumer, []).append(delivery)
            own = {known.name: known for known in subscriptions}
            for consumer, deliveries in held.items():
                subscription, number = read_consumer(consumer)
                if subscription in own:
                    # Delivery numbers rise in the order of delivery.
                    deliveries.sort(key=lambda each: each.number)
                    receipts = [(each.entry.seq, each.number) for each in deliveries]
                    size = sum(each.entry.size for each in deliveries)
                    until_ms = min(each.until_ms for each in deliveries)
                    own[subscription].batches[number] = OpenBatch(queue.number, receipts, size, until_ms)
        for known in self._known.values():
            known.batches = dict(sorted(known.batches.items()))

    # -- looking

    def get(self, name: str) -> LocalSubscription:
        known = self._known.get(name)
        if known is None:
            raise SubscriptionNotFound(name)
        return known

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def states(self) -> list[SubscriptionState]:
        now_ms = self._core.now_ms()
        found = []
        for name, known in sorted(self._known.items()):
            batches = [
                FormedBatch(number, len(batch.receipts), batch.bytes, batch.until_ms)
                for number, batch in list(known.batches.items())
                if self._is_open(batch, now_ms)
            ]
            terms = known.terms
            found.append(SubscriptionState(name, terms.queue, terms.owner, terms.lease_ms, batches))
        return found

    def terms(self) -> dict[str, SubscriptionTerms]:
        """What a migration takes along: the numbers of open batches count as used."""
        return {
            name: each.terms.acked_through(max(each.batches, default=0)) for name, each in self._known.items()
        }

    def retired(self) -> dict[str, int]:
        return dict(self._retired)

    def restore(self, terms: Mapping[str, SubscriptionTerms], retired: Mapping[str, int]) -> None:
        """The subscriptions of another broker; those of the same names are replaced."""
        known = {**self._known, **{name: LocalSubscription(name, each) for name, each in terms.items()}}
        all_retired = dict([*self._retired.items(), *retired.items()][-MAX_RETIRED:])
        with self._lock:
            if retired:
                self._retired_file.write(all_retired)
                self._retired = all_retired
            if terms:
                self._save(known)
                self._known = known

    def _is_open(self, batch: OpenBatch, now_ms: int) -> bool:
        """Whether any lease of the batch is live.

        All leases end together. Otherwise the batch ends with the last lease that is ended in another way.
        """
        if batch.until_ms <= now_ms:
            return False
        queue = self._core.engine.numbered.get(batch.queue)
        if queue is None:
            return False
        leases = queue.leases
        for seq, number in batch.receipts:  # usually the first one decides
            delivery = leases.get(seq)
            if delivery is not None and delivery.number == number:
                return True
        return False

    def _tidy(self, known: LocalSubscription) -> None:
        now_ms = self._core.now_ms()
        known.batches = {n: each for n, each in known.batches.items() if self._is_open(each, now_ms)}

    # -- forming

    def next_batch(
        self,
        name: str,
        queue: str,
        after: int,
        *,
        limit: int = MAX_MESSAGES,
        max_bytes: int | None = None,
        lease_ms: int | None = None,
        owner: str | None = None,
        waiter: Waiter | None = None,
        maker: str = "",
    ) -> FormedBatch | None:
        check_limit(limit)
        check_lease(lease_ms)
        number = check_number(after + 1)
        known = self._enter(name, queue, maker)
        with known.lock:
            if self._known.get(name) is not known:
                raise SubscriptionNotFound(name)  # deleted just now
            self._tidy(known)
            self._claim(known, queue, owner, lease_ms)
            number = known.terms.number_for(number, known.batches.__contains__)
            for later, other in known.batches.items():
                # Higher numbers come from a reader that counted differently: this reader never gets to them.
                other.abandoned = later > number
            batch = known.batches.get(number)
            if batch is not None:
                self._renew_lease(known, batch)
            else:
                check_open(name, len(known.batches))
                batch = self._take(known, number, limit, max_bytes, waiter)
                if batch is None:
                    return None
                known.batches = dict(sorted([*known.batches.items(), (number, batch)]))
            return FormedBatch(number, len(batch.receipts), batch.bytes, batch.until_ms)

    @contextmanager
    def paused(self, seconds: float) -> Iterator[None]:
        """No batch is formed or settled meanwhile: files and journal agree. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        with ExitStack() as held:
            for lock in self._all_locks():
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("a batch of a subscription is formed or settled")
                held.callback(lock.release)
            yield

    def _all_locks(self) -> Iterator[threading.Lock]:
        # In the order in which the other methods take them. A subscription that is created after the
        # snapshot of the table has no batch before its own lock and the last one are taken.
        for known in list(self._known.values()):
            yield known.lock
        yield self._lock

    def drop_orphans(self) -> None:
        """Drop subscriptions whose queue was deleted; their batches were deleted with it."""
        queues = self._core.engine.queues
        if all(known.queue in queues for known in self._known.values()):
            return
        with self._lock:
            rest = {name: known for name, known in self._known.items() if known.queue in queues}
            gone = [known for name, known in self._known.items() if name not in rest]
            self._known = rest
            try:
                self._retire(gone)
                self._save(rest)
            except OpenQError as error:  # the next start drops them again
                log.warning("subscriptions of deleted queues stay in their file: %s", error)

    def _enter(self, name: str, queue: str, maker: str) -> LocalSubscription:
        known = self._known.get(name)
        if known is not None:
            return known
        check_name(name, "subscription")
        with self._core.lock:
            self._core.queue(queue)  # a subscription to a queue that does not exist is not stored
        if len(self._known) >= _CHECK_ORPHANS_FROM:
            self.drop_orphans()  # queues may also be deleted automatically
        with self._lock:
            known = self._known.get(name)
            if known is None:
                check_room([each.terms.maker for each in self._known.values()], maker)
                known = LocalSubscription(
                    name, SubscriptionTerms(queue, maker, acked=self._retired.get(name, 0))
                )
                self._save({**self._known, name: known})
                self._known = {**self._known, name: known}
        return known

    def _claim(self, known: LocalSubscription, queue: str, owner: str | None, lease_ms: int | None) -> None:
        """Subscription locked. Set reader and terms; on disk before they have any effect."""
        if queue != known.queue:
            if known.batches:
                raise SubscriptionInUse(known.name, known.queue)
            with self._core.lock:
                self._core.queue(queue)
        self._set_terms(known, known.terms.owned_by(owner, known.name).read_from(queue, lease_ms))

    def _check_owner(self, known: LocalSubscription, owner: str | None) -> None:
        """Subscription locked. For calls that name batches but do not form them."""
        self._set_terms(known, known.terms.owned_by(owner, known.name))

    def _set_terms(self, known: LocalSubscription, terms: SubscriptionTerms) -> None:
        before = known.terms
        if terms == before:
            return
        known.terms = terms
        try:
            with self._lock:
                self._save(self._known)
        except OpenQError:
            known.terms = before
            raise

    def _retire(self, gone: Sequence[LocalSubscription]) -> None:
        """Locked. A later subscription of the same name continues after the numbers of this one."""
        numbers = {known.name: max(known.terms.acked, *known.batches, 0) for known in gone}
        used = {name: number for name, number in numbers.items() if number}
        if not used:
            return
        others = {name: number for name, number in self._retired.items() if name not in used}
        all_retired = dict([*others.items(), *used.items()][-MAX_RETIRED:])
        self._retired_file.write(all_retired)
        self._retired = all_retired

    def _save(self, all_known: dict[str, LocalSubscription]) -> None:
        self._file.write({name: known.terms.to_json() for name, known in all_known.items()})

    def _take(
        self, known: LocalSubscription, number: int, limit: int, max_bytes: int | None, waiter: Waiter | None
    ) -> OpenBatch | None:
        """Lease some hundred messages at a time: other threads get their turn in between."""
        core, engine = self._core, self._core.engine
        consumer = consumer_of(known.name, number)
        receipts: list[Receipt] = []
        size = until_ms = queue_number = 0
        while len(receipts) < limit:
            with core.lock, core.guard:
                queue = core.queue(known.queue)
                if receipts and queue.number != queue_number:
                    break  # deleted and created again just now
                now_ms = core.now_ms()
                until_ms = until_ms or now_ms + known.lease_ms
                if until_ms <= now_ms:
                    break
                step = min(MAX_TIMERS_PER_STEP, limit - len(receipts))
                if max_bytes is not None:
                    step = _fitting(queue, step, max_bytes - size, not receipts, now_ms)
                try:
                    in_flight = engine.receive(queue, step, now_ms, until_ms - now_ms, consumer)
                except OpenQError:
                    if not receipts:
                        raise
                    in_flight = []  # the log refused: the batch has the messages leased so far
                if not in_flight and not receipts and waiter is not None:
                    arm_tokens(engine, queue, now_ms)
                    core.waiters.add(known.queue, waiter)
                    queue.watched = True
                for each in in_flight:
                    engine.guarded.pop(each.number, None)  # a whole batch is shown only after a sync
                core.end_change()
            if not in_flight:
                break
            queue_number = queue.number
            receipts += [(each.entry.seq, each.number) for each in in_flight]
            size += sum([each.entry.size for each in in_flight])
        return OpenBatch(queue_number, receipts, size, until_ms) if receipts else None

    # -- reading

    def rows(self, name: str, number: int, part: int = 0, parts: int = 1) -> BatchRows:
        """One of `parts` pieces of a batch, the same every time.

        Empty, and `expired`, if the batch is gone.
        """
        check_part(part, parts)
        known = self.get(name)
        batch = known.batches.get(number)
        if batch is None:
            return BatchRows((), (), expired=True)
        with known.lock:
            self._renew_lease(known, batch)
        count = len(batch.receipts)
        receipts = batch.receipts[count * part // parts : count * (part + 1) // parts]
        queue = self._core.engine.numbered.get(batch.queue)
        if queue is None:
            return BatchRows((), (), expired=True)
        deliveries = list(_live(queue, receipts))
        # Checked last: while the lease runs, no message can have returned and been delivered to another
        # consumer.
        if not self._is_open(batch, self._core.now_ms()):
            return BatchRows((), (), expired=True)
        check_part_size(sum([each.entry.size for each in deliveries]), len(deliveries), parts)
        deliveries, entries = self._filled(deliveries)
        return BatchRows(deliveries, entries, expired=False, lost=len(receipts) - len(deliveries))

    def _filled(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Entry]]:
        """The deliveries with their entries and bodies.

        Bodies are in copies: messages that are in flight for minutes must not stay in memory. Unreadable
        messages are left out of both lists.
        """
        core = self._core
        copies = [unloaded(each.entry) for each in deliveries]
        try:
            core.load_bodies(copies)
        except (JournalDamaged, HistoryUnavailable):
            deliveries = core.unreadable.load_each(deliveries)
            copies = [each.entry for each in deliveries]
            with core.lock:
                for each in deliveries:
                    each.entry = unloaded(each.entry)
        return deliveries, copies

    # -- keeping and ending

    def extend(self, name: str, owner: str | None, lease_ms: int | None = None) -> int:
        """Extend the lease of all open batches, from now on. Returns how many messages they hold."""
        check_lease(lease_ms)
        known = self.get(name)
        with known.lock:
            self._check_owner(known, owner)
            self._tidy(known)
            lease_ms = lease_ms or known.lease_ms
            kept = [batch for batch in known.batches.values() if not batch.abandoned]
            for batch in kept:
                # The record names every message, so it is not written for a small change.
                if abs(self._core.now_ms() + lease_ms - batch.until_ms) * 10 > lease_ms:
                    self._set_lease(batch, lease_ms)
            return sum(len(batch.receipts) for batch in kept)

    def _renew_lease(self, known: LocalSubscription, batch: OpenBatch) -> None:
        """Subscription locked. Extend a batch in use so that it does not expire.

        A record is written only when half of the lease is over.
        """
        if (batch.until_ms - self._core.now_ms()) * 2 < known.lease_ms:
            self._set_lease(batch, known.lease_ms)

    def _set_lease(self, batch: OpenBatch, lease_ms: int) -> None:
        core = self._core
        queue = core.engine.numbered.get(batch.queue)
        if queue is None:
            return
        until_ms = 0
        for receipts in _slices(batch.receipts):
            with core.lock, core.guard:
                now_ms = core.now_ms()
                if batch.until_ms <= now_ms:
                    return  # too late: some have returned already, and all must end together
                until_ms = until_ms or now_ms + lease_ms
                core.engine.extend_many(queue, receipts, now_ms, until_ms)
                core.end_change()
        batch.until_ms = until_ms

    def ack(self, name: str, through: int, owner: str | None) -> tuple[int, int]:
        """Ack all batches up to this one.

        Returns how many messages were acked, and how many were lost before. A crash in the middle leaves the
        rest open; repeating the call acks the rest.
        """
        check_number(through)
        known = self.get(name)
        acked = lost = 0
        with known.lock:
            self._check_owner(known, owner)
            done_with = [each for each in known.batches if each <= through]
            if done_with:
                self._record_acked(known, done_with[-1])
            for number in done_with:
                batch = known.batches[number]
                done = self._ack(batch)
                acked += done
                lost += len(batch.receipts) - done
                known.batches = {n: each for n, each in known.batches.items() if n != number}
        return acked, lost

    def _record_acked(self, known: LocalSubscription, number: int) -> None:
        """Subscription locked. Called before the first ack: a crash in between leaves the same batch open."""
        terms = known.terms.acked_through(number)
        try:
            self._set_terms(known, terms)
        except OutOfRoom as error:
            # Acks continue while the disk is full. This process still knows the number.
            log.warning("subscription %r: number %d is not on disk: %s", known.name, number, error)
            known.terms = terms

    def _ack(self, batch: OpenBatch) -> int:
        core = self._core
        queue = core.engine.numbered.get(batch.queue)
        if queue is None or batch.until_ms <= core.now_ms():
            return 0
        done = 0
        for receipts in _slices(batch.receipts):
            with core.lock, core.guard:
                live = [(each.entry.seq, each.number) for each in _live(queue, receipts)]
                results = core.engine.ack_many(queue, live, core.now_ms())
                core.end_change()
            done += results.count(None)
        return done

    def delete(self, name: str) -> int:
        """Return its batches to the queue, counted as a delivery. Returns how many messages that were."""
        known = self.get(name)
        core = self._core
        returned = 0
        with known.lock:
            with self._lock:
                rest = {each: other for each, other in self._known.items() if each != name}
                self._retire([known])
                self._save(rest)
                self._known = rest
            for batch in known.batches.values():
                queue = core.engine.numbered.get(batch.queue)
                if queue is None:
                    continue
                for receipts in _slices(batch.receipts):
                    with core.lock, core.guard:
                        now_ms = core.now_ms()
                        outcomes = core.engine.nack_many(queue, receipts, now_ms, 0, "subscription deleted")
                        returned += sum(isinstance(each, str) for each in outcomes)
                        core.end_change()
            known.batches = {}
        return returned


def _live(queue: QueueState, receipts: Sequence[Receipt]) -> Iterator[Delivery]:
    leases = queue.leases
    for seq, number in receipts:
        delivery = leases.get(seq)
        if delivery is not None and delivery.number == number:
            yield delivery


def _slices(receipts: list[Receipt]) -> Iterator[list[Receipt]]:
    for start in range(0, len(receipts), _SETTLE_SLICE):
        yield receipts[start : start + _SETTLE_SLICE]


def _fitting(queue: QueueState, step: int, room: int, is_first: bool, now_ms: int) -> int:
    """How many of the next messages fit the room. The first one always does."""
    if queue.waiting_bytes <= room:
        return step
    count = 0
    for entry in islice(queue.ready.available(now_ms), step):
        room -= entry.size
        if room < 0 and not (is_first and not count):
            break
        count += 1
    return count
