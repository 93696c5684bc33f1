"""Which server sends a webhook, where several share a store: a key with a TTL, which its owner renews.

Versions of keys grow and are never used again. The version with which a server became the owner is its term:
positions of events are stored with it, so that an owner that lost its term without noticing changes nothing.
"""

from __future__ import annotations

import msgspec

from ..broker.kv import KeyValues, KvPut
from ..broker.workers import decode
from .store import STATE, get_one, put_one

TTL_MS = 6_000
RENEW_S = 2.0


class Owner(msgspec.Struct, kw_only=True):
    server: str
    since_ms: int


class Ownership:
    """The webhooks that this server owns. Its calls run in threads, one at a time."""

    def __init__(self, kv: KeyValues, server: str) -> None:
        self._kv = kv
        self._server = server
        self._versions: dict[str, int] = {}  # of our keys

    def claim(self, name: str, now_ms: int) -> bool:
        """Whether this server owns the webhook for the next TTL."""
        key = f"owner/{name}"
        value = msgspec.json.encode(Owner(server=self._server, since_ms=now_ms))
        version = put_one(self._kv, STATE, KvPut(key, value, TTL_MS, self._versions.get(name, 0)))
        if version is None and name in self._versions:
            # Another server took it over, or the key expired meanwhile.
            version = put_one(self._kv, STATE, KvPut(key, value, TTL_MS, 0))
        if version is None:
            self._versions.pop(name, None)
            return False
        self._versions[name] = version
        return True

    def release(self, name: str) -> None:
        version = self._versions.pop(name, None)
        if version is not None:
            self._kv.delete_many(STATE, [f"owner/{name}"], [version])

    def owner_of(self, name: str) -> str | None:
        entry = get_one(self._kv, STATE, f"owner/{name}")
        owner = None if entry is None else decode(entry.value, Owner)
        return None if owner is None else owner.server

    @property
    def names(self) -> list[str]:
        return list(self._versions)
