"""The server about itself: who is asking, what is running, whether it is well."""

from __future__ import annotations

from ..._version import __version__
from .call import Call
from .schemas import HealthView, ServerView, Whoami
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
    view = HealthView(ok=health.ok, detail=health.detail, disk_full=health.disk_full)
    call.answer(view, 200 if health.ok else 503)
