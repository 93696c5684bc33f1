"""Events as server-sent events (`text/event-stream`): of one queue, or of all that the caller may peek."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from ..broker import events as e
from ..broker.events import EVENT_NAMES, EventFilter
from ..documents.drafts import message_filter
from ..documents.events import EventView
from ..documents.formats import JSON
from ..errors import InvalidSetting
from ..model import MessageFilter
from ..server.connection_info import client_of
from ..server.event_access import EventAccess, queue_patterns
from ..server.event_hub import EventHub
from .call import RestCall
from .problems import Problem
from .routes import EVENT_STREAM, route
from .schemas import QueryParameters
from .stream import login_of

MAX_PATTERNS = 100
_MEDIA = EVENT_STREAM.encode()
_HEADERS = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"

Flag = Literal["0", "1", "true", "false"]


class EventQuery(QueryParameters, kw_only=True):
    """`after` is the id of the last event that was seen; the header `Last-Event-ID` says the same."""

    events: Annotated[str, Meta(description="names, separated by commas; default: all")] = ""
    types: Annotated[str, Meta(description="types of published messages, separated by commas")] = ""
    attributes: Annotated[
        str,
        Meta(
            description="a JSON object: attributes of published messages, of each a value or a list of values"
        ),
    ] = ""
    bodies: Annotated[Flag, Meta(description="1: with the payloads of published messages")] = "0"
    after: str = ""
    from_: Annotated[Literal["oldest", "end"], Meta(description="where to begin without `after`")] = field(
        default="end", name="from"
    )
    peek: Annotated[Flag, Meta(description="1: only published messages, with payloads")] = "0"
    follow: Annotated[Flag, Meta(description="0: the stream ends when there are no later events")] = "1"


class AllEventsQuery(EventQuery, kw_only=True):
    queues: Annotated[str, Meta(description="names or patterns with * and ?, separated by commas")] = ""


@route(
    "GET",
    "queues/{queue}/events",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Events of a queue, as server-sent events",
    query=EventQuery,
    reply=EventView,
    media=(EVENT_STREAM,),
)
def follow_queue(call: RestCall) -> None:
    queue = call.queue
    call.broker.get_queue(queue)
    _follow(call, (), queue)


@route(
    "GET",
    "events",
    permission="peek",
    scope="each",
    sqs_actions=("ReceiveMessage",),
    summary="Events of all queues that the caller may peek, as server-sent events",
    query=AllEventsQuery,
    reply=EventView,
    media=(EVENT_STREAM,),
)
def follow_all(call: RestCall) -> None:
    names = _words(call.query.queues, "queues")
    _follow(call, queue_patterns(call.account, _names_account(call), names), None)


def _follow(call: RestCall, queues: tuple[str, ...], queue: str | None) -> None:
    query, context = call.query, call.context
    after = (call.request.header(b"last-event-id") or b"").decode("latin-1") or query.after
    events = frozenset(_words(query.events, "events"))
    unknown = sorted(events.difference(EVENT_NAMES))
    if unknown:
        raise Problem("invalid", f"{unknown[0][:40]!r} is no event; there are {', '.join(EVENT_NAMES)}")
    bodies = _is_set(query.bodies)
    if _is_set(query.peek):
        if events:
            raise Problem("invalid", "peek shows published messages only: leave out events")
        events, bodies = frozenset((e.PUBLISHED,)), True
    own = frozenset() if queue is None else frozenset((queue,))
    wanted = EventFilter(queues, events, _messages(call), own)
    if call.request.method == "HEAD":
        call.request.answer(200, b"", _MEDIA, _HEADERS)
        return
    hub = context.event_hub
    access = EventAccess(
        context,
        login_of(call),
        call.request.peer,
        call.request.is_tls,
        call.account if _names_account(call) else None,
        queue,
    )

    def begin(position: str | None) -> None:
        client = client_of(call.request)
        reader = hub.open(wanted, bodies, access, position, follow=_is_set(query.follow), client=client)
        stream = call.request.stream(reader, _MEDIA, _HEADERS)
        if stream is None:
            hub.remove(reader)
        else:
            hub.start(reader, stream)

    # Before the response begins: an invalid id is an error of the request, and what happens after the head of
    # the response must be in the stream.
    if after:
        call.work(lambda: _check(hub, after), begin)
    elif query.from_ == "end":
        call.work(hub.end_position, begin)
    else:
        begin(None)


def _messages(call: RestCall) -> MessageFilter | None:
    """`attributes` is a JSON object, as in the body of a receive."""
    query = call.query
    attributes: dict[str, object] | None = None
    if query.attributes:
        try:
            attributes = msgspec.json.decode(query.attributes, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise Problem("malformed", f"attributes must be a JSON object: {error}") from None
    return message_filter(_words(query.types, "types") or None, attributes, JSON)


def _check(hub: EventHub, after: str) -> str:
    try:
        return hub.check(after)
    except InvalidSetting as error:
        raise Problem("malformed", str(error)) from None


def _words(text: str, name: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if len(words) > MAX_PATTERNS:
        raise Problem("invalid", f"{name} has at most {MAX_PATTERNS} parts, not {len(words)}")
    return words


def _is_set(flag: str) -> bool:
    return flag in ("1", "true")


def _names_account(call: RestCall) -> bool:
    return "/accounts/" in call.request.path
