"""`openq pipeline cursors` and `openq pipeline subscriptions`."""

from __future__ import annotations

from argparse import Namespace
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
    plan = f"remove cursor {options.name}"
    removed = _remove(options, "cursors", plan, "the journal is no longer kept for it")
    if isinstance(removed, int):
        return removed
    print_result(options, removed, f"cursor {options.name} removed")
    return OK


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
    plan = f"end subscription {options.name}"
    ended = _remove(options, "subscriptions", plan, "its messages return to the queue")
    if isinstance(ended, int):
        return ended
    print_result(options, ended, f"ended; {count_text(ended['messages'], 'message')} returned to the queue")
    return OK


def _remove(options: Namespace, kind: str, plan: str, effect: str) -> dict[str, Any] | int:
    """The result of the removal; the exit code after a dry run or without a confirmation."""
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
    removed: dict[str, Any] = server.delete(f"/pipeline/{kind}/{path_part(options.name)}")
    return removed
