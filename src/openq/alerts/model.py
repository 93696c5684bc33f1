"""An alert, a silence and an entry of the history, as they are stored."""

from __future__ import annotations

import hashlib

import msgspec

from ..auth.rules import matches
from ..names import split_name

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"
MAX_FIRES = 20


class Sent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a destination has accepted last."""

    state: str
    at_ms: int


class Alert(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One rule that holds for one subject. `id` is the same each time that it fires."""

    id: str
    rule: str
    severity: str
    kind: str  # queue, cursor, webhook, schedule, worker, server, store, total
    subject: str = ""  # the queue key, or the name of the cursor, webhook, ...
    server: str = ""  # of a rule that each server has for itself
    state: str = PENDING
    since_ms: int = 0  # when the condition began to hold
    fired_ms: int = 0
    clear_ms: int = 0  # when it ceased to hold; 0: it holds
    resolved_ms: int = 0
    hold_ms: int = 0  # not resolved before: what led to it is in no window after a restart
    summary: str = ""
    action: str = ""
    command: str = ""
    runbook: str = ""
    figures: dict[str, float] = {}
    fires: list[int] = []  # the last times that it fired
    is_flapping: bool = False
    omitted: int = 0  # further subjects for which the rule holds, beyond the limit
    sent: dict[str, Sent] = {}
    is_test: bool = False

    @property
    def queue(self) -> str:
        return self.subject if self.kind == "queue" else ""


class Silence(msgspec.Struct, kw_only=True, omit_defaults=True):
    """No notifications of these alerts until `until_ms`. Patterns; an empty one holds for all."""

    id: str
    rule: str = "*"
    subject: str = ""
    until_ms: int
    created_ms: int
    by: str = ""
    reason: str = ""

    def covers(self, alert: Alert, now_ms: int) -> bool:
        if now_ms >= self.until_ms or not matches(self.rule, alert.rule):
            return False
        if not self.subject:
            return True
        short = split_name(alert.subject)[1] if alert.subject else alert.server
        return matches(self.subject, short)


class HistoryEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    time_ms: int
    id: str
    rule: str
    severity: str
    state: str
    subject: str = ""
    kind: str = ""
    server: str = ""
    since_ms: int = 0
    summary: str = ""


def alert_id(rule: str, kind: str, subject: str, server: str) -> str:
    text = "\0".join((rule, kind, subject, server))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
