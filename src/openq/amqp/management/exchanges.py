"""Exchanges of the management API, and publishing over HTTP."""

from __future__ import annotations

import base64

from ...engine.routing import Exchange, is_default
from ...errors import OpenQError
from ...names import qualified_name, split_name
from .. import methods
from ..access import GUEST
from ..arguments import account_of, strip_line_ends, vhost_of
from ..definitions_export import exchange_fields
from ..exchanges import policy_of
from ..publishing import PublishTarget, VhostPublisher
from .call import Json, ManagementCall, bad_request, not_found
from .routes import route
from .values import arguments_field, encode_properties, flag

DEFAULT_EXCHANGE = "amq.default"  # in paths, where an empty name is not possible


def _exchange_info(call: ManagementCall, exchange: Exchange) -> Json:
    found = {**exchange_fields(exchange), "vhost": vhost_of(split_name(exchange.name)[0])}
    policy = policy_of(exchange)
    if policy is not None:
        found["policy"] = policy
    return found


def _exchanges(call: ManagementCall, vhost: str | None) -> list[Exchange]:
    exchanges = call.topology.exchanges(vhost)
    known = {each.name for each in exchanges}
    vhosts = call.topology.vhosts() if vhost is None else [vhost]
    # The default exchanges of other accounts are not stored.
    for exchange_key in (qualified_name(account_of(each), "") for each in vhosts):
        if exchange_key not in known:
            exchanges.append(Exchange(exchange_key, "direct"))
    seen = {account_of(each) for each in vhosts if call.can_see_vhost(each)}
    found = [
        each
        for each in exchanges
        if split_name(each.name)[0] in seen
        and (is_default(each.name) or call.may("peek", each.name, is_queue=False))
    ]
    return sorted(found, key=lambda each: (vhost_of(split_name(each.name)[0]), each.name))


@route("GET", "exchanges")
def exchanges(call: ManagementCall) -> None:
    found = _exchanges(call, None)
    call.answer_list(lambda: [_exchange_info(call, each) for each in found])


@route("GET", "exchanges/{vhost}")
def exchanges_of(call: ManagementCall) -> None:
    found = _exchanges(call, call.vhost())
    call.answer_list(lambda: [_exchange_info(call, each) for each in found])


def exchange_in_path(call: ManagementCall, action: str, name: str) -> Exchange:
    vhost = call.vhost()
    name = "" if name == DEFAULT_EXCHANGE else name
    exchange_key = call.key_of(name)
    if name:
        call.require(action, exchange_key, is_queue=False)
    if not call.topology.has_exchange(exchange_key):
        raise not_found()
    return call.topology.exchange(vhost, name)


@route("GET", "exchanges/{vhost}/{exchange}")
def exchange(call: ManagementCall) -> None:
    found = exchange_in_path(call, "peek", call.names[1])
    call.answer_object({**_exchange_info(call, found), "incoming": [], "outgoing": []})


@route("PUT", "exchanges/{vhost}/{exchange}")
def put_exchange(call: ManagementCall) -> None:
    body = call.body()
    vhost, name = call.vhost("vhost_not_found"), strip_line_ends(call.names[1])
    call.require("manage", call.key_of(name), is_queue=False)
    arguments = arguments_field(body)
    call.require_publish(arguments.get("alternate-exchange"))
    kind = body.get("type", "direct")
    if not isinstance(kind, str):
        raise bad_request("type must be text")
    is_new = not call.topology.has_exchange(call.key_of(name))
    call.topology.declare_exchange(
        vhost,
        name,
        kind,
        durable=flag(body, "durable"),
        auto_delete=flag(body, "auto_delete"),
        internal=flag(body, "internal"),
        arguments=arguments,
    )
    call.answer_changed(is_new)


@route("DELETE", "exchanges/{vhost}/{exchange}")
def delete_exchange(call: ManagementCall) -> None:
    exchange_in_path(call, "manage", call.names[1])
    vhost, name = call.names
    call.topology.delete_exchange(vhost, name, call.query.get("if-unused") == "true")
    call.answer_changed()


@route("POST", "exchanges/{vhost}/{exchange}/publish")
def publish(call: ManagementCall) -> None:
    body = call.required("properties", "routing_key", "payload", "payload_encoding")
    key, payload = body["routing_key"], body["payload"]
    if not isinstance(key, str) or not isinstance(payload, str):
        raise bad_request("routing_key and payload must be text")
    if len(key.encode("utf-8", "replace")) > 255:
        raise bad_request("a routing key has at most 255 bytes")
    if body["payload_encoding"] == "base64":
        try:
            data = base64.b64decode(payload, validate=True)
        except ValueError:
            raise bad_request("the payload is not base64") from None
    elif body["payload_encoding"] == "string":
        data = payload.encode("utf-8", "surrogatepass")
    else:
        raise bad_request("payload_encoding must be string or base64")
    vhost = call.vhost()
    name = "" if call.names[1] == DEFAULT_EXCHANGE else call.names[1]
    account = account_of(vhost)
    user = GUEST if call.context.guard.is_open else call.principal.user
    publisher = VhostPublisher(call.context, call.topology, vhost=vhost, account=account, user=user)
    target = PublishTarget(methods.BasicPublish(name, key, False, False), account)
    properties = publisher.properties(encode_properties(body["properties"]), target)
    if name:
        call.require("send", target.exchange_key, is_queue=False)
    else:
        for each in (key, *properties.keys):
            call.require("send", call.key_of(each), is_queue=True)
    queues = publisher.queues(target, properties)
    refused = bool(queues) and bool(publisher.publish(target, properties, queues, [data]))

    def committed(error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
        else:
            call.answer({"routed": bool(queues) and not refused})

    call.context.after_commit(committed)
