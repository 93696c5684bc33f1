"""What each kind of destination gets: the bodies of requests and mails. Pure.

No secret can be in a text: texts are made of the rule, names and figures. The routing key of PagerDuty is in
its body, as its API demands, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from math import isfinite
from typing import Any

from .._version import __version__
from ..alert_rules.tables import Destination
from ..documents.values import iso
from ..names import DEFAULT_ACCOUNT, split_name
from .model import FIRING, RESOLVED, Alert

DOCS = "docs/"
ALERTMANAGER_LIFE_MS = 180_000  # sent again each minute while it fires
_SLACK_COLOURS = {"critical": "danger", "warning": "warning", "info": "#439FE0"}
_MAX_SHOWN = 20  # alerts in one text
_SUBJECT = 180


def labels_of(alert: Alert) -> dict[str, str]:
    """As Prometheus names them; the same for an alert each time that it fires."""
    found = {"alertname": alert.rule, "severity": alert.severity}
    if alert.kind == "queue":
        account, queue = split_name(alert.subject)
        found["queue"] = queue
        if account != DEFAULT_ACCOUNT:
            found["account"] = account
    elif alert.subject:
        found[alert.kind] = split_name(alert.subject)[1]
    if alert.server:
        found["server"] = alert.server
    return found


def document(alert: Alert) -> dict[str, Any]:
    """An alert as JSON: in webhooks, and in the custom details of PagerDuty."""
    return {
        "id": alert.id,
        "alert": alert.rule,
        "state": alert.state,
        "severity": alert.severity,
        "summary": alert.summary,
        "labels": labels_of(alert),
        "since": iso(alert.since_ms),
        "fired": iso(alert.fired_ms) if alert.fired_ms else None,
        "resolved": iso(alert.resolved_ms) if alert.state == RESOLVED else None,
        "figures": {name: value for name, value in alert.figures.items() if isfinite(value)},
        "action": alert.action,
        "command": alert.command,
        "runbook": alert.runbook,
        "flapping": alert.is_flapping,
        "omitted": alert.omitted,
        "test": alert.is_test,
    }


def headline(alerts: Sequence[Alert]) -> str:
    """One line for all: of a mail the subject."""
    test = "TEST " if any(each.is_test for each in alerts) else ""
    firing = [each for each in alerts if each.state == FIRING]
    shown = firing or list(alerts)
    state = "FIRING" if firing else "RESOLVED"
    worst = max((each.severity for each in shown), key=_rank)
    if len(alerts) == 1:
        return f"[{test}{state} {worst}] {alerts[0].rule}: {alerts[0].summary}"
    rules = ", ".join(dict.fromkeys(each.rule for each in shown))
    rest = f", {len(alerts) - len(firing)} resolved" if firing and len(firing) < len(alerts) else ""
    return f"[{test}{state} {worst}] {len(shown)} alerts{rest}: {rules}"


def _rank(severity: str) -> int:
    return ("info", "warning", "critical").index(severity)


def text_of(alert: Alert) -> str:
    """What is wrong, since when, what to do, and the command for it."""
    lines = [f"{alert.state.upper()} {alert.severity}: {alert.rule}", alert.summary]
    lines.append(f"since:   {iso(alert.since_ms)}")
    if alert.state == RESOLVED:
        lines.append(f"ended:   {iso(alert.resolved_ms)}")
    if alert.omitted:
        lines.append(f"and {alert.omitted} more of the same rule; `openq alert ls` counts them")
    if alert.is_flapping:
        lines.append(f"it fired {len(alert.fires)} times within an hour: it is resolved later each time")
    if alert.state != RESOLVED:
        if alert.action:
            lines.append(f"to do:   {alert.action}")
        if alert.command:
            lines.append(f"command: {alert.command}")
        if alert.runbook:
            lines.append(f"runbook: {DOCS}{alert.runbook}")
    return "\n".join(lines)


def full_text(alerts: Sequence[Alert]) -> str:
    shown = "\n\n".join(text_of(each) for each in alerts[:_MAX_SHOWN])
    more = len(alerts) - _MAX_SHOWN
    return shown + (f"\n\nand {more} more: openq alert ls" if more > 0 else "")


# -- kinds ----------------------------------------------------------------------------------------


def webhook_body(alerts: Sequence[Alert], server: str, now_ms: int) -> bytes:
    data = {"server": server, "text": headline(alerts), "alerts": [document(each) for each in alerts]}
    return _json({"type": "openq.alert", "timestamp": iso(now_ms), "data": data})


def slack_body(alerts: Sequence[Alert]) -> bytes:
    attachments = [
        {
            "color": "good" if each.state == RESOLVED else _SLACK_COLOURS[each.severity],
            "fallback": _slack_text(f"{each.rule}: {each.summary}"),
            "text": _slack_text(text_of(each)),
        }
        for each in alerts[:_MAX_SHOWN]
    ]
    return _json({"text": _slack_text(headline(alerts)), "attachments": attachments})


def _slack_text(text: str) -> str:
    """The three characters that Slack gives a meaning: names of queues must not mention a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pagerduty_body(alert: Alert, destination: Destination, server: str) -> bytes:
    """Events API v2. The key of the incident is the id: a repetition changes it, and opens no second one."""
    event: dict[str, Any] = {
        "routing_key": destination.routing_key,
        "event_action": "resolve" if alert.state == RESOLVED else "trigger",
        "dedup_key": f"openq-{alert.id}" + ("-test" if alert.is_test else ""),
    }
    if alert.state != RESOLVED:
        event["payload"] = {
            "summary": f"{alert.rule}: {alert.summary}"[:1024],
            "source": alert.server or server,
            "severity": alert.severity,
            "timestamp": iso(alert.fired_ms or alert.since_ms),
            "component": alert.subject or alert.kind,
            "class": alert.rule,
            "custom_details": document(alert),
        }
        event["client"] = "OpenQ"
    return _json(event)


def alertmanager_body(alerts: Sequence[Alert], now_ms: int) -> bytes:
    """`POST /api/v2/alerts`. An alert that is not sent again ends by itself."""
    found = []
    for each in alerts:
        end_ms = each.resolved_ms if each.state == RESOLVED else now_ms + ALERTMANAGER_LIFE_MS
        labels = {**labels_of(each), **({"test": "true"} if each.is_test else {})}
        annotations = {"summary": each.summary, "action": each.action, "command": each.command}
        if each.runbook:
            annotations["runbook"] = DOCS + each.runbook
        found.append(
            {
                "labels": labels,
                "annotations": {name: text for name, text in annotations.items() if text},
                "startsAt": iso(each.fired_ms or each.since_ms),
                "endsAt": iso(end_ms),
            }
        )
    return _json(found)


def mail(alerts: Sequence[Alert], destination: Destination, server: str, now_ms: int) -> EmailMessage:
    message = EmailMessage()
    message["Subject"] = headline(alerts)[:_SUBJECT]
    message["From"] = _mailbox(destination.sender)
    message["To"] = [_mailbox(each) for each in destination.to]
    message["Date"] = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    # Programs that answer mails must not answer this one.
    message["Auto-Submitted"] = "auto-generated"
    message["X-Mailer"] = f"openq/{__version__}"
    message["X-OpenQ-Alerts"] = ", ".join(sorted({each.id for each in alerts[:_MAX_SHOWN]}))
    message.set_content(f"{full_text(alerts)}\n\n-- \nOpenQ at {server}\n")
    return message


def _mailbox(text: str) -> Address:
    name, _, domain = text.rpartition("@")
    return Address(username=name, domain=domain)


def _json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", "replace")
