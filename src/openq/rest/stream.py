"""The WebSocket stream: its handshake, and tickets for clients that cannot send a header."""

from __future__ import annotations

from ..documents.values import iso
from ..server.stream_login import StreamLogin
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import QueryParameters, ReplyBody


class Ticketed(QueryParameters, kw_only=True):
    """`ticket`: from `POST stream/tickets`, for clients that cannot send `Authorization`."""

    ticket: str = ""


class Ticket(ReplyBody, kw_only=True):
    """For one connection, within seconds."""

    ticket: str
    expires: str


@route(
    "GET",
    "stream",
    permission="none",
    scope="caller",
    summary="Messages by WebSocket",
    query=Ticketed,
    status=(101,),
    takes_ticket=True,
)
def open_stream(call: RestCall) -> None:
    """The handshake of RFC 6455, with the subprotocol `openq.json` or `openq.msgpack`; see docs/PUSH.md."""
    call.context.streams.upgrade(call.request, login_of(call), call.account)


@route(
    "POST",
    "stream/tickets",
    permission="none",
    scope="caller",
    summary="Get a ticket for the stream",
    reply=Ticket,
    status=(201,),
)
def issue_ticket(call: RestCall) -> None:
    issued = call.context.tickets.issue(login_of(call), call.context.now_ms())
    if issued is None:
        raise Problem("too_many_tickets", "too many tickets are open")
    ticket, expires_ms = issued
    call.answer(Ticket(ticket=ticket, expires=iso(expires_ms)), 201)


def login_of(call: RestCall) -> StreamLogin:
    """The login of a request whose reply outlives it."""
    if call.request.login is not None:
        return call.request.login
    guard = call.context.guard
    scheme, _, value = (call.request.header(b"authorization") or b"").partition(b" ")
    token = guard.store.find_token(value.strip().decode("latin-1")) if scheme.lower() == b"bearer" else None
    return StreamLogin(call.principal, token, guard.is_open)
