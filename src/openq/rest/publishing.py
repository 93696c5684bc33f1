"""Publish: one message, or a batch as JSON or MessagePack."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET

from ..documents.batches import (
    check_count,
    count_new,
    publish_items,
    publish_refusal,
    read_items,
    read_json_item,
    read_msgpack_batch,
)
from ..documents.drafts import make_draft
from ..documents.values import moment_ms
from ..errors import InvalidSetting, OpenQError
from ..model import (
    DeadLetterEvent,
    DeliveryOptions,
    Draft,
    failure_text,
    split_failure,
)
from ..trace_context import request_attributes
from .call import RestCall
from .formats import MSGPACK
from .message_schemas import (
    AnyBatch,
    NewMessage,
    NewMessages,
    Published,
    PublishedBatch,
    Restoring,
)
from .routes import route

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
    draft = make_draft(call.body, call.sent, past, request_attributes(call.request.fields))
    broker, queue = call.broker, call.queue
    if draft.is_plain():
        publish_later = call.context.publish_later
        if publish_later is not None and publish_later(
            queue, draft.body, draft.encoding, None, partial(_published, call, draft)
        ):
            return
        seq = broker.publish_body(queue, draft.body, draft.encoding)
        if seq:
            call.context.traffic.rest.published += 1
            call.after_commit(Published(id=broker.inspect.id_of(seq)), 201)
            return
    _publish_draft(call, draft)


def _published(call: RestCall, draft: Draft, seq: int, error: Exception | None) -> None:
    """A plain message was published together with those of other requests, and is on disk; or it was not."""
    try:
        if error is not None:
            raise error
        if not seq:
            _publish_draft(call, draft)  # the queue has changed in this turn
            return
        call.context.traffic.rest.published += 1
        call.answer(Published(id=call.broker.inspect.id_of(seq)), 201)
    except Exception as problem:
        call.fail(problem)


def _publish_draft(call: RestCall, draft: Draft) -> None:
    broker, queue = call.broker, call.queue
    [result] = broker.publish_many(queue, [draft])
    if isinstance(result, OpenQError):
        raise publish_refusal(broker, queue, result, len(draft.body))
    message_id, duplicate = result
    call.context.traffic.rest.published += not duplicate
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
    restores = bool(items) and _is_restoring(call)
    trace = request_attributes(call.request.fields)

    def draft_of(item: NewMessage) -> Draft:
        return make_draft(item, call.sent, _past(call, item) if restores else None, trace)

    published = publish_items(call.broker, call.queue, items, draft_of, trace)
    call.context.traffic.rest.published += count_new(published)
    call.after_commit(published, 201)


def _read_batch(call: RestCall) -> list[Any]:
    """A list of bodies and messages, bare or under `messages`."""
    data, format = call.request.body, call.sent
    items: list[Any]
    if format is MSGPACK:
        items = read_msgpack_batch(data)
    elif data[:64].lstrip()[:1] == b"[":
        items = format.decode(data, list[str | NewMessage])
    else:
        items = format.decode(data, NewMessages).messages
        check_count(items)
        items = read_items(items, lambda data: read_json_item(format, data))
    check_count(items)
    return items
