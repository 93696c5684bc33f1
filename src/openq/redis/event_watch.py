"""Watches for new events of a store: one thread for all readers of a process, which polls no queue.

While somebody watches, every queue announces its events on a channel, at most once in 20 ms. The thread asks
the queues for it, again before that ends, and calls the readers back when the milliseconds of the announced
events have passed on all nodes: only then are they readable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import OpenQError, QueueNotFound, StoreError
from .event_reader import EventReader
from .functions import call_function, function_name
from .registry import CachedQueue
from .store import RedisStore

log = logging.getLogger("openq.redis")

WATCH_MS = 60_000  # how long a queue announces events after a watch
_RENEW_S = 20.0
_ANNOUNCE_MS = 20  # see `save` in lua/1_state.lua: later events within it are not announced
_LEAST_S = 0.002  # between two calls back
_MAX_WAIT_S = 0.025
_RETRY_S = 0.2


class EventWatch:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._reader = EventReader(store)
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._announced_ms = 0  # the latest that was announced and not reported completely
        self._is_stale = True  # there may be queues that are not asked yet
        self._asked_s: dict[bytes, float] = {}  # queue key -> when it was asked

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Ask all queues before this returns: the events after `end` are announced."""
        with self._lock:
            self._callbacks.append(callback)
        if not self._store.state.is_virtual:
            try:
                self._ask_queues()
            except BaseException:
                self._remove(callback)
                raise
            self._start()
        return lambda: self._remove(callback)

    def _remove(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
        self._wake.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping and self._callbacks:
                self._thread = threading.Thread(target=self._run, name="openq-event-watch", daemon=True)
                self._thread.start()

    # -- called by the listener -----------------------------------------------------------------

    def announced(self, ms: int) -> None:
        self._announced_ms = max(self._announced_ms, ms)
        self._wake.set()

    def topology_changed(self) -> None:
        self._is_stale = True
        self._wake.set()

    def resubscribed(self) -> None:
        """Announcements may have been missed, and a new master may know no watch."""
        with self._lock:
            self._asked_s = {}
        self.topology_changed()

    def tick(self) -> None:
        """A virtual clock was advanced."""
        self._call_back()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopping or not self._callbacks:
                    self._thread = None
                    return
            try:
                wait_s = self._work()
            except StoreError as error:
                log.debug("%s is unreachable: %s", self._store.address, error)
                wait_s = _RETRY_S
            except OpenQError:
                wait_s = _RETRY_S
            except Exception:
                log.exception("watching events failed; it continues")
                wait_s = 1.0
            self._wake.wait(wait_s)
            self._wake.clear()
            time.sleep(_LEAST_S)

    def _work(self) -> float:
        """One round. Returns how long to wait for an announcement."""
        now_s = time.monotonic()
        oldest_s = min(self._asked_s.values(), default=now_s)
        if self._is_stale or now_s - oldest_s >= _RENEW_S:
            self._ask_queues()
        announced_ms = self._announced_ms
        if not announced_ms:
            return _RENEW_S / 2
        end_ms = self._reader.end_ms()
        if end_ms > announced_ms:
            is_complete = end_ms > announced_ms + _ANNOUNCE_MS
            if is_complete and self._announced_ms == announced_ms:
                self._announced_ms = 0
            self._call_back()
            if is_complete:
                return _RENEW_S / 2 if not self._announced_ms else 0.0
        next_ms = announced_ms + (_ANNOUNCE_MS if end_ms > announced_ms else 0) + 1
        return min(max(next_ms - end_ms, 1) / 1000, _MAX_WAIT_S)

    def _ask_queues(self) -> None:
        """Let all queues announce their events. Those of a new queue until then are reported too."""
        store = self._store
        self._is_stale = False
        try:
            store.refresh()
            views = list(store.registry.queues.values())
            now_s = time.monotonic()
            with self._lock:
                asked_s = self._asked_s
                known = {view.key for view in views}
                for key in [key for key in asked_s if key not in known]:
                    del asked_s[key]
            due = [view for view in views if now_s - asked_s.get(view.key, float("-inf")) >= _RENEW_S / 2]
            has_new = any(view.key not in asked_s for view in due)
            self._ask(due)
            with self._lock:
                asked_s.update(dict.fromkeys([view.key for view in due], now_s))
            if has_new:
                self.announced(store.redis_now())
        except BaseException:
            self._is_stale = True
            raise

    def _ask(self, views: list[CachedQueue]) -> None:
        store = self._store
        name, now = function_name("watch_events"), store.now_argument()
        commands = [(view.key, (b"FCALL", name, 1, view.key, now, WATCH_MS)) for view in views]
        with store.calls.separate_writes(forget=True):
            store.registry.watch_events(store.calls, store.redis_now() + WATCH_MS)
            for view, reply in zip(views, store.calls.many(commands, idempotent=True), strict=True):
                if reply != 1:
                    self._ask_again(view)

    def _ask_again(self, view: CachedQueue) -> None:
        """A node without the functions, a queue that Redis lost, or a deleted one."""
        store = self._store
        try:
            store.fcall_queue(view, "tick")
            call_function(store.calls, view.key, "watch_events", store.now_argument(), WATCH_MS)
        except QueueNotFound:
            pass

    def _call_back(self) -> None:
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:
                log.exception("a reader of events failed")

    # -- closing --------------------------------------------------------------------------------

    def send_stop(self) -> None:
        """Never blocks. Readers are called once more, and find that the broker is closed."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        self.send_stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        self._call_back()
