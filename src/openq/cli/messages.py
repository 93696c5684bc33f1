"""`openq message`: what can be done to messages that wait in a queue, by their ids."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ..client.http import Refused
from .api import ApiClient, UsageError, connect, path_part
from .arguments import parse_json
from .output import NOT_CONFIRMED, confirm, count_text, print_json
from .send import message_document, read_body
from .terminal import NOT_FOUND, OK, say

MAX_IDS = 1000  # of one search


def move(options: Namespace) -> int:
    server = connect(options)
    return _change(
        options,
        server,
        f"move {{}} from {options.queue} to {options.to}",
        lambda path: server.post(f"{path}/move", {"to": options.to}),
        f"{{}} moved to {options.to}",
    )


def delay(options: Namespace) -> int:
    server = connect(options)
    return _change(
        options,
        server,
        f"delay {{}} of {options.queue}",
        lambda path: server.patch(path, {"delay": options.delay}),
        "{} delayed" if options.delay else "{} ready now",
    )


def cancel(options: Namespace) -> int:
    server = connect(options)
    return _change(
        options,
        server,
        f"delete {{}} from {options.queue}",
        lambda path: server.delete(path),
        "{} cancelled",
        asks=not options.yes,
    )


def edit(options: Namespace) -> int:
    change: dict[str, Any] = {}
    if options.body is not None:
        body = read_body(options.body)
        if not body and options.body == "-":
            raise UsageError(
                f"the input is empty; `openq message edit {options.queue} ID ''` empties the body"
            )
        change |= message_document(options.kind, body)
    if options.type is not None:
        change["message_type"] = options.type or None
    if options.attributes is not None:
        change["attributes"] = parse_json(options.attributes, "--attributes")
    if not change:
        raise UsageError("nothing to change: give a body, --type or --attributes")
    found = connect(options).patch(_path(options, options.id), change)
    if options.json:
        print_json(found)
    else:
        print(f"message {options.id} changed")
    return OK


def _path(options: Namespace, message_id: str) -> str:
    return f"/queues/{path_part(options.queue)}/messages/{path_part(message_id)}"


def _change(
    options: Namespace,
    server: ApiClient,
    plan: str,
    change: Callable[[str], Any],
    result: str,
    *,
    asks: bool = False,
) -> int:
    """Every id is tried. Those that are no longer in the queue are named; then the exit code is 3.

    Another error ends it. What was done until then is printed all the same.
    """
    ids = list(dict.fromkeys(options.ids))
    if options.dry_run or asks:
        there = _present(options, server, ids)
        if options.dry_run:
            if options.json:
                print_json({"messages": there})
            else:
                print(f"dry run: would {plan.format(count_text(there, 'message'))}")
            return OK
        if not confirm(options, plan.format(count_text(there, "message"))):
            return NOT_CONFIRMED
    done: list[str] = []
    missing: list[str] = []
    try:
        for message_id in ids:
            try:
                change(_path(options, message_id))
                done.append(message_id)
            except Refused as error:
                if error.code != "message_not_found":
                    raise
                missing.append(message_id)
    except BaseException:
        # Ctrl-C too. Only the ids tell those that are done from those that are left.
        if done or missing:
            _report(options, result, done, missing)
            say(f"not tried or not known: {', '.join(ids[len(done) + len(missing) :])}")
        raise
    _report(options, result, done, missing)
    return NOT_FOUND if missing else OK


def _report(options: Namespace, result: str, done: list[str], missing: list[str]) -> None:
    if options.json:
        print_json({"messages": len(done), "ids": done, "missing": missing})
    else:
        print(result.format(count_text(len(done), "message")))
    if missing:
        say(f"no longer in {options.queue}: {', '.join(missing)}")


def _present(options: Namespace, server: ApiClient, ids: list[str]) -> int:
    """How many of the messages are in the queue. A search that ends early is repeated with the other ids."""
    path = f"/queues/{path_part(options.queue)}/search"
    present = 0
    for start in range(0, len(ids), MAX_IDS):
        left = ids[start : start + MAX_IDS]
        while left:
            reply = server.post(path, {"ids": left, "limit": len(left)})
            found = {message["id"] for message in reply["messages"]}
            present += len(found)
            if reply["complete"] or not found:
                break
            left = [message_id for message_id in left if message_id not in found]
    return present
