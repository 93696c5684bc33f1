"""`openq series`: counts of a queue over time, from the built-in history of the server."""

from __future__ import annotations

import time
from argparse import Namespace

from .api import connect
from .output import print_json, print_table
from .terminal import OK

DEFAULT_NAMES = ("published", "delivered", "acked", "nacked", "dead_lettered", "ready", "oldest_age")
_SECONDS = ("oldest_age", "wait", "publish_to_ack")


def series(options: Namespace) -> int:
    now_s = time.time()
    names = options.names or DEFAULT_NAMES
    found = connect(options).get(
        "/series",
        queue=None if options.queue == "*" else options.queue,
        name=",".join(names),
        **{"from": round(now_s - options.since)},
        step=None if options.step is None else max(1, round(options.step)),
    )
    if options.json:
        print_json(found)
        return OK
    if not found["recorded"]:
        print(
            f"{options.queue} has no series of its own: only the busiest queues have one; "
            "`openq series '*'` shows all queues together"
        )
        return OK
    columns = [found["values"][name] for name in names]
    rows = [
        (_clock(moment, options.since), *(_cell(name, value) for name, value in zip(names, row, strict=True)))
        for moment, *row in zip(found["times"], *columns, strict=True)
    ]
    print_table(("time", *names), rows, right=names)
    return OK


def _clock(moment_s: int, span_s: float) -> str:
    return time.strftime("%H:%M:%S" if span_s <= 86_400 else "%m-%d %H:%M", time.localtime(moment_s))


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if name in _SECONDS else str(int(value))
