"""`openq task`: long operations of the server (not tasks of workers), also those of other commands."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from .api import ApiClient, connect, path_part
from .output import count_text, print_json, print_list, print_result
from .progress import ProgressBar
from .terminal import FAILED, INTERRUPTED, OK, say

POLL_INTERVAL_S = 0.25


def ls(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/tasks")["tasks"],
        {
            "id": lambda task: task.get("id"),
            "what": "kind",
            "queue": "queue",
            "state": lambda task: "paused" if task["paused"] else task["state"],
            "done": "done",
            "of": "total",
            "started": "started",
            "error": lambda task: task["error"] or "",
        },
        right=("done", "of"),
        empty="no operations",
    )
    return OK


def watch(options: Namespace) -> int:
    server = connect(options)
    return watch_task(server, server.get(f"/tasks/{path_part(options.id)}"), options)


def cancel(options: Namespace) -> int:
    server, path = connect(options), f"/tasks/{path_part(options.id)}"
    task = server.get(path)
    if task["state"] != "running":
        if options.json:
            print_json(task)
        how = {"done": "ended", "failed": "failed", "cancelled": "was cancelled"}[task["state"]]
        say(f"the operation is not running: it {how} after {count_text(task['done'], 'message')}")
        return FAILED
    task = server.delete(path)
    print_result(options, task, "cancelling")
    return OK


def pause(options: Namespace) -> int:
    return _change(options, "pause", "paused; `openq task resume` continues it")


def resume(options: Namespace) -> int:
    return _change(options, "resume", "resumed", {"watch": False} if options.unwatched else {})


def _change(options: Namespace, verb: str, text: str, request: dict[str, Any] | None = None) -> int:
    task = connect(options).post(f"/tasks/{path_part(options.id)}/{verb}", request)
    if task["state"] != "running":
        if options.json:
            print_json(task)
        say(f"the operation is not running: its state is {task['state']}")
        return FAILED
    print_result(options, task, text)
    return OK


def watch_task(server: ApiClient, task: dict[str, Any], options: Namespace, total: int | None = None) -> int:
    """Show its progress until it ends, or until Ctrl-C. `total` is the count of a dry run."""
    shown = ProgressBar(f"{task['kind']} {task['queue']}", task["total"] or total)
    try:
        while task["state"] == "running":
            shown.update(task["done"])
            time.sleep(POLL_INTERVAL_S)
            task = server.get(f"/tasks/{path_part(task['id'])}")
    except KeyboardInterrupt:
        shown.end()
        say(
            f"operation {task['id']} keeps running; `openq task watch {task['id']}` shows it, "
            f"`openq task cancel {task['id']}` cancels it"
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
