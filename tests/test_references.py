"""The references of settings, metrics, errors and alert rules are true; a server has no other metric."""

from __future__ import annotations

import re

import pytest

from openq.alert_rules.builtin import BUILTIN
from openq.alert_rules.rule import read_limit
from tests.references import (
    ALERT_RULES,
    ERRORS,
    METRICS,
    SETTINGS,
    alert_rules,
    error_codes,
    limit_text,
    metrics,
    settings,
)
from tests.serving import served_amqp


def test_the_documents_are_what_the_code_makes_of_them() -> None:
    assert SETTINGS.read_text() == settings(), "python -m tests.references"
    assert METRICS.read_text() == metrics(), "python -m tests.references"
    assert ERRORS.read_text() == error_codes(), "python -m tests.references"
    assert ALERT_RULES.read_text() == alert_rules(), "python -m tests.references"


def test_limits_are_shown_as_a_configuration_takes_them() -> None:
    for rule in BUILTIN:
        assert {name: read_limit(limit_text(name, value)) for name, value in rule.limits.items()} == (
            pytest.approx(rule.limits)
        )


def test_every_metric_of_a_running_server_is_documented() -> None:
    with served_amqp() as (server, _):
        text = server.get("/metrics")[1].decode()

    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if f"| `{name}` |" not in METRICS.read_text()] == []
