"""Upkeep of queues: expired leases and delays, bound leases, the lock of the sweep over all queues."""

from __future__ import annotations

from typing import NamedTuple

from .event_log import EventLog
from .registry import CachedQueue
from .store import RedisStore


class Tick(NamedTuple):
    next_ms: int  # when something is due again
    ready: int
    state: bytes  # equal ones: nothing was published, delivered, acked or returned in between


class Upkeep:
    def __init__(self, store: RedisStore, event_log: EventLog) -> None:
        self._store = store
        self._event_log = event_log
        self._sweeper_key = f"{store.address.prefix}:{{meta}}:sweeper".encode()

    def tick_queue(self, view: CachedQueue, watch_ms: int | None = None) -> Tick:
        """Apply everything that is due in a queue.

        With `watch_ms` the queue announces new messages to waiters for that time.
        """
        store = self._store
        args = () if watch_ms is None else (watch_ms,)
        outbox, _, (next_ms, ready, version, state) = store.fcall_queue(view, "tick", *args)
        if outbox:
            store.try_drain(view)
        if version < view.version:
            store.configure(view)  # the client that changed the settings died before it wrote them here
        if store.state.listeners:
            for seq in self._event_log.expired_leases(view):
                store.emit("expired", view.name, [store.delivered_id(seq)])
        return Tick(int(next_ms), int(ready), state)

    def renew_bound_leases(self, view: CachedQueue) -> bool:
        """Keep the leases that are bound to this process. False: there are none."""
        state = self._store.state
        return bool(self._store.ask_queue(view, "hold", state.client, state.heartbeat_ms))

    def may_sweep(self, lock_ms: int) -> bool:
        """Whether this process holds the lock of the sweep."""
        self._store.state.is_sweeper = self._lock_sweep(lock_ms)
        return self._store.state.is_sweeper

    def _lock_sweep(self, lock_ms: int) -> bool:
        key, calls, client = self._sweeper_key, self._store.calls, self._store.state.client
        if calls.call(key, "SET", key, client, "NX", "PX", lock_ms, idempotent=True) is not None:
            return True
        if calls.call(key, "GET", key, idempotent=True) != client.encode():
            return False
        calls.call(key, "PEXPIRE", key, lock_ms, idempotent=True)
        return True
