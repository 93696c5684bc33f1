"""Key-values in Redis: each bucket is a few keys of one slot, changed by the functions of `lua/10_kv.lua`.

Listings read a sorted set of the keys, whose members have equal scores and so are in the order of their
bytes: a page costs what it returns, whatever the size of the bucket. The names of all buckets are in a set of
their own, for lists of buckets and for the sweep of expired keys.

A process that waits for a key asks its bucket to announce changes for some minutes, and asks again before
these are over.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..broker.kv import (
    MAX_BATCH,
    PAGE_BYTES,
    BucketInfo,
    KvConflict,
    KvEntry,
    KvPut,
    KvWaiter,
    check_batch,
    check_deletes,
    check_key,
    check_put,
)
from ..errors import Closed, InvalidSetting, OpenQError
from ..model import check_name
from .functions import call_function, function_name

if TYPE_CHECKING:
    from .store import RedisStore
    from .waiters import WaiterServiceRef

WATCH_MS = 600_000  # how long a bucket announces changes after a watch
SWEPT_KEYS = 1_000  # expired keys of a bucket that one sweep removes


class RedisKeyValues:
    """The `KeyValues` role of the broker over Redis."""

    def __init__(self, store: RedisStore, waiters: WaiterServiceRef) -> None:
        self._store = store
        self._calls = store.calls
        self._waiters = waiters
        self._head = f"{store.address.prefix}:{{kv:"
        self._names_key = f"{store.address.prefix}:{{meta}}:kv".encode()

    def _key(self, bucket: str) -> bytes:
        return f"{self._head}{bucket}}}:v".encode()

    def _call(self, bucket: str, name: str, *args: Any) -> Any:
        store = self._store
        if store.state.closed:
            raise Closed()
        return call_function(self._calls, self._key(bucket), name, store.now_argument(), *args)

    # -- reading ------------------------------------------------------------------------------

    def get_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[KvEntry | None]:
        check_name(bucket, "bucket")
        for key in keys:
            check_key(key)
        if len(keys) > MAX_BATCH:
            raise InvalidSetting(f"at most {MAX_BATCH} keys in one call, not {len(keys)}")
        found = self._call(bucket, "kv_get", *keys) if keys else ()
        return [None if raw is None else _entry(key, raw) for key, raw in zip(keys, found, strict=True)]

    def list(
        self, bucket: str, prefix: str = "", after: str = "", limit: int = 1000
    ) -> builtins.list[KvEntry]:
        check_name(bucket, "bucket")
        flat = self._call(bucket, "kv_list", prefix, after, min(limit, MAX_BATCH), PAGE_BYTES)
        return [_entry(key.decode(), raw) for key, raw in zip(flat[::2], flat[1::2], strict=True)]

    def buckets(self) -> builtins.list[BucketInfo]:
        return [each for each in self.sweep() if each.count]

    # -- changing -----------------------------------------------------------------------------

    def put_many(self, bucket: str, puts: Sequence[KvPut]) -> builtins.list[int | OpenQError]:
        check_name(bucket, "bucket")
        check_batch(puts)
        results: builtins.list[int | OpenQError] = []
        sent: builtins.list[int] = []
        args: builtins.list[Any] = []
        for i, put in enumerate(puts):
            results.append(0)
            try:
                check_put(put)
            except OpenQError as error:
                results[i] = error
                continue
            sent.append(i)
            ttl_ms, version = put.ttl_ms, put.version
            args += (put.key, put.value, "" if ttl_ms is None else ttl_ms, "" if version is None else version)
        if not sent:
            return results
        was_empty, *versions = self._call(bucket, "kv_put", self._store.token(), *args)
        for i, version in zip(sent, versions, strict=True):
            results[i] = version if version > 0 else KvConflict(bucket, puts[i].key, -1 - version)
        known = self._store.state.known_buckets
        if was_empty or bucket not in known:
            self._calls.call(self._names_key, "SADD", self._names_key, bucket, idempotent=True)
            known.add(bucket)
        return results

    def delete_many(
        self, bucket: str, keys: Sequence[str], versions: Sequence[int] | None = None
    ) -> builtins.list[bool]:
        check_deletes(bucket, keys, versions)
        args: builtins.list[Any] = []
        for i, key in enumerate(keys):
            check_key(key)
            args += (key, 0 if versions is None else max(versions[i], 0))
        return [bool(each) for each in self._call(bucket, "kv_delete", *args)] if keys else []

    # -- waiting ------------------------------------------------------------------------------

    def add_waiter(self, waiter: KvWaiter, version: int = 0) -> KvEntry | None:
        check_name(waiter.bucket, "bucket")
        check_key(waiter.key)
        service = self._waiters.service
        table = service.kv.waiters
        table.add(self._key(waiter.bucket), waiter)  # first: a change after the call must find it
        try:
            service.start()
            raw, expires_ms = self._call(waiter.bucket, "kv_watch", waiter.key, version, WATCH_MS)
        except BaseException:
            table.remove(waiter)
            raise
        if raw is not None:
            table.remove(waiter)
            return _entry(waiter.key, raw)
        if expires_ms:
            service.kv.add_deadline(waiter.bucket, expires_ms)
        return None

    def remove_waiter(self, waiter: KvWaiter) -> bool:
        return self._waiters.service.kv.waiters.remove(waiter)

    def load(self, entries: Sequence[KvEntry | None]) -> None:
        """Replies carry the values."""

    # -- upkeep -------------------------------------------------------------------------------

    def sweep_bucket(self, bucket: str) -> int:
        """Remove expired keys. Returns when the next key expires, 0 if none does."""
        return int(self._call(bucket, "kv_sweep", SWEPT_KEYS)[2])

    def sweep(self) -> builtins.list[BucketInfo]:
        """Remove expired keys of all buckets. Returns the buckets by name."""
        store, key = self._store, self._names_key
        if store.state.closed:
            raise Closed()
        names = sorted(name.decode() for name in self._calls.call(key, "SMEMBERS", key, idempotent=True))
        now = store.now_argument()
        function = function_name("kv_sweep")
        commands = [
            (bucket_key, (b"FCALL", function, 1, bucket_key, now, SWEPT_KEYS))
            for bucket_key in map(self._key, names)
        ]
        found: builtins.list[BucketInfo] = []
        for name, reply in zip(names, self._calls.many(commands, idempotent=True), strict=True):
            if isinstance(reply, Exception):
                reply = self._call(name, "kv_sweep", SWEPT_KEYS)  # a node without the functions
            found.append(BucketInfo(name, int(reply[0]), int(reply[1])))
            if not reply[0]:
                self._forget(name)
        return found

    def _forget(self, bucket: str) -> None:
        """Take an empty bucket from the list; a put that came in between puts it back."""
        key = self._names_key
        self._store.state.known_buckets.discard(bucket)
        self._calls.call(key, "SREM", key, bucket, idempotent=True)
        if self._call(bucket, "kv_sweep", 0)[0]:
            self._calls.call(key, "SADD", key, bucket, idempotent=True)


def _entry(key: str, raw: bytes) -> KvEntry:
    version, changed_ms, expires_ms, _, value = raw.split(b" ", 4)
    return KvEntry(key, value, int(version), int(changed_ms), int(expires_ms))
