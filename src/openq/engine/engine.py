"""The engine: all queue semantics, pure.

Time comes in as `now_ms`. Changes go out through `log` as records (see `records.py`), each before the state
changes: a log that refuses leaves everything as it was. The same calls always give the same answer.

`Engine` holds the state: queues, ids, timers, and how a message enters and leaves a queue. Its parts hold the
rules:

    publishing.py    checks, deduplication, exchanges            ready.py    which message is next
    limits.py        concurrency and rates                       limited_order.py  the order of limited queues
    leases.py        receive, ack, nack, extend                  expiry.py   leases, delays and TTLs that end
    dead_letters.py  moves between queues, dead letters          admin.py    what operators do
    replay.py, snapshot.py  the state after a restart            routing.py  exchanges and bindings
    key_values.py    values under keys
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidSetting, MessageNotFoundError, QueueExists, QueueInUse, QueueNotFound
from ..model import (
    MAX_SPAN_MS,
    DeliveryOptions,
    Entry,
    Properties,
    QueueSettings,
    check_name,
)
from ..names import split_name
from .dead_letters import DeadLetters
from .expiry import Expiry
from .key_values import KeyValueStore
from .leases import Leases
from .progress import BatchProgress
from .publishing import Publishing
from .queue import Counters, QueueState
from .records import (
    QUEUE,
    UNQUEUE,
    Record,
)
from .routing import ExchangeRouter
from .rules import MAX_TIME_MS, dedup_key, own_seq, settings_differences, with_options
from .timers import DELAY, DELAYS, RETENTION, TTL, Timers
from .times import MessageTimes

Event = Callable[[str, str, str | None, int, str], None]  # what, queue, message id, now_ms, detail


class Engine:
    # Slots, because more than 30 attributes would not fit the instance layout that Python makes fast.
    __slots__ = (
        "ack",
        "ack_late",
        "ack_many",
        "advance",
        "dead_letters",
        "deferred_overflow",
        "deleted_counters",
        "end_deferred_overflow",
        "expire_zero_ttl",
        "expiry",
        "extend",
        "extend_late",
        "extend_many",
        "first_number",
        "guard_location",
        "guarded",
        "id_prefix",
        "key_values",
        "leases",
        "load_properties",
        "log",
        "maybe_delivered_below",
        "nack",
        "nack_many",
        "next_number",
        "next_queue",
        "next_seq",
        "numbered",
        "observer",
        "orphans",
        "progress",
        "publish",
        "publish_plain",
        "publish_run",
        "publishing",
        "queues",
        "rebuild_timers",
        "receive",
        "reject",
        "reject_many",
        "release",
        "route",
        "route_to",
        "router",
        "schedules",
        "seed",
        "set_aside",
        "set_deadline",
        "timers",
        "times",
        "woken",
        "zero_ttl",
    )

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
        self.woken: list[QueueState] = []  # watched queues that may have something to deliver
        self.zero_ttl: list[tuple[int, QueueState, int]] = []  # time, queue, sequence of messages with TTL 0
        self.orphans: set[int] = set()  # numbers of queues whose definition was lost to damage
        self.progress: dict[str, BatchProgress] = {}  # job -> how far it is; see progress.py
        self.key_values = KeyValueStore(lambda: self.timers)
        self.schedules: dict[str, Mapping[str, Any]] = {}  # name -> document; see schedules.py
        # Queues whose overflow is handled at the end of a batch; None: overflow is handled at once.
        self.deferred_overflow: list[QueueState] | None = None
        self.observer: Event | None = None
        self.times: MessageTimes | None = None  # measured if a server asks for it
        self.deleted_counters: dict[str, Counters] = {}  # of deleted queues, by account: sums never go down
        # Deliveries that clients must not see before their lease is durable: number -> location. See
        # leases.py.
        self.guarded: dict[int, int] = {}
        self.guard_location = 0  # the last of these locations
        self.first_number = 0  # of the deliveries of this process
        self.maybe_delivered_below = 0  # messages with lower sequences existed when a process died
        self.load_properties: Callable[[int], Properties | None] | None = None  # reads them from a location

        # The parts. Their public calls are bound here once, so that a call costs no extra hop.
        self.dead_letters = DeadLetters(self)
        self.leases = Leases(self)
        self.expiry = Expiry(self)
        self.publishing = Publishing(self)
        self.receive = self.leases.receive
        self.ack = self.leases.ack
        self.ack_many = self.leases.ack_many
        self.ack_late = self.leases.ack_late
        self.nack = self.leases.nack
        self.nack_many = self.leases.nack_many
        self.reject_many = self.leases.reject_many
        self.release = self.leases.release
        self.reject = self.leases.reject
        self.set_aside = self.leases.set_aside
        self.extend = self.leases.extend
        self.extend_late = self.leases.extend_late
        self.extend_many = self.leases.extend_many
        self.set_deadline = self.leases.set_deadline
        self.publish_plain = self.publishing.publish_plain
        self.publish_run = self.publishing.publish_run
        self.publish = self.publishing.publish
        self.route = self.publishing.route
        self.route_to = self.publishing.route_to
        self.advance = self.expiry.advance
        self.expire_zero_ttl = self.expiry.expire_zero_ttl
        self.rebuild_timers = self.expiry.rebuild_timers
        self.end_deferred_overflow = self.dead_letters.end_deferred_overflow

    def id_of(self, entry: Entry) -> str:
        options = entry.options
        if options is not None and options.id is not None:
            return options.id
        return f"{self.id_prefix}{entry.seq:012x}"

    def seq_of(self, queue: QueueState, message_id: str) -> int:
        """The sequence number of an id; 0 if it cannot belong to this queue."""
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
        """Equal settings return the existing queue; different settings are refused."""
        check_name(name)
        queue = self.queues.get(name)
        if queue is not None:
            if queue.settings != settings:
                raise QueueExists(name, settings_differences(queue.settings, settings))
            return queue
        number = self.next_queue
        self.log_record((QUEUE, now_ms, number, 0, name, settings.to_json(), now_ms))
        return self.add_queue(QueueState(name, number, settings, now_ms))

    def add_queue(self, queue: QueueState) -> QueueState:
        self.next_queue = max(self.next_queue, queue.number + 1)
        self.queues[queue.name] = queue
        self.numbered[queue.number] = queue
        return queue

    def change_queue(self, name: str, settings: QueueSettings, now_ms: int) -> QueueState:
        queue = self.queue(name)
        if queue.settings.fifo != settings.fifo:
            raise InvalidSetting(f"queue {name!r}: fifo cannot be changed; create another queue and move")
        if queue.settings != settings:
            self.log_record((QUEUE, now_ms, queue.number, 1, name, settings.to_json(), queue.created_ms))
            self.apply_settings(queue, settings, now_ms)
            self.dead_letters.overflow(queue, now_ms)
        return queue

    def apply_settings(self, queue: QueueState, settings: QueueSettings, now_ms: int) -> None:
        delay_ms = queue.settings.delay_ms
        queue.set_settings(settings, now_ms)
        if settings.fifo and settings.delay_ms != delay_ms:
            self._change_delays(queue, delay_ms, now_ms)
        self.arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def _change_delays(self, queue: QueueState, before_ms: int, now_ms: int) -> None:
        """Apply a new delay to the messages that wait for the delay of their FIFO queue, as on SQS.

        Messages with their own delay or TTL, and retries, keep their due time.
        """

        def waits(entry: Entry) -> bool:
            options = entry.options
            if options is None or options.count or options.expires_ms:
                return False
            # On a replay, messages that had come due by then may still be here.
            return now_ms < options.due_ms == entry.sent_ms + before_ms

        for entry in sorted(filter(waits, queue.delayed.values()), key=lambda each: each.seq):
            self.reschedule_entry(queue, entry, entry.sent_ms + queue.settings.delay_ms, now_ms)

    def reschedule_entry(self, queue: QueueState, entry: Entry, due_ms: int, now_ms: int) -> None:
        """Set another due time for a waiting message; `now_ms` or less: at once."""
        queue.take_waiting(entry.seq, entry)
        options = entry.options.copy() if entry.options is not None else DeliveryOptions()
        options.due_ms = due_ms if due_ms > now_ms else 0
        self.put_back(queue, with_options(entry, options), now_ms)

    def delete_queue(self, name: str, now_ms: int, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Returns how many messages were deleted with it."""
        queue = self.queue(name)
        if if_empty and queue.count:
            raise QueueInUse(name, f"it holds {queue.count} messages")
        if if_unused and (queue.watched or queue.leases):
            raise QueueInUse(name, "it has consumers")
        self.log_record((UNQUEUE, now_ms, queue.number, 0))
        return self.drop_queue(queue)

    def drop_queue(self, queue: QueueState) -> int:
        count = queue.count
        queue.deleted = True
        del self.queues[queue.name]
        del self.numbered[queue.number]
        self.deleted_counters.setdefault(split_name(queue.name)[0], Counters()).add(queue.counters)
        if self.times is not None:
            self.times.queues.pop(queue.number, None)
        self.router.drop_queue(queue.name)
        if queue.watched:
            self.woken.append(queue)
        # A timer may refer to the queue for days; its messages must not stay in memory that long.
        queue.clear(0)
        return count

    def remove_waiting(self, queue: QueueState, entry: Entry) -> None:
        """Remove a waiting message for good. Messages that it held up in its group may become available."""
        queue.take_waiting(entry.seq, entry)
        if queue.watched:
            self.woken.append(queue)

    def add_entry(self, queue: QueueState, entry: Entry, now_ms: int, in_order: bool = True) -> None:
        """Add a message that is new to this queue to every structure.

        Not `in_order`: newer messages may be in the queue already, so it is inserted among them instead of at
        the end.
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
                    self.offer_zero_ttl(queue, entry, now_ms)
            if options.due_ms > now_ms:
                if entry.location:  # on disk, and not needed for a while
                    entry.body = entry.properties = None
                self._delay(queue, entry, options.due_ms, now_ms, in_order and not queue.settings.fifo)
                if queue.settings.fifo:
                    add(entry)
                return
        add(entry)
        if not queue.retention_armed:
            self.arm_retention(queue, now_ms)
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

    def offer_zero_ttl(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """Offer a message with TTL 0 to consumers that wait now. `expire_zero_ttl` drops it afterwards."""
        if self.zero_ttl and self.zero_ttl[0][0] < now_ms:
            self.zero_ttl.clear()  # their timers have handled them
        self.zero_ttl.append((now_ms, queue, entry.seq))
        self.woken.append(queue)

    def put_back(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        """Return a message of this queue to its own place, or to the delayed messages until it is due."""
        queue.waiting_bytes += entry.size
        due_ms = 0 if entry.options is None else entry.options.due_ms
        if due_ms > now_ms:
            self._delay(queue, entry, due_ms, now_ms, False)
            if not queue.settings.fifo:
                return
        queue.ready.put_back(entry)
        # It may be older than all ready messages: then its retention ends before theirs.
        over_ms = max(entry.sent_ms, due_ms) + queue.settings.retention_ms
        if not queue.retention_armed or over_ms < queue.retention_armed:
            self.arm_retention(queue, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def replace_entry(self, queue: QueueState, entry: Entry) -> None:
        """Replace the entry with the same sequence number, wherever it is."""
        delivery = queue.leases.get(entry.seq)
        if delivery is not None:
            delivery.entry = entry
            return
        if entry.seq in queue.delayed:
            queue.delayed.replace(entry)
            if not queue.settings.fifo:
                return
        queue.ready.replace(entry)

    def forget_entry(self, queue: QueueState, entry: Entry) -> None:
        """The message left this queue: only the deduplication window may remember it."""
        options = entry.options
        if options is not None:
            if options.id is not None and queue.ids.get(options.id) == entry.seq:
                del queue.ids[options.id]
            if options.unique is not None and queue.unique_keys.get(options.unique, (0, ""))[0] == entry.seq:
                del queue.unique_keys[options.unique]

    def delivery_ended(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        queue.ready.delivery_ended(entry, now_ms)
        if queue.watched:
            self.woken.append(queue)

    def arm_retention(self, queue: QueueState, now_ms: int) -> None:
        """Arm a timer for the first message whose retention ends.

        An earlier timer is then ignored: see `_fire`.
        """
        kept_ms = queue.ready.kept_since_ms(queue.delayed)
        if kept_ms is None:
            queue.retention_armed = 0
            return
        due_ms = max(now_ms + 1, min(kept_ms + queue.settings.retention_ms, MAX_TIME_MS))
        queue.retention_armed = due_ms
        if queue.settings.retention_ms >= MAX_SPAN_MS:
            return  # never ends: a timer would only keep a deleted queue in memory
        self.timers.add(due_ms, (RETENTION, queue, due_ms))
        self.woken.append(queue)  # the ticker must learn of the new deadline

    def log_record(self, record: Record) -> int:
        # A log that keeps nothing on disk may return None: then the message is only in memory.
        return 0 if self.log is None else self.log(record) or 0

    def emit(self, what: str, queue: QueueState, entry: Entry, now_ms: int, detail: str = "") -> None:
        if self.observer is not None:
            self.observer(what, queue.name, self.id_of(entry), now_ms, detail)
