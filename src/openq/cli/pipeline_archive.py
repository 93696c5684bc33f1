"""`openq pipeline archive ...`: the journal's past as Parquet; the work is in `openq.pipeline.archive`.

Here are `run` and `watch`, which fill an archive.
"""

from __future__ import annotations

import os
import sys

from . import pipeline_archive_maintenance as care
from .parser import CommandGroup, Parser, add_json, seconds, size
from .pipeline import add_address, add_spark, trust_ca
from .pipeline_archive_common import add_archive_paths, archive_paths, session, with_progress
from .pipeline_archive_erase import add_erase
from .terminal import OK, say, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any


def add(verbs: CommandGroup) -> None:
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
    care.add_verify(group)
    care.add_compact(group)
    add_erase(group)
    care.add_versions(group)
    care.add_vacuum(group)


def _add_run(verbs: CommandGroup) -> None:
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
    add_archive_paths(run)
    _add_run_options(run)
    run.add_argument("--dry-run", action="store_true", help="only tell how much it would be")
    add_spark(run)
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


def _run(options: Namespace) -> int:
    told = _run_options(options)
    from ..pipeline.archive import archive

    spark = None if options.dry_run else session(options)
    result = with_progress("archiving, KiB", _in_kib(archive), spark, dry_run=options.dry_run, **told)
    _print_run(result, options.json, options.dry_run)
    return OK


def _in_kib(work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*words: Any, progress: Any, **options: Any) -> Any:
        return work(*words, progress=lambda done, total: progress(done >> 10, total >> 10), **options)

    return run


def _print_run(result: Any, as_json: bool, dry_run: bool = False) -> None:
    from dataclasses import asdict

    from .output import count_text, print_json

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


def _add_watch(verbs: CommandGroup) -> None:
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
    add_archive_paths(watch)
    watch.add_argument(
        "--every", metavar="S", type=seconds, help="how often to look (2s; with --url alone 60s)"
    )
    _add_run_options(watch)
    add_spark(watch)
    add_address(watch)
    add_json(watch, "a line of JSON for each run that did something")


def _watch(options: Namespace) -> int:
    told = _run_options(options)
    from signal import SIGTERM, signal
    from threading import Event

    from ..pipeline.archive import watch

    stop = Event()
    signal(SIGTERM, lambda *_: stop.set())
    spark = session(options)
    say(f"watching {told['path'] or _without_password(told['url'])}; Ctrl-C ends it")
    every_s = options.every if options.every is not None else 2.0 if told["path"] else 60.0

    def tell(result: Any) -> None:
        _print_run(result, options.json)
        sys.stdout.flush()

    try:
        watch(spark, stop=stop, on_result=tell, every_s=every_s, **told)
    except KeyboardInterrupt:
        stop.set()
    say("ended")
    return OK


def _run_options(options: Namespace) -> dict[str, Any]:
    from .api import token_of

    trust_ca(options)
    url = options.url or os.environ.get("OPENQ_URL") or None
    told = (
        archive_paths(options, data=True)
        if _reads_files(options, url)
        else {"path": None, "archive": options.archive}
    )
    told["url"] = url
    told["token"] = token_of(options)
    told["include_open"] = options.include_open
    told["accept_gap"] = options.accept_gap
    if options.task_size is not None:
        told["task_bytes"] = max(1, options.task_size)
    return told


def _reads_files(options: Namespace, url: str | None) -> bool:
    """Whether the journal's files are read, not a server. Raises UsageError where nothing leads anywhere."""
    from ..config import Config
    from .api import UsageError
    from .journal import missing_reason

    if options.data or os.environ.get("OPENQ_DATA"):
        return True
    reason = missing_reason(Config().data)
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
            f"{reason}; to read from {_without_password(url)} over HTTP, say where the archive is to be: --archive DIR"
        )
    return True


def _without_password(url: str) -> str:
    """Without user and password."""
    scheme, found, rest = url.partition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"
