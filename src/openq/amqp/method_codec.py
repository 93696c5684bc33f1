"""Encodes and decodes AMQP methods (sans-I/O).

Reserved fields are skipped when decoding and empty when encoding. Strict where RabbitMQ is strict: UTF-8 in
short strings, no undefined bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from struct import Struct
from typing import Any, get_type_hints

from ..amqp_fields import MalformedProperties, decode_table, encode_table
from ..errors import OpenQError
from .methods import METHODS, RESERVED, Method


class UnknownMethod(OpenQError):
    """Neither AMQP 0.9.1 nor RabbitMQ has a method with these ids."""

    code = "unknown_method"

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {method_id} of class {class_id}")
        self.class_id = class_id
        self.method_id = method_id


class MalformedMethod(OpenQError):
    """A method with too few, too many or invalid bytes; `method` is its name."""

    code = "malformed_method"

    def __init__(self, text: str, method: str = "") -> None:
        super().__init__(f"{method}: {text}" if method else text)
        self.method = method


_ID = Struct(">HH")
_LENGTH = Struct(">I")
_NUMBERS = {"octet": Struct(">B"), "short": Struct(">H"), "long": Struct(">I"), "longlong": Struct(">Q")}
_EMPTY: dict[str, Any] = {"short": 0, "bit": False, "shortstr": "", "longstr": b""}


class _Step:
    """One field of a method, or up to eight bits that share an octet. A name of "" is reserved."""

    __slots__ = ("kind", "names")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.names = [name]


def _encoded_fields(method: type[Method]) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(method, include_extras=True)
    reserved = RESERVED[method]
    for each in fields(method):  # type: ignore[arg-type]  # every method is a dataclass
        yield from (("", kind) for kind in reserved.get(each.name, ()))
        yield each.name, hints[each.name].__metadata__[0]
    yield from (("", kind) for kind in reserved.get("", ()))


def _steps_of(method: type[Method]) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for name, kind in _encoded_fields(method):
        if kind == "bit" and steps and steps[-1].kind == "bit" and len(steps[-1].names) < 8:
            steps[-1].names.append(name)
        else:
            steps.append(_Step(kind, name))
    return tuple(steps)


_STEPS = {method: _steps_of(method) for method in METHODS.values()}


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame; `UnknownMethod` or `MalformedMethod` if there is none."""
    if len(payload) < 4:
        raise MalformedMethod("a method frame without class and method id")
    class_id, method_id = _ID.unpack_from(payload)
    method = METHODS.get((class_id, method_id))
    if method is None:
        raise UnknownMethod(class_id, method_id)
    values: list[Any] = []
    at = 4
    end = len(payload)
    try:
        for step in _STEPS[method]:
            kind = step.kind
            if kind == "bit":
                if at >= end:
                    raise MalformedMethod("it ends within a field")
                bits = payload[at]
                if bits >> len(step.names):
                    raise MalformedMethod("bits are set that have no meaning")
                at += 1
                values.extend(bits >> place & 1 == 1 for place, name in enumerate(step.names) if name)
                continue
            value, at = _read(payload, at, end, kind)
            if step.names[0]:
                values.append(value)
        if at != end:
            raise MalformedMethod(f"{end - at} bytes after its last field")
    except (MalformedMethod, MalformedProperties) as error:
        raise MalformedMethod(str(error), method.NAME) from None
    return method(*values)


def _read(payload: bytes, at: int, end: int, kind: str) -> tuple[Any, int]:
    if kind == "shortstr":
        after = at + 1 + payload[at] if at < end else end + 1
        if after > end:
            raise MalformedMethod("it ends within a field")
        try:
            return payload[at + 1 : after].decode(), after
        except UnicodeDecodeError:
            raise MalformedMethod("a short string that is not UTF-8") from None
    if kind == "table":
        return decode_table(payload, at)
    if kind == "longstr":
        start = at + 4
        if start > end:
            raise MalformedMethod("it ends within a field")
        (size,) = _LENGTH.unpack_from(payload, at)
        if size > end - start:
            raise MalformedMethod(f"a length of {size} bytes where {end - start} are left")
        return payload[start : start + size], start + size
    number = _NUMBERS[kind]
    if at + number.size > end:
        raise MalformedMethod("it ends within a field")
    return number.unpack_from(payload, at)[0], at + number.size


def encode_method(method: Method) -> bytes:
    """The payload of a method frame. `MalformedMethod` if a value does not fit its field."""
    parts = [_ID.pack(*method.ID)]
    try:
        for step in _STEPS[type(method)]:
            if step.kind == "bit":
                bits = sum(bool(getattr(method, name)) << i for i, name in enumerate(step.names) if name)
                parts.append(bytes((bits,)))
            else:
                name = step.names[0]
                parts.append(_written(getattr(method, name) if name else _EMPTY[step.kind], step.kind))
    except (MalformedMethod, MalformedProperties) as error:
        raise MalformedMethod(str(error), method.NAME) from None
    return b"".join(parts)


def _written(value: Any, kind: str) -> bytes:
    if kind == "shortstr":
        try:
            raw: bytes = value.encode()
        except UnicodeEncodeError:
            raise MalformedMethod("a short string that cannot be encoded as UTF-8") from None
        if len(raw) > 255:
            raise MalformedMethod(f"a short string of {len(raw)} bytes, the limit is 255")
        return bytes((len(raw),)) + raw
    if kind == "table":
        return encode_table(value)
    if kind == "longstr":
        return b"".join((_LENGTH.pack(len(value)), value))
    number = _NUMBERS[kind]
    if not 0 <= value < 1 << 8 * number.size:
        raise MalformedMethod(f"the number {value} does not fit into {number.size} bytes")
    return number.pack(value)
