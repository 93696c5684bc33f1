"""The values of options, parsed from text. Errors say what is accepted.

`openq.parsing` is imported late: it loads the model, and help needs no value.
"""

from __future__ import annotations

from argparse import ArgumentTypeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NONE = "none"
ACTION_NAMES = ("send", "receive", "peek", "manage", "admin")


def location(text: str) -> int:
    """`int` alone would reject 0x...; its own error would not say what is accepted."""
    return _number(text, "a location is the `at` of a record, a whole number")


def count(text: str) -> int:
    return _number(text, "must be a whole number, 0 or more")


def positive(text: str) -> int:
    return _number(text, "must be a whole number, 1 or more", 1)


def priority(text: str) -> int:
    return _number(text, "must be a whole number from 0 to 255", 0, 255)


def _number(text: str, rule: str, low: int = 0, high: int = 1 << 60) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise ArgumentTypeError(f"{rule}, not {text!r}")
    return value


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"must be NAME=VALUE, not {text!r}")
    return name, value


def rate(text: str) -> float:
    return _positive_float(text, "must be a number of messages per second, more than 0")


def speed(text: str) -> float:
    return _positive_float(text.removesuffix("x"), "must be a factor such as 1, 0.5 or 10x")


def _positive_float(text: str, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"{rule}, not {text!r}")
    return value


def queue_weights(text: str) -> tuple[tuple[str, int], ...]:
    """`mail,orders:2` as names with their weights."""
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, weight = part.rpartition(":")
        if not name or not weight.isdigit():
            name, weight = part, "1"
        if not 1 <= int(weight) <= 1000:
            raise ArgumentTypeError(f"a weight is a whole number from 1 to 1000, not {weight!r}")
        if name in found:
            raise ArgumentTypeError(f"queue {name} is given twice")
        found[name] = int(weight)
    if not found:
        raise ArgumentTypeError("must be one or more queue names, such as mail,orders:2")
    return tuple(found.items())


def seconds(text: str) -> float:
    from ..parsing import read_seconds

    try:
        return read_seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be {error}, not {text!r}") from None


def seconds_or_forever(text: str) -> float | str:
    from ..parsing import FOREVER

    return FOREVER if text.strip().lower() == FOREVER else seconds(text)


def or_none(read: Callable[[str], int | str]) -> Callable[[str], int | str]:
    """Also accept `none`, which removes a limit."""

    def read_or_none(text: str) -> int | str:
        return NONE if text.strip().lower() == NONE else read(text)

    return read_or_none


def delivery_rate(text: str) -> str:
    from ..errors import InvalidSetting
    from ..limits import RATE_FORM, parse_rate

    try:
        return parse_rate(text).text
    except InvalidSetting:
        raise ArgumentTypeError(f"must be {RATE_FORM}, not {text!r}") from None


def key_limits(text: str) -> dict[str, dict[str, int | str | None]]:
    """`none` removes the limits of all single keys."""
    from ..errors import InvalidSetting
    from ..limits import KEY_LIMITS_FORM, parse_key_limits

    if text.strip().lower() == NONE:
        return {}
    try:
        return parse_key_limits(text)
    except InvalidSetting:
        raise ArgumentTypeError(f"must be {KEY_LIMITS_FORM}, not {text!r}") from None


def load(text: str) -> float:
    """Messages per second: 5000/s, 300k/m, or a bare number."""
    number, _, unit = text.strip().lower().replace(" ", "").replace("_", "").partition("/")
    factor = {"k": 1e3, "m": 1e6}.get(number[-1:], 1.0)
    per_s = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}.get(unit)
    try:
        value = float(number if factor == 1 else number[:-1]) * factor
    except ValueError:
        value = 0.0
    if per_s is None or not 0 < value / per_s <= 1e7:
        raise ArgumentTypeError(f"must be a rate, such as 5000/s or 2k/m, not {text!r}")
    return value / per_s


def size(text: str) -> int:
    from ..parsing import read_size

    try:
        return read_size(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be {error}, not {text!r}") from None


def account(text: str) -> str:
    """Reject numbers of another length, most likely a typing error: AWS account ids have 12 digits."""
    if text.isdigit() and len(text) != 12:
        raise ArgumentTypeError(f"a numeric account id has 12 digits, not {text!r}")
    return text


def actions(text: str) -> frozenset[str]:
    names = frozenset(filter(None, text.split(",")))
    if not names or not names.issubset(ACTION_NAMES):
        raise ArgumentTypeError(f"actions are {', '.join(ACTION_NAMES)}, separated by commas; not {text!r}")
    return names
