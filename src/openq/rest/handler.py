"""The REST API below /api/v1/: from an HTTP request to the handler of its route.

The order: find the route, authenticate, authorise, decode query and body, call the handler.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from ..auth.errors import SessionExpired
from ..auth.failed_logins import NO_CREDENTIALS, UNKNOWN_SCHEME, UNKNOWN_TOKEN
from ..auth.guard import ANONYMOUS, Principal
from ..auth.sessions import session_in
from ..documents.formats import explain
from ..names import DEFAULT_ACCOUNT
from ..server.audit import shown_detail
from ..server.context import ServerContext
from ..server.http_request import HttpRequest
from ..server.stream_login import StreamLogin

# Importing the modules of the handlers registers their routes.
from . import access as access
from . import alerts as alerts
from . import audit as audit
from . import backups as backups
from . import connections as connections
from . import dead_letter_groups as dead_letter_groups
from . import dead_letters as dead_letters
from . import events as events
from . import exchanges as exchanges
from . import find_message as find_message
from . import history as history
from . import history_tables as history_tables
from . import key_values as key_values
from . import live as live
from . import messages as messages
from . import publishing as publishing
from . import queues as queues
from . import receiving as receiving
from . import redrive as redrive
from . import replay_preview as replay_preview
from . import schedules as schedules
from . import series as series
from . import server_info as server_info
from . import sessions as sessions
from . import staging as staging
from . import stream as stream
from . import subscriptions as subscriptions
from . import tasks as tasks
from . import undo as undo
from . import users as users
from . import webhooks as webhooks
from . import workers as workers
from .call import RestCall, answer_problem
from .formats import JSON, reply_format, request_format
from .message_schemas import Restoring
from .problems import Problem
from .routes import EVENT_STREAM, ROUTES, Route
from .schemas import NoQuery, QueryParameters
from .stream import Ticketed

PREFIX = "/api/v1/"
_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 400

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def decoded(part: str, what: str = "path") -> str:
    """One part of a path: percent-decoded UTF-8. Raises Problem."""
    if "%" not in part and part.isascii():
        return part
    try:
        if _BROKEN_ESCAPE.search(part):
            raise ValueError
        return unquote_to_bytes(part.encode("latin-1")).decode()
    except ValueError:
        raise Problem("malformed", f"the {what} is not percent-encoded UTF-8") from None


CachedRoute = tuple[Route, str | None, tuple[str, ...]]


class RestHandler:
    """Everything below /api/v1/, and /openapi.json."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._cached_routes: dict[tuple[str, str], CachedRoute] = {}
        self._openapi: bytes | None = None

    def handle(self, request: HttpRequest) -> None:
        try:
            if request.path == "/openapi.json":
                self._answer_openapi(request)
                return
            route, account, args = self._find(request)
            if route.scope == "public":
                self._run_handler(RestCall(self.context, request, route, DEFAULT_ACCOUNT, args))
                return
            guard = self.context.guard
            if guard.is_open:
                principal: Principal | None = guard.open_principal(account or DEFAULT_ACCOUNT)
            else:
                principal = self._authenticate(request, route, account, args)
            if principal is not None:
                self._authorize(request, route, account, args, principal)
        except Exception as error:
            answer_problem(request, error, self.context.traffic.rest)

    def _authenticate(
        self, request: HttpRequest, route: Route, account: str | None, args: tuple[str, ...]
    ) -> Principal | None:
        """The caller; None while a thread checks the password: it continues the request."""
        header = request.header(b"authorization")
        guard = self.context.guard
        if header is None:
            text = session_in(request.fields.get(b"cookie"))
            if text is not None and not (route.takes_ticket and "ticket=" in request.query):
                return self._of_session(request, route, text)
            if route.scope == "visitor":
                return ANONYMOUS
            if route.takes_ticket:
                return self._redeem_ticket(request)
            guard.refused.refuse("rest", "", request.peer, NO_CREDENTIALS)
            raise Problem("unauthorized", "authentication required")
        scheme, _, value = header.partition(b" ")
        scheme = scheme.lower()
        if scheme == b"bearer":
            return guard.bearer(value.strip().decode("latin-1"), request.peer)
        if scheme != b"basic":
            guard.refused.refuse("rest", "", request.peer, UNKNOWN_SCHEME)
            raise Problem("unauthorized", "use a bearer token, or user and password (Basic)")
        user, password = guard.read_basic(value, request.peer, "rest")
        known = guard.cached_login(user, password, request.peer, "rest")
        if known is not None:
            return known

        def authenticated(principal: Principal | None, error: BaseException | None) -> None:
            try:
                if error is not None:
                    raise error
                assert principal is not None
                self._authorize(request, route, account, args, principal)
            except Exception as problem:
                answer_problem(request, problem, self.context.traffic.rest)

        # Password hashing is slow by design: not on the loop.
        self.context.check(lambda: guard.basic(user, password, request.peer), authenticated)
        return None

    def _of_session(self, request: HttpRequest, route: Route, text: str) -> Principal:
        try:
            principal, session = self.context.guard.session(
                text, request.method, request.fields, request.peer
            )
        except SessionExpired:
            if route.scope == "visitor":
                return ANONYMOUS
            raise
        request.login = StreamLogin(principal, None, False, session.hash)
        if self.context.config.ui_read_only and not _is_reading(request, route):
            raise Problem("read_only", "sessions of this server may not change anything")
        return principal

    def _redeem_ticket(self, request: HttpRequest) -> Principal:
        ticket = _read_query(request.query, Ticketed).ticket
        if not ticket:
            self.context.guard.refused.refuse("rest", "", request.peer, NO_CREDENTIALS)
            raise Problem("unauthorized", "authentication required: a header, or a ticket in the query")
        now_ms = self.context.now_ms()
        request.login = self.context.tickets.redeem(ticket, now_ms)
        principal = None if request.login is None else request.login.current(self.context.guard, now_ms)
        if principal is None:
            self.context.guard.refused.refuse("rest", "", request.peer, UNKNOWN_TOKEN)
            raise Problem("login_refused", "the ticket is unknown, used or expired")
        return principal

    def _authorize(
        self,
        request: HttpRequest,
        route: Route,
        account: str | None,
        args: tuple[str, ...],
        principal: Principal,
    ) -> None:
        call = RestCall(self.context, request, route, account or principal.account, args)
        call.principal = principal
        request.user = principal.user
        if route.is_audited or route.permission == "admin":
            call.audit_detail = self._audit(call)
        # Before the queue is looked up: the reply must not reveal whether it exists.
        if route.scope == "queue":
            call.require(route.permission, args[0])
        elif route.scope == "server" and not self.context.guard.may(
            principal, route.permission, DEFAULT_ACCOUNT, None
        ):
            raise Problem("forbidden", f"{principal.user} may not {route.permission} this server")
        self._run_handler(call)

    def _audit(self, call: RestCall) -> dict[str, Any]:
        """Of requests that only read, refusals are recorded."""
        route = call.route
        detail = self.context.audit.watch(
            call.request,
            "rest",
            route.handler.__name__,
            "/".join(call.args),
            call.principal.user,
            only_refused=not route.is_audited,
        )
        if call.account != DEFAULT_ACCOUNT:
            detail["account"] = call.account
        return detail

    def _run_handler(self, call: RestCall) -> None:
        request, route = call.request, call.route
        try:
            call.sent = JSON if route.takes else request_format(request)
            call.format = JSON if EVENT_STREAM in route.media else reply_format(request, call.sent)
            if request.query or route.query not in _OFTEN_EMPTY:
                call.query = _read_query(request.query, route.query)
                if route.scope == "query" and (call.query.queue or not call.query.MAY_OMIT_QUEUE):
                    call.require(route.permission, call.query.queue)
            if route.request is not None and not route.reads_itself:
                call.body = call.sent.decode(request.body or _EMPTY[call.sent.is_json], route.request)
            if call.audit_detail is not None and call.body is not None:
                call.audit_detail.update(shown_detail(call.body))
            route.handler(call)
        except Exception as error:
            call.fail(error)

    def _find(self, request: HttpRequest) -> CachedRoute:
        method, path = request.method, request.path
        if method == "HEAD":
            method = "GET"
        known = self._cached_routes.get((method, path))
        if known is not None:
            return known
        parts = path[len(PREFIX) :].split("/")
        account: str | None = None
        if parts[0] == "accounts" and len(parts) > 2:
            account = decoded(parts[1])
            if not 0 < len(account) <= 128 or not account.isprintable() or "*" in account:
                raise Problem("invalid", "an account has 1 to 128 printable characters, no *")
            parts = parts[2:]
        found = ROUTES.find(method, parts)
        if found is None:
            raise _not_found(parts, path)
        route, names = found
        known = (route, account, tuple(map(decoded, names)))
        if len(path) <= _MAX_CACHED_BYTES:
            if len(self._cached_routes) >= _MAX_CACHED:
                self._cached_routes.clear()
            self._cached_routes[method, path] = known
        return known

    def _answer_openapi(self, request: HttpRequest) -> None:
        if request.method not in ("GET", "HEAD"):
            raise Problem("method_not_allowed", "this address takes GET", b"Allow: GET\r\n")
        if self._openapi is None:
            from .openapi import document

            self._openapi = msgspec.json.encode(document(ROUTES))
        request.answer(200, self._openapi, b"application/json")


def _is_reading(request: HttpRequest, route: Route) -> bool:
    if route.path.startswith("stream"):
        return False  # a stream can ack and publish
    return request.method in ("GET", "HEAD") or route.permission in ("peek", "none")


_EMPTY = {True: b"{}", False: b"\x80"}
_OFTEN_EMPTY = (NoQuery, Restoring)  # an empty query needs no decoding


def _not_found(parts: list[str], path: str) -> Problem:
    methods = ", ".join(ROUTES.methods(parts))
    if not methods:
        return Problem("no_such_route", f"{path[:200]} is not an address of this API")
    allow = f"Allow: {methods}\r\n".encode()
    return Problem("method_not_allowed", f"this address takes {methods}", allow)


def _read_query(text: str, kind: type[QueryParameters]) -> Any:
    values: dict[str, str] = {}
    try:
        # Strict: a replaced byte could make the name of another queue.
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise Problem("malformed", "the query is not percent-encoded UTF-8, or has too many parts") from None
    for name, value in pairs:
        if name in values:
            raise Problem("invalid", f"the query parameter {name[:100]!r} is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("invalid", f"the query: {explain(error, kind)}") from None
