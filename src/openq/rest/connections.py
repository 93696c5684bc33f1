"""Connections and consumers of all protocols: list, show, close; and the servers of the store.

Callers see their own connections, and those of an account where they may peek every queue. Administrators see
all. Closing a connection of another user needs the permission admin.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from ..broker.interface import LossWindow
from ..documents.values import iso, seconds
from ..names import DEFAULT_ACCOUNT, split_name
from ..server.connection_info import (
    MAX_REASON,
    WEBHOOK,
    ChannelInfo,
    ConnectionInfo,
    HttpSummary,
    SubscriptionInfo,
)
from ..server.fleet import ServerEntry
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import Limit, QueryParameters, ReplyBody

MAX_SHOWN_QUEUES = 20  # of a connection in a list
DEFAULT_REASON = "closed by an operator"


class ConnectionQuery(QueryParameters, kw_only=True):
    protocol: Literal["amqp", "ws", "sse", "http"] | None = None
    user: str | None = None
    queue: Annotated[str | None, Meta(description="only connections that consume this queue")] = None
    peer: Annotated[str | None, Meta(description="an address, or ADDRESS:PORT")] = None
    server: Annotated[str | None, Meta(description="the name of a server")] = None
    limit: Limit = 100
    after: str = ""


class ConsumerQuery(QueryParameters, kw_only=True):
    queue: str | None = None
    protocol: Literal["amqp", "ws", "http", "webhook"] | None = None
    limit: Limit = 100
    after: Annotated[str, Meta(max_length=20, description="the `next` of a page")] = ""


class CloseQuery(QueryParameters, kw_only=True):
    reason: Annotated[str, Meta(max_length=MAX_REASON, description="the client sees it")] = DEFAULT_REASON


class ConnectionView(ReplyBody, kw_only=True):
    """A connection. `http` connections are requests that wait for messages."""

    id: str
    server: str
    protocol: str
    user: str
    account: str
    peer: str  # ADDRESS:PORT
    tls: bool
    since: str
    state: str
    client: str  # the library, as it names itself
    name: str  # as the client names the connection
    channels: int
    consumers: int
    queues: list[str]  # the first of those that it consumes
    in_flight: int
    unsent_bytes: int
    published: int  # messages, since it was opened
    delivered: int
    received_bytes: int
    sent_bytes: int
    last_error: str | None  # that one of its requests was answered with


class ConsumerView(ReplyBody, kw_only=True):
    """A consumer of a queue. Without a limit of messages in flight `credit` is null.

    A webhook is one too, of the `protocol` webhook. It has no connection and no peer; `server` sends it.
    """

    queue: str
    account: str
    name: str
    protocol: str
    connection: str
    server: str
    user: str
    peer: str
    channel: int | None
    credit: int | None
    in_flight: int
    active: bool
    since: str


class ConnectionDetail(ConnectionView, kw_only=True):
    """With at most 20 of each kind where another server has the connection."""

    channel_details: list[ChannelInfo]
    subscription_details: list[SubscriptionInfo]
    consumer_details: list[ConsumerView]


class ConnectionList(ReplyBody, kw_only=True):
    """`http` summarizes the HTTP connections of the server that answers, for administrators."""

    connections: list[ConnectionView]
    total: int
    http: HttpSummary | None = None
    next: str | None = None


class ConsumerList(ReplyBody, kw_only=True):
    consumers: list[ConsumerView]
    total: int
    next: str | None = None


class ClosedView(ReplyBody, kw_only=True):
    """`closing`: another server has the connection and closes it within seconds."""

    id: str
    state: Literal["closed", "closing"]
    reason: str


class ServerLine(ReplyBody, kw_only=True):
    name: str
    instance: str
    url: str
    amqp_url: str
    version: str
    pid: int
    started: str
    uptime: float
    store: str
    healthy: bool
    detail: str
    roles: list[str]
    connections: dict[str, int]
    self: bool  # the server that answers


class LossWindowView(ReplyBody, kw_only=True):
    """What one kind of fault of Redis may lose of what was acknowledged."""

    fault: str
    when: str
    loses: Literal["nothing", "seconds", "without_bound", "unknown"]
    seconds: float | None  # of the last writes; null unless `loses` is "seconds"
    text: str


class ServerList(ReplyBody, kw_only=True):
    """`loss_window` is empty without Redis: what is acknowledged is on the disk of this server."""

    servers: list[ServerLine]
    loss_window: list[LossWindowView] = field(default_factory=list)


@route(
    "GET",
    "connections",
    permission="none",
    scope="caller",
    summary="List connections of all protocols",
    query=ConnectionQuery,
    reply=ConnectionList,
)
def list_connections(call: RestCall) -> None:
    query = call.query
    is_admin = _is_admin(call)

    def work() -> ConnectionList:
        found = [each for each in _visible(call) if each.protocol != WEBHOOK and _matches(each, query)]
        page, next_id = _page(found, query.after, query.limit, call.context.fleet.instance)
        return ConnectionList(
            connections=[_view(each) for each in page],
            total=len(found),
            http=call.context.connections.http_summary() if is_admin else None,
            next=next_id,
        )

    call.answer_with(work)


@route(
    "GET",
    "connections/{id}",
    permission="none",
    scope="connection",
    summary="Show a connection: channels, subscriptions, consumers",
    reply=ConnectionDetail,
)
def show_connection(call: RestCall) -> None:
    call.answer_with(lambda: _detail(_find(call)))


@route(
    "DELETE",
    "connections/{id}",
    permission="none",
    scope="connection",
    summary="Close a connection, with a reason for its client",
    query=CloseQuery,
    reply=ClosedView,
    status=(200, 202),
)
def close_connection(call: RestCall) -> None:
    context, reason = call.context, call.query.reason or DEFAULT_REASON

    def look() -> ConnectionInfo:
        found = _find(call)
        if found.user != call.principal.user:
            _require_admin(call, found)
        if not context.fleet.is_own(found.id):
            context.fleet.close_elsewhere(found.id, reason)
        return found

    def close(found: ConnectionInfo) -> None:
        if call.audit_detail is not None:
            about = {"protocol": found.protocol, "user": found.user, "peer": _peer(found), "reason": reason}
            call.audit_detail.update({f"connection_{name}": value for name, value in about.items()})
        if not context.fleet.is_own(found.id):
            call.answer(ClosedView(id=found.id, state="closing", reason=reason), 202)
        elif context.connections.close(found.id, reason):
            call.answer(ClosedView(id=found.id, state="closed", reason=reason))
        else:
            raise _not_found(found.id)

    call.work(look, close)


@route(
    "GET",
    "consumers",
    permission="none",
    scope="caller",
    summary="List the consumers of a queue, or of all queues, over all protocols",
    query=ConsumerQuery,
    reply=ConsumerList,
)
def list_consumers(call: RestCall) -> None:
    query = call.query

    def work() -> ConsumerList:
        found = [
            consumer
            for each in _visible(call)
            if query.protocol in (None, each.protocol)
            for consumer in _consumers(each)
            if query.queue in (None, consumer.queue)
        ]
        start = int(query.after) if query.after.isdigit() and query.after.isascii() else 0
        end = start + query.limit
        return ConsumerList(
            consumers=found[start:end], total=len(found), next=str(end) if end < len(found) else None
        )

    call.answer_with(work)


@route(
    "GET",
    "servers",
    permission="peek",
    scope="server",
    summary="List the servers that share the store",
    reply=ServerList,
)
def list_servers(call: RestCall) -> None:
    context = call.context

    def work() -> ServerList:
        cluster = context.broker.cluster
        return ServerList(
            servers=[_line(each, call) for each in context.fleet.servers()],
            loss_window=[] if cluster is None else [_loss(each) for each in cluster.loss_window()],
        )

    call.answer_with(work)


def _loss(window: LossWindow) -> LossWindowView:
    known = math.isfinite(window.seconds)
    return LossWindowView(
        fault=window.fault,
        when=window.when,
        loses=(
            "unknown"
            if math.isnan(window.seconds)
            else "without_bound"
            if not known
            else "seconds"
            if window.seconds
            else "nothing"
        ),
        seconds=window.seconds if known and window.seconds else None,
        text=window.text,
    )


def _line(entry: ServerEntry, call: RestCall) -> ServerLine:
    fields = structs.asdict(entry)
    started_ms = fields.pop("started_ms")
    return ServerLine(
        **fields,
        started=iso(started_ms),
        uptime=seconds(max(0, call.context.now_ms() - started_ms)),
        self=entry.instance == call.context.fleet.instance,
    )


# -- what the caller may see ------------------------------------------------------------------------------


def _is_admin(call: RestCall) -> bool:
    return call.context.guard.may(call.principal, "admin", DEFAULT_ACCOUNT, None)


def _visible(call: RestCall) -> list[ConnectionInfo]:
    """In a thread: those of this server first, in the order of their ids."""
    context, guard, principal = call.context, call.context.guard, call.principal
    sees_all = _is_admin(call)
    only = call.account if "/accounts/" in call.request.path else None
    accounts: dict[str, bool] = {}

    def may_see(each: ConnectionInfo) -> bool:
        if only is not None and each.account != only:
            return False
        if sees_all or each.user == principal.user:
            return True
        if each.account not in accounts:
            accounts[each.account] = guard.may_everywhere(principal, "peek", each.account)
        return accounts[each.account]

    found = [*context.connections.here(), *context.fleet.connections_elsewhere()]
    own = context.fleet.instance
    return sorted(filter(may_see, found), key=lambda each: _order(each.id, own))


def _order(id: str, own: str) -> tuple[bool, str, int]:
    instance, _, number = id.rpartition("-")
    return instance != own, instance, int(number) if number.isdecimal() else 0


def _page(
    found: list[ConnectionInfo], after: str, limit: int, own: str
) -> tuple[list[ConnectionInfo], str | None]:
    """A connection that was closed since does not stop the reader: the next one in the order follows."""
    if after:
        found = [each for each in found if _order(each.id, own) > _order(after, own)]
    return found[:limit], found[limit - 1].id if len(found) > limit else None


def _matches(each: ConnectionInfo, query: ConnectionQuery) -> bool:
    return (
        query.protocol in (None, each.protocol)
        and query.user in (None, each.user)
        and query.server in (None, each.server)
        and query.peer in (None, each.peer, _peer(each))
        and (query.queue is None or any(split_name(key)[1] == query.queue for key in each.queue_keys))
    )


def _find(call: RestCall) -> ConnectionInfo:
    id = call.args[0]
    for each in _visible(call):
        if each.id == id and each.protocol != WEBHOOK:
            return each
    raise _not_found(id)


def _not_found(id: str) -> Problem:
    return Problem("connection_not_found", f"connection {id[:100]!r} does not exist, or is not yours to see")


def _require_admin(call: RestCall, found: ConnectionInfo) -> None:
    if not call.context.guard.may(call.principal, "admin", found.account, None):
        raise Problem("forbidden", f"{call.principal.user} may not close connections of other users")


# -- views ------------------------------------------------------------------------------------------------


def _peer(each: ConnectionInfo) -> str:
    if each.protocol == WEBHOOK:
        return ""
    return f"[{each.peer}]:{each.port}" if ":" in each.peer else f"{each.peer}:{each.port}"


def _view(each: ConnectionInfo) -> ConnectionView:
    return ConnectionView(**_fields(each))


def _detail(each: ConnectionInfo) -> ConnectionDetail:
    return ConnectionDetail(
        **_fields(each),
        channel_details=each.channels,
        subscription_details=each.subscriptions,
        consumer_details=_consumers(each),
    )


def _fields(each: ConnectionInfo) -> dict[str, Any]:
    queues = [split_name(key)[1] for key in each.queue_keys[:MAX_SHOWN_QUEUES]]
    return {
        "id": each.id,
        "server": each.server,
        "protocol": each.protocol,
        "user": each.user,
        "account": each.account,
        "peer": _peer(each),
        "tls": each.tls,
        "since": iso(each.since_ms),
        "state": each.state,
        "client": each.client,
        "name": each.name,
        "channels": each.channel_count,
        "consumers": each.consumer_count,
        "queues": queues,
        "in_flight": each.in_flight,
        "unsent_bytes": each.unsent_bytes,
        "published": each.published,
        "delivered": each.delivered,
        "received_bytes": each.received_bytes,
        "sent_bytes": each.sent_bytes,
        "last_error": each.last_error or None,
    }


def _consumers(each: ConnectionInfo) -> list[ConsumerView]:
    found = []
    for consumer in each.consumers:
        account, queue = split_name(consumer.queue_key)
        found.append(
            ConsumerView(
                queue=queue,
                account=account,
                name=consumer.name,
                protocol=each.protocol,
                connection="" if each.protocol == WEBHOOK else each.id,
                server=each.server,
                user=each.user,
                peer=_peer(each),
                channel=consumer.channel,
                credit=consumer.credit,
                in_flight=consumer.in_flight,
                active=consumer.active,
                since=iso(consumer.since_ms),
            )
        )
    return found
