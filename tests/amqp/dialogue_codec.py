"""An AMQP codec for these tests alone: a mistake in OpenQ's own codec must not hide itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_MAX = 131_072

_METHODS = """
10,10 connection.start version_major:octet version_minor:octet server_properties:table mechanisms:long_string locales:long_string
10,11 connection.start-ok client_properties:table mechanism:string response:long_string locale:string
10,20 connection.secure challenge:long_string
10,21 connection.secure-ok response:long_string
10,30 connection.tune channel_max:short frame_max:long heartbeat:short
10,31 connection.tune-ok channel_max:short frame_max:long heartbeat:short
10,40 connection.open virtual_host:string reserved1:string reserved2:bit
10,41 connection.open-ok reserved1:string
10,50 connection.close reply_code:short reply_text:string class_id:short method_id:short
10,51 connection.close-ok
10,60 connection.blocked reason:string
10,61 connection.unblocked
10,70 connection.update-secret new_secret:long_string reason:string
10,71 connection.update-secret-ok
20,10 channel.open reserved1:string
20,11 channel.open-ok reserved1:long_string
20,20 channel.flow active:bit
20,21 channel.flow-ok active:bit
20,40 channel.close reply_code:short reply_text:string class_id:short method_id:short
20,41 channel.close-ok
30,10 access.request realm:string exclusive:bit passive:bit active:bit write:bit read:bit
30,11 access.request-ok ticket:short
40,10 exchange.declare reserved1:short exchange:string type:string passive:bit durable:bit auto_delete:bit internal:bit no_wait:bit arguments:table
40,11 exchange.declare-ok
40,20 exchange.delete reserved1:short exchange:string if_unused:bit no_wait:bit
40,21 exchange.delete-ok
40,30 exchange.bind reserved1:short destination:string source:string routing_key:string no_wait:bit arguments:table
40,31 exchange.bind-ok
40,40 exchange.unbind reserved1:short destination:string source:string routing_key:string no_wait:bit arguments:table
40,51 exchange.unbind-ok
50,10 queue.declare reserved1:short queue:string passive:bit durable:bit exclusive:bit auto_delete:bit no_wait:bit arguments:table
50,11 queue.declare-ok queue:string message_count:long consumer_count:long
50,20 queue.bind reserved1:short queue:string exchange:string routing_key:string no_wait:bit arguments:table
50,21 queue.bind-ok
50,30 queue.purge reserved1:short queue:string no_wait:bit
50,31 queue.purge-ok message_count:long
50,40 queue.delete reserved1:short queue:string if_unused:bit if_empty:bit no_wait:bit
50,41 queue.delete-ok message_count:long
50,50 queue.unbind reserved1:short queue:string exchange:string routing_key:string arguments:table
50,51 queue.unbind-ok
60,10 basic.qos prefetch_size:long prefetch_count:short global:bit
60,11 basic.qos-ok
60,20 basic.consume reserved1:short queue:string consumer_tag:string no_local:bit no_ack:bit exclusive:bit no_wait:bit arguments:table
60,21 basic.consume-ok consumer_tag:string
60,30 basic.cancel consumer_tag:string no_wait:bit
60,31 basic.cancel-ok consumer_tag:string
60,40 basic.publish reserved1:short exchange:string routing_key:string mandatory:bit immediate:bit
60,50 basic.return reply_code:short reply_text:string exchange:string routing_key:string
60,60 basic.deliver consumer_tag:string delivery_tag:longlong redelivered:bit exchange:string routing_key:string
60,70 basic.get reserved1:short queue:string no_ack:bit
60,71 basic.get-ok delivery_tag:longlong redelivered:bit exchange:string routing_key:string message_count:long
60,72 basic.get-empty cluster_id:string
60,80 basic.ack delivery_tag:longlong multiple:bit
60,90 basic.reject delivery_tag:longlong requeue:bit
60,100 basic.recover-async requeue:bit
60,110 basic.recover requeue:bit
60,111 basic.recover-ok
60,120 basic.nack delivery_tag:longlong multiple:bit requeue:bit
85,10 confirm.select no_wait:bit
85,11 confirm.select-ok
90,10 tx.select
90,11 tx.select-ok
90,20 tx.commit
90,21 tx.commit-ok
90,30 tx.rollback
90,31 tx.rollback-ok
"""  # noqa: E501
_PROPERTIES = (
    ("content_type", "string"),
    ("content_encoding", "string"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "string"),
    ("reply_to", "string"),
    ("expiration", "string"),
    ("message_id", "string"),
    ("timestamp", "longlong"),
    ("type", "string"),
    ("user_id", "string"),
    ("app_id", "string"),
    ("cluster_id", "string"),
)
METHODS_WITH_CONTENT = ("basic.return", "basic.deliver", "basic.get-ok")
_NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
_TABLE_NUMBERS = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "f": ">f", "d": ">d",
    "T": ">Q",
}  # fmt: skip


class _Method(NamedTuple):
    id: tuple[int, int]
    name: str
    fields: tuple[tuple[str, str], ...]


def _methods() -> Iterator[_Method]:
    for line in _METHODS.strip().splitlines():
        numbers, name, *fields = line.split()
        class_id, method_id = numbers.split(",")
        pairs = (field.split(":") for field in fields)
        yield _Method((int(class_id), int(method_id)), name, tuple((name, kind) for name, kind in pairs))


METHODS_BY_NAME = {method.name: method for method in _methods()}
_BY_ID = {method.id: method for method in METHODS_BY_NAME.values()}


# Values in tables: text, booleans, lists, tables and 32-bit integers are themselves; any other type is
# {"!x": value} with its letter on the wire.


def _encode_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"I" + struct.pack(">i", value)
    if isinstance(value, str):
        raw = value.encode()
        return b"S" + struct.pack(">I", len(raw)) + raw
    if isinstance(value, list):
        raw = b"".join(_encode_value(item) for item in value)
        return b"A" + struct.pack(">I", len(raw)) + raw
    if isinstance(value, dict):
        if len(value) == 1 and (key := next(iter(value))).startswith("!"):
            return _encode_typed(key[1], value[key])
        return b"F" + _encode_table(value)
    raise TypeError(value)


def _encode_typed(letter: str, value: Any) -> bytes:
    tag = letter.encode()
    if letter in _TABLE_NUMBERS:
        return tag + struct.pack(_TABLE_NUMBERS[letter], value)
    if letter == "V":
        return tag
    if letter == "x":
        raw = bytes.fromhex(value)
        return tag + struct.pack(">I", len(raw)) + raw
    if letter == "D":
        return tag + struct.pack(">BI", *value)
    raise TypeError(letter)


def _encode_table(table: dict[str, Any]) -> bytes:
    raw = b"".join(
        bytes([len(name.encode())]) + name.encode() + _encode_value(value) for name, value in table.items()
    )
    return struct.pack(">I", len(raw)) + raw


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size, f"{size} bytes wanted at {self.at} of {self.data!r}"
        self.at += size
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.take(self.number(">B")).decode()

    def long_string(self) -> str:
        return readable(self.take(self.number(">I")))

    def table(self) -> dict[str, Any]:
        inner = _Cursor(self.take(self.number(">I")))
        table = {}
        while inner.at < len(inner.data):
            name = inner.string()
            table[name] = inner.value()
        return table

    def value(self) -> Any:
        letter = self.take(1).decode("latin-1")
        if letter == "t":
            return self.number(">B") != 0
        if letter == "S":
            return self.long_string()
        if letter == "F":
            return self.table()
        if letter == "A":
            inner = _Cursor(self.take(self.number(">I")))
            items = []
            while inner.at < len(inner.data):
                items.append(inner.value())
            return items
        if letter == "I":
            return self.number(">i")
        if letter in _TABLE_NUMBERS:
            return {f"!{letter}": self.number(_TABLE_NUMBERS[letter])}
        if letter == "V":
            return {"!V": None}
        if letter == "x":
            return {"!x": self.take(self.number(">I")).hex()}
        if letter == "D":
            return {"!D": list(struct.unpack(">BI", self.take(5)))}
        raise AssertionError(f"type {letter!r} in a table")


def readable(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def encode_method(name: str, fields: dict[str, Any]) -> bytes:
    method = METHODS_BY_NAME[name]
    unknown = set(fields) - {field for field, _ in method.fields}
    assert not unknown, f"{name} has no {unknown}"
    out = bytearray(struct.pack(">HH", *method.id))
    bits: list[bool] = []
    for field, kind in method.fields:
        if kind == "bit":
            bits.append(bool(fields.get(field)))
            continue
        out += _packed(bits)
        out += _encode_field(kind, fields.get(field))
    return bytes(out + _packed(bits))


def _packed(bits: list[bool]) -> bytes:
    if not bits:
        return b""
    octet = sum(1 << place for place, bit in enumerate(bits) if bit)
    bits.clear()
    return bytes([octet])


def _encode_field(kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value or 0)
    if kind == "table":
        return _encode_table(value or {})
    raw = (value or "").encode()
    return (bytes([len(raw)]) if kind == "string" else struct.pack(">I", len(raw))) + raw


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    cursor = _Cursor(payload)
    method = _BY_ID[(cursor.number(">H"), cursor.number(">H"))]
    fields: dict[str, Any] = {}
    place = 8
    octet = 0
    for field, kind in method.fields:
        if kind == "bit":
            if place > 7:
                octet, place = cursor.number(">B"), 0
            fields[field] = bool(octet >> place & 1)
            place += 1
            continue
        place = 8
        fields[field] = _decode_field(cursor, kind)
    assert cursor.at == len(payload), f"{method.name} is followed by {payload[cursor.at :]!r}"
    return method.name, {field: value for field, value in fields.items() if not field.startswith("reserved")}


def _decode_field(cursor: _Cursor, kind: str) -> Any:
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind])
    return getattr(cursor, kind)()


def encode_properties(properties: dict[str, Any]) -> bytes:
    flags = 0
    out = b""
    for place, (name, kind) in enumerate(_PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - place)
            out += _encode_field(kind, properties[name])
    return struct.pack(">H", flags) + out


def decode_properties(wire: bytes) -> dict[str, Any]:
    cursor = _Cursor(wire)
    flags = cursor.number(">H")
    properties = {
        name: _decode_field(cursor, kind)
        for place, (name, kind) in enumerate(_PROPERTIES)
        if flags >> (15 - place) & 1
    }
    assert cursor.at == len(wire), f"properties are followed by {wire[cursor.at :]!r}"
    return properties


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


def content(channel: int, properties: dict[str, Any], body: bytes) -> bytes:
    header = struct.pack(">HHQ", 60, 0, len(body)) + encode_properties(properties)
    room = FRAME_MAX - 8
    bodies = b"".join(frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room))
    return frame(HEADER, channel, header) + bodies
