"""Bodies as bytes, and back.

Each message carries the encoding of its body, so "auto" gives a reader what the writer put in: text as
`str`, bytes as `bytes`, everything else through JSON. Types that JSON does not have are written as a reader
in any language would expect them, and read as that: datetime, date and time as ISO-8601 text, UUID and
Decimal as text, timedelta as seconds, an Enum as its value, dataclasses and msgspec structs as objects.
Reading a pickle runs code chosen by its writer, so it is used only if a queue names it, and such a queue
must never be open to untrusted writers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..errors import InvalidSetting
from ..model import ENCODING_BYTES, ENCODING_JSON, ENCODING_MSGPACK, ENCODING_PICKLE, ENCODING_TEXT

_NAMES = ("auto", "raw", "json", "msgpack", "pickle")


@runtime_checkable
class BodyCodec(Protocol):
    """A custom codec: any object with these two methods."""

    def encode(self, value: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class Codec:
    """A codec by name (auto, raw, json, msgpack or pickle) or a custom object with `encode` and `decode`."""

    def __init__(self, kind: str | BodyCodec = "auto") -> None:
        self.custom: BodyCodec | None = None
        if isinstance(kind, str):
            if kind not in _NAMES:
                raise InvalidSetting(f"codec must be one of {', '.join(_NAMES)} or an object, not {kind!r}")
            self.name = kind
        elif isinstance(kind, BodyCodec):
            self.name = type(kind).__name__
            self.custom = kind
        else:
            raise InvalidSetting("a codec object needs the methods encode and decode")

    @property
    def is_auto(self) -> bool:
        return self.custom is None and self.name == "auto"

    def encode(self, value: Any) -> tuple[bytes, int]:
        """The bytes and their encoding."""
        if self.custom is not None:
            return self._encode_custom(self.custom, value), ENCODING_BYTES
        if self.name == "json":
            return _to_json(value), ENCODING_JSON
        if self.name == "msgpack":
            return _to_msgpack(value), ENCODING_MSGPACK
        if self.name == "pickle":
            return _to_pickle(value), ENCODING_PICKLE
        if isinstance(value, str):
            return _to_utf8(value), ENCODING_TEXT if self.name == "auto" else ENCODING_BYTES
        if isinstance(value, bytes):
            return value, ENCODING_BYTES
        if isinstance(value, bytearray | memoryview):
            return bytes(value), ENCODING_BYTES
        if self.name == "raw":
            raise InvalidSetting(
                f"codec 'raw' takes bytes or text, not {type(value).__name__}; "
                "leave out codec to have it written as JSON"
            )
        return _to_json(value, self.name), ENCODING_JSON

    def decode(self, data: bytes, encoding: int) -> Any:
        if self.custom is not None:
            return self.custom.decode(data)
        if self.name == "raw" or encoding == ENCODING_BYTES:
            return data
        if encoding == ENCODING_TEXT:
            return data.decode()
        if encoding == ENCODING_JSON:
            return _from_json(data)
        if encoding == ENCODING_MSGPACK:
            return _msgpack().decode(data)
        if encoding == ENCODING_PICKLE and self.name == "pickle":
            import pickle

            return pickle.loads(data)
        raise InvalidSetting(
            "this body was pickled; open the queue with codec='pickle' if you trust its writers"
        )

    def decode_declared(self, data: bytes, encoding: int) -> Any:
        """A body whose sender declares this encoding; the bytes if they are not of it."""
        if self.custom is None and self.name != "raw":
            try:
                if encoding == ENCODING_JSON:
                    return json.loads(data.decode(), parse_constant=_refuse_constant)
                return self.decode(data, encoding)
            except Exception:  # it is delivered all the same
                return data
        return self.decode(data, encoding)

    def _encode_custom(self, custom: BodyCodec, value: Any) -> bytes:
        data = custom.encode(value)
        if not isinstance(data, bytes):
            raise InvalidSetting(f"codec {self.name} returned {type(data).__name__} instead of bytes")
        return data


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise InvalidSetting("this body is JSON nested too deeply to be decoded here") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _to_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None


# Decoding JSON takes a level of Python's stack (1000 by default) for each level of nesting. A body written
# by a program with a flat stack must be readable by one with a deep stack.
MAX_DEPTH = 500


def _to_json(value: Any, codec: str = "json") -> bytes:
    try:
        # NaN and Infinity are not JSON: other readers would fail on them.
        text = json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_default
        )
        data = _to_utf8(text)
        check_depth(value, data)
        return data
    except RecursionError:
        raise InvalidSetting(f"the body is nested too deeply: more than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidSetting):
            raise
        others = "'msgpack', 'pickle'" if _fits_msgpack(value) else "'pickle'"
        raise InvalidSetting(
            f"codec {codec!r} cannot write this body as JSON ({error}); publish text, bytes or plain values, "
            f"or open the queue with codec={others} or an object that has encode and decode"
        ) from None


def _fits_msgpack(value: Any) -> bool:
    try:
        _to_msgpack(value)
    except InvalidSetting:
        return False
    return True


def _json_default(value: Any) -> Any:
    """The JSON value of a type that JSON does not have. Called only for such values."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    for base in kind.__mro__:
        write = _JSON_CONVERTERS.get((base.__module__, base.__qualname__))
        if write is not None:
            return write(value)
    raise TypeError(f"JSON has no type for {kind.__name__}")


# By name: importing uuid and decimal would cost more than the rest of the library.
_JSON_CONVERTERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("datetime", "datetime"): lambda value: value.isoformat(),
    ("datetime", "date"): lambda value: value.isoformat(),
    ("datetime", "time"): lambda value: value.isoformat(),
    ("datetime", "timedelta"): lambda value: value.total_seconds(),
    ("uuid", "UUID"): str,
    ("decimal", "Decimal"): str,
    ("_decimal", "Decimal"): str,
    ("enum", "Enum"): lambda value: value.value,
}


def check_depth(value: Any, data: bytes) -> None:
    """`data` is the value as JSON; with few brackets it cannot be too deep."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    try:
        value = json.loads(data)  # as it will be decoded: dataclasses and the like are dicts there
    except RecursionError:
        raise InvalidSetting(f"the body is nested too deeply: more than {MAX_DEPTH} levels") from None
    level = [value] if isinstance(value, dict | list | tuple) else []
    depth = 0
    while level:
        if depth >= MAX_DEPTH:
            raise InvalidSetting(f"the body is nested too deeply: more than {MAX_DEPTH} levels")
        parts = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list | tuple)]
        depth += 1


def _msgpack() -> Any:
    try:
        import msgspec.msgpack
    except ImportError:
        raise InvalidSetting("codec 'msgpack' needs the package msgspec") from None
    return msgspec.msgpack


def _to_msgpack(value: Any) -> bytes:
    try:
        data: bytes = _msgpack().encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"codec 'msgpack' cannot write this body: {error}") from None
    return data


def _to_pickle(value: Any) -> bytes:
    import pickle

    try:
        return pickle.dumps(value)
    except Exception as error:
        raise InvalidSetting(f"codec 'pickle' cannot write this body: {error}") from None
