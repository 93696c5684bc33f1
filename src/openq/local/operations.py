"""What an operator asks of a broker: look, search, mend, redrive, replay, wire exchanges.

Long work goes over frozen references without the lock, and takes it only for each small batch of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import cast

from ..broker import bulk
from ..broker.explain import MessageSource, why_elsewhere
from ..broker.filters import needs_body
from ..broker.history import HistoryRange, PastMessage
from ..broker.interface import Filter, SearchResult, TimelineStep
from ..engine import admin
from ..engine.queue import QueueState
from ..engine.routing import Binding, Exchange, Removed
from ..engine.why import Why
from ..errors import MessageNotFoundError, OpenQError
from ..model import Delivery, Draft, Entry
from .views import Views


class Operations(Views):
    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._end_change()
            entries = admin.peek(self.engine, found, limit, rear)
        return self.with_bodies(entries)

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        """All of them, in hand-out order, with their bodies: for export and small queues."""
        with self._lock, self._interrupt_guard:
            self.engine.advance(self._now())
            self._end_change()
            entries = list(admin.browse(self.engine, self._queue(queue), state))
        return self.with_bodies(entries)

    def deliveries(self, queue: str) -> list[Delivery]:
        """What is out on loan, with holder and deadline."""
        with self._lock, self._interrupt_guard:
            self.engine.advance(self._now())
            self._end_change()
            deliveries = list(self._queue(queue).leases.values())
        filled = {entry.seq: entry for entry in self.with_bodies([delivery.entry for delivery in deliveries])}
        return [
            Delivery(filled[d.entry.seq], d.number, d.delivered_ms, d.until_ms, d.count, d.consumer)
            for d in deliveries
            if d.entry.seq in filled
        ]

    def find(self, queue: str, message_id: str) -> Entry:
        with self._lock, self._interrupt_guard:
            entry = self.engine.locate(self._queue(queue), message_id)
        for filled in self.with_bodies([entry]):
            return filled
        raise MessageNotFoundError(message_id, queue)  # set aside just now: its body cannot be read

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        """The live delivery of a message, for callers that know only its id."""
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._end_change()
            return found.leases.get(self.engine.seq_of(found, message_id))

    def status(self, queue: str, message_id: str) -> str | None:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._end_change()
            seq = self.engine.seq_of(found, message_id)
            return admin.status(found, seq) if seq else None

    def search(
        self,
        queue: str,
        filter: Filter,
        limit: int = 100,
        budget_s: float = 1.0,
        max_bytes: int | None = None,
    ) -> SearchResult:
        """By priority and sequence; stops at the limit, at `max_bytes` of bodies or when the time is up."""
        candidates = self._chunks(queue, filter)
        found = bulk.search(candidates, self.engine.id_of, filter, limit, budget_s, max_bytes)
        return SearchResult(self.with_bodies(found.entries), found.complete, found.scanned)

    def _chunks(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """Candidates for a filter, some hundred at a time, with bodies if it needs them."""
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._end_change()
            if filter.ids is not None:
                seqs = [self.engine.seq_of(found, message_id) for message_id in filter.ids]
                if filter.state != "all":
                    seqs = [seq for seq in seqs if admin.status(found, seq) == filter.state]
                known = [found.find(seq) for seq in seqs if seq]
                candidates = iter([entry for entry in known if entry is not None])
            else:
                candidates = admin.scan(found, filter.state)
        loads = needs_body(filter)
        while part := list(islice(candidates, bulk.CHUNK)):
            if not loads:
                yield part
                continue
            for loadable in bulk.split_by_size(part):
                yield self.with_bodies(loadable)

    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """What a filter is about, as of now, some hundred at a time; with bodies only if it needs them."""
        return bulk.chosen(self._chunks(queue, filter), self.engine.id_of, filter)

    def why(self, queue: str, message_id: str) -> Why:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._end_change()
            why = admin.why(self.engine, found, message_id, now_ms, self._waiters.count(queue))
        return (
            why
            if why.code != "not_found"
            else why_elsewhere(cast(MessageSource, self), queue, message_id) or why
        )

    def past(self, queue: str, span: HistoryRange) -> list[PastMessage]:
        """What was published to a queue, as it was published, as far as history is kept."""
        with self._lock, self._interrupt_guard:
            number = self._queue(queue).number
        return self._history.past(number, span)

    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
        self.flush()
        return self._history.timeline(self.engine, found, message_id)

    def cancel(self, queue: str, message_id: str) -> None:
        with self._lock, self._interrupt_guard:
            admin.cancel(self.engine, self._queue(queue), message_id, self._now())
            self._end_change()

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self._require_room(len(draft.body))
            if self._journal is None:
                self._limit_memory(len(draft.body))
            admin.edit(self.engine, found, message_id, self._now(), draft)
            self._end_change()

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        with self._lock, self._interrupt_guard:
            source, target = self._queue(queue), self._queue(to)
            errors = admin.move(self.engine, source, message_ids, target, self._now())
            self._end_change()
            return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        with self._lock, self._interrupt_guard:
            admin.reschedule(self.engine, self._queue(queue), message_id, due_ms, self._now())
            self._end_change()

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int:
        """Dead letters back to where they died, or to `to`. At most `rate` a second.

        `progress` is called with the number so far, also while nothing happens; returning False stops.
        Without `to`, letters of queues that are not `allowed` stay; asked under the lock.
        """
        bulk.check_rate(rate)
        if to is not None:
            with self._lock, self._interrupt_guard:
                self._queue(to)

        def send_on(entries: list[Entry]) -> int:
            with self._lock, self._interrupt_guard:
                found = self._queue(queue)
                live = [each for each in entries if found.find(each.seq) is not None]
                if allowed is not None and to is None:
                    live = [each for each in live if self._may_return(found, each, allowed)]
                done = admin.redrive(self.engine, found, live, to, self._now())
                self._end_change()
            self.sync()
            return done

        chosen = self.matching(queue, filter or Filter(state="ready"))
        return bulk.redrive(chosen, send_on, rate, progress)

    def _may_return(self, queue: QueueState, entry: Entry, allowed: Callable[[str], bool]) -> bool:
        target = admin.redrive_target(self.engine, queue, entry, None)
        return target is not None and allowed(target.name)

    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        dry_run: bool = False,
        include_purged: bool = False,
    ) -> int:
        """Publish again what was published to `queue` from a point on and is no longer in it.

        A purge is final: what it removed is left out, unless `include_purged` asks for it.
        What is still waiting or with a consumer is not doubled; ids stay, so a replay can be repeated.
        `progress` is called with the number so far; returning False stops. A dry run only counts.
        """
        bulk.check_rate(rate)
        with self._lock, self._interrupt_guard:
            source = self._queue(queue)
            target = source if to is None else self._queue(to)
            now_ms = self._now()
        self.sync()
        act = self._count_missing if dry_run else self._replay_batch
        past = self._history.published(self.engine, source, since_ms, since_id, now_ms, include_purged)
        chosen = bulk.chosen_drafts(past, self.engine.id_of, filter)
        count = bulk.replay(chosen, partial(act, target), rate, progress, dry_run=dry_run)
        self.sync()
        return count

    def _count_missing(self, target: QueueState, drafts: Sequence[Draft]) -> int:
        with self._lock, self._interrupt_guard:
            seqs = [self.engine.seq_of(target, draft.id or "") for draft in drafts]
            return sum(not seq or target.find(seq) is None for seq in seqs)

    def _replay_batch(self, target: QueueState, drafts: Sequence[Draft]) -> int:
        count = 0
        with self._lock, self._interrupt_guard:
            for draft in drafts:
                self._require_room(len(draft.body))
                if self._journal is None:
                    self._limit_memory(len(draft.body))
                count += not self.engine.publish(target, draft, self._now(), again=True)[1]
            self._end_change()
        return count

    def declare_exchange(self, exchange: Exchange) -> bool:
        with self._lock, self._interrupt_guard:
            if exchange.name not in self.engine.router:
                self._require_settings_room(exchange.arguments)
            return admin.declare_exchange(self.engine, exchange, self._now())

    def change_exchange(self, exchange: Exchange) -> None:
        """Another alternate or other arguments; what is bound to it stays."""
        with self._lock, self._interrupt_guard:
            self._require_settings_room(exchange.arguments)
            admin.change_exchange(self.engine, exchange, self._now())

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed:
        """With what went with it, down to auto-delete exchanges that lost their last binding."""
        with self._lock, self._interrupt_guard:
            return admin.delete_exchange(self.engine, name, self._now(), if_unused)

    def bind(self, binding: Binding) -> bool:
        with self._lock, self._interrupt_guard:
            if binding not in self.engine.router.bindings(binding.source, binding.destination):
                self._require_settings_room(binding.arguments)
            return admin.bind(self.engine, binding, self._now())

    def unbind(self, binding: Binding) -> Removed:
        """What went; nothing (false) if there was no such binding."""
        with self._lock, self._interrupt_guard:
            return admin.unbind(self.engine, binding, self._now())
