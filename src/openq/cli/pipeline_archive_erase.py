"""`openq pipeline archive erase`: messages out of the archive for good."""

from __future__ import annotations

import os

from .parser import CommandGroup, add_json
from .pipeline import add_spark
from .pipeline_archive_common import NO_SPARK, add_archive_paths, archive_paths, session, with_progress
from .terminal import OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any


def add_erase(verbs: CommandGroup) -> None:
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
    add_archive_paths(erase)
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
    add_spark(erase)
    add_json(erase)


def _erase(options: Namespace) -> int:
    told = archive_paths(options)
    from getpass import getuser

    from ..pipeline.archive import erase
    from .api import UsageError
    from .output import NOT_CONFIRMED, confirm, count_text

    if not (options.message_id or options.queues or options.where):
        raise UsageError("which messages? give --message-id, --queue or --where")
    if options.where and (options.master or os.environ.get("OPENQ_SPARK_MASTER")) == NO_SPARK:
        raise UsageError("--where is evaluated by Spark: leave out --master none")
    spark = session(options)
    try:
        who = getuser()
    except (KeyError, OSError):
        who = str(os.getuid())
    told |= {
        "message_ids": options.message_id,
        "queues": options.queues,
        "where": options.where,
        "before_us": _time_us(options.before) if options.before else None,
        "by": who,
    }
    if options.dry_run or not options.yes:
        found = erase(spark, dry_run=True, **told)
        if options.dry_run or not found.messages:
            _print_erased(found, options.json)
            return OK
        if not confirm(options, f"erase {count_text(found.messages, 'message')} from the archive for good"):
            return NOT_CONFIRMED
    done = with_progress("erasing, files", erase, spark, **told)
    _print_erased(done, options.json)
    return OK


def _print_erased(done: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from .output import count_text, print_json

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


def _time_us(text: str) -> int:
    """A time, or how long ago."""
    from datetime import datetime

    from .arguments import parse_time

    told = parse_time(text)
    return int(datetime.fromisoformat(told).timestamp() * 1_000_000)
