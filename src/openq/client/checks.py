"""Checks of arguments: each returns its value or raises `InvalidSetting`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..errors import InvalidSetting
from ..model import MessageFilter


def utf8(value: str, name: str) -> str:
    """Refuse lone surrogates, which Python allows in text and UTF-8 does not."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"{name} cannot be encoded as UTF-8: {error.reason}") from None
    return value


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(f"{name} must be text, not {value!r}")
    return utf8(value, name)


def text_or_none(value: Any, name: str) -> str | None:
    return None if value is None else text(value, name)


def nonempty_or_none(value: Any, name: str) -> str | None:
    """Text that is not empty, or None."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidSetting(f"{name} must be text that is not empty, not {value!r}")
    return None if value is None else utf8(value, name)


def text_list(values: Any, name: str) -> list[str]:
    # A single text is an iterable of its letters, which is never meant.
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidSetting(f"{name} must be a list of texts, as in [{'...'!r}], not {values!r}")
    return [text(value, f"each of {name}") for value in values]


def items(values: Any, name: str) -> list[Any]:
    if not isinstance(values, Iterable):
        raise InvalidSetting(f"{name} must be a list, not {values!r}")
    return list(values)


def message_filter(types: Any, attributes: Any) -> MessageFilter | None:
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidSetting(f"attributes must be a mapping of names to values, not {attributes!r}")
    for name in attributes or ():
        text(name, "an attribute")
    return MessageFilter.of(None if types is None else text_list(types, "types"), attributes)


def message_id(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(f"expected a message id, not {value!r}")
    return utf8(value, "a message id")


def integer(value: Any, name: str, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidSetting(f"{name} must be a whole number from {minimum} on, not {value!r}")
    return value


def number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidSetting(f"{name} must be a number, not {value!r}")
    return value


def timeout_or_none(timeout: Any, name: str = "timeout") -> float | None:
    """Seconds to wait, or None for ever; checked before waiting."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise InvalidSetting(f"{name} must be a number of seconds or None, not {timeout!r}")
    return timeout


def seconds_or_none(value: Any, name: str) -> float | None:
    """A number of seconds, 0 or more; None: without limit."""
    if timeout_or_none(value, name) is not None and value < 0:
        raise InvalidSetting(f"{name} must be None or a number of seconds, 0 or more, not {value!r}")
    return cast(float | None, value)


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSetting(f"{name} must be a dict, not {value!r}")
    for key in value:
        text(key, f"each key of {name}")
    return value


def file_path(value: Any, name: str = "path") -> str:
    if not isinstance(value, str | os.PathLike):
        raise InvalidSetting(f"{name} must be text or a Path, not {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidSetting(f"{name} must be a path as text, not {value!r}")
    return path


def function(value: Any, name: str) -> None:
    if not callable(value):
        raise InvalidSetting(f"{name} must be a function, not {value!r}")
