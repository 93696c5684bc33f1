"""Queued messages: browse, search, show, edit, move, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from ..broker.interface import Filter, TimelineStep
from ..documents.drafts import read_payload
from ..documents.values import iso, moment_ms, read_attributes, span_ms
from ..errors import InvalidSetting, MessageNotFoundError, OpenQError
from ..model import (
    Draft,
    Entry,
)
from ..names import split_name
from ..server import long_polls
from ..server.why_consumers import with_consumers
from ..trace_context import trace_id_of
from .call import RestCall
from .message_schemas import (
    Browse,
    Edit,
    Id,
    MessageFilter,
    MessagePage,
    MessageView,
    MoveTarget,
    Reason,
    Search,
    SearchReply,
    Timeline,
    TimelineStepView,
)
from .paging import MAX_ANSWER_BYTES, FoundPage, page, search_page
from .problems import Problem
from .routes import route
from .views import stored

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


def make_filter(wanted: MessageFilter | None, call: RestCall, state: str | None = None) -> Filter:
    if wanted is None:
        return Filter(state=state or "all")
    attributes = wanted.attributes or {}
    now_ms = call.broker.now_ms()
    return Filter(
        ids=wanted.ids,
        type=wanted.message_type,
        text=wanted.text,
        attributes=read_attributes(attributes, call.sent.is_json) if attributes else {},
        json=wanted.json or {},
        reason=wanted.reason,
        reason_group=wanted.reason_group,
        state=state or wanted.state,
        sent_from_ms=0 if wanted.max_age is None else now_ms - span_ms(wanted.max_age, "max_age"),
        sent_until_ms=None if wanted.min_age is None else now_ms - span_ms(wanted.min_age, "min_age"),
        min_receives=wanted.min_receives or 0,
        max_receives=wanted.max_receives,
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
    filter = make_filter(body, call)
    settles = call.may("receive", call.args[0])

    def work() -> SearchReply:
        if filter.ids is not None:
            known = broker.inspect.search(queue, filter, body.limit, body.budget, MAX_ANSWER_BYTES)
            entries = [
                (each, broker.inspect.status(queue, broker.inspect.message_id(each)) or "gone")
                for each in known.entries
            ]
            found = FoundPage(entries, known.scanned, None, known.complete)
        else:
            found = search_page(broker, queue, filter, body.after, body.limit, body.budget)
        return SearchReply(
            messages=_show_all(call, queue, found.entries, settles),
            complete=found.complete,
            scanned=found.scanned,
            next=UNSET if found.following is None else found.following,
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
            steps=[step_view(step) for step in steps],
        )

    call.seek(work)


def step_view(step: TimelineStep) -> TimelineStepView:
    return TimelineStepView(
        time=iso(step.time_ms),
        what=step.what,
        queue=split_name(step.queue)[1],
        detail=step.detail,
        traceback=step.traceback or UNSET,
        trace_id=step.trace_id or UNSET,
    )


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
        why = with_consumers(broker.inspect.why(queue, message_id), call.context, queue)
        try:
            properties = broker.inspect.find(queue, message_id).properties
        except OpenQError:
            properties = None  # it has left the queue
        trace_id = None if properties is None else trace_id_of(properties.attributes)
        return Reason(code=why.code, text=why.text, trace_id=trace_id or UNSET)

    call.answer_with(work)


# -- changing -----------------------------------------------------------------------------------


EDIT_ACTIONS = ("SendMessage", "DeleteMessage", "PurgeQueue")


@route(
    "PATCH",
    "queues/{queue}/messages/{id}",
    permission="manage",
    sqs_actions=EDIT_ACTIONS,
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
            data, encoding = content or (entry.body or b"", entry.encoding)
            draft = edited_draft(entry, data, encoding, body.message_type, attributes)
            broker.admin.edit(queue, message_id, draft)
        if due_ms is not None:
            broker.admin.reschedule(queue, message_id, due_ms)
        return Id(id=message_id)

    call.change(work)


def edited_draft(
    entry: Entry,
    data: bytes,
    encoding: int,
    message_type: str | UnsetType | None = UNSET,
    attributes: Mapping[str, object] | UnsetType | None = UNSET,
) -> Draft:
    """What an edit puts in the place of an entry: a body, and the type and attributes kept or given."""
    properties, options = entry.properties, entry.options
    kept = None if properties is None else properties.attributes
    kind = None if options is None else options.type
    draft = Draft(
        data,
        encoding,
        type=kind if message_type is UNSET else message_type,
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
    return draft


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
