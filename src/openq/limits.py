"""Limits of a queue as users write them: rates such as "100/m", and limits of single keys.

A rate is a token bucket: it holds `burst` tokens, each delivery takes one, and `count` tokens come back in
every `period_ms`, evenly. The text has one canonical form, so that equal limits are equal settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from .errors import InvalidSetting

MAX_COUNT = 1_000_000_000
_UNITS = (("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000))
_UNIT_MS = {
    **dict(_UNITS),
    "sec": 1_000,
    "second": 1_000,
    "min": 60_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}
_RATE = re.compile(r"\s*(\d{1,10})\s*/\s*(\d{0,6})\s*([a-z]+)(?:\s+burst\s+(\d{1,10}))?\s*", re.ASCII)
KEY_LIMITS_FORM = 'limits of keys such as "tenant-17=concurrency:3,rate:100/m", or JSON'
RATE_FORM = 'a rate such as "100/s", "100/m", "6000/h" or "100/m burst 20"'


class Rate(NamedTuple):
    """A token bucket. Its state is one number, `used_until`, in units of 1/`units` milliseconds.

    That is the time at which the bucket would be full again. A delivery adds `step` to it. A token is
    available while it is at most `room` ahead of now.
    """

    text: str
    units: int
    step: int
    burst: int

    @property
    def room(self) -> int:
        return (self.burst - 1) * self.step

    def next_ms(self, used_until: int) -> int:
        """When the next token is available."""
        return -((self.room - used_until) // self.units)

    def drained(self, now_ms: int) -> int:
        """The state of a bucket that is empty now."""
        return now_ms * self.units + self.burst * self.step


@lru_cache(maxsize=4096)
def parse_rate(text: str) -> Rate:
    """Raises InvalidSetting."""
    found = _RATE.fullmatch(text.lower())
    unit_ms = None if found is None else _UNIT_MS.get(found[3])
    if found is None or unit_ms is None:
        raise InvalidSetting(f"{text!r} is not {RATE_FORM}")
    count, period_ms = int(found[1]), int(found[2] or 1) * unit_ms
    burst = int(found[4]) if found[4] else count
    if not 1 <= count <= MAX_COUNT or not 1 <= burst <= MAX_COUNT or not 1 <= period_ms <= 366 * 86_400_000:
        raise InvalidSetting(
            f"the rate {text!r}: count and burst must be from 1 to {MAX_COUNT}, the time up to a year"
        )
    shown = f"{count}/{_period_text(period_ms)}"
    if burst != count:
        shown += f" burst {burst}"
    divisor = gcd(count, period_ms)
    return Rate(shown, count // divisor, period_ms // divisor, burst)


def _period_text(period_ms: int) -> str:
    for unit, unit_ms in reversed(_UNITS):
        if period_ms % unit_ms == 0:
            number = period_ms // unit_ms
            return unit if number == 1 else f"{number}{unit}"
    raise AssertionError(period_ms)


def rate_text(value: Any, name: str) -> str | None:
    """The canonical text of a rate; None: no limit."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidSetting(f"{name} must be {RATE_FORM}, not {value!r}")
    return parse_rate(value).text


def check_concurrency(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise InvalidSetting(f"{name} must be a whole number from 1 to {MAX_COUNT}, not {value!r}")
    return value


def parse_key_limits(text: str) -> dict[str, dict[str, Any]]:
    """From text: JSON, or "tenant-17=concurrency:3,rate:100/m", several of them with ";" between."""
    if text.lstrip().startswith("{"):
        try:
            return check_key_limits(json.loads(text))
        except ValueError as error:
            raise InvalidSetting(f"{text!r} is not {KEY_LIMITS_FORM}: {error}") from None
    limits: dict[str, dict[str, Any]] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        key, equals, rest = part.rpartition("=")
        own: dict[str, Any] = {}
        for each in rest.split(","):
            name, colon, value = (word.strip() for word in each.partition(":"))
            if not equals or not colon:
                raise InvalidSetting(f"{part!r} is not {KEY_LIMITS_FORM}")
            is_none = value.lower() == "none"
            own[name] = None if is_none else int(value) if value.isdecimal() else value
        limits[key] = own
    return check_key_limits(limits)


KeyLimits = Mapping[str, Mapping[str, Any]]


def check_key_limits(value: Any) -> dict[str, dict[str, Any]]:
    """Limits by key: {"tenant-17": {"concurrency": 3, "rate": "100/m"}}. A limit of None is no limit."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSetting(f"key_limits must map keys to their limits, not {value!r}")
    limits: dict[str, dict[str, Any]] = {}
    for key, own in value.items():
        name = f"key_limits[{key!r}]"
        if (
            not isinstance(key, str)
            or not isinstance(own, Mapping)
            or not own.keys() <= {"concurrency", "rate"}
        ):
            raise InvalidSetting(f"{name} takes concurrency and rate, not {own!r}")
        found: dict[str, Any] = {}
        if "concurrency" in own:
            found["concurrency"] = check_concurrency(own["concurrency"], f"{name}.concurrency")
        if "rate" in own:
            found["rate"] = rate_text(own["rate"], f"{name}.rate")
        if found:
            limits[key] = found
    return limits
