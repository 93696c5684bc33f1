"""Copy everything that a broker holds into another one: from a data directory to Redis, or back.

Both brokers are opened with a clock that stands still, so that no message expires, becomes due or is
dead-lettered during the migration. Messages are copied in the order of their sequence; together with their
priorities and groups this is the order of delivery. Every step can be repeated: an id that already exists in
the target is skipped, and a document in the target records which queues are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from ..engine.routing import Binding, Exchange
from ..errors import InvalidSetting, OpenQError, QueueNotFound
from ..model import DeliveryOptions, Entry, QueueSettings
from .migration_endpoints import MigrationEndpoint
from .migration_state import (
    MigratedState,
    ValueOf,
    copy_state,
    refuse_other_documents,
    refuse_other_keys,
)

CHUNK = 256
CHUNK_BYTES = 1 << 20


class MigrationFailed(OpenQError):
    """The target's content differs from the source's. The source is unchanged."""

    code = "migration_failed"


@dataclass(frozen=True, slots=True)
class QueueContent:
    """The content of a queue, in a form that is the same on both sides."""

    count: int
    bytes: int
    ids: str  # digests, in order
    bodies: str
    facts: str  # counts, times, priorities, groups, attributes, dead-letter events

    def difference(self, other: QueueContent) -> str:
        if self.count != other.count:
            return f"{self.count} messages left and {other.count} arrived"
        if self.ids != other.ids:
            return "other ids, or in another order"
        return "other bodies" if self.bodies != other.bodies else "other counts, times or attributes"


@dataclass(slots=True)
class MigratedQueue:
    queue: str
    count: int
    bytes: int
    past: int = 0
    before: bool = False  # migrated by an earlier run


@dataclass(frozen=True, slots=True)
class Migrated:
    queues: list[MigratedQueue]
    state: MigratedState


# -- inspecting ---------------------------------------------------------------------------------


def queues(endpoint: MigrationEndpoint) -> list[str]:
    return sorted(endpoint.broker.queues())


def count(endpoint: MigrationEndpoint) -> int:
    total = 0
    for queue in queues(endpoint):
        stats = endpoint.broker.stats(queue)
        total += stats.ready + stats.delayed + stats.in_flight
    return total


def waiting(endpoint: MigrationEndpoint, queue: str) -> list[Entry]:
    """All messages of a queue by sequence; messages in flight return to their position."""
    return sorted(
        (entry for entry, _, _ in endpoint.broker.inspect.walk(queue, "all", None)),
        key=lambda entry: entry.seq,
    )


def whole(endpoint: MigrationEndpoint, queue: str, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries with body, id and counts, a few hundred at a time: complete, so that another broker can import
    them."""
    broker = endpoint.broker
    for part in _parts(entries):
        leases = broker.inspect.leases_of(queue, [entry.seq for entry in part])
        yield [
            _whole(entry, broker.inspect.message_id(entry), leases.get(entry.seq))
            for entry in broker.inspect.with_bodies(part)
        ]


def _parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += entry.size
        if len(part) >= CHUNK or size >= CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _whole(entry: Entry, id: str, delivery: Any) -> Entry:
    options = entry.options.copy() if entry.options is not None else DeliveryOptions()
    options.id = id
    options.number = 0  # receipts of the source are not valid in the target
    if delivery is not None:
        options.count = delivery.count
        options.first_ms = options.first_ms or delivery.delivered_ms
    return Entry(
        entry.seq,
        entry.sent_ms,
        0,
        entry.size,
        entry.encoding,
        entry.body,
        entry.properties,
        options.mark_plain(),
    )


def content(endpoint: MigrationEndpoint, queue: str) -> QueueContent:
    ids, bodies, facts = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    number = size = 0
    now_ms = endpoint.broker.now_ms()
    for part in whole(endpoint, queue, waiting(endpoint, queue)):
        for entry in part:
            options, body = entry.options, entry.body or b""
            assert options is not None
            number += 1
            size += len(body)
            ids.update(f"{options.id}\n".encode())
            bodies.update(hashlib.sha256(body).digest())
            facts.update(repr(_facts(entry, options, now_ms)).encode())
    return QueueContent(number, size, ids.hexdigest(), bodies.hexdigest(), facts.hexdigest())


def _facts(entry: Entry, options: DeliveryOptions, now_ms: int) -> tuple[object, ...]:
    properties = entry.properties
    said = (
        None
        if properties is None
        else (properties.publisher, properties.amqp_properties or sorted(properties.attributes.items()))
    )
    return (
        entry.encoding,
        options.born_ms or entry.sent_ms,
        options.due_ms if options.due_ms > now_ms else 0,
        *(options.expires_ms, options.count, options.priority, options.group, options.type, options.unique),
        *(options.failure, tuple(map(tuple, options.deaths)), said),
    )


# -- migrating ----------------------------------------------------------------------------------


def migrate(
    source: MigrationEndpoint,
    target: MigrationEndpoint,
    *,
    history: bool = True,
    keep_users: bool = False,
    value_of: ValueOf = lambda bucket, entry, end: entry.value,
    progress: Callable[[int], None] | None = None,
) -> Migrated:
    """Copy everything, and verify that it arrived. Raises MigrationFailed if it did not."""
    state = _state(source, target)
    names = queues(source)
    if not keep_users:
        refuse_other_documents(source, target)
    if not state.get("begun"):
        _refuse_occupied(target, names)
        refuse_other_keys(source, target, value_of)
        state["begun"] = True
        state["options"] = ["--no-history"] * (not history) + ["--keep-users"] * keep_users
        _save(target, state)
    done: dict[str, dict[str, int]] = state["queues"]
    pending = [name for name in names if name not in done]
    for name in pending:
        if not _exists(target, name):
            target.broker.declare(name, _permissive(source.broker.settings(name)))
    _copy_exchanges(source, target)
    target.broker.sync()
    moved = [MigratedQueue(name, before=True, **done[name]) for name in names if name in done]
    total = sum(each.count for each in moved)

    def report(number: int) -> None:
        nonlocal total
        total += number
        if progress is not None:
            progress(total)

    for name in pending:
        result = _move(source, target, name, history, report)
        target.broker.sync()
        done[name] = {key: getattr(result, key) for key in ("count", "bytes", "past")}
        state["ids"][name] = _ids_of(source, name)
        _save(target, state)
        moved.append(result)
    for schedule in source.broker.schedules.list():
        target.broker.schedules.restore(schedule)
    copied = copy_state(source, target, value_of, keep_users)
    target.broker.sync()
    state["done"] = True
    _save(target, state)
    return Migrated(sorted(moved, key=lambda each: each.queue), copied)


def is_done(source: MigrationEndpoint, target: MigrationEndpoint) -> bool:
    """Whether an earlier run was completed. Raises InvalidSetting if that run had another source, or if the
    source has changed since: the later messages would be left behind."""
    state = _state(source, target)
    if not state.get("done"):
        return False
    names = queues(source)
    changed = [name for name in names if state["ids"].get(name) != _ids_of(source, name)]
    changed += [name for name in state["queues"] if name not in names]
    if changed:
        raise InvalidSetting(
            f"{source.place} was moved to {target.place} before and has changed since "
            f"(queue {changed[0]!r}): migrate it into an empty place, or `openq export` what is new"
        )
    return True


def _ids_of(endpoint: MigrationEndpoint, queue: str) -> str:
    """The ids of the messages of a queue, in order."""
    ids = [endpoint.broker.inspect.message_id(entry) for entry in waiting(endpoint, queue)]
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def _state(source: MigrationEndpoint, target: MigrationEndpoint) -> dict[str, Any]:
    data = target.load_state()
    if data is None:
        return _new_state(source)
    state: dict[str, Any] = json.loads(data)
    if state.get("from") == source.broker.storage.id_prefix:
        return state
    if not state.get("done"):
        raise InvalidSetting(
            f"{target.place} holds a part of {state.get('place')}: finish that first, or take an empty one"
        )
    return _new_state(source)


def _new_state(source: MigrationEndpoint) -> dict[str, Any]:
    return {"from": source.broker.storage.id_prefix, "place": source.address, "queues": {}, "ids": {}}


def _save(target: MigrationEndpoint, state: dict[str, Any]) -> None:
    target.save_state(json.dumps(state, ensure_ascii=False).encode())


def _refuse_occupied(target: MigrationEndpoint, names: Iterable[str]) -> None:
    there = set(target.broker.queues())
    for name in names:
        if name in there:
            raise InvalidSetting(f"queue {name!r} is in {target.place} already; migrate into an empty one")


def _exists(endpoint: MigrationEndpoint, queue: str) -> bool:
    try:
        endpoint.broker.settings(queue)
    except QueueNotFound:
        return False
    return True


def _permissive(settings: QueueSettings) -> QueueSettings:
    """The settings during the migration: paused, without limits, expiry and dead letters."""
    return settings.with_(
        paused=True,
        delay_ms=0,
        ttl_ms=None,
        max_receives=None,
        dead_letter=None,
        dead_letter_exchange=None,
        dead_letter_key=None,
        dead_letter_expired=False,
        max_length=None,
        max_bytes=None,
        max_body=None,
        overflow="drop-head",
        dedup_by_content=False,
    )


def _copy_exchanges(source: MigrationEndpoint, target: MigrationEndpoint) -> None:
    exchanges: list[Exchange] = source.broker.exchanges.list_exchanges()
    bindings: list[Binding] = source.broker.exchanges.bindings()
    there = {exchange.name for exchange in target.broker.exchanges.list_exchanges()}
    for exchange in exchanges:
        if exchange.name not in there:
            target.broker.exchanges.declare_exchange(exchange)
    for binding in bindings:
        target.broker.exchanges.bind(binding)


def _move(
    source: MigrationEndpoint,
    target: MigrationEndpoint,
    name: str,
    history: bool,
    report: Callable[[int], None],
) -> MigratedQueue:
    entries = waiting(source, name)
    live = {source.broker.inspect.message_id(entry) for entry in entries}
    target.rewind()
    have = {target.broker.inspect.message_id(entry) for entry in waiting(target, name)}
    for half_done in have - live:
        target.broker.admin.cancel(name, half_done)  # of the history: an earlier run was interrupted
    past = 0
    gone = _gone(source, name, live) if history and source.broker.settings(name).history_ms else iter(())
    for is_live, part in _together(_living(source, name, entries), gone):
        if is_live:
            target.import_messages(name, [entry for entry in part if entry.options.id not in have])
            report(len(part))
        else:
            target.import_history(name, part)
            past += len(part)
    target.return_to_present()
    window = [each for each in source.dedup_window(name) if each[1] not in live]
    for start in range(0, len(window), CHUNK):
        target.import_dedup_window(name, window[start : start + CHUNK])
    left, arrived = content(source, name), content(target, name)
    if left != arrived:
        raise MigrationFailed(f"queue {name!r}: {left.difference(arrived)}; the source is as it was")
    target.broker.declare(name, source.broker.settings(name), change=True)
    return MigratedQueue(name, left.count, left.bytes, past)


_Timed = tuple[int, int, bool, Any]  # send time, sequence, whether it is live, the message


def _living(source: MigrationEndpoint, name: str, entries: Sequence[Entry]) -> Iterator[_Timed]:
    for part in whole(source, name, entries):
        for entry in part:
            yield entry.sent_ms, entry.seq, True, entry


def _gone(source: MigrationEndpoint, name: str, live: set[str]) -> Iterator[_Timed]:
    """Settled messages that are still kept."""
    after = 0
    while messages := source.past(name, after, CHUNK):
        after = messages[-1].seq
        for message in messages:
            options = message.options.copy() if message.options is not None else DeliveryOptions()
            options.id = options.id or source.broker.inspect.id_of(message.seq)
            if options.id not in live:
                options.born_ms = options.born_ms or message.time_ms
                options.dedup = options.unique = None
                options.due_ms = options.expires_ms = 0
                message.options = options.mark_plain()
                yield message.time_ms, message.seq, False, message


def _together(*streams: Iterator[_Timed]) -> Iterator[tuple[bool, list[Any]]]:
    """Merge by time; consecutive messages of one kind are returned together."""
    for is_live, run in groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(2)):
        while part := [each for _, _, _, each in islice(run, CHUNK)]:
            yield is_live, part
