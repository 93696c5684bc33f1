"""Waiters of this process for keys, and the upkeep of key-values that becomes due by time alone.

`WaiterService` (waiters.py) owns both: its listener gets the announcements, its thread does the upkeep.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..broker.kv import KvWaiter

if TYPE_CHECKING:
    from .key_values import RedisKeyValues
    from .store import RedisStore

_SWEEP_S = 10.0
_ASK_AGAIN_S = 240.0  # well within the time for which a bucket announces changes
# A node of a cluster passes an announcement on to the others once, and none of them confirms it: one may be
# lost although the connection to our node is well.
_CLUSTER_ASK_AGAIN_S = 20.0
_NEVER_MS = 1 << 62


class KvWaiterTable:
    """The waiters of this process, by the keys of their buckets. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[bytes, list[KvWaiter]] = {}
        self._names: dict[KvWaiter, bytes] = {}

    def add(self, bucket_key: bytes, waiter: KvWaiter) -> None:
        name = bucket_key + waiter.key.encode()
        with self._lock:
            self._waiters.setdefault(name, []).append(waiter)
            self._names[waiter] = name

    def remove(self, waiter: KvWaiter) -> bool:
        """False: it was called meanwhile. Never blocks."""
        with self._lock:
            name = self._names.pop(waiter, None)
            if name is None:
                return False
            waiters = self._waiters[name]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[name]
            return True

    def notify(self, name: bytes) -> None:
        """A key has changed; `name` is what its bucket announces: the bucket's key and the key."""
        with self._lock:
            waiters = self._waiters.pop(name, [])
            for waiter in waiters:
                del self._names[waiter]
        for waiter in waiters:
            waiter.notify()

    def notify_all(self) -> None:
        """Each asks again: an announcement may have been missed."""
        with self._lock:
            names = list(self._waiters)
        for name in names:
            self.notify(name)

    def buckets(self) -> set[str]:
        with self._lock:
            return {waiter.bucket for waiter in self._names}

    def __bool__(self) -> bool:
        return bool(self._names)


class KvUpkeep:
    """Ends TTLs: those that waiters of this process may wait for in time, the others in a sweep."""

    def __init__(self, store: RedisStore, key_values: RedisKeyValues) -> None:
        self._store = store
        self._key_values = key_values
        self.waiters = KvWaiterTable()
        self.on_deadline: Callable[[], None] = _do_nothing  # a deadline is earlier than all known ones
        self._deadlines: dict[str, int] = {}  # bucket -> when one of its keys expires
        self._swept_s = self._asked_s = time.monotonic()

    def add_deadline(self, bucket: str, at_ms: int) -> None:
        if at_ms < self._deadlines.get(bucket, _NEVER_MS):
            self._deadlines[bucket] = at_ms
            self.on_deadline()

    def next_deadline(self) -> int:
        return min(list(self._deadlines.values()), default=_NEVER_MS)

    def ask_again(self) -> None:
        """Every waiter looks at its key and renews its watch from time to time."""
        is_cluster = self._store.address.kind == "cluster"
        if time.monotonic() - self._asked_s >= (_CLUSTER_ASK_AGAIN_S if is_cluster else _ASK_AGAIN_S):
            self._asked_s = time.monotonic()
            self.waiters.notify_all()

    def run_due(self) -> None:
        now_ms = self._store.now_ms()
        for bucket in [bucket for bucket, at_ms in list(self._deadlines.items()) if at_ms <= now_ms]:
            del self._deadlines[bucket]
            next_ms = self._key_values.sweep_bucket(bucket)
            if next_ms and bucket in self.waiters.buckets():
                # The estimate of Redis's time may be a little ahead.
                self.add_deadline(bucket, max(next_ms, now_ms + 5))

    def sweep(self) -> None:
        if time.monotonic() - self._swept_s >= _SWEEP_S:
            self._swept_s = time.monotonic()
            found = self._key_values.sweep()
            self._store.state.kv_totals = (sum(b.count for b in found), sum(b.bytes for b in found))

    def tick(self) -> None:
        """The virtual clock was advanced."""
        for bucket in self.waiters.buckets():
            self._key_values.sweep_bucket(bucket)


def _do_nothing() -> None:
    pass
