"""`openq task ls|watch|cancel`, and watching the long work that other commands start."""

from __future__ import annotations

from .parser import CommandGroup, add_json, add_server
from .terminal import FAILED, INTERRUPTED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from .api import ApiClient

POLL_INTERVAL_S = 0.25


def add(name: str, verbs: CommandGroup, help: str) -> None:
    task = verbs.add(
        name,
        None,
        help,
        [
            ("openq task ls", "what runs, and what ran lately"),
            ("openq task watch ID", "its progress, until it ends"),
            ("openq task cancel ID", "what is done stays done"),
        ],
        "Redrive, discard and replay run inside the server: they go on when the one who asked goes away.",
    ).group()
    ls = task.add(
        "ls",
        _ls,
        "list what runs, and what ran lately",
        [("openq task ls", "for people"), ("openq task ls --json", "one JSON object per line")],
    )
    add_json(ls, "one JSON object per line")
    add_server(ls)
    watch = task.add(
        "watch",
        _watch,
        "show the progress of a task until it ends",
        [("openq task watch ID", "Ctrl-C stops watching, not the task")],
        "Exit code 0 if it succeeded, 1 if it failed or was cancelled.",
    )
    cancel = task.add(
        "cancel",
        _cancel,
        "ask a task to stop",
        [("openq task cancel ID", "what is done stays done")],
    )
    for parser in (watch, cancel):
        parser.add_argument("id", metavar="ID", help="as `openq task ls` shows it")
        add_json(parser)
        add_server(parser)


def _ls(options: Namespace) -> int:
    from .api import connect
    from .output import print_json, print_table

    tasks = connect(options).get("/tasks")["tasks"]
    if options.json:
        for each in tasks:
            print_json(each)
    elif tasks:
        print_table(
            ("id", "what", "queue", "state", "done", "of", "started", "error"),
            [
                (
                    each.get("id"),
                    each["kind"],
                    each["queue"],
                    each["state"],
                    each["done"],
                    each["total"],
                    each["started"],
                    each["error"] or "",
                )
                for each in tasks
            ],
            ("done", "of"),
        )
    else:
        say("there are no tasks")
    return OK


def _watch(options: Namespace) -> int:
    from .api import connect, path_part

    server = connect(options)
    return watch(server, server.get(f"/tasks/{path_part(options.id)}"), options)


def _cancel(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import count_text, print_json

    server, path = connect(options), f"/tasks/{path_part(options.id)}"
    task = server.get(path)
    if task["state"] != "running":
        if options.json:
            print_json(task)
        how = {"done": "it is done", "failed": "it failed", "cancelled": "it was cancelled"}[task["state"]]
        say(f"there is nothing to cancel: {how}, after {count_text(task['done'], 'message')}")
        return FAILED
    task = server.delete(path)
    if options.json:
        print_json(task)
    else:
        print("asked to stop")
    return OK


def watch(server: ApiClient, task: dict[str, Any], options: Namespace, total: int | None = None) -> int:
    """Until it ends, or until Ctrl-C: then it goes on without us. `total` is what a dry run counted."""
    import time

    from .api import path_part
    from .output import count_text, print_json
    from .progress import ProgressBar

    shown = ProgressBar(f"{task['kind']} {task['queue']}", task["total"] or total)
    try:
        while task["state"] == "running":
            shown.update(task["done"])
            time.sleep(POLL_INTERVAL_S)
            task = server.get(f"/tasks/{path_part(task['id'])}")
    except KeyboardInterrupt:
        shown.end()
        say(
            f"task {task['id']} goes on without you; `openq task watch {task['id']}` shows it, "
            f"`openq task cancel {task['id']}` stops it"
        )
        return INTERRUPTED
    finally:
        shown.end()
    if options.json:
        print_json(task)
    elif task["state"] == "done":
        print(f"{task['kind']}: {count_text(task['done'], 'message')}")
    else:
        say(f"{task['kind']} {task['state']} after {count_text(task['done'], 'message')}")
        if task["error"]:
            say(task["error"])
    return OK if task["state"] == "done" else FAILED
