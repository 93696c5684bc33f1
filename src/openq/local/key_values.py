"""Key-values of the local broker: the engine's part with the lock, the journal and the waiters."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from ..broker.kv import BucketInfo, KvEntry, KvPut, KvWaiter, check_key
from ..engine.key_values import record_bytes
from ..errors import OpenQError
from ..model import check_name
from .core import BrokerCore


class LocalKeyValues:
    """The `KeyValues` role of the local broker."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._values = core.engine.key_values
        self._values.observer = self._on_change
        self._waiters: dict[tuple[str, str], builtins.list[KvWaiter]] = {}

    def get_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[KvEntry | None]:
        check_name(bucket, "bucket")
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            now_ms = core.now_ms()
            return [self._values.get(bucket, key, now_ms) for key in keys]

    def put_many(self, bucket: str, puts: Sequence[KvPut]) -> builtins.list[int | OpenQError]:
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            core.require_room(record_bytes(bucket, puts))
            results = self._values.put_many(bucket, puts, core.now_ms())
            if any(put.ttl_ms is not None for put in puts):
                core.ticker.start()  # in memory it runs only when it is needed
            core.end_change()
        return results

    def delete_many(
        self, bucket: str, keys: Sequence[str], versions: Sequence[int] | None = None
    ) -> builtins.list[bool]:
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            return self._values.delete_many(bucket, keys, versions, core.now_ms())

    def list(
        self, bucket: str, prefix: str = "", after: str = "", limit: int = 1000
    ) -> builtins.list[KvEntry]:
        check_name(bucket, "bucket")
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            return self._values.list(bucket, prefix, after, limit, core.now_ms())

    def buckets(self) -> builtins.list[BucketInfo]:
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            core.advance()
            return self._values.list_buckets()

    # -- waiting ------------------------------------------------------------------------------

    def add_waiter(self, waiter: KvWaiter, version: int = 0) -> KvEntry | None:
        check_name(waiter.bucket, "bucket")
        check_key(waiter.key)
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            entry = self._values.get(waiter.bucket, waiter.key, core.now_ms())
            if entry is not None and entry.version > version:
                return entry
            self._waiters.setdefault((waiter.bucket, waiter.key), []).append(waiter)
        core.ticker.start()  # it ends the TTLs that a waiter may wait for
        return None

    def remove_waiter(self, waiter: KvWaiter) -> bool:
        with self._core.lock:
            waiters = self._waiters.get((waiter.bucket, waiter.key))
            if waiters is None or waiter not in waiters:
                return False
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[waiter.bucket, waiter.key]
            return True

    def _on_change(self, bucket: str, key: str) -> None:
        """Lock held."""
        if self._waiters:
            for waiter in self._waiters.pop((bucket, key), ()):
                waiter.notify()

    def close(self) -> None:
        """Lock held. Wake every waiter: its next call raises `Closed`."""
        waiters, self._waiters = self._waiters, {}
        for each in waiters.values():
            for waiter in each:
                waiter.notify()

    # -- durability ---------------------------------------------------------------------------

    def load(self, entries: Sequence[KvEntry | None]) -> None:
        """Wait until these entries are on disk. A value that a crash could take back must not be seen."""
        journal = self._core.journal
        if journal is None or self._core.relaxed:
            return
        newest = self.commit_location(entries)
        if newest >= journal.durable_location:
            journal.wait(newest)

    def commit_location(self, entries: Sequence[KvEntry | None]) -> int:
        return max((entry.location for entry in entries if entry is not None), default=0)
