"""Limits as users write them."""

from __future__ import annotations

import pytest

from openq import InvalidSetting
from openq.limits import parse_key_limits, parse_rate
from openq.model import QueueSettings


@pytest.mark.parametrize(
    ("text", "shown", "units", "step", "burst"),
    [
        ("100/m", "100/m", 1, 600, 100),
        ("100/min", "100/m", 1, 600, 100),
        (" 100 / minute ", "100/m", 1, 600, 100),
        ("100/60s", "100/m", 1, 600, 100),
        ("3/s", "3/s", 3, 1000, 3),
        ("6000/h burst 20", "6000/h burst 20", 1, 600, 20),
        ("5/s burst 5", "5/s", 1, 200, 5),
        ("1/d", "1/d", 1, 86_400_000, 1),
    ],
)
def test_a_rate_has_one_text(text: str, shown: str, units: int, step: int, burst: int) -> None:
    assert parse_rate(text) == (shown, units, step, burst)
    assert parse_rate(parse_rate(text).text) == parse_rate(text)


@pytest.mark.parametrize(
    "text", ["", "100", "100/", "0/s", "1/y", "1.5/s", "-1/s", "1/s burst 0", "1/s burst", "x"]
)
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="rate"):
        parse_rate(text)


def test_limits_of_keys_are_text_or_json() -> None:
    wanted = {"tenant-17": {"concurrency": 3, "rate": "100/m burst 5"}, "k=1": {"rate": None}}
    assert parse_key_limits("tenant-17=concurrency:3,rate:100/min burst 5; k=1=rate:none") == wanted
    assert (
        parse_key_limits('{"tenant-17": {"concurrency": 3, "rate": "100/m burst 5"}, "k=1": {"rate": null}}')
        == wanted
    )
    for wrong in ("tenant-17", "k=concurrency", "k=speed:3", "k=concurrency:0", "k=concurrency:x", "{"):
        with pytest.raises(InvalidSetting):
            parse_key_limits(wrong)


def test_equal_limits_are_equal_settings_and_survive_a_journal() -> None:
    one = QueueSettings(rate="60/min", key_limits={"a": {"rate": "1/second"}})
    assert one == QueueSettings(rate="60/m", key_limits={"a": {"rate": "1/s"}})
    assert QueueSettings.from_json(one.to_json()) == one
    for wrong in ({"concurrency": 0}, {"key_concurrency": True}, {"rate": 5}, {"key_limits": {"a": 3}}):
        with pytest.raises(InvalidSetting):
            QueueSettings(**wrong)
