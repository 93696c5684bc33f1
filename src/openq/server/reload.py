"""Reload: what a running server takes over from its configuration, all or nothing.

SIGHUP and `POST /api/v1/server/reload` read the file and the environment again. Everything that can fail
comes first: certificates are loaded into contexts of their own, users are read, queues and schedules are
declared and taken back if one of them is refused. Then the rest is applied, which cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import KEYS, Config
from ..errors import OpenQError

RELOADABLE_KEYS = (
    *("log_level", "log_requests", "log_slow", "log_events", "log_events_sample"),
    *("audit_bytes", "audit_age_s"),
    *("max_request_bytes", "max_message_bytes", "max_buffer_bytes", "max_connections"),
    *("header_timeout_s", "body_timeout_s", "idle_timeout_s", "drain_timeout_s"),
    *("tls_cert", "tls_key"),
    *("ui_read_only", "ui_trace_url", "session_idle_s", "session_max_s"),
)


class NotReloaded(OpenQError):
    """The configuration is invalid, or a part of it is refused; nothing was changed."""

    code = "not_reloaded"

    def __init__(self, reason: str) -> None:
        super().__init__(f"not reloaded: {reason}; nothing was changed")
        self.reason = reason


@dataclass(slots=True)
class ReloadReport:
    """What a reload has changed."""

    changed: dict[str, tuple[object, object]] = field(default_factory=dict)  # key -> before, after
    declared: list[tuple[str, str]] = field(default_factory=list)  # action, name
    restart_needed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # declared earlier, and not in the file any more
    certificate: bool = False  # read again

    @property
    def changed_texts(self) -> list[str]:
        return [f"{key}: {_shown(old)} -> {_shown(new)}" for key, (old, new) in self.changed.items()]

    @property
    def declared_texts(self) -> list[str]:
        return [f"{action} {name}" for action, name in self.declared]

    def fields(self) -> dict[str, object]:
        """For the log and the audit log."""
        return {
            "changed": self.changed_texts,
            "declared": self.declared_texts,
            "restart_needed": self.restart_needed,
            "kept": self.kept,
            "users": True,
            "certificate": self.certificate,
        }


ThenReloaded = Callable[[ReloadReport | None, BaseException | None], None]
Reloader = Callable[[ThenReloaded], None]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def merged(running: Config, wanted: Config) -> Config:
    """The running configuration with what can be reloaded from the wanted one."""
    values: dict[str, Any] = {key: getattr(wanted, key) for key in RELOADABLE_KEYS}
    if (running.tls_cert is None) != (wanted.tls_cert is None):  # TLS cannot be switched on or off
        values["tls_cert"], values["tls_key"] = running.tls_cert, running.tls_key
    return replace(
        running,
        **values,
        queues=wanted.queues,
        schedules=wanted.schedules,
        webhooks=wanted.webhooks,
        alerts=wanted.alerts,
        origins=wanted.origins,
    )


def compare(running: Config, wanted: Config) -> ReloadReport:
    """What changes, and what needs a restart."""
    taken = merged(running, wanted)
    report = ReloadReport(certificate=taken.tls_cert is not None)
    for key in RELOADABLE_KEYS:
        before, after = getattr(running, key), getattr(taken, key)
        if before != after:
            report.changed[key] = (before, after)
    report.changed.update(_changed_alerts(running, wanted))
    report.restart_needed = [key for key in KEYS if getattr(taken, key) != getattr(wanted, key)]
    report.kept = removed(running, wanted)
    return report


def _changed_alerts(running: Config, wanted: Config) -> dict[str, tuple[object, object]]:
    """By rule and destination. A secret may have changed: values of destinations are not shown."""
    before, after = running.alerts, wanted.alerts
    found: dict[str, tuple[object, object]] = {}
    for key, name in (("enabled", "enabled"), ("interval_s", "interval"), ("repeat_s", "repeat")):
        if getattr(before, key) != getattr(after, key):
            found[f"alerts.{name}"] = getattr(before, key), getattr(after, key)
    for name in sorted({*before.rules, *after.rules}):
        old, new = (dict(each.rules[name]) if name in each.rules else None for each in (before, after))
        if old != new:
            found[f"alerts.rules.{name}"] = old, new
    destinations = [{each.name: each for each in config.destinations} for config in (before, after)]
    for name in sorted({*destinations[0], *destinations[1]}):
        past, next_ = (each.get(name) for each in destinations)
        if past != next_:
            kinds = [None if each is None else each.kind for each in (past, next_)]
            found[f"alerts.destinations.{name}"] = kinds[0], kinds[1]
    return found


def removed(running: Config, wanted: Config) -> list[str]:
    """Tables that are not in the file any more. What they declared stays: a typing error must not delete."""
    found: list[str] = []
    tables: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("queues", running.queues, wanted.queues),
        ("schedules", running.schedules, wanted.schedules),
        ("webhooks", running.webhooks, wanted.webhooks),
    )
    for kind, before, after in tables:
        found += [f"{kind}.{name}" for name in before if name not in after]
    return found
