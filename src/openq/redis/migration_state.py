"""The rest of a migration: users, policies, key-values, subscriptions and cursors.

All of it is small and copied after the messages. What is there already in the same form is left alone, so
that an interrupted migration can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..broker.kv import KvEntry, KvPut
from ..errors import InvalidSetting, OpenQError
from .migration_endpoints import MigrationEndpoint

USERS, POLICIES = "users", "policies"
_MAX_PUTS = 200
_MAX_PUT_BYTES = 1 << 20

# The value under which a key is copied, None to leave it out: bucket, entry, id of the target's last event.
ValueOf = Callable[[str, KvEntry, str], bytes | None]


@dataclass(slots=True)
class MigratedState:
    """What was copied besides the messages, and what its users should know."""

    users: bool = False
    policies: bool = False
    keys: int = 0
    subscriptions: int = 0
    cursors: int = 0
    notes: list[str] = field(default_factory=list)


def refuse_other_documents(source: MigrationEndpoint, target: MigrationEndpoint) -> None:
    """The users and policies of the target are never replaced. Raises InvalidSetting."""
    for name, document in source.documents.items():
        ours, theirs = document.read_if_changed(None), target.documents[name].read_if_changed(None)
        if ours is not None and theirs is not None and ours[1] != theirs[1]:
            raise InvalidSetting(
                f"{target.place} has other {name} already; migrate into an empty one, "
                "or keep them with --keep-users"
            )


def refuse_other_keys(source: MigrationEndpoint, target: MigrationEndpoint, value_of: ValueOf) -> None:
    """Raises InvalidSetting if a bucket that would be copied has keys in the target."""
    there = {bucket.name for bucket in target.broker.kv.buckets()}
    for bucket in source.broker.kv.buckets():
        if bucket.name in there and any(
            value_of(bucket.name, each, "") for each in _entries(source, bucket.name)
        ):
            raise InvalidSetting(
                f"bucket {bucket.name!r} is in {target.place} already; migrate into an empty one"
            )


def copy_state(
    source: MigrationEndpoint, target: MigrationEndpoint, value_of: ValueOf, keep_users: bool
) -> MigratedState:
    done = MigratedState()
    if not keep_users:
        done.users = _copy_document(source, target, USERS)
        done.policies = _copy_document(source, target, POLICIES)
    done.keys = _copy_keys(source, target, value_of)
    _copy_subscriptions(source, target, done)
    target.broker.sync()  # the end of the history is that of what is durable
    _copy_cursors(source, target, done)
    return done


def _copy_document(source: MigrationEndpoint, target: MigrationEndpoint, name: str) -> bool:
    found, place = source.documents[name].read_if_changed(None), target.documents[name]
    if found is None:
        return False
    with place.exclusive():
        if place.read_if_changed(None) is None:
            place.write(None, found[1])
    return True


def _entries(endpoint: MigrationEndpoint, bucket: str) -> Iterator[KvEntry]:
    after = ""
    while page := endpoint.broker.kv.list(bucket, "", after):
        endpoint.broker.kv.load(page)
        yield from page
        after = page[-1].key


def _copy_keys(source: MigrationEndpoint, target: MigrationEndpoint, value_of: ValueOf) -> int:
    end, now_ms, count = target.broker.events.end(), source.broker.now_ms(), 0
    for bucket in source.broker.kv.buckets():
        puts: list[KvPut] = []
        size = 0
        for entry in _entries(source, bucket.name):
            value = value_of(bucket.name, entry, end)
            ttl_ms = entry.expires_ms - now_ms if entry.expires_ms else None
            if value is None or (ttl_ms is not None and ttl_ms <= 0):
                continue
            puts.append(KvPut(entry.key, value, ttl_ms))
            size += len(value)
            count += 1
            if len(puts) >= _MAX_PUTS or size >= _MAX_PUT_BYTES:
                _put(target.broker.kv, bucket.name, puts)
                puts, size = [], 0
        _put(target.broker.kv, bucket.name, puts)
    return count


def _put(kv: Any, bucket: str, puts: list[KvPut]) -> None:
    for result in kv.put_many(bucket, puts) if puts else ():
        if isinstance(result, OpenQError):
            raise result


def _copy_subscriptions(source: MigrationEndpoint, target: MigrationEndpoint, done: MigratedState) -> None:
    """Leases do not outlive a migration, so the messages of open batches are in their queue again."""
    terms = source.broker.subscriptions.terms()
    target.broker.subscriptions.restore(terms, source.broker.subscriptions.retired())
    done.subscriptions = len(terms)
    for state in source.broker.subscriptions.states():
        if state.batches:
            numbers = ", ".join(str(each.batch) for each in state.batches)
            done.notes.append(
                f"subscription {state.name!r}: batch {numbers} was open; its messages are delivered again, "
                "in a batch with a new number"
            )


def _copy_cursors(source: MigrationEndpoint, target: MigrationEndpoint, done: MigratedState) -> None:
    for state in source.broker.cursors.states():
        cursor = state.cursor
        since_ms = source.unread_since(cursor)
        position = target.cursor_position(since_ms)
        target.broker.cursors.put(
            cursor.name, position, cursor.owner, hold_bytes=cursor.hold_bytes, hold_s=cursor.hold_s
        )
        done.cursors += 1
        if since_ms is not None:
            where = "from the beginning" if position == 0 else "from the first record that it had not read"
            done.notes.append(f"cursor {cursor.name!r} goes on {where}")
