"""Which server sends a webhook, where several share a store: a key with a TTL, which its owner renews.

Versions of keys grow and are never used again. The version with which a server became the owner is its term:
positions of events are stored with it, so that an owner that lost its term without noticing changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..broker.kv import MAX_BATCH, KeyValues, KvPut
from ..broker.workers import decode
from .store import STATE, put_one

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

    def owners(self, names: Sequence[str]) -> dict[str, str]:
        """The servers that own these webhooks, as far as they have an owner."""
        found: dict[str, str] = {}
        for at in range(0, len(names), MAX_BATCH):
            some = names[at : at + MAX_BATCH]
            entries = self._kv.get_many(STATE, [f"owner/{name}" for name in some])
            for name, entry in zip(some, entries, strict=True):
                owner = None if entry is None else decode(entry.value, Owner)
                if owner is not None:
                    found[name] = owner.server
        return found

    @property
    def names(self) -> list[str]:
        return list(self._versions)
