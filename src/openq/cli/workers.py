"""`openq worker ls`, `show`, `quiet` and `stop`."""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import datetime
from typing import Any

from .api import connect, path_part
from .output import count_text, duration_text, print_fields, print_json, print_list, print_result, print_table
from .terminal import OK, size_text


def ls(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/workers")["workers"],
        {
            "process": "name",
            "worker": "service",
            "state": "state",
            "busy": lambda entry: f"{entry['busy']}/{entry['slots']}",
            "queues": queues_text,
            "runs": "runs",
            "host": "host",
            "pid": "pid",
            "since": "started",
            "memory": lambda entry: size_text(entry["memory"]),
        },
        right=("busy", "pid", "memory"),
        empty="no workers",
    )
    return OK


def show(options: Namespace) -> int:
    found = connect(options).get(f"/workers/{path_part(options.worker)}")["workers"]
    if options.json:
        print_json({"workers": found})
        return OK
    for i, entry in enumerate(found):
        if i:
            print()
        print_fields(
            [
                ("process", entry["name"]),
                ("worker", entry["service"]),
                ("runs", entry["runs"]),
                ("state", entry["state"]),
                ("host", entry["host"]),
                ("pid", entry["pid"]),
                ("started", entry["started"]),
                ("queues", queues_text(entry)),
                ("busy", f"{entry['busy']} of {entry['slots']}"),
                ("memory", size_text(entry["memory"])),
                ("versions", f"OpenQ {entry['version']}, Python {entry['python']}"),
            ]
        )
        if entry["running"]:
            print()
            print_table(("job", "task", "queue", "attempt", "for"), running_rows(entry), ("attempt", "for"))
    return OK


def quiet(options: Namespace) -> int:
    return _command(options, "quiet")


def stop(options: Namespace) -> int:
    return _command(options, "stop")


def _command(options: Namespace, command: str) -> int:
    reply = connect(options).post(f"/workers/{path_part(options.worker)}/{command}")
    processes = count_text(len(reply["processes"]), "process")
    print_result(options, reply, f"sent {command} to {processes} of {options.worker}")
    return OK


def queues_text(entry: dict[str, Any]) -> str:
    return ", ".join(name if weight == 1 else f"{name}:{weight}" for name, weight in entry["queues"].items())


def running_rows(entry: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (job["id"], job["task"], job["queue"], job["attempt"], duration_text(seconds_since(job["since"])))
        for job in entry["running"]
    ]


def seconds_since(moment: str) -> float:
    try:
        return max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())
    except (ValueError, OverflowError):  # any program may write to the registry
        return 0.0
