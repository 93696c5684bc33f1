"""`openq migrate`: copy everything from a data directory to Redis, or back."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable

import msgspec

from ..alerts import store as alert_store
from ..amqp import policies
from ..auth.documents import FileDocument, SharedDocument
from ..broker import unfinished, workers
from ..broker.history import HistoryRange, PastMessage
from ..broker.kv import SERVER_BUCKETS, KvEntry
from ..clock import VirtualClock
from ..engine.routing import PREDECLARED
from ..errors import InvalidSetting
from ..journal import lockfile
from ..local.broker import LocalBroker
from ..names import split_name
from ..redis import migrate as migration
from ..redis.migrate import MigratedQueue
from ..redis.migration_endpoints import MigrationEndpoint, RedisEndpoint, SteppingClock
from ..redis.migration_state import POLICIES, USERS, MigratedState
from ..redis.servers import ServerDirectory
from ..server.fleet import FLEET
from ..webhooks import store as webhook_store
from ..webhooks.model import Webhook
from .api import NotFound
from .output import count_text, print_json
from .progress import ProgressBar
from .terminal import OK, say, size_text


def migrate(options: Namespace) -> int:
    if options.source == options.target:
        raise InvalidSetting("--from and --to are the same")
    # One clock for both sides, and it stands still: nothing may expire or become due meanwhile.
    clock = VirtualClock(time.time_ns() // 1_000_000)
    source, close_source = open_endpoint(options.source, clock, create=False)
    try:
        if options.dry_run:
            return _print_content(source, options)
        target, close_target = open_endpoint(options.target, clock, create=True)
        try:
            return _move(source, target, options)
        finally:
            close_target()
    finally:
        close_source()


def _move(source: MigrationEndpoint, target: MigrationEndpoint, options: Namespace) -> int:
    if migration.is_done(source, target):
        say(f"{source.place} was migrated to {target.place} already")
        if options.json:
            print_json([])
        return OK
    bar = ProgressBar("migrate", migration.count(source))
    try:
        moved = migration.migrate(
            source,
            target,
            history=not options.no_history,
            keep_users=options.keep_users,
            value_of=_value_of,
            progress=bar.update,
        )
    finally:
        bar.end()
    for note in moved.state.notes:
        say(note)
    if options.json:
        print_json(
            [
                {"queue": each.queue, "messages": each.count, "bytes": each.bytes, "history": each.past}
                for each in moved.queues
            ]
        )
        return OK
    for each in moved.queues:
        print(_line(each))
    print(", ".join(_state_counts(moved.state, source)))
    total = sum(each.count for each in moved.queues)
    content = f"{count_text(total, 'message')} in {count_text(len(moved.queues), 'queue')}"
    print(f"{content} copied to {target.place}, verified against {source.place}")
    return OK


def _state_counts(state: MigratedState, source: MigrationEndpoint) -> list[str]:
    schedules = len(source.broker.schedules.list())
    documents = [name for name in ("users", "policies") if getattr(state, name)]
    return [
        *documents,
        count_text(schedules, "schedule"),
        count_text(state.keys, "key-value"),
        count_text(state.cursors, "cursor"),
        count_text(state.subscriptions, "subscription"),
    ]


def _value_of(bucket: str, entry: KvEntry, end: str) -> bytes | None:
    """Everything is copied but what belongs to running processes, or to the events of the source.

    A webhook for events goes on with the next event of the target.
    """
    name = split_name(bucket)[1]
    if name in workers.BUCKETS:
        return None
    if name == alert_store.BUCKET:
        is_server = entry.key.startswith((alert_store.SERVER, "owner/"))
        return None if is_server else entry.value
    if name != webhook_store.RECORDS:
        return None if name.startswith(SERVER_BUCKETS) else entry.value
    webhook = msgspec.json.decode(entry.value, type=Webhook)
    if webhook.events is None:
        return entry.value
    return msgspec.json.encode(msgspec.structs.replace(webhook, position=end))


def _line(moved: MigratedQueue) -> str:
    parts = [f"{count_text(moved.count, 'message')}, {size_text(moved.bytes)}"]
    if moved.past:
        parts.append(f"{moved.past} of history")
    if moved.before:
        parts.append("by an earlier run")
    return f"{moved.queue}: {', '.join(parts)}"


def _print_content(source: MigrationEndpoint, options: Namespace) -> int:
    rows = []
    for queue in migration.queues(source):
        stats = source.broker.stats(queue)
        waiting = stats.ready + stats.delayed + stats.in_flight
        rows.append({"queue": queue, "messages": waiting, "in_flight": stats.in_flight})
    if options.json:
        print_json(rows)
        return OK
    for row in rows:
        in_flight = f", {row['in_flight']} of them in flight" if row["in_flight"] else ""
        print(f"{row['queue']}: {count_text(int(row['messages']), 'message')}{in_flight}")
    exchanges = len([each for each in source.broker.exchanges.list_exchanges() if each not in PREDECLARED])
    bindings = len(source.broker.exchanges.bindings())
    schedules = len(source.broker.schedules.list())
    counts = ((len(rows), "queue"), (exchanges, "exchange"), (bindings, "binding"), (schedules, "schedule"))
    print(", ".join(count_text(*each) for each in counts) + "; nothing was changed")
    return OK


def open_endpoint(
    place: str, clock: VirtualClock, create: bool
) -> tuple[MigrationEndpoint, Callable[[], None]]:
    """A data directory or a Redis as one side of a migration, and the function that closes it.

    `create`: it is the target, which may be new, or hold a part from an interrupted run.
    """
    if place.startswith(("http://", "https://")):
        raise InvalidSetting(
            f"{place} is the address of a server: stop it, and name its data directory or its Redis"
        )
    if "://" in place:
        return _open_redis(place, clock, migrating=create)
    return _open_directory(place, clock, create)


def _open_directory(
    path: str, clock: VirtualClock, create: bool
) -> tuple[MigrationEndpoint, Callable[[], None]]:
    if not create and not os.path.exists(os.path.join(path, lockfile.NAME)):
        raise NotFound(f"{path} is not a data directory of OpenQ")
    broker = LocalBroker(path, clock=clock, runs_schedules=False, migrating=create)
    journal = broker.journal
    assert journal is not None

    def load() -> bytes | None:
        return unfinished.read_state(journal.path, journal.io)

    def save(data: bytes) -> None:
        broker.sync()
        unfinished.write_state(journal.path, journal.io, data)

    def past(queue: str, after: int, limit: int) -> list[PastMessage]:
        return broker.inspect.past(queue, HistoryRange(after_seq=after, limit=limit))

    documents = {
        USERS: FileDocument(os.path.join(path, "users.json")),
        POLICIES: FileDocument(os.path.join(path, policies.FILE)),
    }
    endpoint = MigrationEndpoint(broker, path, os.path.abspath(path), load, save, past, documents)
    return endpoint, broker.close


def _running_servers(cluster: ServerDirectory) -> list[str]:
    """The servers that use a Redis, by their addresses."""
    found = [msgspec.json.decode(data) for data in cluster.servers(FLEET).values()]
    addresses = sorted(f"{each['url']} (process {each['pid']} of {each['name']})" for each in found)
    return addresses or sorted(cluster.servers())


def _open_redis(
    url: str, clock: VirtualClock, migrating: bool
) -> tuple[MigrationEndpoint, Callable[[], None]]:
    try:
        from ..redis.broker import RedisBroker
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"{error.name} is not installed: pip install 'openq[redis]'") from None
    own = SteppingClock(clock.now_ms())
    broker = RedisBroker(url, clock=own, runs_schedules=False, migrating=migrating)
    place = str(broker.address)
    alive = _running_servers(broker.cluster)
    if alive:
        broker.close()
        raise InvalidSetting(f"{place} is in use: stop {', '.join(alive)} first")
    version = 0

    def load() -> bytes | None:
        nonlocal version
        version, data = broker.cluster.document(unfinished.DOCUMENT)
        return data

    def save(data: bytes) -> None:
        nonlocal version
        broker.sync()
        load()
        if not broker.cluster.put_document(unfinished.DOCUMENT, version, data):
            raise InvalidSetting(f"another process migrates into {place} at the same time")

    def past(queue: str, after: int, limit: int) -> list[PastMessage]:
        return broker.inspect.past(queue, HistoryRange(after_seq=after, limit=limit))

    documents = {
        USERS: SharedDocument(broker.cluster, "users", place),
        POLICIES: SharedDocument(broker.cluster, policies.DOCUMENT, place),
    }
    whole = broker.address.with_profile()
    return RedisEndpoint(broker, place, whole, load, save, past, documents, own), broker.close
