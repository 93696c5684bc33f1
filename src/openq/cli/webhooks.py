"""`openq webhook`."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from .api import ApiClient, UsageError, connect, path_part
from .arguments import attributes_of, parse_time
from .output import duration_text, print_fields, print_json, print_list, print_result, shorten
from .remove import remove_each
from .tasks import watch_task
from .terminal import FAILED, OK, say

_SECRET_NOTE = "the secret, shown this once; the endpoint verifies signatures with it"


def add(options: Namespace) -> int:
    if (options.queue is None) == (options.events is None):
        raise UsageError("give --queue QUEUE for messages, or --events PATTERN for events")
    given: dict[str, Any] = {
        "url": options.target,
        "queue": options.queue,
        "mode": options.mode,
        "batch": options.batch,
        "headers": dict(options.header) if options.header else None,
        "secret": _secret(options),
        "concurrency": options.concurrency,
        "rate": options.rate,
        "timeout": options.request_timeout,
        "failures": options.failures,
        "max_attempts": options.max_attempts,
    }
    if options.events is not None:
        given["events"] = {
            "queues": [each for each in options.events if each != "*"],
            "events": options.event or [],
            "types": options.type or [],
            "attributes": attributes_of(options.attribute) or {},
            "bodies": options.bodies,
        }
    else:
        given["types"] = options.type
        given["attributes"] = attributes_of(options.attribute)
    body = {name: value for name, value in given.items() if value is not None}
    status, stored = connect(options).put(_path(options.name), body)
    outcome = "added" if status == 201 else "declared"
    print_result(options, stored, f"webhook {options.name} {outcome}: {_source(stored)} -> {stored['url']}")
    _print_secret(options, stored)
    return OK


def ls(options: Namespace) -> int:
    found = connect(options).get("/webhooks")["webhooks"]
    shown = [each for each in found if options.queue in (None, each["queue"])]
    print_list(
        options,
        shown,
        {
            "webhook": "name",
            "sends": _source,
            "to": lambda each: shorten(each["url"], 60),
            "mode": "mode",
            "state": lambda each: each["status"]["state"],
            "delivered": lambda each: each["status"]["delivered"],
            "failed": lambda each: each["status"]["failed"],
            "notes": lambda each: shorten(_notes(each), 60),
        },
        empty="no webhooks; `openq webhook add NAME URL --queue QUEUE` declares one",
        right=("delivered", "failed"),
    )
    return OK


def show(options: Namespace) -> int:
    found = connect(options).get(_path(options.name))
    if options.json:
        print_json(found)
        return OK
    status = found["status"]
    fields: list[tuple[str, object]] = [
        ("name", found["name"]),
        ("url", found["url"]),
        ("sends", _source(found)),
        (
            "mode",
            found["mode"] if found["batch"] == 1 else f"{found['mode']}, up to {found['batch']} at once",
        ),
    ]
    if found["attributes"]:
        fields.append(("attributes", json.dumps(found["attributes"], ensure_ascii=False)))
    fields += [(name, found[name]) for name in ("types", "headers") if found[name]]
    fields += [
        ("concurrency", found["concurrency"]),
        ("rate", found["rate"]),
        ("timeout", duration_text(found["timeout"])),
        ("secrets", ", ".join(_secret_text(each) for each in found["secrets"])),
        ("enabled", found["enabled"]),
        ("reason", found["reason"]),
        ("created", found["created"]),
        ("state", status["state"]),
        ("breaker", status["breaker"]),
        ("paused until", status["paused_until"]),
        ("in flight", status["in_flight"]),
        ("delivered", status["delivered"]),
        ("failed", status["failed"]),
        ("last attempt", status["last_attempt"]),
        ("last error", status["last_error"]),
        ("trouble", status["trouble"]),
    ]
    print_fields([pair for pair in fields if pair[1] is not None])
    return OK


def rm(options: Namespace) -> int:
    return remove_each(options, "webhook", _path)


def enable(options: Namespace) -> int:
    enabled = connect(options).post(f"{_path(options.name)}/enable")
    print_result(options, enabled, f"webhook {options.name} is enabled")
    return OK


def disable(options: Namespace) -> int:
    body = {} if options.reason is None else {"reason": options.reason}
    disabled = connect(options).post(f"{_path(options.name)}/disable", body)
    text = f"webhook {options.name} is disabled: nothing is sent until `openq webhook enable {options.name}`"
    print_result(options, disabled, text)
    return OK


def test(options: Namespace) -> int:
    server = connect(options)
    timeout_s = float(server.get(_path(options.name))["timeout"]) + 10
    attempt = server.post(f"{_path(options.name)}/test", timeout_s=timeout_s)
    if options.json:
        print_json(attempt)
    else:
        print_fields(
            [
                ("id", attempt["id"]),
                ("status", "no response" if attempt["status"] is None else attempt["status"]),
                ("time", duration_text(attempt["duration"])),
                ("response" if attempt["status"] is not None else "error", attempt["detail"]),
            ]
        )
    return OK if attempt["outcome"] == "delivered" else FAILED


def log(options: Namespace) -> int:
    query = {"limit": options.limit, "outcome": "failed" if options.failed else None}
    found = connect(options).get(f"{_path(options.name)}/deliveries", **query)
    print_list(
        options,
        found["deliveries"],
        {
            "time": "time",
            "id": lambda each: shorten(each["id"], 40),
            "attempt": "attempt",
            "messages": "messages",
            "outcome": "outcome",
            "status": "status",
            "took": lambda each: duration_text(each["duration"]),
            "response": lambda each: shorten(each["detail"], 60),
        },
        empty=f"no attempts of webhook {options.name} are in the log",
        right=("attempt", "messages", "status"),
    )
    if found["skipped"] and not options.json:
        say(f"{found['skipped']} further attempts are counted but not in the log")
    return OK


def rotate(options: Namespace) -> int:
    body: dict[str, Any] = {}
    if options.keep is not None:
        body["keep"] = options.keep
    secret = _secret(options)
    if secret is not None:
        body["secret"] = secret
    stored = connect(options).post(f"{_path(options.name)}/secrets", body)
    older = stored["secrets"][1:]
    until = f"; the old one is valid until {older[0]['expires']}" if older else ""
    print_result(options, stored, f"webhook {options.name} has a new secret{until}")
    _print_secret(options, stored)
    return OK


def replay(options: Namespace) -> int:
    if not options.ids and options.since is None:
        raise UsageError("give --since 2h, or --id ID for single messages")
    given = {
        "ids": options.ids,
        "since": None if options.since is None else parse_time(options.since),
        "until": None if options.until is None else parse_time(options.until),
        "rate": options.rate,
    }
    body = {name: value for name, value in given.items() if value is not None}
    server: ApiClient = connect(options)
    task = server.post(f"{_path(options.name)}/replay", body)
    if options.no_wait:
        print_result(options, task, task["id"])
        return OK
    return watch_task(server, task, options)


def _path(name: str) -> str:
    return f"/webhooks/{path_part(name)}"


def _secret(options: Namespace) -> str | None:
    """From a file: a secret on the command line would be in the list of processes."""
    if options.secret_file is None:
        return None
    try:
        with open(options.secret_file, encoding="utf-8") as source:
            return source.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the secret in {options.secret_file}: {error}") from None


def _print_secret(options: Namespace, stored: dict[str, Any]) -> None:
    if not options.json and "secret" in stored:
        print(f"{stored['secret']}  ({_SECRET_NOTE})")


# -- texts --------------------------------------------------------------------------------------------


def _source(webhook: dict[str, Any]) -> str:
    selected = webhook["events"]
    if selected is None:
        return f"messages of {webhook['queue']}"
    events = ", ".join(selected["events"]) or "all events"
    return f"{events} of {', '.join(selected['queues']) or 'all queues'}"


def _notes(webhook: dict[str, Any]) -> str:
    status = webhook["status"]
    notes = [webhook["reason"] if not webhook["enabled"] else None, status["trouble"]]
    if status["state"] == "paused":
        notes.append(f"until {status['paused_until']}")
        notes.append(status["last_error"])
    return "; ".join(each for each in notes if each)


def _secret_text(secret: dict[str, Any]) -> str:
    text = f"of {secret['created']}"
    return text if secret["expires"] is None else f"{text} until {secret['expires']}"
