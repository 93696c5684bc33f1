"""The server about itself: who is asking, what is running, whether it is well."""

from __future__ import annotations

from ..._version import __version__
from ...broker.damage import Damage
from ...names import split_name
from .call import Call
from .schemas import DamageCleared, DamageList, DamageView, HealthView, ServerView, Whoami
from .values import iso, seconds


def whoami(call: Call) -> None:
    principal = call.principal
    call.answer(
        Whoami(
            user=principal.user,
            account=principal.account,
            is_root=principal.is_root,
            open=call.site.guard.is_open,
        )
    )


def show_server(call: Call) -> None:
    site = call.site
    health = site.broker.health()
    call.answer(
        ServerView(
            version=__version__,
            started=iso(site.started_ms),
            uptime=seconds(site.now_ms() - site.started_ms),
            storage=site.broker.storage,
            queues=sum(map(call.is_ours, site.broker.queues())),
            healthy=health.ok,
            id_prefix=site.broker.id_prefix,
            detail=health.detail,
        )
    )


def show_health(call: Call) -> None:
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


def list_damage(call: Call) -> None:
    call.answer(DamageList(damage=[_damage_view(each) for each in call.broker.damage.listed()]))


def clear_damage(call: Call) -> None:
    damage = call.broker.damage
    call.look(lambda: DamageCleared(cleared=damage.clear()))  # it writes a file: not on the loop


def _damage_view(damage: Damage) -> DamageView:
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
