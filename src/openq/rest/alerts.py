"""Alerts: what is wrong now and was before, the rules, silences, and a test of the destinations.

Reading needs `peek` of the server, changing needs `admin`. Destinations are in the configuration file only:
they contain secrets, and may be private addresses.
"""

from __future__ import annotations

import os

from msgspec import UNSET

from ..alert_rules.rule import AlertRule, one_line
from ..alerts.messages import text_of
from ..alerts.model import Alert, HistoryEntry, Silence
from ..alerts.service import AlertService
from ..documents.values import iso, iso_or_none
from ..names import DEFAULT_ACCOUNT, split_name
from .alert_schemas import (
    AlertHistory,
    AlertItem,
    AlertList,
    AlertQuery,
    AlertRuleView,
    AlertTest,
    DestinationList,
    DestinationView,
    HistoryItem,
    HistoryQuery,
    NewSilence,
    RuleChange,
    RuleId,
    RuleList,
    SilenceList,
    SilenceView,
    TestOutcome,
    TestReport,
)
from .call import RestCall
from .problems import Problem
from .routes import route

_STATES = ("pending", "firing", "resolved")


def _service(call: RestCall) -> AlertService:
    service = call.context.alerts
    assert isinstance(service, AlertService)
    return service


# -- views --------------------------------------------------------------------------------------


def _subject(kind: str, subject: str) -> tuple[str, str | None]:
    """Its account and its name."""
    if not subject:
        return DEFAULT_ACCOUNT, None
    return split_name(subject)


def _item(service: AlertService, alert: Alert) -> AlertItem:
    account, subject = _subject(alert.kind, alert.subject)
    silence = service.silenced_by(alert)
    return AlertItem(
        id=alert.id,
        alert=alert.rule,
        state=alert.state,  # type: ignore[arg-type]
        severity=alert.severity,  # type: ignore[arg-type]
        kind=alert.kind,
        subject=subject,
        account=UNSET if account == DEFAULT_ACCOUNT else account,
        server=alert.server or None,
        summary=alert.summary,
        action=alert.action,
        command=alert.command,
        runbook=alert.runbook,
        figures={name: value for name, value in alert.figures.items() if abs(value) < 1e300},
        since=iso(alert.since_ms),
        fired=iso_or_none(alert.fired_ms),
        resolved=iso_or_none(alert.resolved_ms),
        flapping=alert.is_flapping,
        omitted=alert.omitted,
        silenced=None if silence is None else silence.id,
        notified={name: iso(sent.at_ms) for name, sent in alert.sent.items() if sent.state == alert.state},
    )


def _rule_view(rule: AlertRule, origin: str, alerts: list[Alert]) -> AlertRuleView:
    states = [alert.state for alert in alerts if alert.rule == rule.name]
    return AlertRuleView(
        name=rule.name,
        enabled=rule.enabled,
        severity=rule.severity,  # type: ignore[arg-type]
        expression=rule.expression,
        limits=dict(rule.limits),
        for_=rule.for_s,
        keep=rule.keep_s,
        queues=list(rule.queues),
        summary=rule.summary,
        action=rule.action,
        command=rule.command,
        figures=dict(rule.figures),
        help=rule.help,
        runbook=rule.runbook,
        origin=origin,  # type: ignore[arg-type]
        firing=states.count("firing"),
        pending=states.count("pending"),
    )


def _history_item(entry: HistoryEntry) -> HistoryItem:
    return HistoryItem(
        time=iso(entry.time_ms),
        id=entry.id,
        alert=entry.rule,
        state=entry.state,  # type: ignore[arg-type]
        severity=entry.severity,  # type: ignore[arg-type]
        kind=entry.kind,
        subject=_subject(entry.kind, entry.subject)[1],
        server=entry.server or None,
        since=iso(entry.since_ms),
        summary=entry.summary,
    )


def _silence_view(silence: Silence) -> SilenceView:
    return SilenceView(
        id=silence.id,
        alert=silence.rule,
        subject=silence.subject,
        until=iso(silence.until_ms),
        created=iso(silence.created_ms),
        by=silence.by,
        reason=silence.reason,
    )


# -- alerts -------------------------------------------------------------------------------------


@route(
    "GET",
    "alerts",
    permission="peek",
    scope="server",
    summary="List alerts: pending, firing, and resolved within the last hour",
    query=AlertQuery,
    reply=AlertList,
)
def list_alerts(call: RestCall) -> None:
    """Firing ones first, the newest first."""
    query, service = call.query, _service(call)
    if query.state not in ("", "active", *_STATES):
        raise Problem("invalid", f"state is one of active, {', '.join(_STATES)}")
    states = {"": _STATES, "active": _STATES[:2]}.get(query.state, (query.state,))

    def work() -> AlertList:
        found = [
            alert
            for alert in service.alerts()
            if alert.state in states
            and query.severity in (None, alert.severity)
            and query.alert in ("", alert.rule)
        ]
        return AlertList(
            alerts=[_item(service, alert) for alert in found],
            evaluator=service.evaluator,
            evaluated=iso_or_none(service.evaluated_ms),
            enabled=service.config.enabled,
        )

    call.answer_with(work)


@route(
    "GET",
    "alerts/history",
    permission="peek",
    scope="server",
    summary="List what alerts fired and were resolved",
    query=HistoryQuery,
    reply=AlertHistory,
)
def list_alert_history(call: RestCall) -> None:
    query, service = call.query, _service(call)

    def work() -> AlertHistory:
        found = [each for each in service.store.history() if query.alert in ("", each.rule)]
        return AlertHistory(entries=[_history_item(each) for each in found[: query.limit]])

    call.answer_with(work)


@route(
    "GET",
    "alerts/destinations",
    permission="admin",
    scope="server",
    summary="List the destinations of notifications",
    reply=DestinationList,
)
def list_alert_destinations(call: RestCall) -> None:
    channels = _service(call).notifier.channels
    call.answer(
        DestinationList(
            destinations=[
                DestinationView(
                    name=name,
                    kind=channel.destination.kind,
                    target=channel.destination.target,
                    severity=channel.destination.severity,  # type: ignore[arg-type]
                    rules=list(channel.destination.rules),
                    rate=channel.destination.rate,
                    accepted=channel.accepted,
                    failed=channel.failed,
                    last_accepted=iso_or_none(channel.last_ms),
                    error=channel.error,
                )
                for name, channel in sorted(channels.items())
            ]
        )
    )


@route(
    "POST",
    "alerts/test",
    permission="admin",
    scope="server",
    summary="Send a sample of an alert to the destinations",
    request=AlertTest,
    reply=TestReport,
)
def test_alerts(call: RestCall) -> None:
    """The sample is marked as a test. The reply says what each destination answered."""
    body, service = call.body, _service(call)
    if body.destination is not None and body.destination not in service.notifier.channels:
        raise Problem("destination_not_found", f"destination {body.destination[:100]!r} is not configured")

    def work() -> TestReport:
        alert = service.sample(body.alert)
        outcomes = service.notifier.test(alert, body.destination)
        return TestReport(
            alert=body.alert,
            text=text_of(alert),
            outcomes=[
                TestOutcome(
                    destination=each.name, kind=each.kind, target=each.target, ok=error is None, error=error
                )
                for each, error in outcomes
            ],
        )

    call.seek(work)


# -- rules --------------------------------------------------------------------------------------


@route("GET", "alerts/rules", permission="peek", scope="server", summary="List alert rules", reply=RuleList)
def list_alert_rules(call: RestCall) -> None:
    service = _service(call)

    def work() -> RuleList:
        alerts = service.alerts()
        rules = sorted(service.rules().values(), key=lambda pair: (not pair[0].is_builtin, pair[0].name))
        return RuleList(rules=[_rule_view(rule, origin, alerts) for rule, origin in rules])

    call.answer_with(work)


@route(
    "GET",
    "alerts/rules/{rule}",
    permission="peek",
    scope="server",
    summary="Show an alert rule",
    reply=AlertRuleView,
)
def show_alert_rule(call: RestCall) -> None:
    service = _service(call)
    call.answer_with(lambda: _rule_view(*service.rule(call.args[0]), service.alerts()))


@route(
    "PUT",
    "alerts/rules/{rule}",
    permission="admin",
    scope="server",
    summary="Change an alert rule, or add one",
    request=RuleChange,
    reply=AlertRuleView,
)
def put_alert_rule(call: RestCall) -> None:
    """A change outweighs the configuration file, until the rule is reset."""
    service = _service(call)
    fields = call.body.given()

    def work() -> AlertRuleView:
        return _rule_view(service.put_rule(call.args[0], fields), "api", [])

    call.change(work)


@route(
    "DELETE",
    "alerts/rules/{rule}",
    permission="admin",
    scope="server",
    summary="Reset an alert rule to what the configuration says; remove an added one",
    reply=RuleId,
)
def reset_alert_rule(call: RestCall) -> None:
    service = _service(call)

    def work() -> RuleId:
        service.reset_rule(call.args[0])
        return RuleId(id=call.args[0])

    call.change(work)


# -- silences -----------------------------------------------------------------------------------


@route(
    "GET", "alerts/silences", permission="peek", scope="server", summary="List silences", reply=SilenceList
)
def list_silences(call: RestCall) -> None:
    service = _service(call)
    call.answer_with(lambda: SilenceList(silences=[_silence_view(each) for each in service.silences()]))


@route(
    "POST",
    "alerts/silences",
    permission="admin",
    scope="server",
    summary="Send no notifications of some alerts for a time",
    request=NewSilence,
    reply=SilenceView,
    status=(201,),
)
def add_silence(call: RestCall) -> None:
    """Alerts are evaluated and shown all the same. Destinations that know of an alert hear of its end."""
    body, service = call.body, _service(call)
    now_ms = call.context.now_ms()
    silence = Silence(
        id=os.urandom(6).hex(),
        rule=body.alert,
        subject=body.subject,
        until_ms=now_ms + int(body.seconds * 1000),
        created_ms=now_ms,
        by=call.principal.user,
        reason=one_line(body.reason),
    )

    def work() -> SilenceView:
        service.silence(silence)
        call.broker.sync()
        return _silence_view(silence)

    call.work(work, lambda view: call.answer(view, 201))


@route(
    "DELETE",
    "alerts/silences/{silence}",
    permission="admin",
    scope="server",
    summary="End a silence",
    reply=RuleId,
)
def remove_silence(call: RestCall) -> None:
    service = _service(call)

    def work() -> RuleId:
        if not service.unsilence(call.args[0]):
            raise Problem("silence_not_found", f"silence {call.args[0][:100]!r} does not exist")
        return RuleId(id=call.args[0])

    call.change(work)


@route(
    "GET",
    "alerts/{alert}",
    permission="peek",
    scope="server",
    summary="Show an alert by its id",
    reply=AlertItem,
)
def show_alert(call: RestCall) -> None:
    service = _service(call)

    def work() -> AlertItem:
        for alert in service.alerts():
            if alert.id == call.args[0]:
                return _item(service, alert)
        raise Problem("alert_not_found", f"alert {call.args[0][:100]!r} does not exist")

    call.answer_with(work)
