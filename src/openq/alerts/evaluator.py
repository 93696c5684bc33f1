"""The state machine of alerts. Pure: the time and what holds come in, transitions go out.

                    holds                    held for `for`
    (no alert) ------------> pending -------------------------> firing
         ^                      | does not hold                   |  ^
         |                      v                                 |  | holds again within the delay
         +----------------- (dropped)      does not hold for the delay
         |                                                        v
         +------- notified, or given up ---------------------- resolved

The delay is the `keep` of the rule. Flap damping: each time that an alert has fired within the last hour
doubles it, up to 15 minutes, so an alert that comes and goes becomes one alert that stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..alert_rules.rule import AlertRule
from .model import FIRING, MAX_FIRES, PENDING, RESOLVED, Alert, alert_id

FLAP_WINDOW_MS = 3_600_000
FLAPPING = 3  # times within the window
MAX_DELAY_S = 900.0
MAX_OF_RULE = 50  # alerts of one rule; further subjects are counted


class Finding(NamedTuple):
    """A rule that holds for a subject: the texts and figures of this moment."""

    summary: str
    action: str
    command: str
    figures: Mapping[str, float]


class Evaluator:
    """The alerts of one set of rules. `alerts` may be loaded from a store, and is what is stored."""

    def __init__(self, server: str = "") -> None:
        self.server = server
        self.alerts: dict[str, Alert] = {}

    def update(
        self, rule: AlertRule, kind: str, found: Mapping[str, Finding], now_ms: int, *, is_known: bool = True
    ) -> list[Alert]:
        """What holds now, by subject. Returns the alerts that have changed their state.

        `is_known` is False if the values could not be read: then nothing is resolved.
        """
        changed: list[Alert] = []
        known = {alert.subject: alert for alert in self.alerts.values() if alert.rule == rule.name}
        active = sum(alert.state != RESOLVED for alert in known.values())
        omitted = 0
        for subject, finding in found.items():
            alert = known.get(subject)
            if alert is None or alert.state == RESOLVED:
                if active >= MAX_OF_RULE:
                    omitted += 1
                    continue
                active += 1
                alert = self._begin(rule, kind, subject, alert, now_ms)
                changed.append(alert)
            self._describe(alert, rule, finding)
            alert.clear_ms = 0
            if alert.state == PENDING and now_ms - alert.since_ms >= rule.for_s * 1000:
                self._fire(alert, now_ms)
                if alert not in changed:
                    changed.append(alert)
        for alert in self.alerts.values():
            if alert.rule == rule.name:
                alert.omitted = omitted
        for subject, alert in known.items():
            if subject not in found and is_known and self._clear(alert, rule, now_ms):
                changed.append(alert)
        return changed

    def retain(self, rules: Mapping[str, AlertRule], now_ms: int) -> list[Alert]:
        """Rules that were removed or disabled: their alerts end."""
        changed: list[Alert] = []
        for alert in list(self.alerts.values()):
            if alert.rule in rules:
                continue
            if alert.state == PENDING:
                del self.alerts[alert.id]
                changed.append(alert)
            elif alert.state == FIRING:
                self._resolve(alert, now_ms)
                changed.append(alert)
        return changed

    def _begin(self, rule: AlertRule, kind: str, subject: str, before: Alert | None, now_ms: int) -> Alert:
        key = alert_id(rule.name, kind, subject, self.server)
        fires = [] if before is None else before.fires
        sent = {} if before is None else before.sent
        alert = self.alerts[key] = Alert(
            id=key,
            rule=rule.name,
            severity=rule.severity,
            kind=kind,
            subject=subject,
            server=self.server,
            since_ms=now_ms,
            fires=fires,
            sent=sent,
        )
        return alert

    def _describe(self, alert: Alert, rule: AlertRule, finding: Finding) -> None:
        alert.severity = rule.severity
        alert.summary = finding.summary
        alert.action = finding.action
        alert.command = finding.command
        alert.runbook = rule.runbook
        alert.figures = dict(finding.figures)

    def _fire(self, alert: Alert, now_ms: int) -> None:
        alert.state = FIRING
        alert.fired_ms = now_ms
        recent = [each for each in alert.fires if now_ms - each < FLAP_WINDOW_MS]
        alert.fires = [*recent, now_ms][-MAX_FIRES:]
        alert.is_flapping = len(alert.fires) >= FLAPPING

    def _clear(self, alert: Alert, rule: AlertRule, now_ms: int) -> bool:
        """The condition does not hold. Whether the state has changed."""
        if alert.state == PENDING:
            if alert.fires:
                alert.state = RESOLVED  # it fired before and did not again
                alert.resolved_ms = alert.fires[-1]
            else:
                del self.alerts[alert.id]
            return True
        if alert.state == RESOLVED or now_ms < alert.hold_ms:
            return False
        if not alert.clear_ms:
            alert.clear_ms = now_ms
        if now_ms - alert.clear_ms < delay_s(alert, rule, now_ms) * 1000:
            return False
        self._resolve(alert, now_ms)
        return True

    def _resolve(self, alert: Alert, now_ms: int) -> None:
        alert.state = RESOLVED
        alert.resolved_ms = now_ms
        alert.clear_ms = alert.hold_ms = 0


def delay_s(alert: Alert, rule: AlertRule, now_ms: int) -> float:
    """How long the condition must not hold before the alert is resolved."""
    times = sum(now_ms - each < FLAP_WINDOW_MS for each in alert.fires)
    return min(rule.keep_s * 2.0 ** max(0, times - 1), max(MAX_DELAY_S, rule.keep_s))
