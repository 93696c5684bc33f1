"""Sessions: logins of the dashboard, by a cookie that scripts cannot read.

A session is begun with a name and a password, or with a token. The cookie is an alternative to the header
`Authorization` for requests of pages of this server; see `auth/sessions.py` for the rules.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from .._version import __version__
from ..auth.guard import Principal
from ..auth.rules import ACTIONS, Rule, judge
from ..auth.sessions import OpenedSession, cookie_of
from ..auth.store import MAX_PASSWORD_BYTES
from ..documents.values import iso
from ..names import DEFAULT_ACCOUNT
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import QueryParameters, ReplyBody, RequestBody
from .user_schemas import RuleView
from .users import rule_views

Secret = Annotated[str, Meta(max_length=MAX_PASSWORD_BYTES)]
Extent = Literal["all", "some", "none"]


class LoginRequest(RequestBody, kw_only=True):
    """Name and password, or a token."""

    user: Secret | UnsetType = UNSET
    password: Secret | UnsetType = UNSET
    token: Secret | UnsetType = UNSET


class Permissions(ReplyBody, kw_only=True):
    """On how many queues of the caller's account each action is allowed by rules; the policy of a queue may
    allow or deny more. `admin` is of the whole server."""

    send: Extent
    receive: Extent
    peek: Extent
    manage: Extent
    admin: bool


class SessionView(ReplyBody, kw_only=True):
    """The caller, and what it may do. Without a login, user and the rest are null."""

    authenticated: bool
    login_required: bool  # false: the server has no users, everybody may do everything
    by: Literal["open", "session", "header", "none"]
    user: str | None
    account: str | None
    role: str | None
    is_root: bool
    rules: list[RuleView]
    token_rules: list[RuleView] | None  # further limits of the token that was used
    permissions: Permissions | None
    read_only: bool  # the dashboard offers no actions
    trace_url: str | None  # with {trace_id}: where the trace of a message is shown
    begun: str | None
    idle_until: str | None  # it ends then without a further request
    ends: str | None  # and then in any case
    server: str
    version: str | None  # not shown before a login
    store: str | None
    region: str | None


class EndedSessions(ReplyBody, kw_only=True):
    ended: int


class OfSessionUser(QueryParameters, kw_only=True):
    """`user`: of another user; needs the role admin."""

    user: str = ""


@route(
    "GET",
    "session",
    permission="none",
    scope="visitor",
    summary="The caller, its permissions, and whether a login is needed",
    reply=SessionView,
)
def show_session(call: RestCall) -> None:
    call.answer(_view(call, call.principal), headers=b"Cache-Control: no-store\r\n")


@route(
    "POST",
    "session",
    permission="none",
    scope="public",
    summary="Log in: begin a session, whose cookie is in the reply",
    request=LoginRequest,
    reply=SessionView,
    status=(201,),
)
def begin_session(call: RestCall) -> None:
    """Failed logins count like those of all protocols, and lock an address out."""
    request, guard, body = call.request, call.context.guard, call.body
    if request.fields.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        raise Problem("foreign_request", "a login must come from a page of this server")
    if guard.is_open:
        raise Problem("open_access", "the server has no users")
    if body.token is UNSET and (body.user is UNSET or body.password is UNSET):
        raise Problem("invalid", "give user and password, or token")

    def work() -> tuple[Principal, OpenedSession]:
        if body.token is not UNSET:
            principal = guard.bearer(body.token, request.peer)
            token = guard.store.find_token(body.token)
        else:
            principal, token = guard.basic(body.user, body.password, request.peer), None
        user = guard.store.user(principal.user)
        if user is None or (token is None and body.token is not UNSET):
            raise Problem("login_refused", "the user was removed a moment ago")
        return principal, guard.sessions.begin(user, token)

    def begun(result: tuple[Principal, OpenedSession] | None, error: BaseException | None) -> None:
        if result is None:
            call.fail(error or RuntimeError())
            return
        principal, opened = result
        request.user = principal.user
        by = "password" if body.token is UNSET else "token"
        call.context.audit.record(
            "rest", "login", principal.user, user=principal.user, peer=request.peer, detail={"by": by}
        )
        cookie = cookie_of(opened.text, max_age_s=guard.sessions.max_ms // 1000, is_tls=request.is_tls)
        call.answer(_view(call, principal, opened.session.hash), 201, cookie + b"Cache-Control: no-store\r\n")

    # Password hashing is slow by design, and the session is written to disk.
    call.context.check(work, begun)


@route(
    "DELETE",
    "session",
    permission="none",
    scope="visitor",
    summary="Log out: end this session, and remove its cookie",
    reply=EndedSessions,
)
def end_session(call: RestCall) -> None:
    """Without a session it only removes the cookie."""
    guard, request = call.context.guard, call.request
    cookie = cookie_of("", max_age_s=0, is_tls=request.is_tls)
    login = request.login
    if login is None or not login.session:
        call.answer(EndedSessions(ended=0), headers=cookie)
        return
    hash = login.session

    def work() -> EndedSessions:
        guard.sessions.end(hash)
        return EndedSessions(ended=1)

    def ended(view: EndedSessions) -> None:
        user = call.principal.user
        call.context.audit.record("rest", "logout", user, user=user, peer=request.peer)
        call.answer(view, headers=cookie)

    call.work(work, ended)


@route(
    "DELETE",
    "sessions",
    permission="none",
    scope="caller",
    summary="Log out everywhere: end all sessions of the caller",
    query=OfSessionUser,
    reply=EndedSessions,
)
def end_sessions(call: RestCall) -> None:
    guard, request, caller = call.context.guard, call.request, call.principal
    user = call.query.user or caller.user
    if user != caller.user and not guard.may(caller, "admin", DEFAULT_ACCOUNT, None):
        raise Problem("forbidden", f"{caller.user} may not admin this server")

    def ended(view: EndedSessions) -> None:
        call.context.audit.record(
            "rest",
            "logout_everywhere",
            user,
            user=caller.user,
            peer=request.peer,
            detail={"count": view.ended},
        )
        is_own = user == caller.user
        call.answer(view, headers=cookie_of("", max_age_s=0, is_tls=request.is_tls) if is_own else b"")

    call.work(lambda: EndedSessions(ended=guard.sessions.end_all(user)), ended)


def _view(call: RestCall, caller: Principal, hash: str = "") -> SessionView:
    context, login = call.context, call.request.login
    guard, config = context.guard, context.config
    is_known = not caller.is_anonymous
    hash = hash or (login.session if login is not None else "")
    session = guard.sessions.find(hash) if hash else None
    begun = idle_until = ends = None
    if session is not None:
        begun = iso(session.created_ms)
        idle_until, ends = map(iso, guard.sessions.end_ms(session))
    user = guard.store.user(caller.user) if is_known and not guard.is_open else None
    permissions = _permissions(caller) if is_known else None
    may_change = permissions is not None and (
        permissions.admin or {permissions.send, permissions.receive, permissions.manage} != {"none"}
    )
    return SessionView(
        authenticated=is_known,
        login_required=not guard.is_open,
        by="open" if guard.is_open else "none" if not is_known else "session" if session else "header",
        user=caller.user if is_known else None,
        account=caller.account if is_known else None,
        role="admin" if guard.is_open else None if user is None else user.role,
        is_root=caller.is_root,
        rules=rule_views(caller.rules),
        token_rules=None if caller.scope is None else rule_views(caller.scope),
        permissions=permissions,
        read_only=config.ui_read_only or not may_change,
        trace_url=config.ui_trace_url if is_known else None,
        begun=begun,
        idle_until=idle_until,
        ends=ends,
        server="OpenQ",
        version=__version__ if is_known else None,
        store=context.broker.storage.name if is_known else None,
        region=config.region if is_known else None,
    )


def _permissions(caller: Principal) -> Permissions:
    extents = {action: _extent(caller, action) for action in ACTIONS}
    return Permissions(
        send=extents["send"],
        receive=extents["receive"],
        peek=extents["peek"],
        manage=extents["manage"],
        admin=extents["admin"] == "all",
    )


def _extent(caller: Principal, action: str) -> Extent:
    lists = [caller.rules] if caller.scope is None else [caller.rules, caller.scope]
    return min((_extent_of(rules, action, caller.account) for rules in lists), key=_ORDER.index)


_ORDER: list[Extent] = ["none", "some", "all"]


def _extent_of(rules: tuple[Rule, ...], action: str, account: str) -> Extent:
    meant = [rule for rule in rules if action in rule.actions]
    allowing = [rule for rule in meant if rule.effect == "allow"]
    if not allowing or judge(rules, action, account, None, account) == "deny":
        return "none"
    is_denied_somewhere = len(allowing) < len(meant)
    if judge(rules, action, account, None, account) == "allow":
        return "some" if is_denied_somewhere and action != "admin" else "all"
    return "none" if action == "admin" else "some"
