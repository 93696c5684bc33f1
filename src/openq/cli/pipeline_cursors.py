"""`openq pipeline cursors` and `openq pipeline subscriptions`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from .api import connect, path_part
from .output import NOT_CONFIRMED, confirm, count_text, duration_text, print_list, print_result
from .terminal import NOT_FOUND, OK, say


def ls_cursors(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/pipeline/cursors")["cursors"],
        {
            "name": "name",
            "position": "position",
            "bytes behind": "lag_bytes",
            "time behind": lambda cursor: duration_text(cursor["lag_s"]),
            "moved": "moved",
            "owner": "owner",
            "kept": lambda cursor: f"no: {cursor['detail']}" if cursor["lost"] else "yes",
        },
        right=("position", "bytes behind"),
        empty="no cursors",
    )
    return OK


def rm_cursor(options: Namespace) -> int:
    plan, effect = f"remove cursor {options.name}", "the journal is no longer kept for it"
    return _remove(options, "cursors", plan, effect, lambda _: f"cursor {options.name} removed")


def ls_subscriptions(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/pipeline/subscriptions")["subscriptions"],
        {
            "name": "name",
            "queue": "queue",
            "batches": lambda each: len(each["batches"]),
            "first": "first_open",
            "messages": "messages",
            "lease until": lambda each: min((row["lease_until"] for row in each["batches"]), default=None),
            "owner": "owner",
        },
        right=("batches", "first", "messages"),
        empty="no subscriptions",
    )
    return OK


def rm_subscription(options: Namespace) -> int:
    def done(ended: dict[str, Any]) -> str:
        return f"ended; {count_text(ended['messages'], 'message')} returned to the queue"

    plan, effect = f"end subscription {options.name}", "its messages return to the queue"
    return _remove(options, "subscriptions", plan, effect, done)


def _remove(
    options: Namespace, kind: str, plan: str, effect: str, done: Callable[[dict[str, Any]], str]
) -> int:
    """`done` is the text for the server's reply."""
    server = connect(options)
    if options.dry_run:
        found = [each for each in server.get(f"/pipeline/{kind}")[kind] if each["name"] == options.name]
        if not found:
            say(f"{options.name} does not exist")
            return NOT_FOUND
        print_result(options, found[0], f"would {plan}")
        return OK
    if not confirm(options, f"{plan}: {effect}"):
        return NOT_CONFIRMED
    removed = server.delete(f"/pipeline/{kind}/{path_part(options.name)}")
    print_result(options, removed, done(removed))
    return OK
