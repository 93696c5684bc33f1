"""`openq recv`, `ack` and `nack`."""

from __future__ import annotations

import base64
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ..client.http import Refused
from .api import ApiClient, connect, path_part
from .arguments import attributes_of
from .output import body_text, count_text, not_ready_text, print_json, print_result
from .terminal import EMPTY, FAILED, NOT_FOUND, OK, is_terminal, say

MAX_BATCH = 1000
MAX_WAIT_S = 60.0  # of one request; a longer wait takes several


def recv(options: Namespace) -> int:
    server = connect(options)
    path = f"/queues/{path_part(options.queue)}"
    end = time.monotonic() + options.wait
    received = lost = 0
    while received < options.max:
        # Wait for the first message only, then take what is ready.
        wait = 0.0 if received else min(max(end - time.monotonic(), 0.0), MAX_WAIT_S)
        request = {
            "max": min(options.max - received, MAX_BATCH),
            "wait": wait,
            "visibility_timeout": options.visibility_timeout,
            "types": options.type,
            "attributes": attributes_of(options.attribute),
        }
        body = {name: value for name, value in request.items() if value is not None}
        timeout_s = wait + (30.0 if options.timeout is None else options.timeout)
        messages = server.post(f"{path}/receive", body, timeout_s=timeout_s)["messages"]
        if not messages:
            if received or time.monotonic() >= end:
                break
            continue
        received += len(messages)
        _print_bodies(messages, options.json)
        if options.ack:
            # After the flush: messages that a broken pipe lost are redelivered.
            settled = server.post(f"{path}/ack", {"receipts": [each["receipt_id"] for each in messages]})
            lost += _print_failures(settled)
    if not received:
        within = f" within {options.wait:g} s" if options.wait else ""
        others = not_ready_text(_stats_of(server, path))
        say(
            f"no ready message in {options.queue}{within}: {others}"
            if others
            else f"no message in {options.queue}{within}"
        )
        return EMPTY
    if not options.ack:
        them = "they become" if received > 1 else "it becomes"
        say(f"not acknowledged: {them} visible again after the visibility timeout")
    return FAILED if lost else OK


def _stats_of(server: ApiClient, path: str) -> dict[str, Any]:
    """Empty without the permission peek, which receiving does not need."""

    try:
        return dict(server.get(path)["stats"])
    except Refused:
        return {}


def _print_bodies(messages: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Raw bodies, one per line; on a terminal with control characters escaped."""

    for message in messages:
        if as_json:
            print_json(message)
        elif is_terminal(sys.stdout):
            print(body_text(message))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(body_bytes(message) + b"\n")
    sys.stdout.flush()
    sys.stdout.buffer.flush()


def body_bytes(message: dict[str, Any]) -> bytes:
    payload = message["payload"]
    if message.get("payload_encoding") == "base64":
        return base64.b64decode(payload)
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _print_failures(settled: dict[str, Any]) -> int:
    for row in settled["failed"]:
        say(row["detail"])
    return len(settled["failed"])


def ack(options: Namespace) -> int:
    return _settle(options, "ack", {"receipts": options.receipts}, "acknowledged")


def nack(options: Namespace) -> int:
    request = {
        "receipts": options.receipts,
        "delay": options.delay,
        "reason": options.reason,
        "reject": options.reject or None,
    }
    body = {name: value for name, value in request.items() if value is not None}
    return _settle(options, "nack", body, "returned" if not options.reject else "rejected")


def _settle(options: Namespace, verb: str, body: dict[str, Any], done: str) -> int:
    settled = connect(options).post(f"/queues/{path_part(options.queue)}/{verb}", body)
    print_result(options, settled, f"{count_text(settled['count'], 'message')} {done}")
    _print_failures(settled)
    codes = {row["code"] for row in settled["failed"]}
    if codes == {"message_not_found"}:
        return NOT_FOUND
    return FAILED if codes else OK
