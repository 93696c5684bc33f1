"""Subscriptions on Redis: batches of leases that all servers share.

Which queue a subscription reads, for whom and on which terms is one text for all servers. Its batches are
with the queue, leased and recorded in one call, so a server that dies takes nothing with it. Whoever takes a
subscription over begins a new term, and each call to the queue carries the term of its reader: from the first
call of the new one on, the queue refuses what is of an earlier term, however late it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..broker.batches import (
    MAX_MESSAGES,
    MAX_OPEN,
    MAX_RETIRED,
    Formed,
    Rows,
    SubscriptionInUse,
    SubscriptionNotFound,
    SubscriptionState,
    Terms,
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
from .records import entry_if_sound
from .registry import QueueView
from .shelf import Shelf

if TYPE_CHECKING:
    from ..broker.waiters import Waiter
    from .broker import RedisBroker

Result = TypeVar("Result")

_TRIES = 100  # of one who is outrun by others
_DECISIONS = 100  # times that forming meets nothing but messages that have to go elsewhere
_NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class Known:
    """A subscription as its text says it."""

    name: str
    terms: Terms
    number: int  # of the queue: one of the same name made later is another one
    term: int  # of the reader; rises with every new owner and queue

    @property
    def queue(self) -> str:
        return self.terms.queue

    @classmethod
    def from_json(cls, name: str, fields: Any) -> Known:
        return cls(name, Terms.from_json(name, fields), int(fields["number"]), int(fields["term"]))

    def to_json(self) -> dict[str, Any]:
        return {**self.terms.to_json(), "number": self.number, "term": self.term}

    def on(self, terms: Terms, number: int) -> Known:
        if (terms.owner, number) == (self.terms.owner, self.number):
            return replace(self, terms=terms)
        return replace(self, terms=terms, number=number, term=self.term + 1)


@dataclass(frozen=True, slots=True)
class _Batch:
    """An open one, as its queue tells of it."""

    formed: Formed
    abandoned: bool  # nobody counts on from it: its lease is left to run out


class StreamSubscriptions:
    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._shelf = Shelf(broker, "subscriptions")
        # By the name of a deleted subscription: the number up to which its batches went.
        self._retired = Shelf(broker, "retired_subscriptions")

    # -- looking

    def get(self, name: str) -> Known:
        known = self._find(name)
        if known is None:
            raise SubscriptionNotFound(name)
        return known

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> Known | None:
        return self._alive(name, self._shelf.get(name))

    def _alive(self, name: str, fields: Any) -> Known | None:
        """None also where the queue is gone, and only the one who deleted it did not come to this."""
        if fields is None:
            return None
        known = Known.from_json(name, fields)
        return None if self._view(known) is None else known

    def _view(self, known: Known) -> QueueView | None:
        registry = self._broker.registry
        if known.number not in registry.numbered:
            registry.refresh(self._broker.calls)
        return registry.numbered.get(known.number)

    def states(self) -> list[SubscriptionState]:
        texts = self._shelf.all()
        if not texts:
            return []
        self._broker.registry.refresh(self._broker.calls)
        by_queue: dict[int, list[Known]] = {}
        for name, fields in texts.items():
            known = self._alive(name, fields)
            if known is not None:
                by_queue.setdefault(known.number, []).append(known)
        found: list[SubscriptionState] = []
        for together in by_queue.values():
            for known, batches in zip(together, self._open(together), strict=True):
                terms = known.terms
                formed = [batch.formed for batch in batches]
                found.append(SubscriptionState(known.name, terms.queue, terms.owner, terms.lease_ms, formed))
        return sorted(found, key=lambda state: state.name)

    def _open(self, together: list[Known]) -> list[list[_Batch]]:
        """The open batches of subscriptions that read one queue, by number."""
        view = self._view(together[0])
        try:
            if view is None:
                raise QueueNotFound(together[0].queue)
            names = [known.name for known in together]
            answers = self._broker.ask_of(view, "open_batches", *names)
        except QueueNotFound:
            return [[] for _ in together]
        return [_listed(answer) for answer in answers]

    # -- whose it is

    def _enter(self, name: str, queue: str, maker: str) -> None:
        check_name(name, "subscription")
        view = self._broker.view(queue)  # nothing is remembered of a mistake
        now_ms = self._broker.redis_now()

        def make(fields: Any) -> Any:
            if self._alive(name, fields) is not None:
                return fields
            others = [self._alive(*each) for each in self._shelf.all().items()]
            check_room([other.terms.maker for other in others if other is not None], maker)
            # By the clock: later than any term of one that had this name before.
            terms = Terms(queue, maker, acked=int(self._retired.get(name) or 0))
            return Known(name, terms, view.number, now_ms).to_json()

        self._shelf.change(name, make)

    def _agree(self, name: str, change: Callable[[Known], Known]) -> Known:
        """With its latest text; `change` may refuse."""

        def changed(fields: Any) -> Any:
            known = self._alive(name, fields)
            if known is None:
                raise SubscriptionNotFound(name)
            return change(known).to_json()

        return Known.from_json(name, self._shelf.change(name, changed))

    def _owned(self, name: str, owner: str | None) -> Known:
        return self._agree(name, lambda known: known.on(known.terms.owned_by(owner, name), known.number))

    def _claimed(self, name: str, queue: str, owner: str | None, lease_ms: int | None) -> Known:
        """Who reads from now on, and how."""

        def claim(known: Known) -> Known:
            number = known.number
            if queue != known.queue:
                number = self._broker.view(queue).number
                if self._open([known])[0]:
                    raise SubscriptionInUse(name, known.queue)
            return known.on(known.terms.owned_by(owner, name).read_from(queue, lease_ms), number)

        return self._agree(name, claim)

    def _in_term(self, agree: Callable[[], Known], act: Callable[[Known], Result]) -> tuple[Known, Result]:
        """What `act` does at the queue for who has the subscription. Agreed on again where somebody took it
        over meanwhile, or deleted the queue: then it is `agree` that refuses."""
        for _ in range(_TRIES):
            known = agree()
            try:
                return known, act(known)
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                self._catch_up(known, int(error.text))
            except QueueNotFound:
                continue
        raise _busy(known.name)

    def _catch_up(self, known: Known, term: int) -> None:
        """A text that lags behind its queue has lost the last change, in a failover."""

        def raised(latest: Known) -> Known:
            return latest if latest.term >= term else replace(latest, term=term + 1)

        self._agree(known.name, raised)

    def _ask(self, known: Known, function: str, token: str, *args: Any) -> Any:
        view = self._view(known)
        if view is None:
            raise QueueNotFound(known.queue)
        return self._broker.ask_of(view, function, token, known.name, known.term, *args)

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
        check_limit(limit)
        check_lease(lease_ms)
        number = check_number(after + 1)
        room = _NO_LIMIT if max_bytes is None else max_bytes

        def take(known: Known) -> Formed | None:
            mine = known.terms.number_for(number, lambda wanted: wanted in self._numbers(known))
            return self._take(known, mine, limit, room)

        def agree() -> Known:
            for _ in range(_TRIES):
                if self._find(name) is None:
                    self._enter(name, queue, maker)  # refuses if there is no queue
                # Deleted since, with its queue perhaps: a caller that forms a batch makes it anew.
                with suppress(SubscriptionNotFound):
                    return self._claimed(name, queue, owner, lease_ms)
            raise _busy(name)

        known, formed = self._in_term(agree, take)
        if formed is None and waiter is not None and self._broker.stand_by(queue, waiter):
            # Something came before the waiter stood in line, and nobody tells of that.
            known, formed = self._in_term(agree, take)
            if formed is not None:
                self._broker.leave(queue, waiter)
        if formed is not None:
            formed = self._prolong(known, formed)
            self._look_again(known, formed)
        self._broker.sync()
        return formed

    def _take(self, known: Known, number: int, limit: int, room: int) -> Formed | None:
        """Slice by slice: others get their turn in between."""
        consumer, lease_ms = consumer_of(known.name, number), known.terms.lease_ms
        for _ in range(_DECISIONS):
            formed: Formed | None = None
            is_whole = 0
            while not is_whole:
                version = str(self._broker.registry.version)
                view = self._view(known)
                if view is None:
                    raise QueueNotFound(known.queue)
                args = ("", known.name, known.term, number, limit, room, lease_ms, consumer, version)
                begun = int(formed is not None)
                answer, decided = self._broker.ask_and_decide(view, "form_batch", *args, begun, MAX_OPEN)
                if not answer:
                    break
                if len(answer) == 1:  # how many are open
                    check_open(known.name, int(answer[0]))
                until_ms, size, count, is_whole = (int(each) for each in answer)
                formed = Formed(number, count, size, until_ms)
            if formed is not None:
                return formed  # also if its lease ran out meanwhile: another one would not end either
            if not decided:
                return None
            # There were only such without receives left: those with nowhere to go are handed out after all.
        return None

    def _look_again(self, known: Known, formed: Formed) -> None:
        view = self._view(known)
        if view is not None:
            self._broker.look_again(view, formed.until_ms)

    def drop_orphans(self) -> None:
        """Those whose queue was deleted; their batches went with it."""
        for name, fields in self._shelf.all().items():
            if self._alive(name, fields) is None:
                self._drop_orphan(name)

    def _drop_orphan(self, name: str) -> None:
        fields = self._shelf.get(name)
        if fields is not None:
            self._retire(Known.from_json(name, fields))
        self._shelf.change(name, lambda fields: None if self._alive(name, fields) is None else fields)

    # -- reading

    def rows(self, name: str, number: int, part: int = 0, parts: int = 1) -> Rows:
        """One of `parts` pieces of a batch, the same every time. Nothing, and `expired`, if it is gone."""
        check_part(part, parts)
        known = self.get(name)
        formed = next((each.formed for each in self._open([known])[0] if each.formed.batch == number), None)
        if formed is None:
            return Rows((), (), expired=True)
        try:
            kept, formed = self._kept_up(name, formed)
            first, end = formed.count * part // parts, formed.count * (part + 1) // parts
            deliveries = self._read(kept, formed, first, end, parts)
        except (QueueNotFound, SubscriptionNotFound):
            deliveries = None
        self._broker.sync()  # reading may have made the lease longer
        if deliveries is None:
            return Rows((), (), expired=True)
        entries = [each.entry for each in deliveries]
        return Rows(deliveries, entries, expired=False, lost=end - first - len(deliveries))

    def _kept_up(self, name: str, formed: Formed) -> tuple[Known, Formed]:
        """A reader of rows does not say who it is: it is the one who has the subscription."""
        return self._in_term(lambda: self.get(name), lambda known: self._prolong(known, formed))

    def _read(self, known: Known, formed: Formed, place: int, end: int, parts: int) -> list[Delivery] | None:
        """Page by page, each of them as it is at that moment. None: the batch is gone."""
        consumer, number = consumer_of(known.name, formed.batch), formed.batch
        deliveries: list[Delivery] = []
        size = 0
        while True:
            view = self._view(known)
            if view is None:
                return None
            answer = self._broker.ask_of(view, "read_batch", known.name, number, place, end)
            if not answer:
                return None
            until_ms, place = int(answer[0]), int(answer[1])
            for at in range(2, len(answer), 6):
                id, record, extra, delivery, lent_ms, count = answer[at : at + 6]
                entry = entry_if_sound(id, record, extra)
                if entry is None:
                    self._broker.report_unreadable(view, id)
                    continue  # left in the batch: it is settled with it
                size += entry.size
                deliveries.append(
                    Delivery(entry, int(delivery), int(lent_ms), until_ms, int(count), consumer)
                )
            check_part_size(size, len(deliveries), parts)
            if place >= end:
                return deliveries

    # -- keeping and ending

    def extend(self, name: str, owner: str | None, lease_ms: int | None = None) -> int:
        """The lease of all open batches, from now on. How many messages they hold."""
        check_lease(lease_ms)

        def keep(known: Known) -> int:
            lasting = lease_ms or known.terms.lease_ms
            held = 0
            for batch in _listed(self._ask(known, "tidy_batches", "")):
                if not batch.abandoned:
                    formed = batch.formed
                    # Each message is named in the event of it: not for a second more or less.
                    if abs(self._broker.now_ms() + lasting - formed.until_ms) * 10 > lasting:
                        formed = self._set_lease(known, formed, lasting)
                    held += formed.count
            return held

        _, held = self._in_term(lambda: self._owned(name, owner), keep)
        self._broker.sync()
        return held

    def _prolong(self, known: Known, formed: Formed) -> Formed:
        """A batch that is in use must not run out; written only when half is over."""
        lease_ms = known.terms.lease_ms
        if (formed.until_ms - self._broker.now_ms()) * 2 < lease_ms:
            return self._set_lease(known, formed, lease_ms)
        return formed

    def _set_lease(self, known: Known, formed: Formed, lease_ms: int) -> Formed:
        until_ms = place = 0
        while place < formed.count:
            answer = self._ask(known, "extend_batch", "", formed.batch, lease_ms, until_ms, place)
            if not answer:
                return formed  # too late
            until_ms, place = int(answer[0]), int(answer[1])
        return replace(formed, until_ms=until_ms)

    def ack(self, name: str, through: int, owner: str | None) -> tuple[int, int]:
        """All batches up to this one are done. How many messages that ended, and how many were lost before.

        A crash in the middle leaves the rest open; the same call again ends that too.
        """
        check_number(through)

        def note(known: Known) -> Known:
            """Before the first ack: a crash in between leaves the same batch open."""
            known = known.on(known.terms.owned_by(owner, name), known.number)
            done_with = [number for number in self._all_numbers(known) if number <= through]
            return replace(known, terms=known.terms.acked_through(max(done_with, default=0)))

        _, counts = self._in_term(
            lambda: self._agree(name, note), lambda known: self._end(known, "ack_batches", through)
        )
        self._broker.sync()
        return counts

    def _end(self, known: Known, function: str, *args: Any) -> tuple[int, int]:
        ended = lost = 0
        is_more = True
        while is_more:
            more_ended, more_lost, is_more = self._ask(known, function, self._broker.token(), *args)
            ended += more_ended
            lost += more_lost
        return ended, lost

    def _numbers(self, known: Known) -> list[int]:
        return [batch.formed.batch for batch in self._open([known])[0]]

    def _all_numbers(self, known: Known) -> list[int]:
        """Also of batches that are over, as far as they are remembered: their reader knows the numbers."""
        view = self._view(known)
        try:
            found = [] if view is None else self._broker.ask_of(view, "known_batches", known.name)
        except QueueNotFound:
            found = []
        return [int(number) for number in found]

    def _retire(self, known: Known) -> None:
        """A subscription of the same name goes on behind the numbers of this one."""
        last = max([known.terms.acked, *self._all_numbers(known)])
        if last:
            self._retired.change(known.name, lambda before: max(int(before or 0), last))
            if self._retired.count() > MAX_RETIRED:
                oldest = min(self._retired.all().items(), key=lambda item: int(item[1]))[0]
                self._retired.change(oldest, lambda before: None)

    def delete(self, name: str) -> int:
        """Its batches go back to the queue, counted as a delivery. How many messages that were."""
        known = self.get(name)
        self._retire(known)

        def take(fields: Any) -> None:
            nonlocal known
            known = self._alive(name, fields) or known

        self._shelf.change(name, take)
        # Nobody else can go on with it now: this is the last term.
        known = replace(known, term=known.term + 1)
        try:
            returned, _ = self._end(known, "give_back_batches", "subscription deleted")
        except QueueNotFound:
            returned = 0  # they went with it
        self._broker.sync()
        return returned


def _busy(name: str) -> StoreError:
    return StoreError(f"subscription {name!r} is changed by others all the time; try again")


def _listed(flat: list[Any]) -> list[_Batch]:
    found = []
    for at in range(0, len(flat), 5):
        number, until_ms, size, count, is_abandoned = map(int, flat[at : at + 5])
        found.append(_Batch(Formed(number, count, size, until_ms), bool(is_abandoned)))
    return found
