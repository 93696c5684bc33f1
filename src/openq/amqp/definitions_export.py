"""Exports the topology and the users of a server as RabbitMQ definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._version import __version__
from ..auth.store import UserStore
from ..engine.routing import Binding, Exchange, is_default, is_events_exchange
from ..errors import QueueNotFound
from ..names import split_name
from .arguments import account_of, declaration_of, plain_value, vhost_of
from .definitions import RABBITMQ_VERSION
from .exchanges import arguments_of, kind_of
from .permissions import permission_fields, user_fields
from .topology import Topology


def export(topology: Topology, store: UserStore | None, vhost: str | None = None) -> dict[str, Any]:
    """Of the whole broker, or of one vhost. On the loop."""

    def in_vhost(queue_key: str, fields: dict[str, Any]) -> dict[str, Any]:
        if vhost is not None:
            return fields
        name, *rest = fields.items()
        return dict([name, ("vhost", vhost_of(split_name(queue_key)[0])), *rest])

    queues = []
    for queue_key in topology.queues(vhost):
        try:
            declared = declaration_of(topology.broker.get_queue(queue_key).settings)
        except QueueNotFound:
            continue
        if not declared.exclusive:
            fields = {
                "name": split_name(queue_key)[1],
                "durable": declared.durable,
                "auto_delete": declared.auto_delete,
                "arguments": to_json_value(declared.arguments),
            }
            queues.append(in_vhost(queue_key, fields))
    exchanges = [
        in_vhost(each.name, exchange_fields(each))
        for each in topology.exchanges(vhost)
        if not is_default(each.name)
        and not is_events_exchange(each.name)
        and not split_name(each.name)[1].startswith("amq.")
    ]
    bindings = [
        in_vhost(each.source, binding_fields(each))
        for each in topology.bindings()
        if vhost is None or split_name(each.source)[0] == account_of(vhost)
    ]
    policies = [each.to_json() for each in topology.policies.all(vhost)]
    head: dict[str, Any] = {"rabbit_version": RABBITMQ_VERSION}
    if vhost is None:
        users = [] if store is None else store.users()
        head |= {
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "OpenQ",
            "product_version": __version__,
            "users": [user_fields(each) for each in users],
            "vhosts": [{"name": each} for each in topology.vhosts()],
            "permissions": [
                fields for each in users for fields in permission_fields(each, topology.vhosts())
            ],
            "topic_permissions": [],
            "global_parameters": [],
        }
    return {
        **head,
        "parameters": [],
        "policies": policies,
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }


def to_json_value(value: Any) -> Any:
    """Arguments as JSON; bytes become text."""
    value = plain_value(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {name: to_json_value(each) for name, each in value.items()}
    return [to_json_value(each) for each in value] if isinstance(value, list) else value


def exchange_fields(exchange: Exchange) -> dict[str, Any]:
    return {
        "name": split_name(exchange.name)[1],
        "type": kind_of(exchange),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": to_json_value(arguments_of(exchange)),
    }


def binding_fields(binding: Binding) -> dict[str, Any]:
    return {
        "source": split_name(binding.source)[1],
        "destination": split_name(binding.destination)[1],
        "destination_type": "exchange" if binding.to_exchange else "queue",
        "routing_key": binding.key,
        "arguments": to_json_value(binding.arguments),
    }
