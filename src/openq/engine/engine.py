"""The engine: all queue semantics, pure.

Time comes in as `now_ms`, what changed goes out through `log` as records (see `records.py`). The same
calls always give the same answer. This file holds the way in; `lending.py` the way out;
`admin.py` what operators do; `apply.py` and `snapshot.py` the way back after a restart.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import accumulate

from ..errors import (
    InvalidSetting,
    OpenQError,
    QueueFull,
)
from ..model import (
    MAX_PRIORITY,
    Draft,
    Entry,
    Extra,
    Info,
)
from .core import MAX_TIME_MS, dedup_key
from .lane import PAGE, PAGE_BYTES, Page
from .lending import Lending
from .queue import Queue
from .records import (
    FIRST_ITEM,
    ITEM_HEAD_SIZE,
    PUBLISH,
    ROUTE,
    RUN,
    plain,
    run_first,
)

Published = tuple[str, bool]  # the message's id, and whether it was a duplicate


class Engine(Lending):
    def publish_plain(self, queue: Queue, body: bytes, form: int, now_ms: int) -> int:
        """A body and nothing else into a `simple` queue: the short way. Returns the sequence."""
        seq = self.next_seq
        log = self.log
        at = 0 if log is None else log((PUBLISH, now_ms, queue.number, seq, form, body, None, None)) or 0
        self.next_seq = seq + 1
        size = len(body)
        # A consumer that keeps up finds the body in memory; a backlog is read from disk.
        kept = body if not at or queue.waiting_bytes < PAGE_BYTES else None
        queue.ready.append_plain(Entry(seq, now_ms, at, size, form, kept, None, None))
        queue.waiting_bytes += size
        queue.counters.published += 1
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)
        if self.observer is not None:
            self.observer("published", queue.name, f"{self.id_prefix}{seq:012x}", now_ms, "")
        return seq

    def publish_run(self, queue: Queue, bodies: Sequence[bytes], form: int, now_ms: int) -> int:
        """Many plain bodies into a `simple` queue as one record. Returns the first sequence."""
        bodies = tuple(bodies)  # the caller's list stays the caller's
        count = len(bodies)
        seq = self.next_seq
        log = self.log
        at = 0 if log is None else log((RUN, now_ms, queue.number, seq, form, bodies)) or 0
        self.next_seq = seq + count
        self._add_run(queue, seq, now_ms, at, list(map(len, bodies)), form, bodies)
        queue.counters.published += count
        if queue.watched:
            self.woken.append(queue)
        if self.observer is not None:
            for each in range(seq, seq + count):
                self.observer("published", queue.name, f"{self.id_prefix}{each:012x}", now_ms, "")
        return seq

    def _add_run(
        self,
        queue: Queue,
        seq: int,
        now_ms: int,
        at: int,
        sizes: Sequence[int],
        form: int,
        bodies: Sequence[bytes] | None,
    ) -> None:
        total = sum(sizes)
        count = len(sizes)
        step = ITEM_HEAD_SIZE
        column: int | array[int] = array("I", sizes)
        ats = None
        # Messages of one size, the common case, are a matter of arithmetic.
        if min(sizes) == max(sizes):
            column = sizes[0]
            if at:
                first, each = at + FIRST_ITEM, column + step
                ats = array("Q", range(first, first + count * each, each))
        elif at:
            first = at + run_first(count, True)
            ats = array("Q", accumulate(map(step.__add__, sizes), initial=first))
            ats.pop()
        if at and queue.waiting_bytes + total > PAGE_BYTES:
            bodies = None
        for start in range(0, count, PAGE):
            end = min(start + PAGE, count)
            queue.ready.append_page(
                Page(
                    range(seq + start, seq + end),
                    now_ms,
                    None if ats is None else ats[start:end],
                    column if isinstance(column, int) else column[start:end],
                    form,
                    None if bodies is None else bodies[start:end],
                    None,
                    None,
                )
            )
        queue.waiting_bytes += total
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)

    def publish(self, queue: Queue, draft: Draft, now_ms: int, again: bool = False) -> Published:
        """`again` is for replays: the window remembers the message, and that must not keep it out."""
        extra = self._extra(queue, draft, now_ms)
        if again and extra is not None:
            extra.dedup = None
        known = self._known(queue, draft, extra, now_ms)
        if known is not None:
            queue.counters.deduplicated += 1
            return known, True
        self._check_room(queue, len(draft.body))
        seq = self.next_seq
        info = make_info(draft)
        at = self.tell((PUBLISH, now_ms, queue.number, seq, draft.form, draft.body, info, extra))
        self.next_seq = seq + 1
        entry = Entry(seq, now_ms, at, len(draft.body), draft.form, draft.body, info, extra)
        if at and queue.waiting_bytes >= PAGE_BYTES:
            entry.body = entry.info = None
        queue.counters.published += 1
        self._enter(queue, entry, now_ms)
        self._note("published", queue, entry, now_ms)
        self._overflow(queue, now_ms)
        return self.id_of(entry), False

    def route(self, exchange: str, key: str, draft: Draft, now_ms: int) -> tuple[str, list[str]]:
        """Through an exchange into every queue it leads to, as one record.

        Returns the id and the queues reached; a queue that had it already, or that refuses
        because it is full, is not among them.
        """
        headers = draft.attributes
        draft.route = (exchange, key)
        targets: list[Queue] = []
        extra: Extra | None = None
        refused: OpenQError | None = None
        known_id = ""
        for name in self.router.route(exchange, key, headers):
            queue = self.queues.get(name)
            if queue is None:
                continue
            extra = self._extra(queue, draft, now_ms)
            known = self._known(queue, draft, extra, now_ms)
            if known is not None:
                queue.counters.deduplicated += 1
                known_id = known
                continue
            try:
                self._check_room(queue, len(draft.body))
            except QueueFull as full:
                refused = full
                continue
            targets.append(queue)
        if not targets:
            if refused is not None:
                raise refused
            return known_id, []
        seq = self.next_seq
        message_id = draft.id or f"{self.id_prefix}{seq:012x}"
        info = make_info(draft)
        shared = _base_extra(draft, now_ms)
        shared.id = message_id
        if draft.delay_ms == 0:
            shared.due_ms = now_ms  # at once, whatever the delay of a queue
        pairs = tuple((queue.number, seq + i) for i, queue in enumerate(targets))
        record = (ROUTE, now_ms, targets[0].number, seq, draft.form, draft.body, info, shared, pairs)
        at = self.tell(record)
        self.next_seq = seq + len(targets)
        for queue, (_, each) in zip(targets, pairs, strict=True):
            entry = self._enter_routed(queue, each, now_ms, at, draft.form, draft.body, info, shared)
            self._note("published", queue, entry, now_ms)
        for queue in targets:
            self._overflow(queue, now_ms)
        return message_id, [queue.name for queue in targets]

    def _enter_routed(
        self,
        queue: Queue,
        seq: int,
        now_ms: int,
        at: int,
        form: int,
        body: bytes,
        info: Info | None,
        shared: Extra,
        keep: bool = True,
    ) -> Entry:
        """One target of a ROUTE: the record holds what all share, the rest follows from the queue.

        Not to `keep`: the body stays on disk only.
        """
        extra = shared.copy()
        settings = queue.settings
        if not extra.due_ms and settings.delay_ms:
            _delay(extra, settings.delay_ms, now_ms)
        if settings.ttl_ms is not None:
            expires_ms = max(extra.due_ms, now_ms) + settings.ttl_ms
            extra.expires_ms = min(extra.expires_ms or expires_ms, expires_ms)
        if extra.dedup is None and settings.dedup_by_content:
            extra.dedup = hashlib.sha256(body).hexdigest()
        queue.counters.published += 1
        if keep:
            entry = Entry(seq, now_ms, at, len(body), form, body, info, extra)
        else:
            entry = Entry(seq, now_ms, at, len(body), form, None, None, extra)
        self._enter(queue, entry, now_ms)
        return entry

    def _extra(self, queue: Queue, draft: Draft, now_ms: int) -> Extra | None:
        """Checks the draft and works out everything that depends on the queue's settings."""
        settings = queue.settings
        if settings.max_body is not None and len(draft.body) > settings.max_body:
            raise InvalidSetting(
                f"a body of {len(draft.body)} bytes; queue {queue.name!r} takes at most {settings.max_body}"
            )
        extra = _base_extra(draft, now_ms)
        if not extra.due_ms and draft.delay_ms is None and settings.delay_ms:
            _delay(extra, settings.delay_ms, now_ms)
        if settings.ttl_ms is not None:
            expires_ms = max(extra.due_ms, now_ms) + settings.ttl_ms
            extra.expires_ms = min(extra.expires_ms or expires_ms, expires_ms)
        if extra.dedup is None and settings.dedup_by_content:
            extra.dedup = hashlib.sha256(draft.body).hexdigest()
        plain = (
            not extra.priority
            and extra.group is None
            and extra.type is None
            and not extra.due_ms
            and not extra.expires_ms
            and extra.dedup is None
            and extra.unique is None
            and extra.id is None
            and extra.route is None
            and draft.past is None
        )
        return None if plain else extra

    def _known(self, queue: Queue, draft: Draft, extra: Extra | None, now_ms: int) -> str | None:
        """The id of the message that this one would repeat."""
        if extra is None:
            return None
        if extra.dedup is not None:
            queue.forget_dedup(now_ms)
            kept = queue.dedup.get(dedup_key(queue, extra))
            # One kept under an earlier, longer window may stand before it in the line of those to forget.
            if kept is not None and kept[1] > now_ms:
                return kept[0]
        if extra.unique is not None:
            there = queue.uniques.get(extra.unique)
            if there is not None:
                return there[1] or f"{self.id_prefix}{there[0]:012x}"
        if draft.id is not None:
            seq = self.seq_of(queue, draft.id)
            entry = queue.find(seq) if seq else None
            if entry is not None and self.id_of(entry) == draft.id:
                return draft.id
        return None

    def _check_room(self, queue: Queue, size: int) -> None:
        settings = queue.settings
        if settings.overflow != "reject":
            return
        if settings.max_length is not None and queue.waiting_count >= settings.max_length:
            raise QueueFull(queue.name, f"max_length {settings.max_length}")
        if settings.max_bytes is not None and queue.waiting_bytes + size > settings.max_bytes:
            raise QueueFull(queue.name, f"max_bytes {settings.max_bytes}")


_NO_PAST = Extra()


def _delay(extra: Extra, delay_ms: int, now_ms: int) -> None:
    """By the queue's own delay; a time to live counts from when the message is due."""
    extra.due_ms = now_ms + delay_ms
    if extra.expires_ms:
        extra.expires_ms += delay_ms


def make_info(draft: Draft) -> Info | None:
    if draft.attributes is None and draft.publisher is None:
        return None
    return Info(plain(draft.attributes or {}), draft.publisher)


def _base_extra(draft: Draft, now_ms: int) -> Extra:
    """What the draft says by itself, checked."""
    if draft.id is not None and not draft.id.isprintable():
        raise InvalidSetting("an id must be text without control characters")
    if not 0 <= draft.priority <= MAX_PRIORITY:
        raise InvalidSetting(f"priority must be 0 to {MAX_PRIORITY}, not {draft.priority}")
    due_ms = max(draft.due_ms, 0)
    if draft.delay_ms is not None:
        if draft.delay_ms < 0:
            raise InvalidSetting("delay must not be negative")
        due_ms = now_ms + draft.delay_ms if draft.delay_ms else 0
    expires_ms = 0
    if draft.ttl_ms is not None:
        if draft.ttl_ms < 0:
            raise InvalidSetting("ttl must not be negative")
        expires_ms = max(due_ms, now_ms) + draft.ttl_ms
    if max(due_ms, expires_ms) > MAX_TIME_MS:
        raise InvalidSetting("a delay or ttl of more than 70 million years")
    past = draft.past or _NO_PAST
    return Extra(
        count=past.count,
        born_ms=past.born_ms,
        reason=past.reason,
        deaths=past.deaths,
        priority=draft.priority,
        group=draft.group,
        type=draft.type,
        due_ms=due_ms,
        expires_ms=expires_ms,
        dedup=draft.dedup,
        unique=draft.unique,
        id=draft.id,
        route=draft.route,
    )
