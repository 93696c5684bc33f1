"""Field tables: bytes to values, and back.

The dialect is RabbitMQ's: `s` is a 16 bit integer, `U` is unknown.

| wire | Python |
| --- | --- |
| `t` | bool |
| `b` `B` `s` `u` `I` `i` `l` `L` | int; out again as `I` where it fits, else `l` (a `Long` always as `l`) |
| `f` `d` | float; out again as `d` |
| `S` | str, or bytes where it is not UTF-8 |
| `x` | bytes |
| `D` `T` `V` | `decimal.Decimal`, `Timestamp`, None |
| `A` `F` | list, dict |
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from struct import Struct
from typing import Any

from ..errors import InvalidSetting

MAX_DEPTH = 32  # of tables and arrays within a table
MAX_SHORT = 255  # bytes of a short string, and of a name in a table


class MalformedProperties(InvalidSetting):
    """Bytes that are no table or no properties, or values that a table cannot hold."""

    code = "malformed_properties"


class Timestamp(int):
    """Seconds since the epoch that AMQP marks as a time."""

    __slots__ = ()


class Long(int):
    """A number that goes out in 64 bits however small it is, where clients expect that width."""

    __slots__ = ()


U16 = Struct(">H")
U32 = Struct(">I")
_I32 = Struct(">i")
_I64 = Struct(">q")
U64 = Struct(">Q")
_DOUBLE = Struct(">d")

_NUMBERS: dict[int, Struct] = {
    ord("b"): Struct(">b"),
    ord("B"): Struct(">B"),
    ord("s"): Struct(">h"),
    ord("u"): U16,
    ord("I"): _I32,
    ord("i"): U32,
    ord("l"): _I64,
    ord("L"): _I64,
    ord("f"): Struct(">f"),
    ord("d"): _DOUBLE,
}
_BOOL, TEXT, BYTES, _DECIMAL, _TIME, _VOID, ARRAY, TABLE = (ord(code) for code in "tSxDTVAF")
FIXED_SIZES = {code: encoding.size for code, encoding in _NUMBERS.items()} | {
    _BOOL: 1,
    _DECIMAL: 5,
    _TIME: 8,
    _VOID: 0,
}


# -- tables: bytes to values ----------------------------------------------------------------------


def decode_table(data: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    """The table whose length begins at `at`, and where it ends."""
    start, end = sized_range(data, at, len(data))
    return read_table(data, start, end, 0), end


def decode_value(data: bytes) -> Any:
    """One value of a table, with its kind before it."""
    value, end = _read_value(data, 0, len(data), 0)
    if end != len(data):
        raise MalformedProperties(f"{len(data) - end} bytes after a value")
    return value


def sized_range(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where something begins and ends whose four bytes of length are at `at`."""
    start = at + 4
    if start > end:
        raise MalformedProperties("a table ends within a length")
    (size,) = U32.unpack_from(data, at)
    if size > end - start:
        raise MalformedProperties(f"a length of {size} bytes where {end - start} are left")
    return start, start + size


def _read_name(data: bytes, at: int, end: int) -> tuple[str, int]:
    # RabbitMQ carries names in any encoding; escaped, they go out as they came in.
    start = at + 1
    after = start + data[at]
    if after > end:
        raise MalformedProperties("a table ends within a name")
    return data[start:after].decode("utf-8", "surrogateescape"), after


def read_table(data: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while at < end:
        name, at = _read_name(data, at, end)
        table[name], at = _read_value(data, at, end, depth)
    return table


def _read_array(data: bytes, at: int, end: int, depth: int) -> list[Any]:
    array: list[Any] = []
    while at < end:
        value, at = _read_value(data, at, end, depth)
        array.append(value)
    return array


def _read_value(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    if at >= end:
        raise MalformedProperties("a table ends where a value should be")
    code = data[at]
    at += 1
    size = FIXED_SIZES.get(code)
    if size is None:
        start, after = sized_range(data, at, end)
        if code == TEXT:
            raw = data[start:after]
            try:
                return raw.decode(), after
            except UnicodeDecodeError:
                return raw, after
        if code == BYTES:
            return data[start:after], after
        if depth >= MAX_DEPTH:
            raise MalformedProperties(f"a table nested more than {MAX_DEPTH} deep")
        if code == TABLE:
            return read_table(data, start, after, depth + 1), after
        if code == ARRAY:
            return _read_array(data, start, after, depth + 1), after
        raise MalformedProperties(f"a value of unknown type {chr(code)!r} in a table")
    after = at + size
    if after > end:
        raise MalformedProperties("a table ends within a value")
    number = _NUMBERS.get(code)
    if number is not None:
        return number.unpack_from(data, at)[0], after
    if code == _BOOL:
        return data[at] != 0, after
    if code == _VOID:
        return None, after
    if code == _TIME:
        return Timestamp(U64.unpack_from(data, at)[0]), after
    (unscaled,) = _I32.unpack_from(data, at + 1)
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    return Decimal((int(unscaled < 0), digits, -data[at])), after


# -- tables: values to bytes ----------------------------------------------------------------------


def encode_table(mapping: Mapping[str, Any]) -> bytes:
    """A table with its length before it."""
    return write_table(mapping, 0)


def sized(data: bytes) -> bytes:
    return U32.pack(len(data)) + data


def short(text: str) -> bytes:
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError):
        raise MalformedProperties(f"not a text that can be encoded as UTF-8: {text!r:.80}") from None
    if len(raw) > MAX_SHORT:
        raise MalformedProperties(f"a short text of {len(raw)} bytes, the limit is {MAX_SHORT}")
    return bytes((len(raw),)) + raw


def write_table(mapping: Mapping[str, Any], depth: int) -> bytes:
    return sized(b"".join(short(name) + write_value(value, depth) for name, value in mapping.items()))


def write_value(value: object, depth: int) -> bytes:
    if isinstance(value, str):
        try:
            return b"S" + sized(value.encode())
        except UnicodeEncodeError:
            raise MalformedProperties(f"not a text that can be encoded as UTF-8: {value!r:.80}") from None
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        return _write_int(value)
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b"x" + sized(bytes(value))
    if isinstance(value, Decimal):
        return _write_decimal(value)
    if depth >= MAX_DEPTH:
        raise MalformedProperties(f"a table nested more than {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return b"F" + write_table(value, depth + 1)
    if isinstance(value, list | tuple):
        return b"A" + sized(b"".join(write_value(item, depth + 1) for item in value))
    raise MalformedProperties(f"a table cannot hold a value of type {type(value).__name__}")


def _write_int(value: int) -> bytes:
    if isinstance(value, Timestamp):
        if not 0 <= value < 1 << 64:
            raise MalformedProperties("a time outside of unsigned 64 bits")
        return b"T" + U64.pack(value)
    if -(1 << 31) <= value < 1 << 31 and not isinstance(value, Long):
        return b"I" + _I32.pack(value)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + _I64.pack(value)
    raise MalformedProperties("a number outside of signed 64 bits")


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    # The size first: 10 ** exponent of a hostile exponent would not end.
    if not isinstance(exponent, int) or exponent < -255 or len(digits) + max(exponent, 0) > 10:
        raise MalformedProperties("a decimal has up to 255 places and an unscaled value of 32 bits")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if not -(1 << 31) <= unscaled < 1 << 31:
        raise MalformedProperties("a decimal has up to 255 places and an unscaled value of 32 bits")
    return b"D" + bytes((max(-exponent, 0),)) + _I32.pack(unscaled)
