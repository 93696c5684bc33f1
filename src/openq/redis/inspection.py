"""Reading queues without changing them: peek, listings, search, leases, timelines, explanations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from ..broker import bulk
from ..broker.damage import FOUND
from ..broker.explain import why_elsewhere
from ..broker.history import HistoryRange, PastMessage
from ..broker.interface import Filter, SearchResult, TimelineStep
from ..broker.scan_position import ScanPosition, entries_after
from ..engine.admin import STATES, check_state
from ..engine.limits import limited_concurrency, limited_rate
from ..engine.why import QueuePosition, Why, why_paused, why_unavailable, why_waiting
from ..errors import MessageNotFoundError, QueueNotFound
from ..model import Delivery, Entry, QueueSettings
from .event_log import EventLog
from .queues import QueueAdmin
from .records import UNREADABLE, delivery_of, entry_if_sound
from .registry import CachedQueue
from .store import RedisStore

_PAGE = 500
_NO_LIMIT = 10_000_000
_SORTED = 20_000  # maximum number of ready messages fetched at once to be sorted by priority
_EXACT_MS = 10**14  # the stored due time has 14 digits

Located = tuple[Entry, str, bytes]  # entry, state, lease


class Inspector:
    def __init__(
        self,
        store: RedisStore,
        event_log: EventLog,
        queues: QueueAdmin,
        count_unselective: Callable[[str], int],
    ) -> None:
        self.damage = store.state.damage
        self._store = store
        self._view = store.view
        self._ask_queue = store.ask_queue
        self._event_log = event_log
        self._queues = queues
        self._count_unselective = count_unselective
        self.id_of = store.id_of
        self.message_id = store.message_id

    def settings(self, queue: str) -> QueueSettings:
        return self._queues.settings(queue)

    # -- listings -------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        view = self._view(queue)
        if rear:
            return self._readable(view, self._ask_queue(view, "rear", limit))
        return self._readable(view, self._ask_queue(view, "browse", "ready", limit))

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        view = self._view(queue)
        return [entry for each in _states(state) for page in self._browse(view, each) for entry in page]

    def walk(
        self, queue: str, state: str, after: ScanPosition | None
    ) -> Iterator[tuple[Entry, str, ScanPosition]]:
        view = self._view(queue)
        max_priority = view.settings.max_priority
        states = _states(state)
        parts: list[tuple[int, Iterator[Entry]]] = []
        for section, each in enumerate(STATES[:3]):
            if each not in states or (after is not None and section < after[0]):
                continue
            begin = after if after is not None and after[0] == section else None
            pages = self._browse(view, each, after=begin)
            parts.append((section, chain.from_iterable(pages)))
        return entries_after(parts, 255 if max_priority is None else max_priority, after)

    def _browse(
        self, view: CachedQueue, state: str, max_ordered: int = _NO_LIMIT, after: ScanPosition | None = None
    ) -> Iterator[list[Entry]]:
        """Pages of one state in delivery order; by sequence, where groups take turns and more than
        `max_ordered` messages are ready.

        Delayed messages and those in flight begin after the position. A page begins after the last message
        of the previous page, not after a count: messages that leave between two pages shift nothing.
        """
        if state == "delayed":
            return self._browse_delayed(view, after)
        if state == "in_flight":
            return self._browse_in_flight(view, 0 if after is None else after[2])
        return self._browse_ready(view, max_ordered)

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
            # Some were acked or returned since their sequences were read.
            yield [entry for entry, at in self._readable_rows(view, answer) if answer[at + 3] == b"in_flight"]

    def _browse_ready(self, view: CachedQueue, max_ordered: int) -> Iterator[list[Entry]]:
        after = 0
        while True:
            answer = self._ask_queue(view, "scan_ready", after, _PAGE)
            if not after and 0 < answer[1] <= max_ordered:
                # The delivery order follows from all ready messages together.
                yield self._readable(view, self._ask_queue(view, "browse", "ready", answer[1]))
                return
            if answer[0] == b"":
                return
            after = int(answer[0])
            yield self._readable(view, answer[2:])

    def _readable(self, view: CachedQueue, answer: Sequence[Any]) -> list[Entry]:
        """The entries that can be decoded; the others are reported as damaged."""
        return [entry for entry, _ in self._readable_rows(view, answer)]

    def _readable_rows(self, view: CachedQueue, answer: Sequence[Any]) -> Iterator[tuple[Entry, int]]:
        """Each with its offset in the answer, which has five items for each message."""
        for at in range(0, len(answer), 5):
            entry = entry_if_sound(answer[at], answer[at + 1], answer[at + 2])
            if entry is not None:
                yield entry, at
            else:
                self.report_unreadable(view, answer[at])

    def report_unreadable(self, view: CachedQueue, id: bytes) -> None:
        """Report a message that cannot be shown but is still in its queue."""
        store = self._store
        message_id = store.id_of(int(id.partition(b"-")[0]))
        store.state.damage.report(FOUND, UNREADABLE, store.now_ms(), queue=view.name, message_id=message_id)

    # -- bodies: included in the entries --------------------------------------------------------

    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]:
        return list(entries)

    def load_bodies(self, entries: Sequence[Entry]) -> None:
        pass

    # -- leases ---------------------------------------------------------------------------------

    def deliveries(self, queue: str) -> list[Delivery]:
        return self.leases(queue, _NO_LIMIT)

    def leases(self, queue: str, limit: int) -> list[Delivery]:
        view = self._view(queue)
        answer = self._ask_queue(view, "browse", "in_flight", limit)
        return [delivery_of(entry, answer[at + 4]) for entry, at in self._readable_rows(view, answer)]

    def leases_of(self, queue: str, seqs: Sequence[int]) -> dict[int, Delivery]:
        view = self._view(queue)
        answer = self._ask_queue(view, "look", *seqs) if seqs else []
        found: dict[int, Delivery] = {}
        for entry, at in self._readable_rows(view, answer):
            if answer[at + 4]:
                found[entry.seq] = delivery_of(entry, answer[at + 4])
        return found

    def lease(self, queue: str, seq: int) -> Delivery | None:
        return self.leases_of(queue, [seq]).get(seq)

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        found = self.locate_many(self._view(queue), [message_id])
        return delivery_of(found[0][0], found[0][2]) if found and found[0][2] else None

    # -- single messages ------------------------------------------------------------------------

    def locate_many(self, view: CachedQueue, ids: Sequence[str]) -> list[Located]:
        """Those of the messages that are in the queue."""
        seqs = [seq for seq in self._store.seqs_of(view, ids) if seq]
        answer = self._ask_queue(view, "look", *seqs) if seqs else []
        found = []
        for entry, at in self._readable_rows(view, answer):
            if self._store.message_id(entry) in ids:
                found.append((entry, answer[at + 3].decode(), answer[at + 4]))
        return found

    def locate(self, view: CachedQueue, message_id: str) -> Located:
        found = self.locate_many(view, [message_id])
        if not found:
            raise MessageNotFoundError(message_id, view.name)
        return found[0]

    def find(self, queue: str, message_id: str) -> Entry:
        return self.locate(self._view(queue), message_id)[0]

    def status(self, queue: str, message_id: str) -> str | None:
        found = self.locate_many(self._view(queue), [message_id])
        return found[0][1] if found else None

    def why(self, queue: str, message_id: str) -> Why:
        view = self._view(queue)
        try:
            entry, state, lease = self.locate(view, message_id)
        except MessageNotFoundError as missing:
            return why_elsewhere(self, queue, message_id) or Why("not_found", str(missing))
        delivery = delivery_of(entry, lease) if state == "in_flight" else None
        unavailable = why_unavailable(entry, delivery, state == "delayed", self._store.now_ms())
        if unavailable is not None:
            return unavailable
        if view.settings.paused:
            return why_paused(queue)
        _, group_held, group_delayed, ahead, limited = self._ask_queue(view, "standing", entry.seq)
        position = QueuePosition(bool(group_held), bool(group_delayed), ahead)
        if limited and not position.group_held and not position.group_delayed:
            return _why_limited(view.settings, entry.group, limited, self._store.now_ms())
        return why_waiting(entry, position, self._count_unselective(queue))

    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]:
        return self._event_log.timeline(self._view(queue), message_id)

    def trace(self, message_id: str, queues: Sequence[str], budget_s: float) -> list[TimelineStep]:
        deadline = time.monotonic() + budget_s
        for name in queues:
            try:
                steps = self.timeline(name, message_id)
            except QueueNotFound:
                continue
            if steps or time.monotonic() > deadline:
                return steps
        return []

    def past(self, queue: str, span: HistoryRange) -> list[PastMessage]:
        return self._event_log.past(self._view(queue), span)

    # -- search ---------------------------------------------------------------------------------

    def search(
        self,
        queue: str,
        filter: Filter,
        limit: int = 100,
        budget_s: float = 1.0,
        max_bytes: int | None = None,
    ) -> SearchResult:
        candidates = self._candidates(queue, filter)
        return bulk.search(candidates, self._store.message_id, filter, limit, budget_s, max_bytes)

    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        return bulk.chosen(self._candidates(queue, filter), self._store.message_id, filter)

    def _candidates(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """Messages that a filter may match, by priority and sequence, a few hundred at a time."""
        view = self._view(queue)
        states = _states(filter.state)
        if filter.ids is not None:
            found = self.locate_many(view, list(filter.ids))
            yield [entry for entry, state, _ in found if state in states]
            return
        for state in states:
            for page in self._browse(view, state, _SORTED):
                if state == "ready" and len(page) > 1:
                    page = sorted(page, key=_by_sequence if view.fifo else _by_rank(view))
                for start in range(0, len(page), bulk.CHUNK):
                    yield page[start : start + bulk.CHUNK]


def _why_limited(settings: QueueSettings, key: str | None, limited: Sequence[Any], now_ms: int) -> Why:
    """`limited` is whose limit it is, then the number in flight and its limit, or b"" and the next token."""
    is_key = limited[0] == b"key"
    what = f"key {key!r}" if is_key else "the queue"
    if limited[1] != b"":
        return limited_concurrency(what, limited[1], limited[2])
    own = settings.key_limits.get(key or "", {}) if is_key else {}
    rate = own.get("rate", settings.key_rate) if is_key else settings.rate
    return limited_rate(what, str(rate), int(limited[2]) - now_ms)


def _states(state: str) -> tuple[str, ...]:
    check_state(state)
    return STATES[:3] if state == "all" else (state,)


def _by_sequence(entry: Entry) -> tuple[int, int]:
    return 0, entry.seq


def _by_rank(view: CachedQueue) -> Callable[[Entry], tuple[int, int]]:
    max_priority = view.settings.max_priority
    ceiling = 255 if max_priority is None else max_priority
    return lambda entry: (-min(entry.priority, ceiling), entry.seq)
