"""`openq dlq` and `openq replay`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from itertools import islice
from typing import Any

from .api import MAX_PAGE, UsageError, connect, path_part
from .arguments import changes_of, filter_of, parse_time
from .output import (
    NOT_CONFIRMED,
    confirm,
    count_text,
    duration_text,
    escape_control,
    print_json,
    print_list,
    print_result,
    print_table,
)
from .progress import ProgressBar
from .tasks import watch_task
from .terminal import EMPTY, OK, say

# -- what they do -------------------------------------------------------------------------------


def ls(options: Namespace) -> int:
    return _ls_queues(options) if options.queue is None else _ls_dead_letters(options)


def _ls_queues(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/dead-letters")["queues"],
        {
            "queue": "queue",
            "messages": "messages",
            "oldest": lambda queue: duration_text(queue["oldest_age"]),
            "dead letters of": lambda queue: ", ".join(queue["sources"]),
        },
        right=("messages", "oldest"),
        empty="no dead-letter queues; `openq queue edit QUEUE --dlq NAME` sets one",
    )
    return OK


def _ls_dead_letters(options: Namespace) -> int:
    path = f"/queues/{path_part(options.queue)}/dead-letters"
    query = {"traceback": "true"} if options.traceback else {}
    messages = list(islice(connect(options).pages(path, "messages", "next", **query), options.max))
    columns = {"time": "time", "id": "id", "from": "source", "receives": "receive_count", "reason": "reason"}
    print_list(options, messages, columns, right=("receives",), empty=f"no dead letters in {options.queue}")
    for message in messages:
        if message.get("traceback") and not options.json:
            print(f"\n{message['id']}:")
            for line in message["traceback"].splitlines():
                print(f"  {escape_control(line)}")
    return OK if messages else EMPTY


def groups(options: Namespace) -> int:
    found = connect(options).get(f"/queues/{path_part(options.queue)}/dead-letters/groups")
    reasons = found["groups"]
    if options.json:
        print_json(found)
    elif reasons:
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
                for e in reasons
            ],
            ("count",),
        )
        if not found["complete"]:
            say(f"only the first {found['scanned']} dead letters were grouped")
    else:
        say(f"no dead letters in {options.queue}")
    return OK if reasons else EMPTY


def redrive(options: Namespace) -> int:
    request = {
        "to": options.to,
        "filter": filter_of(options),
        "rate": options.rate,
        "set": changes_of(options.set),
        "remove": options.remove,
        "stop_after": options.stop_after,
    }
    where = f"to {options.to}" if options.to else "back to the queues they came from"
    return _run_task(options, "redrive", request, f"send {{}} of {options.queue} {where}")


def discard(options: Namespace) -> int:
    return _run_task(
        options, "discard", {"filter": filter_of(options)}, f"delete {{}} from {options.queue} permanently"
    )


def replay(options: Namespace) -> int:
    if options.since and options.since_id:
        raise UsageError("--since and --since-id cannot be combined")
    wanted = filter_of(options)
    if not options.since and not options.since_id and wanted is None:
        raise UsageError("give --since, --since-id or a condition; see `openq replay --help`")
    request = {
        "since": parse_time(options.since) if options.since else None,
        "since_id": options.since_id,
        "until": parse_time(options.until) if options.until else None,
        "filter": wanted,
        "to": options.to,
        "rate": options.rate,
        "include_purged": options.include_purged,
    }
    return _run_task(options, "replay", request, f"publish {{}} again to {options.to or options.queue}")


def _run_task(options: Namespace, verb: str, request: dict[str, Any], plan: str) -> int:
    """Count the messages, ask for confirmation, start the task, show its progress."""

    server = connect(options)
    path = f"/queues/{path_part(options.queue)}/{verb}"
    body = {name: value for name, value in request.items() if value is not None}
    total: int | None = None
    if options.dry_run or not options.yes:
        would = server.post(path, {**body, "dry_run": True}, timeout_s=300.0)
        total = would["total"] or 0
        what = plan.format(count_text(total, "message"))
        if options.dry_run:
            print_result(options, would, f"dry run: this would {what}")
            if not options.json:
                _print_samples(would)
            return OK
        if not total:
            say("nothing to do: no message matches")
            return OK
        if not confirm(options, what):
            return NOT_CONFIRMED
    task = server.post(path, body, timeout_s=300.0)
    if options.no_wait:
        print_result(options, task, task["id"])
        return OK
    return watch_task(server, task, options, total)


def _print_samples(would: dict[str, Any]) -> None:
    """What a redrive that changes bodies would do to a few of them."""
    for sample in would.get("result", {}).get("samples", []):
        if "after" in sample or "error" in sample:
            print(f"{sample['id']} -> {sample['to']}")
            print(f"  - {escape_control(sample['before'])}")
            print(f"  + {escape_control(sample['after'])}" if "after" in sample else f"  {sample['error']}")


def export(options: Namespace) -> int:
    server = connect(options)
    if options.out is None:
        return _write_lines(server, options.queue, sys.stdout.buffer)
    # 0600: messages are private.

    handle = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        code = _write_lines(server, options.queue, file)
        file.flush()
        os.fsync(file.fileno())
    return code


def _write_lines(server: Any, queue: str, out: Any) -> int:
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
