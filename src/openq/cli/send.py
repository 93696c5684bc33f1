"""`openq send`."""

from __future__ import annotations

import base64
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from .api import OutcomeUnknown, UsageError, connect, path_part
from .arguments import attributes_of, parse_json
from .output import count_text, print_result
from .terminal import FAILED, OK, say

MAX_BATCH = 1000
MAX_BATCH_BYTES = 4 << 20
# A message is published again without its state: receipts, counts and reasons belong to the old one.
_PUBLISHED_FIELDS = (
    "payload",
    "body",
    "payload_encoding",
    "id",
    "priority",
    "group",
    "message_type",
    "attributes",
)


def send(options: Namespace) -> int:
    if options.body is not None and options.body != "-" and (options.lines or options.file):
        raise UsageError("give either a body, or --file or --lines to read the input")
    path = f"/queues/{path_part(options.queue)}/messages"
    shared = _common_fields(options)
    server = connect(options)
    if not options.lines:
        body = _input(options)
        if not body and options.body != "":
            raise UsageError(f"the input is empty; `openq send {options.queue} ''` sends an empty message")
        try:
            result = server.post(path, {**message_document(options.kind, body), **shared})
        except OutcomeUnknown as error:
            raise OutcomeUnknown("it may have been published", error.why) from None
        print_result(options, result, result["id"])
        if result.get("duplicate") and not options.json:
            say("not published: a message with this deduplication id exists")
        return OK
    sent = failed = 0
    for lines in _batches(_lines(options)):
        texts = [_decoded(line) for line in lines]
        # Plain texts are the fast path: one record in the journal for the whole batch.
        batch: object = texts
        if options.kind != "text" or shared or not all(isinstance(text, str) for text in texts):
            batch = {"messages": [{**message_document(options.kind, text), **shared} for text in texts]}
        try:
            result = server.post(f"{path}/batch", batch)
        except OutcomeUnknown as error:
            may = f"{count_text(len(texts), 'message')} may have been published"
            before = f", after {count_text(sent, 'message')} that {'was' if sent == 1 else 'were'}"
            raise OutcomeUnknown(f"{may}{before}", error.why) from None
        sent += result["count"]
        refusals = [row for row in result.get("results", ()) if "code" in row]
        failed += result.get("failed", 0)
        for row in refusals[:10]:
            say(f"rejected: {row.get('detail') or row['code']}")
    rejected = f", {failed} rejected" if failed else ""
    print_result(options, {"count": sent, "failed": failed}, f"{count_text(sent, 'message')} sent{rejected}")
    return FAILED if failed else OK


def _common_fields(options: Namespace) -> dict[str, Any]:
    given = {
        "delay": options.delay,
        "group": options.group,
        "priority": options.priority,
        "message_type": options.type,
        "ttl": options.ttl,
        "dedup_id": options.dedup_id,
        "attributes": attributes_of(options.attribute),
    }
    return {name: value for name, value in given.items() if value is not None}


def _input(options: Namespace) -> str | bytes:
    if options.file:
        with open(options.file, "rb") as file:
            return file.read()
    return read_body(options.body)


def read_body(body: str | None) -> str | bytes:
    """The body of the command line; stdin if it is `-` or missing."""
    if body is not None and body != "-":
        return body
    _announce_stdin()
    return sys.stdin.buffer.read()


def _announce_stdin() -> None:
    if sys.stdin.isatty():
        say("reading from the terminal; end with Ctrl-D")


def _lines(options: Namespace) -> Iterator[bytes]:
    if options.file:
        with open(options.file, "rb") as file:
            yield from _without_newlines(file)
    else:
        _announce_stdin()
        yield from _without_newlines(sys.stdin.buffer)


def _without_newlines(lines: Any) -> Iterator[bytes]:
    for line in lines:
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text:
            yield text


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Batches within the server's limits, in messages and in bytes."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == MAX_BATCH or size + len(line) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


def _decoded(line: bytes) -> Any:
    """Text if it is UTF-8; otherwise the bytes, which are sent as base64."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def message_document(kind: str, body: str | bytes) -> dict[str, Any]:
    """The fields of a message for the REST API."""
    data = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else body
    text = _decoded(data)
    if kind == "base64":
        return {"payload": "".join(str(text).split()), "payload_encoding": "base64"}
    if not isinstance(text, str):
        if kind != "text":
            raise UsageError(f"not valid {kind}: {data[:40]!r}")
        return {"payload": base64.b64encode(data).decode(), "payload_encoding": "base64"}
    if kind == "json":
        return {"payload": parse_json(text, "the message")}
    if kind == "message":
        message = parse_json(text, "the message")
        if not isinstance(message, dict):
            raise UsageError(f"a message is a JSON object with a payload, not {text[:60]!r}")
        return _publishable(message)
    return {"payload": text}


def _publishable(message: dict[str, Any]) -> dict[str, Any]:
    kept = {name: message[name] for name in _PUBLISHED_FIELDS if message.get(name) is not None}
    return kept if "payload" in kept or "body" in kept else {**kept, "payload": None}
