"""Every built-in rule, its texts and its command; the configuration of rules and destinations."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from openq.alert_rules import expression
from openq.alert_rules.builtin import BUILTIN, BY_NAME
from openq.alert_rules.rule import (
    SAMPLE_NAMES,
    AlertRule,
    CompiledRule,
    render,
    render_command,
    sample_figures,
)
from openq.alert_rules.tables import AlertConfig, InvalidAlerts, read_alerts, rules_of
from openq.cli.main import find_command
from openq.cli.parser import Parser
from openq.config import load
from tests.alerts.helpers import FakeSource
from tests.isolation import ROOT

GUIDE = (ROOT / "docs" / "ALERTS.md").read_text()

SPAN = 20
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name -> signals for which it holds, and what of them is different when it does not
    "dead-letters": ({"queue.dead_lettered": [(0, 4), (9, 5)]}, {"queue.dead_lettered": [(0, 5), (9, 5)]}),
    "oldest-message": (
        {"queue.oldest_age": 901, "queue.is_dead_letter": 0, "queue.is_paused": 0},
        {"queue.is_dead_letter": 1},
    ),
    "backlog-grows": (
        {
            "queue.ready": [(30.0 * at, 2000.0 + 60 * at) for at in range(SPAN)],
            "queue.published": [(0, 0), (600, 2000)],
            "queue.acked": [(0, 0), (600, 800)],
            "queue.is_dead_letter": 0,
            "queue.is_paused": 0,
        },
        {"queue.acked": [(0, 0), (600, 2000)]},
    ),
    "nobody-consumes": (
        {
            "queue.ready": 1,
            "queue.in_flight": 0,
            "queue.consumers": 0,
            "queue.limited": 0,
            "queue.delivered": [(0, 7), (9, 7)],
            "queue.is_dead_letter": 0,
            "queue.is_paused": 0,
        },
        {"queue.consumers": 1},
    ),
    "error-rate": (
        {
            "queue.delivered": [(0, 0), (9, 20)],
            "queue.nacked": [(0, 0), (9, 4)],
            "queue.lease_expired": [(0, 0), (9, 2)],
        },
        {"queue.lease_expired": [(0, 0), (9, 1)]},
    ),
    "redelivery-storm": (
        {"queue.delivered": [(0, 0), (9, 150)], "queue.redelivered": [(0, 0), (9, 101)]},
        {"queue.redelivered": [(0, 0), (9, 70)]},
    ),
    "lease-losses": ({"queue.lease_expired": [(0, 0), (9, 3)]}, {"queue.lease_expired": [(0, 0), (9, 2)]}),
    "worker-lost": ({"worker.silent_seconds": 9}, {"worker.silent_seconds": 0}),
    "cursor-lag": ({"cursor.lag_seconds": 3601, "cursor.lost": 0}, {"cursor.lag_seconds": 10}),
    "schedule-missed": ({"schedule.missed": [(0, 0), (9, 1)]}, {"schedule.missed": [(0, 1), (9, 1)]}),
    "webhook-disabled": ({"webhook.enabled": 0, "webhook.by_server": 1}, {"webhook.by_server": 0}),
    "store-failed": ({"server.healthy": 0, "server.disk_full": 0}, {"server.disk_full": 1}),
    "disk-full": ({"server.disk_full": 1}, {"server.disk_full": 0}),
    "disk-filling": (
        {
            "server.disk_free": [(90.0 * at, 2**30 * (10.0 - at / 4)) for at in range(SPAN)],
            "server.disk_free_share": 0.4,
        },
        {"server.disk_free_share": 0.6},
    ),
    "sync-slow": ({"server.sync_p99": 0.5, "server.syncs": [(0, 0), (9, 50)]}, {"server.sync_p99": 0.2}),
    "damaged-records": ({"server.degraded": 1}, {"server.degraded": 0}),
    "loss-window": ({"store.is_safe": 1, "store.loss_window": 2}, {"store.is_safe": 0}),
    "replica-missing": ({"store.replicas": 1, "store.replicas_seen": 2}, {"store.replicas": 2}),
    "certificate-expiring": ({"server.certificate_days": 13}, {"server.certificate_days": 15}),
    "login-attack": (
        {"server.logins_refused": [(0, 0), (9, 30)], "server.lockouts": [(0, 0), (9, 0)]},
        {"server.logins_refused": [(0, 0), (9, 29)]},
    ),
    "event-loop-lag": ({"server.loop_lag_p99": 0.6}, {"server.loop_lag_p99": 0.1}),
    "connections-refused": (
        {"server.connections_refused": [(0, 0), (9, 1)], "server.descriptors_share": 0.1},
        {"server.connections_refused": [(0, 1), (9, 1)]},
    ),
}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(BY_NAME)


@pytest.mark.parametrize("name", CASES)
def test_a_built_in_rule_holds_when_it_should_and_not_otherwise(name: str) -> None:
    values, other = CASES[name]
    rule = CompiledRule(BY_NAME[name])

    assert rule.holds(FakeSource(values))
    assert not rule.holds(FakeSource({**values, **other}))
    assert not rule.holds(FakeSource({}))  # a server that knows nothing yet is silent


@pytest.mark.parametrize("rule", BUILTIN, ids=lambda rule: rule.name)
def test_a_built_in_rule_says_what_to_do_with_a_command_that_exists(rule: Any) -> None:
    names = {"store_flag": "--data d", "data": "d"}
    command = render_command(rule.command, names)
    words = shlex.split(command)

    assert rule.summary
    assert rule.action
    assert rule.help
    assert words[0] == "openq"
    path, found = find_command(words[1:])
    Parser(path, found).parse_args(words[1 + len(path) :])  # exits for what does not exist
    compiled = CompiledRule(rule)
    known = {*compiled.figures, *rule.limits, "value"}
    for text in (rule.summary, rule.action):
        assert "?" not in render(text, dict.fromkeys(_names(), "n"), dict.fromkeys(known, 1.0))


def _names() -> set[str]:
    return {
        *("queue", "dead_letter", "visibility", "cursor", "webhook", "schedule", "worker", "pid", "host"),
        *("runs", "server", "data", "detail", "full_place", "certificate", "peers", "largest_queue"),
        *("largest_size", "reason", "store"),
    }


def test_names_in_a_command_are_quoted_and_texts_have_one_line() -> None:
    hostile = {"queue": "a; rm -rf $(pwd) 'x'\nSubject: y", "account": "111122223333"}

    command = render_command("openq queue show {queue}", hostile)
    text = render("{queue} is full", hostile, {})

    assert shlex.split(command)[:3] == ["openq", "queue", "show"]
    assert shlex.split(command)[3] == "a; rm -rf $(pwd) 'x' Subject: y"
    assert shlex.split(command)[4:] == ["--account", "111122223333"]
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "figures", "shown"),
    [
        ("{a:duration}", {"a": 5400.0}, "90 min"),
        ("{a:duration}", {"a": 0.25}, "250 ms"),
        ("{a:bytes}", {"a": 3.5 * 2**30}, "3.5 GiB"),
        ("{a:percent}", {"a": 0.255}, "25.5 %"),
        ("{a:count}", {"a": 12345.6}, "12,346"),
        ("{a:rate}", {"a": 2.5}, "2.50/s"),
        ("{a}", {"a": float("inf")}, "without bound"),
        ("{a:count message}", {"a": 1.0}, "1 message"),
        ("{a:count message}", {"a": 0.0}, "0 messages"),
        ("{a:count message}", {"a": 1234.0}, "1,234 messages"),
        ("{b}", {"a": 1.0}, "?"),
    ],
)
def test_figures_have_units(text: str, figures: dict[str, float], shown: str) -> None:
    assert render(text, {}, figures) == shown


def test_the_configuration_changes_limits_and_adds_rules(tmp_path: Any) -> None:
    file = tmp_path / "openq.toml"
    file.write_text(
        """
        [alerts]
        webhook = "https://user:hunter2@example.com/alerts/token-123"
        webhook_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        interval = "2s"
        [alerts.rules.oldest-message]
        age = "1h"
        severity = "critical"
        for = "10m"
        [alerts.rules.big-queue]
        expression = "queue.ready > n"
        n = 5
        summary = "{queue} has {value:count} messages"
        queues = ["orders*"]
        [alerts.destinations.ops]
        kind = "smtp"
        host = "mail.example.com"
        from = "openq@example.com"
        to = ["ops@example.com"]
        user = "openq"
        password = "hunter3"
        """
    )

    config = load(file=file)
    rules = rules_of(config.alerts)

    assert rules["oldest-message"].limits["age"] == 3600
    assert (rules["oldest-message"].severity, rules["oldest-message"].for_s) == ("critical", 600)
    assert CompiledRule(rules["big-queue"]).accepts("orders-1")
    assert not CompiledRule(rules["big-queue"]).accepts("mail")
    assert [each.name for each in config.alerts.destinations] == ["ops", "webhook"]
    shown = f"{config!r} {config.describe()!r} {config.alerts!r}"
    for secret in ("hunter2", "hunter3", "token-123", "MfKQ9r8GKY"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"interal": 1}, "did you mean interval"),
        ({"rules": {"oldest-message": {"agee": 1}}}, "has no key 'agee'; its limits are age"),
        ({"rules": {"mine": {"summary": "x"}}}, "needs expression"),
        ({"rules": {"mine": {"expression": "queue.redy > 1", "summary": "x"}}}, "did you mean queue.ready"),
        ({"rules": {"Mine": {"expression": "queue.ready > 1", "summary": "x"}}}, "not a name of a rule"),
        ({"destinations": {"a": {"kind": "smtp", "host": "h", "from": "a@b"}}}, "needs to"),
        ({"destinations": {"a": {"url": "https://h"}}}, "kind is missing"),
        ({"webhook": "ftp://h"}, "a URL such as"),
        ({"webhook_secret": "whsec_x"}, "needs url"),
    ],
)
def test_a_wrong_configuration_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidAlerts, match=words):
        read_alerts(table)


def test_a_wrong_secret_is_not_repeated() -> None:
    with pytest.raises(InvalidAlerts) as raised:
        read_alerts({"webhook": "https://h", "webhook_secret": "hunter2"})

    assert "hunter2" not in str(raised.value)
    assert AlertConfig().shown() == {}


# -- docs/ALERTS.md


def test_the_configurations_of_the_guide_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "webhook").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    for name in ("mail", "pagerduty"):
        (tmp_path / name).write_text("secret\n")
    blocks = re.findall(r"```toml\n(.+?)```", GUIDE, re.DOTALL)

    read = [
        read_alerts(tomllib.loads(each.replace("/run/secrets", str(tmp_path)))["alerts"]) for each in blocks
    ]

    assert [[each.kind for each in found.destinations] for found in read] == [
        ["webhook"],
        [],
        ["smtp", "pagerduty", "webhook"],
    ]
    assert read[1].rules["oldest-message"]["limits"] == {"age": 3600}


def test_the_grammar_of_the_guide_is_that_of_the_parser() -> None:
    def productions(text: str) -> list[str]:
        found = re.findall(r"^ *([a-z-]+) += (.+?)(?:  +.*)?$", text, re.MULTILINE)
        return [f"{name} = {rest}" for name, rest in found]

    [block] = re.findall(r"```text\n(expression .+?)```", GUIDE, re.DOTALL)

    assert len(productions(block)) == 12
    assert productions(block) == productions(expression.__doc__ or "")


@pytest.mark.parametrize("rule", BUILTIN, ids=lambda rule: rule.name)
def test_a_sample_looks_like_the_alert(rule: AlertRule) -> None:
    shown = {**sample_figures(rule), **rule.limits}

    for text in (rule.summary, rule.action):
        assert "?" not in render(text, SAMPLE_NAMES, shown)
    for name, _, _ in re.findall(r"\{(\w+)(:\w+)?( \w+)?\}", rule.command):
        assert name in SAMPLE_NAMES
