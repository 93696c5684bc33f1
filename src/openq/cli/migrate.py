"""`openq migrate`: everything from a data directory into Redis, or back."""

from __future__ import annotations

from .parser import CommandGroup, add_json
from .terminal import OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from ..broker.history import PastMessage
    from ..clock import VirtualClock
    from ..redis.migrate import MigratedQueue
    from ..redis.migration_endpoints import MigrationEndpoint

STATE = "migration.json"
DOCUMENT = "migration"


def add(name: str, verbs: CommandGroup, help: str) -> None:
    parser = verbs.add(
        name,
        _migrate,
        help,
        [
            ("openq migrate --from ./openq-data --to redis://127.0.0.1", "into Redis"),
            ("openq migrate --from redis://127.0.0.1 --to ./openq-data", "and back"),
            ("openq migrate --from ./openq-data --to redis://127.0.0.1 --dry-run", "what it would be"),
        ],
        "Queues with their settings, exchanges and bindings; messages in order with ids, counts, delays,\n"
        "times to live, groups, priorities and reasons; what deduplication remembers, and the history\n"
        "that is kept. The source keeps its messages. Nobody may serve either side meanwhile. When it is\n"
        "interrupted, the same command goes on. At the end both are compared: counts, ids in order and\n"
        "digests of all bodies.\n"
        "Users, tokens and permissions stay behind, and so do the totals of counters.",
    )
    parser.add_argument("--from", dest="source", metavar="PLACE", required=True, help="a directory or a URL")
    parser.add_argument("--to", dest="target", metavar="PLACE", required=True, help="an empty one of them")
    parser.add_argument(
        "--no-history", action="store_true", help="only what waits, not what could be replayed"
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what there is")
    add_json(parser)


def _migrate(options: Namespace) -> int:
    import time

    from ..clock import VirtualClock
    from ..errors import InvalidSetting

    if options.source == options.target:
        raise InvalidSetting("--from and --to are the same")
    # One time for both, and it stands still: nothing may expire or come due on the way.
    clock = VirtualClock(time.time_ns() // 1_000_000)
    source, close_source = open_side(options.source, clock, create=False)
    try:
        if options.dry_run:
            return _print_content(source, options)
        target, close_target = open_side(options.target, clock, create=True)
        try:
            return _move(source, target, options)
        finally:
            close_target()
    finally:
        close_source()


def _move(source: MigrationEndpoint, target: MigrationEndpoint, options: Namespace) -> int:
    from ..redis.migrate import count, is_done, migrate
    from .output import print_json
    from .progress import ProgressBar

    if is_done(source, target):
        say(f"{source.place} is in {target.place} already")
        if options.json:
            print_json([])
        return OK
    bar = ProgressBar("migrate", count(source))
    try:
        moved = migrate(source, target, history=not options.no_history, progress=bar.update)
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
    print(f"{total} messages in {len(moved)} queues are in {target.place}, compared with {source.place}")
    return OK


def _line(moved: MigratedQueue) -> str:
    from .terminal import size_text

    parts = [f"{moved.count} messages, {size_text(moved.bytes)}"]
    if moved.past:
        parts.append(f"{moved.past} of history")
    if moved.before:
        parts.append("by an earlier run")
    return f"{moved.queue}: {', '.join(parts)}"


def _print_content(source: MigrationEndpoint, options: Namespace) -> int:
    from ..engine.routing import PREDECLARED
    from ..redis.migrate import queues
    from .output import print_json

    rows = []
    for queue in queues(source):
        stats = source.broker.stats(queue)
        waiting = stats.ready + stats.delayed + stats.in_flight
        rows.append({"queue": queue, "messages": waiting, "in_flight": stats.in_flight})
    if options.json:
        print_json(rows)
        return OK
    for row in rows:
        lent = f", {row['in_flight']} of them with consumers" if row["in_flight"] else ""
        print(f"{row['queue']}: {row['messages']} messages{lent}")
    exchanges = len([each for each in source.broker.exchanges() if each not in PREDECLARED])
    bindings = len(source.broker.bindings())
    print(f"{len(rows)} queues, {exchanges} exchanges, {bindings} bindings; nothing was changed")
    return OK


def open_side(place: str, clock: VirtualClock, create: bool) -> tuple[MigrationEndpoint, Callable[[], None]]:
    """A directory or a Redis, as `migrate` wants it; and how to close it."""
    if "://" in place:
        return _open_redis(place, clock)
    return _open_directory(place, clock, create)


def _open_directory(
    path: str, clock: VirtualClock, create: bool
) -> tuple[MigrationEndpoint, Callable[[], None]]:
    import os

    from ..broker.history import HistoryRange
    from ..journal import lockfile
    from ..local.broker import LocalBroker
    from ..redis.migration_endpoints import MigrationEndpoint
    from .api import NotFound

    if not create and not os.path.exists(os.path.join(path, lockfile.NAME)):
        raise NotFound(f"{path} is not a data directory of OpenQ")
    broker = LocalBroker(path, clock=clock)
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
        return broker.past(queue, HistoryRange(after_seq=after, limit=limit))

    return MigrationEndpoint(broker, path, load, save, past), broker.close


def _open_redis(url: str, clock: VirtualClock) -> tuple[MigrationEndpoint, Callable[[], None]]:
    from ..broker.history import HistoryRange
    from ..errors import InvalidSetting
    from ..redis.migration_endpoints import RedisEndpoint, SteppingClock

    try:
        from ..redis.broker import RedisBroker
        from ..redis.net.url import parse
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"a Redis needs more packages ({error.name}): pip install 'openq[redis]'"
        ) from None
    own = SteppingClock(clock.now_ms())
    broker = RedisBroker(url, clock=own)
    place = str(parse(url))
    alive = broker.servers()
    if alive:
        broker.close()
        raise InvalidSetting(f"{place} is being served: stop {', '.join(sorted(alive))} first")
    version = 0

    def load() -> bytes | None:
        nonlocal version
        version, data = broker.document(DOCUMENT)
        return data

    def save(data: bytes) -> None:
        nonlocal version
        broker.sync()
        load()
        if not broker.put_document(DOCUMENT, version, data):
            raise InvalidSetting(f"somebody else migrates into {place} at the same time")

    def past(queue: str, after: int, limit: int) -> list[PastMessage]:
        return broker.past(queue, HistoryRange(after_seq=after, limit=limit))

    return RedisEndpoint(broker, place, load, save, past, own), broker.close
