"""`openq pipeline archive ...`: the journal's past as Parquet; the work is in `openq.pipeline.archive`."""

from __future__ import annotations

import os
import sys

from .parsing import Parser, Verbs, add_json, seconds, size, some
from .pipeline import add_address, trust
from .terminal import FAILED, OK, paint, say, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

_HERE = "none"


def add(verbs: Verbs) -> None:
    group = verbs.add(
        "archive",
        None,
        "keep the journal's past as Parquet files",
        [
            ("openq pipeline archive run --data ./data", "archive every full segment, verified"),
            ("openq pipeline archive watch --data ./data", "the same whenever one is full, until Ctrl-C"),
            (
                "openq pipeline archive run --url http://server:9324 --archive ./archive",
                "over HTTP, where the data directory is not visible",
            ),
            ("openq pipeline archive verify --data ./data", "every file and row, against the journal too"),
            ("openq pipeline archive compact --data ./data", "small files into large ones"),
            ("openq pipeline archive versions --data ./data", "what asOf can name"),
        ],
        "Segments of the journal become zstd Parquet, by day, sorted by queue and sequence. Readers see\n"
        "whole versions only. What is archived is proved before the journal may drop it.",
    ).group()
    _add_run(group)
    _add_watch(group)
    _add_verify(group)
    _add_compact(group)
    _add_erase(group)
    _add_versions(group)
    _add_vacuum(group)


# -- parsers -------------------------------------------------------------------------------------


def _add_run(verbs: Verbs) -> None:
    run = verbs.add(
        "run",
        _run,
        "archive what the journal has and the archive has not",
        [
            ("openq pipeline archive run --data ./data", "all full segments"),
            ("openq pipeline archive run --data ./data --dry-run", "how many that are"),
            ("openq pipeline archive run --data ./data --include-open", "up to the last message"),
            ("openq pipeline archive run --data ./data --master none", "without Spark, in this process"),
            (
                "openq pipeline archive run --url http://server:9324 --archive ./archive",
                "everything up to now from a server, also one on Redis",
            ),
        ],
        "Run it as often as you like: what is archived already is passed over. Interrupted or killed, it\n"
        "goes on where it was. A running server is told how far the archive reaches, and keeps the rest.\n"
        "With --url and no --data the rows come from the server over HTTP, those of the queues that the\n"
        "token may see. That frees nothing on the server: its retention must last from run to run.",
    )
    _add_places(run)
    _add_run_options(run)
    run.add_argument("--dry-run", action="store_true", help="only tell how much it would be")
    _add_spark(run)
    add_address(run)
    add_json(run)


def _add_run_options(parser: Parser) -> None:
    parser.add_argument("--include-open", action="store_true", help="what the segment in use has, too")
    parser.add_argument(
        "--accept-gap", action="store_true", help="go on behind rows that were dropped before their time"
    )
    parser.add_argument(
        "--task-size", metavar="SIZE", type=size, help="of the rows that one task holds in memory (384MiB)"
    )


def _add_watch(verbs: Verbs) -> None:
    watch = verbs.add(
        "watch",
        _watch,
        "archive whenever a segment is full, until Ctrl-C",
        [
            ("openq pipeline archive watch --data ./data", "beside its server"),
            ("openq pipeline archive watch --data ./data --every 60s", "look once a minute"),
            (
                "openq pipeline archive watch --url http://server:9324 --archive ./archive --every 5m",
                "over HTTP",
            ),
        ],
    )
    _add_places(watch)
    watch.add_argument(
        "--every", metavar="S", type=seconds, help="how often to look (2s; with --url alone 60s)"
    )
    _add_run_options(watch)
    _add_spark(watch)
    add_address(watch)
    add_json(watch, "a line of JSON for each run that did something")


def _add_verify(verbs: Verbs) -> None:
    verify = verbs.add(
        "verify",
        _verify,
        "prove every file and row of the archive",
        [
            (
                "openq pipeline archive verify --data ./data",
                "also against the journal, while it has the rows",
            ),
            ("openq pipeline archive verify --archive /mnt/archive", "by itself"),
            ("openq pipeline archive verify --data ./data --as-of 12", "an older version"),
        ],
        "Checksums, row counts, statistics, order, and that each row of each segment is there exactly once.\n"
        "Exit code 1 if anything is wrong.",
    )
    _add_places(verify)
    verify.add_argument("--as-of", metavar="VERSION", type=some, help="this version, not the newest")
    _add_spark(verify)
    add_json(verify)


def _add_compact(verbs: Verbs) -> None:
    compact = verbs.add(
        "compact",
        _compact,
        "small files of a day into large ones",
        [
            ("openq pipeline archive compact --data ./data", "to about 192 MiB"),
            ("openq pipeline archive compact --data ./data --target-size 64MiB", "to another size"),
        ],
        "Readers of older versions go on: the old files stay until `vacuum`.",
    )
    _add_places(compact)
    compact.add_argument("--target-size", metavar="SIZE", type=size, help="of a file (192MiB)")
    compact.add_argument("--dry-run", action="store_true", help="only tell how many files it would be")
    _add_spark(compact)
    add_json(compact)


def _add_erase(verbs: Verbs) -> None:
    erase = verbs.add(
        "erase",
        _erase,
        "take messages out of the archive for good",
        [
            ("openq pipeline archive erase --data ./data --message-id ID", "one message, in all its queues"),
            ("openq pipeline archive erase --data ./data --queue mails --before 90d", "a queue's old ones"),
            (
                "openq pipeline archive erase --data ./data --where \"attributes['user'].string = '7'\"",
                "by a predicate of Spark SQL over the table messages",
            ),
        ],
        "All that is given must hold. The messages go with their bodies and attributes; their events stay,\n"
        "without texts. Older versions hold them until `openq pipeline archive vacuum --now`.",
    )
    _add_places(erase)
    erase.add_argument(
        "--message-id", metavar="ID", action="append", default=[], help="this one; may be repeated"
    )
    erase.add_argument(
        "--queue",
        metavar="NAME",
        action="append",
        default=[],
        dest="queues",
        help="of this queue, * and ? allowed; may be repeated",
    )
    erase.add_argument("--where", metavar="SQL", help="for which this is true")
    erase.add_argument(
        "--before", metavar="TIME", help="published before: 90d (ago), or 2026-01-31T10:30:00Z"
    )
    erase.add_argument("--dry-run", action="store_true", help="only tell how many it would be")
    erase.add_argument("--yes", "-y", action="store_true", help="do not ask")
    _add_spark(erase)
    add_json(erase)


def _add_versions(verbs: Verbs) -> None:
    versions = verbs.add(
        "versions",
        _versions,
        "list the versions of the archive",
        [("openq pipeline archive versions --data ./data", "oldest first; `asOf` takes one of them")],
    )
    _add_places(versions)
    add_json(versions)


def _add_vacuum(verbs: Verbs) -> None:
    vacuum = verbs.add(
        "vacuum",
        _vacuum,
        "remove old versions, and files that nobody names",
        [
            ("openq pipeline archive vacuum --data ./data", "versions older than a week"),
            ("openq pipeline archive vacuum --data ./data --now", "all but the newest, at once"),
            (
                "openq pipeline archive vacuum --data ./data --keep 5 --older 30d",
                "keep five whatever their age",
            ),
        ],
        "What was erased is gone only when the versions that held it are. Whoever still reads one of them\n"
        "gets an error and has to take a newer one.",
    )
    _add_places(vacuum)
    vacuum.add_argument("--keep", metavar="N", type=some, default=1, help="newest versions to keep (1)")
    vacuum.add_argument("--older", metavar="TIME", type=seconds, help="remove those older than this (7d)")
    vacuum.add_argument("--now", action="store_true", help="whatever their age")
    vacuum.add_argument("--dry-run", action="store_true", help="only list")
    add_json(vacuum)


def _add_places(parser: Parser) -> None:
    where = parser.add_argument_group("where")
    where.add_argument("--data", metavar="DIR", help="the data directory (OPENQ_DATA; default ./openq-data)")
    where.add_argument(
        "--archive", metavar="DIR", help="the archive (default: `archive` in the data directory)"
    )


def _add_spark(parser: Parser) -> None:
    from .pipeline import add_spark

    add_spark(parser)


# -- what they share -----------------------------------------------------------------------------


def _places(options: Namespace, data: bool = False) -> dict[str, Any]:
    """`path=` and `archive=` as the functions of the pipeline take them."""
    from ..config import Config
    from .remote import UsageError

    path = options.data or os.environ.get("OPENQ_DATA") or None
    if path is None and (data or options.archive is None):
        path = Config().data
    if path is not None:
        from .journal import missing

        if (reason := missing(path)) is not None:
            raise UsageError(reason)
    return {"path": path, "archive": options.archive}


def _run_options(options: Namespace) -> dict[str, Any]:
    from .remote import token_of

    trust(options)
    url = options.url or os.environ.get("OPENQ_URL") or None
    told = (
        _places(options, data=True) if _is_here(options, url) else {"path": None, "archive": options.archive}
    )
    told["url"] = url
    told["token"] = token_of(options)
    told["include_open"] = options.include_open
    told["accept_gap"] = options.accept_gap
    if options.task_size is not None:
        told["task_bytes"] = max(1, options.task_size)
    return told


def _is_here(options: Namespace, url: str | None) -> bool:
    """Whether the journal's files are read, not a server. Raises UsageError where nothing leads anywhere."""
    from ..config import Config
    from .journal import missing
    from .remote import UsageError

    if options.data or os.environ.get("OPENQ_DATA"):
        return True
    reason = missing(Config().data)
    if url is None:
        if reason is not None:
            raise UsageError(
                f"{reason}; give --data DIR, or --url URL and --archive DIR to read from a server"
            )
        return True
    if options.archive and (options.url or reason is not None):
        return False
    if reason is not None:
        raise UsageError(
            f"{reason}; to read from {_shown(url)} over HTTP, say where the archive is to be: --archive DIR"
        )
    return True


def _shown(url: str) -> str:
    """Without user and password."""
    scheme, found, rest = url.partition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"


def _session(options: Namespace) -> Any:
    """Spark, or None where the work is to be done here."""
    master = options.master or os.environ.get("OPENQ_SPARK_MASTER")
    if master == _HERE:
        return None
    from .pipeline import session_of

    return session_of(options)


class _Bar:
    """A progress bar that learns the total with the first news."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count: Any = None

    def __call__(self, done: int, total: int) -> None:
        from .progress import Count

        if self._count is None:
            self._count = Count(self._what, total)
        self._count.at(done)

    def end(self) -> None:
        if self._count is not None:
            self._count.end()


def _with_bar(what: str, work: Callable[..., Any], *words: Any, **options: Any) -> Any:
    bar = _Bar(what)
    try:
        return work(*words, progress=bar, **options)
    finally:
        bar.end()


# -- commands ------------------------------------------------------------------------------------


def _run(options: Namespace) -> int:
    told = _run_options(options)
    from ..pipeline.archive import archive

    spark = None if options.dry_run else _session(options)
    result = _with_bar("archiving, KiB", _in_kib(archive), spark, dry_run=options.dry_run, **told)
    _tell_run(result, options.json, options.dry_run)
    return OK


def _in_kib(work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*words: Any, progress: Any, **options: Any) -> Any:
        return work(*words, progress=lambda done, total: progress(done >> 10, total >> 10), **options)

    return run


def _tell_run(result: Any, as_json: bool, dry_run: bool = False) -> None:
    from dataclasses import asdict

    from .show import count_text, print_json

    if result.cursor:
        say(f"the server was not told how far the archive reaches: {result.cursor}")
    if as_json:
        print_json(asdict(result))
        return
    if dry_run:
        size_of = size_text(result.journal_bytes)
        if result.server:
            print(f"would archive about {size_of} of the history of {result.server}")
        else:
            print(f"would archive {count_text(result.segments, 'segment')}, {size_of} of the journal")
    elif result.version is None and result.server:
        print(f"nothing to archive: everything that {result.server} has is in the archive")
    elif result.version is None:
        print("nothing to archive: every full segment is in the archive")
    elif result.server:
        rows = ", ".join(f"{number} {table}" for table, number in result.rows.items()) or "no rows"
        print(
            f"version {result.version}: {rows}, {count_text(result.files, 'file')}, "
            f"{size_text(result.bytes)}, up to position {result.through} of {result.server}"
        )
    else:
        rows = ", ".join(f"{number} {table}" for table, number in result.rows.items()) or "no rows"
        print(
            f"version {result.version}: {count_text(result.segments, 'segment')}, {rows}, "
            f"{count_text(result.files, 'file')}, {size_text(result.bytes)} "
            f"(journal: {size_text(result.journal_bytes)})"
        )
    if result.removed:
        print(f"removed {count_text(result.removed, 'file')} of an interrupted run")


def _watch(options: Namespace) -> int:
    told = _run_options(options)
    from signal import SIGTERM, signal
    from threading import Event

    from ..pipeline.archive import watch

    stop = Event()
    signal(SIGTERM, lambda *_: stop.set())
    spark = _session(options)
    say(f"watching {told['path'] or _shown(told['url'])}; Ctrl-C ends it")
    every_s = options.every if options.every is not None else 2.0 if told["path"] else 60.0

    def tell(result: Any) -> None:
        _tell_run(result, options.json)
        sys.stdout.flush()

    try:
        watch(spark, stop=stop, told=tell, every_s=every_s, **told)
    except KeyboardInterrupt:
        stop.set()
    say("ended")
    return OK


def _verify(options: Namespace) -> int:
    told = _places(options)
    from dataclasses import asdict

    from ..pipeline.archive import verify
    from .show import count_text, print_json, table

    found = _with_bar("verifying", verify, _session(options), as_of=options.as_of, **told)
    if options.json:
        print_json({"ok": found.ok, **asdict(found)})
        return OK if found.ok else FAILED
    verdict = paint("ok", "green") if found.ok else paint("damaged", "red")
    rows = ", ".join(f"{number} {name}" for name, number in found.rows.items())
    parts = f"{count_text(found.segments, 'segment')}, {found.compared} of them compared with the journal"
    if found.spans:
        parts = f"{count_text(found.spans, 'span')} from a server"
    print(f"version {found.version}: {verdict}, {count_text(found.files, 'file')}, {rows}, {parts}")
    if found.findings:
        table(("WHERE", "WHAT"), [(each.where, each.what) for each in found.findings])
    return OK if found.ok else FAILED


def _compact(options: Namespace) -> int:
    told = _places(options)
    from dataclasses import asdict

    from ..pipeline.archive import compact
    from .show import count_text, print_json

    if options.target_size is not None:
        told["target_bytes"] = max(1, options.target_size)
    spark = None if options.dry_run else _session(options)
    done = _with_bar("compacting", compact, spark, dry_run=options.dry_run, **told)
    if options.json:
        print_json(asdict(done))
    elif done.before == 0:
        print("nothing to compact")
    elif done.version is None:
        print(f"would make {count_text(done.after, 'file')} of {done.before}")
    else:
        print(
            f"version {done.version}: {count_text(done.after, 'file')} of {done.before}, "
            f"{size_text(done.bytes)}; the old ones stay until `openq pipeline archive vacuum`"
        )
    return OK


def _erase(options: Namespace) -> int:
    told = _places(options)
    from dataclasses import asdict
    from getpass import getuser

    from ..pipeline.archive import erase
    from .remote import UsageError
    from .show import REFUSED, agreed, count_text, print_json

    if not (options.message_id or options.queues or options.where):
        raise UsageError("which messages? give --message-id, --queue or --where")
    if options.where and (options.master or os.environ.get("OPENQ_SPARK_MASTER")) == _HERE:
        raise UsageError("--where is evaluated by Spark: leave out --master none")
    spark = _session(options)
    try:
        who = getuser()
    except (KeyError, OSError):
        who = str(os.getuid())
    told |= {
        "message_ids": options.message_id,
        "queues": options.queues,
        "where": options.where,
        "before_us": _moment_us(options.before) if options.before else None,
        "by": who,
    }
    if options.dry_run or not options.yes:
        found = erase(spark, dry_run=True, **told)
        if options.dry_run or not found.messages:
            _tell_erased(found, options.json)
            return OK
        if not agreed(options, f"erase {count_text(found.messages, 'message')} from the archive for good"):
            return REFUSED
    done = _with_bar("erasing, files", erase, spark, **told)
    if options.json:
        print_json(asdict(done))
    else:
        _tell_erased(done, False)
    return OK


def _tell_erased(done: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from .show import count_text, print_json

    if as_json:
        print_json(asdict(done))
        return
    if done.version is None:
        print(f"{count_text(done.messages, 'message')} in the archive would be erased")
    else:
        print(
            f"version {done.version}: {count_text(done.messages, 'message')} erased from "
            f"{count_text(done.files, 'file')}, {count_text(done.events, 'event')} without their texts"
        )
        older = f"{done.versions[0]} to {done.versions[-1]}" if done.versions else ""
        if older:
            print(f"versions {older} still hold them: `openq pipeline archive vacuum --now` removes those")
    if done.journal:
        print(f"the journal still holds {done.journal} of them, until it drops their segments")
    if done.waiting:
        print(
            f"{count_text(done.waiting, 'more message')} that match are not archived yet: "
            "archive them, then erase again"
        )
    elif done.waiting is None:
        print("the part of the journal that is not archived yet was not searched")


def _moment_us(text: str) -> int:
    """A time, or how long ago."""
    from datetime import datetime

    from .picking import moment

    told = moment(text)
    return int(datetime.fromisoformat(told).timestamp() * 1_000_000)


def _versions(options: Namespace) -> int:
    told = _places(options)
    from ..columns.archive import Archive
    from ..pipeline.archive_tasks import archive_place
    from .show import print_json, table

    place = Archive(archive_place(told["path"], told["archive"]))
    found = [_version_facts(place.read(version)) for version in place.versions()]
    if options.json:
        print_json(found)
    elif not found:
        print("no versions yet: `openq pipeline archive run` makes the first")
    else:
        heads = ("VERSION", "CREATED", "FILES", "MESSAGES", "EVENTS", "SIZE", "ERASED")
        rows = [
            (
                each["version"],
                each["created"],
                each["files"],
                each["messages"],
                each["events"],
                size_text(each["bytes"]),
                each["erased"],
            )
            for each in found
        ]
        table(heads, rows, right=("VERSION", "FILES", "MESSAGES", "EVENTS", "SIZE", "ERASED"))
    return OK


def _version_facts(manifest: Any) -> dict[str, Any]:
    from datetime import UTC, datetime

    created = datetime.fromtimestamp(manifest.created_us / 1e6, UTC)
    return {
        "version": manifest.version,
        "created": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "through": manifest.through,
        "files": len(manifest.files),
        "messages": manifest.rows("messages"),
        "events": manifest.rows("events"),
        "bytes": sum(file.bytes for file in manifest.files),
        "erased": sum(int(entry.get("messages", 0)) for entry in manifest.erased),
        "server": manifest.origin.get("server"),
    }


def _vacuum(options: Namespace) -> int:
    told = _places(options)
    from ..pipeline.archive_care import KEEP_S, vacuum
    from .remote import UsageError
    from .show import count_text, print_json

    if options.now and options.older is not None:
        raise UsageError("--now and --older contradict each other: give one of them")
    keep_s = 0.0 if options.now else KEEP_S if options.older is None else options.older
    removed = vacuum(keep_versions=options.keep, keep_s=keep_s, dry_run=options.dry_run, **told)
    if options.json:
        print_json(removed)
    else:
        for path in removed if options.dry_run else ():
            print(path)
        verb = "would remove" if options.dry_run else "removed"
        print(f"{verb} {count_text(len(removed), 'file')}")
    return OK
