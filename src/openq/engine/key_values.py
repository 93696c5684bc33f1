"""Key-values: small durable values under keys, in buckets, with versions and TTLs. Pure, like the engine.

Every value is in memory and in one record of the journal. `location` is where that record is, so that
housekeeping knows which segments hold live values and writes those of an old segment again. A put is one
record for any number of keys of a bucket; an expired value leaves without a record, because its own record
says when it expires.

Versions come from one counter for the whole store: they grow, and no version is used twice, also not after
a delete.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidSetting, KvConflict, KvFull, OpenQError
from ..model import check_name
from .records import KV_DELETE, KV_PUT, Record
from .rules import MAX_TIME_MS
from .timers import KV_BUCKET, KV_TTL, Timers

MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20
MAX_BATCH = 1_000  # keys in one call
MAX_BATCH_BYTES = 16 << 20  # of keys and values in one call
PAGE_BYTES = 4 << 20  # of values in one page of a listing
MEMORY_BYTES = 256 << 20  # of all keys and values
KEY_COST = 256  # what a key costs in memory beside its own bytes and its value

_FAR_SHIFT = 16  # deadlines later than the current 65,536 ms are kept as bare keys
_ROW_BYTES = 40  # of a row in a record, without key and value


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A value as it is stored. `expires_ms` 0: never."""

    key: str
    value: bytes
    version: int
    changed_ms: int
    expires_ms: int
    location: int = field(default=0, repr=False, compare=False)  # of its record; 0: it is not in a journal


@dataclass(slots=True)
class KvPut:
    """One value to store. `ttl_ms` None: it never expires.

    `version` None: whatever is there; 0: only if the key does not exist; n: only if its version is n.
    """

    key: str
    value: bytes
    ttl_ms: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class BucketInfo:
    """A bucket that has keys, and what they hold."""

    name: str
    count: int
    bytes: int  # of keys and values


class StoredValue:
    """A value in memory. Replaced by a put, so that a frozen state may refer to it."""

    __slots__ = ("armed_ms", "changed_ms", "expires_ms", "location", "size", "value", "version")

    def __init__(
        self, value: bytes | None, size: int, version: int, changed_ms: int, expires_ms: int, location: int
    ) -> None:
        self.value = value  # None: from a snapshot, to be read from `location`
        self.size = size
        self.version = version
        self.changed_ms = changed_ms
        self.expires_ms = expires_ms
        self.location = location
        self.armed_ms = 0  # a timer looks at this value then; 0: none does


class Bucket:
    """The keys of one bucket, and their order."""

    __slots__ = ("_fresh", "_order", "bytes", "deleted", "far", "name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, StoredValue] = {}
        self.bytes = 0
        self.deleted = False  # a bucket without keys is dropped; its timers recognise it by this
        self.far: dict[int, set[str]] = {}  # keys by the coarse time at which their deadline is armed
        self._order: list[str] = []  # sorted; may have keys that are gone
        self._fresh: list[str] = []  # new keys that are not in the order yet

    def add(self, key: str, stored: StoredValue) -> None:
        known = self.values.get(key)
        if known is None:
            self._fresh.append(key)
            self.bytes += len(key.encode()) + stored.size
        else:
            self.bytes += stored.size - known.size
            stored.armed_ms = known.armed_ms
        self.values[key] = stored

    def remove(self, key: str) -> StoredValue:
        stored = self.values.pop(key)
        self.bytes -= len(key.encode()) + stored.size
        waiting = self.far.get(stored.armed_ms >> _FAR_SHIFT)
        if waiting is not None:
            waiting.discard(key)
        return stored

    def keys_after(self, prefix: str, after: str) -> Iterator[str]:
        """The keys with a prefix, in order, beginning after `after`."""
        order = self._sorted()
        position = bisect_left(order, prefix)
        if after:
            position = max(position, bisect_right(order, after))
        last = ""
        while position < len(order) and order[position].startswith(prefix):
            key = order[position]
            position += 1
            # A key that was deleted and created again is there twice.
            if key in self.values and key != last:
                last = key
                yield key

    def _sorted(self) -> list[str]:
        if self._fresh:
            # Nearly sorted lists are merged in linear time.
            self._order += self._fresh
            self._order.sort()
            self._fresh = []
        if len(self._order) > 2 * len(self.values) + 64:
            self._order = sorted(self.values)
        return self._order

    def reindex(self) -> None:
        self._order, self._fresh = sorted(self.values), []
        self.bytes = sum(len(key.encode()) + stored.size for key, stored in self.values.items())


class KeyValueStore:
    def __init__(self, timers: Callable[[], Timers]) -> None:
        self._timers = timers
        self.log: Callable[[Record], int | None] | None = None  # None: there is no journal
        self.observer: Callable[[str, str], None] | None = None  # called after each change of a key
        self.buckets: dict[str, Bucket] = {}
        self.next_version = 1
        self.max_bytes = MEMORY_BYTES
        self.count = 0
        self.bytes = 0  # of keys and values

    # -- reading ------------------------------------------------------------------------------

    def get(self, bucket: str, key: str, now_ms: int) -> KvEntry | None:
        found = self.buckets.get(bucket)
        stored = None if found is None else self._live(found, key, now_ms)
        return None if stored is None else _entry(key, stored)

    def list(self, bucket: str, prefix: str, after: str, limit: int, now_ms: int) -> builtins.list[KvEntry]:
        """A page of a bucket, by key. It ends after `limit` entries or PAGE_BYTES of values."""
        found = self.buckets.get(bucket)
        page: builtins.list[KvEntry] = []
        size = 0
        for key in () if found is None else found.keys_after(prefix, after):
            if len(page) >= limit or size >= PAGE_BYTES:
                break
            assert found is not None
            stored = found.values[key]
            if not _is_over(stored, now_ms):
                page.append(_entry(key, stored))
                size += stored.size
        return page

    def _live(self, bucket: Bucket, key: str, now_ms: int) -> StoredValue | None:
        stored = bucket.values.get(key)
        if stored is not None and _is_over(stored, now_ms):
            self._drop(bucket, key)
            return None
        return stored

    # -- changing -----------------------------------------------------------------------------

    def put_many(self, bucket: str, puts: Sequence[KvPut], now_ms: int) -> builtins.list[int | OpenQError]:
        """The new version of each, or its error. Those that are accepted are one record."""
        check_name(bucket, "bucket")
        check_batch(puts)
        found = self.buckets.get(bucket)
        pending: dict[str, tuple[int, int]] = {}  # version and size after the puts before
        results: builtins.list[int | OpenQError] = []
        rows: builtins.list[tuple[str, int, int, int, bytes]] = []
        version, room = self.next_version, self.max_bytes - self.bytes - KEY_COST * self.count
        for put in puts:
            try:
                check_put(put)
                current, size = pending.get(put.key) or self._current(found, put.key, now_ms)
                if put.version is not None and put.version != current:
                    raise KvConflict(bucket, put.key, current)
                need = len(put.value) - size
                if not current:
                    need += KEY_COST + len(put.key.encode())
                if need > 0 and need > room:
                    raise KvFull(self.max_bytes)
            except OpenQError as error:
                results.append(error)
                continue
            room -= need
            pending[put.key] = (version, len(put.value))
            expires_ms = 0 if put.ttl_ms is None else min(now_ms + put.ttl_ms, MAX_TIME_MS)
            rows.append((put.key, version, now_ms, expires_ms, put.value))
            results.append(version)
            version += 1
        if rows:
            location = self._log_record((KV_PUT, now_ms, 0, 0, bucket, tuple(rows)))
            self.apply_puts(bucket, rows, location, now_ms)
        return results

    def _current(self, bucket: Bucket | None, key: str, now_ms: int) -> tuple[int, int]:
        """The version of a key, 0 if it does not exist, and the size of its value."""
        stored = None if bucket is None or bucket.deleted else self._live(bucket, key, now_ms)
        return (0, 0) if stored is None else (stored.version, stored.size)

    def apply_puts(
        self, bucket: str, rows: Sequence[tuple[str, int, int, int, bytes]], location: int, now_ms: int
    ) -> None:
        """The change that a record says: of a put, on a replay, or of a copy."""
        for key, version, changed_ms, expires_ms, value in rows:
            self.add(
                bucket, key, StoredValue(value, len(value), version, changed_ms, expires_ms, location), now_ms
            )

    def add(self, bucket: str, key: str, stored: StoredValue, now_ms: int) -> None:
        found = self.buckets.get(bucket)
        if found is None:
            found = self.buckets[bucket] = Bucket(bucket)
        self.next_version = max(self.next_version, stored.version + 1)
        before, known = found.bytes, len(found.values)
        found.add(key, stored)
        self.bytes += found.bytes - before
        self.count += len(found.values) - known
        if stored.expires_ms and not 0 < stored.armed_ms <= stored.expires_ms:
            self._arm(found, key, stored, now_ms)
        if self.observer is not None:
            self.observer(bucket, key)

    def delete_many(
        self, bucket: str, keys: Sequence[str], versions: Sequence[int] | None, now_ms: int
    ) -> builtins.list[bool]:
        """Whether each key existed, with that version if one is given (0 or less: any), and is deleted."""
        check_deletes(bucket, keys, versions)
        found = self.buckets.get(bucket)
        gone: dict[str, None] = {}
        results: builtins.list[bool] = []
        for i, key in enumerate(keys):
            current, _ = (0, 0) if key in gone else self._current(found, key, now_ms)
            wanted = 0 if versions is None else versions[i]
            results.append(current > 0 and (wanted <= 0 or wanted == current))
            if results[-1]:
                gone[key] = None
        if gone:
            self._log_record((KV_DELETE, now_ms, 0, 0, bucket, tuple(gone)))
            self.apply_deletes(bucket, tuple(gone))
        return results

    def apply_deletes(self, bucket: str, keys: Sequence[str]) -> None:
        for key in keys:
            found = self.buckets.get(bucket)
            if found is not None and key in found.values:
                self._drop(found, key)

    def _drop(self, bucket: Bucket, key: str) -> None:
        before = bucket.bytes
        bucket.remove(key)
        self.bytes += bucket.bytes - before
        self.count -= 1
        if not bucket.values:
            bucket.deleted = True
            del self.buckets[bucket.name]
        if self.observer is not None:
            self.observer(bucket.name, key)

    def _log_record(self, record: Record) -> int:
        return 0 if self.log is None else self.log(record) or 0

    # -- time ---------------------------------------------------------------------------------

    def _arm(self, bucket: Bucket, key: str, stored: StoredValue, now_ms: int) -> None:
        far = stored.expires_ms >> _FAR_SHIFT
        if far <= now_ms >> _FAR_SHIFT:
            stored.armed_ms = stored.expires_ms
            self._timers().add(stored.expires_ms, (KV_TTL, bucket, key))
            return
        stored.armed_ms = far << _FAR_SHIFT
        waiting = bucket.far.get(far)
        if waiting is None:
            waiting = bucket.far[far] = set()
            self._timers().add(stored.armed_ms, (KV_BUCKET, bucket, far))
        waiting.add(key)

    def open_far(self, bucket: Bucket, far: int, now_ms: int) -> None:
        """The deadlines of a coarse time are near now: each gets its own timer."""
        for key in bucket.far.pop(far, ()):
            self.look_at(bucket, key, now_ms)

    def look_at(self, bucket: Bucket, key: str, now_ms: int) -> None:
        """A timer of this key is due: it expires, or its deadline has moved on."""
        stored = bucket.values.get(key)
        if stored is None or stored.armed_ms > now_ms:
            return
        if not stored.expires_ms:
            stored.armed_ms = 0  # a later put took its TTL away
        elif _is_over(stored, now_ms):
            self._drop(bucket, key)
        else:
            self._arm(bucket, key, stored, now_ms)

    def rebuild_timers(self, now_ms: int = 0) -> None:
        """The timers are new: arm every deadline again."""
        for bucket in self.buckets.values():
            bucket.far.clear()
            for key, stored in bucket.values.items():
                stored.armed_ms = 0
                if stored.expires_ms:
                    self._arm(bucket, key, stored, now_ms)

    def deadlines(self) -> int:
        """An upper bound of the timers that are needed."""
        return self.count

    # -- the journal --------------------------------------------------------------------------

    def freeze(self) -> builtins.list[tuple[str, builtins.list[tuple[str, StoredValue]]]]:
        return [(name, builtins.list(bucket.values.items())) for name, bucket in self.buckets.items()]

    def copy_forward(
        self, bucket: str, values: Sequence[tuple[str, StoredValue]], segment: int, now_ms: int
    ) -> int:
        """Write those of these values again that are still current and in `segment`. Returns how many."""
        found = self.buckets.get(bucket)
        current = [
            (key, stored)
            for key, stored in values
            if found is not None
            and stored.location >> 32 == segment
            and found.values.get(key) is stored
            and not _is_over(stored, now_ms)
        ]
        if current:
            rows = tuple(
                (key, each.version, each.changed_ms, each.expires_ms, each.value or b"")
                for key, each in current
            )
            location = self._log_record((KV_PUT, now_ms, 0, 0, bucket, rows))
            for _, stored in current:
                stored.location = location
        return len(current)

    def unloaded(self) -> builtins.list[tuple[str, str, StoredValue]]:
        """The values of a snapshot that must be read from the journal."""
        return [
            (name, key, stored)
            for name, bucket in self.buckets.items()
            for key, stored in bucket.values.items()
            if stored.value is None
        ]

    def drop_unreadable(self, bucket: str, key: str) -> None:
        """Its record is damaged."""
        found = self.buckets.get(bucket)
        if found is not None and key in found.values:
            self._drop(found, key)

    # -- the rest -----------------------------------------------------------------------------

    def list_buckets(self) -> builtins.list[BucketInfo]:
        """By name. Values that have expired a moment ago may still be counted."""
        return [
            BucketInfo(name, len(bucket.values), bucket.bytes)
            for name, bucket in sorted(self.buckets.items())
        ]

    def rebuild(self) -> None:
        """After an interrupt in the middle of a change."""
        for name, bucket in builtins.list(self.buckets.items()):
            if not bucket.values:
                bucket.deleted = True
                del self.buckets[name]
            bucket.reindex()
        self.count = sum(len(bucket.values) for bucket in self.buckets.values())
        self.bytes = sum(bucket.bytes for bucket in self.buckets.values())


def _is_over(stored: StoredValue, now_ms: int) -> bool:
    return 0 < stored.expires_ms <= now_ms


def _entry(key: str, stored: StoredValue) -> KvEntry:
    assert stored.value is not None, "values of a snapshot are read before the first call"
    return KvEntry(key, stored.value, stored.version, stored.changed_ms, stored.expires_ms, stored.location)


# -- checks: the same on every store --------------------------------------------------------------


def check_key(key: object) -> None:
    if not isinstance(key, str):
        raise InvalidSetting(f"a key must be text, not {key!r:.60}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidSetting("a key must be text that can be encoded as UTF-8") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise InvalidSetting(f"a key must have 1 to {MAX_KEY_BYTES} bytes, this one has {size}")


def check_put(put: KvPut) -> None:
    check_key(put.key)
    if not isinstance(put.value, bytes):
        raise InvalidSetting(f"the value of key {put.key!r} must be bytes, not {type(put.value).__name__}")
    if len(put.value) > MAX_VALUE_BYTES:
        raise InvalidSetting(
            f"a value must have at most {MAX_VALUE_BYTES} bytes, that of key {put.key!r} has "
            f"{len(put.value)}; store it elsewhere, and its address here"
        )
    if put.ttl_ms is not None and not _is_whole(put.ttl_ms, 1):
        raise InvalidSetting(f"the ttl of key {put.key!r} must be more than 0, or None for ever")
    if put.version is not None and not _is_whole(put.version, 0):
        raise InvalidSetting(f"the version of key {put.key!r} must be a whole number, 0 or more, or None")


def _is_whole(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 1 << 63


def check_batch(puts: Sequence[KvPut]) -> None:
    if len(puts) > MAX_BATCH:
        raise InvalidSetting(f"at most {MAX_BATCH} keys in one call, not {len(puts)}")
    size = sum(len(put.value) for put in puts if isinstance(put.value, bytes))
    if size > MAX_BATCH_BYTES:
        raise InvalidSetting(f"at most {MAX_BATCH_BYTES} bytes of values in one call, not {size}")


def record_bytes(bucket: str, puts: Sequence[KvPut]) -> int:
    """An upper bound of the bytes of the record of these puts."""
    rows = sum(_ROW_BYTES + 4 * len(put.key) + len(put.value) for put in puts if isinstance(put.key, str))
    return 64 + 4 * len(bucket) + rows


def check_deletes(bucket: str, keys: Sequence[str], versions: Sequence[int] | None) -> None:
    """Raises InvalidSetting."""
    check_name(bucket, "bucket")
    if len(keys) > MAX_BATCH:
        raise InvalidSetting(f"at most {MAX_BATCH} keys in one call, not {len(keys)}")
    if versions is not None and len(versions) != len(keys):
        raise InvalidSetting(f"{len(keys)} keys need as many versions, not {len(versions)}")
