"""Connections, channels and consumers of the management API."""

from __future__ import annotations

from collections.abc import Callable

from ..arguments import account_of
from ..definitions_export import to_json_value
from .call import Json, ManagementCall, field_of, first_or_404, paginate
from .routes import PREFIX, route


def amqp_objects(call: ManagementCall, what: str) -> list[Json]:
    """`what`: connections, channels or consumers, as the AMQP server shows them."""
    server = call.context.amqp
    found: list[Json] = [] if server is None else getattr(server, what)()
    return found if what == "consumers" else [{**each, "node": call.api.node} for each in found]


def _can_see(call: ManagementCall, one: Json) -> bool:
    """Users see their own; those of others need the permission to peek into every queue of the vhost."""
    vhost = _vhost_in(one)
    if not call.can_see_vhost(vhost):
        return False
    guard = call.context.guard
    return (
        guard.is_open
        or _user_in(one) == call.principal.user
        or guard.may_everywhere(call.principal, "peek", account_of(vhost))
    )


def _list(call: ManagementCall, what: str, vhost: str | None = None) -> None:
    found = [
        each for each in amqp_objects(call, what) if vhost in (None, _vhost_in(each)) and _can_see(call, each)
    ]
    call.answer(paginate([to_json_value(each) for each in found], call.query))


@route("GET", "connections")
@route("GET", "channels")
@route("GET", "consumers")
def list_all(call: ManagementCall) -> None:
    _list(call, call.request.path[len(PREFIX) :].strip("/"))


@route("GET", "vhosts/{vhost}/connections")
@route("GET", "vhosts/{vhost}/channels")
@route("GET", "consumers/{vhost}")
def list_in_vhost(call: ManagementCall) -> None:
    parts = call.request.path[len(PREFIX) :].strip("/").split("/")
    _list(call, parts[0] if len(parts) == 2 else parts[2], call.vhost())


@route("GET", "connections/{name}")
@route("GET", "channels/{name}")
def show(call: ManagementCall) -> None:
    what = call.request.path[len(PREFIX) :].partition("/")[0]
    call.answer_object(to_json_value(_named_object(call, what, call.names[0])))


def _named_object(call: ManagementCall, what: str, name: str) -> Json:
    """Raises 404, also if the caller may not see it."""
    found = [each for each in amqp_objects(call, what) if each.get("name") == name]
    return first_or_404([each for each in found if _can_see(call, each)])


@route("GET", "connections/{name}/channels")
def channels_of(call: ManagementCall) -> None:
    name = _named_object(call, "connections", call.names[0])["name"]
    found = [
        each for each in amqp_objects(call, "channels") if field_of(each, "connection_details.name") == name
    ]
    call.answer(paginate([to_json_value(each) for each in found], call.query))


@route("DELETE", "connections/{name}")
def close_connection(call: ManagementCall) -> None:
    """Users may close their own, administrators any. The header X-Reason is sent to the client."""
    name = call.names[0]
    if _user_in(_named_object(call, "connections", name)) != call.principal.user:
        call.require_admin()
    _close(call, lambda each: each["name"] == name)


@route("GET", "connections/username/{name}")
def connections_of(call: ManagementCall) -> None:
    found = [each for each in amqp_objects(call, "connections") if _user_in(each) == call.names[0]]
    call.answer(paginate([to_json_value(each) for each in found if _can_see(call, each)], call.query))


@route("DELETE", "connections/username/{name}")
def close_connections_of(call: ManagementCall) -> None:
    if call.names[0] != call.principal.user:
        call.require_admin()
    _close(call, lambda each: _user_in(each) == call.names[0])


def _close(call: ManagementCall, matches: Callable[[Json], bool]) -> None:
    given = (call.request.header(b"x-reason") or b"").decode("utf-8", "replace")
    reason = "".join(char if char.isprintable() else "?" for char in given[:200])
    server = call.context.amqp
    if server is not None:
        server.close_connections(matches, reason or "Closed via management API")
    call.answer_changed()


def _vhost_in(item: Json) -> str:
    vhost = item.get("vhost")
    if vhost is None:
        vhost = field_of(item, "queue.vhost")
    return str(vhost)


def _user_in(item: Json) -> str:
    """Of a connection or channel, or of a consumer by its channel."""
    user = item.get("user")
    return str(field_of(item, "channel_details.user") if user is None else user)
