"""`openq pipeline archive run` and `watch`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from signal import SIGTERM, signal
from threading import Event
from typing import Any

from ..config import Config
from ..parsing import without_password
from ..pipeline.archive import archive
from ..pipeline.archive import watch as watch_journal
from .api import UsageError, token_of
from .directory import missing_reason
from .output import count_text, print_json
from .pipeline import trust_ca
from .pipeline_archive_common import archive_paths, session, with_progress
from .terminal import OK, say, size_text


def run(options: Namespace) -> int:
    arguments = _run_options(options)

    spark = None if options.dry_run else session(options)
    result = with_progress("archiving, KiB", _in_kib(archive), spark, dry_run=options.dry_run, **arguments)
    _print_run(result, options.json, options.dry_run)
    return OK


def _in_kib(work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*words: Any, progress: Any, **options: Any) -> Any:
        return work(*words, progress=lambda done, total: progress(done >> 10, total >> 10), **options)

    return run


def _print_run(result: Any, as_json: bool, dry_run: bool = False) -> None:
    if result.cursor:
        say(f"the position of the archive could not be sent to the server: {result.cursor}")
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
        print(f"nothing to archive: the history of {result.server} is in the archive")
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


def watch(options: Namespace) -> int:
    arguments = _run_options(options)

    stop = Event()
    signal(SIGTERM, lambda *_: stop.set())
    spark = session(options)
    say(f"watching {arguments['path'] or without_password(arguments['url'])}; end with Ctrl-C")
    every_s = options.every if options.every is not None else 2.0 if arguments["path"] else 60.0

    def print_run(result: Any) -> None:
        _print_run(result, options.json)
        sys.stdout.flush()

    try:
        watch_journal(spark, stop=stop, on_result=print_run, every_s=every_s, **arguments)
    except KeyboardInterrupt:
        stop.set()
    say("ended")
    return OK


def _run_options(options: Namespace) -> dict[str, Any]:
    trust_ca(options)
    url = options.url or os.environ.get("OPENQ_URL") or None
    arguments = (
        archive_paths(options, data=True)
        if _reads_files(options, url)
        else {"path": None, "archive": options.archive}
    )
    arguments["url"] = url
    arguments["token"] = token_of(options)
    arguments["include_open"] = options.include_open
    arguments["accept_gap"] = options.accept_gap
    if options.task_size is not None:
        arguments["task_bytes"] = max(1, options.task_size)
    return arguments


def _reads_files(options: Namespace, url: str | None) -> bool:
    """Whether to read the files of the journal, or a server. Raises UsageError if neither is known."""

    if options.data or os.environ.get("OPENQ_DATA"):
        return True
    reason = missing_reason(Config().data)
    if url is None:
        if reason is not None:
            raise UsageError(
                f"{reason}; set --data DIR, or --url URL and --archive DIR to read from a server"
            )
        return True
    if options.archive and (options.url or reason is not None):
        return False
    if reason is not None:
        raise UsageError(f"{reason}; to read from {without_password(url)} over HTTP, set --archive DIR")
    return True
