"""`openq pipeline cursors|subscriptions`: who reads the journal or whole queues, and an end to it."""

from __future__ import annotations

from .parser import CommandGroup, add_confirmation, add_json, add_server
from .terminal import OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


def add(verbs: CommandGroup) -> None:
    cursors = verbs.add(
        "cursors",
        None,
        "readers of the journal, for which it is kept: list or forget them",
        [
            ("openq pipeline cursors ls", "how far each one is"),
            ("openq pipeline cursors rm NAME", "nothing is kept for it any more"),
        ],
        "A cursor holds the journal from its position on, until it is too far behind or not moved for long.",
    ).group()
    _add_ls(
        cursors,
        "pipeline cursors",
        _ls_cursors,
        "list cursors, with how far behind they are and whether the journal is kept for them",
    )
    _add_rm(
        cursors,
        "pipeline cursors",
        _rm_cursor,
        "forget a cursor: the journal is no longer kept for it",
    )
    subscriptions = verbs.add(
        "subscriptions",
        None,
        "queues that are read in batches: list or end that",
        [
            ("openq pipeline subscriptions ls", "what each one holds"),
            ("openq pipeline subscriptions rm NAME", "its messages return to the queue"),
        ],
        "A batch stays the same until it is acknowledged, and returns to its queue when its lease runs out.",
    ).group()
    _add_ls(
        subscriptions,
        "pipeline subscriptions",
        _ls_subscriptions,
        "list subscriptions, with their open batches",
    )
    _add_rm(
        subscriptions,
        "pipeline subscriptions",
        _rm_subscription,
        "end a subscription: what its batches hold returns to the queue, counted as a delivery",
    )


def _add_ls(verbs: CommandGroup, where: str, run: Callable[[Namespace], int], help: str) -> None:
    ls = verbs.add(
        "ls",
        run,
        help,
        [(f"openq {where} ls", "for people"), (f"openq {where} ls --json", "one JSON object per line")],
    )
    add_json(ls, "one JSON object per line")
    add_server(ls)


def _add_rm(verbs: CommandGroup, where: str, run: Callable[[Namespace], int], help: str) -> None:
    rm = verbs.add(
        "rm",
        run,
        help,
        [
            (f"openq {where} rm NAME", "asks before it does"),
            (f"openq {where} rm NAME --yes", "for scripts"),
        ],
    )
    rm.add_argument("name", metavar="NAME", help=f"as `openq {where} ls` shows it")
    add_confirmation(rm)
    add_json(rm)
    add_server(rm)


def _ls_cursors(options: Namespace) -> int:
    from .api import connect
    from .output import duration_text, print_json, print_table

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
        say("there are no cursors")
    return OK


def _rm_cursor(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import NOT_CONFIRMED, confirm, print_json

    server = connect(options)
    if options.dry_run:
        found = [each for each in server.get("/pipeline/cursors")["cursors"] if each["name"] == options.name]
        return _print_dry_run(options, found, f"forget cursor {options.name}")
    if not confirm(options, f"forget cursor {options.name}: the journal is no longer kept for it"):
        return NOT_CONFIRMED
    gone = server.delete(f"/pipeline/cursors/{path_part(options.name)}")
    if options.json:
        print_json(gone)
    else:
        print(f"forgot cursor {options.name}")
    return OK


def _ls_subscriptions(options: Namespace) -> int:
    from .api import connect
    from .output import print_json, print_table

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
        say("there are no subscriptions")
    return OK


def _rm_subscription(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import NOT_CONFIRMED, confirm, count_text, print_json

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
    from .output import print_json
    from .terminal import NOT_FOUND

    if not found:
        say(f"there is no {options.name}")
        return NOT_FOUND
    if options.json:
        print_json(found[0])
    else:
        print(f"would {what}")
    return OK
