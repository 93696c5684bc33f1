"""The references of settings, metrics and errors are true; a running server exposes no other metric."""

from __future__ import annotations

import re

from tests.references import ERRORS, METRICS, SETTINGS, error_codes, metrics, settings
from tests.serving import served_amqp


def test_the_documents_are_what_the_code_makes_of_them() -> None:
    assert SETTINGS.read_text() == settings(), "python -m tests.references"
    assert METRICS.read_text() == metrics(), "python -m tests.references"
    assert ERRORS.read_text() == error_codes(), "python -m tests.references"


def test_every_metric_of_a_running_server_is_documented() -> None:
    with served_amqp() as (server, _):
        text = server.get("/metrics")[1].decode()

    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if f"| `{name}` |" not in METRICS.read_text()] == []
