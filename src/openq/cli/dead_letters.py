"""`openq dlq ...` and `openq replay`: what failed, why, and another try."""

from __future__ import annotations

from .parser import CommandGroup, Parser, add_confirmation, add_filter, add_json, add_server, positive, rate
from .terminal import EMPTY, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any


def add(name: str, verbs: CommandGroup, help: str) -> None:
    if name == "replay":
        _add_replay(name, verbs, help)
        return
    dlq = verbs.add(
        name,
        None,
        help,
        [
            ("openq dlq ls", "every dead-letter queue"),
            ("openq dlq groups orders-dead", "what went wrong, how often"),
            ("openq dlq redrive orders-dead --reason timeout", "those back to where they failed"),
        ],
        "QUEUE is the dead-letter queue itself, as `openq dlq ls` shows it.",
    ).group()
    _add_ls(dlq)
    groups = dlq.add(
        "groups",
        _groups,
        "group dead letters by their reason",
        [("openq dlq groups orders-dead", "numbers and ids in reasons do not count")],
    )
    groups.add_argument("queue", metavar="QUEUE", help="a dead-letter queue")
    add_json(groups)
    add_server(groups)
    _add_redrive(dlq)
    _add_discard(dlq)
    _add_export(dlq)


def _add_ls(verbs: CommandGroup) -> None:
    ls = verbs.add(
        "ls",
        _ls,
        "list dead-letter queues, or the dead letters in one",
        [
            ("openq dlq ls", "every dead-letter queue, how many are in it, from where"),
            ("openq dlq ls orders-dead -n 20", "the dead letters in one: when, from where, why"),
            ("openq dlq ls orders-dead --traceback", "with the traceback of the last failure of each"),
        ],
    )
    ls.add_argument("queue", nargs="?", metavar="QUEUE", help="a dead-letter queue")
    ls.add_argument(
        "-n", "--max", metavar="N", type=positive, default=100, help="at most so many (default 100)"
    )
    ls.add_argument("--traceback", action="store_true", help="with tracebacks, where consumers gave one")
    add_json(ls, "one JSON object per line")
    add_server(ls)


def _finish(parser: Parser) -> None:
    add_confirmation(parser)
    parser.add_argument("--no-wait", action="store_true", help="print the id of the task and leave")
    add_json(parser)
    add_server(parser)


def _add_redrive(verbs: CommandGroup) -> None:
    redrive = verbs.add(
        "redrive",
        _redrive,
        "send dead letters back to where they failed",
        [
            ("openq dlq redrive orders-dead --dry-run", "how many it would be"),
            ("openq dlq redrive orders-dead --reason timeout --rate 50", "some of them, not too fast"),
            ("openq dlq redrive orders-dead --to orders-retry --yes", "to another queue, for scripts"),
        ],
        "Ctrl-C leaves it running; `openq task` watches and cancels.",
    )
    redrive.add_argument("queue", metavar="QUEUE", help="a dead-letter queue")
    redrive.add_argument("--to", metavar="QUEUE", help="another queue than where each one failed")
    redrive.add_argument("--rate", metavar="N", type=rate, help="the most per second")
    add_filter(redrive)
    _finish(redrive)


def _add_discard(verbs: CommandGroup) -> None:
    discard = verbs.add(
        "discard",
        _discard,
        "remove dead letters for good",
        [
            ("openq dlq discard orders-dead --reason 'no such product'", "those with this reason"),
            ("openq dlq discard orders-dead --dry-run", "how many it would be"),
        ],
        "Export them first if in doubt: `openq dlq export`.",
    )
    discard.add_argument("queue", metavar="QUEUE", help="a dead-letter queue")
    add_filter(discard)
    _finish(discard)


def _add_export(verbs: CommandGroup) -> None:
    export = verbs.add(
        "export",
        _export,
        "write everything in a queue as JSON lines; nothing is removed",
        [
            ("openq dlq export orders-dead > dead.jsonl", "with reasons, ids and times"),
            ("openq dlq export orders-dead --out dead.jsonl", "the same, with a progress bar"),
            ("openq send orders --lines --as message --file dead.jsonl", "and how to send them again"),
        ],
    )
    export.add_argument("queue", metavar="QUEUE", help="a dead-letter queue, or any other")
    export.add_argument("--out", metavar="FILE", help="instead of stdout; must not be there yet")
    add_json(export, "accepted for uniformity: the output is JSON anyway")
    add_server(export)


def _add_replay(name: str, verbs: CommandGroup, help: str) -> None:
    replay = verbs.add(
        name,
        _replay,
        help,
        [
            ("openq replay orders --since 2h --dry-run", "how many it would be"),
            ("openq replay orders --since 2026-01-31T10:30:00Z --to orders-again", "into another queue"),
            ("openq replay orders --since-id ID --rate 100 --yes", "from a message on, for scripts"),
        ],
        "What is still in the queue is not doubled, and ids stay: a replay may be repeated. As far as\n"
        "history is kept. Ctrl-C leaves it running; `openq task` watches and cancels.",
    )
    replay.add_argument("queue", metavar="QUEUE", help="whose messages")
    replay.add_argument("--since", metavar="TIME", help="2h (ago), or a time such as 2026-01-31T10:30:00Z")
    replay.add_argument("--since-id", metavar="ID", help="from this message on")
    replay.add_argument("--to", metavar="QUEUE", help="into another queue")
    replay.add_argument("--rate", metavar="N", type=rate, help="the most per second")
    replay.add_argument("--include-purged", action="store_true", help="also messages that a purge removed")
    add_filter(replay)
    _finish(replay)


# -- what they do -------------------------------------------------------------------------------


def _ls(options: Namespace) -> int:
    from itertools import islice

    from .api import connect, path_part
    from .output import duration_text, escape_control, print_json, print_table

    server = connect(options)
    if options.queue is None:
        found = server.get("/dead-letters")["queues"]
        if options.json:
            for each in found:
                print_json(each)
        elif found:
            print_table(
                ("queue", "messages", "oldest", "dead letters of"),
                [
                    (
                        each["queue"],
                        each["messages"],
                        duration_text(each["oldest_age"]),
                        ", ".join(each["sources"]),
                    )
                    for each in found
                ],
                ("messages", "oldest"),
            )
        else:
            say("there are no dead-letter queues; `openq queue edit QUEUE --dlq NAME` sets one")
        return OK
    path = f"/queues/{path_part(options.queue)}/dead-letters"
    more = {"traceback": "true"} if options.traceback else {}
    letters = list(islice(server.pages(path, "messages", "next", **more), options.max))
    if options.json:
        for each in letters:
            print_json(each)
    elif letters:
        print_table(
            ("time", "id", "from", "receives", "reason"),
            [(e["time"], e["id"], e["source"], e["receive_count"], e["reason"]) for e in letters],
            ("receives",),
        )
        for letter in letters:
            if letter.get("traceback"):
                print(f"\n{letter['id']}:")
                for line in letter["traceback"].splitlines():
                    print(f"  {escape_control(line)}")
    else:
        say(f"no dead letters in {options.queue}")
    return OK if letters else EMPTY


def _groups(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import print_json, print_table

    told = connect(options).get(f"/queues/{path_part(options.queue)}/dead-letters/groups")
    groups = told["groups"]
    if options.json:
        print_json(told)
    elif groups:
        print_table(
            ("count", "reason", "from", "first", "last", "for example"),
            [
                (
                    e["count"],
                    e["reason"],
                    ", ".join(e["sources"]),
                    e["first"],
                    e["last"],
                    (e["ids"] or [""])[0],
                )
                for e in groups
            ],
            ("count",),
        )
        if not told["complete"]:
            say(f"only the first {told['scanned']} were looked at")
    else:
        say(f"no dead letters in {options.queue}")
    return OK if groups else EMPTY


def _redrive(options: Namespace) -> int:
    from .arguments import filter_of

    request = {"to": options.to, "filter": filter_of(options), "rate": options.rate}
    where = f"to {options.to}" if options.to else "back to where they failed"
    return _run_task(options, "redrive", request, f"send {{}} of {options.queue} {where}")


def _discard(options: Namespace) -> int:
    from .arguments import filter_of

    return _run_task(
        options, "discard", {"filter": filter_of(options)}, f"remove {{}} from {options.queue} for good"
    )


def _replay(options: Namespace) -> int:
    from .api import UsageError
    from .arguments import filter_of, parse_time

    if options.since and options.since_id:
        raise UsageError("give --since or --since-id, not both")
    wanted = filter_of(options)
    if not options.since and not options.since_id and wanted is None:
        raise UsageError("from where? give --since, --since-id or which messages; see `openq replay --help`")
    request = {
        "since": parse_time(options.since) if options.since else None,
        "since_id": options.since_id,
        "filter": wanted,
        "to": options.to,
        "rate": options.rate,
        "include_purged": options.include_purged,
    }
    return _run_task(options, "replay", request, f"publish {{}} again to {options.to or options.queue}")


def _run_task(options: Namespace, verb: str, request: dict[str, Any], plan: str) -> int:
    """How many it would be, the question, the task, its progress."""
    from .api import connect, path_part
    from .output import NOT_CONFIRMED, confirm, count_text, print_json
    from .tasks import watch

    server = connect(options)
    path = f"/queues/{path_part(options.queue)}/{verb}"
    body = {name: value for name, value in request.items() if value is not None}
    total: int | None = None
    if options.dry_run or not options.yes:
        would = server.post(path, {**body, "dry_run": True}, timeout_s=300.0)
        total = would["total"] or 0
        what = plan.format(count_text(total, "message"))
        if options.dry_run:
            if options.json:
                print_json(would)
            else:
                print(f"dry run: this would {what}")
            return OK
        if not total:
            say("there is nothing to do: no message matches")
            return OK
        if not confirm(options, what):
            return NOT_CONFIRMED
    task = server.post(path, body, timeout_s=300.0)
    if options.no_wait:
        if options.json:
            print_json(task)
        else:
            print(task["id"])
        return OK
    return watch(server, task, options, total)


def _export(options: Namespace) -> int:
    import sys

    from .api import connect

    server = connect(options)
    if options.out is None:
        return _write_lines(server, options.queue, sys.stdout.buffer)
    # 0600: what is in a queue is nobody else's business.
    import os

    handle = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        code = _write_lines(server, options.queue, file)
        file.flush()
        os.fsync(file.fileno())
    return code


def _write_lines(server: Any, queue: str, out: Any) -> int:
    from .api import MAX_PAGE, path_part
    from .output import count_text
    from .progress import ProgressBar

    stats = server.get(f"/queues/{path_part(queue)}/stats")
    shown = ProgressBar(f"export {queue}", stats["ready"] + stats["delayed"] + stats["in_flight"])
    done = 0
    after: str | None = None
    try:
        while True:
            page = server.raw("/export", queue=queue, after=after, limit=MAX_PAGE)
            out.write(page.body)
            done += page.body.count(b"\n")
            shown.update(done)
            after = page.headers.get("openq-next")
            if after is None:
                break
    finally:
        shown.end()
    out.flush()
    say(f"{count_text(done, 'message')} exported; nothing was removed")
    return OK
