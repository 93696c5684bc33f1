"""Subscriptions on Redis: batches of leases that all servers share.

The queue, owner and terms of a subscription are one text, shared by all servers. Its batches are stored with
the queue, leased and recorded in one call, so a server that dies loses nothing. A reader that takes a
subscription over begins a new term, and each call to the queue carries the term of its reader. From the first
call of the new term on, the queue refuses calls of an earlier term, however late they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..broker.subscriptions import (
    MAX_MESSAGES,
    MAX_OPEN,
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
)
from ..errors import FunctionError, QueueNotFound, StoreError
from ..model import Delivery, check_name
from .json_hash import JsonHash
from .records import entry_if_sound
from .registry import CachedQueue

if TYPE_CHECKING:
    from ..broker.waiters import Waiter
    from .consume import Receiver
    from .inspection import Inspector
    from .store import RedisStore

Result = TypeVar("Result")

_TRIES = 100  # against concurrent changes by other servers
_MAX_DRAINS = 100  # times that forming a batch finds only messages that have to be moved elsewhere
_NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription, as stored in its text."""

    name: str
    terms: SubscriptionTerms
    number: int  # of the queue: a later queue of the same name has another number
    term: int  # of the reader; increases with every new owner and queue

    @property
    def queue(self) -> str:
        return self.terms.queue

    @classmethod
    def from_json(cls, name: str, fields: Any) -> SubscriptionRecord:
        return cls(
            name, SubscriptionTerms.from_json(name, fields), int(fields["number"]), int(fields["term"])
        )

    def to_json(self) -> dict[str, Any]:
        return {**self.terms.to_json(), "number": self.number, "term": self.term}

    def on(self, terms: SubscriptionTerms, number: int) -> SubscriptionRecord:
        if (terms.owner, number) == (self.terms.owner, self.number):
            return replace(self, terms=terms)
        return replace(self, terms=terms, number=number, term=self.term + 1)


@dataclass(frozen=True, slots=True)
class _OpenBatch:
    """An open batch, as its queue reports it."""

    formed: FormedBatch
    abandoned: bool  # no reader can reach it: its lease is left to expire


class RedisSubscriptions:
    def __init__(self, store: RedisStore, receiver: Receiver, inspector: Inspector) -> None:
        self._store = store
        self._receiver = receiver
        self._inspector = inspector
        self._hash = JsonHash(store, "subscriptions")
        # Deleted subscriptions, by name: the highest batch number that each has used.
        self._retired = JsonHash(store, "retired_subscriptions")

    # -- inspecting

    def get(self, name: str) -> SubscriptionRecord:
        subscription = self._find(name)
        if subscription is None:
            raise SubscriptionNotFound(name)
        return subscription

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> SubscriptionRecord | None:
        return self._alive(name, self._hash.get(name))

    def _alive(self, name: str, fields: Any) -> SubscriptionRecord | None:
        """None also if the queue is gone, and the server that deleted it had no time to delete the
        subscription."""
        if fields is None:
            return None
        subscription = SubscriptionRecord.from_json(name, fields)
        return None if self._view(subscription) is None else subscription

    def _view(self, subscription: SubscriptionRecord) -> CachedQueue | None:
        registry = self._store.registry
        if subscription.number not in registry.numbered:
            self._store.refresh()
        return registry.numbered.get(subscription.number)

    def states(self) -> list[SubscriptionState]:
        texts = self._hash.all()
        if not texts:
            return []
        self._store.refresh()
        by_queue: dict[int, list[SubscriptionRecord]] = {}
        for name, fields in texts.items():
            subscription = self._alive(name, fields)
            if subscription is not None:
                by_queue.setdefault(subscription.number, []).append(subscription)
        found: list[SubscriptionState] = []
        for together in by_queue.values():
            for subscription, batches in zip(together, self._open(together), strict=True):
                terms = subscription.terms
                formed = [batch.formed for batch in batches]
                found.append(
                    SubscriptionState(subscription.name, terms.queue, terms.owner, terms.lease_ms, formed)
                )
        return sorted(found, key=lambda state: state.name)

    def terms(self) -> dict[str, SubscriptionTerms]:
        """What a migration takes along: the numbers of open batches count as used."""
        found = (self._alive(*each) for each in self._hash.all().items())
        return {
            each.name: each.terms.acked_through(max(self._all_numbers(each), default=0))
            for each in found
            if each is not None
        }

    def retired(self) -> dict[str, int]:
        return {name: int(number) for name, number in self._retired.all().items()}

    def restore(self, terms: Mapping[str, SubscriptionTerms], retired: Mapping[str, int]) -> None:
        """The subscriptions of another broker; those of the same names are replaced."""
        for name, last in retired.items():
            self._retired.update(name, partial(_higher, last))
        for name, each in terms.items():
            view = self._store.view(each.queue)
            record = SubscriptionRecord(name, each, view.number, self._store.redis_now())
            self._hash.update(name, partial(_replace, record.to_json()))

    def _open(self, together: list[SubscriptionRecord]) -> list[list[_OpenBatch]]:
        """The open batches of subscriptions that read one queue, by number."""
        view = self._view(together[0])
        try:
            if view is None:
                raise QueueNotFound(together[0].queue)
            names = [subscription.name for subscription in together]
            answers = self._store.ask_this_queue(view, "open_batches", *names)
        except QueueNotFound:
            return [[] for _ in together]
        return [_parse_batches(answer) for answer in answers]

    # -- ownership

    def _create(self, name: str, queue: str, maker: str) -> None:
        check_name(name, "subscription")
        view = self._store.view(queue)  # validate first: nothing is stored for a wrong name
        now_ms = self._store.redis_now()

        def make(fields: Any) -> Any:
            if self._alive(name, fields) is not None:
                return fields
            others = [self._alive(*each) for each in self._hash.all().items()]
            check_room([other.terms.maker for other in others if other is not None], maker)
            # The term comes from the clock: later than any term of an earlier subscription of this name.
            terms = SubscriptionTerms(queue, maker, acked=int(self._retired.get(name) or 0))
            return SubscriptionRecord(name, terms, view.number, now_ms).to_json()

        self._hash.update(name, make)

    def _update_record(
        self, name: str, change: Callable[[SubscriptionRecord], SubscriptionRecord]
    ) -> SubscriptionRecord:
        """Change the latest text; `change` may refuse."""

        def changed(fields: Any) -> Any:
            subscription = self._alive(name, fields)
            if subscription is None:
                raise SubscriptionNotFound(name)
            return change(subscription).to_json()

        return SubscriptionRecord.from_json(name, self._hash.update(name, changed))

    def _claim_owner(self, name: str, owner: str | None) -> SubscriptionRecord:
        return self._update_record(
            name,
            lambda subscription: subscription.on(
                subscription.terms.owned_by(owner, name), subscription.number
            ),
        )

    def _claim(self, name: str, queue: str, owner: str | None, lease_ms: int | None) -> SubscriptionRecord:
        """Set owner, queue and lease of the reader."""

        def claim(subscription: SubscriptionRecord) -> SubscriptionRecord:
            number = subscription.number
            if queue != subscription.queue:
                number = self._store.view(queue).number
                if self._open([subscription])[0]:
                    raise SubscriptionInUse(name, subscription.queue)
            return subscription.on(
                subscription.terms.owned_by(owner, name).read_from(queue, lease_ms), number
            )

        return self._update_record(name, claim)

    def _in_term(
        self, agree: Callable[[], SubscriptionRecord], act: Callable[[SubscriptionRecord], Result]
    ) -> tuple[SubscriptionRecord, Result]:
        """Run `act` at the queue for the owner of the subscription. `agree` is called again if the
        subscription was taken over or its queue deleted meanwhile, and raises the error in that case."""
        for _ in range(_TRIES):
            subscription = agree()
            try:
                return subscription, act(subscription)
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                self._raise_term(subscription, int(error.text))
            except QueueNotFound:
                continue
        raise _contended(subscription.name)

    def _raise_term(self, subscription: SubscriptionRecord, term: int) -> None:
        """A text that is older than its queue's term has lost the last change, in a failover."""

        def raised(latest: SubscriptionRecord) -> SubscriptionRecord:
            return latest if latest.term >= term else replace(latest, term=term + 1)

        self._update_record(subscription.name, raised)

    def _ask(self, subscription: SubscriptionRecord, function: str, token: str, *args: Any) -> Any:
        view = self._view(subscription)
        if view is None:
            raise QueueNotFound(subscription.queue)
        return self._store.ask_this_queue(view, function, token, subscription.name, subscription.term, *args)

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
        room = _NO_LIMIT if max_bytes is None else max_bytes

        def take(subscription: SubscriptionRecord) -> FormedBatch | None:
            mine = subscription.terms.number_for(number, lambda wanted: wanted in self._numbers(subscription))
            return self._take(subscription, mine, limit, room)

        def agree() -> SubscriptionRecord:
            for _ in range(_TRIES):
                if self._find(name) is None:
                    self._create(name, queue, maker)  # refuses if the queue does not exist
                # Deleted since, perhaps with its queue: a caller that forms a batch creates it again.
                with suppress(SubscriptionNotFound):
                    return self._claim(name, queue, owner, lease_ms)
            raise _contended(name)

        subscription, formed = self._in_term(agree, take)
        if formed is None and waiter is not None and self._receiver.stand_by(queue, waiter):
            # A message arrived before the waiter was registered, and is not announced.
            subscription, formed = self._in_term(agree, take)
            if formed is not None:
                self._receiver.remove_waiter(queue, waiter)
        if formed is not None:
            formed = self._renew_lease(subscription, formed)
            self._tick_at_expiry(subscription, formed)
        self._store.sync()
        return formed

    def _take(
        self, subscription: SubscriptionRecord, number: int, limit: int, room: int
    ) -> FormedBatch | None:
        """Form a batch slice by slice, so that Redis serves other clients in between."""
        consumer, lease_ms = consumer_of(subscription.name, number), subscription.terms.lease_ms
        for _ in range(_MAX_DRAINS):
            formed: FormedBatch | None = None
            is_whole = 0
            while not is_whole:
                version = str(self._store.registry.version)
                view = self._view(subscription)
                if view is None:
                    raise QueueNotFound(subscription.queue)
                args = (
                    "",
                    subscription.name,
                    subscription.term,
                    number,
                    limit,
                    room,
                    lease_ms,
                    consumer,
                    version,
                )
                begun = int(formed is not None)
                answer, decided = self._store.ask_and_drain(view, "form_batch", *args, begun, MAX_OPEN)
                if not answer:
                    break
                if len(answer) == 1:  # the number of open batches
                    check_open(subscription.name, int(answer[0]))
                until_ms, size, count, is_whole = (int(each) for each in answer)
                formed = FormedBatch(number, count, size, until_ms)
            if formed is not None:
                return formed  # even if its lease has expired: another try would not finish either
            if not decided:
                return None
            # All messages found had no receives left: those without a dead-letter queue are delivered after
            # all.
        return None

    def _tick_at_expiry(self, subscription: SubscriptionRecord, formed: FormedBatch) -> None:
        view = self._view(subscription)
        if view is not None:
            self._receiver.tick_at(view, formed.until_ms)

    def drop_orphans(self) -> None:
        """Delete the subscriptions whose queue was deleted; their batches were deleted with it."""
        for name, fields in self._hash.all().items():
            if self._alive(name, fields) is None:
                self._drop_orphan(name)

    def _drop_orphan(self, name: str) -> None:
        fields = self._hash.get(name)
        if fields is not None:
            self._retire(SubscriptionRecord.from_json(name, fields))
        self._hash.update(name, lambda fields: None if self._alive(name, fields) is None else fields)

    # -- reading

    def rows(self, name: str, number: int, part: int = 0, parts: int = 1) -> BatchRows:
        """One of `parts` pieces of a batch, the same every time. Empty and `expired` if the batch is gone."""
        check_part(part, parts)
        subscription = self.get(name)
        formed = next(
            (each.formed for each in self._open([subscription])[0] if each.formed.batch == number), None
        )
        if formed is None:
            return BatchRows((), (), expired=True)
        try:
            kept, formed = self._extend_if_due(name, formed)
            first, end = formed.count * part // parts, formed.count * (part + 1) // parts
            deliveries = self._read(kept, formed, first, end, parts)
        except (QueueNotFound, SubscriptionNotFound):
            deliveries = None
        self._store.sync()  # reading may have extended the lease
        if deliveries is None:
            return BatchRows((), (), expired=True)
        entries = [each.entry for each in deliveries]
        return BatchRows(deliveries, entries, expired=False, lost=end - first - len(deliveries))

    def _extend_if_due(self, name: str, formed: FormedBatch) -> tuple[SubscriptionRecord, FormedBatch]:
        """Extend the lease if due. A reader of rows does not identify itself, so it acts as the owner of the
        subscription."""
        return self._in_term(
            lambda: self.get(name), lambda subscription: self._renew_lease(subscription, formed)
        )

    def _read(
        self, subscription: SubscriptionRecord, formed: FormedBatch, place: int, end: int, parts: int
    ) -> list[Delivery] | None:
        """Read the batch page by page, each as it is at that moment. None: the batch is gone."""
        consumer, number = consumer_of(subscription.name, formed.batch), formed.batch
        deliveries: list[Delivery] = []
        size = 0
        while True:
            view = self._view(subscription)
            if view is None:
                return None
            answer = self._store.ask_this_queue(view, "read_batch", subscription.name, number, place, end)
            if not answer:
                return None
            until_ms, place = int(answer[0]), int(answer[1])
            for at in range(2, len(answer), 6):
                id, record, options, delivery, delivered_ms, count = answer[at : at + 6]
                entry = entry_if_sound(id, record, options)
                if entry is None:
                    self._inspector.report_unreadable(view, id)
                    continue  # left in the batch, and settled with it
                size += entry.size
                deliveries.append(
                    Delivery(entry, int(delivery), int(delivered_ms), until_ms, int(count), consumer)
                )
            check_part_size(size, len(deliveries), parts)
            if place >= end:
                return deliveries

    # -- extending and settling

    def extend(self, name: str, owner: str | None, lease_ms: int | None = None) -> int:
        """Extend the lease of all open batches, from now on. Returns the number of messages in them."""
        check_lease(lease_ms)

        def keep(subscription: SubscriptionRecord) -> int:
            lasting = lease_ms or subscription.terms.lease_ms
            held = 0
            for batch in _parse_batches(self._ask(subscription, "tidy_batches", "")):
                if not batch.abandoned:
                    formed = batch.formed
                    # Each message is named in the event of an extension, so small differences are not
                    # written.
                    if abs(self._store.now_ms() + lasting - formed.until_ms) * 10 > lasting:
                        formed = self._set_lease(subscription, formed, lasting)
                    held += formed.count
            return held

        _, held = self._in_term(lambda: self._claim_owner(name, owner), keep)
        self._store.sync()
        return held

    def _renew_lease(self, subscription: SubscriptionRecord, formed: FormedBatch) -> FormedBatch:
        """Keep a batch that is in use from expiring; written only after half of the lease."""
        lease_ms = subscription.terms.lease_ms
        if (formed.until_ms - self._store.now_ms()) * 2 < lease_ms:
            return self._set_lease(subscription, formed, lease_ms)
        return formed

    def _set_lease(self, subscription: SubscriptionRecord, formed: FormedBatch, lease_ms: int) -> FormedBatch:
        until_ms = place = 0
        while place < formed.count:
            answer = self._ask(subscription, "extend_batch", "", formed.batch, lease_ms, until_ms, place)
            if not answer:
                return formed  # too late
            until_ms, place = int(answer[0]), int(answer[1])
        return replace(formed, until_ms=until_ms)

    def ack(self, name: str, through: int, owner: str | None) -> tuple[int, int]:
        """Ack all batches up to this one. Returns how many messages were settled, and how many were lost
        before.

        A crash in the middle leaves the rest open; repeating the call settles these too.
        """
        check_number(through)

        def note(subscription: SubscriptionRecord) -> SubscriptionRecord:
            """Done before the first ack: a crash in between leaves the same batch open."""
            subscription = subscription.on(subscription.terms.owned_by(owner, name), subscription.number)
            done_with = [number for number in self._all_numbers(subscription) if number <= through]
            return replace(subscription, terms=subscription.terms.acked_through(max(done_with, default=0)))

        _, counts = self._in_term(
            lambda: self._update_record(name, note),
            lambda subscription: self._end(subscription, "ack_batches", through),
        )
        self._store.sync()
        return counts

    def _end(self, subscription: SubscriptionRecord, function: str, *args: Any) -> tuple[int, int]:
        ended = lost = 0
        is_more = True
        while is_more:
            more_ended, more_lost, is_more = self._ask(subscription, function, self._store.token(), *args)
            ended += more_ended
            lost += more_lost
        return ended, lost

    def _numbers(self, subscription: SubscriptionRecord) -> list[int]:
        return [batch.formed.batch for batch in self._open([subscription])[0]]

    def _all_numbers(self, subscription: SubscriptionRecord) -> list[int]:
        """The batch numbers, including settled batches as far as they are remembered: their reader knows
        these numbers."""
        view = self._view(subscription)
        try:
            found = (
                [] if view is None else self._store.ask_this_queue(view, "known_batches", subscription.name)
            )
        except QueueNotFound:
            found = []
        return [int(number) for number in found]

    def _retire(self, subscription: SubscriptionRecord) -> None:
        """Remember the last number: a new subscription of the same name continues after it."""
        last = max([subscription.terms.acked, *self._all_numbers(subscription)])
        if last:
            self._retired.update(subscription.name, lambda before: max(int(before or 0), last))
            if self._retired.count() > MAX_RETIRED:
                oldest = min(self._retired.all().items(), key=lambda item: int(item[1]))[0]
                self._retired.update(oldest, lambda before: None)

    def delete(self, name: str) -> int:
        """Return its batches to the queue, counted as a delivery. Returns the number of messages."""
        subscription = self.get(name)
        self._retire(subscription)

        def take(fields: Any) -> None:
            nonlocal subscription
            subscription = self._alive(name, fields) or subscription

        self._hash.update(name, take)
        # No other reader can continue it: this is the last term.
        subscription = replace(subscription, term=subscription.term + 1)
        try:
            returned, _ = self._end(subscription, "give_back_batches", "subscription deleted")
        except QueueNotFound:
            returned = 0  # they were deleted with the queue
        self._store.sync()
        return returned


def _higher(last: int, before: Any) -> int:
    return max(int(before or 0), last)


def _replace(record: dict[str, Any], before: Any) -> dict[str, Any]:
    return record


def _contended(name: str) -> StoreError:
    return StoreError(f"subscription {name!r} is changed by others all the time; try again")


def _parse_batches(flat: list[Any]) -> list[_OpenBatch]:
    found = []
    for at in range(0, len(flat), 5):
        number, until_ms, size, count, is_abandoned = map(int, flat[at : at + 5])
        found.append(_OpenBatch(FormedBatch(number, count, size, until_ms), bool(is_abandoned)))
    return found
