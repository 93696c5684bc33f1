"""Who waits for messages of a store in this process, and what time alone brings about.

Functions tell by a channel when a queue that somebody watches has something: two threads here listen and
serve. No queue is asked again and again. One process of all on a store also looks through every queue now
and then, for what a dead one left: leases, delays, transfers.
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
from .net.pubsub import PubSubListener
from .registry import CachedQueue

if TYPE_CHECKING:
    from .broker import RedisBroker

log = logging.getLogger("openq.redis")

WATCH_MS = 60_000  # for so long a queue remembers that somebody waits
_RENEW_S = 20.0
_SWEEP_S = 2.0
_SWEEP_LOCK_MS = 6_000
_RETRY_S = 0.2
_SAFETY_CHECK_S = 60.0
_CURSOR_CHECK_S = 5.0


class _QueueWaiters:
    """Those who wait on one queue."""

    __slots__ = ("leaving", "serving", "skipped", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self.serving: Waiter | None = None  # being asked for just now
        self.leaving = False  # it left meanwhile: what it gets goes back
        self.skipped: list[Waiter] = []  # went empty-handed in this round, and stand in front again after it


class WaiterService:
    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._queues: dict[str, _QueueWaiters] = {}
        self._woken: dict[str, None] = {}  # queues to be served
        self._deadlines: dict[int, int] = {}  # number of a queue -> Redis's time
        self._bound: set[int] = set()  # numbers of queues with leases that are bound to this process
        self._event = threading.Event()
        self._stopping = False
        self._started = False
        self._thread: threading.Thread | None = None
        self._listening: PubSubListener | None = None
        self._renewed_s = self._heartbeat_s = self._swept_s = 0.0
        self._stores = broker.registry.stores
        self._checked_s = self._kept_s = time.monotonic()

    # -- waiters --------------------------------------------------------------------------------

    def add(self, queue: str, waiter: Waiter) -> None:
        with self._lock:
            self._queues.setdefault(queue, _QueueWaiters()).waiters.append(waiter)

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        """False: it was served meanwhile. Never waits."""
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
        if not waiting.waiters and not waiting.skipped and waiting.serving is None:
            self._queues.pop(queue, None)

    def count(self, queue: str) -> int:
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None:
                return 0
            return len(waiting.waiters) + len(waiting.skipped) + (waiting.serving is not None)

    def serve(self, queue: str) -> None:
        """First come, first served, until one goes empty-handed; who chooses by type is passed over."""
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
        """Whether the one after has a chance."""
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is None or waiting.serving is not None or not waiting.waiters:
                return False
            waiter = waiting.waiters.popleft()
            if waiter.notify_only:
                self._drop_if_empty(queue, waiting)
            else:
                waiting.serving, waiting.leaving = waiter, False
        if waiter.notify_only:
            waiter.deliver([])
            return True
        deliveries: list[Delivery] = []
        is_gone = False
        try:
            deliveries = self._broker.receive(
                queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.types
            )
        except (QueueNotFound, Closed):
            is_gone = True
        finally:
            with self._lock:
                waiting.serving = None
                left = waiting.leaving
                if not left and not deliveries and not is_gone:
                    waiting.skipped.append(waiter)
        if left:
            if deliveries:
                self._broker.release(queue, [(each.entry.seq, each.number) for each in deliveries])
            return True
        if deliveries or is_gone:
            waiter.deliver(deliveries)
            return True
        return waiter.types is not None

    # -- time -----------------------------------------------------------------------------------

    def add_deadline(self, view: CachedQueue, at_ms: int) -> None:
        if at_ms and at_ms < self._deadlines.get(view.number, 1 << 62):
            self._deadlines[view.number] = at_ms
            self._event.set()

    def add_bound(self, view: CachedQueue) -> None:
        self._bound.add(view.number)
        self.start()

    def start(self) -> None:
        if self._started or self._stopping:
            return
        with self._lock:
            first, self._started = not self._started, True
        if first:
            broker = self._broker
            self._listening = PubSubListener(
                broker.address, broker.any_host, self._on_message, self._on_subscribed
            )
            self._listening.start()
            self._thread = threading.Thread(target=self._run, name="openq-attendant", daemon=True)
            self._thread.start()

    def _on_subscribed(self) -> None:
        """After a time without ears anything may have happened."""
        with self._lock:
            self._woken.update(dict.fromkeys(self._queues))
        self._renewed_s = 0.0
        self._broker.mark_registry_stale()
        self._event.set()

    def _on_message(self, channel: bytes, text: bytes) -> None:
        kind = channel.rpartition(b":")[2]
        if kind == b"topology":
            self._broker.mark_registry_stale()
            self._event.set()
            return
        key, _, at_ms = text.partition(b" ")
        view = self._broker.view_of_key(key)
        if view is None:
            return
        if kind == b"due":
            self.add_deadline(view, int(at_ms))
        else:
            self._notify(view.name)
            with self._lock:
                if view.name not in self._queues:
                    return
                self._woken[view.name] = None
            self._event.set()

    def _notify(self, queue: str) -> None:
        """Those who only want to know need no call of ours."""
        told: list[Waiter] = []
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is not None and any(waiter.notify_only for waiter in waiting.waiters):
                told = [waiter for waiter in waiting.waiters if waiter.notify_only]
                waiting.waiters = deque(waiter for waiter in waiting.waiters if not waiter.notify_only)
                self._drop_if_empty(queue, waiting)
        for waiter in told:
            waiter.deliver([])

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_s = self.work()
            except (Closed, QueueNotFound):
                wait_s = _RETRY_S
            except StoreError as error:
                log.debug("%s is away: %s", self._broker.address, error)  # who listens has said so
                wait_s = _RETRY_S
            except Exception:
                log.exception("the attendant failed; it goes on")
                wait_s = 1.0
            self._event.wait(wait_s)
            self._event.clear()

    def work(self) -> float:
        """One round; how long to sleep, if nothing wakes us."""
        broker = self._broker
        now_s = time.monotonic()
        broker.refresh_if_stale()
        if broker.registry.stores != self._stores:
            # Queues that were made again in an emptied store know nobody who waits.
            self._stores = broker.registry.stores
            self._renewed_s = 0.0
        with self._lock:
            woken = list(self._woken)
            self._woken.clear()
            orphans = [queue for queue in self._queues if queue not in broker.registry.queues]
        for queue in orphans:
            self._end_waits(queue)
        for queue in woken:
            try:
                self.serve(queue)
                self._watch_again(queue)
            except OpenQError:
                with self._lock:
                    self._woken[queue] = None
                raise
        if broker.is_virtual:
            return _SWEEP_S  # time is moved by hand, and brings things about there
        if now_s - self._renewed_s >= _RENEW_S:
            self._renewed_s = now_s
            with self._lock:
                watched = list(self._queues)
            for queue in watched:
                view = broker.registry.queues.get(queue)
                if view is not None:
                    self.watch(view)
        if now_s - self._heartbeat_s >= broker.address.heartbeat_s / 3:
            self._heartbeat_s = now_s
            self.renew_leases()
        self._run_due()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._sweep()
        if broker.is_server and now_s - self._checked_s >= _SAFETY_CHECK_S:
            self._checked_s = now_s
            broker.recheck_safety()
        next_ms = min(self._deadlines.values(), default=1 << 62)
        until_due_s = (next_ms - broker.now_ms()) / 1000 + 0.001
        return max(0.0, min(until_due_s, _SWEEP_S * random.uniform(0.9, 1.1)))

    def _watch_again(self, queue: str) -> None:
        """A queue tells once; who still waits has to say so again."""
        view = self._broker.registry.queues.get(queue)
        if view is not None and self.count(queue):
            self.watch(view)

    def _end_waits(self, queue: str) -> None:
        """The queue is gone: nobody can be served from it any more."""
        with self._lock:
            waiting = self._queues.pop(queue, None)
            waiters = [] if waiting is None else [*waiting.skipped, *waiting.waiters]
        for waiter in waiters:
            waiter.deliver([])

    def watch(self, view: CachedQueue) -> int:
        """Tell the queue that somebody waits here. How many messages are ready."""
        next_ms, ready = self._broker.tick_queue(view, WATCH_MS)
        self.add_deadline(view, next_ms)
        if ready:
            with self._lock:
                if view.name in self._queues:
                    self._woken[view.name] = None
                    self._event.set()
        return ready

    def _run_due(self) -> None:
        now_ms = self._broker.now_ms()
        for number in [number for number, at_ms in self._deadlines.items() if at_ms <= now_ms]:
            del self._deadlines[number]
            view = self._broker.registry.numbered.get(number)
            if view is not None:
                next_ms, ready = self._broker.tick_queue(view)
                self.add_deadline(view, max(next_ms, now_ms + 5) if next_ms else 0)
                if ready:
                    self._notify(view.name)
                    self.serve(view.name)
                    self._watch_again(view.name)

    def renew_leases(self) -> None:
        """Leases that are bound to connections of this process live as long as it says so."""
        for number in list(self._bound):
            view = self._broker.registry.numbered.get(number)
            if view is None or not self._broker.renew_bound_leases(view):
                self._bound.discard(number)

    def _sweep(self) -> None:
        broker = self._broker
        if broker.may_sweep(_SWEEP_LOCK_MS):
            for view in list(broker.registry.queues.values()):
                if self._stopping:
                    return
                try:
                    broker.tick_queue(view)
                except QueueNotFound:
                    continue  # deleted meanwhile: the others are still to be looked at
                except StoreError as error:
                    log.warning("queue %r cannot be looked after: %s", view.name, error)
            if time.monotonic() - self._kept_s >= _CURSOR_CHECK_S:
                self._kept_s = time.monotonic()
                broker.cursors.enforce_limits()

    # -- the end --------------------------------------------------------------------------------

    def send_stop(self) -> None:
        """Without a wait: it may be in the middle of a call, which ends when the connection does."""
        self._stopping = True
        self._event.set()

    def stop(self) -> None:
        self.send_stop()
        if self._listening is not None:
            self._listening.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        with self._lock:
            waiters = [
                waiter for waiting in self._queues.values() for waiter in (*waiting.skipped, *waiting.waiters)
            ]
            self._queues.clear()
        for waiter in waiters:
            waiter.deliver([])
