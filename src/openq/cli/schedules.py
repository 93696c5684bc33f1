"""`openq schedule`."""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

from ..cron import find_zone
from ..errors import InvalidSetting
from .api import UsageError, connect, path_part
from .arguments import attributes_of
from .output import duration_text, print_fields, print_json, print_list, print_result
from .remove import remove_each
from .send import message_document
from .terminal import OK

_MAX_NEXT = 100


def add(options: Namespace) -> int:
    if options.cron is None and options.every is None:
        raise UsageError("give --cron '*/5 * * * *' or --every 5m")
    given = {
        "queue": options.queue,
        "cron": options.cron,
        "every": options.every,
        "timezone": options.timezone,
        "misfire": options.misfire,
        "jitter": options.jitter,
        "start": options.start,
        "end": options.end,
        "message_type": options.type,
        "group": options.group,
        "priority": options.priority,
        "delay": options.delay,
        "ttl": options.ttl,
        "unique_key": options.unique_key,
        "attributes": attributes_of(options.attribute),
    }
    body = {name: value for name, value in given.items() if value is not None}
    server = connect(options)
    status, stored = server.put(_path(options.name), {**message_document(options.kind, options.body), **body})
    outcome = "added" if status == 201 else "declared"
    print_result(options, stored, f"schedule {options.name} {outcome}; {_next_text(stored)}")
    return OK


def ls(options: Namespace) -> int:
    found = connect(options).get("/schedules", next_runs=1)["schedules"]
    shown = [each for each in found if options.queue in (None, each["queue"])]
    of_queue = f" of queue {options.queue}" if options.queue else ""
    print_list(
        options,
        shown,
        {
            "schedule": "name",
            "queue": "queue",
            "when": _when,
            "next run": lambda each: _moment_text(each, "next_run"),
            "last run": lambda each: _moment_text(each, "last_run"),
            "runs": "runs",
            "missed": "missed",
            "notes": _notes,
        },
        empty=f"no schedules{of_queue}; `openq schedule add NAME QUEUE --every 5m` declares one",
        right=("runs", "missed"),
    )
    return OK


def show(options: Namespace) -> int:
    if options.next > _MAX_NEXT:
        raise UsageError(f"argument --next: at most {_MAX_NEXT}")
    found = connect(options).get(_path(options.name), next_runs=options.next)
    if options.json:
        print_json(found)
        return OK
    names = (
        "name",
        "queue",
        "payload",
        "payload_encoding",
        "message_type",
        "priority",
        "group",
        "attributes",
    )
    fields = [(name.replace("_", " "), found[name]) for name in names if found.get(name) not in (None, {}, 0)]
    fields += [("when", _when(found)), ("misfire", found["misfire"])]
    if found["jitter"]:
        fields.append(("jitter", duration_text(found["jitter"])))
    fields += [(name, found[name]) for name in ("start", "end") if found[name]]
    fields += [
        ("paused", found["paused"]),
        ("last run", _moment_text(found, "last_run")),
        ("runs", found["runs"]),
        ("missed", found["missed"]),
        ("error", found["error"]),
    ]
    fields += [("next run", _local_text(found, moment)) for moment in found["next_runs"]] or [
        ("next run", "-")
    ]
    print_fields(fields)
    return OK


def rm(options: Namespace) -> int:
    return remove_each(options, "schedule", _path)


def run(options: Namespace) -> int:
    published = connect(options).post(f"{_path(options.name)}/run")
    print_result(options, published, published["id"])
    return OK


def pause(options: Namespace) -> int:
    paused = connect(options).post(f"{_path(options.name)}/pause")
    print_result(options, paused, f"schedule {options.name} is paused: no runs until `openq schedule resume`")
    return OK


def resume(options: Namespace) -> int:
    resumed = connect(options).post(f"{_path(options.name)}/resume")
    print_result(options, resumed, f"schedule {options.name} is resumed; {_next_text(resumed)}")
    return OK


def _path(name: str) -> str:
    return f"/schedules/{path_part(name)}"


# -- texts --------------------------------------------------------------------------------------------


def _when(schedule: dict[str, Any]) -> str:
    if schedule["cron"] is None:
        return f"every {duration_text(schedule['every'])}"
    zone = schedule["timezone"]
    return str(schedule["cron"]) if zone == "UTC" else f"{schedule['cron']} ({zone})"


def _notes(schedule: dict[str, Any]) -> str:
    notes = ["paused"] if schedule["paused"] else []
    if schedule["next_run"] is None and not schedule["paused"]:
        notes.append("no run is left")
    return ", ".join(notes + ([schedule["error"]] if schedule["error"] else []))


def _next_text(schedule: dict[str, Any]) -> str:
    if schedule["next_run"] is None:
        return "paused" if schedule["paused"] else "no run is left"
    return f"next run {_moment_text(schedule, 'next_run')}"


def _moment_text(schedule: dict[str, Any], name: str) -> str:
    """`2026-01-31 07:00:00 CET, in 5 min`."""
    if schedule[name] is None:
        return "-"
    away_s = datetime.fromisoformat(schedule[name]).timestamp() - time.time()
    distance = f"in {duration_text(away_s)}" if away_s >= 0 else f"{duration_text(-away_s)} ago"
    return f"{_local_text(schedule, schedule[name])}, {distance}"


def _local_text(schedule: dict[str, Any], moment: str) -> str:
    """In the time zone of the schedule; in UTC if this machine does not know it."""
    try:
        zone = find_zone(schedule["timezone"])
    except InvalidSetting:
        zone = UTC
    return datetime.fromisoformat(moment).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")
