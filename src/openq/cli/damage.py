"""`openq damage`: stored messages and records that a server found damaged."""

from __future__ import annotations

from argparse import Namespace

from .api import connect
from .output import count_text, print_json, print_table
from .terminal import EMPTY, OK, say

_NONE = "no damage listed"


def ls(options: Namespace) -> int:
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


def clear(options: Namespace) -> int:
    cleared = connect(options).delete("/damage")
    if options.json:
        print_json(cleared)
    elif cleared["cleared"]:
        print(f"{count_text(cleared['cleared'], 'report')} cleared")
    else:
        say(_NONE)
    return OK if cleared["cleared"] else EMPTY
