"""The Broker over Redis or Valkey: any number of processes on any number of machines, the same queues."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable
from typing import Any

from ..broker.foundation import Listener
from ..broker.waiters import Waiter
from ..clock import Clock, VirtualClock
from ..errors import FunctionError, QueueNotFound, StoreError
from ..model import NO_DEADLINE, Delivery
from . import bridge
from .batches import Batches
from .calls import Calls
from .cursors import Holds, StreamCursors
from .foundation import Shared
from .history import Past
from .library import function
from .operations import Operations
from .records import pack_record
from .registry import QueueView, Registry
from .staging import RedisStaging
from .subscriptions import StreamSubscriptions
from .traffic import SMALL_BYTES
from .url import Host, parse
from .waiting import WATCH_MS, Attendant


class Desk:
    """Where the views of one broker find its attendant: a fork needs another one."""

    def __init__(self, attendant: Attendant) -> None:
        self.attendant = attendant


class RedisBroker(Operations):
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
        super().__init__(Shared(address, clock), loop)
        if loop is not None:
            self.batches = Batches(loop)
            self.is_server = True
        self._views: dict[asyncio.AbstractEventLoop, RedisBroker] = {}
        self._base = self
        self._holds = Holds()
        self.is_virtual = isinstance(clock, VirtualClock)
        try:
            self._start()
        except BaseException:
            self.calls.close()
            raise
        self._desk = Desk(Attendant(self))
        self._shared.forked.append(self._after_fork)
        if clock is not None:
            clock.on_advance(self.tick)
        if loop is not None:
            self._attendant.start()

    @property
    def _attendant(self) -> Attendant:
        return self._desk.attendant

    def _after_fork(self) -> None:
        self._desk.attendant = Attendant(self)
        self._views.clear()

    @property
    def staging(self) -> RedisStaging:
        """Batches that come in parts."""
        if self._staging is None or self._staging.broker is not self:  # a view for a loop is a copy
            self._staging = RedisStaging(self)
        return self._staging

    _staging: RedisStaging | None = None

    @property
    def cursors(self) -> StreamCursors:
        return StreamCursors(self, self._holds)

    @property
    def subscriptions(self) -> StreamSubscriptions:
        return StreamSubscriptions(self)

    def _drop_readers(self) -> None:
        self.subscriptions.drop_orphans()

    def _keep_for_readers(self, view: QueueView) -> None:
        self.cursors.keep_new(view)

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
            view.batches = Batches(loop)
            base._views[loop] = view
        return view

    def leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        view = self._base._views.pop(loop, None)
        if view is not None:
            view.calls.close()

    # -- for coroutines -------------------------------------------------------------------------
    # The commonest verbs without a greenlet for each. None: it must go the long way.

    def _plain_view(self, queue: str) -> QueueView | None:
        shared = self._shared
        if self.batches is None or shared.closed or shared.listeners:
            return None
        return shared.registry.queues.get(queue)

    def publish_soon(self, queue: str, body: bytes, form: int) -> Awaitable[int] | None:
        view = self._plain_view(queue)
        if view is None or not view.simple or self.batches is None:
            return None
        record = pack_record(body, form, None, b"", False)
        if len(record) > SMALL_BYTES:
            return None
        return self._published(view, self.batches.ask(self._publish_groups, view, (record, b"")))

    async def _published(self, view: QueueView, answers: Awaitable[list[Any]]) -> int:
        answer = (await answers)[0]
        return answer if isinstance(answer, int) else self._seq_of_answer(view, answer)

    def receive_soon(self, queue: str, limit: int, consumer: str | None) -> Awaitable[list[Delivery]] | None:
        view = self._plain_view(queue)
        if view is None or self.batches is None:
            return None

        def lost(deliveries: list[Delivery]) -> None:
            if deliveries:
                receipts = [(each.entry.seq, each.number) for each in deliveries]
                bridge.spawn(self.release, queue, receipts)

        future = self.batches.ask(self._receive_groups, view, (limit, "", consumer or "", ""), lost)
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
        view = self._plain_view(queue)
        if view is None or self.batches is None:
            return None
        return self._acked(view, seq, self.batches.ask(self._ack_groups, view, (seq, number)))

    async def _acked(self, view: QueueView, seq: int, answers: Awaitable[list[Any]]) -> None:
        answer = (await answers)[0]
        if answer != 1:
            raise self._lost(view, seq, answer)

    # -- waiting --------------------------------------------------------------------------------

    def attend(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Messages at once, or None: then the waiter stands in line and is served later."""
        view = self._view(queue)
        if not waiter.only_told:
            deliveries = self._receive_for(queue, waiter)
            if deliveries:
                return deliveries
        attendant = self._attendant
        attendant.start()
        attendant.add(queue, waiter)
        try:
            # From now on the queue tells; what came in between is seen here.
            ready = self._watch(view)
        except BaseException:
            attendant.leave(queue, waiter)
            raise
        if ready and attendant.leave(queue, waiter):
            deliveries = [] if waiter.only_told else self._receive_for(queue, waiter)
            if deliveries or waiter.only_told:
                return deliveries
            attendant.add(queue, waiter)
        return None

    def stand_by(self, queue: str, waiter: Waiter) -> int:
        """Put one in line who only wants to be told. How many were ready before anybody could tell."""
        view = self._view(queue)
        attendant = self._attendant
        attendant.start()
        attendant.add(queue, waiter)
        try:
            return self._watch(view)
        except BaseException:
            attendant.leave(queue, waiter)
            raise

    def _watch(self, view: QueueView) -> int:
        next_ms, ready = self.tick_queue(view, WATCH_MS)
        self._attendant.note_deadline(view, next_ms)
        return ready

    def _receive_for(self, queue: str, waiter: Waiter) -> list[Delivery]:
        return self.receive(queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types)

    def leave(self, queue: str, waiter: Waiter) -> bool:
        return self._attendant.leave(queue, waiter)

    def _waiter_count(self, queue: str) -> int:
        return self._attendant.count(queue)

    def _lent(self, view: QueueView, deliveries: list[Delivery], lease_ms: int | None) -> None:
        if lease_ms == NO_DEADLINE:
            self._bind(view)
        elif self.batches is not None:
            self._attendant.note_deadline(view, deliveries[0].until_ms)

    def _bind(self, view: QueueView) -> None:
        self._attendant.note_bound(view)

    def any_host(self) -> Host | None:
        """Of a server to listen to: messages on channels reach all of them."""
        return self.calls.any_host()

    # -- for the attendant ----------------------------------------------------------------------

    def view_of_key(self, key: bytes) -> QueueView | None:
        number = key[key.find(b".", key.find(b"{")) + 1 : key.find(b"}")]
        return self._registry.numbered.get(int(number)) if number.isdigit() else None

    def tick_queue(self, view: QueueView, watch_ms: int | None = None) -> tuple[int, int]:
        """What time brought about in a queue. When it brings the next, and how many are ready."""
        args = () if watch_ms is None else (watch_ms,)
        limbo, _, (next_ms, ready, version) = self._about_queue(view, "tick", *args)
        if limbo:
            self._drain_if_possible(view)
        if version < view.version:
            self._configure(view)  # who changed the settings died before the queue heard of it
        if self._shared.listeners:
            for seq in Past(self).expired_leases(view):
                self._note("expired", view.name, [self._lent_id(seq)])
        return int(next_ms), int(ready)

    def keep_history(self, views: list[QueueView], from_ms: int, until_ms: int) -> list[QueueView]:
        """For readers who have not come further. Those that dropped something which nobody holds."""
        asked = (self._now_argument(), from_ms, until_ms)
        name = function("keep_history")
        commands = [(view.key, (b"FCALL", name, 1, view.key, *asked)) for view in views]
        dropped = []
        for view, reply in zip(views, self.calls.many(commands, idempotent=True), strict=True):
            try:
                if isinstance(reply, StoreError):
                    # A node without the functions, a queue that is gone or was lost: the long way tells.
                    reply = self._about_queue(view, "keep_history", *asked[1:])
            except QueueNotFound:
                continue
            if reply[2]:
                dropped.append(view)
        return dropped

    def redis_now(self) -> int:
        return self._redis_now()

    # -- for subscriptions ----------------------------------------------------------------------

    def view(self, queue: str) -> QueueView:
        return self._view(queue)

    def token(self) -> str:
        return self._token()

    def look_again(self, view: QueueView, at_ms: int) -> None:
        """When a lease ends that nobody may ask for."""
        if self.batches is not None:
            self._attendant.note_deadline(view, at_ms)

    def ask_of(self, view: QueueView, name: str, *args: Any) -> Any:
        return self.ask_and_decide(view, name, *args)[0]

    def ask_and_decide(self, view: QueueView, name: str, *args: Any) -> tuple[Any, bool]:
        """The answer of a function for this very queue, not for one of its name made later; and whether some
        of its messages went elsewhere by that."""
        for _ in range(2):
            try:
                reply = self._fcall(view.key, name, *args)
                limbo, _, answer = reply if len(reply) == 3 else self._without_damage(view, reply)
                return answer, bool(limbo and self._drain_if_possible(view))
            except FunctionError as error:
                if error.code == "GONE":
                    self._forget_gone(view)
                elif error.code != "NOQUEUE":
                    raise
                elif self._restore(view) is view:
                    continue
                break
        raise QueueNotFound(view.name)

    def hold_queue(self, view: QueueView) -> bool:
        return bool(self._on(view, "hold", self._shared.client, self._shared.beat_ms))

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

    def forget_topology(self) -> None:
        self._stale_topology = True

    def look_at_topology(self) -> None:
        if self._stale_topology:
            self._stale_topology = False
            self._registry.refresh(self.calls)

    _stale_topology = False

    def tick(self) -> None:
        """Bring everything up to the present by hand (a virtual clock does it on every advance)."""
        if self._shared.closed:
            return
        self._registry.refresh(self.calls)
        self._attendant.hold()
        for _ in range(3):  # dead letters may be due where they arrive
            for view in list(self._registry.queues.values()):
                with contextlib.suppress(QueueNotFound):
                    _, ready = self.tick_queue(view)
                    if ready:
                        self._attendant.serve(view.name)

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
        self._base._attendant.send_stop()
        for view in list(self._base._views.values()):
            view.calls.close()
        self._base._views.clear()
        self._base.calls.close()
        self._base._attendant.stop()
