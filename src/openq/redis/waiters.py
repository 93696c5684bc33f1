"""Waiters of this process for messages, and the upkeep that becomes due by time alone.

Functions announce on a channel that a watched queue has new messages. Two threads listen and serve the
waiters; no queue is polled. One of all processes on a store also sweeps every queue from time to time, for
leases, delays and outboxes that a dead process left behind.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError, QueueNotFound, StoreError
from ..model import Delivery
from .event_watch import EventWatch
from .kv_upkeep import KvUpkeep
from .net.pubsub import PubSubListener
from .registry import CachedQueue
from .store import RedisStore
from .upkeep import Upkeep

if TYPE_CHECKING:
    from .consume import Receiver
    from .cursors import RedisCursors
    from .key_values import RedisKeyValues
    from .schedules import RedisSchedules

log = logging.getLogger("openq.redis")

WATCH_MS = 60_000  # how long a queue announces new messages after a watch
_RENEW_S = 20.0
_SWEEP_S = 2.0
_SWEEP_LOCK_MS = 6_000
_RETRY_S = 0.2
_SAFETY_CHECK_S = 5.0  # an alert tells of a change, so it must be seen soon
_CURSOR_CHECK_S = 5.0
_NEVER_MS = 1 << 62


class _QueueWaiters:
    """The waiters of one queue."""

    __slots__ = ("leaving", "serving", "skipped", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self.serving: Waiter | None = None  # a receive for it is under way
        self.leaving = False  # it was removed meanwhile: its deliveries are released
        self.skipped: list[Waiter] = []  # got nothing in this round; first in line again after it

    @property
    def is_empty(self) -> bool:
        return not self.waiters and not self.skipped and self.serving is None


def _is_notified(waiter: Waiter) -> bool:
    """Whether it receives by itself once it is notified."""
    return waiter.notify_only or waiter.on_ready is not None


def _notify(waiter: Waiter) -> None:
    if waiter.on_ready is not None:
        waiter.on_ready()
    else:
        waiter.deliver([])


class WaitingLists:
    """The waiters of all queues, first come, first served. Used by several threads."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._lock = threading.Lock()
        self._queues: dict[str, _QueueWaiters] = {}

    def add(self, queue: str, waiter: Waiter) -> None:
        with self._lock:
            self._queues.setdefault(queue, _QueueWaiters()).waiters.append(waiter)

    def remove(self, queue: str, waiter: Waiter) -> bool:
        """False: it was served meanwhile. Never blocks."""
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None:
                return False
            if waiting.serving is waiter and not waiting.leaving:
                waiting.leaving = True
                return True
            place = waiting.skipped if waiter in waiting.skipped else waiting.waiters
            if waiter not in place:
                return False
            place.remove(waiter)
            self._drop_if_empty(queue, waiting)
            return True

    def _drop_if_empty(self, queue: str, waiting: _QueueWaiters) -> None:
        if waiting.is_empty:
            self._queues.pop(queue, None)

    def __contains__(self, queue: str) -> bool:
        with self._lock:
            return queue in self._queues

    def queues(self) -> list[str]:
        with self._lock:
            return list(self._queues)

    def count(self, queue: str) -> int:
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None:
                return 0
            return len(waiting.waiters) + len(waiting.skipped) + (waiting.serving is not None)

    def count_unselective(self, queue: str) -> int:
        """Those that take any message; see `broker.waiters.Waiters`."""
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None:
                return 0
            found = [*waiting.waiters, *waiting.skipped, waiting.serving]
            return sum(each is not None and each.wanted is None for each in found)

    def serve(self, queue: str) -> None:
        """Serve waiters until one gets nothing; those that select messages do not stop it."""
        try:
            while self._serve_next(queue):
                pass
        finally:
            with self._lock:
                waiting = self._queues.get(queue)
                if waiting is not None and waiting.serving is None:
                    waiting.waiters.extendleft(reversed(waiting.skipped))
                    waiting.skipped.clear()
                    self._drop_if_empty(queue, waiting)

    def _serve_next(self, queue: str) -> bool:
        """Whether the next waiter may get something."""
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None or waiting.serving is not None or not waiting.waiters:
                return False
            waiter = waiting.waiters.popleft()
            if _is_notified(waiter):
                self._drop_if_empty(queue, waiting)
            else:
                waiting.serving, waiting.leaving = waiter, False
        if _is_notified(waiter):
            _notify(waiter)
            return True
        deliveries: list[Delivery] = []
        is_gone = False
        try:
            deliveries = self._receiver.receive(
                queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.wanted
            )
        except (QueueNotFound, Closed):
            is_gone = True
        finally:
            with self._lock:
                waiting.serving = None
                was_removed = waiting.leaving
                if not was_removed and not deliveries and not is_gone:
                    waiting.skipped.append(waiter)
        if was_removed:
            if deliveries:
                self._receiver.release(queue, [(each.entry.seq, each.number) for each in deliveries])
            return True
        if deliveries or is_gone:
            waiter.deliver(deliveries)
            return True
        return waiter.wanted is not None

    def notify(self, queue: str) -> None:
        """Wake the waiters that only want a notification; that needs no call to Redis."""
        notified: list[Waiter] = []
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is not None and any(map(_is_notified, waiting.waiters)):
                notified = [waiter for waiter in waiting.waiters if _is_notified(waiter)]
                waiting.waiters = deque(waiter for waiter in waiting.waiters if not _is_notified(waiter))
                self._drop_if_empty(queue, waiting)
        for waiter in notified:
            _notify(waiter)

    def end(self, queue: str | None = None) -> None:
        """End the waits of a deleted queue, or all: each waiter gets an empty delivery."""
        with self._lock:
            if queue is None:
                ended, self._queues = list(self._queues.values()), {}
            else:
                found = self._queues.pop(queue, None)
                ended = [] if found is None else [found]
        for waiting in ended:
            for waiter in (*waiting.skipped, *waiting.waiters):
                waiter.deliver([])


class WaiterService:
    """The threads that serve waiters and do upkeep; they start when first needed."""

    def __init__(
        self,
        store: RedisStore,
        receiver: Receiver,
        upkeep: Upkeep,
        cursors: RedisCursors,
        key_values: RedisKeyValues,
        schedules: RedisSchedules,
    ) -> None:
        self._store = store
        self._schedules = schedules
        self._registry = store.registry
        self._upkeep = upkeep
        self._cursors = cursors
        self.waiting = WaitingLists(receiver)
        self.kv = KvUpkeep(store, key_values)
        self.events = EventWatch(store)
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # a thread that is being started could not be joined
        self._woken: dict[str, None] = {}  # queues to be served
        self._tried: dict[str, bytes] = {}  # the state of queues whose waiters were served and got nothing
        self._deadlines: dict[int, int] = {}  # queue number -> Redis's time
        self._bound: set[int] = set()  # numbers of queues with leases that are bound to this process
        self._is_registry_stale = False
        self._event = threading.Event()
        self.kv.on_deadline = self._event.set
        self._stopping = False
        self._started = False
        self._thread: threading.Thread | None = None
        self._listener: PubSubListener | None = None
        self._renewed_s = self._heartbeat_s = self._swept_s = 0.0
        self._stores = store.registry.stores
        self._checked_s = self._kept_s = time.monotonic()

    def add_deadline(self, view: CachedQueue, at_ms: int) -> None:
        if at_ms and at_ms < self._deadlines.get(view.number, _NEVER_MS):
            self._deadlines[view.number] = at_ms
            self._event.set()

    def add_bound(self, view: CachedQueue) -> None:
        self._bound.add(view.number)
        self.start()

    def _is_running_or_over(self) -> bool:
        return self._started or self._stopping

    def start(self) -> None:
        if self._is_running_or_over():
            return
        with self._starting:
            if self._is_running_or_over():
                return  # another thread was quicker
            store = self._store
            self._listener = PubSubListener(
                store.address, store.calls.any_host, self._on_message, self._on_subscribed
            )
            self._listener.start()
            self._thread = threading.Thread(target=self._run, name="openq-waiters", daemon=True)
            self._thread.start()
            self._started = True

    # -- messages of the channels ---------------------------------------------------------------

    def _on_subscribed(self) -> None:
        """After a time without a subscription any announcement may have been missed."""
        for view in list(self._registry.queues.values()):
            view.wake()
        queues = self.waiting.queues()
        with self._lock:
            self._woken.update(dict.fromkeys(queues))
        self._renewed_s = 0.0
        self._is_registry_stale = True
        self._schedules.note_change()
        self._event.set()
        self.kv.waiters.notify_all()
        self.events.resubscribed()

    def _on_message(self, channel: bytes, text: bytes) -> None:
        kind = channel.rpartition(b":")[2]
        if kind == b"topology":
            self._is_registry_stale = True
            self._event.set()
            self.events.topology_changed()
            return
        if kind == b"events":
            self.events.announced(int(text))
            return
        if kind == b"kv":
            self.kv.waiters.notify(text)
            return
        if kind == b"schedules":
            self._schedules.note_change()
            self._event.set()
            return
        key, _, at_ms = text.partition(b" ")
        view = self._registry.view_of_key(key)
        if view is None:
            return
        if kind == b"due":
            self.add_deadline(view, int(at_ms))
        else:
            view.wake()
            self.waiting.notify(view.name)
            if view.name in self.waiting:
                self.wake(view.name)

    def wake(self, queue: str) -> None:
        """Serve the waiters of a queue soon, and let it announce what comes later."""
        with self._lock:
            self._woken[queue] = None
        self._event.set()

    # -- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_s = self.work()
            except (Closed, QueueNotFound):
                wait_s = _RETRY_S
            except StoreError as error:
                log.debug("%s is unreachable: %s", self._store.address, error)  # the listener warns of it
                wait_s = _RETRY_S
            except Exception:
                log.exception("serving waiters failed; it continues")
                wait_s = 1.0
            self._event.wait(wait_s)
            self._event.clear()

    def work(self) -> float:
        """One round. Returns how long to sleep unless woken."""
        store, registry = self._store, self._registry
        now_s = time.monotonic()
        if self._is_registry_stale:
            self._is_registry_stale = False
            try:
                store.refresh()
            except BaseException:
                self._is_registry_stale = True  # the change is not announced again
                raise
        if registry.stores != self._stores:
            # Queues that were created again in an emptied store do not know their waiters.
            self._stores = registry.stores
            self._renewed_s = 0.0
        with self._lock:
            woken = list(self._woken)
            self._woken.clear()
        for queue in self.waiting.queues():
            if queue not in registry.queues:
                self.waiting.end(queue)
        for queue in woken:
            try:
                self.waiting.serve(queue)
                self._watch_again(queue)
            except OpenQError:
                with self._lock:
                    self._woken[queue] = None
                raise
        self.kv.ask_again()
        if store.state.is_virtual:
            return _SWEEP_S  # the clock does the upkeep when it is advanced
        if now_s - self._renewed_s >= _RENEW_S:
            self._renewed_s = now_s
            for queue in self.waiting.queues():
                view = registry.queues.get(queue)
                if view is not None:
                    self._watch(view)
        if now_s - self._heartbeat_s >= store.address.heartbeat_s / 3:
            self._heartbeat_s = now_s
            self.renew_leases()
        self._run_due()
        self.kv.run_due()
        if store.state.is_server:
            self.kv.sweep()  # each server: its metrics have the totals
        self._schedules.run_due()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._sweep()
        if store.state.is_server and now_s - self._checked_s >= _SAFETY_CHECK_S:
            self._checked_s = now_s
            store.state.recheck_safety()
        next_ms = min(
            self._schedules.next_ms(), self.kv.next_deadline(), *self._deadlines.values(), _NEVER_MS
        )
        until_due_s = (next_ms - store.now_ms()) / 1000 + 0.001
        return max(0.0, min(until_due_s, _SWEEP_S * random.uniform(0.9, 1.1)))

    def _watch_again(self, queue: str) -> None:
        """A queue announces once; waiters that are left need another watch."""
        view = self._registry.queues.get(queue)
        if view is None or not self.waiting.count(queue):
            self._tried.pop(queue, None)
            return
        tick = self._upkeep.tick_queue(view, WATCH_MS)
        self.add_deadline(view, tick.next_ms)
        # Waiters that select messages may leave ready ones behind: they are served again after a change.
        if tick.ready and self._tried.get(queue) != tick.state:
            self._tried[queue] = tick.state
            view.wake()
            self.wake(queue)

    def _watch(self, view: CachedQueue) -> None:
        """Ask a queue to announce new messages."""
        tick = self._upkeep.tick_queue(view, WATCH_MS)
        self.add_deadline(view, tick.next_ms)
        if tick.ready and view.name in self.waiting:
            view.wake()
            self.wake(view.name)

    def _run_due(self) -> None:
        now_ms = self._store.now_ms()
        for number in [number for number, at_ms in self._deadlines.items() if at_ms <= now_ms]:
            del self._deadlines[number]
            view = self._registry.numbered.get(number)
            if view is not None:
                tick = self._upkeep.tick_queue(view)
                self.add_deadline(view, max(tick.next_ms, now_ms + 5) if tick.next_ms else 0)
                if tick.ready:
                    view.wake()
                    self.waiting.notify(view.name)
                    self.waiting.serve(view.name)
                    self._watch_again(view.name)

    def renew_leases(self) -> None:
        """Renew the leases that are bound to connections of this process."""
        for number in list(self._bound):
            view = self._registry.numbered.get(number)
            if view is None or not self._upkeep.renew_bound_leases(view):
                self._bound.discard(number)

    def tick(self) -> None:
        """Bring all queues up to the present, and serve their waiters."""
        self._store.refresh()
        self.kv.tick()
        self.renew_leases()
        self._schedules.run_due()
        for _ in range(3):  # dead letters may be due where they arrive
            for view in list(self._registry.queues.values()):
                try:
                    ready = self._upkeep.tick_queue(view).ready
                except QueueNotFound:
                    continue
                if ready:
                    view.wake()
                    self.waiting.serve(view.name)
        self.events.tick()

    def _sweep(self) -> None:
        if not self._upkeep.may_sweep(_SWEEP_LOCK_MS):
            return
        for view in list(self._registry.queues.values()):
            if self._stopping:
                return
            try:
                self._upkeep.tick_queue(view)
            except QueueNotFound:
                continue
            except StoreError as error:
                log.warning("the upkeep of queue %r failed: %s", view.name, error)
        self.kv.sweep()
        if time.monotonic() - self._kept_s >= _CURSOR_CHECK_S:
            self._kept_s = time.monotonic()
            self._cursors.enforce_limits()

    # -- closing --------------------------------------------------------------------------------

    def send_stop(self) -> None:
        """Never blocks: a call under way ends when its connection is closed."""
        self._stopping = True
        self._event.set()
        self.events.send_stop()

    def stop(self) -> None:
        self.send_stop()
        with self._starting:
            pass  # no thread starts any more
        if self._listener is not None:
            self._listener.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self.events.stop()
        self.waiting.end()
        self.kv.waiters.notify_all()


class WaiterServiceRef:
    """Refers to the current service: a forked child needs a new one."""

    def __init__(self) -> None:
        self.service: WaiterService = None  # type: ignore[assignment]  # set by the broker

    def count(self, queue: str) -> int:
        return self.service.waiting.count(queue)

    def count_unselective(self, queue: str) -> int:
        return self.service.waiting.count_unselective(queue)
