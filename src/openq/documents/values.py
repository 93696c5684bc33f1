"""Conversion of seconds, ISO-8601 and attributes of clients to milliseconds and plain values, and back."""

from __future__ import annotations

import base64
import binascii
import math
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ..errors import InvalidSetting
from ..model import FOREVER_MS
from ..trace_context import AMAZON

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST_S = 253_402_300_799  # the last second with an ISO-8601 form, in the year 9999


def iso(ms: int) -> str:
    """`2023-04-03T10:30:00Z`; milliseconds only if they are not zero."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}Z" if rest else f"{_second(seconds)}Z"


def iso_or_none(ms: int | None) -> str | None:
    return iso(ms) if ms else None


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    moment = _EPOCH + timedelta(seconds=min(max(seconds, 0), _LAST_S))
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def moment_ms(value: str | float, name: str) -> int:
    """A point in time: ISO-8601 text (UTC without an offset) or epoch seconds; not before 1970."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise InvalidSetting(f"{name} must look like 2023-04-03T10:30:00Z, not {value[:100]!r}") from None
        ms = (moment - _EPOCH) // _MILLISECOND
    elif -_LAST_S <= value <= _LAST_S:  # not NaN either
        ms = round(value * 1000)
    else:
        raise InvalidSetting(f"{name} must be in the years 1970 to 9999, not {value!r} seconds from 1970")
    if ms < 0:
        raise InvalidSetting(f"{name} must not be before 1970, not {value!r}")
    return ms


def read_moment(text: str) -> str | float:
    """A time in a query, for `moment_ms`: digits alone are epoch seconds."""
    try:
        return float(text)
    except ValueError:
        return text


def span_ms(seconds: float, name: str) -> int:
    """A duration in seconds."""
    if not math.isfinite(seconds) or not 0 <= seconds <= _LAST_S:
        raise InvalidSetting(f"{name} must be a number of seconds from 0 to {_LAST_S}, not {seconds!r}")
    return round(seconds * 1000)


def seconds(ms: int) -> int | float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def seconds_or_forever(ms: int) -> int | float | None:
    """None, null in JSON, for a duration without end."""
    return None if ms >= FOREVER_MS else seconds(ms)


def read_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise InvalidSetting("base64 must be text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSetting("this is not valid base64") from None


# -- attributes ---------------------------------------------------------------------------------

_TYPE_TAGS = "$dict"
_BASE64 = "$base64"
_CONSTANTS = {_BASE64, _TYPE_TAGS}
_MAX_DEPTH = 64
_MAX_INT_BITS = 13_000  # as Python formats them
_RESERVED = "openq."


def to_json_value(value: Any) -> Any:
    """Bytes may be anywhere in attributes; JSON cannot represent them, so they get a type tag."""
    if isinstance(value, bytes):
        return {_BASE64: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        out = {key: to_json_value(each) for key, each in value.items()}
        # Values that look like a type tag are wrapped to avoid confusion.
        return {_TYPE_TAGS: out} if len(out) == 1 and out.keys() <= _CONSTANTS else out
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    return value


def _from_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_BASE64}:
            return read_base64(value[_BASE64])
        if value.keys() == {_TYPE_TAGS} and isinstance(value[_TYPE_TAGS], dict):
            value = value[_TYPE_TAGS]
        return {key: _from_json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_json_value(each) for each in value]
    return value


def read_attributes(attributes: dict[str, Any], is_json: bool) -> dict[str, object]:
    """Check that every protocol can show them. Raises InvalidSetting."""
    _check_plain(attributes, "attributes", 0)
    if is_json:
        attributes = {name: _from_json_value(value) for name, value in attributes.items()}
    for name, value in attributes.items():
        if not name:
            raise InvalidSetting("an attribute needs a name")
        if name.startswith(_RESERVED) and not _is_known(name, value):
            raise InvalidSetting(f"attribute {name!r}: names with {_RESERVED!r} in front are reserved")
    return attributes


def _is_known(name: str, value: object) -> bool:
    """Reserved attributes of other protocols, which a forwarded message may have."""
    if name == AMAZON:
        return isinstance(value, str)
    return (
        name == "openq.sqs-types"
        and isinstance(value, dict)
        and all(isinstance(each, str) for each in value.values())
    )


def _check_plain(value: Any, where: str, depth: int) -> None:
    if value is None or isinstance(value, bool | bytes | str):
        return
    if isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise InvalidSetting(f"{where} is too large a number")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidSetting(f"{where} must be a finite number")
    elif depth >= _MAX_DEPTH:
        raise InvalidSetting(f"attributes are nested too deeply: more than {_MAX_DEPTH} levels")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            _check_plain(each, f"{where}[{i}]", depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise InvalidSetting(f"{where}: the key {key!r} is not text")
            _check_plain(each, f"{where}[{key!r}]", depth + 1)
    else:
        raise InvalidSetting(f"{where} must be text, a number, bytes, a list or a dict")
