"""`openq damage ls|clear`: stored messages and records that a server found damaged."""

from __future__ import annotations

from .parser import CommandGroup, add_json, add_server
from .terminal import EMPTY, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

_NONE = "no damage is listed"


def add(name: str, verbs: CommandGroup, help: str) -> None:
    damage = verbs.add(
        name,
        None,
        help,
        [
            ("openq damage ls", "which messages and records, where, and why"),
            ("openq damage clear", "after you have seen the list: health is ok again"),
        ],
        "A server that found damage still serves, and its health is degraded until the list is cleared. "
        "Needs the permission admin. `openq journal check` looks for damage in a data directory.",
    ).group()
    ls = damage.add(
        "ls",
        _ls,
        "list what was found damaged",
        [("openq damage ls", "for people"), ("openq damage ls --json", "one JSON object per line")],
        "Exit code 5 if nothing is listed.",
    )
    add_json(ls, "one JSON object per line")
    add_server(ls)
    clear = damage.add(
        "clear",
        _clear,
        "empty the list, so that health is ok again",
        [("openq damage clear", "restores nothing: a message that was set aside stays so")],
        "Exit code 5 if nothing was listed. Counters in the metrics stay as they are.",
    )
    add_json(clear)
    add_server(clear)


def _ls(options: Namespace) -> int:
    from .api import connect
    from .output import print_json, print_table

    listed = connect(options).get("/damage")["damage"]
    if options.json:
        for each in listed:
            print_json(each)
    elif listed:
        print_table(
            ("kind", "queue", "id", "count", "found", "where", "why"),
            [
                (
                    each["kind"].replace("_", " "),
                    each["queue"] or "",
                    each["id"] or "",
                    each["count"],
                    each["time"],
                    f"{each['file']} at offset {each['offset']}" if each["file"] else "",
                    each["detail"],
                )
                for each in listed
            ],
            ("count",),
        )
    else:
        say(_NONE)
    return OK if listed else EMPTY


def _clear(options: Namespace) -> int:
    from .api import connect
    from .output import count_text, print_json

    cleared = connect(options).delete("/damage")
    if options.json:
        print_json(cleared)
    elif cleared["cleared"]:
        print(f"{count_text(cleared['cleared'], 'report')} cleared")
    else:
        say(_NONE)
    return OK if cleared["cleared"] else EMPTY
