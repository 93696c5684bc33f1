"""RabbitMQ's management HTTP API, as far as tools and scripts use it: `/api/...` on the HTTP port.

Names and shapes are RabbitMQ's. What RabbitMQ knows and OpenQ has no counterpart for is left out rather than
made up. Lists are put together in a thread: ten thousand queues must not keep messages waiting.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import socket
import threading
import zlib
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote

from .. import amqp_fields as properties_of
from .._version import __version__
from ..amqp_fields import AmqpProperties, MalformedProperties, Timestamp
from ..auth.errors import AuthenticationFailed
from ..auth.guard import Principal, read_basic
from ..engine.routing import Binding, Exchange, is_default
from ..errors import OpenQError
from ..model import Delivery
from ..names import qualified_name, split_name
from ..server.context import ServerContext
from ..server.http import HttpRequest
from . import definitions, management_users, methods
from .arguments import account_of, declaration_of, queue_type, vhost_of
from .definitions import RABBITMQ_VERSION, ImportReport
from .definitions_export import binding_fields, exchange_fields, export, to_json_value
from .definitions_import import apply_topology, apply_users
from .delivery_properties import COUNT_ALWAYS, COUNT_NEVER, delivery_properties, exchange_and_key
from .exchanges import DELAYED, KINDS, policy_of
from .management_call import ROUTES as ROUTES  # complete once this module is loaded
from .management_call import (
    Json,
    ManagementCall,
    ManagementError,
    Rates,
    bad_request,
    field_of,
    find_route,
    first_or_404,
    not_found,
    paginate,
    route,
)
from .policies import InvalidAmqpPolicy, Policy
from .publishing import PublishTarget, VhostPublisher
from .topology import Topology, strip_line_ends

log = logging.getLogger("openq.management")

PREFIX = "/api/"
DEFAULT_EXCHANGE = "amq.default"  # in paths, where an empty name cannot be
GUEST = "guest"
MAX_GET = 1000
MAX_GET_BYTES = 4 * 1024 * 1024  # of their bodies: all are in memory at once
GET_LEASE_MS = 30_000


# -- the door -------------------------------------------------------------------------------------

_DEPTHS = ("messages", "messages_ready", "messages_unacknowledged")
_STATS = ("publish", "deliver", "deliver_get", "ack", "redeliver")


class ManagementApi:
    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self.topology = topology
        self.node = f"openq@{socket.gethostname()}"
        # Set by the server, once it knows: protocol -> port.
        self.ports: dict[str, int] = {}
        self._rates = Rates(context.now_ms)

    def handle(self, request: HttpRequest) -> None:
        call = ManagementCall(self, request)
        try:
            guard = self.context.guard
            header = request.header(b"authorization") or b""
            scheme, _, value = header.partition(b" ")
            is_basic = scheme.lower() == b"basic"
            if guard.is_open:
                # As at AMQP's own door: whoever gives a name gives this one.
                if is_basic and read_basic(value) != (GUEST, GUEST):
                    raise AuthenticationFailed
                self._dispatch(call, guard.open_principal())
            elif scheme.lower() == b"bearer":
                self._dispatch(call, guard.bearer(value.strip().decode("latin-1"), request.peer))
            elif not is_basic:
                raise AuthenticationFailed
            else:
                user, password = read_basic(value)
                known = guard.cached_login(user, password, request.peer)
                if known is not None:
                    self._dispatch(call, known)
                    return

                def signed_in(principal: Principal | None, error: BaseException | None) -> None:
                    try:
                        if error is not None:
                            raise error
                        assert principal is not None
                        self._dispatch(call, principal)
                    except Exception as problem:
                        call.fail(problem)

                # Slow on purpose: not on the loop.
                self.context.check(lambda: guard.basic(user, password, request.peer), signed_in)
        except Exception as error:
            call.fail(error)

    def _dispatch(self, call: ManagementCall, principal: Principal) -> None:
        call.principal = principal
        request = call.request
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path[len(PREFIX) :].rstrip("/")
        parts = [unquote(part) for part in path.split("/")]
        found = find_route(method, parts)
        if found is None:
            if any(find_route(other, parts) for other in ("GET", "PUT", "POST", "DELETE")):
                raise ManagementError(405, "method_not_allowed", f"{method} is not for {path[:200]}")
            raise not_found()
        handler, call.names = found
        try:
            handler(self, call)
        except Exception as error:
            call.fail(error)

    # -- what a queue is like

    def _amqp_objects(self, what: str) -> list[Json]:
        """What only the AMQP door knows."""
        server = self.context.amqp
        found: list[Json] = [] if server is None else getattr(server, what)()
        return found if what == "consumers" else [{**each, "node": self.node} for each in found]

    def _consumers_of(self, queue_key: str) -> int:
        server = self.context.amqp
        return 0 if server is None else server.consumers_of(queue_key)

    def _visible_queues(self, call: ManagementCall, vhost: str | None) -> list[str]:
        """On the loop, as everything that asks who may do what."""
        return [
            queue_key
            for queue_key in self.topology.queues(vhost)
            if call.may("peek", queue_key, is_queue=True)
        ]

    def _queues(self, queue_keys: Iterable[str]) -> list[Json]:
        found = []
        for queue_key in queue_keys:
            try:
                found.append(self._queue_info(queue_key))
            except OpenQError:
                continue  # deleted meanwhile
        return sorted(found, key=lambda each: (each["vhost"], each["name"]))

    def _queue_info(self, queue_key: str) -> Json:
        broker = self.context.broker
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
        with_rates = self._rates.of(queue_key, {**depths, **counts})
        depth_names = [each for name in _DEPTHS for each in (name, f"{name}_details")]
        stat_names = [each for name in _STATS for each in (name, f"{name}_details")]
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
            "node": self.node,
            "state": "running",
            "consumers": self._consumers_of(queue_key),
            **{each: with_rates[each] for each in depth_names},
            "messages_persistent": depths["messages"],
            "messages_delayed": stats.delayed,
            "message_bytes": stats.waiting_bytes,
            "message_bytes_ready": stats.waiting_bytes,
            "message_bytes_persistent": stats.waiting_bytes,
            "message_stats": {each: with_rates[each] for each in stat_names},
        }

    # -- the server

    @route("GET", "overview")
    def overview(self, call: ManagementCall) -> None:
        call.require_monitoring()
        live = {what: len(self._amqp_objects(what)) for what in ("channels", "connections", "consumers")}
        visible = self._visible_queues(call, None)

        def work() -> Json:
            queues = self._queues(visible)
            totals = {name: sum(each[name] for each in queues) for name in _DEPTHS}
            stats = {name: sum(each["message_stats"][name] for each in queues) for name in _STATS}
            with_rates = self._rates.of("", {**totals, **stats})
            return {
                "management_version": RABBITMQ_VERSION,
                "rates_mode": "basic",
                "product_name": "OpenQ",
                "product_version": __version__,
                "rabbitmq_version": RABBITMQ_VERSION,
                "cluster_name": "openq",
                "exchange_types": _exchange_types(),
                "disable_stats": False,
                "enable_queue_totals": False,
                "message_stats": {
                    each: with_rates[each] for name in _STATS for each in (name, f"{name}_details")
                },
                "queue_totals": {
                    each: with_rates[each] for name in _DEPTHS for each in (name, f"{name}_details")
                },
                "object_totals": {
                    **live,
                    "exchanges": len(self.topology.exchanges()),
                    "queues": len(queues),
                },
                "node": self.node,
                "listeners": [
                    {
                        "node": self.node,
                        "protocol": protocol,
                        "ip_address": self.context.config.host,
                        "port": port,
                        "socket_opts": {},
                    }
                    for protocol, port in self.ports.items()
                ],
                "contexts": [],
            }

        call.answer_from_thread(work)

    @route("GET", "nodes")
    def nodes(self, call: ManagementCall) -> None:
        call.require_monitoring()
        sockets, is_admin = self._sockets(), call.may_admin()
        call.answer_from_thread(lambda: [self._node_info(sockets, is_admin)])

    @route("GET", "nodes/*")
    def node_named(self, call: ManagementCall) -> None:
        call.require_monitoring()
        if call.names[0] != self.node:
            raise not_found()
        sockets, is_admin = self._sockets(), call.may_admin()
        call.answer_from_thread(lambda: self._node_info(sockets, is_admin))

    def _sockets(self) -> int:
        listener = self.context.listener
        return len(self._amqp_objects("connections")) + (0 if listener is None else len(listener.connections))

    def _node_info(self, sockets: int, is_admin: bool) -> Json:
        data = self.context.config.path
        disk = shutil.disk_usage(data or "/")
        health = self.context.broker.health()
        pages = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[1]) * pages
        files = os.sysconf("SC_OPEN_MAX")
        return {
            "name": self.node,
            "type": "disc",
            "running": True,
            "uptime": self.context.now_ms() - self.context.started_ms,
            "os_pid": str(os.getpid()),
            "processors": os.cpu_count() or 1,
            "mem_used": used,
            "mem_limit": os.sysconf("SC_PHYS_PAGES") * pages,
            "mem_alarm": False,
            "disk_free": disk.free,
            "disk_free_limit": 0,
            "disk_free_alarm": health.disk_full,
            "fd_used": len(os.listdir("/proc/self/fd")),
            "fd_total": files,
            "sockets_used": sockets,
            "sockets_total": self.context.config.max_connections,
            "proc_used": threading.active_count(),
            "run_queue": 0,
            "partitions": [],
            "rates_mode": "basic",
            "db_dir": (data or "") if is_admin else "",  # a path of the server
            "config_files": [],
            "log_files": [],
            "enabled_plugins": [],
            "applications": [{"name": "openq", "description": "OpenQ", "version": __version__}],
            "exchange_types": _exchange_types(),
            "auth_mechanisms": [
                {"name": name, "description": f"SASL {name}", "enabled": True}
                for name in ("PLAIN", "AMQPLAIN")
            ],
            "contexts": [],
        }

    @route("GET", "whoami")
    def whoami(self, call: ManagementCall) -> None:
        name = GUEST if self.context.guard.is_open else call.principal.user
        call.answer({"name": name, "tags": ["administrator" if call.may_admin() else "management"]})

    @route("GET", "cluster-name")
    def cluster_name(self, call: ManagementCall) -> None:
        call.answer({"name": "openq"})

    @route("GET", "extensions")
    @route("GET", "parameters")
    @route("GET", "global-parameters")
    @route("GET", "operator-policies")
    @route("GET", "topic-permissions")
    @route("GET", "feature-flags")
    @route("GET", "vhost-limits")
    def nothing(self, call: ManagementCall) -> None:
        """There are none of these here."""
        call.answer([])

    # -- health

    @route("GET", "healthchecks/node")
    @route("GET", "healthchecks/node/*")
    @route("GET", "health/checks/alarms")
    @route("GET", "health/checks/local-alarms")
    @route("GET", "health/checks/virtual-hosts")
    @route("GET", "health/checks/is-in-service")
    @route("GET", "health/checks/node-is-mirror-sync-critical")
    @route("GET", "health/checks/node-is-quorum-critical")
    @route("GET", "health/checks/certificate-expiration/*/*")
    def health(self, call: ManagementCall) -> None:
        health = self.context.broker.health()
        if health.ok and not health.disk_full:
            call.answer({"status": "ok"})
        else:
            call.answer({"status": "failed", "reason": health.detail}, 503)

    @route("GET", "health/checks/port-listener/*")
    def port_listener(self, call: ManagementCall) -> None:
        ports = sorted(self.ports.values())
        if call.names[0] in map(str, ports):
            call.answer({"status": "ok", "port": int(call.names[0])})
            return
        missing = call.names[0]
        failed = {"status": "failed", "reason": "No active listener", "missing": missing, "ports": ports}
        call.answer(failed, 503)

    @route("GET", "health/checks/protocol-listener/*")
    def protocol_listener(self, call: ManagementCall) -> None:
        wanted = {"amqp091": "amqp", "amqps": "amqp/ssl"}.get(call.names[0], call.names[0])
        if wanted in self.ports:
            call.answer({"status": "ok", "protocol": call.names[0]})
            return
        failed = {
            "status": "failed",
            "reason": "No active listener",
            "missing": call.names[0],
            "protocols": sorted(self.ports),
        }
        call.answer(failed, 503)

    @route("GET", "aliveness-test/*")
    def aliveness(self, call: ManagementCall) -> None:
        call.vhost()
        self.health(call)

    # -- vhosts

    def _vhost_info(self, vhost: str, queue_keys: Iterable[str]) -> Json:
        depths = dict.fromkeys(_DEPTHS, 0)
        for queue_key in queue_keys:
            try:
                stats = self.context.broker.stats(queue_key)
            except OpenQError:
                continue
            depths["messages"] += stats.ready + stats.in_flight
            depths["messages_ready"] += stats.ready
            depths["messages_unacknowledged"] += stats.in_flight
        description = "Default virtual host" if vhost == "/" else ""
        return {
            "name": vhost,
            "description": description,
            "tags": [],
            "metadata": {"description": description, "tags": []},
            "default_queue_type": "classic",
            "tracing": False,
            "cluster_state": {self.node: "running"},
            **depths,
        }

    @route("GET", "vhosts")
    def vhosts(self, call: ManagementCall) -> None:
        visible = {
            each: self._visible_queues(call, each)
            for each in self.topology.vhosts()
            if call.can_see_vhost(each)
        }
        call.answer_list(
            lambda: [self._vhost_info(vhost, queue_keys) for vhost, queue_keys in visible.items()]
        )

    @route("GET", "vhosts/*")
    def vhost(self, call: ManagementCall) -> None:
        vhost = call.vhost()
        visible = self._visible_queues(call, vhost)
        call.answer_from_thread(lambda: self._vhost_info(vhost, visible))

    @route("PUT", "vhosts/*")
    def put_vhost(self, call: ManagementCall) -> None:
        call.require_admin()
        call.answer_changed(self.topology.add_vhost(call.names[0]))

    @route("DELETE", "vhosts/*")
    def delete_vhost(self, call: ManagementCall) -> None:
        call.require_admin()
        vhost = call.names[0]
        if not self.topology.remove_vhost(vhost):
            raise not_found()

        def work() -> None:
            management_users.forget_vhost(self.context.guard.store, vhost)
            self.topology.policies.save()

        call.run_in_thread(work, lambda _: call.answer_changed())

    # -- queues

    @route("GET", "queues")
    def queues(self, call: ManagementCall) -> None:
        self._rates.retain(["", *self.topology.queues()])
        visible = self._visible_queues(call, None)
        call.answer_list(lambda: self._queues(visible))

    @route("GET", "queues/*")
    def queues_of(self, call: ManagementCall) -> None:
        visible = self._visible_queues(call, call.vhost())
        call.answer_list(lambda: self._queues(visible))

    def _queue_of(self, call: ManagementCall, action: str) -> str:
        """The engine's name of the queue in the path, if it is there and the caller's to do this to."""
        call.vhost()
        queue_key = call.key_of(call.names[1])
        call.require(action, queue_key, is_queue=True)
        if not self.topology.has_queue(queue_key):
            raise not_found()
        return queue_key

    @route("GET", "queues/*/*")
    def queue(self, call: ManagementCall) -> None:
        queue_key = self._queue_of(call, "peek")
        vhost, name = call.names
        consumers = [
            each
            for each in self._amqp_objects("consumers")
            if each.get("queue") == {"name": name, "vhost": vhost}
        ]
        extra = {"consumer_details": consumers, "incoming": [], "deliveries": []}
        call.answer_from_thread(lambda: {**self._queue_info(queue_key), **extra})

    @route("PUT", "queues/*/*")
    def put_queue(self, call: ManagementCall) -> None:
        body = call.body()
        vhost, name = call.vhost("vhost_not_found"), strip_line_ends(call.names[1])
        queue_key = call.key_of(name)
        call.require("manage", queue_key, is_queue=True)
        arguments = _arguments(body)
        call.require_publish(
            arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
        )
        is_new = not self.topology.has_queue(queue_key)
        self.topology.declare_queue(
            vhost,
            name,
            durable=_flag(body, "durable"),
            auto_delete=_flag(body, "auto_delete"),
            arguments=arguments,
        )
        call.answer_changed(is_new)

    @route("DELETE", "queues/*/*")
    def delete_queue(self, call: ManagementCall) -> None:
        self._queue_of(call, "manage")
        vhost, name = call.names
        self.topology.delete_queue(
            vhost,
            name,
            None,
            if_unused=call.query.get("if-unused") == "true",
            if_empty=call.query.get("if-empty") == "true",
        )
        call.answer_changed()

    @route("DELETE", "queues/*/*/contents")
    def purge_queue(self, call: ManagementCall) -> None:
        self._queue_of(call, "manage")
        self.topology.purge_queue(call.names[0], call.names[1], None)
        call.answer_changed()

    @route("POST", "queues/*/*/get")
    def get_messages(self, call: ManagementCall) -> None:
        queue_key = self._queue_of(call, "receive")
        body = call.required("count", "ackmode", "encoding")
        mode, encoding = body["ackmode"], body["encoding"]
        if mode not in _ACK_MODES:
            raise bad_request(f"ackmode must be one of {', '.join(_ACK_MODES)}")
        if encoding not in ("auto", "base64"):
            raise bad_request("encoding must be auto or base64")
        count, cut = _count(body, "count", 1), _count(body, "truncate", None)
        self.topology.check_access(call.names[0], call.names[1], None)
        self.topology.mark_used(queue_key)
        broker = self.context.broker

        def work() -> list[Json]:
            deliveries = broker.receive(queue_key, min(count or 1, MAX_GET), GET_LEASE_MS, "management")
            deliveries, rest = _limit_bytes(deliveries)
            broker.release(queue_key, [(each.entry.seq, each.number) for each in rest])
            left = broker.ready_count(queue_key)
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
                        "properties": _properties_json(
                            properties_of.decode(delivery_properties(broker, delivery, count_mode))
                        ),
                        "payload": text,
                        "payload_encoding": how,
                    }
                )
            receipts = [(each.entry.seq, each.number) for each in deliveries]
            if mode.endswith("requeue_true"):
                broker.nack_many(queue_key, receipts)
            elif mode == "ack_requeue_false":
                broker.ack(queue_key, receipts)
            else:
                broker.reject_many(queue_key, receipts)
            broker.sync()
            return found

        call.answer_from_thread(work)

    # -- exchanges

    def _exchange_info(self, exchange: Exchange) -> Json:
        found = {**exchange_fields(exchange), "vhost": vhost_of(split_name(exchange.name)[0])}
        policy = policy_of(exchange)
        if policy is not None:
            found["policy"] = policy
        return found

    def _exchanges(self, call: ManagementCall, vhost: str | None) -> list[Exchange]:
        exchanges = self.topology.exchanges(vhost)
        known = {each.name for each in exchanges}
        vhosts = self.topology.vhosts() if vhost is None else [vhost]
        # The default exchanges of other accounts are nowhere written down.
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
    def exchanges(self, call: ManagementCall) -> None:
        found = self._exchanges(call, None)
        call.answer_list(lambda: [self._exchange_info(each) for each in found])

    @route("GET", "exchanges/*")
    def exchanges_of(self, call: ManagementCall) -> None:
        found = self._exchanges(call, call.vhost())
        call.answer_list(lambda: [self._exchange_info(each) for each in found])

    def _exchange_of(self, call: ManagementCall, action: str, name: str) -> Exchange:
        vhost = call.vhost()
        name = "" if name == DEFAULT_EXCHANGE else name
        exchange_key = call.key_of(name)
        if name:
            call.require(action, exchange_key, is_queue=False)
        if not self.topology.has_exchange(exchange_key):
            raise not_found()
        return self.topology.exchange(vhost, name)

    @route("GET", "exchanges/*/*")
    def exchange(self, call: ManagementCall) -> None:
        found = self._exchange_of(call, "peek", call.names[1])
        call.answer_object({**self._exchange_info(found), "incoming": [], "outgoing": []})

    @route("PUT", "exchanges/*/*")
    def put_exchange(self, call: ManagementCall) -> None:
        body = call.body()
        vhost, name = call.vhost("vhost_not_found"), strip_line_ends(call.names[1])
        call.require("manage", call.key_of(name), is_queue=False)
        arguments = _arguments(body)
        call.require_publish(arguments.get("alternate-exchange"))
        kind = body.get("type", "direct")
        if not isinstance(kind, str):
            raise bad_request("type must be text")
        is_new = not self.topology.has_exchange(call.key_of(name))
        self.topology.declare_exchange(
            vhost,
            name,
            kind,
            durable=_flag(body, "durable"),
            auto_delete=_flag(body, "auto_delete"),
            internal=_flag(body, "internal"),
            arguments=arguments,
        )
        call.answer_changed(is_new)

    @route("DELETE", "exchanges/*/*")
    def delete_exchange(self, call: ManagementCall) -> None:
        self._exchange_of(call, "manage", call.names[1])
        vhost, name = call.names
        self.topology.delete_exchange(vhost, name, call.query.get("if-unused") == "true")
        call.answer_changed()

    @route("POST", "exchanges/*/*/publish")
    def publish(self, call: ManagementCall) -> None:
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
                raise bad_request("the payload is no base64") from None
        elif body["payload_encoding"] == "string":
            data = payload.encode("utf-8", "surrogatepass")
        else:
            raise bad_request("payload_encoding must be string or base64")
        vhost = call.vhost()
        name = "" if call.names[1] == DEFAULT_EXCHANGE else call.names[1]
        account = account_of(vhost)
        user = GUEST if self.context.guard.is_open else call.principal.user
        publisher = VhostPublisher(self.context, self.topology, vhost=vhost, account=account, user=user)
        target = PublishTarget(methods.BasicPublish(name, key, False, False), account)
        properties = publisher.properties(_encode_properties(body["properties"]), target)
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

        self.context.after_commit(committed)

    # -- bindings

    def _bindings(self, call: ManagementCall, vhost: str | None, queue: str | None = None) -> list[Binding]:
        """With those of the default exchange, which leads to every queue."""
        found: list[Binding] = []
        queue_keys = self._visible_queues(call, vhost) if queue is None else [queue]
        for queue_key in sorted(queue_keys):
            account, name = split_name(queue_key)
            found.append(Binding(qualified_name(account, ""), queue_key, False, name))
        wanted = self.topology.bindings(destination=queue)
        return found + [each for each in wanted if self._can_see_binding(call, each, vhost, queue)]

    def _list_bindings(self, call: ManagementCall, found: list[Binding]) -> None:
        call.answer_list(lambda: [_binding_info(each) for each in found])

    def _can_see_binding(
        self, call: ManagementCall, binding: Binding, vhost: str | None, queue: str | None
    ) -> bool:
        if vhost is not None and split_name(binding.source)[0] != account_of(vhost):
            return False
        if queue is not None and binding.to_exchange:
            return False  # an exchange of that name
        return call.may("peek", binding.destination, is_queue=not binding.to_exchange)

    @route("GET", "bindings")
    def bindings(self, call: ManagementCall) -> None:
        self._list_bindings(call, self._bindings(call, None))

    @route("GET", "bindings/*")
    def bindings_of(self, call: ManagementCall) -> None:
        self._list_bindings(call, self._bindings(call, call.vhost()))

    @route("GET", "queues/*/*/bindings")
    def queue_bindings(self, call: ManagementCall) -> None:
        queue_key = self._queue_of(call, "peek")
        self._list_bindings(call, self._bindings(call, call.names[0], queue_key))

    @route("GET", "exchanges/*/*/bindings/*")
    def exchange_bindings(self, call: ManagementCall) -> None:
        vhost = call.names[0]
        exchange_key = self._exchange_of(call, "peek", call.names[1]).name
        end = call.names[2]
        if end not in ("source", "destination"):
            raise not_found()
        if end == "destination":
            found = [each for each in self.topology.bindings(destination=exchange_key) if each.to_exchange]
        elif is_default(exchange_key):
            found = [each for each in self._bindings(call, vhost) if is_default(each.source)]
        else:
            found = self.topology.bindings(source=exchange_key)
        self._list_bindings(call, [each for each in found if self._can_see_binding(call, each, vhost, None)])

    def _binding_ends(self, call: ManagementCall, action: str) -> tuple[str, str, bool]:
        """The two ends in the path (bare names), both the caller's to do this to."""
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

    def _matching_bindings(self, call: ManagementCall, action: str) -> list[Binding]:
        source, destination, to_exchange = self._binding_ends(call, action)
        if not source and not to_exchange:
            queue_key = call.key_of(destination)
            return (
                [Binding(call.key_of(""), queue_key, False, destination)]
                if self.topology.has_queue(queue_key)
                else []
            )
        found = self.topology.bindings(call.key_of(source), call.key_of(destination))
        return [each for each in found if each.to_exchange == to_exchange]

    @route("GET", "bindings/*/e/*/*/*")
    def bindings_between(self, call: ManagementCall) -> None:
        call.answer([_binding_info(each) for each in self._matching_bindings(call, "peek")])

    @route("GET", "bindings/*/e/*/*/*/*")
    def binding(self, call: ManagementCall) -> None:
        found = [_binding_info(each) for each in self._matching_bindings(call, "peek")]
        call.answer_object(
            first_or_404([each for each in found if _is_key(each["properties_key"], call.names[4])])
        )

    @route("POST", "bindings/*/e/*/*/*")
    def bind(self, call: ManagementCall) -> None:
        source, destination, to_exchange = self._binding_ends(call, "manage")
        body = call.body()
        key, arguments = body.get("routing_key", ""), _arguments(body)
        if not isinstance(key, str):
            raise bad_request("routing_key must be text")
        bind = self.topology.bind_exchange if to_exchange else self.topology.bind_queue
        bind(call.names[0], destination, source, key, arguments)
        made = Binding(call.key_of(source), call.key_of(destination), to_exchange, key, arguments)
        call.answer_changed(True, f"{quote(destination, safe='')}/{quote(_key_of(made), safe='~')}")

    @route("DELETE", "bindings/*/e/*/*/*/*")
    def unbind(self, call: ManagementCall) -> None:
        for each in self._matching_bindings(call, "manage"):
            if _is_key(_key_of(each), call.names[4]):
                unbind = self.topology.unbind_exchange if each.to_exchange else self.topology.unbind_queue
                ends = split_name(each.destination)[1], split_name(each.source)[1]
                unbind(call.names[0], *ends, each.key, each.arguments)
                call.answer_changed()
                return
        raise not_found()

    # -- policies

    @route("GET", "policies")
    def policies(self, call: ManagementCall) -> None:
        found = [each.to_json() for each in self.topology.policies.all() if call.can_see_vhost(each.vhost)]
        call.answer(paginate(found, call.query))

    @route("GET", "policies/*")
    def policies_of(self, call: ManagementCall) -> None:
        call.answer(
            paginate([each.to_json() for each in self.topology.policies.all(call.vhost())], call.query)
        )

    @route("GET", "policies/*/*")
    def policy(self, call: ManagementCall) -> None:
        found = self.topology.policies.get(call.vhost(), call.names[1])
        if found is None:
            raise not_found()
        call.answer_object(found.to_json())

    @route("PUT", "policies/*/*")
    def put_policy(self, call: ManagementCall) -> None:
        # By a pattern that takes for ever to match, a policy can stop the server: not for everybody.
        call.require_admin()
        vhost, name = call.vhost(), call.names[1]
        body = call.required("pattern", "definition")
        try:
            policy = Policy.from_json({**body, "vhost": vhost, "name": name})
        except InvalidAmqpPolicy as error:
            raise bad_request(f"Validation failed\n\n{error}\n") from error
        before = self.topology.policies.get(vhost, name)
        self.topology.set_policy(policy)
        self._save_policies(call, vhost, name, before, before is None)

    @route("DELETE", "policies/*/*")
    def delete_policy(self, call: ManagementCall) -> None:
        call.require_admin()
        vhost, name = call.vhost(), call.names[1]
        before = self.topology.policies.get(vhost, name)
        if not self.topology.clear_policy(vhost, name):
            raise not_found()
        self._save_policies(call, vhost, name, before, False)

    def _save_policies(
        self, call: ManagementCall, vhost: str, name: str, before: Policy | None, is_new: bool
    ) -> None:
        """What cannot be kept is taken back: a restart must not change what is in force."""

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None:
                self.topology.restore_policy(vhost, name, before)
            if call.request.gone:
                return
            if error is not None:
                call.fail(error)
            else:
                call.answer_changed(is_new)

        self.context.run(self.topology.policies.save, finished)

    # -- connections, channels, consumers

    def _can_see(self, call: ManagementCall, one: Json) -> bool:
        """One's own, and those of others for who may look into every queue of the vhost."""
        vhost = _vhost_in(one)
        if not call.can_see_vhost(vhost):
            return False
        guard = self.context.guard
        return (
            guard.is_open
            or _user_in(one) == call.principal.user
            or guard.may_everywhere(call.principal, "peek", account_of(vhost))
        )

    def _list_amqp_objects(self, call: ManagementCall, what: str, vhost: str | None = None) -> None:
        found = [
            each
            for each in self._amqp_objects(what)
            if vhost in (None, _vhost_in(each)) and self._can_see(call, each)
        ]
        call.answer(paginate([to_json_value(each) for each in found], call.query))

    @route("GET", "connections")
    @route("GET", "channels")
    @route("GET", "consumers")
    def amqp_objects(self, call: ManagementCall) -> None:
        self._list_amqp_objects(call, call.request.path[len(PREFIX) :].strip("/"))

    @route("GET", "vhosts/*/connections")
    @route("GET", "vhosts/*/channels")
    @route("GET", "consumers/*")
    def amqp_objects_in_vhost(self, call: ManagementCall) -> None:
        parts = call.request.path[len(PREFIX) :].strip("/").split("/")
        self._list_amqp_objects(call, parts[0] if len(parts) == 2 else parts[2], call.vhost())

    @route("GET", "connections/*")
    @route("GET", "channels/*")
    def amqp_object(self, call: ManagementCall) -> None:
        what = call.request.path[len(PREFIX) :].partition("/")[0]
        call.answer_object(to_json_value(self._amqp_object_named(call, what, call.names[0])))

    def _amqp_object_named(self, call: ManagementCall, what: str, name: str) -> Json:
        """Raises 404 for one that the caller may not see, too."""
        found = [each for each in self._amqp_objects(what) if each.get("name") == name]
        return first_or_404([each for each in found if self._can_see(call, each)])

    @route("GET", "connections/*/channels")
    def channels_of(self, call: ManagementCall) -> None:
        name = self._amqp_object_named(call, "connections", call.names[0])["name"]
        found = [
            each
            for each in self._amqp_objects("channels")
            if field_of(each, "connection_details.name") == name
        ]
        call.answer(paginate([to_json_value(each) for each in found], call.query))

    @route("DELETE", "connections/*")
    def close_connection(self, call: ManagementCall) -> None:
        """One's own, or anybody's for an administrator; the client is told why (`X-Reason`)."""
        name = call.names[0]
        if _user_in(self._amqp_object_named(call, "connections", name)) != call.principal.user:
            call.require_admin()
        self._close(call, lambda each: each["name"] == name)

    @route("GET", "connections/username/*")
    def connections_of(self, call: ManagementCall) -> None:
        found = [each for each in self._amqp_objects("connections") if _user_in(each) == call.names[0]]
        call.answer(
            paginate([to_json_value(each) for each in found if self._can_see(call, each)], call.query)
        )

    @route("DELETE", "connections/username/*")
    def close_connections_of(self, call: ManagementCall) -> None:
        if call.names[0] != call.principal.user:
            call.require_admin()
        self._close(call, lambda each: _user_in(each) == call.names[0])

    def _close(self, call: ManagementCall, matches: Callable[[Json], bool]) -> None:
        given = (call.request.header(b"x-reason") or b"").decode("utf-8", "replace")
        reason = "".join(char if char.isprintable() else "?" for char in given[:200])
        server = self.context.amqp
        if server is not None:
            server.close_connections(matches, reason or "Closed via management API")
        call.answer_changed()

    # -- definitions

    @route("GET", "definitions")
    @route("GET", "all-configuration")
    def get_definitions(self, call: ManagementCall) -> None:
        call.require_admin()
        call.answer_from_thread(lambda: export(self.topology, self.context.guard.store))

    @route("GET", "definitions/*")
    def get_vhost_definitions(self, call: ManagementCall) -> None:
        call.require_admin()
        vhost = call.vhost()
        call.answer_from_thread(lambda: export(self.topology, None, vhost))

    @route("POST", "definitions")
    @route("POST", "all-configuration")
    @route("POST", "definitions/*")
    def post_definitions(self, call: ManagementCall) -> None:
        """RabbitMQ says nothing but 204; `?report=true` asks for what was made and what could not be."""
        call.require_admin()
        wanted = definitions.read(call.body(), call.vhost() if call.names else None)
        report = ImportReport()
        apply_topology(self.topology, wanted, report)

        def work() -> None:
            apply_users(self.context.guard.store, wanted, report)
            self.topology.policies.save()
            self.context.broker.sync()

        def done(_: None) -> None:
            for line in (*report.not_converted, *report.hints):
                log.warning("definitions: %s", line)
            if call.query.get("report") == "true":
                call.answer(report.to_json())
            else:
                call.answer_changed()

        call.run_in_thread(work, done)


# -- small things ---------------------------------------------------------------------------------

_ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


def _exchange_types() -> list[Json]:
    return [
        {"name": kind, "description": f"AMQP {kind} exchange", "enabled": True} for kind in (*KINDS, DELAYED)
    ]


def _flag(body: Json, name: str) -> bool:
    value = body.get(name, False)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(["not_boolean", value])
    return value


def _arguments(body: Json) -> Json:
    value = body.get("arguments", {})
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request("arguments must be an object")
    return value


def _count(body: Json, name: str, default: int | None) -> int | None:
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        value = int(value)
    if value is default:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise bad_request(f"{name} must be a whole number")
    return value


def _vhost_in(item: Json) -> str:
    vhost = item.get("vhost")
    if vhost is None:
        vhost = field_of(item, "queue.vhost")
    return str(vhost)


def _user_in(item: Json) -> str:
    """Of a connection or channel, or of a consumer by its channel."""
    user = item.get("user")
    return str(field_of(item, "channel_details.user") if user is None else user)


def _key_of(binding: Binding) -> str:
    """What tells bindings between the same two apart, fit for a path."""
    if not binding.key and not binding.arguments:
        return "~"
    key = quote(binding.key, safe="")
    if not binding.arguments:
        return key
    text = json.dumps(to_json_value(binding.arguments), sort_keys=True)
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass")).to_bytes(4, "big")
    return f"{key}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _is_key(key: str, given: str) -> bool:
    """A client may send it encoded once more or not; the path is decoded already."""
    return given in (key, unquote(key))


def _binding_info(binding: Binding) -> Json:
    fields = binding_fields(binding)
    source = fields.pop("source")
    vhost = vhost_of(split_name(binding.source)[0])
    return {"source": source, "vhost": vhost, **fields, "properties_key": _key_of(binding)}


def _limit_bytes(deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """As many as may be shown in one answer, at least one; and the others."""
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


def _properties_json(properties: AmqpProperties) -> Json:
    found: Json = {}
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            found[name] = to_json_value(value)
    return found


_PROPERTIES: dict[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "headers": dict,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}


def _encode_properties(source: object) -> bytes:
    """Properties as a publisher sends them, from JSON."""
    if source == []:
        source = {}
    if not isinstance(source, dict):
        raise bad_request("properties must be an object")
    given: Json = {}
    for name, value in source.items():
        kind = _PROPERTIES.get(name)
        if kind is None:
            raise bad_request(f"there is no property {name!r}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise bad_request(f"the property {name} must be {_KINDS[kind]}")
        given[name] = Timestamp(source[name]) if name == "timestamp" else value
    try:
        return properties_of.encode(AmqpProperties(**given))
    except (MalformedProperties, OverflowError, ValueError) as error:
        raise bad_request(f"properties: {error}") from error


_KINDS = {str: "text", int: "a number", dict: "an object"}
