"""Messages: publish, receive, ack, nack, extend; browse, search, edit, move, cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ..broker.interface import Filter, Receipt
from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, VisibilityTimeoutExpired, public_text
from ..model import (
    ENCODING_BYTES,
    ENCODING_TEXT,
    DeadLetterEvent,
    Delivery,
    DeliveryOptions,
    Draft,
    Entry,
    failure_text,
    split_failure,
)
from ..server import long_polls
from .call import RestCall
from .formats import MSGPACK, Format, join_messages
from .paging import MAX_ANSWER_BYTES, page
from .payloads import BINARIES, Body, read_json, read_msgpack
from .problems import Problem, failure
from .routes import route
from .schemas import (
    MAX_BATCH,
    AnyBatch,
    Browse,
    Edit,
    Extend,
    Id,
    MessageFilter,
    MessagePage,
    Messages,
    MessageView,
    MoveTarget,
    Nack,
    NewMessage,
    NewMessages,
    Outcome,
    Published,
    PublishedBatch,
    Reason,
    ReceiptFailure,
    Receipts,
    Receive,
    Restoring,
    ScheduleChange,
    Search,
    SearchReply,
    Settled,
    Timeline,
    TimelineStepView,
)
from .values import iso, moment_ms, read_attributes, span_ms
from .views import received, stored

_MAX_RECEIVES = (1 << 31) - 1
_MAX_NUMBER = 16  # hexadecimal digits
_ENCODE_BYTES = 256 << 10  # bytes of bodies that are encoded in one loop iteration

# -- in -----------------------------------------------------------------------------------------


def read_payload(message: NewMessage | Edit | ScheduleChange, format: Format) -> Body:
    if (message.payload is UNSET) == (message.body is UNSET):
        raise Problem("invalid", "a message needs a payload (`body` is another name of it: give one of them)")
    raw = message.body if message.payload is UNSET else message.payload
    assert isinstance(raw, Raw)
    read = read_json if format.is_json else read_msgpack
    return read(raw, message.payload_encoding)


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


def make_draft(message: NewMessage, format: Format, past: DeliveryOptions | None = None) -> Draft:
    body, encoding = read_payload(message, format)
    if message.at is not None and message.delay is not None:
        raise InvalidSetting("give either delay or at, not both")
    if message.timestamp is not None and past is None:
        # The sender's time: consumers see it; the queue uses its own.
        past = DeliveryOptions(born_ms=moment_ms(message.timestamp, "timestamp"))
    return Draft(
        body,
        encoding,
        delay_ms=None if message.delay is None else span_ms(message.delay, "delay"),
        due_ms=0 if message.at is None else max(moment_ms(message.at, "at"), 1),
        priority=message.priority,
        group=message.group,
        type=message.message_type,
        dedup=message.dedup_id,
        unique=message.unique_key,
        ttl_ms=None if message.ttl is None else span_ms(message.ttl, "ttl"),
        id=message.id,
        attributes=read_attributes(message.attributes, format.is_json) if message.attributes else None,
        publisher=message.publisher,
        past=past,
    )


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


# -- out ----------------------------------------------------------------------------------------


@route(
    "POST",
    "queues/{queue}/receive",
    permission="receive",
    sqs_actions=("ReceiveMessage",),
    summary="Receive messages, with a long poll",
    request=Receive,
    reply=Messages,
)
def receive(call: RestCall) -> None:
    body = call.body
    lease_ms = None
    if body.visibility_timeout is not None:
        lease_ms = span_ms(body.visibility_timeout, "visibility_timeout")
    types = None if body.types is None else frozenset(body.types)
    queue = call.queue

    def then(deliveries: list[Delivery], error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
            return
        if sum(each.entry.size for each in deliveries) > _ENCODE_BYTES:
            BatchEncoder(call, queue, deliveries).go_on()
            return
        try:
            call.answer(Messages(messages=received(call.broker, deliveries, call.format)))
        except Exception as problem:
            long_polls.release_deliveries(call.context, queue, deliveries)
            call.fail(problem)

    long_polls.receive(
        *(call.context, call.request, queue, body.max, lease_ms, body.consumer, types, body.wait, then),
        MAX_ANSWER_BYTES,
    )


class BatchEncoder:
    """A large reply to `receive`: encoded in parts, with a loop iteration for each part."""

    def __init__(self, call: RestCall, queue: str, deliveries: list[Delivery]) -> None:
        self._call = call
        self._queue = queue
        self._deliveries = deliveries
        self._shown: list[bytes] = []
        self._done = 0
        call.request.on_gone = _ignore  # messages are leased: a disconnect must be noticed

    def go_on(self) -> None:
        call = self._call
        if call.request.gone:
            long_polls.release_deliveries(call.context, self._queue, self._deliveries)
            return
        try:
            self._encode()
            if self._done < len(self._deliveries):
                call.context.loop.call_soon(call.context.enter, self.go_on)
            else:
                call.answer_encoded(join_messages(call.format, self._shown))
        except Exception as problem:
            long_polls.release_deliveries(call.context, self._queue, self._deliveries)
            call.fail(problem)

    def _encode(self) -> None:
        """One part: up to `_AT_ONCE` bytes of bodies, or one message."""
        size = 0
        first = self._done
        while self._done < len(self._deliveries):
            size += self._deliveries[self._done].entry.size
            if size > _ENCODE_BYTES and self._done > first:
                break
            self._done += 1
        call = self._call
        for message in received(call.broker, self._deliveries[first : self._done], call.format):
            self._shown.append(call.format.encode(message))


def _ignore() -> None:
    """`BatchEncoder` notices that the client disconnected."""


def _read_receipt(text: str, prefix: str, queue: str) -> Receipt:
    """Parse a receipt as `receive` wrote it: the id of the sequence, a slash, the number of the delivery."""
    at = len(prefix) + 12
    known = text.startswith(prefix) and text[at : at + 1] == "/" and len(text) <= at + 1 + _MAX_NUMBER
    if known and text.isascii() and text[at + 1 :].isalnum():
        try:
            return int(text[at - 12 : at], 16), int(text[at + 1 :], 16)
        except ValueError:
            pass
    raise MessageNotFoundError(text[:100], queue)


def _wanted_receipts(body: Receipts) -> list[str]:
    if (body.receipt_id is UNSET) == (body.receipts is UNSET):
        raise Problem("invalid", "give either receipt_id or receipts")
    if isinstance(body.receipts, list):
        return body.receipts
    assert isinstance(body.receipt_id, str)
    return [body.receipt_id]


def _settle_receipts(call: RestCall, act: Callable[[list[Receipt]], Sequence[str | OpenQError]]) -> None:
    """A single delivery that cannot be settled is an error; one of many is an item of the reply."""
    queue, prefix = call.queue, call.broker.storage.id_prefix
    call.broker.settings(queue)  # an unknown queue has another error than an unknown message
    texts = _wanted_receipts(call.body)
    results: dict[int, str | OpenQError] = {}
    receipts: dict[int, Receipt] = {}
    for at, text in enumerate(texts):
        try:
            receipts[at] = _read_receipt(text, prefix, queue)
        except OpenQError as error:
            results[at] = error
    try:
        results |= zip(receipts, act(list(receipts.values())), strict=True)
    except OpenQError as error:
        results |= dict.fromkeys(receipts, error)
    outcomes: list[str] = []
    failed: list[ReceiptFailure] = []
    for at, text in enumerate(texts):
        result = results[at]
        if not isinstance(result, OpenQError):
            outcomes.append(result)
        elif call.body.receipts is UNSET:
            raise _about(text, queue, result) from None
        else:
            failed.append(_failed(text, _about(text, queue, result)))
    told: list[str] | UnsetType = outcomes if any(outcomes) else UNSET
    call.after_commit(Settled(count=len(outcomes), failed=failed, outcomes=told))


def _about(text: str, queue: str, error: OpenQError) -> OpenQError:
    """The error with the text of the receipt instead of the engine's numbers."""
    if isinstance(error, MessageNotFoundError):
        return MessageNotFoundError(text, queue)
    return VisibilityTimeoutExpired(text, queue) if isinstance(error, VisibilityTimeoutExpired) else error


def _failed(text: str, error: OpenQError) -> ReceiptFailure:
    told = failure(error)
    return ReceiptFailure(receipt_id=text, code=told.code, detail=told.detail)


@route(
    "POST",
    "queues/{queue}/ack",
    permission="receive",
    sqs_actions=("DeleteMessage",),
    summary="Ack deliveries",
    request=Receipts,
    reply=Settled,
)
def ack(call: RestCall) -> None:
    texts = _wanted_receipts(call.body)
    queue, prefix = call.queue, call.broker.storage.id_prefix
    receipts: list[Receipt] = []
    known: list[str] = []
    failed: list[ReceiptFailure] = []
    single = call.body.receipts is UNSET
    for text in texts:
        try:
            receipts.append(_read_receipt(text, prefix, queue))
            known.append(text)
        except MessageNotFoundError as error:
            if single:
                call.broker.settings(queue)
                raise
            failed.append(_failed(text, error))
    results = call.broker.ack(queue, receipts)
    if any(results):
        wrong = [
            (text, _about(text, queue, error)) for text, error in zip(known, results, strict=True) if error
        ]
        if single:
            raise wrong[0][1]
        failed += [_failed(text, error) for text, error in wrong]
    call.after_commit(Settled(count=len(texts) - len(failed), failed=failed))


@route(
    "POST",
    "queues/{queue}/nack",
    permission="receive",
    sqs_actions=("ChangeMessageVisibility",),
    summary="Nack or reject deliveries",
    request=Nack,
    reply=Settled,
)
def nack(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    delay_ms = None if body.delay is None else span_ms(body.delay, "delay")
    failure = failure_text(body.reason, body.traceback)
    if body.release:
        prefix = call.broker.storage.id_prefix
        receipts = [_read_receipt(text, prefix, queue) for text in _wanted_receipts(body)]
        call.after_commit(Settled(count=broker.release(queue, receipts)))
    elif body.reject:
        call.require("receive", call.args[0], ("DeleteMessage",))
        _settle_receipts(call, lambda receipts: broker.reject(queue, receipts, failure))
    else:
        _settle_receipts(call, lambda receipts: broker.nack(queue, receipts, delay_ms, failure))


@route(
    "POST",
    "queues/{queue}/extend",
    permission="receive",
    sqs_actions=("ChangeMessageVisibility",),
    summary="Extend leases",
    request=Extend,
    reply=Settled,
)
def extend(call: RestCall) -> None:
    broker, queue = call.broker, call.queue
    lease_ms = span_ms(call.body.seconds, "seconds")

    def act(receipts: list[Receipt]) -> list[str | OpenQError]:
        results = broker.extend(queue, receipts, lease_ms)
        return [each if isinstance(each, OpenQError) else iso(each) for each in results]

    _settle_receipts(call, act)


# -- inspecting ---------------------------------------------------------------------------------


def _show_all(call: RestCall, queue: str, entries: Sequence[tuple[Entry, str]], settles: bool) -> list[Any]:
    broker = call.broker
    held = broker.inspect.leases_of(queue, [entry.seq for entry, state in entries if state == "in_flight"])
    return [
        stored(broker, queue, entry, call.format, state, held.get(entry.seq), settles)
        for entry, state in entries
    ]


@route(
    "GET",
    "queues/{queue}/messages",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Browse messages",
    reply=MessagePage,
    query=Browse,
)
def browse(call: RestCall) -> None:
    query, broker, queue = call.query, call.broker, call.queue
    settles = call.may("receive", call.args[0])

    def work() -> MessagePage:
        if query.rear or query.front:
            if query.after or query.state != "ready" or (query.rear and query.front):
                raise InvalidSetting(
                    "front and rear show the first and the last ready messages: one of them, without after"
                )
            limit = long_polls.estimate_fitting(broker, queue, query.limit, MAX_ANSWER_BYTES)
            entries = broker.inspect.peek(queue, limit, rear=query.rear)
            count = long_polls.count_fitting(entries, MAX_ANSWER_BYTES)
            is_cut = count < len(entries) or (limit < query.limit and len(entries) == limit)
            ready = [(entry, "ready") for entry in entries[:count]]
            shown = _show_all(call, queue, ready, settles)
            return MessagePage(messages=shown, truncated=True if is_cut else UNSET)
        entries_of, following = page(broker, queue, query.state, query.after, query.limit)
        return MessagePage(
            messages=_show_all(call, queue, entries_of, settles),
            next=UNSET if following is None else following,
        )

    call.answer_with(work)


def make_filter(wanted: MessageFilter | None, format: Format, state: str | None = None) -> Filter:
    if wanted is None:
        return Filter(state=state or "all")
    attributes = wanted.attributes or {}
    return Filter(
        ids=wanted.ids,
        type=wanted.message_type,
        text=wanted.text,
        attributes=read_attributes(attributes, format.is_json) if attributes else {},
        json=wanted.json or {},
        reason=wanted.reason,
        state=state or wanted.state,
    )


@route(
    "POST",
    "queues/{queue}/search",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Search messages",
    request=Search,
    reply=SearchReply,
)
def search(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    filter = make_filter(body, call.sent)
    settles = call.may("receive", call.args[0])

    def work() -> SearchReply:
        found = broker.inspect.search(queue, filter, body.limit, body.budget, MAX_ANSWER_BYTES)
        entries = [
            (each, broker.inspect.status(queue, broker.inspect.message_id(each)) or "gone")
            for each in found.entries
        ]
        return SearchReply(
            messages=_show_all(call, queue, entries, settles),
            complete=found.complete,
            scanned=found.scanned,
        )

    call.seek(work)


@route(
    "GET",
    "queues/{queue}/messages/{id}",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Show a message",
    reply=MessageView,
)
def show_message(call: RestCall) -> None:
    broker, queue, message_id = call.broker, call.queue, call.args[1]
    settles = call.may("receive", call.args[0])

    def work() -> Any:
        try:
            entry = broker.inspect.find(queue, message_id)
            state = broker.inspect.status(queue, message_id) or "ready"
            lease = broker.inspect.lease_of(queue, message_id)
        except MessageNotFoundError as error:
            what = [step.what for step in broker.inspect.timeline(queue, message_id)]
            if "acked" in what:
                status = "processed"
            else:
                status = "dead" if "dead-lettered" in what else "unknown"
            raise Problem("message_not_found", str(error), message_status=status) from None
        return stored(broker, queue, entry, call.format, state, lease, settles)

    call.answer_with(work)


@route(
    "GET",
    "queues/{queue}/messages/{id}/timeline",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Timeline of a message",
    reply=Timeline,
)
def show_timeline(call: RestCall) -> None:
    broker, queue, message_id = call.broker, call.queue, call.args[1]

    def work() -> Timeline:
        steps = broker.inspect.timeline(queue, message_id)
        return Timeline(
            id=message_id,
            steps=[
                TimelineStepView(
                    time=iso(step.time_ms),
                    what=step.what,
                    queue=call.short_name(step.queue),
                    detail=step.detail,
                    traceback=step.traceback or UNSET,
                )
                for step in steps
            ],
        )

    call.seek(work)


@route(
    "GET",
    "queues/{queue}/messages/{id}/why",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Why a message is not delivered",
    reply=Reason,
)
def show_why(call: RestCall) -> None:
    broker, queue, message_id = call.broker, call.queue, call.args[1]

    def work() -> Reason:
        why = broker.inspect.why(queue, message_id)
        return Reason(code=why.code, text=why.text)

    call.answer_with(work)


# -- changing -----------------------------------------------------------------------------------


@route(
    "PATCH",
    "queues/{queue}/messages/{id}",
    permission="manage",
    sqs_actions=("SendMessage", "DeleteMessage", "PurgeQueue"),
    summary="Edit a message",
    request=Edit,
    reply=Id,
)
def edit_message(call: RestCall) -> None:
    """Change body, type, attributes or due time. Fields that are not named keep their values."""
    body, broker, queue, message_id = call.body, call.broker, call.queue, call.args[1]
    if body.delay is not UNSET and body.at is not UNSET:
        raise InvalidSetting("give either delay or at, not both")
    has_body = body.payload is not UNSET or body.body is not UNSET
    content = read_payload(body, call.sent) if has_body else None
    attributes = body.attributes
    if attributes is not UNSET:
        attributes = read_attributes(attributes, call.sent.is_json)
    due_ms: int | None = None
    if body.at is not UNSET:
        due_ms = moment_ms(body.at, "at")
    elif body.delay is not UNSET:
        due_ms = broker.now_ms() + span_ms(body.delay, "delay")

    def work() -> Id:
        entry = broker.inspect.find(queue, message_id)
        if has_body or body.message_type is not UNSET or attributes is not UNSET:
            properties, options = entry.properties, entry.options
            data, encoding = content or (entry.body or b"", entry.encoding)
            kept = None if properties is None else properties.attributes
            kind = None if options is None else options.type
            draft = Draft(
                data,
                encoding,
                type=kind if body.message_type is UNSET else body.message_type,
                attributes=kept if attributes is UNSET else attributes,
                publisher=None if properties is None else properties.publisher,
            )
            if (
                properties is not None
                and properties.amqp_properties is not None
                and attributes is UNSET
                and draft.type == kind
            ):
                draft.properties = properties
            broker.admin.edit(queue, message_id, draft)
        if due_ms is not None:
            broker.admin.reschedule(queue, message_id, due_ms)
        return Id(id=message_id)

    call.change(work)


@route(
    "DELETE",
    "queues/{queue}/messages/{id}",
    permission="manage",
    sqs_actions=("DeleteMessage", "PurgeQueue"),
    summary="Cancel a message",
    reply=Id,
)
def cancel_message(call: RestCall) -> None:
    call.broker.admin.cancel(call.queue, call.args[1])
    call.after_commit(Id(id=call.args[1]))


@route(
    "POST",
    "queues/{queue}/messages/{id}/move",
    permission="manage",
    sqs_actions=("DeleteMessage", "StartMessageMoveTask"),
    summary="Move a message to another queue",
    request=MoveTarget,
    reply=Id,
)
def move_message(call: RestCall) -> None:
    to = call.body.to
    call.require_target(to)
    [error] = call.broker.admin.move(call.queue, [call.args[1]], call.qualified(to))
    if error is not None:
        raise error
    call.after_commit(Id(id=call.args[1]))
