"""What is printed: tables, durations, progress, and escaped control characters."""

from __future__ import annotations

import sys
from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.cli.api import UsageError, path_part
from openq.cli.arguments import attributes_of, filter_of, parse_time
from openq.cli.output import body_text, duration_text, escape_control, print_table
from openq.cli.progress import ProgressBar, line
from tests.cli.helpers import FakeTerminal


@given(st.text())
def test_control_characters_are_escaped(text: str) -> None:
    assert escape_control(text).isprintable()
    assert "\x1b" not in escape_control(f"\x1b[2J{text}")


def test_columns_are_as_wide_as_their_contents(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("queue", "ready"), [("orders", 5), ("a\nb", None), ("x", 12345)], ("ready",))

    assert capsys.readouterr().out.splitlines() == [
        "queue   ready",
        "orders      5",
        "a\\nb        -",
        "x       12345",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.25, "0.25 s"),
        (45, "45 s"),
        (180, "3 min"),
        (9000, "2.5 h"),
        (345600, "4 d"),
    ],
)
def test_durations_have_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_body_is_one_line() -> None:
    assert body_text({"payload": "a\nb"}) == "a\\nb"
    assert body_text({"payload": {"a": [1]}}) == '{"a": [1]}'


def test_progress_shows_count_rate_and_remaining_time() -> None:
    assert line("redrive q", 50, 200, 10.0, bar=False) == "redrive q: 25 % (50 of 200), 5.0/s, 30 s left"
    assert line("redrive q", 50, 200, 1.0, bar=True) == (
        "redrive q: [######                  ] 25 % (50 of 200), 50/s, 3 s left"
    )
    assert line("replay q", 50, None, 10.0, bar=True) == "replay q: 50, 5.0/s"
    assert line("replay q", 0, 10, 0.0, bar=False) == "replay q: 0 % (0 of 10), 0.0/s"
    assert "100 %" in line("replay q", 300, 200, 10.0, bar=True)  # more came meanwhile


class EagerProgressBar(ProgressBar):
    _BAR_INTERVAL_S = 0.0
    _LINE_INTERVAL_S = 0.0


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_is_for_terminals_and_lines_are_for_the_rest(
    watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = FakeTerminal(watched)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    shown = EagerProgressBar("redrive q", 10)
    shown.update(5)
    shown.end()
    shown.end()

    assert ("\r" in screen.getvalue()) is watched
    assert screen.getvalue().endswith("\r\x1b[K" if watched else "\n")
    assert "50 % (5 of 10)" in screen.getvalue()


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal(watched=False)
    monkeypatch.setattr(sys, "stderr", screen)
    shown = ProgressBar("redrive q", 10)
    shown.update(10)
    shown.end()

    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "orders"),
        ("a/b c", "a%2Fb%20c"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("é", "%C3%A9"),
        ("a.b", "a.b"),
    ],
)
def test_any_name_is_one_segment_of_a_path(name: str, path: str) -> None:
    assert path_part(name) == path


def test_attributes_are_text_or_json() -> None:
    assert attributes_of([("a", "5"), ("n:", "5"), ("l:", '["x"]')]) == {"a": "5", "n": 5, "l": ["x"]}
    assert attributes_of([]) is None
    with pytest.raises(UsageError, match="attribute n is not JSON"):
        attributes_of([("n:", "five")])


def test_a_filter_holds_only_what_was_given() -> None:
    nothing = dict.fromkeys(("text", "type", "reason", "reason_group", "ids", "attribute", "where"))

    assert filter_of(Namespace(**nothing)) is None
    given_ones = Namespace(**{**nothing, "type": "order", "where": [("a.b", "12"), ("c", "tea")]})
    assert filter_of(given_ones) == {"message_type": "order", "json": {"a.b": 12, "c": "tea"}}


def test_a_time_is_a_duration_ago_or_a_point_in_time() -> None:
    assert parse_time("2026-01-31T10:30:00Z") == "2026-01-31T10:30:00Z"
    assert parse_time("1700000000") == "2023-11-14T22:13:20.000Z"
    assert parse_time("2h") < parse_time("1h") < parse_time("1")
    with pytest.raises(UsageError, match="a time is 2h"):
        parse_time("yesterday")
