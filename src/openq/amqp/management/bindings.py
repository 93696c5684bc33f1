"""Bindings of the management API."""

from __future__ import annotations

import base64
import json
import zlib
from urllib.parse import quote, unquote

from ...engine.routing import Binding, is_default
from ...names import qualified_name, split_name
from ..arguments import account_of, vhost_of
from ..definitions_export import binding_fields, to_json_value
from .call import Json, ManagementCall, bad_request, first_or_404, not_found
from .exchanges import DEFAULT_EXCHANGE, exchange_in_path
from .queues import queue_in_path, visible_queues
from .routes import route
from .values import arguments_field


def _bindings(call: ManagementCall, vhost: str | None, queue: str | None = None) -> list[Binding]:
    """Including those of the default exchange to every queue."""
    found: list[Binding] = []
    queue_keys = visible_queues(call, vhost) if queue is None else [queue]
    for queue_key in sorted(queue_keys):
        account, name = split_name(queue_key)
        found.append(Binding(qualified_name(account, ""), queue_key, False, name))
    wanted = call.topology.bindings(destination=queue)
    return found + [each for each in wanted if _can_see_binding(call, each, vhost, queue)]


def _list_bindings(call: ManagementCall, found: list[Binding]) -> None:
    call.answer_list(lambda: [_binding_info(each) for each in found])


def _can_see_binding(call: ManagementCall, binding: Binding, vhost: str | None, queue: str | None) -> bool:
    if vhost is not None and split_name(binding.source)[0] != account_of(vhost):
        return False
    if queue is not None and binding.to_exchange:
        return False  # an exchange of that name
    return call.may("peek", binding.destination, is_queue=not binding.to_exchange)


@route("GET", "bindings")
def bindings(call: ManagementCall) -> None:
    _list_bindings(call, _bindings(call, None))


@route("GET", "bindings/{vhost}")
def bindings_of(call: ManagementCall) -> None:
    _list_bindings(call, _bindings(call, call.vhost()))


@route("GET", "queues/{vhost}/{queue}/bindings")
def queue_bindings(call: ManagementCall) -> None:
    queue_key = queue_in_path(call, "peek")
    _list_bindings(call, _bindings(call, call.names[0], queue_key))


@route("GET", "exchanges/{vhost}/{exchange}/bindings/{end}")
def exchange_bindings(call: ManagementCall) -> None:
    vhost = call.names[0]
    exchange_key = exchange_in_path(call, "peek", call.names[1]).name
    end = call.names[2]
    if end not in ("source", "destination"):
        raise not_found()
    if end == "destination":
        found = [each for each in call.topology.bindings(destination=exchange_key) if each.to_exchange]
    elif is_default(exchange_key):
        found = [each for each in _bindings(call, vhost) if is_default(each.source)]
    else:
        found = call.topology.bindings(source=exchange_key)
    _list_bindings(call, [each for each in found if _can_see_binding(call, each, vhost, None)])


def _binding_ends(call: ManagementCall, action: str) -> tuple[str, str, bool]:
    """Source and destination in the path, and whether that is an exchange. Checks the permissions."""
    _, source, kind, destination = call.names[:4]
    if kind not in ("q", "e"):
        raise not_found()
    call.vhost()
    to_exchange = kind == "e"
    source = "" if source == DEFAULT_EXCHANGE else source
    if source:
        call.require(action, call.key_of(source), is_queue=False)
    call.require(action, call.key_of(destination), is_queue=not to_exchange)
    return source, destination, to_exchange


def _matching_bindings(call: ManagementCall, action: str) -> list[Binding]:
    source, destination, to_exchange = _binding_ends(call, action)
    if not source and not to_exchange:
        queue_key = call.key_of(destination)
        return (
            [Binding(call.key_of(""), queue_key, False, destination)]
            if call.topology.has_queue(queue_key)
            else []
        )
    found = call.topology.bindings(call.key_of(source), call.key_of(destination))
    return [each for each in found if each.to_exchange == to_exchange]


@route("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}")
def bindings_between(call: ManagementCall) -> None:
    call.answer([_binding_info(each) for each in _matching_bindings(call, "peek")])


@route("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}")
def binding(call: ManagementCall) -> None:
    found = [_binding_info(each) for each in _matching_bindings(call, "peek")]
    call.answer_object(
        first_or_404([each for each in found if _is_key(each["properties_key"], call.names[4])])
    )


@route("POST", "bindings/{vhost}/e/{source}/{kind}/{destination}")
def bind(call: ManagementCall) -> None:
    source, destination, to_exchange = _binding_ends(call, "manage")
    body = call.body()
    key, arguments = body.get("routing_key", ""), arguments_field(body)
    if not isinstance(key, str):
        raise bad_request("routing_key must be text")
    bind = call.topology.bind_exchange if to_exchange else call.topology.bind_queue
    bind(call.names[0], destination, source, key, arguments)
    made = Binding(call.key_of(source), call.key_of(destination), to_exchange, key, arguments)
    call.answer_changed(True, f"{quote(destination, safe='')}/{quote(_key_of(made), safe='~')}")


@route("DELETE", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}")
def unbind(call: ManagementCall) -> None:
    for each in _matching_bindings(call, "manage"):
        if _is_key(_key_of(each), call.names[4]):
            unbind = call.topology.unbind_exchange if each.to_exchange else call.topology.unbind_queue
            ends = split_name(each.destination)[1], split_name(each.source)[1]
            unbind(call.names[0], *ends, each.key, each.arguments)
            call.answer_changed()
            return
    raise not_found()


def _key_of(binding: Binding) -> str:
    """Identifies a binding among those with the same source and destination, in a URL path."""
    if not binding.key and not binding.arguments:
        return "~"
    key = quote(binding.key, safe="")
    if not binding.arguments:
        return key
    text = json.dumps(to_json_value(binding.arguments), sort_keys=True)
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass")).to_bytes(4, "big")
    return f"{key}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _is_key(key: str, given: str) -> bool:
    """The path is decoded already; clients may have encoded the key once more."""
    return given in (key, unquote(key))


def _binding_info(binding: Binding) -> Json:
    fields = binding_fields(binding)
    source = fields.pop("source")
    vhost = vhost_of(split_name(binding.source)[0])
    return {"source": source, "vhost": vhost, **fields, "properties_key": _key_of(binding)}
