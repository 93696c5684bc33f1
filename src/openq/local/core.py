"""The state that all parts of the local broker share: engine, lock, clock, journal, waiters.

One lock makes the engine's changes and their records happen in the same order. It is held for microseconds,
never over a disk access. A part makes a change like this:

    with core.lock, core.guard:
        queue = core.queue(name)
        ...                     # change the engine
        core.end_change()       # serve waiters, arm the ticker

Without a directory the records go to a bounded list in memory, so that replay and timelines work there too.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ..broker.damage import FOUND, DamageRegister
from ..broker.history import FileHistory, History, MemoryHistory
from ..broker.message_ids import new_prefix
from ..broker.state_file import StateFile
from ..broker.waiters import Waiter, Waiters
from ..clock import Clock, SystemClock
from ..engine.admin import scan
from ..engine.engine import Engine
from ..engine.queue import QueueState
from ..engine.rebuild import rebuild
from ..engine.records import ITEM, PUBLISH, ROUTE, RUN, Record, content, encode, large_pieces
from ..engine.replay import checkpoint
from ..engine.timers import MAX_TIMERS_PER_STEP, NEVER, WAKE
from ..errors import (
    Closed,
    HistoryUnavailable,
    Interruption,
    JournalDamaged,
    JournalFailed,
    OpenQError,
)
from ..journal.file_journal import Journal
from ..model import Delivery, Entry, MessageFilter, Properties
from .events import EventFeed
from .recovery import drain_limits, recover, release_bound_leases, report_findings
from .ticker import Ticker
from .unreadable import UnreadableMessages, unloaded

MEMORY_RECORDS = 30_000  # history without a disk: about ten thousand messages
MEMORY_BYTES = 16 << 20
SETTINGS_BYTES = 1024  # approximate size of the record of a queue, an exchange or a binding
MAX_DELETED_NAMES = 10_000
LARGE_BODY = 4096  # bodies of this size and more are counted against MEMORY_BYTES one by one

_RETRY_MS = 200


class BrokerCore:
    def __init__(
        self,
        journal: Journal | None,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        id_prefix: str | None = None,
        relaxed: bool = False,
    ) -> None:
        self.journal = journal
        self.relaxed = relaxed  # replies are sent before the sync
        self.is_closed = False
        self.halted: OpenQError | None = None  # why the broker stopped, if it was not `close`
        self.guard = InterruptGuard(self)
        self.waiters = Waiters()
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        self.engine = Engine(id_prefix or new_prefix(), seed)
        self.history: History
        data_path, io = (None, None) if journal is None else (journal.path, journal.io)
        self.damage = DamageRegister(StateFile(data_path, "damage.json", io))
        self.unreadable = UnreadableMessages(self)
        self.memory_records: deque[Record] = deque(maxlen=MEMORY_RECORDS)
        self.deleted_names: dict[int, str] = {}  # of the last deleted queues, by number: events name them
        self._large_bytes = 0
        if journal is None:
            self.lock = threading.Lock()
            self.clock: Clock = clock or SystemClock()
            self.history = MemoryHistory(self.memory_records)
            # A bare append returns None, which the engine takes for "nowhere on disk".
            self.engine.log = self.memory_records.append
        else:
            self._open(journal, clock)
        self.now_ms = self.clock.now_ms
        if journal is not None:
            journal.on_damage(self.report_damage)
        self.events = EventFeed(self.engine, self.lock)
        self.ticker = Ticker(self._tick)
        self.run_schedules: Callable[[], None] = _nothing  # replaced by the broker
        self.schedules_ms = NEVER  # when the next schedule is due
        self.clock.on_advance(self.tick, self._next_run_ms)

    def _open(self, journal: Journal, clock: Clock | None) -> None:
        self.lock = journal.lock
        found = recover(journal, self.engine)
        engine = self.engine = found.engine
        self.clock = clock or SystemClock(found.latest_ms)
        now_ms = self.clock.now_ms()
        report_findings(self.damage, journal, found, now_ms)
        # Callers do not wait for the records of leases, so the last ones before a crash may be missing. Their
        # receipts must not match a delivery of this run, so its numbers begin above any number they can have
        # had.
        engine.next_number = engine.first_number = max(engine.next_number, now_ms << 20)
        left = journal.clean_number
        if left is None or found.is_partial:
            drain_limits(engine, now_ms)
        engine.maybe_delivered_below = journal.next_clean_number = engine.next_seq if left is None else left
        self._append = journal.append
        journal.first_record = self._first_record
        engine.log = engine.key_values.log = self._log
        engine.load_properties = self._load_properties
        self.history = FileHistory(journal, self.report_damage)
        with self.lock:
            if found.is_empty:
                journal.append(encode(checkpoint(engine, now_ms)))
            release_bound_leases(engine, now_ms)
            engine.advance(now_ms)

    def on_segment_full(self) -> None:
        """A segment is full, or space is short. Replaced by the broker."""

    def _first_record(self) -> bytes:
        self.on_segment_full()
        return encode(checkpoint(self.engine, self.clock.now_ms()))

    def _log(self, record: Record) -> int:
        if record[0] <= RUN:
            pieces = large_pieces(record)
            if pieces is not None:
                assert self.journal is not None
                return self.journal.append_pieces(pieces)
        return self._append(encode(record))

    def _load_properties(self, location: int) -> Properties | None:
        """Unreadable properties are None: damage must not stop the change that needs them."""
        assert self.journal is not None
        try:
            return content(self.journal.read(location))[2]
        except JournalDamaged as error:
            self.report_damage(error, save=False)
            return None

    def report_damage(self, error: JournalDamaged, save: bool = True) -> None:
        """Report damage that the caller can do without."""
        self.damage.report(
            FOUND, error.detail, self.now_ms(), file=error.file, offset=error.offset, save=save
        )

    # -- one change -------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.is_closed:
            raise self.halted or Closed()

    def queue(self, name: str) -> QueueState:
        """Raises QueueNotFound or Closed."""
        if self.is_closed:
            raise self.halted or Closed()
        return self.engine.queue(name)

    def keep_deleted_name(self, number: int, name: str) -> None:
        self.deleted_names[number] = name
        if len(self.deleted_names) > MAX_DELETED_NAMES:
            del self.deleted_names[next(iter(self.deleted_names))]

    def require_room(self, size: int) -> None:
        """Lock held. Publishing is the first operation that stops when the disk is full."""
        if self.journal is not None and not self.journal.can_publish(size + 256):
            self.on_segment_full()  # history is freed before publishing stops
            raise self.journal.refusal(f"{self.journal.path} has no room left but the reserve")

    def require_settings_room(self, detail: object = "") -> None:
        """Lock held. Changes of settings need room like a publish; the reserve is for acks and deletions."""
        self.require_room(SETTINGS_BYTES + len(str(detail)))

    def require_body_room(self, size: int) -> None:
        """Lock held. Require room on the disk, or in the history that is kept in memory."""
        if self.journal is not None:
            self.require_room(size)
        elif size >= LARGE_BODY:
            self._limit_memory(size)

    def _limit_memory(self, size: int) -> None:
        """History in memory is bounded by bytes too: large bodies push old records out."""
        self._large_bytes += size
        if self._large_bytes > MEMORY_BYTES:
            # Count again: records that the deque dropped by itself were never subtracted.
            memory = self.memory_records
            held = sum(map(_large_bytes, memory)) + size
            while held > MEMORY_BYTES * 3 // 4 and memory:
                held -= _large_bytes(memory.popleft())
            self._large_bytes = held

    def atomically(self, measure: Callable[[], int], put: Callable[[int], None]) -> None:
        """Write the records of `put(now_ms)` into one block of the journal.

        A crash leaves all of them or none. `measure` returns an upper bound of their bytes. Both are called
        under the lock.
        """
        with self.lock, self.guard:
            self.check_open()
            size = measure()
            self.require_body_room(size)
            if self.journal is not None:
                self.journal.make_room(size)
            now_ms = self.now_ms()
            self.engine.deferred_overflow = []
            try:
                put(now_ms)
            finally:
                self.engine.end_deferred_overflow(now_ms)
            self.end_change()

    def end_change(self) -> None:
        """Lock held, at the end of every change."""
        engine = self.engine
        if engine.woken or engine.timers.next_ms < self.ticker.at_ms:
            self.serve_waiters()

    def serve_waiters(self) -> None:
        """Lock held. Deliver messages that became available to the waiters."""
        engine = self.engine
        while engine.woken or engine.zero_ttl:
            if not engine.woken:
                engine.expire_zero_ttl(engine.zero_ttl[-1][0])  # may wake others, by dead-lettering
                continue
            queues = dict.fromkeys(engine.woken)
            engine.woken.clear()
            for queue in queues:
                if queue.deleted:
                    # A queue of the same name that is created later is another queue.
                    for waiter in self.waiters.drain(queue.name):
                        waiter.deliver([])
                    continue
                # A message with TTL 0 can be received only at the moment it was published.
                now_ms = engine.zero_ttl[-1][0] if engine.zero_ttl else self.now_ms()

                def receive(
                    waiter: Waiter, queue: QueueState = queue, now_ms: int = now_ms
                ) -> list[Delivery]:
                    try:
                        return engine.receive(
                            queue, waiter.limit, now_ms, waiter.lease_ms, waiter.consumer, waiter.wanted
                        )
                    except OpenQError:
                        # The waiter keeps its place; a timer tries again.
                        engine.timers.add(now_ms + _RETRY_MS, (WAKE, queue, 0))
                        return []

                self.waiters.serve(queue.name, receive)
                queue.watched = self.waiters.count(queue.name) > 0
        if engine.timers.next_ms < self.ticker.at_ms:
            self.ticker.wake()

    def advance(self) -> int:
        """Lock held. Handle everything due now: end leases, delays and TTLs. Returns the time."""
        now_ms = self.now_ms()
        self.engine.advance(now_ms)
        self.end_change()
        return now_ms

    def on_interrupt(self, kind: type[BaseException]) -> None:
        """Lock held. A change raised an exception. After Ctrl-C in the middle the state is in doubt."""
        if issubclass(kind, Exception) and not issubclass(kind, Interruption):
            return
        if self.journal is None:
            rebuild(self.engine)
        elif not self.is_closed:
            # The journal has the changes that were made. Continuing from an uncertain state could record
            # wrong changes.
            self.halted = JournalFailed("interrupted in the middle of a change")
            self.is_closed = True

    # -- time -------------------------------------------------------------------------------------

    def _next_run_ms(self) -> int:
        return NEVER if self.is_closed else self.schedules_ms

    def _tick(self) -> int:
        """Handle everything due. Returns the milliseconds until the next deadline."""
        if self.schedules_ms <= self.now_ms():
            self.run_schedules()
        with self.lock:
            if self.is_closed:
                return 1 << 62
            if self.journal is not None and self.journal.error is not None:
                return 1 << 62  # nothing can be recorded any more
            now_ms = self.now_ms()
            self.engine.advance(now_ms, MAX_TIMERS_PER_STEP)  # then other threads get their turn
            self.ticker.at_ms = 0  # this thread is awake: no wake-up is needed
            self.serve_waiters()
            self.ticker.at_ms = min(self.engine.timers.next_ms, self.schedules_ms)
            wait_ms = self.ticker.at_ms - now_ms
        self.events.publish()
        return wait_ms

    def tick(self) -> None:
        """Handle everything due now, on request (a virtual clock calls it on every advance)."""
        while self._tick() <= 0:
            pass
        self.ticker.wake()  # its thread may sleep towards a deadline that is no longer the next

    # -- bodies -----------------------------------------------------------------------------------

    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with bodies; copies where the body is only on disk, so that reading fills no memory.

        Unreadable messages are left out: they are set aside.
        """
        copies = [unloaded(entry) if entry.body is None else entry for entry in entries]
        try:
            self.load_bodies(copies)
        except (JournalDamaged, HistoryUnavailable):
            return self.unreadable.fill_each(copies)
        return copies

    def load_bodies(self, entries: Sequence[Entry]) -> None:
        missing = [entry for entry in entries if entry.body is None]
        if missing and self.journal is not None:
            metadata, properties = b"\0", None  # of the last body: the next one often has the same
            for entry, data in zip(
                missing, self.journal.read_many([entry.location for entry in missing]), strict=True
            ):
                if data[0] == ITEM:  # as `content` does it, without the call
                    entry.encoding, entry.body = data[1], data[2:]
                elif data.startswith(metadata):
                    entry.encoding, entry.body, entry.properties = data[1], data[len(metadata) :], properties
                else:
                    entry.encoding, body, properties = content(data)
                    entry.body, entry.properties = body, properties
                    metadata = data[: len(data) - len(body)]

    def read_ahead(self, queue: str, wanted: MessageFilter, limit: int) -> None:
        """Decide for ready messages that are only on disk, before a receive decides under the lock.

        Until `limit` of them match; the receive reads those itself that come meanwhile.
        """
        if self.journal is None:
            return
        with self.lock, self.guard:
            candidates = scan(self.queue(queue), "ready")
        left = limit
        for entry in candidates:
            if not wanted.has_type(entry.options):
                continue
            if entry.body is not None or entry.properties is not None:
                left -= wanted.has_attributes(entry.properties)
            else:
                verdict = wanted.verdicts.get(entry.location)
                if verdict is None:
                    verdict = wanted.has_attributes(self._load_properties(entry.location))
                    wanted.keep_verdict(entry.location, verdict)
                left -= verdict
            if left <= 0:
                return

    # -- durability -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return once all changes so far are on disk; raises JournalFailed if they cannot be."""
        journal = self.journal
        if journal is not None and not self.relaxed:
            location = journal.end_location - 1
            if location >= journal.durable_location:
                journal.wait(location)
            elif journal.error is not None:
                raise journal.error
        if self.events.pending:
            self.events.publish()

    def flush(self) -> None:
        """`sync`, but it does not raise for a journal that has failed already."""
        if self.journal is not None and self.journal.error is None:
            self.sync()


class InterruptGuard:
    """A context manager inside the lock around each change. It detects an interrupted change.

    It is not part of the lock itself: `with lock` leaves no gap between acquiring and guarding; a method
    would.
    """

    __slots__ = ("_core",)

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._core.on_interrupt(kind)


def _nothing() -> None:
    pass


def _large_bytes(record: Record) -> int:
    """How much of a record counts against MEMORY_BYTES."""
    if record[0] in (PUBLISH, ROUTE):
        size = len(record[5])
    elif record[0] == RUN:
        size = sum(map(len, record[5]))
    else:
        return 0
    return size if size >= LARGE_BODY else 0
