"""`openq peek`, `tail`, `search`, `why` and `timeline`: they change nothing."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from typing import Any

from .api import MAX_PAGE, connect, path_part
from .arguments import filter_of, parse_time
from .events import follow_messages
from .output import (
    body_text,
    count_text,
    escape_control,
    not_ready_text,
    print_json,
    print_result,
    print_table,
)
from .terminal import EMPTY, INTERRUPTED, NOT_FOUND, OK, is_terminal, say, styled, terminal_width


def peek(options: Namespace) -> int:
    server = connect(options)
    path = f"/queues/{path_part(options.queue)}/messages"
    shown = 0
    after = None
    while shown < options.max:
        page = server.get(
            path,
            limit=min(options.max - shown, MAX_PAGE),
            state=options.state,
            rear=options.rear or None,
            after=after,
        )
        _print_rows(page["messages"], options.json)
        shown += len(page["messages"])
        if page.get("truncated"):
            say("the response was truncated to its maximum size; these are the last messages")
        after = page.get("next")
        if after is None or not page["messages"]:
            break
    if not shown and options.state == "ready":
        return _nothing_ready(server.get(f"/queues/{path_part(options.queue)}")["stats"], options.queue)
    return _found_code(shown, options.queue)


def _nothing_ready(stats: dict[str, Any], queue: str) -> int:
    """No ready message: report those in other states."""
    others = not_ready_text(stats, " (--state {})")
    if not others:
        return _found_code(0, queue)
    say(f"no ready message in {queue}: {others}")
    return EMPTY


def _found_code(shown: int, queue: str) -> int:
    if not shown:
        say(f"no message found in {queue}")
    return OK if shown else EMPTY


def _print_rows(messages: Sequence[dict[str, Any]], as_json: bool) -> None:
    """One line per message: time, id, notes, and the beginning of the body."""

    for message in messages:
        if as_json:
            print_json(message)
            continue
        when = message.get("timestamp") or message.get("time")
        notes = [str(message.get("message_type") or "")]
        if message.get("state") not in (None, "ready"):
            holder = message.get("consumer")
            notes.append(str(message["state"]).replace("_", " ") + (f" with {holder}" if holder else ""))
        if message.get("receive_count"):
            notes.append(f"received {message['receive_count']}x")
        if message.get("reason"):
            notes.append(f"failed: {message['reason']}")
        noted = escape_control(", ".join(filter(None, notes)))
        head = f"{when}  {message['id']}  " + (f"[{noted}]  " if noted else "")
        body = body_text(message)
        if is_terminal(sys.stdout):
            body = body[: max(20, terminal_width() - len(head))]
        print(styled(head, "dim") + body)
    sys.stdout.flush()


def tail(options: Namespace) -> int:
    if not options.follow or options.data:
        return _tail_past(options)
    # Opened first: a message that is published meanwhile is in the stream, in the list or in both.
    following = follow_messages(options)
    known: set[str] = set()
    if options.since is not None or options.max is not None:
        known.update(row["id"] for row in _past(options))
    try:
        for row in following:
            if row["id"] not in known:
                _print_rows([row], options.json)
            known.discard(row["id"])
    except KeyboardInterrupt:
        return INTERRUPTED  # the usual end
    return OK


def _tail_past(options: Namespace) -> int:
    if _past(options):
        return OK
    since = parse_time(options.since or "10m")
    say(f"no message was published to {options.queue} since {since}; --since reads further back")
    return EMPTY


def _past(options: Namespace) -> list[dict[str, Any]]:
    """Print past messages. Returns the last of them, all if `--max` limits them."""
    server = connect(options)
    since = parse_time(options.since or "10m")
    after = 0
    last: deque[dict[str, Any]] = deque(maxlen=MAX_PAGE if options.max is None else options.max)
    while True:
        page = server.get(
            "/history/messages", queue=options.queue, since=since, after_seq=after, limit=MAX_PAGE
        )
        messages = page["messages"]
        if options.max is None:
            _print_rows(messages, options.json)
        last.extend(messages)
        if not messages or page.get("next_seq") is None:
            break
        after = max(messages[-1]["seq"], page["next_seq"])
    if options.max is not None:
        _print_rows(list(last), options.json)
    return list(last)


def search(options: Namespace) -> int:
    wanted = filter_of(options, options.text) or {}
    request = {
        **wanted,
        "state": options.state,
        "limit": min(options.max, MAX_PAGE),
        "budget": options.budget,
    }
    found = connect(options).post(
        f"/queues/{path_part(options.queue)}/search", request, timeout_s=options.budget + 30.0
    )
    _print_rows(found["messages"], options.json)
    if not found["complete"]:
        say(f"incomplete: {count_text(found['scanned'], 'message')} searched; see --max and --budget")
    return _found_code(len(found["messages"]), options.queue)


def why(options: Namespace) -> int:
    reason = connect(options).get(f"/queues/{path_part(options.queue)}/messages/{path_part(options.id)}/why")
    trace = f" (trace {reason['trace_id']})" if "trace_id" in reason else ""
    print_result(options, reason, escape_control(reason["text"] + trace))
    return NOT_FOUND if reason["code"] == "not_found" else OK


def timeline(options: Namespace) -> int:
    found = connect(options).get(
        f"/queues/{path_part(options.queue)}/messages/{path_part(options.id)}/timeline"
    )
    if options.json:
        print_json(found)
    elif found["steps"]:
        print_table(
            ("time", "what", "queue", "detail"),
            [(step["time"], step["what"], step["queue"], step["detail"]) for step in found["steps"]],
        )
        for trace_id in {step["trace_id"]: None for step in found["steps"] if "trace_id" in step}:
            print(f"trace {escape_control(trace_id)}")
        _print_traceback(found["steps"])
    if not found["steps"]:
        say(f"message {options.id} is not in {options.queue}, nor in its history")
        return NOT_FOUND
    return OK


def _print_traceback(steps: Sequence[dict[str, Any]]) -> None:
    """The traceback of the last failure that has one."""

    for step in reversed(steps):
        if step.get("traceback"):
            print(f"\ntraceback of {step['time']}:")
            for line in step["traceback"].splitlines():
                print(f"  {escape_control(line)}")
            return
