"""What all verbs share: queues, ids, and how a message enters, leaves and moves between them.

Every change is told to the log before the state changes: a log that refuses leaves all as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, QueueExists, QueueInUse, QueueNotFound
from ..model import (
    MAX_DEAD_LETTER_EVENTS,
    MAX_SPAN_MS,
    DeadLetterEvent,
    DeliveryOptions,
    Entry,
    Properties,
    QueueSettings,
    check_name,
    settings_difference,
    split_failure,
)
from ..names import qualified_name, split_name
from .progress import JobProgress
from .queue import QueueState
from .records import (
    DEAD_EXPIRED,
    DEAD_LETTER_NAMES,
    DEAD_OVERFLOW,
    DEAD_REJECTED,
    MOVE,
    QUEUE,
    REDRIVEN,
    REMOVE,
    REMOVE_NAMES,
    REMOVED_DAMAGED,
    REMOVED_EXPIRED,
    REMOVED_OVERFLOW,
    UNQUEUE,
    Record,
)
from .routing import ExchangeRouter
from .timers import Timers

# Kinds of deadlines.
LEASE = 1  # queue, sequences of messages on loan
LEASES = 5  # queue, bucket of such sequences
WAKE = 6  # queue whose waiters could not be served
DELAY = 2  # queue, sequence
DELAYS = 7  # queue, bucket of such sequences
TTL = 3  # queue, sequence
RETENTION = 4  # queue

REJECTING_OVERFLOWS = ("reject", "reject-dead-letter")  # kinds of overflow that let nothing in

_MAX_CASCADE = 8  # dead-letter queues that overflow into each other
MAX_TIME_MS = 1 << 61

Event = Callable[[str, str, str | None, int, str], None]  # what, queue, message id, now_ms, detail


class EngineState:
    def __init__(
        self, id_prefix: str, seed: int = 0, log: Callable[[Record], int | None] | None = None
    ) -> None:
        self.id_prefix = id_prefix  # a message's id is this and its sequence in 12 hex digits
        self.seed = seed  # of the jitter in retry delays
        self.log = log
        self.queues: dict[str, QueueState] = {}
        self.numbered: dict[int, QueueState] = {}
        self.router = ExchangeRouter()
        self.timers = Timers()
        self.next_seq = 1
        self.next_number = 1  # of deliveries
        self.next_queue = 1
        self.woken: list[QueueState] = []  # watched queues that may have something to hand out
        self.zero_ttl: list[
            tuple[int, QueueState, int]
        ] = []  # since when, and which: those with no time to live
        self.orphans: set[int] = set()  # numbers of queues whose definition was lost to damage
        self.progress: dict[str, JobProgress] = {}  # job -> how far it is; see marks.py
        self.deferred_overflow: list[QueueState] | None = (
            None  # queues to look at for overflow later; None: at once
        )
        self.observer: Event | None = None
        # Deliveries that nobody may see before the record of their lease is on disk: number -> its location.
        # They are those of messages delivered before, for all that is known: see `Lending`.
        self.guarded: dict[int, int] = {}
        self.guard_location = 0  # the last of these locations
        self.first_number = 0  # of the deliveries of this process
        self.maybe_delivered_below = 0  # messages of earlier sequence were there when a process died
        self.load_properties: Callable[[int], Properties | None] | None = None  # what is stored at a location

    def id_of(self, entry: Entry) -> str:
        options = entry.options
        if options is not None and options.id is not None:
            return options.id
        return f"{self.id_prefix}{entry.seq:012x}"

    def seq_of(self, queue: QueueState, message_id: str) -> int:
        """The sequence number behind an id; 0 if it cannot be one of this queue's."""
        seq = queue.ids.get(message_id)
        if seq is not None:
            return seq
        return own_seq(self.id_prefix, message_id)

    def locate(self, queue: QueueState, message_id: str) -> Entry:
        seq = self.seq_of(queue, message_id)
        entry = queue.find(seq) if seq else None
        if entry is None or self.id_of(entry) != message_id:
            raise MessageNotFoundError(message_id, queue.name)
        return entry

    def queue(self, name: str) -> QueueState:
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    def create_queue(self, name: str, settings: QueueSettings, now_ms: int) -> QueueState:
        """The same settings again give the same queue; other settings are refused."""
        check_name(name)
        queue = self.queues.get(name)
        if queue is not None:
            if queue.settings != settings:
                raise QueueExists(name, settings_differences(queue.settings, settings))
            return queue
        number = self.next_queue
        self.log_record((QUEUE, now_ms, number, 0, name, settings.to_json(), now_ms))
        return self._add_queue(QueueState(name, number, settings, now_ms))

    def _add_queue(self, queue: QueueState) -> QueueState:
        self.next_queue = max(self.next_queue, queue.number + 1)
        self.queues[queue.name] = queue
        self.numbered[queue.number] = queue
        return queue

    def change_queue(self, name: str, settings: QueueSettings, now_ms: int) -> QueueState:
        queue = self.queue(name)
        if queue.settings.fifo != settings.fifo:
            raise InvalidSetting(f"queue {name!r}: fifo cannot be changed; create another queue and move")
        if queue.settings != settings:
            self.log_record((QUEUE, now_ms, queue.number, 0, name, settings.to_json(), queue.created_ms))
            self._apply_settings(queue, settings, now_ms)
            self._overflow(queue, now_ms)
        return queue

    def _apply_settings(self, queue: QueueState, settings: QueueSettings, now_ms: int) -> None:
        delay_ms = queue.settings.delay_ms
        queue.set_settings(settings)
        if settings.fifo and settings.delay_ms != delay_ms:
            self._change_delays(queue, delay_ms, now_ms)
        self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def _change_delays(self, queue: QueueState, before_ms: int, now_ms: int) -> None:
        """Messages that wait for the delay of their FIFO queue wait for the new one, as on SQS.

        Not those with a delay or a time to live of their own, nor those that are tried again later.
        """

        def waits(entry: Entry) -> bool:
            options = entry.options
            if options is None or options.count or options.expires_ms:
                return False
            # On a replay some may still be here that had come due by then.
            return now_ms < options.due_ms == entry.sent_ms + before_ms

        for entry in sorted(filter(waits, queue.delayed.values()), key=lambda each: each.seq):
            self.reschedule_entry(queue, entry, entry.sent_ms + queue.settings.delay_ms, now_ms)

    def reschedule_entry(self, queue: QueueState, entry: Entry, due_ms: int, now_ms: int) -> None:
        """Another time at which a waiting message is due; `now_ms` or less: at once."""
        queue.take_waiting(entry.seq, entry)
        options = entry.options.copy() if entry.options is not None else DeliveryOptions()
        options.due_ms = due_ms if due_ms > now_ms else 0
        self.put_back(queue, with_options(entry, options), now_ms)

    def delete_queue(self, name: str, now_ms: int, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Returns how many messages went with it."""
        queue = self.queue(name)
        if if_empty and queue.count:
            raise QueueInUse(name, f"it holds {queue.count} messages")
        if if_unused and (queue.watched or queue.leases):
            raise QueueInUse(name, "it has consumers")
        self.log_record((UNQUEUE, now_ms, queue.number, 0))
        return self._drop_queue(queue)

    def _drop_queue(self, queue: QueueState) -> int:
        count = queue.count
        queue.deleted = True
        del self.queues[queue.name]
        del self.numbered[queue.number]
        self.router.drop_queue(queue.name)
        if queue.watched:
            self.woken.append(queue)
        # A timer may refer to it for days; what it held must not stay as long.
        queue.clear()
        return count

    def remove_waiting(self, queue: QueueState, entry: Entry) -> None:
        """Out of the waiting ones, for good. What it held up in its group may be free now."""
        queue.take_waiting(entry.seq, entry)
        if queue.watched:
            self.woken.append(queue)

    def _add_entry(self, queue: QueueState, entry: Entry, now_ms: int, in_order: bool = True) -> None:
        """A message that is new to this queue takes its place in every structure.

        Not `in_order`: newer ones may be there already, so it is put among them instead of at the end.
        """
        options = entry.options
        add = queue.ready.append if in_order else queue.ready.put_back
        queue.waiting_bytes += entry.size
        if options is not None:
            if options.id is not None:
                queue.ids[options.id] = entry.seq
            if options.unique is not None:
                queue.unique_keys[options.unique] = (entry.seq, options.id or "")
            window_ms = queue.settings.dedup_window_ms
            if options.dedup is not None and window_ms:
                key = dedup_key(queue, options)
                end_ms = entry.sent_ms + window_ms
                kept = queue.dedup.get(key)
                if kept is None or kept[1] <= end_ms:  # a copy of an older one must not shorten the window
                    queue.dedup[key] = (self.id_of(entry), end_ms)
                    queue.dedup_order.append((end_ms, key))
            if options.expires_ms:
                self.timers.add(options.expires_ms, (TTL, queue, entry.seq))
                if options.expires_ms <= now_ms:
                    self._offer_zero_ttl(queue, entry, now_ms)
            if options.due_ms > now_ms:
                if entry.location:  # on disk, and not needed for a while
                    entry.body = entry.properties = None
                self._delay(queue, entry, options.due_ms, now_ms, in_order and not queue.settings.fifo)
                if queue.settings.fifo:
                    add(entry)
                return
        add(entry)
        if not queue.retention_armed:
            self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def _delay(self, queue: QueueState, entry: Entry, due_ms: int, now_ms: int, in_order: bool) -> None:
        queue.delayed.add(entry, in_order)
        self.arm_delay(queue, entry.seq, due_ms, now_ms)
        if queue.delayed.needs_compaction:
            queue.delayed.compact()

    def arm_delay(self, queue: QueueState, seq: int, due_ms: int, now_ms: int) -> None:
        timer = queue.delayed.arm(seq, due_ms, now_ms)
        if timer is not None:
            time_ms, bucket = timer
            self.timers.add(time_ms, (DELAY, queue, seq) if bucket is None else (DELAYS, queue, bucket))

    def _offer_zero_ttl(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """With no time to live it is for who waits at this very moment; `end_brief` comes after them."""
        if self.zero_ttl and self.zero_ttl[0][0] < now_ms:
            self.zero_ttl.clear()  # their timers have dealt with them
        self.zero_ttl.append((now_ms, queue, entry.seq))
        self.woken.append(queue)

    def put_back(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """A message of this queue to its own place, or among the delayed until it is due."""
        queue.waiting_bytes += entry.size
        due_ms = 0 if entry.options is None else entry.options.due_ms
        if due_ms > now_ms:
            self._delay(queue, entry, due_ms, now_ms, False)
            if not queue.settings.fifo:
                return
        queue.ready.put_back(entry)
        # It may be older than all that waited: then its time is over before theirs.
        over_ms = max(entry.sent_ms, due_ms) + queue.settings.retention_ms
        if not queue.retention_armed or over_ms < queue.retention_armed:
            self._arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def replace_entry(self, queue: QueueState, entry: Entry) -> None:
        """Another entry under the same sequence number, wherever that one is."""
        delivery = queue.leases.get(entry.seq)
        if delivery is not None:
            delivery.entry = entry
            return
        if entry.seq in queue.delayed:
            queue.delayed.replace(entry)
            if not queue.settings.fifo:
                return
        queue.ready.replace(entry)

    def _forget_entry(self, queue: QueueState, entry: Entry) -> None:
        """The message is gone from this queue: nothing may remember it but the dedup window."""
        options = entry.options
        if options is not None:
            if options.id is not None and queue.ids.get(options.id) == entry.seq:
                del queue.ids[options.id]
            if options.unique is not None and queue.unique_keys.get(options.unique, (0, ""))[0] == entry.seq:
                del queue.unique_keys[options.unique]

    def _delivery_ended(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        queue.ready.delivery_ended(entry, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def end_deferred_overflow(self, now_ms: int) -> None:
        """From here on a full queue lets go at once again; those that were spared so far do it now."""
        held, self.deferred_overflow = self.deferred_overflow or (), None
        for queue in dict.fromkeys(held):
            self._overflow(queue, now_ms)

    def _overflow(self, queue: QueueState, now_ms: int, cascade: int = 0) -> None:
        settings = queue.settings
        if (
            settings.max_length is None and settings.max_bytes is None
        ) or settings.overflow in REJECTING_OVERFLOWS:
            return
        if self.deferred_overflow is not None:
            self.deferred_overflow.append(queue)
            return
        while (settings.max_length is not None and queue.waiting_count > settings.max_length) or (
            settings.max_bytes is not None and queue.waiting_bytes > settings.max_bytes
        ):
            entry = queue.ready.lowest()
            if entry is None:
                # Everything waiting is delayed: the newest goes.
                entry = queue.delayed.newest()
            try:
                self._drop_overflowed(queue, entry, now_ms, cascade)
            except OpenQError:
                # The log refused. What made it overflow is told and done, so the queue stays over its
                # limit until the next time.
                return

    def _drop_overflowed(self, queue: QueueState, entry: Entry, now_ms: int, cascade: int) -> None:
        targets = None
        if queue.settings.overflow == "dead-letter" and cascade < _MAX_CASCADE:
            targets = self._dead_letter_targets(queue, entry, DEAD_OVERFLOW)
        if targets:
            self._log_move(queue, entry, targets, DEAD_OVERFLOW, None, now_ms)
            self.remove_waiting(queue, entry)
            self._finish_move(queue, entry, targets, DEAD_OVERFLOW, None, now_ms, cascade + 1)
        else:
            self.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_OVERFLOW, [entry.seq]))
            self.remove_waiting(queue, entry)
            self._removed(queue, entry, REMOVED_OVERFLOW, now_ms)

    def _dead_letter_targets(self, queue: QueueState, entry: Entry, why: int) -> list[QueueState] | None:
        """Where this queue's dead letters go; None: nowhere, so a message is better kept."""
        settings = queue.settings
        if settings.dead_letter_exchange is not None:
            if settings.dead_letter_exchange not in self.router:
                return None
            _, key = dead_letter_route(queue, entry.options) or ("", "")
            headers = self._headers(settings.dead_letter_exchange, entry)
            names = self.router.route(settings.dead_letter_exchange, key, headers)
            targets = [self.queues[name] for name in names if name in self.queues]
        elif settings.dead_letter in self.queues:
            targets = [self.queues[settings.dead_letter]]
        else:
            return None
        return [target for target in targets if not would_loop(queue, entry.options, target, why)]

    def _headers(self, exchange: str, entry: Entry) -> Properties | None:
        """What holds the attributes, from disk if need be; only an exchange that looks is worth that."""
        properties = entry.properties
        looks = self.router.get(exchange).kind == "headers"
        if looks and properties is None and entry.location and self.load_properties is not None:
            properties = self.load_properties(entry.location)
        return properties

    def _log_move(
        self,
        queue: QueueState,
        entry: Entry,
        targets: Sequence[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        """One record for the whole move; `_finish_move` follows once the entry is out of its queue."""
        self.log_record((MOVE, now_ms, queue.number, entry.seq, why, reason, self._moves(entry.seq, targets)))

    def _moves(self, seq: int, targets: Sequence[QueueState]) -> tuple[tuple[int, int, int], ...]:
        return tuple((seq, target.number, self.next_seq + i) for i, target in enumerate(targets))

    def _finish_move(
        self,
        queue: QueueState,
        entry: Entry,
        targets: Sequence[QueueState],
        why: int,
        reason: str | None,
        now_ms: int,
        cascade: int = 0,
    ) -> None:
        moves = self._moves(entry.seq, targets)
        self.next_seq += len(targets)
        self._moved(queue, entry, moves, why, reason, now_ms)
        if why in DEAD_LETTER_NAMES:
            self._emit(
                "dead-lettered", queue, entry, now_ms, split_failure(reason)[0] or DEAD_LETTER_NAMES[why]
            )
        else:
            self._emit("moved", queue, entry, now_ms, targets[0].name)
        for target in targets:
            self._overflow(target, now_ms, cascade)

    def _moved(
        self,
        queue: QueueState,
        entry: Entry,
        moves: Iterable[tuple[int, int, int]],
        why: int,
        reason: str | None,
        now_ms: int,
    ) -> None:
        self._forget_entry(queue, entry)
        old = entry.options
        queue.counters.moved_out += 1
        if why in DEAD_LETTER_NAMES:
            queue.counters.dead_lettered += 1
        if why == DEAD_EXPIRED:
            queue.counters.expired += 1
        for _, number, seq in moves:
            target = self.numbered[number]
            options = old.copy() if old is not None else DeliveryOptions()
            options.id = self.id_of(entry)
            options.born_ms = options.born_ms or entry.sent_ms
            if why in DEAD_LETTER_NAMES:
                options.deaths = add_dead_letter_event(queue, options, why, reason, now_ms)
                options.route = dead_letter_route(queue, old)
            elif why == REDRIVEN and options.deaths and options.deaths[0].queue == target.name:
                options.route = route_before(target, options.deaths[0])
            options.count = 0
            options.number = 0
            options.first_ms = 0
            options.due_ms = 0
            options.expires_ms = 0
            options.unique = None
            options.dedup = None
            ttl_ms = target.settings.ttl_ms
            if ttl_ms is not None:
                options.expires_ms = now_ms + ttl_ms
            target.counters.moved_in += 1
            moved = Entry(
                seq, now_ms, entry.location, entry.size, entry.encoding, entry.body, entry.properties, options
            )
            self._add_entry(target, moved, now_ms)

    def _removed(self, queue: QueueState, entry: Entry, why: int, now_ms: int) -> None:
        """Gone without an ack; told and taken out already."""
        self._forget_entry(queue, entry)
        queue.counters.removed += 1
        if why == REMOVED_EXPIRED:
            queue.counters.expired += 1
        elif why == REMOVED_DAMAGED:
            queue.counters.damaged += 1
        self._emit("removed", queue, entry, now_ms, REMOVE_NAMES[why])

    def _arm_retention(self, queue: QueueState, now_ms: int) -> None:
        """For the first that grows too old. A timer armed before this one is dead: see `_fire`."""
        kept_ms = queue.ready.kept_since_ms(queue.delayed)
        if kept_ms is None:
            queue.retention_armed = 0
            return
        due_ms = max(now_ms + 1, min(kept_ms + queue.settings.retention_ms, MAX_TIME_MS))
        queue.retention_armed = due_ms
        if queue.settings.retention_ms >= MAX_SPAN_MS:
            return  # for ever: a timer would only keep a deleted queue in memory as long
        self.timers.add(due_ms, (RETENTION, queue, due_ms))
        self.woken.append(queue)  # whoever keeps the time must hear of it

    def log_record(self, record: Record) -> int:
        # A log that keeps nothing on disk may return None: the message is nowhere but here.
        return 0 if self.log is None else self.log(record) or 0

    def _emit(self, what: str, queue: QueueState, entry: Entry, now_ms: int, detail: str = "") -> None:
        if self.observer is not None:
            self.observer(what, queue.name, self.id_of(entry), now_ms, detail)


def own_seq(id_prefix: str, message_id: str) -> int:
    """The sequence that an id was made from, whatever queue the message is in now; 0: not made here."""
    if message_id.startswith(id_prefix) and len(message_id) == len(id_prefix) + 12:
        try:
            return int(message_id[-12:], 16)
        except ValueError:
            return 0
    return 0


def with_options(entry: Entry, options: DeliveryOptions) -> Entry:
    """The same message with other engine data; what is on disk is not kept in memory too."""
    if entry.location:
        return Entry(
            entry.seq, entry.sent_ms, entry.location, entry.size, entry.encoding, None, None, options
        )
    return Entry(
        entry.seq,
        entry.sent_ms,
        entry.location,
        entry.size,
        entry.encoding,
        entry.body,
        entry.properties,
        options,
    )


def _own_route(queue: QueueState) -> tuple[str, str]:
    """How a message comes that was published straight to a queue: default exchange and the queue's name."""
    account, name = split_name(queue.name)
    return qualified_name(account, ""), name


def dead_letter_route(queue: QueueState, options: DeliveryOptions | None) -> tuple[str, str] | None:
    """Exchange and key with which a message of this queue goes to the dead letters; None: straight."""
    settings = queue.settings
    if settings.dead_letter_exchange is None:
        return None
    key = settings.dead_letter_key
    if key is None:
        route = None if options is None else options.route
        key = (route or _own_route(queue))[1]
    return settings.dead_letter_exchange, key


def route_before(queue: QueueState, death: DeadLetterEvent) -> tuple[str, str] | None:
    """How a message had come to this queue before it died there."""
    route = (death.exchange, death.key)
    return None if route in (("", ""), _own_route(queue)) else route


def add_dead_letter_event(
    queue: QueueState, options: DeliveryOptions, why: int, reason: str | None, now_ms: int
) -> tuple[DeadLetterEvent, ...]:
    """The deaths with one more; an earlier one of this queue and kind becomes part of it."""
    kind = DEAD_LETTER_NAMES[why]
    times, first_ms = 1, now_ms
    others = []
    for death in options.deaths:
        if death.queue == queue.name and death.kind == kind:
            times = death.times + 1
            first_ms = death.first_ms or death.time_ms
        else:
            others.append(death)
    exchange, key = options.route or _own_route(queue)
    new = DeadLetterEvent(
        queue.name,
        split_failure(reason)[0] or kind,
        now_ms,
        options.count,
        kind,
        exchange,
        key,
        times,
        first_ms,
    )
    return (new, *others)[:MAX_DEAD_LETTER_EVENTS]


def would_loop(queue: QueueState, options: DeliveryOptions | None, target: QueueState, why: int) -> bool:
    """Whether a message would come back to a queue it died in, and nobody rejected it on the way.

    Such a circle turns by itself, for ever; one with a rejection in it is how a consumer tries again later.
    """
    if why == DEAD_REJECTED:
        return False
    if target is queue:
        return True
    kind = DEAD_LETTER_NAMES[why]
    for death in () if options is None else options.deaths:
        if death.queue == queue.name and death.kind == kind:
            continue  # becomes part of the death that is just happening
        if death.kind in ("", DEAD_LETTER_NAMES[DEAD_REJECTED]):
            return False  # one of unknown kind may have been a rejection: better a circle than a loss
        if death.queue == target.name:
            return True
    return False


def dedup_key(queue: QueueState, options: DeliveryOptions) -> str:
    if queue.settings.dedup_per_group:
        return f"{options.group or ''}\x00{options.dedup}"
    return options.dedup or ""


def settings_differences(old: QueueSettings, new: QueueSettings) -> str:
    return ", ".join(
        settings_difference(name, getattr(old, name), getattr(new, name))
        for name in QueueSettings.__slots__
        if getattr(old, name) != getattr(new, name)
    )
