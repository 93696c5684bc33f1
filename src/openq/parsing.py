"""Values that users write as text: flags, numbers, sizes, durations, ports, names and addresses.

A value is text on the command line and in the environment, and a TOML value in a file. Each reader takes both
and raises ValueError with what it expects, such as "true or false".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .model import FOREVER_MS, RetryPolicy

FOREVER = "forever"

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_SIZES = {"": 1, "b": 1, "k": _KIB, "kib": _KIB, "kb": 1000, "m": _MIB, "mib": _MIB, "mb": 10**6}
_SIZES |= {"g": _GIB, "gib": _GIB, "gb": 10**9}
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_ADDRESS = re.compile(r"\S+://\S+")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    raise ValueError("true or false")


def read_text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("text")


def read_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value, re.ASCII):
        return int(value)
    raise ValueError("a whole number")


def _quantity(value: object, units: Mapping[str, float]) -> float | None:
    """A number, alone or with one of `units`; None if it is invalid."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if math.isfinite(value) else None
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        return None
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * unit


def read_size(value: object) -> int:
    size = _quantity(value, _SIZES)
    if size is None or size < 0 or size != int(size) or size >= 1 << 62:
        raise ValueError("a number of bytes, such as 1048576 or 20MiB")
    return int(size)


def read_seconds(value: object) -> float:
    seconds = _quantity(value, _DURATIONS)
    if seconds is None or not 0 <= seconds <= 1e12:
        raise ValueError("a number of seconds, or a time such as 500ms, 30s, 5m, 2h, 4d")
    return int(seconds) if seconds == int(seconds) else seconds


def read_ms(value: object) -> int:
    return round(read_seconds(value) * 1000)


def read_ms_or_forever(value: object) -> int:
    """TOML has no null: a time that never ends is the word."""
    if isinstance(value, str) and value.strip().lower() == FOREVER:
        return FOREVER_MS
    try:
        return read_ms(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def read_retention(value: object) -> int:
    ms = read_ms_or_forever(value)
    if ms == 0:
        raise ValueError(f"more than 0 seconds, or {FOREVER}")
    return ms


def read_port(value: object) -> int:
    number = read_int(value)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def read_port_or_off(value: object) -> int | None:
    """None: this protocol is not served."""
    if value is False or (isinstance(value, str) and value.strip().lower() == "off"):
        return None
    try:
        return read_port(value)
    except ValueError:
        raise ValueError("a port, 0 to 65535 (0 picks a free one), or off") from None


def read_amqp_port(value: object) -> int | Literal["auto"] | None:
    """Like `read_port_or_off`; "auto" is the default port if it is free, else any free one."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return read_port_or_off(value)
    except ValueError:
        raise ValueError("a port, 0 to 65535 (0 picks a free one), auto, or off") from None


def read_names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, Iterable):
        names = list(value)
        if all(isinstance(name, str) for name in names):
            return tuple(name.strip().lower() for name in names if name.strip())
    raise ValueError("names, as a list in the file and with commas between them elsewhere")


def read_hosts(value: object) -> tuple[str, ...]:
    """Host names, addresses and networks."""
    names = read_names(value)
    if any("/" in name for name in names):
        from ipaddress import ip_network  # imported only if there is a network

        for name in names:
            if "/" in name:
                try:
                    ip_network(name)
                except ValueError:
                    raise ValueError("names, addresses and networks such as 10.0.0.0/8") from None
    return names


def read_number(value: object) -> float:
    number = _quantity(value, {"": 1.0})
    if number is None:
        raise ValueError("a number, such as 0.5")
    return number


def read_patterns(value: object) -> tuple[str, ...]:
    """Patterns of names, with * and ?; `on` means all, `off` none."""
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _FLAGS):
        return ("*",) if read_flag(value) else ()
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, Iterable):
        patterns = list(value)
        if all(isinstance(pattern, str) for pattern in patterns):
            return tuple(pattern.strip() for pattern in patterns if pattern.strip())
    raise ValueError("names with * and ?, as a list in the file and with commas between them elsewhere")


def one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in words:
            return value.strip().lower()
        raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")

    return read


def within(
    read: Callable[[object], Any], minimum: float, maximum: float | None, what: str
) -> Callable[[object], Any]:
    def read_within(value: object) -> Any:
        number = read(value)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(what)
        return number

    return read_within


def matching(pattern: str, what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
            return value
        raise ValueError(what)

    return read


def without_password(url: str) -> str:
    """An address that may be shown. Everything before the last @ counts as user and password."""
    scheme, slashes, rest = url.partition("://") if "://" in url else ("", "", url)
    user, colon, host = rest.partition(":")
    if not colon or "@" not in host:
        return url
    return f"{scheme}{slashes}{user}:...@{host.rpartition('@')[2]}"


def without_passwords(text: str) -> str:
    """A text that may be shown: each address in it without its password."""
    return _ADDRESS.sub(lambda found: without_password(found[0]), text)


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def toml_text(value: object) -> str:
    """A value as TOML writes it; JSON's text and numbers are TOML's too."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, RetryPolicy):
        return toml_text({name: getattr(value, name) for name in RetryPolicy.__slots__})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_text(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
