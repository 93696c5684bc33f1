"""Publish: one message, or a batch as JSON or MessagePack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from ..documents.drafts import make_draft
from ..documents.payloads import BINARIES
from ..documents.values import moment_ms
from ..errors import InvalidSetting, OpenQError, public_text
from ..model import (
    ENCODING_BYTES,
    ENCODING_TEXT,
    DeadLetterEvent,
    DeliveryOptions,
    Draft,
    failure_text,
    split_failure,
)
from .call import RestCall
from .formats import MSGPACK, Format
from .message_schemas import (
    AnyBatch,
    NewMessage,
    NewMessages,
    Outcome,
    Published,
    PublishedBatch,
    Restoring,
)
from .problems import Problem
from .routes import route
from .schemas import MAX_BATCH

_MAX_RECEIVES = (1 << 31) - 1


def _past(call: RestCall, message: NewMessage) -> DeliveryOptions:
    """The history of a message from a backup: dead-letter events and counts."""
    deaths = message.deaths or []
    for count in (message.receive_count or 0, *(each.receive_count for each in deaths)):
        if not 0 <= count <= _MAX_RECEIVES:
            raise InvalidSetting(f"receive_count must be 0 to {_MAX_RECEIVES}, not {count}")
    for death in deaths:
        call.require_target(death.queue)  # a redrive returns it there
    return DeliveryOptions(
        count=message.receive_count or 0,
        born_ms=0 if message.timestamp is None else moment_ms(message.timestamp, "timestamp"),
        reason=message.reason,
        trace=split_failure(failure_text(message.reason, message.traceback))[1],
        deaths=tuple(
            DeadLetterEvent.from_fields(
                call.qualified(each.queue),
                each.reason,
                moment_ms(each.time, "a time"),
                each.receive_count,
                kind=each.kind or None,
                times=each.times or None,
                first_ms=moment_ms(each.first_time, "a first time") if each.first_time else 0,
            )
            for each in deaths
        ),
    )


def _is_restoring(call: RestCall) -> bool:
    if call.query is None or not call.query.restore:
        return False
    call.require("manage", call.args[0])
    return True


def _refusal(error: OpenQError, call: RestCall, size: int) -> OpenQError | Problem:
    """413 for a body that is too large."""
    if isinstance(error, InvalidSetting):
        limit = call.broker.settings(call.queue).max_body
        if limit is not None and size > limit:
            return Problem("too_large", str(error))
    return error


@route(
    "POST",
    "queues/{queue}/messages",
    permission="send",
    sqs_actions=("SendMessage",),
    summary="Publish a message",
    request=NewMessage,
    reply=Published,
    query=Restoring,
    status=(201,),
)
def publish(call: RestCall) -> None:
    past = _past(call, call.body) if _is_restoring(call) else None
    draft = make_draft(call.body, call.sent, past)
    [result] = call.broker.publish_many(call.queue, [draft])
    if isinstance(result, OpenQError):
        raise _refusal(result, call, len(draft.body))
    message_id, duplicate = result
    call.after_commit(Published(id=message_id, duplicate=True if duplicate else UNSET), 201)


@route(
    "POST",
    "queues/{queue}/messages/batch",
    permission="send",
    sqs_actions=("SendMessage",),
    summary="Publish up to 1,000 messages",
    request=AnyBatch,
    reply=PublishedBatch,
    query=Restoring,
    status=(201,),
    reads_itself=True,
)
def publish_batch(call: RestCall) -> None:
    """Plain bodies are stored as one record; other messages are published one by one, each with its own
    outcome."""
    items = _read_batch(call)
    queue = call.queue
    if not items:
        call.broker.settings(queue)
        call.answer(PublishedBatch(count=0), 201)
        return
    kinds = set(map(type, items))
    if kinds == {bytes}:
        done = _publish_run(call, queue, items, ENCODING_BYTES)
    elif kinds == {str}:
        done = _publish_run(call, queue, [item.encode() for item in items], ENCODING_TEXT)
    else:
        done = False
    if not done:
        _publish_each(call, queue, items)


def _publish_run(call: RestCall, queue: str, bodies: list[bytes], encoding: int) -> bool:
    """Publish as one record. False if the queue has rules that each message must pass individually."""
    seqs = call.broker.publish_bodies(queue, bodies, encoding)
    if seqs is None:
        return False
    call.after_commit(PublishedBatch(count=len(bodies), first_id=call.broker.inspect.id_of(seqs[0])), 201)
    return True


def _read_batch(call: RestCall) -> list[Any]:
    """A list of bodies and messages, bare or under `messages`."""
    data, format = call.request.body, call.sent
    items: list[Any]
    if format is MSGPACK:
        items = _read_msgpack_batch(data)
    elif data[:64].lstrip()[:1] == b"[":
        items = format.decode(data, list[str | NewMessage])
    else:
        items = format.decode(data, NewMessages).messages
        _check_count(items)
        items = _read_items(items, lambda data: _read_json_item(format, data))
    _check_count(items)
    return items


def _check_count(items: Sequence[object]) -> None:
    if len(items) > MAX_BATCH:
        raise Problem("batch_too_large", f"{len(items)} messages; the maximum is {MAX_BATCH} per request")


def _read_items(raws: Sequence[Raw], read: Callable[[bytes], Any]) -> list[Any]:
    items: list[Any] = []
    try:
        for raw in raws:
            items.append(read(bytes(raw)))
    except Problem as error:
        # Counted from 0, as in the paths of errors in a bare list.
        raise Problem(error.code, f"messages[{len(items)}]: {error.detail}") from None
    return items


def _read_json_item(format: Format, data: bytes) -> Any:
    return format.decode(data, str if data[:1] == b'"' else NewMessage)


def _array_start(data: bytes) -> int:
    """The offset of the first item of a msgpack array; 0 if this is not an array."""
    kind = data[0] if data else 0
    if 0x90 <= kind <= 0x9F:
        return 1
    return {0xDC: 3, 0xDD: 5}.get(kind, 0)


def _read_msgpack_batch(data: bytes) -> list[Any]:
    start = _array_start(data)
    raws: list[Raw]
    if start:
        # Fast path: only bytes, or only messages, decoded at once.
        first = data[start] if len(data) > start else 0
        try:
            if first in BINARIES:
                return _read_bodies(data)
            if _is_map(first):
                return _read_messages(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass  # mixed or invalid: decoded item by item
        raws = MSGPACK.decode(data, list[Raw])
    else:
        raws = MSGPACK.decode(data, NewMessages).messages
    _check_count(raws)
    return _read_items(raws, _read_msgpack_item)


_read_bodies: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[bytes]).decode
_read_messages: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[NewMessage]).decode


def _is_map(kind: int) -> bool:
    return 0x80 <= kind <= 0x8F or kind in (0xDE, 0xDF)


def _read_msgpack_item(data: bytes) -> Any:
    if data[0] in BINARIES:
        return MSGPACK.decode(data, bytes)
    return MSGPACK.decode(data, NewMessage if _is_map(data[0]) else str)


def _publish_each(call: RestCall, queue: str, items: list[Any]) -> None:
    drafts: list[Draft] = []
    results: list[Outcome | None] = []
    restores = _is_restoring(call)
    for item in items:
        try:
            if isinstance(item, NewMessage):
                draft = make_draft(item, call.sent, _past(call, item) if restores else None)
            elif isinstance(item, bytes):
                draft = Draft(item)
            else:
                draft = Draft(item.encode(), ENCODING_TEXT)
        except (InvalidSetting, Problem) as error:
            results.append(Outcome(code=error.code, detail=str(error)))
            continue
        results.append(None)
        drafts.append(draft)
    encodings = {draft.encoding for draft in drafts}
    alike = len(drafts) == len(items) and len(encodings) == 1 and all(draft.is_plain() for draft in drafts)
    if alike and _publish_run(call, queue, [draft.body for draft in drafts], encodings.pop()):
        return
    outcomes = iter(zip(drafts, call.broker.publish_many(queue, drafts), strict=True))
    shown = [each if each is not None else _outcome(call, *next(outcomes)) for each in results]
    failed = sum(each.code is not UNSET for each in shown)
    call.after_commit(PublishedBatch(count=len(shown) - failed, failed=failed, results=shown), 201)


def _outcome(call: RestCall, draft: Draft, result: tuple[str, bool] | OpenQError) -> Outcome:
    if isinstance(result, OpenQError):
        error = _refusal(result, call, len(draft.body))
        return Outcome(code=error.code, detail=public_text(error))
    return Outcome(id=result[0], duplicate=True if result[1] else UNSET)
