"""Queues of the management API, and basic.get over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from ... import amqp_fields
from ...errors import OpenQError
from ...model import Delivery
from ...names import split_name
from ..arguments import declaration_of, queue_type, strip_line_ends, vhost_of
from ..definitions_export import to_json_value
from ..delivery_properties import COUNT_ALWAYS, COUNT_NEVER, delivery_properties, exchange_and_key
from .call import Json, ManagementCall, bad_request, not_found
from .connections import amqp_objects
from .routes import route
from .values import arguments_field, count_field, flag, properties_json

MAX_GET = 1000
MAX_GET_BYTES = 4 * 1024 * 1024  # of bodies in one reply, which are all in memory
GET_LEASE_MS = 30_000
DEPTHS = ("messages", "messages_ready", "messages_unacknowledged")
STATS = ("publish", "deliver", "deliver_get", "ack", "redeliver")
_ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


def visible_queues(call: ManagementCall, vhost: str | None) -> list[str]:
    """Permissions are checked on the loop."""
    return [
        queue_key for queue_key in call.topology.queues(vhost) if call.may("peek", queue_key, is_queue=True)
    ]


def queues_info(call: ManagementCall, queue_keys: Iterable[str]) -> list[Json]:
    found = []
    for queue_key in queue_keys:
        try:
            found.append(queue_info(call, queue_key))
        except OpenQError:
            continue  # deleted meanwhile
    return sorted(found, key=lambda each: (each["vhost"], each["name"]))


def queue_info(call: ManagementCall, queue_key: str) -> Json:
    broker = call.context.broker
    queue = broker.get_queue(queue_key)
    stats = broker.stats(queue_key)
    declared = declaration_of(queue.settings)
    account, name = split_name(queue_key)
    depths = {
        "messages": stats.ready + stats.in_flight,
        "messages_ready": stats.ready,
        "messages_unacknowledged": stats.in_flight,
    }
    counters = stats.counters
    counts = {
        "publish": counters["published"],
        "deliver": counters["delivered"],
        "deliver_get": counters["delivered"],
        "ack": counters["acked"],
        "redeliver": counters["redelivered"],
    }
    with_rates = call.api.rates.of(queue_key, {**depths, **counts})
    depth_names = [each for name in DEPTHS for each in (name, f"{name}_details")]
    stat_names = [each for name in STATS for each in (name, f"{name}_details")]
    return {
        "name": name,
        "vhost": vhost_of(account),
        "type": queue_type(declared.arguments),
        "durable": declared.durable,
        "auto_delete": declared.auto_delete,
        "exclusive": declared.exclusive,
        "arguments": to_json_value(declared.arguments),
        "policy": declared.policy,
        "operator_policy": None,
        "effective_policy_definition": to_json_value(declared.definition or {}),
        "node": call.api.node,
        "state": "running",
        "consumers": _consumers_of(call, queue_key),
        **{each: with_rates[each] for each in depth_names},
        "messages_persistent": depths["messages"],
        "messages_delayed": stats.delayed,
        "message_bytes": stats.waiting_bytes,
        "message_bytes_ready": stats.waiting_bytes,
        "message_bytes_persistent": stats.waiting_bytes,
        "message_stats": {each: with_rates[each] for each in stat_names},
    }


def _consumers_of(call: ManagementCall, queue_key: str) -> int:
    server = call.context.amqp
    return 0 if server is None else server.consumers_of(queue_key)


@route("GET", "queues")
def queues(call: ManagementCall) -> None:
    call.api.rates.retain(["", *call.topology.queues()])
    visible = visible_queues(call, None)
    call.answer_list(lambda: queues_info(call, visible))


@route("GET", "queues/{vhost}")
def queues_of(call: ManagementCall) -> None:
    visible = visible_queues(call, call.vhost())
    call.answer_list(lambda: queues_info(call, visible))


def queue_in_path(call: ManagementCall, action: str) -> str:
    """The key of the queue in the path. Raises 404, or 401 if the caller may not do this."""
    call.vhost()
    queue_key = call.key_of(call.names[1])
    call.require(action, queue_key, is_queue=True)
    if not call.topology.has_queue(queue_key):
        raise not_found()
    return queue_key


@route("GET", "queues/{vhost}/{queue}")
def queue(call: ManagementCall) -> None:
    queue_key = queue_in_path(call, "peek")
    vhost, name = call.names
    consumers = [
        each
        for each in amqp_objects(call, "consumers")
        if each.get("queue") == {"name": name, "vhost": vhost}
    ]
    extra = {"consumer_details": consumers, "incoming": [], "deliveries": []}
    call.answer_from_thread(lambda: {**queue_info(call, queue_key), **extra})


@route("PUT", "queues/{vhost}/{queue}")
def put_queue(call: ManagementCall) -> None:
    body = call.body()
    vhost, name = call.vhost("vhost_not_found"), strip_line_ends(call.names[1])
    queue_key = call.key_of(name)
    call.require("manage", queue_key, is_queue=True)
    arguments = arguments_field(body)
    call.require_publish(arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key"))
    is_new = not call.topology.has_queue(queue_key)
    call.topology.declare_queue(
        vhost,
        name,
        durable=flag(body, "durable"),
        auto_delete=flag(body, "auto_delete"),
        arguments=arguments,
    )
    call.answer_changed(is_new)


@route("DELETE", "queues/{vhost}/{queue}")
def delete_queue(call: ManagementCall) -> None:
    queue_in_path(call, "manage")
    vhost, name = call.names
    call.topology.delete_queue(
        vhost,
        name,
        None,
        if_unused=call.query.get("if-unused") == "true",
        if_empty=call.query.get("if-empty") == "true",
    )
    call.answer_changed()


@route("DELETE", "queues/{vhost}/{queue}/contents")
def purge_queue(call: ManagementCall) -> None:
    queue_in_path(call, "manage")
    call.topology.purge_queue(call.names[0], call.names[1], None)
    call.answer_changed()


@route("POST", "queues/{vhost}/{queue}/get")
def get_messages(call: ManagementCall) -> None:
    queue_key = queue_in_path(call, "receive")
    body = call.required("count", "ackmode", "encoding")
    mode, encoding = body["ackmode"], body["encoding"]
    if mode not in _ACK_MODES:
        raise bad_request(f"ackmode must be one of {', '.join(_ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request("encoding must be auto or base64")
    count, cut = count_field(body, "count", 1), count_field(body, "truncate", None)
    call.topology.check_access(call.names[0], call.names[1], None)
    call.topology.mark_used(queue_key)
    broker = call.context.broker

    def work() -> list[Json]:
        deliveries = broker.receive(queue_key, min(count or 1, MAX_GET), GET_LEASE_MS, "management")
        deliveries, rest = _limit_bytes(deliveries)
        broker.release(queue_key, [(each.entry.seq, each.number) for each in rest])
        left = broker.waiting(queue_key).ready
        deliveries = broker.load(deliveries)
        is_quorum = queue_type(declaration_of(broker.settings(queue_key)).arguments) == "quorum"
        count_mode = COUNT_ALWAYS if is_quorum else COUNT_NEVER
        found: list[Json] = []
        for at, delivery in enumerate(deliveries):
            entry = delivery.entry
            payload = entry.body or b""
            exchange, key = exchange_and_key(entry, call.names[1])
            text, how = _payload(payload if cut is None else payload[:cut], encoding)
            found.append(
                {
                    "payload_bytes": len(payload),
                    "redelivered": delivery.count > 1,
                    "exchange": exchange,
                    "routing_key": key,
                    "message_count": left + len(deliveries) - 1 - at,
                    "properties": properties_json(
                        amqp_fields.decode(delivery_properties(broker, delivery, count_mode))
                    ),
                    "payload": text,
                    "payload_encoding": how,
                }
            )
        receipts = [(each.entry.seq, each.number) for each in deliveries]
        if mode.endswith("requeue_true"):
            broker.nack(queue_key, receipts, 0)
        elif mode == "ack_requeue_false":
            broker.ack(queue_key, receipts)
        else:
            broker.reject(queue_key, receipts)
        broker.sync()
        return found

    call.answer_from_thread(work)


def _limit_bytes(deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """The deliveries for one reply, at least one; and the rest."""
    total = 0
    for at, delivery in enumerate(deliveries):
        total += delivery.entry.size
        if total > MAX_GET_BYTES and at:
            return deliveries[:at], deliveries[at:]
    return deliveries, []


def _payload(data: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return data.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(data).decode(), "base64"
