"""Vhosts of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import OpenQError
from .call import Json, ManagementCall, not_found
from .queues import DEPTHS, visible_queues
from .routes import route
from .users import forget_vhost


def _vhost_info(call: ManagementCall, vhost: str, queue_keys: Iterable[str]) -> Json:
    depths = dict.fromkeys(DEPTHS, 0)
    for queue_key in queue_keys:
        try:
            stats = call.context.broker.stats(queue_key)
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
        "cluster_state": {call.api.node: "running"},
        **depths,
    }


@route("GET", "vhosts")
def vhosts(call: ManagementCall) -> None:
    visible = {
        each: visible_queues(call, each) for each in call.topology.vhosts() if call.can_see_vhost(each)
    }
    call.answer_list(lambda: [_vhost_info(call, vhost, queue_keys) for vhost, queue_keys in visible.items()])


@route("GET", "vhosts/{vhost}")
def vhost(call: ManagementCall) -> None:
    vhost = call.vhost()
    visible = visible_queues(call, vhost)
    call.answer_from_thread(lambda: _vhost_info(call, vhost, visible))


@route("PUT", "vhosts/{vhost}", permission="admin")
def put_vhost(call: ManagementCall) -> None:
    call.answer_changed(call.topology.add_vhost(call.names[0]))


@route("DELETE", "vhosts/{vhost}", permission="admin")
def delete_vhost(call: ManagementCall) -> None:
    vhost = call.names[0]
    if not call.topology.remove_vhost(vhost):
        raise not_found()

    def work() -> None:
        forget_vhost(call.context.guard.store, vhost)
        call.topology.policies.save()

    call.run_in_thread(work, lambda _: call.answer_changed())
