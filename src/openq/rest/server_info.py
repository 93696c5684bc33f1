"""The server: caller, version, health, damage."""

from __future__ import annotations

from .._version import __version__
from ..broker.damage import DamageReport
from ..config import KEYS
from ..documents.values import iso, seconds
from ..names import split_name
from ..parsing import toml_text
from ..server.reload import ReloadReport
from .call import RestCall
from .problems import Problem
from .routes import route
from .user_schemas import (
    ConfigSetting,
    ConfigView,
    DamageCleared,
    DamageList,
    DamageView,
    HealthView,
    ReloadView,
    ServerView,
    Whoami,
)


@route("GET", "whoami", permission="none", scope="caller", summary="The authenticated caller", reply=Whoami)
def whoami(call: RestCall) -> None:
    principal = call.principal
    call.answer(
        Whoami(
            user=principal.user,
            account=principal.account,
            is_root=principal.is_root,
            open=call.context.guard.is_open,
        )
    )


@route(
    "GET",
    "server",
    permission="none",
    scope="caller",
    summary="Version, uptime and storage of the server",
    reply=ServerView,
)
def show_server(call: RestCall) -> None:
    context = call.context
    health = context.broker.health()
    call.answer(
        ServerView(
            version=__version__,
            started=iso(context.started_ms),
            uptime=seconds(context.now_ms() - context.started_ms),
            storage=context.broker.storage.name,
            queues=sum(map(call.is_own, context.broker.queues())),
            healthy=health.ok,
            id_prefix=context.broker.storage.id_prefix,
            detail=health.detail,
        )
    )


@route(
    "GET",
    "health",
    permission="none",
    scope="public",
    summary="Health",
    reply=HealthView,
    status=(200, 503),
)
def show_health(call: RestCall) -> None:
    health = call.broker.health()
    view = HealthView(
        ok=health.ok,
        status=health.status,
        detail=health.detail,
        disk_full=health.disk_full,
        reasons=list(health.degraded),
        hint=health.hint,
    )
    call.answer(view, 200 if health.ok else 503)


@route(
    "POST",
    "server/reload",
    permission="admin",
    scope="server",
    summary="Read the configuration, users and certificates of the server again",
    reply=ReloadView,
    status=(200, 409),
)
def reload_server(call: RestCall) -> None:
    """Like SIGHUP. An invalid configuration changes nothing and is answered with 409."""

    def reloaded(report: ReloadReport | None, error: BaseException | None) -> None:
        if report is None:
            call.fail(error or RuntimeError())
            return
        if call.audit_detail is not None:
            call.audit_detail.update(report.fields())
        call.answer(
            ReloadView(
                changed=report.changed_texts,
                declared=report.declared_texts,
                restart_needed=report.restart_needed,
                kept=report.kept,
                certificate=report.certificate,
            )
        )

    if call.context.reload is None:
        raise Problem("not_reloaded", "this process has no configuration to reload")
    call.context.reload(reloaded)


@route(
    "GET",
    "server/config",
    permission="admin",
    scope="server",
    summary="The configuration of the server, each value with its origin",
    reply=ConfigView,
)
def show_config(call: RestCall) -> None:
    """Like `openq config show --origin`. Passwords and secrets are left out."""
    rows = call.context.config.describe()
    call.answer(
        ConfigView(
            settings=[
                ConfigSetting(
                    name=name,
                    value=None if value is None else toml_text(value),
                    origin=origin,
                    help=KEYS[name].help if name in KEYS else "",
                )
                for name, value, origin in rows
            ]
        )
    )


@route(
    "GET",
    "damage",
    permission="admin",
    scope="server",
    summary="List damage: unreadable, set aside or lost data",
    reply=DamageList,
)
def list_damage(call: RestCall) -> None:
    call.answer(DamageList(damage=[_damage_view(each) for each in call.broker.inspect.damage.listed()]))


@route(
    "DELETE",
    "damage",
    permission="admin",
    scope="server",
    summary="Clear the list of damage and the degraded health",
    reply=DamageCleared,
)
def clear_damage(call: RestCall) -> None:
    damage = call.broker.inspect.damage
    call.answer_with(lambda: DamageCleared(cleared=damage.clear()))  # it writes a file: not on the loop


def _damage_view(damage: DamageReport) -> DamageView:
    account, queue = split_name(damage.queue) if damage.queue else (None, None)
    return DamageView(
        kind=damage.kind,
        account=account,
        queue=queue,
        id=damage.message_id or None,
        file=damage.file or None,
        offset=damage.offset,
        count=damage.count,
        time=iso(damage.time_ms),
        detail=damage.detail,
    )
