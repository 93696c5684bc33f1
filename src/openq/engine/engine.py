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
    light_extra,
)
from .core import MAX_TIME_MS, REFUSING, dead_route, dedup_key, died
from .lane import PAGE, PAGE_BYTES, Page
from .lending import Lending
from .queue import Queue
from .records import (
    DEAD_OVERFLOW,
    FIRST_ITEM,
    PUBLISH,
    ROUTE,
    RUN,
    plain,
    run_first,
    run_step,
)

_FEW = 16  # a page of fewer messages costs more than it saves; they are packed with their neighbours

Published = tuple[str, bool]  # the message's id, and whether it was a duplicate


class Engine(Lending):
    def publish_plain(
        self,
        queue: Queue,
        body: bytes,
        form: int,
        now_ms: int,
        info: Info | None = None,
        extra: Extra | None = None,
    ) -> int:
        """A body with at most a light extra into a `simple` queue: the short way. Returns the sequence."""
        seq = self.next_seq
        log = self.log
        at = 0 if log is None else log((PUBLISH, now_ms, queue.number, seq, form, body, info, extra)) or 0
        self.next_seq = seq + 1
        size = len(body)
        # A consumer that keeps up finds the body in memory; a backlog is read from disk.
        if not at or queue.waiting_bytes < PAGE_BYTES:
            entry = Entry(seq, now_ms, at, size, form, body, info, extra)
        else:
            entry = Entry(seq, now_ms, at, size, form, None, None, extra)
        queue.ready.append_plain(entry)
        queue.waiting_bytes += size
        queue.counters.published += 1
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)
        if self.observer is not None:
            self.observer("published", queue.name, f"{self.id_prefix}{seq:012x}", now_ms, "")
        return seq

    def publish_run(
        self,
        queue: Queue,
        bodies: Sequence[bytes],
        form: int,
        now_ms: int,
        info: Info | None = None,
        extra: Extra | None = None,
    ) -> int:
        """Many bodies into a `simple` queue as one record. Returns the first sequence.

        The info and the extra, which must be a light one, are those of each of them.
        """
        bodies = tuple(bodies)  # the caller's list stays the caller's
        count = len(bodies)
        if count == 1:
            return self.publish_plain(queue, bodies[0], form, now_ms, info, extra)
        seq = self.next_seq
        log = self.log
        at = 0 if log is None else log((RUN, now_ms, queue.number, seq, form, bodies, info, extra)) or 0
        self.next_seq = seq + count
        self._add_run(queue, seq, now_ms, at, list(map(len, bodies)), form, bodies, info, extra)
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
        info: Info | None,
        extra: Extra | None,
    ) -> None:
        total = sum(sizes)
        count = len(sizes)
        step = run_step(info, extra)
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
        if bodies is None:
            info = None  # it is read together with the body
        for start in range(0, count, PAGE):
            end = min(start + PAGE, count)
            page = Page(
                range(seq + start, seq + end),
                now_ms,
                None if ats is None else ats[start:end],
                column if isinstance(column, int) else column[start:end],
                form,
                None if bodies is None else bodies[start:end],
                info,
                extra,
            )
            if count >= _FEW:
                queue.ready.append_page(page)
            else:
                for entry in page.entries():
                    queue.ready.append_plain(entry)
        queue.waiting_bytes += total
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)

    def publish(
        self, queue: Queue, draft: Draft, now_ms: int, again: bool = False, is_promised: bool = False
    ) -> Published:
        """`again` is for replays: the window remembers the message, and that must not keep it out.

        One that `is_promised` was let in before: whatever limits the queue has by now, it takes it.
        """
        extra = self._extra(queue, draft, now_ms, is_promised)
        if again and extra is not None:
            extra.dedup = None
        known = self._known(queue, draft, extra, now_ms)
        if known is not None:
            queue.counters.deduplicated += 1
            return known, True
        if not is_promised:
            self._check_room(queue, draft, extra, now_ms)
        return self._publish(queue, draft, extra, now_ms), False

    def _publish(self, queue: Queue, draft: Draft, extra: Extra | None, now_ms: int) -> str:
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
        return self.id_of(entry)

    def route(self, exchange: str, key: str, draft: Draft, now_ms: int) -> tuple[str, list[str]]:
        """Through an exchange into every queue it leads to, as one record.

        Returns the id and the queues reached; a queue that had it already, or that refuses
        because it is full, is not among them.
        """
        headers = draft.attributes if draft.info is None else draft.info
        draft.route = (exchange, key)
        names = self.router.route(exchange, key, headers)
        for queue in map(self.queues.get, names):
            if queue is not None and not _fits(queue, draft):
                raise _too_large(queue, draft)  # the caller hears of it, and nothing is half done
        message_id, reached, refused = self.route_to(names, draft, now_ms)
        if refused is not None and not reached:
            raise refused
        return message_id, reached

    def route_to(
        self, names: Sequence[str], draft: Draft, now_ms: int
    ) -> tuple[str, list[str], OpenQError | None]:
        """Into all queues of these names, each once, as one record; `draft.route` says how it came.

        Returns the id, the queues reached, and the error of one that refused: it is full, or takes no bodies
        of that size (where it is the only one, that is raised). A name without a queue is passed over, as is
        a queue that had the message already.
        """
        targets: list[Queue] = []
        extra: Extra | None = None
        refused: OpenQError | None = None
        message_id = ""
        for name in names if len(names) < 2 else dict.fromkeys(names):
            queue = self.queues.get(name)
            if queue is None:
                continue
            if len(names) > 1 and not _fits(queue, draft):
                # One of several: it must not keep the message from the others.
                refused = _too_large(queue, draft)
                continue
            own = self._extra(queue, draft, now_ms)
            known = self._known(queue, draft, own, now_ms)
            if known is not None:
                queue.counters.deduplicated += 1
                message_id = known
                continue
            try:
                self._check_room(queue, draft, own, now_ms)
            except QueueFull as full:
                refused = full
                continue
            targets.append(queue)
            extra = own
        if not targets:
            return message_id, [], refused
        if len(targets) == 1:
            return self._publish(targets[0], draft, extra, now_ms), [targets[0].name], refused
        shared = base_extra(draft, now_ms)
        if draft.delay_ms == 0:
            shared.due_ms = now_ms  # at once, whatever the delay of a queue
        message_id = self._publish_shared(targets, draft, shared, now_ms)
        return message_id, [queue.name for queue in targets], refused

    def _publish_shared(self, targets: Sequence[Queue], draft: Draft, shared: Extra, now_ms: int) -> str:
        """One message with one id into several queues, as one record."""
        seq = self.next_seq
        message_id = shared.id = draft.id or f"{self.id_prefix}{seq:012x}"
        info = make_info(draft)
        pairs = tuple((queue.number, seq + i) for i, queue in enumerate(targets))
        record = (ROUTE, now_ms, targets[0].number, seq, draft.form, draft.body, info, shared, pairs)
        at = self.tell(record)
        self.next_seq = seq + len(targets)
        for queue, (_, each) in zip(targets, pairs, strict=True):
            entry = self._enter_routed(queue, each, now_ms, at, draft.form, draft.body, info, shared)
            self._note("published", queue, entry, now_ms)
        for queue in targets:
            self._overflow(queue, now_ms)
        return message_id

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
        extra.lighten()
        queue.counters.published += 1
        if keep:
            entry = Entry(seq, now_ms, at, len(body), form, body, info, extra)
        else:
            entry = Entry(seq, now_ms, at, len(body), form, None, None, extra)
        self._enter(queue, entry, now_ms)
        return entry

    def _extra(self, queue: Queue, draft: Draft, now_ms: int, is_promised: bool = False) -> Extra | None:
        """Checks the draft and works out everything that depends on the queue's settings."""
        settings = queue.settings
        if not is_promised and not _fits(queue, draft):
            raise _too_large(queue, draft)
        extra = base_extra(draft, now_ms)
        if not extra.due_ms and draft.delay_ms is None and settings.delay_ms:
            _delay(extra, settings.delay_ms, now_ms)
        if settings.ttl_ms is not None:
            expires_ms = max(extra.due_ms, now_ms) + settings.ttl_ms
            extra.expires_ms = min(extra.expires_ms or expires_ms, expires_ms)
        if extra.dedup is None and settings.dedup_by_content:
            extra.dedup = hashlib.sha256(draft.body).hexdigest()
        if not extra.lighten().light:
            return extra
        if extra.type is None and extra.route is None and draft.past is None:
            return None
        return light_extra(extra.route, extra.type)

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

    def _check_room(self, queue: Queue, draft: Draft, extra: Extra | None, now_ms: int) -> None:
        """Raises QueueFull where a full queue refuses; it may have dead letters for what it refuses."""
        settings = queue.settings
        if settings.overflow not in REFUSING:
            return
        if settings.max_length is not None and queue.waiting_count >= settings.max_length:
            full = QueueFull(queue.name, f"max_length {settings.max_length}")
        elif settings.max_bytes is not None and queue.waiting_bytes + len(draft.body) > settings.max_bytes:
            full = QueueFull(queue.name, f"max_bytes {settings.max_bytes}")
        else:
            return
        if settings.overflow == "reject-dead-letter":
            self._bury_refused(queue, draft, extra, now_ms)
        raise full

    def _bury_refused(self, queue: Queue, draft: Draft, extra: Extra | None, now_ms: int) -> None:
        """To the dead letters without ever having been in the queue."""
        entry = Entry(0, now_ms, 0, len(draft.body), draft.form, draft.body, make_info(draft), extra)
        targets = self._dead_targets(queue, entry, DEAD_OVERFLOW)
        if not targets:
            return
        shared = base_extra(draft, now_ms)
        shared.deaths = died(queue, shared, DEAD_OVERFLOW, None, now_ms)
        shared.route = dead_route(queue, shared)
        shared.born_ms = shared.born_ms or now_ms
        shared.due_ms = now_ms  # dead letters do not wait for the delay of a queue
        shared.expires_ms = shared.count = 0
        shared.dedup = shared.unique = None
        self._publish_shared(targets, draft, shared, now_ms)


_NO_PAST = Extra()


def _fits(queue: Queue, draft: Draft) -> bool:
    most = queue.settings.max_body
    return most is None or len(draft.body) <= most


def _too_large(queue: Queue, draft: Draft) -> InvalidSetting:
    most = queue.settings.max_body
    return InvalidSetting(f"a body of {len(draft.body)} bytes; queue {queue.name!r} takes at most {most}")


def _delay(extra: Extra, delay_ms: int, now_ms: int) -> None:
    """By the queue's own delay; a time to live counts from when the message is due."""
    extra.due_ms = now_ms + delay_ms
    if extra.expires_ms:
        extra.expires_ms += delay_ms


def make_info(draft: Draft) -> Info | None:
    if draft.info is not None:
        return draft.info
    if draft.attributes is None and draft.publisher is None:
        return None
    return Info(plain(draft.attributes or {}), draft.publisher)


def check_draft(draft: Draft, now_ms: int) -> None:
    """Raises InvalidSetting for what no queue would take."""
    base_extra(draft, now_ms)


def base_extra(draft: Draft, now_ms: int) -> Extra:
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
        trace=past.trace,
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
