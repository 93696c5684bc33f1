"""AMQP's field tables and message properties as Python values, and as the other protocols show them.

A message that was published by AMQP keeps its properties as bytes (`amqp_properties`): property flags and
property list, the content header after class, weight and body size. They are sent again unchanged; this
module decodes them only on demand. The dialect is RabbitMQ's: `s` is a 16 bit integer, `U` is unknown.

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

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from .errors import InvalidSetting

MAX_DEPTH = 32  # of tables and arrays within a table
MAX_SHORT = 255  # bytes of a short string, and of a name in a table
MAX_ID_CHARS = 1024  # characters of a group or a deduplication id, which are kept in memory

GROUP_HEADER = "x-group-id"
DEDUP_HEADER = "x-deduplication-header"
TRACE_HEADER = "x-amzn-trace-id"
TRACE_ATTRIBUTE = "openq.trace"
DELAY_HEADERS = ("x-delay", "openq.delay")


class MalformedProperties(InvalidSetting):
    """Bytes that are no table or no properties, or values that a table cannot hold."""

    code = "malformed_properties"


class Timestamp(int):
    """Seconds since the epoch that AMQP marks as a time."""

    __slots__ = ()


class Long(int):
    """A number that goes out in 64 bits however small it is, where clients expect that width."""

    __slots__ = ()


_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_I64 = Struct(">q")
_U64 = Struct(">Q")
_DOUBLE = Struct(">d")

_NUMBERS: dict[int, Struct] = {
    ord("b"): Struct(">b"),
    ord("B"): Struct(">B"),
    ord("s"): Struct(">h"),
    ord("u"): _U16,
    ord("I"): _I32,
    ord("i"): _U32,
    ord("l"): _I64,
    ord("L"): _I64,
    ord("f"): Struct(">f"),
    ord("d"): _DOUBLE,
}
_BOOL, _TEXT, _BYTES, _DECIMAL, _TIME, _VOID, _ARRAY, _TABLE = (ord(code) for code in "tSxDTVAF")
FIXED_SIZES = {code: encoding.size for code, encoding in _NUMBERS.items()} | {
    _BOOL: 1,
    _DECIMAL: 5,
    _TIME: 8,
    _VOID: 0,
}


# -- tables: bytes to values ----------------------------------------------------------------------


def decode_table(data: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    """The table whose length begins at `at`, and where it ends."""
    start, end = _sized_range(data, at, len(data))
    return _read_table(data, start, end, 0), end


def decode_value(data: bytes) -> Any:
    """One value of a table, with its kind before it."""
    value, end = _read_value(data, 0, len(data), 0)
    if end != len(data):
        raise MalformedProperties(f"{len(data) - end} bytes after a value")
    return value


def _sized_range(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where something begins and ends whose four bytes of length are at `at`."""
    start = at + 4
    if start > end:
        raise MalformedProperties("a table ends within a length")
    (size,) = _U32.unpack_from(data, at)
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


def _read_table(data: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
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
        start, after = _sized_range(data, at, end)
        if code == _TEXT:
            raw = data[start:after]
            try:
                return raw.decode(), after
            except UnicodeDecodeError:
                return raw, after
        if code == _BYTES:
            return data[start:after], after
        if depth >= MAX_DEPTH:
            raise MalformedProperties(f"a table nested more than {MAX_DEPTH} deep")
        if code == _TABLE:
            return _read_table(data, start, after, depth + 1), after
        if code == _ARRAY:
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
        return Timestamp(_U64.unpack_from(data, at)[0]), after
    (unscaled,) = _I32.unpack_from(data, at + 1)
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    return Decimal((int(unscaled < 0), digits, -data[at])), after


# -- tables: values to bytes ----------------------------------------------------------------------


def encode_table(mapping: Mapping[str, Any]) -> bytes:
    """A table with its length before it."""
    return _write_table(mapping, 0)


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _short(text: str) -> bytes:
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError):
        raise MalformedProperties(f"not a text that can be encoded as UTF-8: {text!r:.80}") from None
    if len(raw) > MAX_SHORT:
        raise MalformedProperties(f"a short text of {len(raw)} bytes, the limit is {MAX_SHORT}")
    return bytes((len(raw),)) + raw


def _write_table(mapping: Mapping[str, Any], depth: int) -> bytes:
    return _sized(b"".join(_short(name) + _write_value(value, depth) for name, value in mapping.items()))


def _write_value(value: object, depth: int) -> bytes:
    if isinstance(value, str):
        try:
            return b"S" + _sized(value.encode())
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
        return b"x" + _sized(bytes(value))
    if isinstance(value, Decimal):
        return _write_decimal(value)
    if depth >= MAX_DEPTH:
        raise MalformedProperties(f"a table nested more than {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return b"F" + _write_table(value, depth + 1)
    if isinstance(value, list | tuple):
        return b"A" + _sized(b"".join(_write_value(item, depth + 1) for item in value))
    raise MalformedProperties(f"a table cannot hold a value of type {type(value).__name__}")


def _write_int(value: int) -> bytes:
    if isinstance(value, Timestamp):
        if not 0 <= value < 1 << 64:
            raise MalformedProperties("a time outside of unsigned 64 bits")
        return b"T" + _U64.pack(value)
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


# -- the properties of a message ------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class AmqpProperties:
    """What a message says about itself. None: it does not say."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_HEADERS_FLAG = 0x2000
_EXPIRATION_FLAG = 0x0100
# The two lowest bits mean nothing in the only word of flags there is: ignored, as RabbitMQ does.
_KNOWN_FLAGS = 0xFFFC
SHORT_KIND, TABLE_KIND, OCTET_KIND, TIME_KIND = range(4)
_KINDS = {
    "headers": TABLE_KIND,
    "delivery_mode": OCTET_KIND,
    "priority": OCTET_KIND,
    "timestamp": TIME_KIND,
}
FIELDS = tuple(
    (0x8000 >> place, name, _KINDS.get(name, SHORT_KIND))
    for place, name in enumerate(AmqpProperties.__slots__)
)


@lru_cache(maxsize=256)  # clients use a handful of combinations; strangers must not fill the memory
def _fields_of(flags: int) -> tuple[tuple[int, str, int], ...]:
    return tuple(field for field in FIELDS if flags & field[0])


def _flags_of(amqp_properties: bytes) -> int:
    if len(amqp_properties) < 2:
        raise MalformedProperties("properties without their flags")
    return amqp_properties[0] << 8 | amqp_properties[1]


def _end_of_field(amqp_properties: bytes, at: int, kind: int) -> int:
    if kind == TABLE_KIND:
        return _sized_range(amqp_properties, at, len(amqp_properties))[1]
    if kind == SHORT_KIND:
        end = at + 1 + amqp_properties[at] if at < len(amqp_properties) else at + 1
    else:
        end = at + (1 if kind == OCTET_KIND else 8)
    if end > len(amqp_properties):
        raise MalformedProperties("properties end within a field")
    return end


def decode(amqp_properties: bytes) -> AmqpProperties:
    properties = AmqpProperties()
    at = 2
    for _, name, kind in _fields_of(_flags_of(amqp_properties) & _KNOWN_FLAGS):
        end = _end_of_field(amqp_properties, at, kind)
        value: Any
        if kind == SHORT_KIND:
            # Escaped where it is not UTF-8: RabbitMQ does not look into these either.
            value = amqp_properties[at + 1 : end].decode("utf-8", "surrogateescape")
        elif kind == OCTET_KIND:
            value = amqp_properties[at]
        elif kind == TIME_KIND:
            (value,) = _U64.unpack_from(amqp_properties, at)
        else:
            value = _read_table(amqp_properties, at + 4, end, 0)
        setattr(properties, name, value)
        at = end
    if at != len(amqp_properties):
        raise MalformedProperties(f"{len(amqp_properties) - at} bytes after the last property")
    return properties


def encode(properties: AmqpProperties) -> bytes:
    flags = 0
    fields = []
    for flag, name, kind in FIELDS:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= flag
        if kind == SHORT_KIND:
            fields.append(_short(value))
        elif kind == TABLE_KIND:
            fields.append(_write_table(value, 0))
        elif not 0 <= value < (256 if kind == OCTET_KIND else 1 << 64):
            raise MalformedProperties(f"{name} is out of its range: {value}")
        else:
            fields.append(bytes((value,)) if kind == OCTET_KIND else _U64.pack(value))
    return _U16.pack(flags) + b"".join(fields)


def with_headers(
    amqp_properties: bytes,
    extra: Mapping[str, object],
    drop: Iterable[str] = (),
    drop_expiration: bool = False,
) -> bytes:
    """The same properties with other headers; what is not named stays byte for byte as it was sent."""
    flags = _flags_of(amqp_properties)
    gone = {_short(name)[1:] for name in (*extra, *drop)}
    fields: list[bytes] = []
    before_headers = 0
    table = b""
    at = 2
    for flag, _, kind in _fields_of(flags & _KNOWN_FLAGS):
        end = _end_of_field(amqp_properties, at, kind)
        if flag == _HEADERS_FLAG:
            table = b"".join(
                item for name, item in _raw_items(amqp_properties, at + 4, end) if name not in gone
            )
        elif flag != _EXPIRATION_FLAG or not drop_expiration:
            fields.append(amqp_properties[at:end])
        if flag > _HEADERS_FLAG:
            before_headers = len(fields)
        at = end
    if at != len(amqp_properties):
        raise MalformedProperties(f"{len(amqp_properties) - at} bytes after the last property")
    if extra:
        flags |= _HEADERS_FLAG
        table += encode_table(extra)[4:]
    if drop_expiration:
        flags &= ~_EXPIRATION_FLAG
    if flags & _HEADERS_FLAG:
        fields.insert(before_headers, _sized(table))
    return _U16.pack(flags) + b"".join(fields)


def _raw_items(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Names and whole items of a table; a value is stepped over, not looked into."""
    while at < end:
        start = at
        at += 1 + data[at]
        if at >= end:
            raise MalformedProperties("a table ends within a name")
        name = data[start + 1 : at]
        code = data[at]
        size = FIXED_SIZES.get(code)
        if size is not None:
            at += 1 + size
        elif code in (_TEXT, _BYTES, _ARRAY, _TABLE):
            at = _sized_range(data, at + 1, end)[1]
        else:
            raise MalformedProperties(f"a value of unknown type {chr(code)!r} in a table")
        if at > end:
            raise MalformedProperties("a table ends within a value")
        yield name, data[start:at]


# -- as the other protocols show them -------------------------------------------------------------

# Headers that say more than an attribute: of a message with one of them, or with a property that a queue
# acts upon, `is_plain` says no.
_INTERPRETED_HEADERS = frozenset(
    name.encode() for name in ("CC", "BCC", GROUP_HEADER, DEDUP_HEADER, *DELAY_HEADERS)
)
_INTERPRETED_FLAGS = 0x0133  # expiration, type, user_id, and flags that are nobody's
_DIRECT_REPLY = b"\x15amq.rabbitmq.reply-to"


def is_plain(amqp_properties: bytes) -> bool:
    """Whether these are properties in order that concern nobody but the consumer.

    A look without making anything of it: a third of what `decode` costs, for every message of a client whose
    messages have ids of their own. No is no verdict: `decode` has to say what is the matter.
    """
    size = len(amqp_properties)
    if size < 2:
        return False
    flags = amqp_properties[0] << 8 | amqp_properties[1]
    if flags & _INTERPRETED_FLAGS:
        return False
    at = 2
    try:
        if flags & 0x8000:
            at += 1 + amqp_properties[at]
        if flags & 0x4000:
            at += 1 + amqp_properties[at]
        if flags & 0x2000:
            end = at + 4 + _U32.unpack_from(amqp_properties, at)[0]
            if end > size or not _is_plain_table(amqp_properties, at + 4, end, 0):
                return False
            at = end
        if flags & 0x1000:
            if amqp_properties[at] not in (1, 2):
                return False
            at += 1
        if flags & 0x0800:
            if amqp_properties[at]:  # a priority
                return False
            at += 1
        for flag in (0x0400, 0x0200, 0x0080):
            if flags & flag:
                at += 1 + amqp_properties[at]
        if flags & 0x0040:
            at += 8
        for flag in (0x0008, 0x0004):
            if flags & flag:
                at += 1 + amqp_properties[at]
    except (IndexError, StructError):
        return False
    return at == size and _DIRECT_REPLY not in amqp_properties


def _is_plain_table(data: bytes, at: int, end: int, depth: int) -> bool:
    while at < end:
        start = at + 1
        at = start + data[at]
        if at >= end or (not depth and data[start:at] in _INTERPRETED_HEADERS):
            return False
        at = _after_value(data, at, end, depth)
        if not at:
            return False
    return at == end


def _after_value(data: bytes, at: int, end: int, depth: int) -> int:
    """Where a value ends whose kind is at `at`; 0 if it does not end in time, or is of no known kind."""
    kind = data[at]
    if kind in (_TEXT, _BYTES):
        if at + 5 > end:
            return 0
        at += 5 + _U32.unpack_from(data, at + 1)[0]
        return at if at <= end else 0
    size = FIXED_SIZES.get(kind)
    if size is not None:
        at += 1 + size
        return at if at <= end else 0
    if (kind != _TABLE and kind != _ARRAY) or at + 5 > end or depth >= MAX_DEPTH:
        return 0
    stop: int = at + 5 + _U32.unpack_from(data, at + 1)[0]
    if stop > end:
        return 0
    at += 5
    if kind == _TABLE:
        return stop if _is_plain_table(data, at, stop, depth + 1) else 0
    while at < stop:
        at = _after_value(data, at, stop, depth + 1)
        if not at:
            return 0
    return stop


# Properties that are attributes elsewhere; the others are parts of a message of their own.
ATTRIBUTE_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "user_id",
    "app_id",
    "cluster_id",
)
# Elsewhere a message's delay, receive count and deaths say what these say; BCC is for nobody's eyes.
HIDDEN_HEADERS = frozenset(
    (
        *("BCC", *DELAY_HEADERS, "x-delivery-count", "x-death"),
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("exchange", "queue", "reason")
        ),
    )
)


def group_of(headers: Mapping[str, Any] | None) -> str | None:
    """The group that a publisher asks for; only text names one."""
    return _id_header(headers, GROUP_HEADER)


def dedup_of(headers: Mapping[str, Any] | None) -> str | None:
    """The deduplication id that a publisher gives; only text is one."""
    return _id_header(headers, DEDUP_HEADER)


def _id_header(headers: Mapping[str, Any] | None, name: str) -> str | None:
    value = headers.get(name) if headers else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS else None


def attributes_of(amqp_properties: bytes) -> dict[str, object]:
    """The attributes that other protocols show: JSON values and bytes, for any AMQP properties."""
    return attributes_from(decode(amqp_properties))


def attributes_from(properties: AmqpProperties) -> dict[str, object]:
    """`attributes_of`, for who has read the properties already."""
    headers = properties.headers or {}
    attributes: dict[str, object] = {}
    for name, value in headers.items():
        if name in HIDDEN_HEADERS:
            continue
        if (name == GROUP_HEADER and group_of(headers)) or (name == DEDUP_HEADER and dedup_of(headers)):
            continue
        attributes[TRACE_ATTRIBUTE if name == TRACE_HEADER else _clean_name(name)] = plain_value(value)
    for name in ATTRIBUTE_PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            attributes[name] = plain_value(value)
    return attributes


def _clean_name(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def plain_value(value: Any) -> object:
    """A value of a table as JSON or bytes can hold it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
        return value
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        return {_clean_name(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value


# By the form of the body: FORM_BYTES and its followers in `model`, which stands on this module.
CONTENT_TYPES = (
    "application/octet-stream",
    "text/plain",
    "application/json",
    "application/msgpack",
    "application/octet-stream",
)
_BYTES_ENCODING, _TEXT_ENCODING, _JSON_ENCODING, _MSGPACK_ENCODING = range(4)
_ENCODINGS = {
    "application/json": _JSON_ENCODING,
    "application/msgpack": _MSGPACK_ENCODING,
    "application/x-msgpack": _MSGPACK_ENCODING,
}
_CONTENT_TYPE_FLAG, _CONTENT_ENCODING_FLAG = 0x8000, 0x4000
# Those that leave a body as it is; any other (gzip, base64, ...) makes bytes of it.
_PLAIN_ENCODINGS = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii", "binary", "8bit", "7bit", "identity"))


def encoding_of(amqp_properties: bytes) -> int:
    """The form that the content type claims for the body; whether it is true only the body can tell."""
    flags = _flags_of(amqp_properties)
    if not flags & _CONTENT_TYPE_FLAG:
        return _BYTES_ENCODING
    end = _end_of_field(amqp_properties, 2, SHORT_KIND)
    kind, _, parameters = amqp_properties[3:end].decode("utf-8", "replace").lower().partition(";")
    if flags & _CONTENT_ENCODING_FLAG:
        encoding = amqp_properties[end + 1 : _end_of_field(amqp_properties, end, SHORT_KIND)].decode(
            "utf-8", "replace"
        )
        if encoding.strip().lower() not in _PLAIN_ENCODINGS:
            return _BYTES_ENCODING
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset not in _PLAIN_ENCODINGS:
        return _BYTES_ENCODING
    kind = kind.strip()
    if kind in _ENCODINGS:
        return _ENCODINGS[kind]
    if kind.endswith("+json"):
        return _JSON_ENCODING
    return _TEXT_ENCODING if kind.startswith("text/") else _BYTES_ENCODING


_PERSISTENT = 2
# Of a message that is only a body: all its properties but the text of its id, which is the last of them.
_PLAIN = tuple(
    encode(AmqpProperties(content_type=name, delivery_mode=_PERSISTENT, message_id=""))[:-1]
    for name in CONTENT_TYPES
)


def amqp_properties_of(
    attributes: Mapping[str, object],
    *,
    encoding: int,
    type: str | None,
    priority: int,
    group: str | None,
    dedup: str | None,
    message_id: str,
    expiration: str | None,
) -> bytes:
    """The properties of a message that was published by another protocol.

    Never refuses: by now the message is queued, and a name that is cut is better than one that cannot leave.
    """
    if not attributes and type is group is dedup is expiration is None and priority <= 0:
        return _PLAIN[encoding] + _short(_truncated(message_id))
    properties = AmqpProperties(
        content_type=CONTENT_TYPES[encoding],
        delivery_mode=_PERSISTENT,
        priority=min(priority, 255) if priority > 0 else None,
        expiration=expiration,
        message_id=_truncated(message_id),
        type=None if type is None else _truncated(type),
    )
    headers: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in ATTRIBUTE_PROPERTIES and _fits(name, value):
            setattr(properties, name, value)
        else:
            name = TRACE_HEADER if name == TRACE_ATTRIBUTE else _truncated(name)
            headers.setdefault(name, _table_value(value, 0))
    if group is not None:
        headers[GROUP_HEADER] = _table_value(group, 0)
    if dedup is not None:
        headers[DEDUP_HEADER] = _table_value(dedup, 0)
    properties.headers = headers or None
    return encode(properties)


def _fits(name: str, value: object) -> bool:
    if name == "timestamp":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
    return isinstance(value, str) and _truncated(value) == value


def _truncated(text: str) -> str:
    """As much of a text as a short string holds, without half a character at its end."""
    return text.encode("utf-8", "replace")[:MAX_SHORT].decode("utf-8", "ignore")


def _table_value(value: object, depth: int) -> object:
    """The value itself where a table can hold it, else a text that says the same."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, Mapping):
            return {_truncated(str(name)): _table_value(item, depth + 1) for name, item in value.items()}
        return [_table_value(item, depth + 1) for item in value]
    try:
        _write_value(value, depth)
    except MalformedProperties:
        return _text_of(value)
    return value


def _text_of(value: object) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except ValueError:  # a number of more digits than Python cares to print
        return hex(value) if isinstance(value, int) else "..."


# -- as JSON --------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """JSON without loss for every value that a table can hold; a dict that looks like a tag is wrapped."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, Long):
        return {"$long": int(value)}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, Mapping):
        plain = {name: to_json(item) for name, item in value.items()}
        return {"$table": plain} if any(name.startswith("$") for name in plain) else plain
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


_UNTAG: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$timestamp": Timestamp,
    "$long": Long,
    "$decimal": Decimal,
    "$float": float,
    "$table": lambda table: {name: from_json(item) for name, item in table.items()},
}


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            [(name, inner)] = value.items()
            untag = _UNTAG.get(name)
            if untag is not None:
                return untag(inner)
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value
