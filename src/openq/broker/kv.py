"""The key-values of a broker: `broker.kv`. Small durable values under keys, in buckets.

Each store implements `KeyValues`: `local/key_values.py`, `redis/key_values.py`; a client of a server has
`client/remote_kv.py`. A call may be for many keys. Like the calls for messages, a change is durable after
`sync` or `after_commit`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Protocol

from ..engine.key_values import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    PAGE_BYTES,
    BucketInfo,
    KvEntry,
    KvPut,
    check_batch,
    check_deletes,
    check_key,
    check_put,
)
from ..errors import InvalidSetting, KvConflict, KvFull, OpenQError
from ..model import check_name
from ..names import split_name

__all__ = [
    "MAX_BATCH",
    "MAX_BATCH_BYTES",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "PAGE_BYTES",
    "BucketInfo",
    "KeyValues",
    "KvConflict",
    "KvEntry",
    "KvFull",
    "KvPut",
    "KvWaiter",
    "check_batch",
    "check_bucket",
    "check_deletes",
    "check_key",
    "check_put",
]


# Buckets of the server itself, such as webhooks with their secrets: clients do not reach them.
SERVER_BUCKETS = "openq.server."


def is_server_bucket(bucket: str) -> bool:
    return split_name(bucket)[1].startswith(SERVER_BUCKETS)


def check_bucket(bucket: str) -> str:
    """A bucket that a client names. Raises InvalidSetting."""
    if is_server_bucket(check_name(bucket, "bucket")):
        raise InvalidSetting(
            f"buckets whose names begin with {SERVER_BUCKETS} are those of the server itself"
        )
    return bucket


class KvWaiter:
    """One call that waits for a change of a key.

    `notify` is called once, from any thread, with the lock of the broker held: it must only wake the caller,
    which then asks again. It is called for a put, a delete and an expiry, and when the broker closes.
    """

    __slots__ = ("bucket", "key", "notify")

    def __init__(self, bucket: str, key: str, notify: Callable[[], None]) -> None:
        self.bucket = bucket
        self.key = key
        self.notify = notify


class KeyValues(Protocol):
    """Values by bucket and key.

    Entries must pass `load` before a client sees them: it waits until they are durable.
    """

    def get_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[KvEntry | None]: ...

    def put_many(self, bucket: str, puts: Sequence[KvPut]) -> builtins.list[int | OpenQError]:
        """The new version of each, or why it was refused. Those that are accepted are stored together."""

    def delete_many(
        self, bucket: str, keys: Sequence[str], versions: Sequence[int] | None = None
    ) -> builtins.list[bool]:
        """Whether each key was deleted. With versions: only if it has that one; 0 stands for any."""

    def list(
        self, bucket: str, prefix: str = "", after: str = "", limit: int = 1000
    ) -> builtins.list[KvEntry]:
        """A page of the keys with a prefix, in the order of their UTF-8, beginning after `after`.

        A page ends early after PAGE_BYTES of values: only an empty one is the end.
        """

    def buckets(self) -> builtins.list[BucketInfo]: ...

    def add_waiter(self, waiter: KvWaiter, version: int = 0) -> KvEntry | None:
        """The entry if it has a greater version already; else the waiter is called after the next change."""

    def remove_waiter(self, waiter: KvWaiter) -> bool: ...  # False: it was called

    def load(self, entries: Sequence[KvEntry | None]) -> None: ...
