"""`openq pipeline archive erase`."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import asdict
from datetime import datetime
from getpass import getuser
from typing import Any

from ..pipeline.archive import erase as erase_messages
from .api import UsageError
from .arguments import parse_time
from .output import NOT_CONFIRMED, confirm, count_text, print_json
from .pipeline_archive_common import NO_SPARK, archive_paths, session, with_progress
from .terminal import OK


def erase(options: Namespace) -> int:
    arguments = archive_paths(options)

    if not (options.message_id or options.queues or options.where):
        raise UsageError("give --message-id, --queue or --where")
    if options.where and (options.master or os.environ.get("OPENQ_SPARK_MASTER")) == NO_SPARK:
        raise UsageError("--where needs Spark: it cannot be combined with --master none")
    spark = session(options)
    try:
        who = getuser()
    except (KeyError, OSError):
        who = str(os.getuid())
    arguments |= {
        "message_ids": options.message_id,
        "queues": options.queues,
        "where": options.where,
        "before_us": _time_us(options.before) if options.before else None,
        "by": who,
    }
    if options.dry_run or not options.yes:
        found = erase_messages(spark, dry_run=True, **arguments)
        if options.dry_run or not found.messages:
            _print_erased(found, options.json)
            return OK
        if not confirm(
            options, f"erase {count_text(found.messages, 'message')} from the archive permanently"
        ):
            return NOT_CONFIRMED
    done = with_progress("erasing, files", erase_messages, spark, **arguments)
    _print_erased(done, options.json)
    return OK


def _print_erased(done: Any, as_json: bool) -> None:
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
        print(f"the journal still holds {done.journal} of them, until their segments are deleted")
    if done.waiting:
        print(
            f"{count_text(done.waiting, 'more message')} that match are not archived yet: "
            "archive them, then erase again"
        )
    elif done.waiting is None:
        print("the part of the journal that is not archived yet was not searched")


def _time_us(text: str) -> int:
    """Microseconds since the epoch, of a time or a duration ago."""

    return int(datetime.fromisoformat(parse_time(text)).timestamp() * 1_000_000)
