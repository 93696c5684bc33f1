"""Policies and definitions of the management API."""

from __future__ import annotations

import logging

from ..definitions import ImportReport, read
from ..definitions_export import export
from ..definitions_import import apply_topology, apply_users
from ..policies import InvalidAmqpPolicy, Policy
from .call import ManagementCall, bad_request, not_found, paginate
from .routes import route

log = logging.getLogger("openq.management")


@route("GET", "policies")
def policies(call: ManagementCall) -> None:
    found = [each.to_json() for each in call.topology.policies.all() if call.can_see_vhost(each.vhost)]
    call.answer(paginate(found, call.query))


@route("GET", "policies/{vhost}")
def policies_of(call: ManagementCall) -> None:
    call.answer(paginate([each.to_json() for each in call.topology.policies.all(call.vhost())], call.query))


@route("GET", "policies/{vhost}/{policy}")
def policy(call: ManagementCall) -> None:
    found = call.topology.policies.get(call.vhost(), call.names[1])
    if found is None:
        raise not_found()
    call.answer_object(found.to_json())


@route("PUT", "policies/{vhost}/{policy}", permission="admin")
def put_policy(call: ManagementCall) -> None:
    vhost, name = call.vhost(), call.names[1]
    body = call.required("pattern", "definition")
    try:
        policy = Policy.from_json({**body, "vhost": vhost, "name": name})
    except InvalidAmqpPolicy as error:
        raise bad_request(f"Validation failed\n\n{error}\n") from error
    before = call.topology.policies.get(vhost, name)
    call.topology.set_policy(policy)
    _save_policies(call, vhost, name, before, before is None)


@route("DELETE", "policies/{vhost}/{policy}", permission="admin")
def delete_policy(call: ManagementCall) -> None:
    vhost, name = call.vhost(), call.names[1]
    before = call.topology.policies.get(vhost, name)
    if not call.topology.clear_policy(vhost, name):
        raise not_found()
    _save_policies(call, vhost, name, before, False)


def _save_policies(call: ManagementCall, vhost: str, name: str, before: Policy | None, is_new: bool) -> None:
    """Undo the change if it cannot be stored: a restart must not change what applies."""

    def finished(_: None, error: BaseException | None) -> None:
        if error is not None:
            call.topology.restore_policy(vhost, name, before)
        if call.request.gone:
            return
        if error is not None:
            call.fail(error)
        else:
            call.answer_changed(is_new)

    call.context.run(call.topology.policies.save, finished)


@route("GET", "definitions", permission="admin")
@route("GET", "all-configuration", permission="admin")
def get_definitions(call: ManagementCall) -> None:
    call.answer_from_thread(lambda: export(call.topology, call.context.guard.store))


@route("GET", "definitions/{vhost}", permission="admin")
def get_vhost_definitions(call: ManagementCall) -> None:
    vhost = call.vhost()
    call.answer_from_thread(lambda: export(call.topology, None, vhost))


@route("POST", "definitions", permission="admin")
@route("POST", "all-configuration", permission="admin")
@route("POST", "definitions/{vhost}", permission="admin")
def post_definitions(call: ManagementCall) -> None:
    """RabbitMQ answers 204 without a body; with `?report=true` the reply is the import report."""
    wanted = read(call.body(), call.vhost() if call.names else None)
    report = ImportReport()
    apply_topology(call.topology, wanted, report)

    def work() -> None:
        apply_users(call.context.guard.store, wanted, report)
        call.topology.policies.save()
        call.context.broker.sync()

    def done(_: None) -> None:
        for line in (*report.not_converted, *report.hints):
            log.warning("definitions: %s", line)
        if call.query.get("report") == "true":
            call.answer(report.to_json())
        else:
            call.answer_changed()

    call.run_in_thread(work, done)
