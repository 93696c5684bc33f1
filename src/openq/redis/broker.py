"""The broker over Redis or Valkey: any number of processes on any number of machines share its queues.

A broker is composed of parts, each over one `RedisStore`. Its methods are those of the parts, bound once when
it is made, so a call costs no extra hop:

    store.py       calls of functions, queue cache, ids, time   publish.py    publish, route
    consume.py     receive, settle, wait                        queues.py     declare, delete, statistics
    inspection.py  peek, search, leases, timelines              admin.py      edit, move, redrive, replay
    exchanges.py   exchanges and bindings                       servers.py    documents, heartbeats, health
    waiters.py     threads that serve waiters and do upkeep     moves.py      moves between queues
    cursors.py, subscriptions.py, staging.py                    for the data pipeline
    key_values.py  values under keys
    events.py      events that readers can resume
    schedules.py   cron and intervals

Each event loop has a broker of its own (`on_loop`), whose parts use the connections of that loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..broker import unfinished
from ..broker.history_source import HistorySource
from ..broker.interface import Listener, LoopSession, Storage
from ..clock import Clock
from .admin import MessageAdmin
from .audit import RedisAudit
from .consume import Receiver
from .cursors import HoldState, RedisCursors
from .event_log import EventLog
from .events import RedisEvents
from .exchanges import ExchangeAdmin
from .history_source import StreamTables
from .inspection import Inspector
from .key_values import RedisKeyValues
from .loop_session import GreenletSession
from .net.url import parse
from .publish import Publisher
from .queues import QueueAdmin
from .schedules import RedisSchedules, ScheduleCache
from .servers import ServerDirectory
from .staging import RedisStaging
from .statistics import RedisStatistics
from .store import RedisStore, StoreState
from .subscriptions import RedisSubscriptions
from .upkeep import Upkeep
from .waiters import WaiterService, WaiterServiceRef

if TYPE_CHECKING:
    import asyncio


class RedisBroker:
    def __init__(
        self,
        url: str,
        *,
        profile: str | None = None,
        clock: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        runs_schedules: bool = True,
        migrating: bool = False,
    ) -> None:
        """`loop` is the loop on which methods may be called in greenlets; threads may always call them. The
        target of an interrupted migration can only be opened by one that goes on with it (`migrating`)."""
        state = StoreState(parse(url, **({} if profile is None else {"profile": profile})), clock)
        state.is_server = loop is not None
        self._base = self
        self._loops: dict[asyncio.AbstractEventLoop, RedisBroker] = {}
        self._waiters = WaiterServiceRef()
        self._holds = HoldState()
        self._schedule_cache = ScheduleCache(runs_schedules)
        self._compose(RedisStore(state, loop))
        state.on_new_queue = self.cursors.hold_new_queue
        try:
            self.store.start()
            if not migrating:
                migration = self.cluster.document(unfinished.DOCUMENT)[1]
                unfinished.refuse_unfinished(migration, self.address.with_profile())
        except BaseException:
            self.store.calls.close()
            raise
        self._start_waiters()
        state.after_fork.append(self._after_fork)
        if clock is not None:
            clock.on_advance(self.tick, self.schedules.next_ms)
        if loop is not None:
            self._waiters.service.start()

    def _compose(self, store: RedisStore) -> None:
        waiters = self._waiters
        event_log = EventLog(store)
        upkeep = self._upkeep = Upkeep(store, event_log)
        publisher = self.publisher = Publisher(store)
        receiver = self.receiver = Receiver(store, waiters, upkeep)
        queues = QueueAdmin(store, waiters.count, self._drop_orphan_subscriptions)
        inspector = self.inspect = Inspector(store, event_log, queues, waiters.count_unselective)
        self.admin = MessageAdmin(store, event_log, inspector, publisher)
        self.exchanges = ExchangeAdmin(store, publisher)
        self.kv = RedisKeyValues(store, waiters)
        self.events = RedisEvents(store, waiters)
        self.audit = RedisAudit(store)
        servers = self.cluster = ServerDirectory(store)

        self.store = store
        self.calls = store.calls
        self.registry = store.registry
        self.address = store.address
        self.clock = store.state.clock
        place = f"everything acknowledged is in Redis at {store.address}"
        self._storage = Storage("redis", place, store.registry.id_prefix, store.is_durable, waits=True)
        self.cursors = RedisCursors(store, servers, self._holds)
        self.subscriptions = RedisSubscriptions(store, receiver, inspector)
        self.staging = RedisStaging(store, queues, publisher)
        self.history = HistorySource(files=None, tables=StreamTables(store))
        self.schedules = RedisSchedules(store, publisher, self._schedule_cache, self._start_running)
        self.statistics = RedisStatistics(store, queues.stats, waiters.count, servers, self.schedules)

        # Queues.
        self.declare = queues.declare
        self.delete = queues.delete
        self.queues = queues.queues
        self.settings = queues.settings
        self.stats = queues.stats
        self.purge = queues.purge
        self.waiting = queues.waiting
        self.find_queue = store.registry.queues.get
        self.get_queue = store.view

        # Publishing.
        self.publish = publisher.publish
        self.publish_many = publisher.publish_many
        self.publish_body = publisher.publish_body
        self.publish_bodies = publisher.publish_bodies
        self.publish_soon = publisher.publish_soon

        # Receiving and settling.
        self.receive = receiver.receive
        self.receive_soon = receiver.receive_soon
        self.add_waiter = receiver.add_waiter
        self.remove_waiter = receiver.remove_waiter
        self.load = receiver.load
        self.commit_location = receiver.commit_location
        self.drop_bodies = receiver.drop_bodies
        self.ack = receiver.ack
        self.ack_one = receiver.ack_one
        self.ack_soon = receiver.ack_soon
        self.nack = receiver.nack
        self.reject = receiver.reject
        self.release = receiver.release
        self.extend = receiver.extend

        # Durability, time, servers.
        self.sync = store.sync
        self.now_ms = store.now_ms
        self.announce_url = servers.announce_url
        self.health = servers.health

    @property
    def storage(self) -> Storage:
        # A restored Redis may have another prefix.
        if self._storage.id_prefix != self.registry.id_prefix:
            self._storage = replace(self._storage, id_prefix=self.registry.id_prefix)
        return self._storage

    def attach(self, loop: asyncio.AbstractEventLoop) -> LoopSession:
        return GreenletSession(self.store)

    def _drop_orphan_subscriptions(self) -> None:
        self.subscriptions.drop_orphans()

    def _start_waiters(self) -> None:
        self._waiters.service = WaiterService(
            self.store, self.receiver, self._upkeep, self.cursors, self.kv, self.schedules
        )

    def _start_running(self) -> None:
        """A process that declares a schedule runs schedules too."""
        self._waiters.service.start()

    def _after_fork(self) -> None:
        self._start_waiters()
        self._loops.clear()

    # -- event loops ----------------------------------------------------------------------------

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> RedisBroker:
        """The same queues through connections of that loop, for greenlets on it. Never blocks."""
        base = self._base
        broker = base._loops.get(loop)
        if broker is None:
            broker = RedisBroker.__new__(RedisBroker)
            broker._base = base
            broker._loops = base._loops
            broker._waiters = base._waiters
            broker._holds = base._holds
            broker._schedule_cache = base._schedule_cache
            broker._compose(RedisStore(base.store.state, loop))
            base._loops[loop] = broker
        return broker

    def leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        broker = self._base._loops.pop(loop, None)
        if broker is not None:
            broker.calls.close()

    # -- time and events ------------------------------------------------------------------------

    def tick(self) -> None:
        """Apply everything that is due in all queues (a virtual clock calls this when it is advanced)."""
        if not self.store.state.closed:
            self._waiters.service.tick()

    @property
    def observed(self) -> bool:
        return bool(self.store.state.listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Report every change that this process makes. Returns the function that ends the subscription."""
        listeners = self.store.state.listeners
        listeners.append(listener)

        def unsubscribe() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return unsubscribe

    def announce(self) -> None:
        """Events are reported at once."""

    # -- closing --------------------------------------------------------------------------------

    def is_free(self) -> bool:
        return True

    def close(self) -> None:
        state = self.store.state
        if state.closed:
            return
        state.closed = True
        service = self._waiters.service
        service.send_stop()
        for broker in list(self._loops.values()):
            broker.calls.close()
        self._loops.clear()
        self._base.calls.close()
        service.stop()
