"""Seconds, datetimes and ISO-8601 on the outside; whole milliseconds since the epoch inside."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

from ..errors import InvalidSetting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND  # the end of the year 9999
_LONG_S = 1 << 32  # 136 years


def to_ms(seconds: float, name: str) -> int:
    """A duration given in seconds; `name` is for the error."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidSetting(f"{name} must be a number of seconds, not {seconds!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidSetting(f"{name} must be a number of seconds, 0 or more, not {seconds!r}")
    if seconds > _LONG_S and seconds * 1000 + time.time() * 1000 > _LAST_MS:
        raise InvalidSetting(f"{name} must end before the year 10000, not in {seconds!r} seconds")
    return round(seconds * 1000)


def from_ms(ms: int) -> datetime:
    # Not `fromtimestamp`: a float in between would lose the last digit of some times.
    # A sum of times (a delay and a lease) may be beyond the last datetime.
    return _EPOCH + min(ms, _LAST_MS) * _MILLISECOND


def moment_ms(moment: datetime | float | str, name: str) -> int:
    """A point in time: a datetime, epoch seconds or ISO-8601 text.

    A datetime without zone is local time, as everywhere in Python; a text without zone is
    UTC, because that is what OpenQ itself writes.
    """
    if isinstance(moment, str):
        moment = parse_iso(moment, name)
    if isinstance(moment, datetime):
        try:
            return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND
        except (OverflowError, ValueError, OSError):
            raise InvalidSetting(f"{name} must be in the years 1 to 9999 as UTC, not {moment}") from None
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment):
        raise InvalidSetting(f"{name} must be a datetime, ISO-8601 text or epoch seconds, not {moment!r}")
    if not _FIRST_MS / 1000 <= moment <= _LAST_MS / 1000:
        raise InvalidSetting(f"{name} must be in the years 1 to 9999, not {moment!r} seconds from 1970")
    return round(moment * 1000)


def parse_iso(text: str, name: str = "timestamp") -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidSetting(f"{name} must look like 2023-04-03T10:30:00Z, not {text!r}") from None


def iso(moment: datetime) -> str:
    """`2023-04-03T10:30:00Z`; milliseconds only if there are some."""
    moment = moment.astimezone(UTC)
    precision = "milliseconds" if moment.microsecond >= 1000 else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
