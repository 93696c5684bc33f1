"""The engine and a journal in this process, behind the Broker verbs.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..clock import Clock, SystemClock
from ..engine import admin
from ..engine.admin import Why
from ..engine.apply import apply, checkpoint
from ..engine.engine import Engine
from ..engine.queue import Queue
from ..engine.records import PUBLISH, ROUTE, RUN, Record, content, decode, encode
from ..engine.routing import Binding, Exchange
from ..engine.snapshot import decode as load_snapshot
from ..errors import Closed, DiskFull, HistoryUnavailable, OpenQError
from ..model import Delivery, Draft, Entry, QueueSettings
from ..storage.files import FileJournal
from ..storage.snapshots import load_newest
from . import filters
from .base import Filter, Found, Health, QueueStats, Receipt, Step
from .history import FileHistory, History, MemoryHistory
from .housekeeping import Housekeeper
from .ticker import Ticker
from .waiters import Waiter, Waiters

log = logging.getLogger("openq")

MEMORY_RECORDS = 30_000  # history without a disk: about ten thousand messages
MEMORY_BYTES = 16 << 20
_LARGE = 4096  # bodies from here on are counted against MEMORY_BYTES one by one

Listener = Callable[[dict[str, Any]], None]


class LocalBroker:
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
        journal: FileJournal | None = None,
    ) -> None:
        """`journal` is for tests that bring their own disk; otherwise `path` decides."""
        self._closed = False
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
            journal = FileJournal(path, segment_bytes=segment_bytes)
        self._journal = journal
        self._housekeeper: Housekeeper | None = None
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
        self._now = self._clock.now_ms
        self._ticker = Ticker(self._tick)
        self._clock.on_advance(self.tick)
        if journal is not None:
            self._housekeeper = Housekeeper(self, journal, history_bytes)
            self._ticker.start()
            self._housekeeper.start()
            if relaxed:
                log.warning(
                    "relaxed: answers before the sync; up to 50 ms of them are at risk in a power cut"
                )

    def _open(self, journal: FileJournal, clock: Clock | None) -> None:
        self._lock = journal.lock
        engine = self.engine
        latest_ms = 0
        start_at = 0
        newest = load_newest(os.path.join(journal.path, "snapshots"), journal.io)
        if newest is not None and newest[0] >> 32 < journal.segments()[0].number:
            # An older one, because the newest is damaged. What is left of the journal is enough.
            log.warning("the snapshot is older than the journal; all records are read again")
            newest = None
        if newest is not None:
            start_at, chunks = newest
            latest_ms = load_snapshot(chunks, engine)
        started = time.monotonic()
        count = 0
        for at, data in journal.replay(start_at):
            record = decode(data)
            apply(engine, record, at)
            latest_ms = max(latest_ms, record[1])
            count += 1
            if count % 1_000_000 == 0:
                log.info("recovered %d records in %.1f s", count, time.monotonic() - started)
        engine.woken.clear()
        self._clock = clock or SystemClock(latest_ms)
        now_ms = self._clock.now_ms()
        self._append = journal.append
        journal.opening = self._opening
        engine.log = self._log
        engine.load_info = lambda at: content(journal.read(at))[2]
        self._history = FileHistory(journal, engine)
        with self._lock:
            if not count and newest is None:
                journal.append(encode(checkpoint(engine, now_ms)))
            self._release_bound(now_ms)
            engine.advance(now_ms)

    def _release_bound(self, now_ms: int) -> None:
        """Leases bound to a connection end with the process that held it."""
        for queue in self.engine.queues.values():
            for delivery in list(queue.leases.values()):
                if not delivery.until_ms:
                    seq = delivery.entry.seq
                    self.engine.release(queue, seq, delivery.number, now_ms)

    def _opening(self) -> bytes:
        if self._housekeeper is not None:
            self._housekeeper.wake()  # a segment is full: time for a snapshot
        return encode(checkpoint(self.engine, self._clock.now_ms()))

    def _log(self, record: Record) -> int:
        return self._append(encode(record))

    # -- inside -------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        if self._closed:
            raise Closed()
        return self.engine.queue(name)

    def _room(self, size: int) -> None:
        """Publishing is what stops first when the disk is full."""
        if self._journal is not None and not self._journal.can_publish(size + 256):
            raise DiskFull(f"{self._journal.path} has no room left but the reserve")

    def _serve(self) -> None:
        """Lock held: hand out what became available to those who wait."""
        engine = self.engine
        while engine.woken:
            queues = dict.fromkeys(engine.woken)
            engine.woken.clear()
            for queue in queues:
                if queue.deleted:
                    continue
                now_ms = self._now()

                def receive(waiter: Waiter, queue: Queue = queue, now_ms: int = now_ms) -> list[Delivery]:
                    try:
                        return engine.receive(
                            queue, waiter.limit, now_ms, waiter.lease_ms, waiter.consumer, waiter.types
                        )
                    except OpenQError:
                        return []  # the waiter stays; its next chance comes with the next change

                self._waiters.serve(queue.name, receive)
                queue.watched = self._waiters.count(queue.name) > 0
        if engine.timers.next_ms < self._ticker.at_ms:
            self._ticker.wake()

    def _after(self) -> None:
        """Lock held, at the end of every verb that changed something."""
        engine = self.engine
        if engine.woken or engine.timers.next_ms < self._ticker.at_ms:
            self._serve()

    def _tick(self) -> int:
        """Everything that time alone brings about. Returns when to come back."""
        with self._lock:
            if self._closed:
                return 1 << 62
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._ticker.at_ms = 0  # we are awake: no deadline is before this, so nobody wakes us
            self._serve()
            self._ticker.at_ms = self.engine.timers.next_ms
            wait_ms = self.engine.timers.next_ms - now_ms
        self._publish_events()
        return wait_ms

    def tick(self) -> None:
        """Bring everything up to the present by hand (a virtual clock does it on every advance)."""
        self._tick()
        self._ticker.wake()  # its thread may sleep towards a deadline that is no longer the next

    # -- queues -------------------------------------------------------------------------------

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        with self._lock:
            if self._closed:
                raise Closed()
            now_ms = self._now()
            if change and queue in self.engine.queues:
                made = self.engine.change_queue(queue, settings, now_ms)
            else:
                made = self.engine.create_queue(queue, settings, now_ms)
            self._after()
            return made.settings

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        with self._lock:
            self._queue(queue)
            count = self.engine.delete_queue(queue, self._now(), if_empty=if_empty, if_unused=if_unused)
            self._after()
            return count

    def queues(self) -> list[str]:
        with self._lock:
            return list(self.engine.queues)

    def settings(self, queue: str) -> QueueSettings:
        with self._lock:
            return self._queue(queue).settings

    def stats(self, queue: str) -> QueueStats:
        with self._lock:
            found = self._queue(queue)
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._after()
            oldest_ms = found.ready.oldest_ms()
            return QueueStats(
                queue,
                found.ready_count,
                len(found.delayed),
                len(found.leases),
                found.waiting_bytes,
                None if oldest_ms is None else now_ms - oldest_ms,
                self._waiters.count(queue),
                found.counters.as_dict(),
            )

    def purge(self, queue: str) -> int:
        with self._lock:
            count = admin.purge(self.engine, self._queue(queue), self._now())
            self._after()
            return count

    # -- in -----------------------------------------------------------------------------------

    def publish_body(self, queue: str, body: bytes, form: int) -> int:
        """The short way for a body and nothing else. Its sequence, or 0 if it must go the long way."""
        lock = self._lock
        lock.acquire()
        try:
            found = self.engine.queues.get(queue)
            if found is None or self._closed or not found.simple:
                self._queue(queue)
                return 0
            if self._journal is not None:
                self._room(len(body))
            elif len(body) >= _LARGE:
                self._weigh(len(body))
            engine = self.engine
            seq = engine.publish_plain(found, body, form, self._now())
            if engine.woken:
                self._serve()
            return seq
        finally:
            lock.release()

    def publish(self, queue: str, draft: Draft) -> str:
        with self._lock:
            found = self._queue(queue)
            self._room(len(draft.body))
            if self._journal is None:
                self._weigh(len(draft.body))
            message_id, _ = self.engine.publish(found, draft, self._now())
            self._after()
            return message_id

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[str | OpenQError]:
        """The id of each, or its error; one that is refused does not stop the others."""
        results: list[str | OpenQError] = []
        with self._lock:
            found = self._queue(queue)
            self._room(sum(len(draft.body) for draft in drafts))
            now_ms = self._now()
            for draft in drafts:
                if self._journal is None:
                    self._weigh(len(draft.body))
                try:
                    results.append(self.engine.publish(found, draft, now_ms)[0])
                except OpenQError as error:
                    results.append(error)
            self._after()
        return results

    def publish_bodies(self, queue: str, bodies: Sequence[bytes], form: int) -> range | None:
        """Many plain bodies as one record. Their sequences, or None if they must go one by one."""
        if not bodies:
            return range(0)
        with self._lock:
            found = self._queue(queue)
            if not found.simple:
                return None
            total = sum(map(len, bodies))
            self._room(total + 32 * len(bodies))
            if self._journal is None:
                self._weigh(total)
            seq = self.engine.publish_run(found, bodies, form, self._now())
            self._after()
            return range(seq, seq + len(bodies))

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        with self._lock:
            if self._closed:
                raise Closed()
            self._room(len(draft.body))
            answer = self.engine.route(exchange, key, draft, self._now())
            self._after()
            return answer

    def _weigh(self, size: int) -> None:
        """History in memory is bounded by bytes too: large bodies push old records out."""
        if size < _LARGE:
            return
        self._large_bytes += size
        memory = self._memory
        while self._large_bytes > MEMORY_BYTES and memory:
            self._large_bytes -= _large_in(memory.popleft())

    def id_of(self, seq: int) -> str:
        return f"{self.engine.id_prefix}{seq:012x}"

    def message_id(self, entry: Entry) -> str:
        return self.engine.id_of(entry)

    # -- out ----------------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]:
        lock = self._lock
        lock.acquire()
        try:
            engine = self.engine
            found = engine.queues.get(queue)
            if found is None or self._closed:
                found = self._queue(queue)
            deliveries = engine.receive(found, limit, self._now(), lease_ms, consumer, types)
            if engine.woken or engine.timers.next_ms < self._ticker.at_ms:
                self._serve()
            return deliveries
        finally:
            lock.release()

    def attend(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Messages at once, or None: then the waiter stands in line and is served later."""
        self._ticker.start()
        with self._lock:
            found = self._queue(queue)
            deliveries = self.engine.receive(
                found, waiter.limit, self._now(), waiter.lease_ms, waiter.consumer, waiter.types
            )
            if not deliveries:
                self._waiters.add(queue, waiter)
                found.watched = True
            self._after()
            return deliveries or None

    def leave(self, queue: str, waiter: Waiter) -> bool:
        """Out of the line. False: it was served in the meantime."""
        with self._lock:
            left = self._waiters.remove(queue, waiter)
            found = self.engine.queues.get(queue)
            if found is not None:
                found.watched = self._waiters.count(queue) > 0
            return left

    def load(self, deliveries: Sequence[Delivery]) -> None:
        """Bodies from disk, where needed; and nothing leaves before its publish is durable."""
        journal = self._journal
        if journal is None:
            return
        newest = max(delivery.entry.at for delivery in deliveries)
        if newest >= journal.durable_at and not self.relaxed:
            journal.wait(newest)
        try:
            self.fill([delivery.entry for delivery in deliveries])
        except HistoryUnavailable:
            # Copied out of an old segment and that freed, all in this moment: the entries are others now.
            self.fill([delivery.entry for delivery in deliveries])

    def fill(self, entries: Sequence[Entry]) -> None:
        missing = [entry for entry in entries if entry.body is None]
        if missing and self._journal is not None:
            for entry, data in zip(
                missing, self._journal.read_many([entry.at for entry in missing]), strict=True
            ):
                entry.form, entry.body, entry.info = content(data)

    def is_loaded(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether `load` would return at once, without waiting for a commit."""
        journal = self._journal
        if journal is None or self.relaxed:
            return True
        return max(delivery.entry.at for delivery in deliveries) < journal.durable_at

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]:
        with self._lock:
            found = self._queue(queue)
            results = self.engine.ack_many(found, receipts, self._now())
            self._after()
            return results

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        lock = self._lock
        lock.acquire()
        try:
            engine = self.engine
            found = engine.queues.get(queue)
            if found is None or self._closed:
                found = self._queue(queue)
            engine.ack(found, seq, number, self._now())
            if engine.woken:
                self._serve()
        finally:
            lock.release()

    def ack_late(self, queue: str, receipt: Receipt) -> bool:
        with self._lock:
            done = self.engine.ack_late(self._queue(queue), *receipt, self._now())
            self._after()
            return done

    def nack(
        self, queue: str, receipt: Receipt, delay_ms: int | None = None, reason: str | None = None
    ) -> str:
        with self._lock:
            found = self._queue(queue)
            outcome = self.engine.nack(found, *receipt, self._now(), delay_ms, reason)
            self._after()
            return outcome

    def reject(self, queue: str, receipt: Receipt, reason: str | None = None) -> str:
        with self._lock:
            outcome = self.engine.reject(self._queue(queue), *receipt, self._now(), reason)
            self._after()
            return outcome

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        """Uncounted, back to their places; those whose lease is over already are passed over."""
        with self._lock:
            found = self._queue(queue)
            done = 0
            for seq, number in receipts:
                delivery = found.leases.get(seq)
                if delivery is not None and delivery.number == number:
                    self.engine.release(found, seq, number, self._now())
                    done += 1
            self._after()
            return done

    def extend(self, queue: str, receipt: Receipt, lease_ms: int) -> int:
        with self._lock:
            until_ms = self.engine.extend(self._queue(queue), *receipt, self._now(), lease_ms)
            self._after()
            return until_ms

    # -- looking ------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        with self._lock:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            entries = admin.peek(self.engine, found, limit, rear)
        self.fill(entries)
        return entries

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        """All of them, in hand-out order, with their bodies: for export and small queues."""
        with self._lock:
            self.engine.advance(self._now())
            self._after()
            entries = list(admin.browse(self.engine, self._queue(queue), state))
        self.fill(entries)
        return entries

    def deliveries(self, queue: str) -> list[Delivery]:
        """What is out on loan, with holder and deadline."""
        with self._lock:
            self.engine.advance(self._now())
            self._after()
            deliveries = list(self._queue(queue).leases.values())
        self.fill([delivery.entry for delivery in deliveries])
        return deliveries

    def find(self, queue: str, message_id: str) -> Entry:
        with self._lock:
            entry = self.engine.locate(self._queue(queue), message_id)
        self.fill([entry])
        return entry

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        """The live delivery of a message, for callers that know only its id."""
        with self._lock:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            return found.leases.get(self.engine.seq_of(found, message_id))

    def status(self, queue: str, message_id: str) -> str | None:
        with self._lock:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            seq = self.engine.seq_of(found, message_id)
            return admin.status(found, seq) if seq else None

    def search(self, queue: str, filter: Filter, limit: int = 100, budget_s: float = 1.0) -> Found:
        """In hand-out order; stops at the limit or when the time is up, and says which."""
        with self._lock:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            if filter.ids is not None:
                candidates = [
                    entry
                    for seq in (self.engine.seq_of(found, each) for each in filter.ids)
                    if seq and (entry := found.find(seq)) is not None
                ]
            else:
                # References only; the slow part, reading and comparing, is done without the lock.
                candidates = list(admin.browse(self.engine, found, filter.state))
        deadline = time.monotonic() + budget_s
        matching: list[Entry] = []
        loads = filters.needs_body(filter)
        for start in range(0, len(candidates), 256):
            part = candidates[start : start + 256]
            if loads:
                self.fill(part)
            for i, entry in enumerate(part):
                if filters.matches(self.engine, entry, filter):
                    matching.append(entry)
                    if len(matching) == limit:
                        self.fill(matching)
                        return Found(matching, start + i + 1 == len(candidates), start + i + 1)
            if time.monotonic() > deadline and start + 256 < len(candidates):
                self.fill(matching)
                return Found(matching, False, start + len(part))
        self.fill(matching)
        return Found(matching, True, len(candidates))

    def why(self, queue: str, message_id: str) -> Why:
        with self._lock:
            found = self._queue(queue)
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._after()
            return admin.why(self.engine, found, message_id, now_ms, self._waiters.count(queue))

    def timeline(self, queue: str, message_id: str) -> list[Step]:
        with self._lock:
            found = self._queue(queue)
        self.flush()
        return self._history.timeline(self.engine, found, message_id)

    # -- mending ------------------------------------------------------------------------------

    def cancel(self, queue: str, message_id: str) -> None:
        with self._lock:
            admin.cancel(self.engine, self._queue(queue), message_id, self._now())
            self._after()

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        with self._lock:
            found = self._queue(queue)
            self._room(len(draft.body))
            admin.edit(self.engine, found, message_id, self._now(), draft)
            self._after()

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        with self._lock:
            source, target = self._queue(queue), self._queue(to)
            errors = admin.move(self.engine, source, message_ids, target, self._now())
            self._after()
            return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        with self._lock:
            admin.reschedule(self.engine, self._queue(queue), message_id, due_ms, self._now())
            self._after()

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
    ) -> int:
        """Dead letters back to where they died, or to `to`. At most `rate` a second.

        `progress` is called with the number so far; returning False stops.
        """
        if to is not None:
            with self._lock:
                self._queue(to)
        if filter is None:
            filter = Filter(state="ready")
        chosen = self.search(queue, filter, limit=1 << 60, budget_s=3600.0).entries
        step = 100 if rate is None else max(1, min(100, int(rate / 10)))
        done = 0
        started = time.monotonic()
        for start in range(0, len(chosen), step):
            with self._lock:
                found = self._queue(queue)
                now_ms = self._now()
                live = [entry for entry in chosen[start : start + step] if found.find(entry.seq) is not None]
                done += admin.redrive(self.engine, found, live, to, now_ms)
                self._after()
            self.sync()
            if progress is not None and not progress(done):
                break
            if rate is not None:
                ahead_s = done / rate - (time.monotonic() - started)
                if ahead_s > 0 and start + step < len(chosen):
                    time.sleep(ahead_s)
        return done

    def replay(self, queue: str, since_ms: int | None, since_id: str | None, to: str | None = None) -> int:
        """Publish again what was published to `queue` from a point on and is no longer in it.

        What is still waiting or with a consumer is not doubled; ids stay, so a replay can be repeated.
        """
        with self._lock:
            source = self._queue(queue)
            target = source if to is None else self._queue(to)
            now_ms = self._now()
        self.sync()
        count = 0
        batch: list[Draft] = []
        for draft in self._history.published(self.engine, source, since_ms, since_id, now_ms):
            batch.append(draft)
            if len(batch) == 100:
                count += self._replay_batch(target, batch)
                batch = []
        count += self._replay_batch(target, batch)
        self.sync()
        return count

    def _replay_batch(self, target: Queue, drafts: Sequence[Draft]) -> int:
        count = 0
        with self._lock:
            for draft in drafts:
                self._room(len(draft.body))
                count += not self.engine.publish(target, draft, self._now())[1]
            self._after()
        return count

    # -- exchanges ----------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange) -> bool:
        with self._lock:
            return admin.declare_exchange(self.engine, exchange, self._now())

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        with self._lock:
            admin.delete_exchange(self.engine, name, self._now(), if_unused)

    def bind(self, binding: Binding) -> bool:
        with self._lock:
            return admin.bind(self.engine, binding, self._now())

    def unbind(self, binding: Binding) -> bool:
        with self._lock:
            return admin.unbind(self.engine, binding, self._now())

    # -- promises -----------------------------------------------------------------------------

    def sync(self) -> None:
        """Return once everything done so far is on disk; raises JournalFailed if it cannot be."""
        journal = self._journal
        if journal is not None and not self.relaxed:
            at = journal.end_at - 1
            if at >= journal.durable_at:
                journal.wait(at)
            elif journal.error is not None:
                raise journal.error
        if self._events:
            self._publish_events()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, once everything done so far is on disk or the journal has failed."""
        journal = self._journal
        if journal is None or self.relaxed:
            callback()
            return
        with self._lock:
            journal.when_durable(callback)
        journal.flush()

    def flush(self) -> None:
        if self._journal is not None and self._journal.error is None:
            self.sync()

    @property
    def journal(self) -> FileJournal | None:
        return self._journal

    @property
    def lock(self) -> threading.Lock:
        return self._lock

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
            return Health(False, str(journal.error))
        with self._lock:
            full = not journal.can_publish(256)
        return Health(not full, "disk full: publishing is refused" if full else "journal", full)

    # -- events -------------------------------------------------------------------------------

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

    def _observe(self, what: str, queue: str, seq: int, now_ms: int, detail: str) -> None:
        """Lock held: only note it; listeners may call back into the broker."""
        found = self.engine.queues.get(queue)
        entry = None if found is None or not seq else found.find(seq)
        message_id = self.engine.id_of(entry) if entry is not None else self.id_of(seq) if seq else None
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

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Everything done is on disk when this returns. Waiters get nothing, later calls `Closed`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiters = self._waiters.drain()
        for waiter in waiters:
            waiter.deliver([])
        self._ticker.stop()
        if self._housekeeper is not None:
            self._housekeeper.stop()
        if self._journal is not None:
            self._journal.close()


def _large_in(record: Record) -> int:
    """How much of a record counts against MEMORY_BYTES."""
    if record[0] in (PUBLISH, ROUTE):
        size = len(record[5])
    elif record[0] == RUN:
        size = sum(map(len, record[5]))
    else:
        return 0
    return size if size >= _LARGE else 0


def new_prefix() -> str:
    """A UUID of version 8 up to its last twelve digits, which count messages."""
    node = os.urandom(8).hex()
    return f"{node[:8]}-{node[8:12]}-8{node[12:15]}-8{node[:3]}-"
