"""Queues, and what an operator asks: look, search, mend, redrive, replay, wire exchanges."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ..broker import bulk
from ..broker.damage import FOUND
from ..broker.explain import why_elsewhere
from ..broker.history import HistoryRange, PastMessage
from ..broker.interface import Filter, QueueStats, SearchResult, TimelineStep
from ..broker.scan_position import ScanPosition, entries_after
from ..engine.admin import STATES, check_state, in_use
from ..engine.engine import make_properties
from ..engine.queue import Counters
from ..engine.records import MOVED, REDRIVEN
from ..engine.routing import Binding, Exchange, Removed
from ..engine.state import MAX_TIME_MS, settings_differences
from ..engine.why import QueuePosition, Why, why_paused, why_unavailable, why_waiting
from ..errors import (
    FunctionError,
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    StoreError,
)
from ..model import Delivery, Draft, Entry, QueueSettings, check_name
from .drafts import pack_draft
from .event_log import EventLog
from .publish import Publishing
from .records import UNREADABLE, delivery_of, entry_if_sound, pack_record
from .registry import CachedQueue

_PAGE = 500
_NO_LIMIT = 10_000_000
_SORTED = 20_000  # so many are fetched at once to be sorted by priority
_EXACT_MS = 10**14  # an extra holds 14 digits of a due time
_RETRIES = 200  # of who is outrun by others


class Administration(Publishing):
    # -- queues ---------------------------------------------------------------------------------

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        """Whoever else does it at the same time: all of them see one queue, and the last change counts."""
        check_name(queue)
        self._check_open()
        for _ in range(_RETRIES):
            self._registry.refresh(self.calls)
            view = self._registry.queues.get(queue)
            if view is None:
                if self._create(queue, settings):
                    return settings
            elif view.settings == settings:
                try:
                    self._apply_settings(view)
                except QueueNotFound:
                    continue  # deleted in the same moment
                return view.settings
            elif not change:
                raise QueueExists(queue, settings_differences(view.settings, settings))
            elif self._change(view, settings):
                return settings
        raise StoreError(f"queue {queue!r} is changed by others all the time; try again")

    def _create(self, queue: str, settings: QueueSettings) -> bool:
        number = self._registry.next_number(self.calls)
        view = CachedQueue(queue, number, settings, self._redis_now(), self._registry.key_of(number))
        try:
            self._configure(view)
        except (FunctionError, QueueNotFound) as error:
            if isinstance(error, FunctionError) and error.code != "TAKEN":
                raise
            return False  # Redis lost its counters: that number is, or was, in use
        if self._registry.put_queue(self.calls, view):
            self._hold_for_cursors(view)
            return True
        self._fcall(view.key, "drop", 0, 0)  # somebody was faster
        return False

    def _change(self, view: CachedQueue, settings: QueueSettings) -> bool:
        if view.fifo != settings.fifo:
            raise InvalidSetting(
                f"queue {view.name!r}: fifo cannot be changed; create another queue and move"
            )
        changed = CachedQueue(view.name, view.number, settings, view.created_ms, view.key)
        changed.version = view.version
        if not self._registry.put_queue(self.calls, changed):
            return False
        try:
            self._configure(self._view(view.name))
        except QueueNotFound:
            return False  # deleted in the same moment
        return True

    def _apply_settings(self, view: CachedQueue) -> None:
        """Who changed them last may have died before the queue itself heard of it."""
        if self._fcall_queue(view, "tick")[2][2] < view.version:
            self._configure(view)

    def _redis_now(self) -> int:
        return self._now_argument() or self._redis_ms()

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        view = self._view(queue)
        if if_unused and self._waiter_count(queue):
            raise QueueInUse(queue, "it has consumers")
        for _ in range(_RETRIES):
            try:
                count = self._fcall_queue(view, "drop", int(if_empty), int(if_unused))[2]
                break
            except FunctionError as error:
                if error.code == "INUSE":
                    raise QueueInUse(queue, error.text) from None
                if error.code != "LIMBO":
                    raise
                self._drain_outbox(view)
        else:
            raise QueueInUse(queue, "messages are on their way from it to other queues")
        self._drop_deleted(view)
        self._drop_orphan_subscriptions()
        if self.router.bindings(None, queue):
            self._registry.change_router(self.calls, lambda router: router.drop_queue(queue))
        return int(count)

    def settings(self, queue: str) -> QueueSettings:
        self._check_open()
        self._registry.refresh(self.calls)
        return self._view(queue).settings

    def stats(self, queue: str) -> QueueStats:
        view = self._view(queue)
        outbox, now_ms, answer = self._fcall_queue(view, "stats")
        if outbox:
            self._try_drain_outbox(view)
            _, now_ms, answer = self._fcall_queue(view, "stats")
        ready, delayed, in_flight, size, oldest_ms, _, pairs = answer
        counted = {name.decode(): int(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        return QueueStats(
            queue,
            ready,
            delayed,
            in_flight,
            size,
            max(0, now_ms - int(oldest_ms)) if oldest_ms else None,
            self._waiter_count(queue),
            {name: counted.get(name, 0) for name in Counters.__slots__},
        )

    @abstractmethod
    def _waiter_count(self, queue: str) -> int:
        """See `RedisBroker`, which knows who waits."""

    def purge(self, queue: str, waiting_only: bool = False) -> int:
        count = int(self._ask_queue(self._view(queue), "purge", int(waiting_only)))
        self._emit("purged", queue, [None], str(count))
        return count

    def waiting(self, queue: str) -> tuple[int, int]:
        stats = self.stats(queue)
        return stats.ready + stats.delayed, stats.waiting_bytes

    def ready_count(self, queue: str) -> int:
        return self.stats(queue).ready

    def in_flight(self, queue: str) -> int:
        return self.stats(queue).in_flight

    def dead_letter_sources(self, queue: str) -> list[str]:
        return [
            view.name
            for view in self._registry.queues.values()
            if view.settings.dead_letter == queue and view.settings.max_receives is not None
        ]

    # -- looking --------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        view = self._view(queue)
        if rear:
            return self._readable(view, self._ask_queue(view, "rear", limit))
        return self._readable(view, self._ask_queue(view, "browse", "ready", limit))

    def _browse(
        self, view: CachedQueue, state: str, most_in_order: int = _NO_LIMIT, after: ScanPosition | None = None
    ) -> Iterator[list[Entry]]:
        """Pages of one state in hand-out order; by sequence, where lanes take turns and more wait.

        The delayed ones and those in flight begin after the mark. A page begins after the last message
        of the page before, not after a count: messages that leave between two pages shift nothing.
        """
        if state == "delayed":
            return self._browse_delayed(view, after)
        if state == "in_flight":
            return self._browse_in_flight(view, 0 if after is None else after[2])
        return self._browse_ready(view, most_in_order)

    def _browse_delayed(self, view: CachedQueue, after: ScanPosition | None) -> Iterator[list[Entry]]:
        due: Any = b"-inf"
        seq: Any = 0
        if after is not None and after[1] < _EXACT_MS:
            _, due, seq = after
        while due != b"":
            due, seq, *page = self._ask_queue(view, "browse_delayed", _PAGE, due, seq)
            yield self._readable(view, page)

    def _browse_in_flight(self, view: CachedQueue, after: int) -> Iterator[list[Entry]]:
        seqs = sorted(seq for seq in map(int, self._ask_queue(view, "in_flight")) if seq > after)
        for start in range(0, len(seqs), _PAGE):
            answer = self._ask_queue(view, "look", *seqs[start : start + _PAGE])
            # Some were acked or came back since their sequences were read.
            yield [entry for entry, at in self._readable_rows(view, answer) if answer[at + 3] == b"in_flight"]

    def _browse_ready(self, view: CachedQueue, most_in_order: int) -> Iterator[list[Entry]]:
        after = 0
        while True:
            answer = self._ask_queue(view, "survey", after, _PAGE)
            if not after and 0 < answer[1] <= most_in_order:
                # Only the whole tells the order.
                yield self._readable(view, self._ask_queue(view, "browse", "ready", answer[1]))
                return
            if answer[0] == b"":
                return
            after = int(answer[0])
            yield self._readable(view, answer[2:])

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        view = self._view(queue)
        return [entry for each in _states(state) for page in self._browse(view, each) for entry in page]

    def deliveries(self, queue: str) -> list[Delivery]:
        return self._leases(self._view(queue), _NO_LIMIT)

    def leases(self, queue: str, limit: int) -> list[Delivery]:
        return self._leases(self._view(queue), limit)

    def _readable(self, view: CachedQueue, answer: Sequence[Any]) -> list[Entry]:
        """The entries that can be read; of the others the operator hears."""
        return [entry for entry, _ in self._readable_rows(view, answer)]

    def _readable_rows(self, view: CachedQueue, answer: Sequence[Any]) -> Iterator[tuple[Entry, int]]:
        """With the place of each in the answer, which has five parts for each message."""
        for at in range(0, len(answer), 5):
            entry = entry_if_sound(answer[at], answer[at + 1], answer[at + 2])
            if entry is not None:
                yield entry, at
            else:
                self.report_unreadable(view, answer[at])

    def report_unreadable(self, view: CachedQueue, id: bytes) -> None:
        """A message that cannot be shown, but is still in its queue."""
        message_id = self.id_of(int(id.partition(b"-")[0]))
        self.damage.report(FOUND, UNREADABLE, self.now_ms(), queue=view.name, message_id=message_id)

    def _leases(self, view: CachedQueue, limit: int) -> list[Delivery]:
        answer = self._ask_queue(view, "browse", "in_flight", limit)
        return [delivery_of(entry, answer[at + 4]) for entry, at in self._readable_rows(view, answer)]

    def leases_of(self, queue: str, seqs: Sequence[int]) -> dict[int, Delivery]:
        answer = self._ask_queue(self._view(queue), "look", *seqs) if seqs else []
        found: dict[int, Delivery] = {}
        for entry, at in self._readable_rows(self._view(queue), answer):
            if answer[at + 4]:
                found[entry.seq] = delivery_of(entry, answer[at + 4])
        return found

    def lease(self, queue: str, seq: int) -> Delivery | None:
        return self.leases_of(queue, [seq]).get(seq)

    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]:
        return list(entries)

    def load_bodies(self, entries: Sequence[Entry]) -> None:
        """Bodies come with their entries."""

    def _seqs(self, view: CachedQueue, ids: Sequence[str]) -> list[int]:
        """The sequence behind each id; 0 if it cannot be one of this queue's."""
        if not ids:
            return []
        self._check_open()
        found = self._fcall_plain(view.key, "seqs_of", *ids)
        return [int(seq) if seq else self._own_seq(id) for id, seq in zip(ids, found, strict=True)]

    def _look(self, view: CachedQueue, ids: Sequence[str]) -> list[tuple[Entry, str, bytes]]:
        """Entry, state and lease of those that are here."""
        seqs = [seq for seq in self._seqs(view, ids) if seq]
        answer = self._ask_queue(view, "look", *seqs) if seqs else []
        found = []
        for entry, at in self._readable_rows(view, answer):
            if self.message_id(entry) in ids:
                found.append((entry, answer[at + 3].decode(), answer[at + 4]))
        return found

    def _locate(self, view: CachedQueue, message_id: str) -> tuple[Entry, str, bytes]:
        found = self._look(view, [message_id])
        if not found:
            raise MessageNotFoundError(message_id, view.name)
        return found[0]

    def find(self, queue: str, message_id: str) -> Entry:
        return self._locate(self._view(queue), message_id)[0]

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        found = self._look(self._view(queue), [message_id])
        return delivery_of(found[0][0], found[0][2]) if found and found[0][2] else None

    def status(self, queue: str, message_id: str) -> str | None:
        found = self._look(self._view(queue), [message_id])
        return found[0][1] if found else None

    def search(
        self,
        queue: str,
        filter: Filter,
        limit: int = 100,
        budget_s: float = 1.0,
        max_bytes: int | None = None,
    ) -> SearchResult:
        candidates = self._chunks(queue, filter)
        return bulk.search(candidates, self.message_id, filter, limit, budget_s, max_bytes)

    def _chunks(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """Candidates for a filter, by priority and sequence, some hundred at a time."""
        view = self._view(queue)
        states = _states(filter.state)
        if filter.ids is not None:
            found = self._look(view, list(filter.ids))
            yield [entry for entry, state, _ in found if state in states]
            return
        for state in states:
            for page in self._browse(view, state, _SORTED):
                if state == "ready" and len(page) > 1:
                    page = sorted(page, key=_by_sequence if view.fifo else _by_rank(view))
                for start in range(0, len(page), bulk.CHUNK):
                    yield page[start : start + bulk.CHUNK]

    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        return bulk.chosen(self._chunks(queue, filter), self.message_id, filter)

    def walk(
        self, queue: str, state: str, after: ScanPosition | None
    ) -> Iterator[tuple[Entry, str, ScanPosition]]:
        view = self._view(queue)
        most = view.settings.max_priority
        states = _states(state)
        parts: list[tuple[int, Iterator[Entry]]] = []
        for section, each in enumerate(STATES[:3]):
            if each not in states or (after is not None and section < after[0]):
                continue
            begin = after if after is not None and after[0] == section else None
            pages = self._browse(view, each, after=begin)
            parts.append((section, chain.from_iterable(pages)))
        return entries_after(parts, 255 if most is None else most, after)

    def why(self, queue: str, message_id: str) -> Why:
        view = self._view(queue)
        try:
            entry, state, lease = self._locate(view, message_id)
        except MessageNotFoundError as missing:
            return why_elsewhere(self, queue, message_id) or Why("not_found", str(missing))
        held = delivery_of(entry, lease) if state == "in_flight" else None
        away = why_unavailable(entry, held, state == "delayed", self.now_ms())
        if away is not None:
            return away
        if view.settings.paused:
            return why_paused(queue)
        _, group_held, group_delayed, ahead = self._ask_queue(view, "standing", entry.seq)
        place = QueuePosition(bool(group_held), bool(group_delayed), ahead)
        return why_waiting(entry, place, self._waiter_count(queue))

    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]:
        return EventLog(self).timeline(self._view(queue), message_id)

    def past(self, queue: str, span: HistoryRange) -> list[PastMessage]:
        return EventLog(self).past(self._view(queue), span)

    # -- mending --------------------------------------------------------------------------------

    def _change_message(self, view: CachedQueue, message_id: str, verb: str, name: str, *args: Any) -> None:
        entry, state, _ = self._locate(view, message_id)
        answer = b"lent" if state == "in_flight" else self._ask_queue(view, name, entry.seq, *args)
        if isinstance(answer, list):
            answer = answer[0]
        if answer == b"lent":
            raise in_use(view.name, message_id, verb)
        if answer == b"gone":
            raise MessageNotFoundError(message_id, view.name)

    def cancel(self, queue: str, message_id: str) -> None:
        self._change_message(self._view(queue), message_id, "cancel", "cancel")

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        record = pack_record(draft.body, draft.encoding, make_properties(draft), b"", True)
        self._change_message(self._view(queue), message_id, "edit", "edit", record, draft.type or "")

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        if due_ms > MAX_TIME_MS:
            raise InvalidSetting("a delay of more than 70 million years")
        self._change_message(self._view(queue), message_id, "reschedule", "reschedule", max(due_ms, 0))

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        source, target = self._view(queue), self._view(to)
        return [self._move_one(source, each, target) for each in message_ids]

    def _move_one(self, source: CachedQueue, message_id: str, target: CachedQueue) -> OpenQError | None:
        try:
            entry, state, _ = self._locate(source, message_id)
            if state == "in_flight":
                raise in_use(source.name, message_id, "move")
            if target is source:
                raise InvalidSetting(f"message {message_id} is in queue {source.name!r} already")
        except (MessageNotFoundError, QueueInUse, InvalidSetting) as error:
            return error
        if self._move_seqs(source, [entry.seq], target, MOVED):
            return None
        return MessageNotFoundError(message_id, source.name)

    def _move_seqs(self, source: CachedQueue, seqs: Sequence[int], target: CachedQueue, why: int) -> int:
        """How many went."""
        outbox, _, answers = self._fcall_queue(source, "send_on", why, target.name, *seqs)
        if outbox:
            self._try_drain_outbox(source)
        return sum(answer.isdigit() for answer in answers)

    def redrive_targets(self, queue: str, entries: Sequence[Entry], to: str | None) -> list[str | None]:
        if to is not None:
            self._view(to)
            return [to] * len(entries)
        found: list[str | None] = []
        for entry in entries:
            deaths = () if entry.options is None else entry.options.deaths
            known = bool(deaths) and deaths[0].queue in self._registry.queues
            found.append(deaths[0].queue if known else None)
        return found

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int:
        bulk.check_rate(rate)
        self._registry.refresh(self.calls)
        source = self._view(queue)
        if to is not None:
            self._view(to)

        def send_on(entries: list[Entry]) -> int:
            targets: dict[str, list[int]] = {}
            for entry, name in zip(entries, self.redrive_targets(queue, entries, to), strict=True):
                if name is not None and name != queue and (to or allowed is None or allowed(name)):
                    targets.setdefault(name, []).append(entry.seq)
            done = sum(
                self._move_seqs(source, seqs, self._view(name), REDRIVEN) for name, seqs in targets.items()
            )
            self.sync()
            return done

        # All candidates first: those that come back while it runs are not driven again.
        chosen = list(self.matching(queue, filter or Filter(state="ready")))
        return bulk.redrive(chosen, send_on, rate, progress)

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
        bulk.check_rate(rate)
        source = self._view(queue)
        target = source if to is None else self._view(to)
        act = self._count_missing if dry_run else self._replay_batch
        past = list(EventLog(self).published(source, since_ms, since_id, include_purged))
        chosen = bulk.chosen_drafts(past, self.message_id, filter)
        count = bulk.replay(chosen, partial(act, target), rate, progress, dry_run=dry_run)
        self.sync()
        return count

    def _count_missing(self, target: CachedQueue, drafts: Sequence[Draft]) -> int:
        here = {self.message_id(found[0]) for found in self._look(target, [each.id or "" for each in drafts])}
        return sum(draft.id not in here for draft in drafts)

    def _replay_batch(self, target: CachedQueue, drafts: Sequence[Draft]) -> int:
        """The window remembers these messages, and that must not keep them out."""
        if not drafts:
            return 0
        flat: list[bytes] = []
        for draft in drafts:
            flat += pack_draft(target, draft, self.now_ms(), self._own_seq(draft.id or ""), again=True)
        answers = self._publish_groups(target, [tuple(flat)])[0]
        told = [self._parse_publish_reply(target, answer) for answer in answers]
        return sum(not isinstance(each, OpenQError) and not each[1] for each in told)

    # -- exchanges ------------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange) -> bool:
        return self._registry.change_router(self.calls, lambda router: router.declare(exchange))

    def change_exchange(self, exchange: Exchange) -> None:
        self._registry.change_router(self.calls, lambda router: router.change(exchange))

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed:
        def change(router: Any) -> Removed:
            router.get(name)
            removed: Removed = router.delete(name, if_unused)
            return removed

        return self._registry.change_router(self.calls, change)

    def bind(self, binding: Binding) -> bool:
        self._registry.refresh(self.calls)
        if not binding.to_exchange:
            self._view(binding.destination)
        return self._registry.change_router(self.calls, lambda router: router.bind(binding))

    def unbind(self, binding: Binding) -> Removed:
        def change(router: Any) -> Removed:
            if binding not in router.bindings(binding.source, binding.destination):
                return Removed()
            removed: Removed = router.unbind(binding)
            return removed

        return self._registry.change_router(self.calls, change)

    def exchange(self, name: str) -> Exchange:
        if name not in self.router:
            self._registry.refresh(self.calls)  # it may have been made elsewhere a moment ago
        return self.router.get(name)

    def exchanges(self) -> list[Exchange]:
        self._registry.refresh(self.calls)
        return self.router.exchanges()

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        self._registry.refresh(self.calls)
        return self.router.bindings(source, destination)


def _states(state: str) -> tuple[str, ...]:
    check_state(state)
    return STATES[:3] if state == "all" else (state,)


def _by_sequence(entry: Entry) -> tuple[int, int]:
    return 0, entry.seq


def _by_rank(view: CachedQueue) -> Callable[[Entry], tuple[int, int]]:
    most = view.settings.max_priority
    ceiling = 255 if most is None else most
    return lambda entry: (-min(entry.priority, ceiling), entry.seq)
