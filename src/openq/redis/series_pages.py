"""The pages of the built-in history in Redis: one string per page, shared by all servers of the store.

One server records at a time: the one that holds a lock with a short TTL. If it dies, another one goes on
after a few seconds. Two servers that record in the same second, after a pause longer than the TTL, write the
same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StoreError
from .store import RedisStore

LEASE_MS = 5_000


class RedisPages:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._prefix = f"{store.address.prefix}:{{meta}}:series"
        self._lock_key = f"{self._prefix}:lock".encode()

    def _key(self, slot: int) -> bytes:
        return f"{self._prefix}:{slot}".encode()

    def lead(self) -> bool:
        calls, key, me = self._store.calls, self._lock_key, self._store.state.client
        if self._store.state.closed:
            return False
        if calls.call(key, "SET", key, me, "NX", "PX", LEASE_MS, idempotent=True, is_confirmed=False):
            return True
        if calls.call(key, "GET", key, idempotent=True) != me.encode():
            return False
        calls.call(key, "PEXPIRE", key, LEASE_MS, idempotent=True, is_confirmed=False)
        return True

    def read(self, slot: int, offset: int, size: int) -> bytes:
        key = self._key(slot)
        data = self._store.calls.call(key, "GETRANGE", key, offset, offset + size - 1, idempotent=True)
        return bytes(data)

    def write(self, writes: Sequence[tuple[int, int, bytes]]) -> None:
        commands = [
            (self._key(slot), (b"SETRANGE", self._key(slot), offset, data)) for slot, offset, data in writes
        ]
        for reply in self._store.calls.many(commands, idempotent=True):
            if isinstance(reply, StoreError):
                raise reply

    def close(self) -> None:
        """Another server goes on at once."""
        calls, key = self._store.calls, self._lock_key
        if calls.call(key, "GET", key, idempotent=True) == self._store.state.client.encode():
            calls.call(key, "DEL", key, idempotent=True, is_confirmed=False)
