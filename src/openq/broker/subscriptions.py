"""Subscriptions: a queue read in numbered batches that stay the same until they are acknowledged.

Batch n of subscription S is nothing but leases whose consumer is `batch:S:n`, so it lives in the journal, is
there again after a restart, and returns to the queue by itself when its lease runs out. A number means one
set of messages as long as the batch is open, and nothing once it is gone.

Who reads names itself (`owner`). A new name takes the subscription over, and an earlier one is refused from
then on: of two runs of the same job only the later one acknowledges anything.

Every method may take a while and belongs into a thread; what it changed is promised after `Broker.sync`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..engine.lending import SLICE
from ..engine.queue import Queue
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..model import Delivery, Entry, check_name
from .base import Receipt
from .state_file import StateFile, told, told_number

if TYPE_CHECKING:
    from .foundation import Foundation
    from .waiters import Waiter

log = logging.getLogger("openq")

LEASE_MS = 300_000
MAX_LEASE_MS = 7 * 86_400_000
MAX_MESSAGES = 100_000  # of one batch
MAX_PART_BYTES = 64 << 20  # of bodies, in one answer
MAX_SUBSCRIPTIONS = 10_000
MAX_OF_ONE = 1_000  # made by the same user
_MAX_PAST = 100  # owners that are remembered as replaced
_SETTLE_SLICE = 4 * SLICE  # messages acked, given back or extended under one hold of the lock
_PREFIX = "batch:"


class SubscriptionNotFound(OpenQError):
    code = "subscription_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"subscription {name!r} does not exist, or is not yours to see")
        self.name = name


class SubscriptionTaken(OpenQError):
    """Somebody else reads it by now: whoever gets this must stop."""

    code = "subscription_taken"

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(
            f"subscription {name!r} was taken over by {owner!r}; stop this reader, or start it as a new owner"
        )
        self.name = name
        self.owner = owner


class SubscriptionInUse(OpenQError):
    code = "subscription_in_use"

    def __init__(self, name: str, queue: str) -> None:
        super().__init__(
            f"subscription {name!r} has open batches of queue {queue!r}; acknowledge them or delete it first"
        )
        self.name = name
        self.queue = queue


@dataclass(frozen=True, slots=True)
class Formed:
    batch: int
    count: int
    bytes: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Part of a batch. `lost` counts messages that somebody settled by their receipts meanwhile."""

    deliveries: Sequence[Delivery]
    entries: Sequence[Entry]  # the same, with their bodies
    expired: bool
    lost: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    name: str
    queue: str
    owner: str | None
    lease_ms: int
    batches: Sequence[Formed]


class Batch:
    __slots__ = ("abandoned", "bytes", "queue", "receipts", "until_ms")

    def __init__(self, queue: int, receipts: list[Receipt], size: int, until_ms: int) -> None:
        self.queue = queue  # its number: a queue of the same name made later is another one
        self.receipts = receipts  # in hand-out order
        self.bytes = size
        self.until_ms = until_ms
        self.abandoned = False  # nobody counts on from it: its lease is left to run out


class Subscription:
    __slots__ = ("batches", "lease_ms", "lock", "maker", "name", "owner", "past", "queue")

    def __init__(self, name: str, queue: str, maker: str = "") -> None:
        self.name = name
        self.queue = queue
        self.maker = maker  # the user that it counts for
        self.owner: str | None = None
        self.past: list[str] = []  # owners that were replaced, the last one last
        self.lease_ms = LEASE_MS
        self.batches: dict[int, Batch] = {}  # by number, rising
        self.lock = threading.Lock()  # one change of it at a time; taken before the broker's

    def to_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "owner": self.owner,
            "past": self.past,
            "lease_ms": self.lease_ms,
            "maker": self.maker,
        }

    @classmethod
    def from_json(cls, name: str, fields: Any) -> Subscription:
        """From a file that anybody may have edited. Raises InvalidSetting."""
        queue, maker = told(fields, "queue", str), told(fields, "maker", str, "")
        made = cls(check_name(name, "subscription"), check_name(queue), maker)
        made.owner = told(fields, "owner", (str, type(None)))
        made.past = told(fields, "past", list)
        if not all(isinstance(each, str) for each in made.past):
            raise InvalidSetting("past owners must be texts")
        made.lease_ms = told_number(fields, "lease_ms", MAX_LEASE_MS, 1)
        return made


class Subscriptions:
    def __init__(self, broker: Foundation, file: StateFile) -> None:
        self._broker = broker
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, Subscription] = {}
        # A subscription is on disk before its first lease, so nothing is missed where there is no file.
        for name, fields in file.read().items():
            try:
                self._known[name] = Subscription.from_json(name, fields)
            except InvalidSetting as error:
                # What its batches hold goes back to the queue when their leases are over.
                file.distrust(f"subscription {name[:100]!r}: {error}")
        if self._known:
            self.drop_orphans()
            self._restore()

    def _restore(self) -> None:
        """The open batches, from the leases that the journal kept. Before anybody else has the broker."""
        engine = self._broker.engine
        by_queue: dict[str, list[Subscription]] = {}
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
                subscription, number = _read_consumer(consumer)
                if subscription in own:
                    # Numbers of deliveries rise in the order of the hand-out.
                    deliveries.sort(key=lambda each: each.number)
                    receipts = [(each.entry.seq, each.number) for each in deliveries]
                    size = sum(each.entry.size for each in deliveries)
                    until_ms = min(each.until_ms for each in deliveries)
                    own[subscription].batches[number] = Batch(queue.number, receipts, size, until_ms)
        for known in self._known.values():
            known.batches = dict(sorted(known.batches.items()))

    # -- looking

    def get(self, name: str) -> Subscription:
        known = self._known.get(name)
        if known is None:
            raise SubscriptionNotFound(name)
        return known

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def states(self) -> list[SubscriptionState]:
        now_ms = self._broker.now_ms()
        found = []
        for name, known in sorted(self._known.items()):
            batches = [
                Formed(number, len(batch.receipts), batch.bytes, batch.until_ms)
                for number, batch in list(known.batches.items())
                if self._is_open(batch, now_ms)
            ]
            found.append(SubscriptionState(name, known.queue, known.owner, known.lease_ms, batches))
        return found

    def open_messages(self) -> list[tuple[str, str, int]]:
        """Subscription, queue, and how many messages its open batches hold."""
        return [
            (state.name, state.queue, sum(batch.count for batch in state.batches)) for state in self.states()
        ]

    def _is_open(self, batch: Batch, now_ms: int) -> bool:
        """All of its leases end together; what else can end them ends the batch when it took the last one."""
        if batch.until_ms <= now_ms:
            return False
        queue = self._broker.engine.numbered.get(batch.queue)
        if queue is None:
            return False
        leases = queue.leases
        for seq, number in batch.receipts:  # the first one, as a rule
            delivery = leases.get(seq)
            if delivery is not None and delivery.number == number:
                return True
        return False

    def _tidy(self, known: Subscription) -> None:
        now_ms = self._broker.now_ms()
        known.batches = {n: each for n, each in known.batches.items() if self._is_open(each, now_ms)}

    # -- forming

    def form(
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
    ) -> Formed | None:
        """The batch after number `after`, if it is open, else what waits as a new one. None: nothing waits.

        Then `waiter`, if given, stands in line: it is only told that there may be something by now.
        """
        if not 1 <= limit <= MAX_MESSAGES:
            raise InvalidSetting(f"limit must be 1 to {MAX_MESSAGES}, not {limit}")
        _check_lease(lease_ms)
        known = self._enter(name, queue, maker)
        with known.lock:
            if self._known.get(name) is not known:
                raise SubscriptionNotFound(name)  # deleted in this moment
            self._tidy(known)
            self._claim(known, queue, owner, lease_ms)
            number = after + 1
            for later, other in known.batches.items():
                # Numbers of somebody who counted otherwise: this reader never gets to them.
                other.abandoned = later > number
            batch = known.batches.get(number)
            if batch is not None:
                self._prolong(known, batch)
            else:
                batch = self._take(known, number, limit, max_bytes, waiter)
                if batch is None:
                    return None
                known.batches = dict(sorted([*known.batches.items(), (number, batch)]))
            return Formed(number, len(batch.receipts), batch.bytes, batch.until_ms)

    def drop_orphans(self) -> None:
        """Those whose queue was deleted; their batches went with it."""
        queues = self._broker.engine.queues
        if all(known.queue in queues for known in self._known.values()):
            return
        with self._lock:
            rest = {name: known for name, known in self._known.items() if known.queue in queues}
            self._known = rest
            try:
                self._save(rest)
            except OpenQError as error:  # the next start drops them again
                log.warning("subscriptions of deleted queues stay in their file: %s", error)

    def _enter(self, name: str, queue: str, maker: str) -> Subscription:
        known = self._known.get(name)
        if known is not None:
            return known
        check_name(name, "subscription")
        with self._broker.lock:
            self._broker._queue(queue)  # nothing is remembered of a mistake
        if len(self._known) >= MAX_OF_ONE:
            self.drop_orphans()  # queues also go by themselves
        with self._lock:
            known = self._known.get(name)
            if known is None:
                if len(self._known) >= MAX_SUBSCRIPTIONS:
                    raise InvalidSetting(
                        f"there are {MAX_SUBSCRIPTIONS} subscriptions; delete one that is not needed"
                    )
                if sum(each.maker == maker for each in self._known.values()) >= MAX_OF_ONE:
                    raise InvalidSetting(
                        f"you have made {MAX_OF_ONE} subscriptions; delete one that is not needed"
                    )
                known = Subscription(name, queue, maker)
                self._save({**self._known, name: known})
                self._known = {**self._known, name: known}
        return known

    def _claim(self, known: Subscription, queue: str, owner: str | None, lease_ms: int | None) -> None:
        """Subscription locked. Who reads from now on, and how; on disk before it has any effect."""
        before = (known.queue, known.owner, known.past, known.lease_ms)
        if queue != known.queue:
            if known.batches:
                raise SubscriptionInUse(known.name, known.queue)
            with self._broker.lock:
                self._broker._queue(queue)
        self._own(known, owner)
        known.queue = queue
        known.lease_ms = known.lease_ms if lease_ms is None else lease_ms
        if before != (known.queue, known.owner, known.past, known.lease_ms):
            self._keep(known, before)

    def _own(self, known: Subscription, owner: str | None) -> None:
        if owner is None or owner == known.owner:
            return
        if owner in known.past:
            raise SubscriptionTaken(known.name, known.owner or "")
        if known.owner is not None:
            known.past = [*known.past, known.owner][-_MAX_PAST:]
        known.owner = owner

    def _keep(self, known: Subscription, before: tuple[str, str | None, list[str], int]) -> None:
        try:
            with self._lock:
                self._save(self._known)
        except OpenQError:
            known.queue, known.owner, known.past, known.lease_ms = before
            raise

    def _save(self, all_known: dict[str, Subscription]) -> None:
        self._file.write({name: known.to_json() for name, known in all_known.items()})

    def _check_owner(self, known: Subscription, owner: str | None) -> None:
        """Subscription locked: for verbs that name batches but not how to form them."""
        before = (known.queue, known.owner, known.past, known.lease_ms)
        self._own(known, owner)
        if before[1] != known.owner:
            self._keep(known, before)

    def _take(
        self, known: Subscription, number: int, limit: int, max_bytes: int | None, waiter: Waiter | None
    ) -> Batch | None:
        """Lease by lease of some hundred messages: others get their turn in between."""
        broker, engine = self._broker, self._broker.engine
        consumer = f"{_PREFIX}{known.name}:{number}"
        receipts: list[Receipt] = []
        size = until_ms = queue_number = 0
        while len(receipts) < limit:
            with broker.lock, broker._watch:
                queue = broker._queue(known.queue)
                if receipts and queue.number != queue_number:
                    break  # deleted and made again in this moment
                now_ms = broker.now_ms()
                until_ms = until_ms or now_ms + known.lease_ms
                if until_ms <= now_ms:
                    break
                step = min(SLICE, limit - len(receipts))
                if max_bytes is not None:
                    step = _fitting(queue, step, max_bytes - size, not receipts)
                try:
                    lent = engine.receive(queue, step, now_ms, until_ms - now_ms, consumer)
                except OpenQError:
                    if not receipts:
                        raise
                    lent = []  # the log refused: the batch is what it is
                if not lent and not receipts and waiter is not None:
                    broker._waiters.add(known.queue, waiter)
                    queue.watched = True
                broker._after()
            if not lent:
                break
            queue_number = queue.number
            receipts += [(each.entry.seq, each.number) for each in lent]
            size += sum([each.entry.size for each in lent])
        return Batch(queue_number, receipts, size, until_ms) if receipts else None

    # -- reading

    def rows(self, name: str, number: int, part: int = 0, parts: int = 1) -> Rows:
        """One of `parts` pieces of a batch, the same every time. Nothing, and `expired`, if it is gone."""
        if not 0 <= part < parts:
            raise InvalidSetting(f"part must be 0 to {parts - 1}, not {part}")
        known = self.get(name)
        batch = known.batches.get(number)
        if batch is None:
            return Rows((), (), expired=True)
        with known.lock:
            self._prolong(known, batch)
        count = len(batch.receipts)
        receipts = batch.receipts[count * part // parts : count * (part + 1) // parts]
        queue = self._broker.engine.numbered.get(batch.queue)
        if queue is None:
            return Rows((), (), expired=True)
        deliveries = list(_live(queue, receipts))
        # Only now: while the lease runs nothing can have come back and be somebody else's.
        if not self._is_open(batch, self._broker.now_ms()):
            return Rows((), (), expired=True)
        size = sum([each.entry.size for each in deliveries])
        if size > MAX_PART_BYTES and len(deliveries) > 1:
            raise InvalidSetting(
                f"this part has {size} bytes, more than {MAX_PART_BYTES}: ask for more than {parts} parts"
            )
        entries = self._filled(deliveries)
        return Rows(deliveries, entries, expired=False, lost=len(receipts) - len(deliveries))

    def _filled(self, deliveries: Sequence[Delivery]) -> list[Entry]:
        """Bodies in copies: what is on loan for minutes must not stay in memory."""
        try:
            return self._broker.filled([each.entry for each in deliveries])
        except HistoryUnavailable:
            # Copied out of an old segment and that freed, all in this moment: the entries are others now.
            return self._broker.filled([each.entry for each in deliveries])

    # -- keeping and ending

    def extend(self, name: str, owner: str | None, lease_ms: int | None = None) -> int:
        """The lease of all open batches, from now on. How many messages they hold."""
        _check_lease(lease_ms)
        known = self.get(name)
        with known.lock:
            self._check_owner(known, owner)
            self._tidy(known)
            lease_ms = lease_ms or known.lease_ms
            kept = [batch for batch in known.batches.values() if not batch.abandoned]
            for batch in kept:
                # Each message is named in the record of it: not for a second more or less.
                if abs(self._broker.now_ms() + lease_ms - batch.until_ms) * 10 > lease_ms:
                    self._set_lease(batch, lease_ms)
            return sum(len(batch.receipts) for batch in kept)

    def _prolong(self, known: Subscription, batch: Batch) -> None:
        """Subscription locked: a batch that is in use must not run out; written only when half is over."""
        if (batch.until_ms - self._broker.now_ms()) * 2 < known.lease_ms:
            self._set_lease(batch, known.lease_ms)

    def _set_lease(self, batch: Batch, lease_ms: int) -> None:
        broker = self._broker
        queue = broker.engine.numbered.get(batch.queue)
        if queue is None:
            return
        until_ms = 0
        for receipts in _slices(batch.receipts):
            with broker.lock, broker._watch:
                now_ms = broker.now_ms()
                if batch.until_ms <= now_ms:
                    return  # too late: some have gone back already, and all must end together
                until_ms = until_ms or now_ms + lease_ms
                broker.engine.extend_many(queue, receipts, now_ms, until_ms)
                broker._after()
        batch.until_ms = until_ms

    def ack(self, name: str, through: int, owner: str | None) -> tuple[int, int]:
        """All batches up to this one are done. How many messages that ended, and how many were lost before.

        A crash in the middle leaves the rest open; the same call again ends that too.
        """
        known = self.get(name)
        acked = lost = 0
        with known.lock:
            self._check_owner(known, owner)
            for number in [each for each in known.batches if each <= through]:
                batch = known.batches[number]
                done = self._ack(batch)
                acked += done
                lost += len(batch.receipts) - done
                known.batches = {n: each for n, each in known.batches.items() if n != number}
        return acked, lost

    def _ack(self, batch: Batch) -> int:
        broker = self._broker
        queue = broker.engine.numbered.get(batch.queue)
        if queue is None or batch.until_ms <= broker.now_ms():
            return 0
        done = 0
        for receipts in _slices(batch.receipts):
            with broker.lock, broker._watch:
                live = [(each.entry.seq, each.number) for each in _live(queue, receipts)]
                results = broker.engine.ack_many(queue, live, broker.now_ms())
                broker._after()
            done += results.count(None)
        return done

    def delete(self, name: str) -> int:
        """Its batches go back to the queue, counted as a delivery. How many messages that were."""
        known = self.get(name)
        broker = self._broker
        returned = 0
        with known.lock:
            with self._lock:
                rest = {each: other for each, other in self._known.items() if each != name}
                self._save(rest)
                self._known = rest
            for batch in known.batches.values():
                queue = broker.engine.numbered.get(batch.queue)
                if queue is None:
                    continue
                for receipts in _slices(batch.receipts):
                    with broker.lock, broker._watch:
                        now_ms = broker.now_ms()
                        returned += broker.engine.nack_many(
                            queue, receipts, now_ms, 0, "subscription deleted"
                        )
                        broker._after()
            known.batches = {}
        return returned


def _check_lease(lease_ms: int | None) -> None:
    if lease_ms is not None and not 1 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidSetting(f"a lease must be above 0 and at most {MAX_LEASE_MS // 1000} s")


def is_batch(consumer: str) -> bool:
    return consumer.startswith(_PREFIX)


def check_consumer(name: str) -> None:
    """Whoever called itself like a batch would have its messages acknowledged with it."""
    if name.startswith(_PREFIX):
        raise InvalidSetting(f"a consumer cannot be named {name[:100]!r}: {_PREFIX!r} is for subscriptions")


def _read_consumer(consumer: str) -> tuple[str, int]:
    """Subscription and number of a batch; no name at all if this is another kind of consumer."""
    name, _, number = consumer.removeprefix(_PREFIX).rpartition(":")
    if not consumer.startswith(_PREFIX) or not (number.isascii() and number.isdigit() and len(number) < 20):
        return "", 0
    return name, int(number)


def _live(queue: Queue, receipts: Sequence[Receipt]) -> Iterator[Delivery]:
    leases = queue.leases
    for seq, number in receipts:
        delivery = leases.get(seq)
        if delivery is not None and delivery.number == number:
            yield delivery


def _slices(receipts: list[Receipt]) -> Iterator[list[Receipt]]:
    for start in range(0, len(receipts), _SETTLE_SLICE):
        yield receipts[start : start + _SETTLE_SLICE]


def _fitting(queue: Queue, step: int, room: int, is_first: bool) -> int:
    """How many of the next messages fit the room; the first one always does."""
    if queue.waiting_bytes <= room:
        return step
    count = 0
    for entry in islice(queue.ready, step):
        room -= entry.size
        if room < 0 and not (is_first and not count):
            break
        count += 1
    return count
