"""The server as RabbitMQ shows it: overview, nodes, health checks."""

from __future__ import annotations

import os
import shutil
import threading

from ..._version import __version__
from ..access import GUEST
from ..definitions import RABBITMQ_VERSION
from ..exchanges import DELAYED, KINDS
from .call import Json, ManagementCall, not_found
from .connections import amqp_objects
from .queues import DEPTHS, STATS, queues_info, visible_queues
from .routes import route


@route("GET", "overview", permission="monitor")
def overview(call: ManagementCall) -> None:
    live = {what: len(amqp_objects(call, what)) for what in ("channels", "connections", "consumers")}
    visible = visible_queues(call, None)

    def work() -> Json:
        queues = queues_info(call, visible)
        totals = {name: sum(each[name] for each in queues) for name in DEPTHS}
        stats = {name: sum(each["message_stats"][name] for each in queues) for name in STATS}
        with_rates = call.api.rates.of("", {**totals, **stats})
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
            "message_stats": {each: with_rates[each] for name in STATS for each in (name, f"{name}_details")},
            "queue_totals": {each: with_rates[each] for name in DEPTHS for each in (name, f"{name}_details")},
            "object_totals": {
                **live,
                "exchanges": len(call.topology.exchanges()),
                "queues": len(queues),
            },
            "node": call.api.node,
            "listeners": [
                {
                    "node": call.api.node,
                    "protocol": protocol,
                    "ip_address": call.context.config.host,
                    "port": port,
                    "socket_opts": {},
                }
                for protocol, port in call.api.ports.items()
            ],
            "contexts": [],
        }

    call.answer_from_thread(work)


@route("GET", "nodes", permission="monitor")
def nodes(call: ManagementCall) -> None:
    sockets, is_admin = _sockets(call), call.may_admin()
    call.answer_from_thread(lambda: [_node_info(call, sockets, is_admin)])


@route("GET", "nodes/{node}", permission="monitor")
def node_named(call: ManagementCall) -> None:
    if call.names[0] != call.api.node:
        raise not_found()
    sockets, is_admin = _sockets(call), call.may_admin()
    call.answer_from_thread(lambda: _node_info(call, sockets, is_admin))


def _sockets(call: ManagementCall) -> int:
    listener = call.context.listener
    return len(amqp_objects(call, "connections")) + (0 if listener is None else len(listener.connections))


def _node_info(call: ManagementCall, sockets: int, is_admin: bool) -> Json:
    data = call.context.config.path
    disk = shutil.disk_usage(data or "/")
    health = call.context.broker.health()
    pages = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[1]) * pages
    files = os.sysconf("SC_OPEN_MAX")
    return {
        "name": call.api.node,
        "type": "disc",
        "running": True,
        "uptime": call.context.now_ms() - call.context.started_ms,
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
        "sockets_total": call.context.config.max_connections,
        "proc_used": threading.active_count(),
        "run_queue": 0,
        "partitions": [],
        "rates_mode": "basic",
        "db_dir": (data or "") if is_admin else "",  # only for administrators
        "config_files": [],
        "log_files": [],
        "enabled_plugins": [],
        "applications": [{"name": "openq", "description": "OpenQ", "version": __version__}],
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True} for name in ("PLAIN", "AMQPLAIN")
        ],
        "contexts": [],
    }


@route("GET", "whoami", permission="user")
def whoami(call: ManagementCall) -> None:
    name = GUEST if call.context.guard.is_open else call.principal.user
    call.answer({"name": name, "tags": ["administrator" if call.may_admin() else "management"]})


@route("GET", "cluster-name", permission="user")
def cluster_name(call: ManagementCall) -> None:
    call.answer({"name": "openq"})


@route("GET", "extensions", permission="user")
@route("GET", "parameters", permission="user")
@route("GET", "global-parameters", permission="user")
@route("GET", "operator-policies", permission="user")
@route("GET", "topic-permissions", permission="user")
@route("GET", "feature-flags", permission="user")
@route("GET", "vhost-limits", permission="user")
def nothing(call: ManagementCall) -> None:
    """OpenQ has none of these."""
    call.answer([])


@route("GET", "healthchecks/node", permission="user")
@route("GET", "healthchecks/node/{node}", permission="user")
@route("GET", "health/checks/alarms", permission="user")
@route("GET", "health/checks/local-alarms", permission="user")
@route("GET", "health/checks/virtual-hosts", permission="user")
@route("GET", "health/checks/is-in-service", permission="user")
@route("GET", "health/checks/node-is-mirror-sync-critical", permission="user")
@route("GET", "health/checks/node-is-quorum-critical", permission="user")
@route("GET", "health/checks/certificate-expiration/{within}/{unit}", permission="user")
def health(call: ManagementCall) -> None:
    health = call.context.broker.health()
    if health.ok and not health.disk_full:
        call.answer({"status": "ok"})
    else:
        call.answer({"status": "failed", "reason": health.detail}, 503)


@route("GET", "health/checks/port-listener/{port}", permission="user")
def port_listener(call: ManagementCall) -> None:
    ports = sorted(call.api.ports.values())
    if call.names[0] in map(str, ports):
        call.answer({"status": "ok", "port": int(call.names[0])})
        return
    missing = call.names[0]
    failed = {"status": "failed", "reason": "No active listener", "missing": missing, "ports": ports}
    call.answer(failed, 503)


@route("GET", "health/checks/protocol-listener/{protocol}", permission="user")
def protocol_listener(call: ManagementCall) -> None:
    wanted = {"amqp091": "amqp", "amqps": "amqp/ssl"}.get(call.names[0], call.names[0])
    if wanted in call.api.ports:
        call.answer({"status": "ok", "protocol": call.names[0]})
        return
    failed = {
        "status": "failed",
        "reason": "No active listener",
        "missing": call.names[0],
        "protocols": sorted(call.api.ports),
    }
    call.answer(failed, 503)


@route("GET", "aliveness-test/{vhost}")
def aliveness(call: ManagementCall) -> None:
    call.vhost()
    health(call)


def _exchange_types() -> list[Json]:
    return [
        {"name": kind, "description": f"AMQP {kind} exchange", "enabled": True} for kind in (*KINDS, DELAYED)
    ]
