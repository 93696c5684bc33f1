"""`openq damage`: stored messages and records that a server found damaged."""

from __future__ import annotations

from argparse import Namespace

from .api import connect
from .output import count_text, print_json, print_list
from .terminal import EMPTY, OK, say

_NONE = "no damage listed"


def ls(options: Namespace) -> int:
    listed = connect(options).get("/damage")["damage"]
    print_list(
        options,
        listed,
        {
            "kind": lambda each: each["kind"].replace("_", " "),
            "queue": lambda each: each["queue"] or "",
            "id": lambda each: each["id"] or "",
            "count": "count",
            "found": "time",
            "where": lambda each: f"{each['file']} at offset {each['offset']}" if each["file"] else "",
            "why": "detail",
        },
        right=("count",),
        empty=_NONE,
    )
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
