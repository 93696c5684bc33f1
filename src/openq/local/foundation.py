"""What every verb of the local broker stands on: the lock, the clock, recovery, waiters, promises, events.

One lock, held for microseconds and never over a disk access, makes the engine's changes and their
records happen in the same order. Without a path the records go to a bounded memory instead of
a disk, so that replay and timelines work there too.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..broker.cursors import LocalCursors
from ..broker.damage import FOUND, LOST, DamageRegister
from ..broker.history import FileHistory, History, MemoryHistory
from ..broker.interface import Health
from ..broker.state_file import StateFile
from ..broker.waiters import Waiter, Waiters
from ..clock import Clock, SystemClock
from ..engine.engine import Engine
from ..engine.leases import MAX_TIMERS_PER_STEP
from ..engine.queue import QueueState
from ..engine.rebuild import rebuild
from ..engine.records import ITEM, PUBLISH, ROUTE, RUN, Record, content, decode, encode
from ..engine.replay import apply, checkpoint
from ..engine.snapshot import decode as load_snapshot
from ..engine.snapshot import live_locations, oldest_segment
from ..engine.state import WAKE
from ..errors import (
    Closed,
    HistoryUnavailable,
    JournalDamaged,
    JournalFailed,
    OpenQError,
    OutOfRoom,
    public_text,
)
from ..journal.disk import NO_RESOURCES
from ..journal.file_journal import Journal
from ..journal.snapshots import list_all as list_snapshots
from ..journal.snapshots import load_newest
from ..model import Delivery, Entry, Properties
from .housekeeping import Housekeeper
from .subscriptions import LocalSubscriptions
from .ticker import Ticker
from .unreadable import UnreadableMessages, unloaded

log = logging.getLogger("openq")

MEMORY_RECORDS = 30_000  # history without a disk: about ten thousand messages
MEMORY_BYTES = 16 << 20
SETTINGS_BYTES = 1024  # about what the record of a queue, an exchange or a binding takes
LARGE_BODY = 4096  # bodies from here on are counted against MEMORY_BYTES one by one

_RETRY_MS = 200

Listener = Callable[[dict[str, Any]], None]


class Foundation:
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        id_prefix: str | None = None,
        segment_bytes: int = 64 << 20,
        history_bytes: int = 1 << 30,
        relaxed: bool = False,
        journal: Journal | None = None,
    ) -> None:
        """`journal` is for tests that bring their own disk; otherwise `path` decides."""
        self._closed = False
        self._ended = False
        self.halted: OpenQError | None = None  # why nothing is done any more, if it was not `close`
        self._interrupt_guard = _InterruptGuard(self)
        self._waiters = Waiters()
        self._listeners: list[Listener] = []
        self._events: list[dict[str, Any]] = []
        self.observed = False  # somebody listens: `sync` after each verb also without a disk
        self.relaxed = relaxed
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        self.engine = Engine(id_prefix or new_prefix(), seed)
        self._history: History
        if journal is None and path is not None:
            journal = Journal(path, segment_bytes=segment_bytes)
        self._journal = journal
        self._housekeeper: Housekeeper | None = None
        data_path, io = (None, None) if journal is None else (journal.path, journal.io)
        self.damage = DamageRegister(StateFile(data_path, "damage.json", io))
        self.unreadable = UnreadableMessages(self)
        if journal is None:
            self._lock = threading.Lock()
            self._clock: Clock = clock or SystemClock()
            memory: deque[Record] = deque(maxlen=MEMORY_RECORDS)
            self._history = MemoryHistory(memory)
            self._memory = memory
            self._large_bytes = 0
            # A bare append: it returns None, which the engine takes for "nowhere on disk".
            self.engine.log = memory.append
        else:
            try:
                self._open(journal, clock)
            except BaseException:
                journal.close()
                raise
        self.is_durable = journal is not None and not relaxed  # answers wait for the disk
        # What is known of a queue, without the lock and at the price of a lookup. Only to be read.
        self.find_queue: Callable[[str], QueueState | None] = self.engine.queues.get
        self._now = self._clock.now_ms
        if journal is not None:
            journal.on_damage(self._found_damage)
        self._ticker = Ticker(self._tick)
        self._clock.on_advance(self.tick)
        self.cursors = LocalCursors(StateFile(data_path, "cursors.json", io), journal, self._now)
        self.subscriptions = LocalSubscriptions(
            self,
            StateFile(data_path, "subscriptions.json", io),
            StateFile(data_path, "retired.json", io),
        )
        if journal is not None:
            self._housekeeper = Housekeeper(self, journal, history_bytes)
            self._ticker.start()
            self._housekeeper.start()
            if relaxed:
                log.warning(
                    "relaxed: answers before the sync; up to 50 ms of them are at risk in a power cut"
                )

    def _open(self, journal: Journal, clock: Clock | None) -> None:
        self._lock = journal.lock
        snapshots = os.path.join(journal.path, "snapshots")
        newest = load_newest(snapshots, journal.io)
        known_location = 0 if newest is None else newest[0]
        skipped = [
            path for location, path in list_snapshots(snapshots, journal.io) if location > known_location
        ]
        first = journal.segments()[0].number
        if newest is not None and newest[0] >> 32 < first:
            # An older one, because the newest is damaged. What is left of the journal is enough.
            log.warning("the snapshot is older than the journal; all records are read again")
            newest = None
        gone = 0
        latest_ms, count = self._recover(journal, newest)
        if newest is not None and oldest_segment(self.engine) < first:
            # A damaged end of the journal held the copies of messages whose old segment is freed.
            log.warning("the snapshot names messages that are gone; all records are read again")
            gone = sum(location >> 32 < first for location in live_locations(newest[1]))
            self.engine = Engine(self.engine.id_prefix, self.engine.seed)
            newest = None
            latest_ms, count = self._recover(journal, None)
        engine = self.engine
        engine.woken.clear()
        engine.zero_ttl.clear()
        for number in engine.orphans:
            log.warning(
                "the name of queue %d is lost to damage; its messages are in %r",
                number,
                engine.numbered[number].name,
            )
        self._clock = clock or SystemClock(latest_ms)
        now_ms = self._clock.now_ms()
        self._register_findings(journal, skipped, gone, now_ms)
        # Loans are not waited for, so the last ones before a crash may be unknown here. Their receipts
        # must not fit a delivery of this run: it numbers from beyond anything they can have had.
        engine.next_number = engine.first_number = max(engine.next_number, now_ms << 20)
        left = journal.clean_number
        engine.maybe_delivered_below = journal.next_clean_number = engine.next_seq if left is None else left
        self._append = journal.append
        journal.first_record = self._first_record
        engine.log = self._log
        engine.load_properties = self._load_properties
        self._history = FileHistory(journal, self._found_damage)
        with self._lock:
            if not count and newest is None:
                journal.append(encode(checkpoint(engine, now_ms)))
            self._release_bound(now_ms)
            engine.advance(now_ms)

    def _register_findings(self, journal: Journal, skipped: list[str], gone: int, now_ms: int) -> None:
        """What opening found: it goes on without it, and says so."""
        for path in skipped:
            detail = "this snapshot cannot be read; the records were read instead"
            self.damage.report(FOUND, detail, now_ms, file=path)
        if gone:
            detail = "a snapshot names messages in a segment that is not there any more"
            first = journal.segments()[0].path
            self.damage.report(LOST, detail, now_ms, file=first, count=gone)
        for number in self.engine.orphans:
            name = self.engine.numbered[number].name
            detail = f"the name of queue {number} is lost to damage; its messages are in {name!r}"
            self.damage.report(FOUND, detail, now_ms, queue=name)

    def _load_properties(self, location: int) -> Properties | None:
        """Lock held. What cannot be read says nothing of itself: damage must not stop the verb that asks."""
        assert self._journal is not None
        try:
            return content(self._journal.read(location))[2]
        except JournalDamaged as error:
            self._found_damage(error, save=False)
            return None

    def _found_damage(self, error: JournalDamaged, save: bool = True) -> None:
        """Somebody met it who can do without what is damaged."""
        self.damage.report(FOUND, error.detail, self._now(), file=error.file, offset=error.offset, save=save)

    def _recover(self, journal: Journal, newest: tuple[int, list[bytes]] | None) -> tuple[int, int]:
        """The state from a snapshot and the records after it. Their latest time, and their number."""
        engine = self.engine
        start_location = latest_ms = count = 0
        if newest is not None:
            start_location, chunks = newest
            latest_ms = load_snapshot(chunks, engine)
        started = time.monotonic()
        for location, data in journal.replay(start_location):
            record = decode(data)
            apply(engine, record, location)
            latest_ms = max(latest_ms, record[1])
            count += 1
            if count % 1_000_000 == 0:
                log.info("recovered %d records in %.1f s", count, time.monotonic() - started)
        return latest_ms, count

    def _release_bound(self, now_ms: int) -> None:
        """Leases bound to a connection end with the process that held it."""
        for queue in self.engine.queues.values():
            for delivery in list(queue.leases.values()):
                if not delivery.until_ms:
                    # Counted: a message that kills its holder must reach the dead letters some day.
                    seq = delivery.entry.seq
                    try:
                        self.engine.nack(queue, seq, delivery.number, now_ms, 0, "its holder went away")
                    except OutOfRoom:
                        # Opening must not fail for that: the lease ends by a deadline instead, once it can.
                        self.engine._set_deadline(queue, delivery, now_ms + _RETRY_MS, now_ms)

    def _first_record(self) -> bytes:
        if self._housekeeper is not None:
            self._housekeeper.wake()  # a segment is full: time for a snapshot
        return encode(checkpoint(self.engine, self._clock.now_ms()))

    def _log(self, record: Record) -> int:
        return self._append(encode(record))

    def _queue(self, name: str) -> QueueState:
        if self._closed:
            raise self.halted or Closed()
        return self.engine.queue(name)

    def _require_room(self, size: int) -> None:
        """Publishing is what stops first when the disk is full."""
        if self._journal is not None and not self._journal.can_publish(size + 256):
            if self._housekeeper is not None:
                self._housekeeper.wake()  # history gives way before publishing does
            raise self._journal.refusal(f"{self._journal.path} has no room left but the reserve")

    def _require_settings_room(self, detail: object = "") -> None:
        """A change of settings waits for room like a publish: the reserve is for acks and the like.

        What deletes something may go on.
        """
        self._require_room(SETTINGS_BYTES + len(str(detail)))

    def _serve_waiters(self) -> None:
        """Lock held: hand out what became available to those who wait."""
        engine = self.engine
        while engine.woken or engine.zero_ttl:
            if not engine.woken:
                engine.expire_zero_ttl(engine.zero_ttl[-1][0])  # may wake others, by dead letters
                continue
            queues = dict.fromkeys(engine.woken)
            engine.woken.clear()
            for queue in queues:
                if queue.deleted:
                    # Nobody can be served from it any more; a queue of the same name is another one.
                    for waiter in self._waiters.drain(queue.name):
                        waiter.deliver([])
                    continue
                # What had no time to live can be had only in the moment in which it came.
                now_ms = engine.zero_ttl[-1][0] if engine.zero_ttl else self._now()

                def receive(
                    waiter: Waiter, queue: QueueState = queue, now_ms: int = now_ms
                ) -> list[Delivery]:
                    try:
                        return engine.receive(
                            queue, waiter.limit, now_ms, waiter.lease_ms, waiter.consumer, waiter.types
                        )
                    except OpenQError:
                        # The waiter stays in line; it must not depend on somebody else to be tried again.
                        engine.timers.add(now_ms + _RETRY_MS, (WAKE, queue, 0))
                        return []

                self._waiters.serve(queue.name, receive)
                queue.watched = self._waiters.count(queue.name) > 0
        if engine.timers.next_ms < self._ticker.at_ms:
            self._ticker.wake()

    def _end_change(self) -> None:
        """Lock held, at the end of every verb that changed something."""
        engine = self.engine
        if engine.woken or engine.timers.next_ms < self._ticker.at_ms:
            self._serve_waiters()

    def _tick(self) -> int:
        """Everything that time alone brings about. Returns when to come back."""
        with self._lock:
            if self._closed:
                return 1 << 62
            if self._journal is not None and self._journal.error is not None:
                return 1 << 62  # nothing can be told any more
            now_ms = self._now()
            self.engine.advance(now_ms, MAX_TIMERS_PER_STEP)  # then others get their turn
            self._ticker.at_ms = 0  # we are awake: no deadline is before this, so nobody wakes us
            self._serve_waiters()
            self._ticker.at_ms = self.engine.timers.next_ms
            wait_ms = self.engine.timers.next_ms - now_ms
        self._publish_events()
        return wait_ms

    def tick(self) -> None:
        """Bring everything up to the present by hand (a virtual clock does it on every advance)."""
        while self._tick() <= 0:
            pass
        self._ticker.wake()  # its thread may sleep towards a deadline that is no longer the next

    def _limit_memory(self, size: int) -> None:
        """History in memory is bounded by bytes too: large bodies push old records out."""
        if size < LARGE_BODY:
            return
        self._large_bytes += size
        if self._large_bytes > MEMORY_BYTES:
            # Count anew: what fell off the far end by itself was never subtracted.
            memory = self._memory
            held = sum(map(_large_in, memory)) + size
            while held > MEMORY_BYTES * 3 // 4 and memory:
                held -= _large_in(memory.popleft())
            self._large_bytes = held

    def id_of(self, seq: int) -> str:
        return f"{self.engine.id_prefix}{seq:012x}"

    def message_id(self, entry: Entry) -> str:
        return self.engine.id_of(entry)

    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]:
        """The same with bodies, in copies where they are only on disk: looking must not fill the memory.

        What cannot be read is left out: it is set aside.
        """
        copies = [unloaded(entry) if entry.body is None else entry for entry in entries]
        try:
            self.load_bodies(copies)
        except (JournalDamaged, HistoryUnavailable):
            return self.unreadable.fill_each(copies)
        return copies

    def load_bodies(self, entries: Sequence[Entry]) -> None:
        missing = [entry for entry in entries if entry.body is None]
        if missing and self._journal is not None:
            metadata, properties = (
                b"\0",
                None,
            )  # what stood before the last body: often before the next one too
            for entry, data in zip(
                missing, self._journal.read_many([entry.location for entry in missing]), strict=True
            ):
                if data[0] == ITEM:  # as `content` does it, without the call
                    entry.encoding, entry.body = data[1], data[2:]
                elif data.startswith(metadata):
                    entry.encoding, entry.body, entry.properties = data[1], data[len(metadata) :], properties
                else:
                    entry.encoding, body, properties = content(data)
                    entry.body, entry.properties = body, properties
                    metadata = data[: len(data) - len(body)]

    def sync(self) -> None:
        """Return once everything done so far is on disk; raises JournalFailed if it cannot be."""
        journal = self._journal
        if journal is not None and not self.relaxed:
            location = journal.end_location - 1
            if location >= journal.durable_location:
                journal.wait(location)
            elif journal.error is not None:
                raise journal.error
        if self._events:
            self._publish_events()

    def announce(self) -> None:
        """Tell listeners what happened, without a wait for the disk."""
        if self._events:
            self._publish_events()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, once everything done so far is on disk or the journal has failed."""
        journal = self._journal
        if journal is None or self.relaxed:
            callback()
            return
        with self._lock:
            journal.after_commit(callback)
        journal.flush()

    def flush(self) -> None:
        if self._journal is not None and self._journal.error is None:
            self.sync()

    @property
    def journal(self) -> Journal | None:
        return self._journal

    @property
    def lock(self) -> threading.Lock:
        return self._lock

    def is_free(self) -> bool:
        """Nobody is in the middle of a verb. Never waits: the garbage collector asks, from anywhere."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def id_prefix(self) -> str:
        return self.engine.id_prefix

    def now_ms(self) -> int:
        return self._now()

    def health(self) -> Health:
        journal = self._journal
        if self._closed:
            return Health(False, "closed")
        if journal is None:
            return Health(True, "in memory")
        if journal.error is not None:
            return Health(False, public_text(journal.error))
        with self._lock:
            refuses_all = not journal.can_publish(256)
            shortage = journal.shortage
        # No new segment can be made: a small message may still fit into the last one, a large one does not.
        full = refuses_all or shortage is not None
        detail = "journal"
        if full:
            what = "publishing is" if refuses_all else "large messages are"
            detail = f"disk full: {what} refused"
            if shortage is not None and shortage.errno in NO_RESOURCES:
                detail = f"{what} refused: {shortage.strerror}"
        return Health(not full, detail, full, self.damage.reasons())

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell of every change: published, received, acked, expired, requeued, dead-lettered, purged...

        Called without the lock, in order, by the thread that made the change. Returns the way out.
        """
        self._ticker.start()
        with self._lock:
            self._listeners.append(listener)
            self.engine.observer = self._observe
            self.observed = True

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)
                if not self._listeners:
                    self.engine.observer = None
                    self.observed = False

        return unsubscribe

    def _observe(self, what: str, queue: str, message_id: str | None, now_ms: int, detail: str) -> None:
        """Lock held: only note it; listeners may call back into the broker."""
        self._events.append(
            {"event": what, "queue": queue, "id": message_id, "time_ms": now_ms, "detail": detail}
        )

    def _publish_events(self) -> None:
        if not self._events:
            return
        with self._lock:
            events, self._events = self._events, []
            listeners = list(self._listeners)
        for event in events:
            for listener in listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", event["event"])

    def on_interrupt(self, kind: type[BaseException]) -> None:
        """Lock held: a verb ended with an exception. Ctrl-C in the middle of it leaves the state in doubt."""
        if issubclass(kind, Exception):
            return
        if self._journal is None:
            rebuild(self.engine)
        elif not self._closed:
            # The journal knows what was done. Going on from a state in doubt could record nonsense.
            self.halted = JournalFailed("interrupted in the middle of a change")
            self._closed = True

    def close(self) -> None:
        """Everything done is on disk when this returns. Waiters get nothing, later calls `Closed`."""
        with self._lock:
            if self._ended:
                return
            self._closed = self._ended = True
            waiters = self._waiters.drain()
        for waiter in waiters:
            waiter.deliver([])
        self._ticker.stop()
        if self._housekeeper is not None:
            self._housekeeper.stop()
        self.damage.save(at_once=True)
        if self._journal is not None:
            self._journal.close()


class _InterruptGuard:
    """Stands inside the lock around each verb and notices when one was cut short.

    Not part of the lock itself: `with lock` leaves no moment between taking and guarding it, a method would.
    """

    __slots__ = ("_broker",)

    def __init__(self, broker: Foundation) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._broker.on_interrupt(kind)


def _large_in(record: Record) -> int:
    """How much of a record counts against MEMORY_BYTES."""
    if record[0] in (PUBLISH, ROUTE):
        size = len(record[5])
    elif record[0] == RUN:
        size = sum(map(len, record[5]))
    else:
        return 0
    return size if size >= LARGE_BODY else 0


def new_prefix() -> str:
    """A UUID of version 8 up to its last twelve digits, which count messages."""
    node = os.urandom(8).hex()
    return f"{node[:8]}-{node[8:12]}-8{node[12:15]}-8{node[:3]}-"
