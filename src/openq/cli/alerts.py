"""`openq alert`: what is wrong, the rules, silences, and a test of the destinations."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from .api import NotFound, UsageError, connect, path_part
from .output import count_text, duration_text, print_fields, print_json, print_list, print_result, shorten
from .terminal import EMPTY, FAILED, OK, say


def ls(options: Namespace) -> int:
    query = {"state": None if options.all else "active", "severity": options.severity}
    found = connect(options).get("/alerts", **query)
    print_list(
        options,
        found["alerts"],
        {
            "state": "state",
            "severity": "severity",
            "alert": "alert",
            "since": "since",
            "summary": lambda each: shorten(_summary(each), 90),
            "command": "command",
        },
        empty="no alerts" if found["enabled"] else "alerts are switched off in the configuration",
    )
    return OK if found["alerts"] else EMPTY


def show(options: Namespace) -> int:
    server = connect(options)
    try:
        rule: dict[str, Any] | None = server.get(f"/alerts/rules/{path_part(options.name)}")
    except NotFound as no_rule:
        rule = None
        try:
            alerts = [server.get(f"/alerts/{path_part(options.name)}")]
        except NotFound:
            raise no_rule from None  # it names the rule that may have been meant
    else:
        alerts = server.get("/alerts", alert=options.name)["alerts"]
    if options.json:
        print_json({"rule": rule, "alerts": alerts})
        return OK
    if rule is not None:
        _print_rule(rule)
    for alert in alerts:
        if rule is not None or alert is not alerts[0]:
            print()
        _print_alert(alert)
    return OK


def _print_rule(rule: dict[str, Any]) -> None:
    print_fields(
        [
            pair
            for pair in [
                ("rule", rule["name"]),
                ("meaning", rule["help"]),
                ("condition", rule["expression"]),
                ("limits", _limits(rule)),
                ("for", duration_text(rule["for"])),
                ("severity", rule["severity"]),
                ("enabled", rule["enabled"]),
                ("queues", ", ".join(rule["queues"])),
                ("to do", rule["action"]),
                ("command", rule["command"]),
                ("runbook", rule["runbook"]),
                ("origin", rule["origin"]),
            ]
            if pair[1] not in ("", None)
        ]
    )


def _print_alert(alert: dict[str, Any]) -> None:
    fields: list[tuple[str, object]] = [
        ("alert", f"{alert['alert']} ({alert['id']})"),
        ("state", alert["state"] + (", silenced" if alert["silenced"] else "")),
        ("severity", alert["severity"]),
        ("summary", _summary(alert)),
        ("since", alert["since"]),
        ("resolved", alert["resolved"]),
        ("server", alert["server"]),
        ("figures", ", ".join(f"{name} {value:g}" for name, value in alert["figures"].items())),
        ("to do", alert["action"]),
        ("command", alert["command"]),
        ("runbook", alert["runbook"]),
        ("notified", ", ".join(f"{name} at {at}" for name, at in alert["notified"].items())),
    ]
    print_fields([pair for pair in fields if pair[1] not in ("", None)])


def rules(options: Namespace) -> int:
    found = connect(options).get("/alerts/rules")["rules"]
    print_list(
        options,
        found,
        {
            "rule": "name",
            "severity": "severity",
            "on": lambda each: "yes" if each["enabled"] else "no",
            "for": lambda each: duration_text(each["for"]),
            "limits": _limits,
            "firing": "firing",
            "origin": "origin",
            "meaning": lambda each: shorten(each["help"] or each["expression"], 60),
        },
        empty="no rules",
        right=("firing",),
    )
    return OK


def set_rule(options: Namespace) -> int:
    given = {
        "limits": dict(options.limits) if options.limits else None,
        "expression": options.expression,
        "summary": options.summary,
        "action": options.action,
        "command": options.advice,
        "severity": options.severity,
        "for": options.for_s,
        "keep": options.keep,
        "queues": options.queues,
        "enabled": True if options.on else False if options.off else None,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise UsageError("give what to change, such as age=1h, --severity critical or --off")
    _, rule = connect(options).put(_path(options.name), body)
    print_result(options, rule, f"rule {options.name} is changed: {rule['expression']}; {_limits(rule)}")
    return OK


def reset(options: Namespace) -> int:
    done = connect(options).delete(_path(options.name))
    print_result(options, done, f"rule {options.name} is reset")
    return OK


def test(options: Namespace) -> int:
    body = {"alert": options.name, "destination": options.destination}
    report = connect(options).post(
        "/alerts/test", {name: value for name, value in body.items() if value}, timeout_s=120.0
    )
    outcomes = report["outcomes"]
    if options.json:
        print_json(report)
    else:
        print(report["text"])
        for each in outcomes:
            said = "accepted" if each["ok"] else f"not accepted: {each['error']}"
            print(f"{each['destination']} ({each['kind']}, {each['target']}): {said}")
        if not outcomes:
            say('no destination is configured: [alerts] webhook = "https://..." in openq.toml names one')
    return OK if outcomes and all(each["ok"] for each in outcomes) else FAILED


def destinations(options: Namespace) -> int:
    found = connect(options).get("/alerts/destinations")["destinations"]
    print_list(
        options,
        found,
        {
            "destination": "name",
            "kind": "kind",
            "to": "target",
            "from severity": "severity",
            "accepted": "accepted",
            "failed": "failed",
            "last": "last_accepted",
            "error": lambda each: shorten(each["error"] or "", 60),
        },
        empty='no destinations; [alerts] webhook = "https://..." in openq.toml names one',
        right=("accepted", "failed"),
    )
    return OK


def silence(options: Namespace) -> int:
    body = {
        "alert": options.name,
        "subject": options.subject,
        "seconds": options.for_s,
        "reason": options.reason,
    }
    made = connect(options).post("/alerts/silences", body)
    print_result(
        options, made, f"silenced until {made['until']}; `openq alert unsilence {made['id']}` ends it"
    )
    return OK


def silences(options: Namespace) -> int:
    found = connect(options).get("/alerts/silences")["silences"]
    columns = ("id", "alert", "subject", "until", "by", "reason")
    print_list(options, found, {name: name for name in columns}, empty="no silences")
    return OK


def unsilence(options: Namespace) -> int:
    done = connect(options).delete(f"/alerts/silences/{path_part(options.name)}")
    print_result(options, done, f"silence {options.name} ended")
    return OK


def history(options: Namespace) -> int:
    query = {"limit": min(options.limit, 1000), "alert": options.name}
    found = connect(options).get("/alerts/history", **query)["entries"]
    print_list(
        options,
        found,
        {
            "time": "time",
            "state": "state",
            "severity": "severity",
            "alert": "alert",
            "summary": lambda each: shorten(each["summary"], 90),
        },
        empty="no alert has fired",
    )
    return OK


def _path(name: str) -> str:
    return f"/alerts/rules/{path_part(name)}"


def _limits(rule: dict[str, Any]) -> str:
    return " ".join(f"{name}={_limit(value)}" for name, value in rule["limits"].items())


def _limit(value: float) -> str:
    """As `openq alert set` reads it: whole MiB and more with their unit."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if value >= size and value % (size / 4) == 0:
            return f"{value / size:g}{unit}"
    return f"{value:.15g}"


def _summary(alert: dict[str, Any]) -> str:
    more = alert["omitted"]
    text: str = alert["summary"]
    return f"{text} (and {count_text(more, 'more subject')})" if more else text
