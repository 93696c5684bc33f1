"""`openq queue`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..client.http import Refused
from ..parsing import FOREVER
from ..settings import SETTINGS, Setting
from .api import UsageError, connect, path_part
from .output import (
    NOT_CONFIRMED,
    confirm,
    count_text,
    duration_text,
    print_fields,
    print_json,
    print_result,
    print_table,
)
from .terminal import FAILED, OK, say, size_text
from .values import NONE


def _given_settings(options: Namespace) -> dict[str, Any]:
    given = {each: getattr(options, each.name) for each in SETTINGS if each.in_cli}
    return {
        setting.name: _given_value(setting, value) for setting, value in given.items() if value is not None
    }


def _given_value(setting: Setting, value: Any) -> Any:
    if value == FOREVER and setting.is_endless:
        return None
    if value == NONE and setting.kind in ("count", "bytes", "rate"):
        return None
    if setting.kind == "key_limits":
        return {key: own for each in value for key, own in each.items()}
    return value


def ls(options: Namespace) -> int:
    found = connect(options).pages("/queues", "queues", "next", prefix=options.prefix or None)
    if options.json:
        for queue in found:
            print_json(queue)
        return OK
    rows = []
    for queue in found:
        stats, settings = queue["stats"], queue["settings"]
        notes = [word for word in ("fifo", "paused", "relaxed") if settings[word]]
        if settings["dlq"]:
            notes.append(f"dlq {settings['dlq']}")
        rows.append(
            (
                queue["name"],
                stats["ready"],
                stats["delayed"],
                stats["in_flight"],
                duration_text(stats["oldest_age"]),
                stats["waiters"],
                ", ".join(notes),
            )
        )
    numbers = ("ready", "delayed", "in flight", "oldest", "waiting")
    if rows:
        print_table(("queue", *numbers, "notes"), rows, numbers)
    else:
        say("no queues" + (f" that begin with {options.prefix}" if options.prefix else ""))
    return OK


def _path(options: Namespace) -> str:
    return f"/queues/{path_part(options.queue)}"


def create(options: Namespace) -> int:
    server = connect(options)
    named = _given_settings(options)
    _create_dlq(server, options.queue, named)
    if options.if_absent:
        status, queue = server.put(_path(options), named, if_absent=True)
        created = status == 201
    else:
        queue = server.post("/queues", {"name": options.queue, **named})
        created = queue.get("created", True)
    print_result(options, queue, f"queue {options.queue} {'created' if created else 'exists already'}")
    return OK


def _create_dlq(server: Any, queue: str, named: dict[str, Any]) -> None:
    """Create the dead-letter queue too: without it there is nowhere to dead-letter to."""

    dlq = named.get("dlq")
    if dlq == queue:
        raise UsageError(f"argument --dlq: {queue} cannot be its own dead-letter queue")
    if dlq:
        status, _ = server.put(f"/queues/{path_part(dlq)}", {}, if_absent=True)
        if status == 201:
            say(f"dead-letter queue {dlq} created")


def edit(options: Namespace) -> int:
    named = _given_settings(options)
    if options.no_dlq:
        if "dlq" in named or "max_receives" in named:
            raise UsageError("--no-dlq cannot be combined with --dlq or --max-receives")
        named |= {"dlq": None, "max_receives": None}
    if not named:
        raise UsageError("no setting given; see `openq queue edit --help`")
    server = connect(options)
    before = server.get(_path(options))  # before a dlq is created for a queue that does not exist
    _create_dlq(server, options.queue, named)
    _print_changes(options, before, server.patch(_path(options), named))
    return OK


def show(options: Namespace) -> int:
    _print_queue(options, connect(options).get(_path(options)))
    return OK


def _print_queue(options: Namespace, queue: dict[str, Any]) -> None:
    if options.json:
        print_json(queue)
        return
    stats = {key: value for key, value in queue["stats"].items() if key != "counters"}
    rows = {"name": queue["name"], **stats, **queue["stats"]["counters"], **queue["settings"]}
    print_fields([(key.replace("_", " "), _setting_text(key, value)) for key, value in rows.items()])


def _setting_text(key: str, value: object) -> object:
    kind, is_endless = _kind_of(key)
    if value is None and is_endless:
        return "forever"
    if kind == "duration" and isinstance(value, int | float):
        return duration_text(value)
    if kind == "bytes" and isinstance(value, int):
        return size_text(value)
    if key == "retry" and isinstance(value, dict):
        return value["kind"] if value["kind"] == "none" else _retry_text(value)
    return value


def _retry_text(retry: dict[str, Any]) -> str:
    parts = [
        f"{key.replace('_', ' ')} {duration_text(value) if key in ('base', 'max') else _word(value)}"
        for key, value in retry.items()
        if key != "kind"
    ]
    return f"{retry['kind']}: {', '.join(parts)}"


def _kind_of(key: str) -> tuple[str, bool]:
    """The kind of a setting or a statistic of a queue, and whether null means that it never ends."""
    for setting in SETTINGS:
        if setting.name == key:
            return setting.kind, setting.is_endless
    return {"oldest_age": "duration", "waiting_bytes": "bytes"}.get(key, ""), False


def _print_changes(options: Namespace, before: dict[str, Any], after: dict[str, Any]) -> None:
    if options.json:
        print_json(after)
        return
    old, new = before["settings"], after["settings"]
    changed = [key for key in new if new[key] != old.get(key)]
    if not changed:
        say(f"nothing changed: {options.queue} has these settings already")
        return
    rows = []
    for key in changed:
        then, now = (_setting_text(key, each[key]) for each in (old, new))
        rows.append((key.replace("_", " "), f"{_word(now)} (was {_word(then)})"))
    print_fields(rows)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def rm(options: Namespace) -> int:
    return _delete(options, "rm")


def purge(options: Namespace) -> int:
    return _delete(options, "purge")


def _delete(options: Namespace, verb: str) -> int:
    server, path = connect(options), _path(options)
    if_empty = True if verb == "rm" and options.if_empty else None

    def delete(dry_run: bool) -> dict[str, Any]:
        if verb == "rm":
            answer: dict[str, Any] = server.delete(path, if_empty=if_empty, dry_run=dry_run or None)
        else:
            answer = server.post(f"{path}/purge", dry_run=dry_run or None)
        return answer

    if options.dry_run or not options.yes:
        try:
            would = delete(dry_run=True)
        except Refused as error:
            if not options.dry_run or error.code != "queue_in_use":
                raise
            say(f"dry run: this would fail: {error}")
            return FAILED
        what = count_text(would["messages"], "message")
        if options.dry_run:
            print_result(
                options,
                would,
                f"dry run: {what} would be deleted" + (", and the queue" if verb == "rm" else ""),
            )
            return OK
        plan = (
            f"delete queue {options.queue} with {what}"
            if verb == "rm"
            else f"delete {what} from {options.queue}"
        )
        if not confirm(options, plan):
            return NOT_CONFIRMED
    gone = delete(dry_run=False)
    if options.json:
        print_json(gone)
    else:
        print(
            f"{count_text(gone['messages'], 'message')} deleted" + (", and the queue" if verb == "rm" else "")
        )
    return OK


def pause(options: Namespace) -> int:
    return _pause_or_resume(options, "pause", "is paused: nothing is delivered until `openq queue resume`")


def resume(options: Namespace) -> int:
    return _pause_or_resume(options, "resume", "is resumed")


def _pause_or_resume(options: Namespace, verb: str, outcome: str) -> int:
    queue = connect(options).post(f"{_path(options)}/{verb}")
    print_result(options, queue, f"{options.queue} {outcome}")
    return OK
