"""Which server sends a webhook, where several share a store: a key with a TTL, which its owner renews.

Versions of keys grow and are never used again. A server renews its key with the version that it wrote, so one
that lost the key without noticing learns it then. Meanwhile both may send. What they store is safe by itself:
each key is stored with its own version, see `positions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..broker.kv import MAX_BATCH, KeyValues, KvConflict, KvPut
from ..broker.workers import decode
from ..errors import OpenQError
from .store import STATE

TTL_MS = 6_000
RENEW_S = 2.0


class Owner(msgspec.Struct, kw_only=True):
    server: str
    since_ms: int


class Ownership:
    """The webhooks that this server owns. Its calls run in threads, one at a time.

    Other work that one of several servers does has keys in a bucket of its own.
    """

    def __init__(self, kv: KeyValues, server: str, bucket: str = STATE) -> None:
        self._kv = kv
        self._server = server
        self._bucket = bucket
        self._versions: dict[str, int] = {}  # of our keys

    def claim(self, names: Sequence[str], now_ms: int) -> set[str]:
        """Those of the webhooks that this server owns for the next TTL: the free ones, and its own."""
        refused = self._put(names, self._versions, now_ms)
        lost = [name for name in refused if self._versions.pop(name, None) is not None]
        # Another server took it over, or the key expired meanwhile.
        self._put(lost, {}, now_ms)
        return self._versions.keys() & set(names)

    def _put(self, names: Sequence[str], versions: Mapping[str, int], now_ms: int) -> list[str]:
        """Returns the names that were refused."""
        value = msgspec.json.encode(Owner(server=self._server, since_ms=now_ms))
        refused: list[str] = []
        for at in range(0, len(names), MAX_BATCH):
            some = names[at : at + MAX_BATCH]
            puts = [KvPut(f"owner/{name}", value, TTL_MS, versions.get(name, 0)) for name in some]
            for name, result in zip(some, self._kv.put_many(self._bucket, puts), strict=True):
                if isinstance(result, KvConflict):
                    refused.append(name)
                elif isinstance(result, OpenQError):
                    raise result
                else:
                    self._versions[name] = result
        return refused

    def release(self, name: str) -> None:
        version = self._versions.pop(name, None)
        if version is not None:
            self._kv.delete_many(self._bucket, [f"owner/{name}"], [version])

    def owners(self, names: Sequence[str]) -> dict[str, str]:
        """The servers that own these webhooks, as far as they have an owner."""
        found: dict[str, str] = {}
        for at in range(0, len(names), MAX_BATCH):
            some = names[at : at + MAX_BATCH]
            entries = self._kv.get_many(self._bucket, [f"owner/{name}" for name in some])
            for name, entry in zip(some, entries, strict=True):
                owner = None if entry is None else decode(entry.value, Owner)
                if owner is not None:
                    found[name] = owner.server
        return found

    @property
    def names(self) -> list[str]:
        return list(self._versions)
