"""The Broker over Redis or Valkey: any number of processes on any number of machines, the same queues."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable
from typing import Any

from ..broker.waiters import Waiter
from ..clock import Clock, VirtualClock
from ..errors import FunctionError, QueueNotFound, StoreError
from ..local.foundation import Listener
from ..model import NO_DEADLINE, Delivery
from .admin import Administration
from .call_batcher import CallBatcher
from .core import StoreState
from .cursors import HoldState, RedisCursors
from .event_log import EventLog
from .functions import function_name
from .net import greenlets
from .net.calls import Calls
from .net.url import Host, parse
from .publish import SMALL_BYTES
from .records import pack_record
from .registry import CachedQueue, Registry
from .staging import RedisStaging
from .subscriptions import RedisSubscriptions
from .waiters import WATCH_MS, WaiterService


class WaiterServiceRef:
    """Where the views of one broker find its attendant: a fork needs another one."""

    def __init__(self, waiters: WaiterService) -> None:
        self.service = waiters


class RedisBroker(Administration):
    def __init__(
        self,
        url: str,
        *,
        profile: str | None = None,
        clock: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is where verbs may be called in `bridge` greenlets; threads may call them anyway."""
        address = parse(url, **({} if profile is None else {"profile": profile}))
        super().__init__(StoreState(address, clock), loop)
        if loop is not None:
            self.batcher = CallBatcher(loop)
            self.is_server = True
        self._views: dict[asyncio.AbstractEventLoop, RedisBroker] = {}
        self._base = self
        self._holds = HoldState()
        self.is_virtual = isinstance(clock, VirtualClock)
        try:
            self._start()
        except BaseException:
            self.calls.close()
            raise
        self._waiters_ref = WaiterServiceRef(WaiterService(self))
        self._shared.after_fork.append(self._after_fork)
        if clock is not None:
            clock.on_advance(self.tick)
        if loop is not None:
            self._waiters.start()

    @property
    def _waiters(self) -> WaiterService:
        return self._waiters_ref.service

    def _after_fork(self) -> None:
        self._waiters_ref.service = WaiterService(self)
        self._views.clear()

    @property
    def staging(self) -> RedisStaging:
        """Batches that come in parts."""
        if self._staging is None or self._staging.broker is not self:  # a view for a loop is a copy
            self._staging = RedisStaging(self)
        return self._staging

    _staging: RedisStaging | None = None

    @property
    def cursors(self) -> RedisCursors:
        return RedisCursors(self, self._holds)

    @property
    def subscriptions(self) -> RedisSubscriptions:
        return RedisSubscriptions(self)

    def _drop_orphan_subscriptions(self) -> None:
        self.subscriptions.drop_orphans()

    def _hold_for_cursors(self, view: CachedQueue) -> None:
        self.cursors.hold_new_queue(view)

    @property
    def registry(self) -> Registry:
        return self._registry

    # -- views for loops ------------------------------------------------------------------------

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> RedisBroker:
        """The same broker, for greenlets on that loop. Never waits."""
        base = self._base
        view = base._views.get(loop)
        if view is None:
            view = copy.copy(base)
            view.calls = Calls(self._shared.address, loop=loop)
            view.batcher = CallBatcher(loop)
            base._views[loop] = view
        return view

    def leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        view = self._base._views.pop(loop, None)
        if view is not None:
            view.calls.close()

    # -- for coroutines -------------------------------------------------------------------------
    # The commonest verbs without a greenlet for each. None: it must go the long way.

    def _fast_path_view(self, queue: str) -> CachedQueue | None:
        shared = self._shared
        if self.batcher is None or shared.closed or shared.listeners:
            return None
        return shared.registry.queues.get(queue)

    def publish_soon(self, queue: str, body: bytes, encoding: int) -> Awaitable[int] | None:
        view = self._fast_path_view(queue)
        if view is None or not view.is_plain or self.batcher is None:
            return None
        record = pack_record(body, encoding, None, b"", False)
        if len(record) > SMALL_BYTES:
            return None
        return self._published(view, self.batcher.ask(self._publish_groups, view, (record, b"")))

    async def _published(self, view: CachedQueue, answers: Awaitable[list[Any]]) -> int:
        answer = (await answers)[0]
        return answer if isinstance(answer, int) else self._seq_of_answer(view, answer)

    def receive_soon(self, queue: str, limit: int, consumer: str | None) -> Awaitable[list[Delivery]] | None:
        view = self._fast_path_view(queue)
        if view is None or self.batcher is None:
            return None

        def lost(deliveries: list[Delivery]) -> None:
            if deliveries:
                receipts = [(each.entry.seq, each.number) for each in deliveries]
                greenlets.spawn(self.release, queue, receipts)

        future = self.batcher.ask(self._receive_groups, view, (limit, "", consumer or "", ""), lost)
        return self._received(future, lost)

    async def _received(
        self, future: asyncio.Future[list[Delivery]], lost: Callable[[list[Delivery]], None]
    ) -> list[Delivery]:
        try:
            return await future
        except asyncio.CancelledError:
            # They may have come in the very moment in which nobody wanted them any more.
            if future.done() and not future.cancelled() and future.exception() is None:
                lost(future.result())
            raise

    def ack_soon(self, queue: str, seq: int, number: int) -> Awaitable[None] | None:
        view = self._fast_path_view(queue)
        if view is None or self.batcher is None:
            return None
        return self._acked(view, seq, self.batcher.ask(self._ack_groups, view, (seq, number)))

    async def _acked(self, view: CachedQueue, seq: int, answers: Awaitable[list[Any]]) -> None:
        answer = (await answers)[0]
        if answer != 1:
            raise self._settle_error(view, seq, answer)

    # -- waiting --------------------------------------------------------------------------------

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Messages at once, or None: then the waiter stands in line and is served later."""
        view = self._view(queue)
        if not waiter.notify_only:
            deliveries = self._receive_for(queue, waiter)
            if deliveries:
                return deliveries
        waiters = self._waiters
        waiters.start()
        waiters.add(queue, waiter)
        try:
            # From now on the queue tells; what came in between is seen here.
            ready = self._watch_queue(view)
        except BaseException:
            waiters.remove_waiter(queue, waiter)
            raise
        if ready and waiters.remove_waiter(queue, waiter):
            deliveries = [] if waiter.notify_only else self._receive_for(queue, waiter)
            if deliveries or waiter.notify_only:
                return deliveries
            waiters.add(queue, waiter)
        return None

    def stand_by(self, queue: str, waiter: Waiter) -> int:
        """Put one in line who only wants to be told. How many were ready before anybody could tell."""
        view = self._view(queue)
        waiters = self._waiters
        waiters.start()
        waiters.add(queue, waiter)
        try:
            return self._watch_queue(view)
        except BaseException:
            waiters.remove_waiter(queue, waiter)
            raise

    def _watch_queue(self, view: CachedQueue) -> int:
        next_ms, ready = self.tick_queue(view, WATCH_MS)
        self._waiters.add_deadline(view, next_ms)
        return ready

    def _receive_for(self, queue: str, waiter: Waiter) -> list[Delivery]:
        return self.receive(queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        return self._waiters.remove_waiter(queue, waiter)

    def _waiter_count(self, queue: str) -> int:
        return self._waiters.count(queue)

    def _after_delivery(self, view: CachedQueue, deliveries: list[Delivery], lease_ms: int | None) -> None:
        if lease_ms == NO_DEADLINE:
            self._track_bound_lease(view)
        elif self.batcher is not None:
            self._waiters.add_deadline(view, deliveries[0].until_ms)

    def _track_bound_lease(self, view: CachedQueue) -> None:
        self._waiters.add_bound(view)

    def any_host(self) -> Host | None:
        """Of a server to listen to: messages on channels reach all of them."""
        return self.calls.any_host()

    # -- for the attendant ----------------------------------------------------------------------

    def view_of_key(self, key: bytes) -> CachedQueue | None:
        number = key[key.find(b".", key.find(b"{")) + 1 : key.find(b"}")]
        return self._registry.numbered.get(int(number)) if number.isdigit() else None

    def tick_queue(self, view: CachedQueue, watch_ms: int | None = None) -> tuple[int, int]:
        """What time brought about in a queue. When it brings the next, and how many are ready."""
        args = () if watch_ms is None else (watch_ms,)
        outbox, _, (next_ms, ready, version) = self._fcall_queue(view, "tick", *args)
        if outbox:
            self._try_drain_outbox(view)
        if version < view.version:
            self._configure(view)  # who changed the settings died before the queue heard of it
        if self._shared.listeners:
            for seq in EventLog(self).expired_leases(view):
                self._emit("expired", view.name, [self._delivered_id(seq)])
        return int(next_ms), int(ready)

    def keep_history(self, views: list[CachedQueue], from_ms: int, until_ms: int) -> list[CachedQueue]:
        """For readers who have not come further. Those that dropped something which nobody holds."""
        asked = (self._now_argument(), from_ms, until_ms)
        name = function_name("keep_history")
        commands = [(view.key, (b"FCALL", name, 1, view.key, *asked)) for view in views]
        dropped = []
        for view, reply in zip(views, self.calls.many(commands, idempotent=True), strict=True):
            try:
                if isinstance(reply, StoreError):
                    # A node without the functions, a queue that is gone or was lost: the long way tells.
                    reply = self._fcall_queue(view, "keep_history", *asked[1:])
            except QueueNotFound:
                continue
            if reply[2]:
                dropped.append(view)
        return dropped

    def redis_now(self) -> int:
        return self._redis_now()

    # -- for subscriptions ----------------------------------------------------------------------

    def view(self, queue: str) -> CachedQueue:
        return self._view(queue)

    def token(self) -> str:
        return self._token()

    def tick_at(self, view: CachedQueue, at_ms: int) -> None:
        """When a lease ends that nobody may ask for."""
        if self.batcher is not None:
            self._waiters.add_deadline(view, at_ms)

    def ask_this_queue(self, view: CachedQueue, name: str, *args: Any) -> Any:
        return self.ask_and_drain(view, name, *args)[0]

    def ask_and_drain(self, view: CachedQueue, name: str, *args: Any) -> tuple[Any, bool]:
        """The answer of a function for this very queue, not for one of its name made later; and whether some
        of its messages went elsewhere by that."""
        for _ in range(2):
            try:
                reply = self._fcall(view.key, name, *args)
                outbox, _, answer = reply if len(reply) == 3 else self._report_damage(view, reply)
                return answer, bool(outbox and self._try_drain_outbox(view))
            except FunctionError as error:
                if error.code == "GONE":
                    self._drop_deleted(view)
                elif error.code != "NOQUEUE":
                    raise
                elif self._recreate(view) is view:
                    continue
                break
        raise QueueNotFound(view.name)

    def renew_bound_leases(self, view: CachedQueue) -> bool:
        return bool(self._ask_queue(view, "hold", self._shared.client, self._shared.heartbeat_ms))

    def may_sweep(self, lock_ms: int) -> bool:
        """Whether it is this process that looks through all queues just now."""
        key = f"{self._registry.prefix}:{{meta}}:sweeper".encode()
        client = self._shared.client
        if self.calls.call(key, "SET", key, client, "NX", "PX", lock_ms, idempotent=True) is not None:
            return True
        if self.calls.call(key, "GET", key, idempotent=True) != client.encode():
            return False
        self.calls.call(key, "PEXPIRE", key, lock_ms, idempotent=True)
        return True

    def mark_registry_stale(self) -> None:
        self._is_registry_stale = True

    def refresh_if_stale(self) -> None:
        if self._is_registry_stale:
            self._is_registry_stale = False
            self._registry.refresh(self.calls)

    _is_registry_stale = False

    def tick(self) -> None:
        """Bring everything up to the present by hand (a virtual clock does it on every advance)."""
        if self._shared.closed:
            return
        self._registry.refresh(self.calls)
        self._waiters.renew_leases()
        for _ in range(3):  # dead letters may be due where they arrive
            for view in list(self._registry.queues.values()):
                with contextlib.suppress(QueueNotFound):
                    _, ready = self.tick_queue(view)
                    if ready:
                        self._waiters.serve(view.name)

    # -- events ---------------------------------------------------------------------------------

    @property
    def observed(self) -> bool:
        return bool(self._shared.listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell of every change that this process makes."""
        self._shared.listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._shared.listeners:
                self._shared.listeners.remove(listener)

        return unsubscribe

    def announce(self) -> None:
        """Listeners have been told already."""

    # -- the end --------------------------------------------------------------------------------

    def is_free(self) -> bool:
        return True

    def close(self) -> None:
        if self._shared.closed:
            return
        self._shared.closed = True
        self._base._waiters.send_stop()
        for view in list(self._base._views.values()):
            view.calls.close()
        self._base._views.clear()
        self._base.calls.close()
        self._base._waiters.stop()
