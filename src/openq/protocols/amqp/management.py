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

from ... import properties as properties_of
from ..._version import __version__
from ...engine.routing import Binding, Exchange, is_default
from ...errors import OpenQError
from ...model import Delivery
from ...names import full_name, split_name
from ...properties import MalformedProperties, Properties, Timestamp
from ...security.errors import Refused
from ...security.guard import Principal, read_basic
from ..http import Request
from ..site import Site
from . import definitions, management_users, methods
from .arguments import account_of, declaration_of, queue_type, vhost_of
from .asking import ROUTES as ROUTES  # complete once this module is loaded
from .asking import Answer, Ask, Json, Rates, bad, field_of, find_route, not_found, only, page_of, route
from .definitions import RABBITMQ_VERSION, Report, binding_fields, exchange_fields, json_of
from .outgoing import ALWAYS, NEVER, route_of, wire_of
from .policies import InvalidPolicy, Policy
from .publishing import Publisher, Target
from .topology import DELAYED, KINDS, Topology, policy_of, stripped

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


class Management:
    def __init__(self, site: Site, topology: Topology) -> None:
        self.site = site
        self.topology = topology
        self.node = f"openq@{socket.gethostname()}"
        # Set by the server, once it knows: protocol -> port.
        self.ports: dict[str, int] = {}
        self._rates = Rates(site.now_ms)

    def handle(self, request: Request) -> None:
        ask = Ask(self, request)
        try:
            guard = self.site.guard
            header = request.header(b"authorization") or b""
            scheme, _, value = header.partition(b" ")
            is_basic = scheme.lower() == b"basic"
            if guard.is_open:
                # As at AMQP's own door: whoever gives a name gives this one.
                if is_basic and read_basic(value) != (GUEST, GUEST):
                    raise Refused
                self._enter(ask, guard.anyone())
            elif scheme.lower() == b"bearer":
                self._enter(ask, guard.bearer(value.strip().decode("latin-1"), request.peer))
            elif not is_basic:
                raise Refused
            else:
                user, password = read_basic(value)
                known = guard.recall(user, password, request.peer)
                if known is not None:
                    self._enter(ask, known)
                    return

                def signed_in(principal: Principal | None, error: BaseException | None) -> None:
                    try:
                        if error is not None:
                            raise error
                        assert principal is not None
                        self._enter(ask, principal)
                    except Exception as problem:
                        ask.fail(problem)

                # Slow on purpose: not on the loop.
                self.site.check(lambda: guard.basic(user, password, request.peer), signed_in)
        except Exception as error:
            ask.fail(error)

    def _enter(self, ask: Ask, principal: Principal) -> None:
        ask.principal = principal
        request = ask.request
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path[len(PREFIX) :].rstrip("/")
        parts = [unquote(part) for part in path.split("/")]
        found = find_route(method, parts)
        if found is None:
            if any(find_route(other, parts) for other in ("GET", "PUT", "POST", "DELETE")):
                raise Answer(405, "method_not_allowed", f"{method} is not for {path[:200]}")
            raise not_found()
        handler, ask.names = found
        try:
            handler(self, ask)
        except Exception as error:
            ask.fail(error)

    # -- what a queue is like

    def _live(self, what: str) -> list[Json]:
        """What only the AMQP door knows."""
        door = self.site.amqp
        found: list[Json] = [] if door is None else getattr(door, what)()
        return found if what == "consumers" else [{**each, "node": self.node} for each in found]

    def _consumers_of(self, full: str) -> int:
        door = self.site.amqp
        return 0 if door is None else door.consumers_of(full)

    def _visible(self, ask: Ask, vhost: str | None) -> list[str]:
        """On the loop, as everything that asks who may do what."""
        return [full for full in self.topology.queues(vhost) if ask.may("peek", full, is_queue=True)]

    def _queues(self, fulls: Iterable[str]) -> list[Json]:
        found = []
        for full in fulls:
            try:
                found.append(self._about_queue(full))
            except OpenQError:
                continue  # deleted meanwhile
        return sorted(found, key=lambda each: (each["vhost"], each["name"]))

    def _about_queue(self, full: str) -> Json:
        broker = self.site.broker
        queue = broker.about(full)
        stats = broker.stats(full)
        declared = declaration_of(queue.settings)
        account, name = split_name(full)
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
        with_rates = self._rates.of(full, {**depths, **counts})
        depth_names = [each for name in _DEPTHS for each in (name, f"{name}_details")]
        stat_names = [each for name in _STATS for each in (name, f"{name}_details")]
        return {
            "name": name,
            "vhost": vhost_of(account),
            "type": queue_type(declared.arguments),
            "durable": declared.durable,
            "auto_delete": declared.auto_delete,
            "exclusive": declared.exclusive,
            "arguments": json_of(declared.arguments),
            "policy": declared.policy,
            "operator_policy": None,
            "effective_policy_definition": json_of(declared.definition or {}),
            "node": self.node,
            "state": "running",
            "consumers": self._consumers_of(full),
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
    def overview(self, ask: Ask) -> None:
        ask.require_sight()
        live = {what: len(self._live(what)) for what in ("channels", "connections", "consumers")}
        visible = self._visible(ask, None)

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
                        "ip_address": self.site.config.host,
                        "port": port,
                        "socket_opts": {},
                    }
                    for protocol, port in self.ports.items()
                ],
                "contexts": [],
            }

        ask.look(work)

    @route("GET", "nodes")
    def nodes(self, ask: Ask) -> None:
        ask.require_sight()
        sockets, is_admin = self._sockets(), ask.may_admin()
        ask.look(lambda: [self._about_node(sockets, is_admin)])

    @route("GET", "nodes/*")
    def node_named(self, ask: Ask) -> None:
        ask.require_sight()
        if ask.names[0] != self.node:
            raise not_found()
        sockets, is_admin = self._sockets(), ask.may_admin()
        ask.look(lambda: self._about_node(sockets, is_admin))

    def _sockets(self) -> int:
        listener = self.site.listener
        return len(self._live("connections")) + (0 if listener is None else len(listener.connections))

    def _about_node(self, sockets: int, is_admin: bool) -> Json:
        data = self.site.config.path
        disk = shutil.disk_usage(data or "/")
        health = self.site.broker.health()
        pages = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[1]) * pages
        files = os.sysconf("SC_OPEN_MAX")
        return {
            "name": self.node,
            "type": "disc",
            "running": True,
            "uptime": self.site.now_ms() - self.site.started_ms,
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
            "sockets_total": self.site.config.max_connections,
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
    def whoami(self, ask: Ask) -> None:
        name = GUEST if self.site.guard.is_open else ask.principal.user
        ask.answer({"name": name, "tags": ["administrator" if ask.may_admin() else "management"]})

    @route("GET", "cluster-name")
    def cluster_name(self, ask: Ask) -> None:
        ask.answer({"name": "openq"})

    @route("GET", "extensions")
    @route("GET", "parameters")
    @route("GET", "global-parameters")
    @route("GET", "operator-policies")
    @route("GET", "topic-permissions")
    @route("GET", "feature-flags")
    @route("GET", "vhost-limits")
    def nothing(self, ask: Ask) -> None:
        """There are none of these here."""
        ask.answer([])

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
    def health(self, ask: Ask) -> None:
        health = self.site.broker.health()
        if health.ok and not health.disk_full:
            ask.answer({"status": "ok"})
        else:
            ask.answer({"status": "failed", "reason": health.detail}, 503)

    @route("GET", "health/checks/port-listener/*")
    def port_listener(self, ask: Ask) -> None:
        ports = sorted(self.ports.values())
        if ask.names[0] in map(str, ports):
            ask.answer({"status": "ok", "port": int(ask.names[0])})
            return
        missing = ask.names[0]
        failed = {"status": "failed", "reason": "No active listener", "missing": missing, "ports": ports}
        ask.answer(failed, 503)

    @route("GET", "health/checks/protocol-listener/*")
    def protocol_listener(self, ask: Ask) -> None:
        wanted = {"amqp091": "amqp", "amqps": "amqp/ssl"}.get(ask.names[0], ask.names[0])
        if wanted in self.ports:
            ask.answer({"status": "ok", "protocol": ask.names[0]})
            return
        failed = {
            "status": "failed",
            "reason": "No active listener",
            "missing": ask.names[0],
            "protocols": sorted(self.ports),
        }
        ask.answer(failed, 503)

    @route("GET", "aliveness-test/*")
    def aliveness(self, ask: Ask) -> None:
        ask.vhost()
        self.health(ask)

    # -- vhosts

    def _about_vhost(self, vhost: str, fulls: Iterable[str]) -> Json:
        depths = dict.fromkeys(_DEPTHS, 0)
        for full in fulls:
            try:
                stats = self.site.broker.stats(full)
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
    def vhosts(self, ask: Ask) -> None:
        visible = {each: self._visible(ask, each) for each in self.topology.vhosts() if ask.sees_vhost(each)}
        ask.list(lambda: [self._about_vhost(vhost, fulls) for vhost, fulls in visible.items()])

    @route("GET", "vhosts/*")
    def vhost(self, ask: Ask) -> None:
        vhost = ask.vhost()
        visible = self._visible(ask, vhost)
        ask.look(lambda: self._about_vhost(vhost, visible))

    @route("PUT", "vhosts/*")
    def put_vhost(self, ask: Ask) -> None:
        ask.require_admin()
        ask.done(self.topology.add_vhost(ask.names[0]))

    @route("DELETE", "vhosts/*")
    def delete_vhost(self, ask: Ask) -> None:
        ask.require_admin()
        vhost = ask.names[0]
        if not self.topology.remove_vhost(vhost):
            raise not_found()

        def work() -> None:
            management_users.forget_vhost(self.site.guard.store, vhost)
            self.topology.policies.save()

        ask.work(work, lambda _: ask.done())

    # -- queues

    @route("GET", "queues")
    def queues(self, ask: Ask) -> None:
        self._rates.keep(["", *self.topology.queues()])
        visible = self._visible(ask, None)
        ask.list(lambda: self._queues(visible))

    @route("GET", "queues/*")
    def queues_of(self, ask: Ask) -> None:
        visible = self._visible(ask, ask.vhost())
        ask.list(lambda: self._queues(visible))

    def _queue_of(self, ask: Ask, action: str) -> str:
        """The engine's name of the queue in the path, if it is there and the caller's to do this to."""
        ask.vhost()
        full = ask.full(ask.names[1])
        ask.require(action, full, is_queue=True)
        if not self.topology.has_queue(full):
            raise not_found()
        return full

    @route("GET", "queues/*/*")
    def queue(self, ask: Ask) -> None:
        full = self._queue_of(ask, "peek")
        vhost, name = ask.names
        consumers = [
            each for each in self._live("consumers") if each.get("queue") == {"name": name, "vhost": vhost}
        ]
        extra = {"consumer_details": consumers, "incoming": [], "deliveries": []}
        ask.look(lambda: {**self._about_queue(full), **extra})

    @route("PUT", "queues/*/*")
    def put_queue(self, ask: Ask) -> None:
        body = ask.body()
        vhost, name = ask.vhost("vhost_not_found"), stripped(ask.names[1])
        full = ask.full(name)
        ask.require("manage", full, is_queue=True)
        arguments = _arguments(body)
        ask.require_target(
            arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
        )
        is_new = not self.topology.has_queue(full)
        self.topology.declare_queue(
            vhost,
            name,
            durable=_flag(body, "durable"),
            auto_delete=_flag(body, "auto_delete"),
            arguments=arguments,
        )
        ask.done(is_new)

    @route("DELETE", "queues/*/*")
    def delete_queue(self, ask: Ask) -> None:
        self._queue_of(ask, "manage")
        vhost, name = ask.names
        self.topology.delete_queue(
            vhost,
            name,
            None,
            if_unused=ask.query.get("if-unused") == "true",
            if_empty=ask.query.get("if-empty") == "true",
        )
        ask.done()

    @route("DELETE", "queues/*/*/contents")
    def purge_queue(self, ask: Ask) -> None:
        self._queue_of(ask, "manage")
        self.topology.purge_queue(ask.names[0], ask.names[1], None)
        ask.done()

    @route("POST", "queues/*/*/get")
    def get_messages(self, ask: Ask) -> None:
        full = self._queue_of(ask, "receive")
        body = ask.needed("count", "ackmode", "encoding")
        mode, encoding = body["ackmode"], body["encoding"]
        if mode not in _ACK_MODES:
            raise bad(f"ackmode must be one of {', '.join(_ACK_MODES)}")
        if encoding not in ("auto", "base64"):
            raise bad("encoding must be auto or base64")
        count, cut = _count(body, "count", 1), _count(body, "truncate", None)
        self.topology.check_access(ask.names[0], ask.names[1], None)
        self.topology.touch(full)
        broker = self.site.broker

        def work() -> list[Json]:
            deliveries = broker.receive(full, min(count or 1, MAX_GET), GET_LEASE_MS, "management")
            deliveries, rest = _lightest(deliveries)
            broker.release(full, [(each.entry.seq, each.number) for each in rest])
            left = broker.ready_count(full)
            deliveries = broker.load(deliveries)
            is_quorum = queue_type(declaration_of(broker.settings(full)).arguments) == "quorum"
            counting = ALWAYS if is_quorum else NEVER
            found: list[Json] = []
            for at, delivery in enumerate(deliveries):
                entry = delivery.entry
                payload = entry.body or b""
                exchange, key = route_of(entry, ask.names[1])
                text, how = _payload(payload if cut is None else payload[:cut], encoding)
                found.append(
                    {
                        "payload_bytes": len(payload),
                        "redelivered": delivery.count > 1,
                        "exchange": exchange,
                        "routing_key": key,
                        "message_count": left + len(deliveries) - 1 - at,
                        "properties": _shown(properties_of.decode(wire_of(broker, delivery, counting))),
                        "payload": text,
                        "payload_encoding": how,
                    }
                )
            receipts = [(each.entry.seq, each.number) for each in deliveries]
            if mode.endswith("requeue_true"):
                broker.nack_many(full, receipts)
            elif mode == "ack_requeue_false":
                broker.ack(full, receipts)
            else:
                broker.reject_many(full, receipts)
            broker.sync()
            return found

        ask.look(work)

    # -- exchanges

    def _about_exchange(self, exchange: Exchange) -> Json:
        found = {**exchange_fields(exchange), "vhost": vhost_of(split_name(exchange.name)[0])}
        policy = policy_of(exchange)
        if policy is not None:
            found["policy"] = policy
        return found

    def _exchanges(self, ask: Ask, vhost: str | None) -> list[Exchange]:
        exchanges = self.topology.exchanges(vhost)
        known = {each.name for each in exchanges}
        vhosts = self.topology.vhosts() if vhost is None else [vhost]
        # The default exchanges of other accounts are nowhere written down.
        for full in (full_name(account_of(each), "") for each in vhosts):
            if full not in known:
                exchanges.append(Exchange(full, "direct"))
        seen = {account_of(each) for each in vhosts if ask.sees_vhost(each)}
        found = [
            each
            for each in exchanges
            if split_name(each.name)[0] in seen
            and (is_default(each.name) or ask.may("peek", each.name, is_queue=False))
        ]
        return sorted(found, key=lambda each: (vhost_of(split_name(each.name)[0]), each.name))

    @route("GET", "exchanges")
    def exchanges(self, ask: Ask) -> None:
        found = self._exchanges(ask, None)
        ask.list(lambda: [self._about_exchange(each) for each in found])

    @route("GET", "exchanges/*")
    def exchanges_of(self, ask: Ask) -> None:
        found = self._exchanges(ask, ask.vhost())
        ask.list(lambda: [self._about_exchange(each) for each in found])

    def _exchange_of(self, ask: Ask, action: str, name: str) -> Exchange:
        vhost = ask.vhost()
        name = "" if name == DEFAULT_EXCHANGE else name
        full = ask.full(name)
        if name:
            ask.require(action, full, is_queue=False)
        if not self.topology.has_exchange(full):
            raise not_found()
        return self.topology.exchange(vhost, name)

    @route("GET", "exchanges/*/*")
    def exchange(self, ask: Ask) -> None:
        found = self._exchange_of(ask, "peek", ask.names[1])
        ask.one({**self._about_exchange(found), "incoming": [], "outgoing": []})

    @route("PUT", "exchanges/*/*")
    def put_exchange(self, ask: Ask) -> None:
        body = ask.body()
        vhost, name = ask.vhost("vhost_not_found"), stripped(ask.names[1])
        ask.require("manage", ask.full(name), is_queue=False)
        arguments = _arguments(body)
        ask.require_target(arguments.get("alternate-exchange"))
        kind = body.get("type", "direct")
        if not isinstance(kind, str):
            raise bad("type must be text")
        is_new = not self.topology.has_exchange(ask.full(name))
        self.topology.declare_exchange(
            vhost,
            name,
            kind,
            durable=_flag(body, "durable"),
            auto_delete=_flag(body, "auto_delete"),
            internal=_flag(body, "internal"),
            arguments=arguments,
        )
        ask.done(is_new)

    @route("DELETE", "exchanges/*/*")
    def delete_exchange(self, ask: Ask) -> None:
        self._exchange_of(ask, "manage", ask.names[1])
        vhost, name = ask.names
        self.topology.delete_exchange(vhost, name, ask.query.get("if-unused") == "true")
        ask.done()

    @route("POST", "exchanges/*/*/publish")
    def publish(self, ask: Ask) -> None:
        body = ask.needed("properties", "routing_key", "payload", "payload_encoding")
        key, payload = body["routing_key"], body["payload"]
        if not isinstance(key, str) or not isinstance(payload, str):
            raise bad("routing_key and payload must be text")
        if len(key.encode("utf-8", "replace")) > 255:
            raise bad("a routing key has at most 255 bytes")
        if body["payload_encoding"] == "base64":
            try:
                data = base64.b64decode(payload, validate=True)
            except ValueError:
                raise bad("the payload is no base64") from None
        elif body["payload_encoding"] == "string":
            data = payload.encode("utf-8", "surrogatepass")
        else:
            raise bad("payload_encoding must be string or base64")
        vhost = ask.vhost()
        name = "" if ask.names[1] == DEFAULT_EXCHANGE else ask.names[1]
        account = account_of(vhost)
        user = GUEST if self.site.guard.is_open else ask.principal.user
        publisher = Publisher(self.site, self.topology, vhost, account, user)
        target = Target(methods.BasicPublish(name, key, False, False), account)
        stamp = publisher.stamp(_wire(body["properties"]), target)
        if name:
            ask.require("send", target.full, is_queue=False)
        else:
            for each in (key, *stamp.keys):
                ask.require("send", ask.full(each), is_queue=True)
        queues = publisher.queues(target, stamp)
        refused = bool(queues) and bool(publisher.put(target, stamp, queues, [data]))

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                ask.fail(error)
            else:
                ask.answer({"routed": bool(queues) and not refused})

        self.site.after_commit(committed)

    # -- bindings

    def _bindings(self, ask: Ask, vhost: str | None, queue: str | None = None) -> list[Binding]:
        """With those of the default exchange, which leads to every queue."""
        found: list[Binding] = []
        fulls = self._visible(ask, vhost) if queue is None else [queue]
        for full in sorted(fulls):
            account, name = split_name(full)
            found.append(Binding(full_name(account, ""), full, False, name))
        wanted = self.topology.bindings(destination=queue)
        return found + [each for each in wanted if self._sees_binding(ask, each, vhost, queue)]

    def _list_bindings(self, ask: Ask, found: list[Binding]) -> None:
        ask.list(lambda: [_about_binding(each) for each in found])

    def _sees_binding(self, ask: Ask, binding: Binding, vhost: str | None, queue: str | None) -> bool:
        if vhost is not None and split_name(binding.source)[0] != account_of(vhost):
            return False
        if queue is not None and binding.to_exchange:
            return False  # an exchange of that name
        return ask.may("peek", binding.destination, is_queue=not binding.to_exchange)

    @route("GET", "bindings")
    def bindings(self, ask: Ask) -> None:
        self._list_bindings(ask, self._bindings(ask, None))

    @route("GET", "bindings/*")
    def bindings_of(self, ask: Ask) -> None:
        self._list_bindings(ask, self._bindings(ask, ask.vhost()))

    @route("GET", "queues/*/*/bindings")
    def queue_bindings(self, ask: Ask) -> None:
        full = self._queue_of(ask, "peek")
        self._list_bindings(ask, self._bindings(ask, ask.names[0], full))

    @route("GET", "exchanges/*/*/bindings/*")
    def exchange_bindings(self, ask: Ask) -> None:
        vhost = ask.names[0]
        full = self._exchange_of(ask, "peek", ask.names[1]).name
        end = ask.names[2]
        if end not in ("source", "destination"):
            raise not_found()
        if end == "destination":
            found = [each for each in self.topology.bindings(destination=full) if each.to_exchange]
        elif is_default(full):
            found = [each for each in self._bindings(ask, vhost) if is_default(each.source)]
        else:
            found = self.topology.bindings(source=full)
        self._list_bindings(ask, [each for each in found if self._sees_binding(ask, each, vhost, None)])

    def _between(self, ask: Ask, action: str) -> tuple[str, str, bool]:
        """The two ends in the path (bare names), both the caller's to do this to."""
        _, source, kind, destination = ask.names[:4]
        if kind not in ("q", "e"):
            raise not_found()
        ask.vhost()
        to_exchange = kind == "e"
        source = "" if source == DEFAULT_EXCHANGE else source
        if source:
            ask.require(action, ask.full(source), is_queue=False)
        ask.require(action, ask.full(destination), is_queue=not to_exchange)
        return source, destination, to_exchange

    def _bound(self, ask: Ask, action: str) -> list[Binding]:
        source, destination, to_exchange = self._between(ask, action)
        if not source and not to_exchange:
            full = ask.full(destination)
            return [Binding(ask.full(""), full, False, destination)] if self.topology.has_queue(full) else []
        found = self.topology.bindings(ask.full(source), ask.full(destination))
        return [each for each in found if each.to_exchange == to_exchange]

    @route("GET", "bindings/*/e/*/*/*")
    def bindings_between(self, ask: Ask) -> None:
        ask.answer([_about_binding(each) for each in self._bound(ask, "peek")])

    @route("GET", "bindings/*/e/*/*/*/*")
    def binding(self, ask: Ask) -> None:
        found = [_about_binding(each) for each in self._bound(ask, "peek")]
        ask.one(only([each for each in found if _is_key(each["properties_key"], ask.names[4])]))

    @route("POST", "bindings/*/e/*/*/*")
    def bind(self, ask: Ask) -> None:
        source, destination, to_exchange = self._between(ask, "manage")
        body = ask.body()
        key, arguments = body.get("routing_key", ""), _arguments(body)
        if not isinstance(key, str):
            raise bad("routing_key must be text")
        bind = self.topology.bind_exchange if to_exchange else self.topology.bind_queue
        bind(ask.names[0], destination, source, key, arguments)
        made = Binding(ask.full(source), ask.full(destination), to_exchange, key, arguments)
        ask.done(True, f"{quote(destination, safe='')}/{quote(_key_of(made), safe='~')}")

    @route("DELETE", "bindings/*/e/*/*/*/*")
    def unbind(self, ask: Ask) -> None:
        for each in self._bound(ask, "manage"):
            if _is_key(_key_of(each), ask.names[4]):
                unbind = self.topology.unbind_exchange if each.to_exchange else self.topology.unbind_queue
                ends = split_name(each.destination)[1], split_name(each.source)[1]
                unbind(ask.names[0], *ends, each.key, each.arguments)
                ask.done()
                return
        raise not_found()

    # -- policies

    @route("GET", "policies")
    def policies(self, ask: Ask) -> None:
        found = [each.to_json() for each in self.topology.policies.all() if ask.sees_vhost(each.vhost)]
        ask.answer(page_of(found, ask.query))

    @route("GET", "policies/*")
    def policies_of(self, ask: Ask) -> None:
        ask.answer(page_of([each.to_json() for each in self.topology.policies.all(ask.vhost())], ask.query))

    @route("GET", "policies/*/*")
    def policy(self, ask: Ask) -> None:
        found = self.topology.policies.get(ask.vhost(), ask.names[1])
        if found is None:
            raise not_found()
        ask.one(found.to_json())

    @route("PUT", "policies/*/*")
    def put_policy(self, ask: Ask) -> None:
        # By a pattern that takes for ever to match, a policy can stop the server: not for everybody.
        ask.require_admin()
        vhost, name = ask.vhost(), ask.names[1]
        body = ask.needed("pattern", "definition")
        try:
            policy = Policy.from_json({**body, "vhost": vhost, "name": name})
        except InvalidPolicy as error:
            raise bad(f"Validation failed\n\n{error}\n") from error
        before = self.topology.policies.get(vhost, name)
        self.topology.set_policy(policy)
        self._save_policies(ask, vhost, name, before, before is None)

    @route("DELETE", "policies/*/*")
    def delete_policy(self, ask: Ask) -> None:
        ask.require_admin()
        vhost, name = ask.vhost(), ask.names[1]
        before = self.topology.policies.get(vhost, name)
        if not self.topology.clear_policy(vhost, name):
            raise not_found()
        self._save_policies(ask, vhost, name, before, False)

    def _save_policies(self, ask: Ask, vhost: str, name: str, before: Policy | None, is_new: bool) -> None:
        """What cannot be kept is taken back: a restart must not change what is in force."""

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None:
                self.topology.restore_policy(vhost, name, before)
            if ask.request.gone:
                return
            if error is not None:
                ask.fail(error)
            else:
                ask.done(is_new)

        self.site.run(self.topology.policies.save, finished)

    # -- connections, channels, consumers

    def _sees(self, ask: Ask, one: Json) -> bool:
        """One's own, and those of others for who may look into every queue of the vhost."""
        vhost = _vhost_in(one)
        if not ask.sees_vhost(vhost):
            return False
        guard = self.site.guard
        return (
            guard.is_open
            or _user_in(one) == ask.principal.user
            or guard.may_everywhere(ask.principal, "peek", account_of(vhost))
        )

    def _list_live(self, ask: Ask, what: str, vhost: str | None = None) -> None:
        found = [
            each for each in self._live(what) if vhost in (None, _vhost_in(each)) and self._sees(ask, each)
        ]
        ask.answer(page_of([json_of(each) for each in found], ask.query))

    @route("GET", "connections")
    @route("GET", "channels")
    @route("GET", "consumers")
    def live(self, ask: Ask) -> None:
        self._list_live(ask, ask.request.path[len(PREFIX) :].strip("/"))

    @route("GET", "vhosts/*/connections")
    @route("GET", "vhosts/*/channels")
    @route("GET", "consumers/*")
    def live_in(self, ask: Ask) -> None:
        parts = ask.request.path[len(PREFIX) :].strip("/").split("/")
        self._list_live(ask, parts[0] if len(parts) == 2 else parts[2], ask.vhost())

    @route("GET", "connections/*")
    @route("GET", "channels/*")
    def live_one(self, ask: Ask) -> None:
        what = ask.request.path[len(PREFIX) :].partition("/")[0]
        ask.one(json_of(self._live_named(ask, what, ask.names[0])))

    def _live_named(self, ask: Ask, what: str, name: str) -> Json:
        """Raises 404 for one that the caller may not see, too."""
        found = [each for each in self._live(what) if each.get("name") == name]
        return only([each for each in found if self._sees(ask, each)])

    @route("GET", "connections/*/channels")
    def channels_of(self, ask: Ask) -> None:
        name = self._live_named(ask, "connections", ask.names[0])["name"]
        found = [each for each in self._live("channels") if field_of(each, "connection_details.name") == name]
        ask.answer(page_of([json_of(each) for each in found], ask.query))

    @route("DELETE", "connections/*")
    def close_connection(self, ask: Ask) -> None:
        """One's own, or anybody's for an administrator; the client is told why (`X-Reason`)."""
        name = ask.names[0]
        if _user_in(self._live_named(ask, "connections", name)) != ask.principal.user:
            ask.require_admin()
        self._close(ask, lambda each: each["name"] == name)

    @route("GET", "connections/username/*")
    def connections_of(self, ask: Ask) -> None:
        found = [each for each in self._live("connections") if _user_in(each) == ask.names[0]]
        ask.answer(page_of([json_of(each) for each in found if self._sees(ask, each)], ask.query))

    @route("DELETE", "connections/username/*")
    def close_connections_of(self, ask: Ask) -> None:
        if ask.names[0] != ask.principal.user:
            ask.require_admin()
        self._close(ask, lambda each: _user_in(each) == ask.names[0])

    def _close(self, ask: Ask, is_meant: Callable[[Json], bool]) -> None:
        given = (ask.request.header(b"x-reason") or b"").decode("utf-8", "replace")
        reason = "".join(char if char.isprintable() else "?" for char in given[:200])
        door = self.site.amqp
        if door is not None:
            door.close_connections(is_meant, reason or "Closed via management API")
        ask.done()

    # -- definitions

    @route("GET", "definitions")
    @route("GET", "all-configuration")
    def get_definitions(self, ask: Ask) -> None:
        ask.require_admin()
        ask.look(lambda: definitions.export(self.topology, self.site.guard.store))

    @route("GET", "definitions/*")
    def get_vhost_definitions(self, ask: Ask) -> None:
        ask.require_admin()
        vhost = ask.vhost()
        ask.look(lambda: definitions.export(self.topology, None, vhost))

    @route("POST", "definitions")
    @route("POST", "all-configuration")
    @route("POST", "definitions/*")
    def post_definitions(self, ask: Ask) -> None:
        """RabbitMQ says nothing but 204; `?report=true` asks for what was made and what could not be."""
        ask.require_admin()
        wanted = definitions.read(ask.body(), ask.vhost() if ask.names else None)
        report = Report()
        definitions.apply_topology(self.topology, wanted, report)

        def work() -> None:
            definitions.apply_users(self.site.guard.store, wanted, report)
            self.topology.policies.save()
            self.site.broker.sync()

        def done(_: None) -> None:
            for line in (*report.not_converted, *report.hints):
                log.warning("definitions: %s", line)
            if ask.query.get("report") == "true":
                ask.answer(report.to_json())
            else:
                ask.done()

        ask.work(work, done)


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
        raise bad(["not_boolean", value])
    return value


def _arguments(body: Json) -> Json:
    value = body.get("arguments", {})
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise bad("arguments must be an object")
    return value


def _count(body: Json, name: str, default: int | None) -> int | None:
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        value = int(value)
    if value is default:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise bad(f"{name} must be a whole number")
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
    text = json.dumps(json_of(binding.arguments), sort_keys=True)
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass")).to_bytes(4, "big")
    return f"{key}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _is_key(key: str, given: str) -> bool:
    """A client may send it encoded once more or not; the path is decoded already."""
    return given in (key, unquote(key))


def _about_binding(binding: Binding) -> Json:
    fields = binding_fields(binding)
    source = fields.pop("source")
    vhost = vhost_of(split_name(binding.source)[0])
    return {"source": source, "vhost": vhost, **fields, "properties_key": _key_of(binding)}


def _lightest(deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
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


def _shown(properties: Properties) -> Json:
    found: Json = {}
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            found[name] = json_of(value)
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


def _wire(source: object) -> bytes:
    """Properties as a publisher sends them, from JSON."""
    if source == []:
        source = {}
    if not isinstance(source, dict):
        raise bad("properties must be an object")
    given: Json = {}
    for name, value in source.items():
        kind = _PROPERTIES.get(name)
        if kind is None:
            raise bad(f"there is no property {name!r}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise bad(f"the property {name} must be {_KINDS[kind]}")
        given[name] = Timestamp(source[name]) if name == "timestamp" else value
    try:
        return properties_of.encode(Properties(**given))
    except (MalformedProperties, OverflowError, ValueError) as error:
        raise bad(f"properties: {error}") from error


_KINDS = {str: "text", int: "a number", dict: "an object"}
