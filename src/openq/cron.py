"""Cron expressions: which moments they name, in any time zone. Pure arithmetic, without a clock.

    minute hour day month weekday        five fields; a sixth one in front is the second

Times are integer milliseconds since the epoch, results are whole seconds. Daylight saving:

- An expression whose hour is `*` follows real time: `*/5 * * * *` matches every five minutes, also in an hour
  that the clock shows twice.
- With any other hour it names times of the day, each of which comes once a day. A time that the clock shows
  twice counts the first time. A time that the clock skips counts as the first moment after the gap.
"""

from __future__ import annotations

import calendar
import difflib
import re
from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from .errors import InvalidSetting

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LAST_DAY = 32  # stands for `L` among the days of a month
_MAX_TEXT = 1_000
_MAX_DAYS = 9 * 366  # February 29 may be eight years away
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 8_000 * 366 * 86_400_000  # datetime ends with the year 9999


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()  # names of the values, from `low` on

    @property
    def allowed(self) -> str:
        text = f"{self.low} to {self.high}"
        if self.words:
            text += f" or {self.words[0]} to {self.words[-1]}"
        return f"{text}, or L for the last day" if self.name == "day" else text

    def number(self, text: str, where: str) -> int:
        lowered = text.lower()
        if lowered in self.words:
            return self.low + self.words.index(lowered)
        if re.fullmatch("[0-9]{1,4}", text, re.ASCII) and self.low <= int(text) <= self.high:
            return int(text)
        raise InvalidSetting(f"{where}: {self.name} must be {self.allowed}, not {text!r}")

    def values(self, text: str, where: str) -> frozenset[int]:
        """The values of a list such as `1,5-9,*/15`."""
        return frozenset().union(*(self._part(part, where) for part in text.split(",")))

    def _part(self, part: str, where: str) -> frozenset[int]:
        span, slash, step_text = part.partition("/")
        step = 1
        if slash:
            if not re.fullmatch("[0-9]{1,4}", step_text, re.ASCII) or not int(step_text):
                raise InvalidSetting(
                    f"{where}: the step of the {self.name} must be a number from 1 on, not {step_text!r}"
                )
            step = int(step_text)
        if span == "*" or (span == "?" and self.name in ("day", "weekday")):
            # 7 is a second name of Sunday: a step must not count it.
            low, high = self.low, 6 if self.name == "weekday" else self.high
        elif self.name == "day" and span.upper() == "L" and not slash:
            return frozenset((_LAST_DAY,))
        else:
            first, dash, last = span.partition("-")
            low = self.number(first, where)
            high = self.number(last, where) if dash else (self.high if slash else low)
            if high < low:
                raise InvalidSetting(
                    f"{where}: the {self.name} range {span!r} ends before it begins; "
                    f"write {first}-{self.high},{self.low}-{last}"
                )
        values = range(low, high + 1, step)
        return frozenset(each % 7 for each in values) if self.name == "weekday" else frozenset(values)


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


class Cron:
    """A cron expression. Raises InvalidSetting if it is not valid or never matches.

    As in Vixie cron, a day matches if its number or its weekday does, when both fields are restricted; a
    field that begins with `*` is not.
    """

    __slots__ = ("_both_days", "_days", "_follows_real_time", "_months", "_times", "_weekdays", "text")

    def __init__(self, text: str) -> None:
        fields = _split(text)
        where = f"cron {text!r}"
        sets = [field.values(part, where) for field, part in zip(_FIELDS, fields, strict=True)]
        seconds, minutes, hours, self._days, self._months, self._weekdays = sets
        self.text = text
        self._both_days = fields[3][0] in "*?" or fields[5][0] in "*?"
        self._follows_real_time = len(hours) == 24
        self._times = (sorted(hours), sorted(minutes), sorted(seconds))
        self._check_days(where)

    def _check_days(self, where: str) -> None:
        """Raises InvalidSetting for days such as February 30, which never come."""
        if not self._both_days or self._days & {_LAST_DAY}:
            return
        longest = max(29 if month == 2 else calendar.monthrange(2000, month)[1] for month in self._months)
        if min(self._days) > longest:
            names = ", ".join(_MONTHS[month - 1] for month in sorted(self._months))
            raise InvalidSetting(f"{where}: day {min(self._days)} never comes in {names}")

    def next_ms(self, after_ms: int, zone: tzinfo = UTC) -> int | None:
        """The first match after `after_ms`, in the wall time of `zone`. None: there is none any more."""
        if not -_MAX_MS < after_ms < _MAX_MS:
            return None
        after = _EPOCH + timedelta(seconds=after_ms // 1000)
        try:
            found = (self._next_real if self._follows_real_time else self._next_wall)(after, zone)
        except OverflowError:  # beyond the year 9999
            return None
        return None if found is None else round((found - _EPOCH).total_seconds()) * 1000

    def _next_wall(self, after: datetime, zone: tzinfo) -> datetime | None:
        """Wall times map to moments in order, so the first match whose moment is later is the answer."""
        wall = _wall(after, zone)
        while (match := self._match(wall)) is not None:
            moment = _first_moment(match, zone)
            if moment > after:
                return moment
            wall = match + _SECOND
        return None

    def _next_real(self, after: datetime, zone: tzinfo) -> datetime | None:
        cursor = after + _SECOND
        while True:
            wall = _wall(cursor, zone)
            match = self._match(wall)
            if match is None:
                return None
            ahead = match - wall
            probe = cursor + min(ahead, _DAY)
            if _offset(probe, zone) != _offset(cursor, zone):
                cursor = _transition(cursor, probe, zone)  # wall time jumps here: search again from there
            elif ahead <= _DAY:
                return probe
            else:
                moment = _first_moment(match, zone)
                if _wall(moment, zone) == match:
                    return moment
                cursor = moment  # the match is in a gap

    def _match(self, wall: datetime) -> datetime | None:
        """The first matching wall time from `wall` on."""
        day = wall.date()
        if self._is_day(day):
            found = self._time_from(wall.time())
            if found is not None:
                return datetime.combine(day, found)
        for _ in range(_MAX_DAYS):
            day += _DAY
            if day.month not in self._months:
                day = _next_month(day) - _DAY
            elif self._is_day(day):
                return datetime.combine(day, self._first_time())
        return None

    def _is_day(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        days = self._days
        is_day = day.day in days or (_LAST_DAY in days and (day + _DAY).month != day.month)
        is_weekday = day.isoweekday() % 7 in self._weekdays
        return (is_day and is_weekday) if self._both_days else (is_day or is_weekday)

    def _first_time(self) -> time:
        hours, minutes, seconds = self._times
        return time(hours[0], minutes[0], seconds[0])

    def _time_from(self, start: time) -> time | None:
        """The first matching time of day from `start` on."""
        hours, minutes, seconds = self._times
        for hour in hours[bisect_left(hours, start.hour) :]:
            if hour > start.hour:
                return time(hour, minutes[0], seconds[0])
            for minute in minutes[bisect_left(minutes, start.minute) :]:
                if minute > start.minute:
                    return time(hour, minute, seconds[0])
                at = bisect_left(seconds, start.second)
                if at < len(seconds):
                    return time(hour, minute, seconds[at])
        return None


def _split(text: str) -> list[str]:
    """The six fields of an expression; second 0 if there are five."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise InvalidSetting(f"a cron expression is text of at most {_MAX_TEXT} characters")
    stripped = text.strip()
    if stripped.startswith("@"):
        expanded = _MACROS.get(stripped.lower())
        if expanded is None:
            raise InvalidSetting(f"cron {text!r}: use one of {', '.join(_MACROS)}, or five fields")
        stripped = expanded
    fields = stripped.split()
    if len(fields) not in (5, 6):
        number = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise InvalidSetting(
            f"cron {text!r}: {number}; write minute, hour, day, month and weekday, "
            "such as '*/5 * * * *', with the second in front if it matters"
        )
    return fields if len(fields) == 6 else ["0", *fields]


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


# -- time zones -----------------------------------------------------------------------------------


@lru_cache(256)
def find_zone(name: str) -> tzinfo:
    """The time zone of a name such as `Europe/Berlin`. Raises InvalidSetting."""
    if name.upper() == "UTC":
        return UTC  # needs no database
    import zoneinfo  # loaded only where there is a time zone

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    if not known:
        raise InvalidSetting(
            f"time zone {name!r} cannot be looked up: this system has no time zone database; "
            "run `pip install tzdata`"
        )
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "; use a name such as Europe/Berlin or UTC"
    raise InvalidSetting(f"unknown time zone {name!r}{hint}")


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _first_moment(wall: datetime, zone: tzinfo) -> datetime:
    """The moment of a wall time: the first of two, or the end of the gap that contains it."""
    moment = wall.replace(tzinfo=zone).astimezone(UTC)
    if _wall(moment, zone) == wall:
        return moment
    # In a gap, this moment lies as far behind the gap's start as the wall time does.
    return _transition(moment - _DAY, moment, zone)


def _transition(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The first moment with the offset of `after`, to the second."""
    new = _offset(after, zone)
    while after - before > _SECOND:
        middle = before + timedelta(seconds=(after - before) // _SECOND // 2)
        if _offset(middle, zone) == new:
            after = middle
        else:
            before = middle
    return after
