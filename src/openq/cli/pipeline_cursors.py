"""`openq pipeline cursors` and `openq pipeline subscriptions`."""

from __future__ import annotations

from argparse import Namespace

from .api import connect, path_part
from .output import NOT_CONFIRMED, confirm, count_text, duration_text, print_json, print_table
from .terminal import NOT_FOUND, OK, say


def ls_cursors(options: Namespace) -> int:
    cursors = connect(options).get("/pipeline/cursors")["cursors"]
    if options.json:
        for each in cursors:
            print_json(each)
    elif cursors:
        print_table(
            ("name", "position", "bytes behind", "time behind", "moved", "owner", "kept"),
            [
                (
                    each["name"],
                    each["position"],
                    each["lag_bytes"],
                    duration_text(each["lag_s"]),
                    each["moved"],
                    each["owner"],
                    f"no: {each['detail']}" if each["lost"] else "yes",
                )
                for each in cursors
            ],
            ("position", "bytes behind"),
        )
    else:
        say("no cursors")
    return OK


def rm_cursor(options: Namespace) -> int:
    server = connect(options)
    if options.dry_run:
        found = [each for each in server.get("/pipeline/cursors")["cursors"] if each["name"] == options.name]
        return _print_dry_run(options, found, f"remove cursor {options.name}")
    if not confirm(options, f"remove cursor {options.name}: the journal is no longer kept for it"):
        return NOT_CONFIRMED
    gone = server.delete(f"/pipeline/cursors/{path_part(options.name)}")
    if options.json:
        print_json(gone)
    else:
        print(f"cursor {options.name} removed")
    return OK


def ls_subscriptions(options: Namespace) -> int:
    subscriptions = connect(options).get("/pipeline/subscriptions")["subscriptions"]
    if options.json:
        for each in subscriptions:
            print_json(each)
    elif subscriptions:
        print_table(
            ("name", "queue", "batches", "first", "messages", "lease until", "owner"),
            [
                (
                    each["name"],
                    each["queue"],
                    len(each["batches"]),
                    each["first_open"],
                    each["messages"],
                    min((batch["lease_until"] for batch in each["batches"]), default=None),
                    each["owner"],
                )
                for each in subscriptions
            ],
            ("batches", "first", "messages"),
        )
    else:
        say("no subscriptions")
    return OK


def rm_subscription(options: Namespace) -> int:
    server = connect(options)
    if options.dry_run:
        shown = server.get("/pipeline/subscriptions")["subscriptions"]
        found = [each for each in shown if each["name"] == options.name]
        return _print_dry_run(options, found, f"end subscription {options.name}")
    if not confirm(options, f"end subscription {options.name}: its messages return to the queue"):
        return NOT_CONFIRMED
    returned = server.delete(f"/pipeline/subscriptions/{path_part(options.name)}")
    if options.json:
        print_json(returned)
    else:
        print(f"ended; {count_text(returned['messages'], 'message')} returned to the queue")
    return OK


def _print_dry_run(options: Namespace, found: list[dict[str, object]], what: str) -> int:
    if not found:
        say(f"{options.name} does not exist")
        return NOT_FOUND
    if options.json:
        print_json(found[0])
    else:
        print(f"would {what}")
    return OK
