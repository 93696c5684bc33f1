"""The broker in this process: composes the engine, a journal, waiters, a ticker and housekeeping.

This file holds queues and the message operations. The parts do the rest: `inspect` (inspector.py), `admin`
(message_admin.py), `exchanges`, `schedules`, `kv` (key_values.py), `events` (event_log.py), `cursors`,
`subscriptions`, `staging`, `importer`, `backups`. They share `core.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from ..broker import unfinished
from ..broker.audit import AuditStore, MemoryAudit
from ..broker.cursors import LocalCursors
from ..broker.interface import Health, Listener, LoopSession, QueueStats, Receipt, Storage, Waiting
from ..broker.state_file import StateFile
from ..broker.subscriptions import check_consumer
from ..broker.waiters import Waiter
from ..clock import Clock
from ..engine import admin
from ..engine.key_values import MEMORY_BYTES
from ..engine.queue import QueueState
from ..engine.records import run_step
from ..errors import (
    HistoryUnavailable,
    JournalDamaged,
    MessageNotFoundError,
    OpenQError,
    TooManyInFlight,
    VisibilityTimeoutExpired,
    public_text,
)
from ..journal.disk import NO_RESOURCES
from ..journal.file_journal import Journal
from ..model import Delivery, DeliveryOptions, Draft, MessageFilter, Properties, QueueSettings
from .audit_file import FileAudit
from .backups import LocalBackups, Pause
from .commits import CommitNotifier, MemorySession
from .core import LARGE_BODY, BrokerCore
from .event_log import LocalEvents
from .exchanges import LocalExchanges
from .history_source import history_source
from .housekeeping import Housekeeper
from .importer import MessageImporter
from .inspector import Inspector
from .key_values import LocalKeyValues
from .message_admin import MessageAdmin
from .schedules import LocalSchedules
from .series_pages import FilePages, MemoryPages
from .statistics import LocalStatistics
from .subscriptions import LocalSubscriptions

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .staging import LocalStaging

log = logging.getLogger("openq")


class LocalBroker:
    cluster = None  # there is only this server
    _staging: LocalStaging | None = None

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        id_prefix: str | None = None,
        segment_bytes: int = 64 << 20,
        history_bytes: int = 1 << 30,
        max_kv_bytes: int = MEMORY_BYTES,
        relaxed: bool = False,
        journal: Journal | None = None,
        runs_schedules: bool = True,
        migrating: bool = False,
    ) -> None:
        """In memory without a `path`. `journal` is for tests that bring their own disk.

        A process that only looks at a directory does not run its schedules. The target of an interrupted
        migration can only be opened by one that goes on with it (`migrating`).
        """
        if journal is None and path is not None:
            journal = Journal(path, segment_bytes=segment_bytes)
        try:
            core = BrokerCore(journal, clock=clock, seed=seed, id_prefix=id_prefix, relaxed=relaxed)
            if journal is not None and not migrating:
                state = unfinished.read_state(journal.path, journal.io)
                unfinished.refuse_unfinished(state, journal.path)
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        self._core = core
        self._ended = False
        self.observed = (
            False  # an event listener is subscribed: `sync` after each change, also without a disk
        )
        core.events.on_observed = self._set_observed
        # Parts and values of the core that callers use. They never change.
        self.engine = self._engine = core.engine
        self.lock: Lock = core.lock
        self._lock = core.lock
        self._guard = core.guard
        self.journal = journal
        self.clock = core.clock
        self.relaxed = relaxed
        self.storage = _storage(journal, core.engine.id_prefix, is_durable=not relaxed)
        self.audit: AuditStore = MemoryAudit() if journal is None else FileAudit(journal.path)
        self.unreadable = core.unreadable
        self.now_ms = core.now_ms
        self.sync = core.sync
        self.flush = core.flush
        self.tick = core.tick
        # Look up a queue by name without the lock, at the cost of a dictionary lookup. Read only.
        self.find_queue: Callable[[str], QueueState | None] = core.engine.queues.get
        self.inspect = Inspector(core)
        self.exchanges = LocalExchanges(core)
        self.importer = MessageImporter(core)
        self.history = history_source(journal)
        core.engine.key_values.max_bytes = max_kv_bytes
        self.kv = LocalKeyValues(core)
        self.events = LocalEvents(core)
        self.schedules = LocalSchedules(core, runs=runs_schedules)
        self.statistics = LocalStatistics(
            core,
            MemoryPages() if journal is None else FilePages(journal.path),
            self.schedules,
            is_relaxed=relaxed,
        )
        data_path, io = (None, None) if journal is None else (journal.path, journal.io)
        self.cursors = LocalCursors(StateFile(data_path, "cursors.json", io), journal, self.now_ms)
        self.subscriptions = LocalSubscriptions(
            core,
            StateFile(data_path, "subscriptions.json", io),
            StateFile(data_path, "retired.json", io),
        )
        self.housekeeper: Housekeeper | None = None
        if journal is not None:
            self.housekeeper = Housekeeper(core, journal, self.cursors, history_bytes)
            core.on_segment_full = self.housekeeper.wake  # type: ignore[method-assign]
            core.ticker.start()
            self.housekeeper.start()
            if relaxed:
                log.warning(
                    "relaxed: answers before the sync; up to 50 ms of them are at risk in a power cut"
                )
        backups = LocalBackups(core, journal, self.housekeeper, self.history.files, self._pauses)
        self.admin = MessageAdmin(core, self.inspect, backups)

    def _set_observed(self, is_observed: bool) -> None:
        self.observed = is_observed

    def _pauses(self) -> list[Pause]:
        """What has files beside the journal that must agree with it."""
        staging = [] if self._staging is None else [self._staging.paused]
        return [*staging, self.subscriptions.paused]

    @property
    def staging(self) -> LocalStaging:
        """Staged batches. Created on first use: few programs need it."""
        if self._staging is None:
            from .staging import LocalStaging

            with self._lock:
                self._staging = self._staging or LocalStaging(self._core)
        return self._staging

    # -- queues -----------------------------------------------------------------------------------

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        with self._lock, self._guard:
            self._core.check_open()
            now_ms = self._core.now_ms()
            found = self._engine.queues.get(queue)
            if found is None or (change and found.settings != settings):
                self._core.require_settings_room(settings.notes)
            if change and found is not None:
                made = self._engine.change_queue(queue, settings, now_ms)
            else:
                made = self._engine.create_queue(queue, settings, now_ms)
            self._core.end_change()
            return made.settings

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        with self._lock, self._guard:
            number = self._core.queue(queue).number
            count = self._engine.delete_queue(
                queue, self._core.now_ms(), if_empty=if_empty, if_unused=if_unused
            )
            self._core.keep_deleted_name(number, queue)
            self._core.end_change()
        self.subscriptions.drop_orphans()
        return count

    def queues(self) -> list[str]:
        with self._lock, self._guard:
            return list(self._engine.queues)

    def settings(self, queue: str) -> QueueSettings:
        with self._lock, self._guard:
            return self._core.queue(queue).settings

    def get_queue(self, queue: str) -> QueueState:
        """A queue by name, without the lock; raises QueueNotFound. Read only."""
        return self._core.queue(queue)

    def stats(self, queue: str) -> QueueStats:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            now_ms = self._core.advance()
            oldest_ms = found.ready.oldest_ms()
            limited = found.limited_order
            return QueueStats(
                queue,
                found.ready_count,
                len(found.delayed),
                len(found.leases),
                found.waiting_bytes,
                None if oldest_ms is None else now_ms - oldest_ms,
                self._core.waiters.count(queue),
                found.counters.as_dict(),
                0 if limited is None else limited.limited_count(now_ms),
            )

    def purge(self, queue: str, waiting_only: bool = False) -> int:
        """Remove all messages. `waiting_only` keeps those in flight; delayed ones are removed too."""
        with self._lock, self._guard:
            count = admin.purge(self._engine, self._core.queue(queue), self._core.now_ms(), waiting_only)
            self._core.end_change()
            return count

    def waiting(self, queue: str) -> Waiting:
        """Without the lock: an estimate is enough for callers."""
        found = self.find_queue(queue)
        if found is None:
            return Waiting(0, 0, 0)
        return Waiting(found.ready_count, found.waiting_count, found.waiting_bytes)

    # -- publishing -------------------------------------------------------------------------------

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """The fast path for one plain message. Its sequence, or 0: the caller must use `publish_many`."""
        core = self._core
        with self._lock:
            try:
                found = self._engine.queues.get(queue)
                if (
                    found is None
                    or core.is_closed
                    or not found.is_plain
                    or (options is not None and not options.is_plain)
                ):
                    core.queue(queue)
                    return 0
                size = len(body)
                if core.journal is not None:
                    core.require_room(size)
                elif size >= LARGE_BODY:
                    core.require_body_room(size)
                engine = self._engine
                # Functions in attributes are called faster as local variables, here and below.
                now_ms, publish_plain = core.now_ms, engine.publish_plain
                seq = publish_plain(found, body, encoding, now_ms(), properties, options)
                if engine.woken:
                    core.serve_waiters()
                return seq
            except BaseException as error:  # used instead of the guard: it costs nothing without an error
                core.on_interrupt(type(error))
                raise

    def publish(self, queue: str, draft: Draft) -> str:
        """Publish one message. Returns its id."""
        core = self._core
        with self._lock, self._guard:
            found = core.queue(queue)
            core.require_body_room(len(draft.body))
            message_id, _ = self._engine.publish(found, draft, core.now_ms())
            core.end_change()
            return message_id

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        """For each draft its id, and whether that is the id of an earlier message, or its error.

        A refused draft does not stop the others.
        """
        core = self._core
        results: list[tuple[str, bool] | OpenQError] = []
        with self._lock, self._guard:
            found = core.queue(queue)
            core.require_room(sum(len(draft.body) for draft in drafts))
            now_ms = core.now_ms()
            for draft in drafts:
                if core.journal is None:
                    core.require_body_room(len(draft.body))
                try:
                    results.append(self._engine.publish(found, draft, now_ms))
                except OpenQError as error:
                    results.append(error)
            core.end_change()
        return results

    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | Sequence[Properties] | None = None,
        options: DeliveryOptions | None = None,
    ) -> range | None:
        """Publish many plain messages. Returns their sequences, or None: the caller must use `publish_many`.

        `properties` are shared by all bodies, which then are one record; or a list with those of each.
        """
        if not bodies:
            return range(0)
        core = self._core
        with self._lock, self._guard:
            found = core.queue(queue)
            if not found.is_plain or (options is not None and not options.is_plain):
                return None
            total = sum(map(len, bodies))
            engine = self._engine
            if isinstance(properties, Properties) or properties is None:
                core.require_room(total + (22 + run_step(properties, options)) * len(bodies))
                if core.journal is None:
                    core.require_body_room(total)
                seq = engine.publish_run(found, bodies, encoding, core.now_ms(), properties, options)
            else:
                core.require_room(
                    total + sum([256 + len(each.amqp_properties or b"") for each in properties])
                )
                if core.journal is None:
                    core.require_body_room(total)
                now_ms = core.now_ms()
                seq = engine.next_seq
                for body, each in zip(bodies, properties, strict=True):
                    engine.publish_plain(found, body, encoding, now_ms, each, options)
            core.end_change()
            return range(seq, seq + len(bodies))

    # -- receiving and settling -------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
        max_in_flight: int | None = None,
    ) -> list[Delivery]:
        if consumer is not None:
            check_consumer(consumer)
        core = self._core
        if wanted is not None and wanted.attributes:
            core.read_ahead(queue, wanted, limit)
        with self._lock:
            try:
                engine = self._engine
                found = engine.queues.get(queue)
                if found is None or core.is_closed:
                    found = core.queue(queue)
                if max_in_flight is not None and len(found.leases) >= max_in_flight:
                    raise TooManyInFlight(queue, max_in_flight)
                now_ms, take = core.now_ms, engine.receive
                deliveries = take(found, limit, now_ms(), lease_ms, consumer, wanted)
                if engine.woken or engine.timers.next_ms < core.ticker.at_ms:
                    core.serve_waiters()
                return deliveries
            except BaseException as error:  # used instead of the guard: it costs nothing without an error
                core.on_interrupt(type(error))
                raise

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Returns deliveries at once, or None: then the waiter is queued and served later."""
        if waiter.consumer is not None:
            check_consumer(waiter.consumer)
        self._core.ticker.start()
        if waiter.wanted is not None and waiter.wanted.attributes:
            self._core.read_ahead(queue, waiter.wanted, waiter.limit)
        with self._lock, self._guard:
            found = self._core.queue(queue)
            deliveries = self._engine.receive(
                found, waiter.limit, self._core.now_ms(), waiter.lease_ms, waiter.consumer, waiter.wanted
            )
            if not deliveries:
                self._core.waiters.add(queue, waiter)
                found.watched = True
            self._core.end_change()
            return deliveries or None

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        """False: it was served in the meantime."""
        with self._lock, self._guard:
            left = self._core.waiters.remove(queue, waiter)
            found = self._engine.queues.get(queue)
            if found is not None:
                found.watched = self._core.waiters.count(queue) > 0
            return left

    def load(self, deliveries: list[Delivery], queue: str = "") -> list[Delivery]:
        """Wait until the publishes of these are durable, and read bodies that are only on disk.

        Returns the deliveries that a client may see: the same list, without messages whose body cannot be
        read.
        """
        core = self._core
        journal = core.journal
        if journal is None or not deliveries:
            return deliveries
        location = self.commit_location(deliveries)
        if location is not None:
            journal.wait(location)
        try:
            core.load_bodies([delivery.entry for delivery in deliveries])
        except (JournalDamaged, HistoryUnavailable):
            return core.unreadable.load_each(deliveries)
        return deliveries

    def commit_location(self, deliveries: Sequence[Delivery]) -> int | None:
        """The journal must be durable up to here before a client sees these deliveries; None: it is.

        That covers their publishes, and their leases where an earlier delivery may be unrecorded.
        """
        journal = self.journal
        if journal is None or self.relaxed or not deliveries:
            return None
        location = max([delivery.entry.location for delivery in deliveries])
        guarded = self._engine.guarded
        if guarded:
            with self._lock:
                if self._engine.guard_location < journal.durable_location:
                    guarded.clear()
                location = max(location, *[guarded.get(delivery.number, 0) for delivery in deliveries])
        return None if location < journal.durable_location else location

    def drop_bodies(self, deliveries: Sequence[Delivery]) -> None:
        """Free the memory of bodies that are on disk: a client may hold these deliveries for long.

        The entries are replaced, not changed: another thread may be reading one of them.
        """
        if self.journal is None or self.relaxed:
            return
        with self._lock:
            for delivery in deliveries:
                delivery.entry = delivery.entry.without_body()

    def ack(self, queue: str, receipts: Sequence[Receipt], *, late: bool = False) -> list[OpenQError | None]:
        engine = self._engine
        with self._lock, self._guard:
            found = self._core.queue(queue)
            now_ms = self._core.now_ms()
            results = engine.ack_many(found, receipts, now_ms)
            if late and any(results):
                for at, receipt in enumerate(receipts):
                    if results[at] is not None and engine.ack_late(found, *receipt, now_ms):
                        results[at] = None
            self._core.end_change()
            return results

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        """`ack` of one receipt; raises its error."""
        core = self._core
        with self._lock:
            try:
                engine = self._engine
                found = engine.queues.get(queue)
                if found is None or core.is_closed:
                    found = core.queue(queue)
                now_ms, ack = core.now_ms, engine.ack
                ack(found, seq, number, now_ms())
                if engine.woken:
                    core.serve_waiters()
            except BaseException as error:  # used instead of the guard: it costs nothing without an error
                core.on_interrupt(type(error))
                raise

    def nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            results = self._engine.nack_many(found, receipts, self._core.now_ms(), delay_ms, reason)
            self._core.end_change()
            return results

    def reject(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None
    ) -> list[str | OpenQError]:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            results = self._engine.reject_many(found, receipts, self._core.now_ms(), reason)
            self._core.end_change()
            return results

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        """Return deliveries to their places, uncounted. Receipts whose lease has ended are skipped."""
        with self._lock, self._guard:
            found = self._core.queue(queue)
            done = 0
            for seq, number in receipts:
                try:
                    self._engine.release(found, seq, number, self._core.now_ms())
                except (MessageNotFoundError, VisibilityTimeoutExpired):
                    continue
                done += 1
            self._core.end_change()
            return done

    def extend(
        self, queue: str, receipts: Sequence[Receipt], lease_ms: int, *, late: bool = False
    ) -> list[int | OpenQError]:
        results: list[int | OpenQError] = []
        with self._lock, self._guard:
            found = self._core.queue(queue)
            now_ms = self._core.now_ms()
            for receipt in receipts:
                try:
                    results.append(self._engine.extend(found, *receipt, now_ms, lease_ms))
                except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                    until_ms = self._engine.extend_late(found, *receipt, now_ms, lease_ms) if late else None
                    results.append(error if until_ms is None else until_ms)
            self._core.end_change()
            return results

    # -- durability, health, closing --------------------------------------------------------------

    def attach(self, loop: AbstractEventLoop) -> LoopSession:
        return CommitNotifier(self, loop) if self.storage.is_durable else MemorySession()

    def announce(self) -> None:
        """Hand pending events to listeners, without waiting for the disk."""
        if self._core.events.pending:
            self._core.events.publish()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Report every change to `listener`: published, received, acked, expired, requeued, and so on.

        It is called without the lock, in order, by the thread that made the change. Returns a function that
        unsubscribes.
        """
        self._core.ticker.start()
        return self._core.events.subscribe(listener)

    def is_free(self) -> bool:
        """Whether no change is in progress. Never waits: the garbage collector calls it, from anywhere."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    def health(self) -> Health:
        journal = self.journal
        if self._core.is_closed:
            return Health(False, "closed")
        if journal is None:
            return Health(True, "in memory")
        if journal.error is not None:
            return Health(False, public_text(journal.error))
        with self._lock:
            refuses_all = not journal.can_publish(256)
            shortage = journal.shortage
        # No new segment can be created. A small message may still fit into the last one; a large one does
        # not.
        full = refuses_all or shortage is not None
        detail = "journal"
        if full:
            what = "publishing is" if refuses_all else "large messages are"
            detail = f"disk full: {what} refused"
            if shortage is not None and shortage.errno in NO_RESOURCES:
                detail = f"{what} refused: {shortage.strerror}"
        return Health(not full, detail, full, self._core.damage.reasons())

    def announce_url(self, url: str) -> None:
        """The address of this server, for processes that find the directory in use."""
        if self.journal is not None:
            self.journal.announce(url)

    def close(self) -> None:
        """All changes are on disk when this returns. Waiters get nothing, and later calls raise `Closed`."""
        core = self._core
        with self._lock:
            if self._ended:
                return
            core.is_closed = self._ended = True
            waiters = core.waiters.drain()
            self.kv.close()
        for waiter in waiters:
            waiter.deliver([])
        core.ticker.stop()
        if self.housekeeper is not None:
            self.housekeeper.stop()
        core.damage.save(at_once=True)
        self.statistics.pages.close()
        self.admin.backups.close()
        if self.journal is not None:
            self.journal.close()


def _storage(journal: Journal | None, id_prefix: str, *, is_durable: bool) -> Storage:
    if journal is None:
        return Storage("memory", "in memory: nothing is kept", id_prefix, is_durable=False)
    place = f"everything acknowledged is in {journal.path}"
    return Storage("journal", place, id_prefix, is_durable)
