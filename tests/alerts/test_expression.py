"""The expressions of alert rules: what they mean, and what is refused, with its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.alert_rules.expression import InvalidExpression, parse
from openq.errors import InvalidSetting
from tests.alerts.helpers import FakeSource

SOURCE = FakeSource(
    {
        "queue.ready": 10,
        "queue.in_flight": 0,
        "queue.oldest_age": 90,
        "server.disk_free": 3 * 2**30,
        "queue.published": [(0, 5), (60, 65)],
        "queue.acked": [(0, 50), (60, 8)],  # it began anew
        "queue.waiting_bytes": [(at, 100.0 * at) for at in range(20)],
    }
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("queue.ready > 9", 1),
        ("queue.ready > 9 and queue.in_flight > 0", 0),
        ("queue.ready > 90 or not queue.in_flight", 1),
        ("not not queue.ready == 10", 1),
        ("queue.ready + 2 * 3 - 1", 15),
        ("(queue.ready + 2) * -3 / 4", -9),
        ("queue.oldest_age >= 1.5m", 1),
        ("server.disk_free == 3GiB and queue.ready > 0", 1),
        ("queue.ready * 50%", 5),
        ("queue.ready > limit", 0),
        ("increase(queue.published[1m])", 60),
        ("rate(queue.published[1m])", 1),
        ("increase(queue.acked[1m])", 8),
        ("avg(queue.waiting_bytes[19s])", 950),
        ("max(queue.waiting_bytes[19s]) - min(queue.waiting_bytes[19s])", 1900),
        ("slope(queue.waiting_bytes[19s])", 100),
        ("forecast(queue.waiting_bytes[19s], 10s)", 2900),
        ("time_until(queue.waiting_bytes[19s], 2900)", 10),
        ("increase(queue.published[span])", 60),
    ],
)
def test_an_expression_has_this_value(text: str, value: float) -> None:
    found = parse(text, {"limit": 10, "span": 60}).evaluate(SOURCE)

    assert found == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "queue.delayed > 0",
        "queue.delayed == queue.delayed",
        "queue.ready / queue.in_flight > 0",
        "time_until(queue.waiting_bytes[19s], 0) > 0",  # it goes the other way
        "slope(queue.ready[5m]) > -1",  # too little is known
        "not queue.delayed > 0",
    ],
)
def test_what_is_unknown_does_not_hold(text: str) -> None:
    assert not parse(text).evaluate(SOURCE)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "expected"),
        ("1 > 0", 0, "no signal"),
        ("queue.redy > 1", 0, "did you mean queue.ready"),
        ("queue.ready > ", 14, "end of the expression"),
        ("queue.ready > 5q", 14, "unknown unit"),
        ("queue.ready > 1 2", 16, "unexpected"),
        ("queue.ready @ 2", 12, "unexpected '@'"),
        ("queue.published > 1", 0, "is a counter"),
        ("increase(queue.ready[5m]) > 1", 0, "is a gauge"),
        ("avg(queue.published[5m]) > 1", 0, "is a counter"),
        ("avg(queue.ready) > 1", 15, "'['"),
        ("avg(queue.ready[9d]) > 1", 16, "1s to 6h"),
        ("queue.ready > cursor.lag_bytes", 14, "not about both"),
        ("__import__('os')", 11, "unexpected"),
        ("queue.__class__ > 1", 0, "unknown signal"),
        ("(" * 60 + "queue.ready" + ")" * 60, 40, "nested deeper"),
    ],
)
def test_what_is_invalid_is_refused_with_its_place(text: str, position: int, words: str) -> None:
    with pytest.raises(InvalidExpression) as raised:
        parse(text)

    assert raised.value.position == position
    assert words in str(raised.value)


@given(st.text(alphabet="queue.rady()[]<>=!+-*/0123456789 %mhandorit,_", max_size=60))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        parse(text).evaluate(SOURCE)
    except InvalidSetting:
        pass


def test_a_rule_about_a_server_and_queues_is_one_of_queues() -> None:
    assert parse("queue.ready > 1 and server.disk_free > 0").kind == "queue"
    assert parse("store.replicas < 1 and server.uptime > 60").kind == "server"
    assert parse("openq_kv_bytes > 5").kind == "server"
    assert parse("total.ready > 5").kind == "total"
