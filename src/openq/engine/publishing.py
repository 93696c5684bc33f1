"""Publishing: checks, deduplication, fast paths for plain messages, routes through exchanges."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ..errors import (
    InvalidSetting,
    OpenQError,
    QueueFull,
)
from ..model import MAX_PRIORITY, DeliveryOptions, Draft, Entry, Properties, plain_options
from .queue import QueueState
from .ready_list import PAGE, PAGE_BYTES, PackedPage
from .record_values import plain_copy
from .records import DEAD_OVERFLOW, PUBLISH, ROUTE, RUN, run_first, run_step
from .rules import MAX_TIME_MS, REJECTING_OVERFLOWS, add_dead_letter_event, dead_letter_route, dedup_key

_MIN_PAGE = 16  # a page of fewer messages costs more than it saves; they are packed with their neighbours

Published = tuple[str, bool]  # the message id, and whether it was a duplicate


if TYPE_CHECKING:
    from .engine import Engine


class Publishing:
    """Messages on their way into queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def publish_plain(
        self,
        queue: QueueState,
        body: bytes,
        encoding: int,
        now_ms: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """The fast path: a body with at most plain options into a plain queue. Returns the sequence."""
        engine = self._engine
        seq = engine.next_seq
        log = engine.log
        location = (
            0
            if log is None
            else log((PUBLISH, now_ms, queue.number, seq, encoding, body, properties, options)) or 0
        )
        engine.next_seq = seq + 1
        size = len(body)
        # A consumer that keeps up finds the body in memory. The bodies of a backlog are read from disk.
        if not location or queue.waiting_bytes < PAGE_BYTES:
            entry = Entry(seq, now_ms, location, size, encoding, body, properties, options)
        else:
            entry = Entry(seq, now_ms, location, size, encoding, None, None, options)
        queue.ready.append_plain(entry)
        queue.waiting_bytes += size
        queue.counters.published += 1
        if not queue.retention_armed:
            engine.arm_retention(queue, now_ms)
        if queue.watched:
            engine.woken.append(queue)
        if engine.observer is not None:
            engine.observer("published", queue.name, f"{engine.id_prefix}{seq:012x}", now_ms, "")
        return seq

    def publish_run(
        self,
        queue: QueueState,
        bodies: Sequence[bytes],
        encoding: int,
        now_ms: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """Many bodies into a plain queue as one record. Returns the first sequence.

        All messages share the properties and the options, which must be plain.
        """
        engine = self._engine
        bodies = tuple(bodies)  # the caller may change its list later
        count = len(bodies)
        if count == 1:
            return self.publish_plain(queue, bodies[0], encoding, now_ms, properties, options)
        seq = engine.next_seq
        log = engine.log
        location = (
            0
            if log is None
            else log((RUN, now_ms, queue.number, seq, encoding, bodies, properties, options)) or 0
        )
        engine.next_seq = seq + count
        self.add_run(
            queue, seq, now_ms, location, list(map(len, bodies)), encoding, bodies, properties, options
        )
        queue.counters.published += count
        if queue.watched:
            engine.woken.append(queue)
        if engine.observer is not None:
            for each in range(seq, seq + count):
                engine.observer("published", queue.name, f"{engine.id_prefix}{each:012x}", now_ms, "")
        return seq

    def add_run(
        self,
        queue: QueueState,
        seq: int,
        now_ms: int,
        location: int,
        sizes: Sequence[int],
        encoding: int,
        bodies: Sequence[bytes] | None,
        properties: Properties | None,
        options: DeliveryOptions | None,
    ) -> None:
        total = sum(sizes)
        count = len(sizes)
        is_varied = sizes[0] * count != total or min(sizes) != sizes[0]
        step = run_step(properties, options)
        first = location + run_first(count, is_varied) if location else 0
        if location and queue.waiting_bytes + total > PAGE_BYTES:
            bodies = None
        if bodies is None:
            properties = None  # it is read together with the body
        if count < _MIN_PAGE:
            entries = []
            body = None
            for i, size in enumerate(sizes):
                if bodies is not None:
                    body = bodies[i]
                entries.append(Entry(seq + i, now_ms, first, size, encoding, body, properties, options))
                if first:
                    first += size + step
            queue.ready.append_all_plain(entries)
        else:
            column = array("I", sizes) if is_varied else sizes[0]
            self._add_pages(
                queue, seq, now_ms, first, column, count, step, encoding, bodies, properties, options
            )
        queue.waiting_bytes += total
        if not queue.retention_armed:
            self._engine.arm_retention(queue, now_ms)

    def _add_pages(
        self,
        queue: QueueState,
        seq: int,
        now_ms: int,
        first: int,
        column: int | array[int],
        count: int,
        step: int,
        encoding: int,
        bodies: Sequence[bytes] | None,
        properties: Properties | None,
        options: DeliveryOptions | None,
    ) -> None:
        """`first` is the location of the first message, or 0; `column` the sizes, or the size of all."""
        locations = None
        if first:
            # For messages of one size, the common case, locations are computed.
            if isinstance(column, int):
                each = column + step
                locations = array("Q", range(first, first + count * each, each))
            else:
                locations = array("Q", accumulate(map(step.__add__, column), initial=first))
                locations.pop()
        for start in range(0, count, PAGE):
            end = min(start + PAGE, count)
            page = PackedPage(
                range(seq + start, seq + end),
                now_ms,
                None if locations is None else locations[start:end],
                column if isinstance(column, int) else column[start:end],
                encoding,
                None if bodies is None else bodies[start:end],
                properties,
                options,
            )
            queue.ready.append_page(page)

    def publish(
        self, queue: QueueState, draft: Draft, now_ms: int, again: bool = False, is_planned: bool = False
    ) -> Published:
        """Publish one message. Returns its id, and whether it is a duplicate.

        `again` is for replays: the deduplication window still has the message and must not reject it. A
        message that `is_planned` was accepted before, so the queue takes it whatever its limits are now.
        """
        options = self._options_for(queue, draft, now_ms, is_planned)
        if again and options is not None:
            options.dedup = None
        known = self._duplicate_of(queue, draft, options, now_ms)
        if known is not None:
            queue.counters.deduplicated += 1
            return known, True
        if not is_planned:
            self._check_room(queue, draft, options, now_ms)
        return self._publish(queue, draft, options, now_ms), False

    def _publish(self, queue: QueueState, draft: Draft, options: DeliveryOptions | None, now_ms: int) -> str:
        engine = self._engine
        seq = engine.next_seq
        properties = make_properties(draft)
        location = engine.log_record(
            (PUBLISH, now_ms, queue.number, seq, draft.encoding, draft.body, properties, options)
        )
        engine.next_seq = seq + 1
        entry = Entry(seq, now_ms, location, len(draft.body), draft.encoding, draft.body, properties, options)
        if location and queue.waiting_bytes >= PAGE_BYTES:
            entry.body = entry.properties = None
        queue.counters.published += 1
        engine.add_entry(queue, entry, now_ms)
        engine.emit("published", queue, entry, now_ms)
        engine.dead_letters.overflow(queue, now_ms)
        return engine.id_of(entry)

    def route(self, exchange: str, key: str, draft: Draft, now_ms: int) -> tuple[str, list[str]]:
        """Publish through an exchange into every queue it leads to, as one record.

        Returns the id and the queues reached. A queue that has the message already, or rejects it because it
        is full, is not among them.
        """
        headers = draft.attributes if draft.properties is None else draft.properties
        draft.route = (exchange, key)
        names = self._engine.router.route(exchange, key, headers)
        for queue in map(self._engine.queues.get, names):
            if queue is not None and not _fits(queue, draft):
                raise _too_large(queue, draft)  # raised before anything is published
        message_id, reached, refused = self.route_to(names, draft, now_ms)
        if refused is not None and not reached:
            raise refused
        return message_id, reached

    def route_to(
        self, names: Sequence[str], draft: Draft, now_ms: int
    ) -> tuple[str, list[str], OpenQError | None]:
        """Publish into all queues of these names, each once, as one record.

        `draft.route` is the route it took. Returns the id, the queues reached, and the error of a queue that
        rejected it because it is full or the body is too large. If the body is too large for the only queue,
        the error is raised. A name without a queue is skipped, and so is a queue that has the message
        already.
        """
        targets: list[QueueState] = []
        options: DeliveryOptions | None = None
        refused: OpenQError | None = None
        message_id = ""
        for name in names if len(names) < 2 else dict.fromkeys(names):
            queue = self._engine.queues.get(name)
            if queue is None:
                continue
            if len(names) > 1 and not _fits(queue, draft):
                # One of several: its error must not keep the message from the others.
                refused = _too_large(queue, draft)
                continue
            own = self._options_for(queue, draft, now_ms)
            known = self._duplicate_of(queue, draft, own, now_ms)
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
            options = own
        if not targets:
            return message_id, [], refused
        if len(targets) == 1:
            return self._publish(targets[0], draft, options, now_ms), [targets[0].name], refused
        shared = base_options(draft, now_ms)
        if draft.delay_ms == 0:
            shared.due_ms = now_ms  # at once, whatever delay a queue has
        message_id = self._publish_shared(targets, draft, shared, now_ms)
        return message_id, [queue.name for queue in targets], refused

    def _publish_shared(
        self, targets: Sequence[QueueState], draft: Draft, shared: DeliveryOptions, now_ms: int
    ) -> str:
        """Publish one message with one id into several queues, as one record."""
        engine = self._engine
        seq = engine.next_seq
        message_id = shared.id = draft.id or f"{engine.id_prefix}{seq:012x}"
        properties = make_properties(draft)
        pairs = tuple((queue.number, seq + i) for i, queue in enumerate(targets))
        record = (
            ROUTE,
            now_ms,
            targets[0].number,
            seq,
            draft.encoding,
            draft.body,
            properties,
            shared,
            pairs,
        )
        location = engine.log_record(record)
        engine.next_seq = seq + len(targets)
        for queue, (_, each) in zip(targets, pairs, strict=True):
            entry = self.enter_routed(
                queue, each, now_ms, location, draft.encoding, draft.body, properties, shared
            )
            engine.emit("published", queue, entry, now_ms)
        for queue in targets:
            engine.dead_letters.overflow(queue, now_ms)
        return message_id

    def enter_routed(
        self,
        queue: QueueState,
        seq: int,
        now_ms: int,
        location: int,
        encoding: int,
        body: bytes,
        properties: Properties | None,
        shared: DeliveryOptions,
        keep: bool = True,
    ) -> Entry:
        """Add one target of a ROUTE. The record holds the shared values; the rest follows from the queue.

        Without `keep`, the body stays on disk only.
        """
        options = shared.copy()
        settings = queue.settings
        if not options.due_ms and settings.delay_ms:
            _delay(options, settings.delay_ms, now_ms)
        if settings.ttl_ms is not None:
            expires_ms = max(options.due_ms, now_ms) + settings.ttl_ms
            options.expires_ms = min(options.expires_ms or expires_ms, expires_ms)
        if options.dedup is None and settings.dedup_by_content:
            options.dedup = content_hash(body)
        options.mark_plain()
        queue.counters.published += 1
        if keep:
            entry = Entry(seq, now_ms, location, len(body), encoding, body, properties, options)
        else:
            entry = Entry(seq, now_ms, location, len(body), encoding, None, None, options)
        self._engine.add_entry(queue, entry, now_ms)
        return entry

    def _options_for(
        self, queue: QueueState, draft: Draft, now_ms: int, is_planned: bool = False
    ) -> DeliveryOptions | None:
        """Check the draft, and compute the options that depend on the queue's settings."""
        settings = queue.settings
        if not is_planned and not _fits(queue, draft):
            raise _too_large(queue, draft)
        options = base_options(draft, now_ms)
        if not options.due_ms and draft.delay_ms is None and settings.delay_ms:
            _delay(options, settings.delay_ms, now_ms)
        if settings.ttl_ms is not None:
            expires_ms = max(options.due_ms, now_ms) + settings.ttl_ms
            options.expires_ms = min(options.expires_ms or expires_ms, expires_ms)
        if options.dedup is None and settings.dedup_by_content:
            options.dedup = content_hash(draft.body)
        if not options.mark_plain().is_plain:
            return options
        if options.type is None and options.route is None and draft.past is None:
            return None
        return plain_options(options.route, options.type)

    def _duplicate_of(
        self, queue: QueueState, draft: Draft, options: DeliveryOptions | None, now_ms: int
    ) -> str | None:
        """The id of the message that this one would duplicate; None if there is none."""
        if options is None:
            return None
        if options.dedup is not None:
            queue.forget_dedup(now_ms)
            kept = queue.dedup.get(dedup_key(queue, options))
            # An expired key can still be here: one from an earlier, longer window may precede it in the order
            # of removal.
            if kept is not None and kept[1] > now_ms:
                return kept[0]
        if options.unique is not None:
            there = queue.unique_keys.get(options.unique)
            if there is not None:
                return there[1] or f"{self._engine.id_prefix}{there[0]:012x}"
        if draft.id is not None:
            seq = self._engine.seq_of(queue, draft.id)
            entry = queue.find(seq) if seq else None
            if entry is not None and self._engine.id_of(entry) == draft.id:
                return draft.id
        return None

    def _check_room(
        self, queue: QueueState, draft: Draft, options: DeliveryOptions | None, now_ms: int
    ) -> None:
        """Raises QueueFull where a full queue rejects.

        The rejected message is dead-lettered if the queue says so.
        """
        settings = queue.settings
        if settings.overflow not in REJECTING_OVERFLOWS:
            return
        if settings.max_length is not None and queue.waiting_count >= settings.max_length:
            full = QueueFull(queue.name, f"max_length {settings.max_length}")
        elif settings.max_bytes is not None and queue.waiting_bytes + len(draft.body) > settings.max_bytes:
            full = QueueFull(queue.name, f"max_bytes {settings.max_bytes}")
        else:
            return
        if settings.overflow == "reject-dead-letter":
            self._dead_letter_refused(queue, draft, options, now_ms)
        raise full

    def _dead_letter_refused(
        self, queue: QueueState, draft: Draft, options: DeliveryOptions | None, now_ms: int
    ) -> None:
        """Dead-letter a message that was never in the queue."""
        entry = Entry(
            0, now_ms, 0, len(draft.body), draft.encoding, draft.body, make_properties(draft), options
        )
        targets = self._engine.dead_letters.dead_letter_targets(queue, entry, DEAD_OVERFLOW)
        if not targets:
            return
        shared = base_options(draft, now_ms)
        shared.deaths = add_dead_letter_event(queue, shared, DEAD_OVERFLOW, None, now_ms)
        shared.route = dead_letter_route(queue, shared)
        shared.born_ms = shared.born_ms or now_ms
        shared.due_ms = now_ms  # dead letters do not wait for the delay of a queue
        shared.expires_ms = shared.count = 0
        shared.dedup = shared.unique = None
        self._publish_shared(targets, draft, shared, now_ms)


_NO_HISTORY = DeliveryOptions()


def _fits(queue: QueueState, draft: Draft) -> bool:
    max_body = queue.settings.max_body
    return max_body is None or len(draft.body) <= max_body


def _too_large(queue: QueueState, draft: Draft) -> InvalidSetting:
    max_body = queue.settings.max_body
    return InvalidSetting(f"a body of {len(draft.body)} bytes; queue {queue.name!r} takes at most {max_body}")


def _delay(options: DeliveryOptions, delay_ms: int, now_ms: int) -> None:
    """Apply the queue's own delay. A TTL counts from when the message is due."""
    options.due_ms = now_ms + delay_ms
    if options.expires_ms:
        options.expires_ms += delay_ms


def make_properties(draft: Draft) -> Properties | None:
    if draft.properties is not None:
        return draft.properties
    if draft.attributes is None and draft.publisher is None:
        return None
    return Properties(plain_copy(draft.attributes or {}), draft.publisher)


def check_draft(draft: Draft, now_ms: int) -> None:
    """Raises InvalidSetting for a draft that every queue would reject."""
    base_options(draft, now_ms)


def base_options(draft: Draft, now_ms: int) -> DeliveryOptions:
    """The options that the draft gives by itself, checked."""
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
    past = draft.past or _NO_HISTORY
    return DeliveryOptions(
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


def content_hash(body: bytes) -> str:
    """The id of a message that is deduplicated by its body."""
    import hashlib  # imported late: it loads OpenSSL, which clients of a server do without

    return hashlib.sha256(body).hexdigest()
