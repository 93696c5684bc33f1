"""Key-values in the library: `queue.kv("results")`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..broker.kv import MAX_BATCH, KvConflict, KvEntry, KvPut, check_bucket, check_key
from ..errors import InvalidSetting, OpenQError
from . import checks
from .parts import QueuePart
from .times import to_ms

if TYPE_CHECKING:
    from .kv_waiting import KvWait
    from .queues import Queue

Value = bytes | bytearray | memoryview | str
T = TypeVar("T")

_SPLIT_BYTES = 4 << 20  # of values in one call


class KeyValue(QueuePart):
    """The values of a bucket: small, durable, with versions and TTLs.

        results = queue.kv("results")
        version = results.put("job-1", b"done", ttl=3600)
        entry = results.get("job-1")            # KvEntry(key, value, version, changed_ms, expires_ms) or None
        results.create("lock", b"me", ttl=30)   # False if it exists
        results.wait("job-2", timeout=10)       # as soon as it is there

    A bucket exists as long as it has keys. It is on the target of the queue, and all queues there share it.
    A key has up to 512 bytes, a value up to 1 MiB: bytes, or text, which is stored as UTF-8. A put replaces
    the value and the TTL. Versions grow with each put, and none is used twice, also not after a delete.
    """

    __slots__ = ("bucket",)

    def __init__(self, queue: Queue, bucket: str) -> None:
        super().__init__(queue)
        self.bucket = check_bucket(bucket)

    # -- reading ------------------------------------------------------------------------------

    def get(self, key: str) -> KvEntry | None:
        """The entry of a key; None if there is none or it has expired."""
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[str]) -> builtins.list[KvEntry | None]:
        """The entries of these keys, in their order."""
        wanted = _keys(keys)
        kv = self.core.broker.kv
        found: builtins.list[KvEntry | None] = []
        for some in _batches(wanted):
            found += kv.get_many(self.bucket, some)
        self._load(found)
        return found

    def _load(self, entries: Sequence[KvEntry | None]) -> None:
        """A value is shown once it is durable; `openq.aio` waits for that itself."""
        if self.core.is_blocking:
            self.core.broker.kv.load(entries)

    def list(self, prefix: str = "", limit: int | None = None) -> builtins.list[KvEntry]:
        """The entries whose keys begin with `prefix`, by key; at most `limit`."""
        return builtins.list(self._pages(checks.text(prefix, "prefix"), limit))

    def _pages(self, prefix: str, limit: int | None) -> Iterator[KvEntry]:
        left = None if limit is None else checks.integer(limit, "limit", 0)
        kv = self.core.broker.kv
        after = ""
        while left is None or left > 0:
            page = kv.list(self.bucket, prefix, after, MAX_BATCH if left is None else min(left, MAX_BATCH))
            if not page:
                return
            self._load(page)
            yield from page
            after = page[-1].key
            left = None if left is None else left - len(page)

    def wait(self, key: str, timeout: float | None = None, version: int = 0) -> KvEntry | None:
        """The entry as soon as the key has a version greater than `version`; None if none came in time.

        Waits up to `timeout` seconds, or for ever. No polling: the put wakes the waiting call.
        """
        return self.new_wait(key, version).wait(checks.timeout_or_none(timeout))

    def new_wait(self, key: str, version: int) -> KvWait:
        core = self.core
        check_key(key)
        checks.integer(version, "version", 0)
        return core.handle.kv_wait_class(core.broker.kv, self.bucket, key, version, core.waits)

    # -- changing -----------------------------------------------------------------------------

    def put(self, key: str, value: Value, ttl: float | None = None, version: int | None = None) -> int:
        """Store a value for `ttl` seconds, or for ever. Returns its version, once it is durable.

        With a `version` the put is refused with KvConflict unless the key has that version; 0: unless the
        key does not exist.
        """
        [result] = self._put([_make_put(key, value, ttl, version)])
        if isinstance(result, OpenQError):
            raise result
        return result

    def create(self, key: str, value: Value, ttl: float | None = None) -> bool:
        """Store a value if the key does not exist. False if it exists."""
        try:
            self.put(key, value, ttl, 0)
        except KvConflict:
            return False
        return True

    def put_many(
        self, items: Mapping[str, Value] | Iterable[KvPut], ttl: float | None = None
    ) -> builtins.list[int | KvConflict]:
        """Store many values with one wait for the disk: the version of each, or its conflict.

        `items` is a mapping from keys to values, or a list of `KvPut`; `ttl` is that of the mapping. If one
        is refused for another reason, its error is raised after the others were stored.
        """
        if isinstance(items, Mapping):
            puts = [_make_put(key, value, ttl, None) for key, value in items.items()]
        elif ttl is not None:
            raise InvalidSetting("each KvPut has its own ttl_ms: leave out ttl")
        else:
            puts = checks.items(items, "items")
        if not all(isinstance(put, KvPut) for put in puts):
            raise InvalidSetting("items must be a mapping from keys to values, or a list of KvPut")
        results: builtins.list[int | KvConflict] = []
        for result in self._put(puts):
            if isinstance(result, OpenQError) and not isinstance(result, KvConflict):
                raise result
            results.append(result)
        return results

    def _put(self, puts: Sequence[KvPut]) -> builtins.list[int | OpenQError]:
        kv = self.core.broker.kv
        results: builtins.list[int | OpenQError] = []
        for some in _put_batches(puts):
            results += kv.put_many(self.bucket, some)
        self.core.sync()
        return results

    def delete(self, key: str, version: int | None = None) -> bool:
        """Delete a key; with a `version`, only if it has that one. Returns whether it was deleted."""
        check_key(key)
        versions = None if version is None else [checks.integer(version, "version", 1)]
        [is_deleted] = self.core.broker.kv.delete_many(self.bucket, [key], versions)
        self.core.sync()
        return is_deleted

    def delete_many(self, keys: Iterable[str]) -> int:
        """Delete many keys with one wait for the disk. Returns how many of them existed."""
        kv = self.core.broker.kv
        count = 0
        for some in _batches(_keys(keys)):
            count += sum(kv.delete_many(self.bucket, some))
        self.core.sync()
        return count

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket!r} of {self.queue!r}>"


def _keys(keys: Iterable[str]) -> list[str]:
    found = checks.text_list(keys, "keys")
    for key in found:
        check_key(key)
    return found


def _make_put(key: str, value: Value, ttl: float | None, version: int | None) -> KvPut:
    check_key(key)
    if version is not None:
        checks.integer(version, "version", 0)
    return KvPut(key, _value_bytes(key, value), None if ttl is None else to_ms(ttl, "ttl"), version)


def _value_bytes(key: str, value: Value) -> bytes:
    if isinstance(value, str):
        return checks.utf8(value, f"the value of key {key!r}").encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidSetting(
        f"the value of key {key!r} must be bytes or text, not {type(value).__name__}; "
        "encode it first, for example with json.dumps"
    )


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), MAX_BATCH):
        yield items[start : start + MAX_BATCH]


def _put_batches(puts: Sequence[KvPut]) -> Iterator[Sequence[KvPut]]:
    start = size = 0
    for i, put in enumerate(puts):
        need = len(put.value) if isinstance(put.value, bytes) else 0
        if i > start and (size + need > _SPLIT_BYTES or i - start >= MAX_BATCH):
            yield puts[start:i]
            start, size = i, 0
        size += need
    if start < len(puts):
        yield puts[start:]
