"""`openq migrate`: copy everything from a data directory to Redis, or back."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable

from ..broker.history import HistoryRange, PastMessage
from ..clock import VirtualClock
from ..engine.routing import PREDECLARED
from ..errors import InvalidSetting
from ..journal import lockfile
from ..local.broker import LocalBroker
from ..redis import migrate as migration
from ..redis.migrate import MigratedQueue
from ..redis.migration_endpoints import MigrationEndpoint, RedisEndpoint, SteppingClock
from .api import NotFound
from .output import count_text, print_json
from .progress import ProgressBar
from .terminal import OK, say, size_text

STATE = "migration.json"
DOCUMENT = "migration"


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
        moved = migration.migrate(source, target, history=not options.no_history, progress=bar.update)
    finally:
        bar.end()
    if options.json:
        print_json(
            [
                {"queue": each.queue, "messages": each.count, "bytes": each.bytes, "history": each.past}
                for each in moved
            ]
        )
        return OK
    for each in moved:
        print(_line(each))
    total = sum(each.count for each in moved)
    content = f"{count_text(total, 'message')} in {count_text(len(moved), 'queue')}"
    print(f"{content} copied to {target.place}, verified against {source.place}")
    return OK


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
    """A data directory or a Redis as one side of a migration, and the function that closes it."""
    if "://" in place:
        return _open_redis(place, clock)
    return _open_directory(place, clock, create)


def _open_directory(
    path: str, clock: VirtualClock, create: bool
) -> tuple[MigrationEndpoint, Callable[[], None]]:
    if not create and not os.path.exists(os.path.join(path, lockfile.NAME)):
        raise NotFound(f"{path} is not a data directory of OpenQ")
    broker = LocalBroker(path, clock=clock, runs_schedules=False)
    state = os.path.join(path, STATE)

    def load() -> bytes | None:
        try:
            with open(state, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def save(data: bytes) -> None:
        broker.sync()
        with open(f"{state}.new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{state}.new", state)

    def past(queue: str, after: int, limit: int) -> list[PastMessage]:
        return broker.inspect.past(queue, HistoryRange(after_seq=after, limit=limit))

    return MigrationEndpoint(broker, path, load, save, past), broker.close


def _open_redis(url: str, clock: VirtualClock) -> tuple[MigrationEndpoint, Callable[[], None]]:
    try:
        from ..redis.broker import RedisBroker
        from ..redis.net.url import parse
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"{error.name} is not installed: pip install 'openq[redis]'") from None
    own = SteppingClock(clock.now_ms())
    broker = RedisBroker(url, clock=own, runs_schedules=False)
    place = str(parse(url))
    alive = broker.cluster.servers()
    if alive:
        broker.close()
        raise InvalidSetting(f"{place} is in use: stop {', '.join(sorted(alive))} first")
    version = 0

    def load() -> bytes | None:
        nonlocal version
        version, data = broker.cluster.document(DOCUMENT)
        return data

    def save(data: bytes) -> None:
        nonlocal version
        broker.sync()
        load()
        if not broker.cluster.put_document(DOCUMENT, version, data):
            raise InvalidSetting(f"another process migrates into {place} at the same time")

    def past(queue: str, after: int, limit: int) -> list[PastMessage]:
        return broker.inspect.past(queue, HistoryRange(after_seq=after, limit=limit))

    return RedisEndpoint(broker, place, load, save, past, own), broker.close
