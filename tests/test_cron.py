"""Cron expressions: which moments they name, through changes of the clock too, and what is refused."""

from __future__ import annotations

import calendar
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.cron import Cron, find_zone
from openq.errors import InvalidSetting

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def runs(cron: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """The next runs in the wall time of the zone, with the offset where it is not UTC."""
    place = find_zone(zone)
    at, out = ms(after), []
    for _ in range(count):
        found = Cron(cron).next_ms(at, place)
        assert found is not None
        at = found
        shown = datetime.fromtimestamp(at / 1000, place).isoformat()
        out.append(shown.removesuffix("+00:00"))
    return out


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:30", ["2026-01-01T00:01:00", "2026-01-01T00:02:00"]),
        ("*/20 * * * *", "2026-01-01T00:50", ["2026-01-01T01:00:00", "2026-01-01T01:20:00"]),
        ("5/20 3 * * *", "2026-01-01T03:10", ["2026-01-01T03:25:00", "2026-01-01T03:45:00"]),
        ("0 9-17/4 * * mon-fri", "2026-01-02T13:00", ["2026-01-02T17:00:00", "2026-01-05T09:00:00"]),
        ("0 0 1,15 jan,JUL *", "2026-01-15T00:00", ["2026-07-01T00:00:00", "2026-07-15T00:00:00"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29T00:00:00", "2108-02-29T00:00:00"]),
        ("0 12 L * *", "2028-01-31T12:00", ["2028-02-29T12:00:00", "2028-03-31T12:00:00"]),
        ("0 0 * * 7", "2026-01-01", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        ("15,45 30 12 * * *", "2026-01-01T12:30:15", ["2026-01-01T12:30:45", "2026-01-02T12:30:15"]),
        ("@hourly", "2026-01-01T05:00", ["2026-01-01T06:00:00", "2026-01-01T07:00:00"]),
        ("@daily", "2026-12-31T05:00", ["2027-01-01T00:00:00", "2027-01-02T00:00:00"]),
        ("@weekly", "2026-01-01", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        ("@monthly", "2026-01-01", ["2026-02-01T00:00:00", "2026-03-01T00:00:00"]),
        ("@yearly", "2026-01-01", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
    ],
)
def test_an_expression_names_these_moments(cron: str, after: str, expected: list[str]) -> None:
    assert runs(cron, after, 2) == expected


def test_a_day_and_a_weekday_are_alternatives_unless_one_begins_with_a_star() -> None:
    assert runs("0 0 13 * fri", "2026-02-06", 3) == [
        "2026-02-13T00:00:00",
        "2026-02-20T00:00:00",
        "2026-02-27T00:00:00",
    ]
    assert runs("0 0 13 * */5", "2026-01-01", 2) == ["2026-02-13T00:00:00", "2026-03-13T00:00:00"]


def test_a_time_that_the_clock_skips_is_the_first_moment_after_the_gap() -> None:
    assert runs("30 2 * * *", "2026-03-28T00:00", 3, BERLIN) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert runs("*/10 2 * * *", "2026-03-08T06:00", 2, NEW_YORK) == [
        "2026-03-08T03:00:00-04:00",
        "2026-03-09T02:00:00-04:00",
    ]


def test_a_time_that_the_clock_shows_twice_counts_the_first_time() -> None:
    assert runs("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    assert runs("30 1 * * *", "2026-10-31T12:00", 2, NEW_YORK) == [
        "2026-11-01T01:30:00-04:00",
        "2026-11-02T01:30:00-05:00",
    ]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        (BERLIN, "2026-03-28T20:00"),
        (BERLIN, "2026-10-24T20:00"),
        (NEW_YORK, "2026-03-08T00:00"),
        (NEW_YORK, "2026-11-01T00:00"),
        ("Australia/Lord_Howe", "2026-04-04T10:00"),  # half an hour
        ("Africa/Cairo", "2026-10-29T12:00"),  # at midnight: the last hour of a day comes twice
    ],
)
def test_an_interval_of_minutes_is_one_of_real_minutes_through_each_change_of_the_clock(
    zone: str, day: str
) -> None:
    at, place = ms(day), find_zone(zone)
    for _ in range(400):
        following = Cron("*/5 * * * *").next_ms(at, place)
        assert following == at + 300_000
        at = following


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * *", "4 fields"),
        ("60 * * * *", "minute must be 0 to 59, not '60'"),
        ("* 24 * * *", "hour must be 0 to 23, not '24'"),
        ("* * 0 * *", "day must be 1 to 31, or L for the last day, not '0'"),
        ("* * * foo *", "month must be 1 to 12 or jan to dec, not 'foo'"),
        ("* * * * 8", "weekday must be 0 to 7 or sun to sat, not '8'"),
        ("*/0 * * * *", "the step of the minute must be a number from 1 on, not '0'"),
        ("* 22-3 * * *", "hour range '22-3' ends before it begins; write 22-23,0-3"),
        ("0 0 30 2 *", "day 30 never comes in feb"),
        ("0 0 31 4,6 *", "day 31 never comes in apr, jun"),
        ("@reboot", "use one of @yearly"),
        ("1,,2 * * * *", "minute must be 0 to 59, not ''"),
        ("٣ * * * *", "minute must be 0 to 59"),
        ("* " * 600, "at most 1000 characters"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_field_and_what_is_allowed(cron: str, words: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        Cron(cron)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("zone", ["Europe/Berln", "Mars", "../etc/passwd", "Europe", "", "a\0b"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSetting, match="unknown time zone"):
        find_zone(zone)


def test_a_near_name_of_a_time_zone_is_suggested() -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'Europe/Berlin'"):
        find_zone("Europe/Berln")


def test_without_a_zone_database_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_zone(key: str) -> tzinfo:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    find_zone.cache_clear()
    monkeypatch.setattr(zoneinfo, "ZoneInfo", no_zone)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(InvalidSetting, match="pip install tzdata"):
        find_zone(BERLIN)
    assert find_zone("UTC") is UTC


# -- against a plain search ------------------------------------------------------------------------


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.tuples(st.one_of(st.just("*"), span), st.integers(1, high)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    part = st.one_of(number.map(str), span, step)
    return st.one_of(st.just("*"), st.lists(part, min_size=1, max_size=2).map(",".join))


expressions = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 7)).map(
    " ".join
)
zones = st.sampled_from(["UTC", BERLIN, NEW_YORK, "Asia/Kolkata", "Australia/Lord_Howe"])
moments = st.integers(ms("2024-01-01"), ms("2027-12-31"))


def _values(text: str, low: int, high: int) -> set[int]:
    out: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        elif not dash:
            last = str(high) if step else first
        out |= set(range(int(first), int(last) + 1, int(step or 1)))
    return out


def _matches(cron: str, wall: datetime) -> bool:
    minute, hour, day, month, weekday = cron.split()
    weekdays = {each % 7 for each in _values(weekday, 0, 6 if weekday.startswith("*") else 7)}
    is_day = wall.day in _values(day, 1, 31)
    is_weekday = wall.isoweekday() % 7 in weekdays
    both = day.startswith("*") or weekday.startswith("*")
    return (
        wall.minute in _values(minute, 0, 59)
        and wall.hour in _values(hour, 0, 23)
        and wall.month in _values(month, 1, 12)
        and ((is_day and is_weekday) if both else (is_day or is_weekday))
    )


@given(expressions, zones, moments)
def test_the_next_run_is_later_and_matches_every_field(cron: str, zone: str, after_ms: int) -> None:
    place = find_zone(zone)
    found = Cron(cron).next_ms(after_ms, place)
    assert found is not None
    assert found > after_ms
    wall = datetime.fromtimestamp(found / 1000, place)
    is_after_gap = (wall - timedelta(minutes=1)).astimezone(UTC).astimezone(place).utcoffset() != (
        datetime.fromtimestamp(found / 1000 - 60, place).utcoffset()
    ) or datetime.fromtimestamp(found / 1000 - 1, place).utcoffset() != wall.utcoffset()
    assert is_after_gap or _matches(cron, wall.replace(tzinfo=None))


@given(expressions, moments)
def test_no_minute_before_the_next_run_matches(cron: str, after_ms: int) -> None:
    found = Cron(cron).next_ms(after_ms, UTC)
    assert found is not None
    minute = after_ms // 60_000 + 1
    for each in range(minute, min(found // 60_000, minute + 3_000)):
        assert not _matches(cron, datetime.fromtimestamp(each * 60, UTC).replace(tzinfo=None))


@given(expressions, zones, moments)
def test_runs_follow_one_another_without_a_gap_or_a_repetition(cron: str, zone: str, after_ms: int) -> None:
    """The next run is the same from every moment before it."""
    place = find_zone(zone)
    found = Cron(cron).next_ms(after_ms, place)
    assert found is not None
    for part in (0.25, 0.5, 0.999):
        between = int(after_ms + (found - after_ms) * part)
        if between < found:
            assert Cron(cron).next_ms(between, place) == found


def test_every_month_has_a_last_day() -> None:
    at = ms("2023-12-31T12:00")
    for year in (2024, 2025):
        for month in range(1, 13):
            found = Cron("0 0 L * *").next_ms(at, UTC)
            assert found is not None
            at = found
            day = datetime.fromtimestamp(at / 1000, UTC)
            assert (day.year, day.month, day.day) == (year, month, calendar.monthrange(year, month)[1])
