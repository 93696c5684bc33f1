"""Exchanges and bindings: how one message reaches many queues."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta, field

from ..documents.drafts import make_draft
from ..documents.values import read_attributes
from ..engine.routing import Binding, Exchange
from ..errors import InvalidSetting
from .call import RestCall
from .message_schemas import (
    BindingChange,
    BindingList,
    BindingListing,
    BindingView,
    Changed,
    ExchangeChange,
    ExchangeList,
    ExchangeView,
    Id,
    IfUnused,
    Routed,
    RoutedMessage,
)
from .problems import Problem
from .routes import route
from .schemas import ReplyBody, RequestBody
from .views import attributes_of

_MAX_ARGUMENT_DEPTH = 16


def _check_arguments(arguments: dict[str, Any], where: str = "arguments", depth: int = 0) -> None:
    """Arguments are compared: plain values only, limited in depth."""
    if depth > _MAX_ARGUMENT_DEPTH:
        raise InvalidSetting(f"{where} are nested too deeply")
    for name, value in arguments.items():
        if not isinstance(name, str):
            raise InvalidSetting(f"{where}: the key {name!r} is not text")
        _check_argument(value, f"{where}[{name!r}]", depth + 1)


def _check_argument(value: Any, where: str, depth: int) -> None:
    if isinstance(value, dict):
        _check_arguments(value, where, depth)
    elif isinstance(value, list):
        if depth > _MAX_ARGUMENT_DEPTH:
            raise InvalidSetting(f"{where} is nested too deeply")
        for each in value:
            _check_argument(each, where, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidSetting(f"{where} must be a finite number")
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidSetting(f"{where} is too large a number")
    elif value is not None and not isinstance(value, str | bool | bytes):
        raise InvalidSetting(f"{where} must be text, a number, a list or a dict")


def _view(call: RestCall, exchange: Exchange) -> ExchangeView:
    return ExchangeView(
        name=call.short_name(exchange.name),
        kind=exchange.kind,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        alternate=None if exchange.alternate is None else call.short_name(exchange.alternate),
        arguments=attributes_of(exchange.arguments, call.format),
    )


@route("GET", "exchanges", permission="peek", scope="each", summary="List exchanges", reply=ExchangeList)
def list_exchanges(call: RestCall) -> None:
    shown = [
        _view(call, each)
        for each in call.broker.exchanges.list_exchanges()
        if each.name and call.is_own(each.name) and call.may("peek", call.short_name(each.name))
    ]
    call.answer(ExchangeList(exchanges=sorted(shown, key=lambda each: each.name)))


@route("GET", "exchanges/{exchange}", permission="peek", summary="Show an exchange", reply=ExchangeView)
def show_exchange(call: RestCall) -> None:
    call.answer(_view(call, call.broker.exchanges.exchange(call.qualified(call.args[0], "exchange"))))


@route(
    "PUT",
    "exchanges/{exchange}",
    permission="manage",
    summary="Declare an exchange",
    request=ExchangeChange,
    reply=ExchangeView,
    status=(200, 201),
)
def put_exchange(call: RestCall) -> None:
    body = call.body
    if body.alternate is not None:
        call.require_target(body.alternate)
    _check_arguments(body.arguments)
    exchange = Exchange(
        name=call.qualified(call.args[0], "exchange"),
        kind=body.kind,
        durable=body.durable,
        auto_delete=body.auto_delete,
        internal=body.internal,
        alternate=call.queue_key_or_none(body.alternate, "exchange"),
        arguments=body.arguments,
    )
    new = call.broker.exchanges.declare_exchange(exchange)
    call.after_commit(_view(call, call.broker.exchanges.exchange(exchange.name)), 201 if new else 200)


@route(
    "DELETE",
    "exchanges/{exchange}",
    permission="manage",
    summary="Delete an exchange",
    reply=Id,
    query=IfUnused,
)
def delete_exchange(call: RestCall) -> None:
    call.broker.exchanges.delete_exchange(call.qualified(call.args[0], "exchange"), call.query.if_unused)
    call.after_commit(Id(id=call.args[0]))


@route(
    "POST",
    "exchanges/{exchange}/publish",
    permission="send",
    summary="Publish through an exchange",
    request=RoutedMessage,
    reply=Routed,
    status=(201,),
)
def publish_to_exchange(call: RestCall) -> None:
    name = call.qualified(call.args[0], "exchange")
    if call.broker.exchanges.exchange(name).internal:
        raise InvalidSetting(f"exchange {call.args[0]!r} is internal: only other exchanges lead to it")
    draft = make_draft(call.body, call.sent)
    message_id, queues = call.broker.exchanges.route(name, call.body.routing_key, draft)
    call.after_commit(Routed(id=message_id, queues=[call.short_name(queue) for queue in queues]), 201)


class RouteTest(RequestBody, kw_only=True):
    """A message as far as routes depend on it: its key, and its attributes for `headers` exchanges."""

    routing_key: Annotated[str, Meta(max_length=255)] = ""
    attributes: dict[str, Any] = field(default_factory=dict)


class RouteResult(ReplyBody, kw_only=True):
    queues: list[str]  # that the caller may see, nearest first
    others: int  # further queues
    missing: list[str]  # bound, but deleted since


@route(
    "POST",
    "exchanges/{exchange}/route",
    permission="peek",
    summary="Where a message would go; nothing is published",
    request=RouteTest,
    reply=RouteResult,
)
def test_route(call: RestCall) -> None:
    broker, body = call.broker, call.body
    name = call.qualified(call.args[0], "exchange")
    attributes = read_attributes(body.attributes, call.sent.is_json)
    names = broker.exchanges.router.route(name, body.routing_key, attributes)
    known = [each for each in names if broker.find_queue(each) is not None]
    shown = [each for each in known if call.may_peek(each)]
    call.answer(
        RouteResult(
            queues=[call.short_name(each) for each in shown],
            others=len(known) - len(shown),
            missing=[call.short_name(each) for each in names if each not in known],
        )
    )


# -- bindings -----------------------------------------------------------------------------------


@route(
    "GET",
    "bindings",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="List bindings",
    reply=BindingList,
    query=BindingListing,
)
def list_bindings(call: RestCall) -> None:
    query = call.query
    source = None if query.source is None else call.qualified(query.source, "exchange")
    destination = None if query.destination is None else call.qualified(query.destination)
    bindings = call.broker.exchanges.bindings(source, destination)
    call.answer(
        BindingList(
            bindings=[
                BindingView(
                    source=call.short_name(each.source),
                    destination=call.short_name(each.destination),
                    to_exchange=each.to_exchange,
                    key=each.key,
                    arguments=attributes_of(each.arguments, call.format),
                )
                for each in bindings
                if call.is_own(each.source)
                and call.may("peek", call.short_name(each.source), ())
                and call.may("peek", call.short_name(each.destination), () if each.to_exchange else None)
            ]
        )
    )


def _binding(call: RestCall) -> Binding:
    """The caller must be allowed to manage both ends: a binding reads from one and writes to the other."""
    body = call.body
    call.require("manage", body.source, ())
    call.require("manage", body.destination, () if body.to_exchange else None)
    _check_arguments(body.arguments)
    return Binding(
        source=call.qualified(body.source, "exchange"),
        destination=call.qualified(body.destination, "exchange" if body.to_exchange else "queue"),
        to_exchange=body.to_exchange,
        key=body.key,
        arguments=body.arguments,
    )


@route(
    "POST",
    "bindings",
    permission="manage",
    scope="body",
    sqs_actions=("SetQueueAttributes",),
    summary="Bind",
    request=BindingChange,
    reply=Changed,
    status=(200, 201),
)
def bind(call: RestCall) -> None:
    binding = _binding(call)
    bridge = call.context.event_bridge
    bridge.prepare(binding)
    new = call.broker.exchanges.bind(binding)
    bridge.bound(binding)
    call.after_commit(Changed(changed=new), 201 if new else 200)


@route(
    "DELETE",
    "bindings",
    permission="manage",
    scope="body",
    sqs_actions=("SetQueueAttributes",),
    summary="Unbind",
    request=BindingChange,
    reply=Changed,
)
def unbind(call: RestCall) -> None:
    if not call.broker.exchanges.unbind(_binding(call)):
        raise Problem("binding_not_found", "the binding does not exist")
    call.after_commit(Changed(changed=True))
