"""The bytes of values inside records: JSON that may hold bytes, properties, delivery options."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from ..errors import InvalidSetting
from ..model import DeadLetterEvent, DeliveryOptions, Properties

_U16 = Struct("<H")
_U32 = Struct("<I")
_U64 = Struct("<Q")

_MAX_DEPTH = 64  # every value that can be written must be readable, at any stack depth


def _tag(value: object, depth: int = 0) -> object:
    """JSON for values that may hold bytes.

    A dict that looks like a tag is wrapped, so nothing is ambiguous.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if depth > _MAX_DEPTH:
        raise InvalidSetting(f"attributes or arguments nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        tagged = {str(key): _tag(item, depth + 1) for key, item in value.items()}
        return {"$dict": tagged} if any(key.startswith("$") for key in tagged) else tagged
    if isinstance(value, list | tuple):
        return [_tag(item, depth + 1) for item in value]
    return value


def _untag(value: object) -> object:
    if isinstance(value, dict):
        if "$bytes" in value:
            return base64.b64decode(value["$bytes"])
        inner = value.get("$dict", value)
        return {key: _untag(item) for key, item in inner.items()}
    if isinstance(value, list):
        return [_untag(item) for item in value]
    return value


def plain_copy(value: object, depth: int = 0) -> Any:
    """A copy as a reader will decode it, so that a message in memory equals the one on disk."""
    if value is None or isinstance(value, str | bool | int | float | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if depth > _MAX_DEPTH:
        raise InvalidSetting(f"attributes or arguments nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return {str(key): plain_copy(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_copy(item, depth + 1) for item in value]
    raise InvalidSetting(f"attributes and arguments hold JSON values or bytes, not {type(value).__name__}")


def pack_value(value: object) -> bytes:
    try:
        text = json.dumps(_tag(value), separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"attributes and arguments hold JSON values or bytes: {error}") from None
    return text.encode("utf-8", "surrogatepass")


def unpack_value(data: bytes) -> Any:
    return _untag(json.loads(data.decode("utf-8", "surrogatepass")))


AMQP_MARK = 1  # first byte of properties in AMQP encoding; properties in JSON begin with a bracket
AMQP_HEAD = Struct("<BH")  # that byte, and the length of the publisher's name
NO_PUBLISHER = 0xFFFF
OWN_AMQP = Struct("<IBH")  # the length of the properties, and their `AMQP_HEAD`
# Values that many messages share are decoded to one object. Both caches are emptied when full.
_MAX_SHARED = 1024
_MAX_SHARED_BYTES = 512
_shared_properties: dict[bytes, Properties] = {}
_shared_options: dict[bytes, DeliveryOptions] = {}


def pack_properties(properties: Properties) -> bytes:
    if properties.packed is not None:
        return properties.packed
    if properties.amqp_properties is None:
        return pack_value([properties.attributes and dict(properties.attributes), properties.publisher])
    if properties.publisher is None:
        packed = AMQP_HEAD.pack(AMQP_MARK, NO_PUBLISHER) + properties.amqp_properties
    else:
        name = properties.publisher.encode("utf-8", "surrogatepass")
        if len(name) >= NO_PUBLISHER:
            raise InvalidSetting(f"a publisher's name of {len(name)} bytes")
        packed = AMQP_HEAD.pack(AMQP_MARK, len(name)) + name + properties.amqp_properties
    properties.packed = packed
    return packed


def unpack_properties(data: bytes) -> Properties:
    if data[0] != AMQP_MARK:
        attributes, publisher = unpack_value(data)
        return Properties(attributes or {}, publisher)
    properties = _shared_properties.get(data)
    if properties is not None:
        return properties
    (size,) = _U16.unpack_from(data, 1)
    if size == NO_PUBLISHER:
        properties = Properties(None, None, data[3:])
    else:
        properties = Properties(None, data[3 : 3 + size].decode("utf-8", "surrogatepass"), data[3 + size :])
    if len(data) <= _MAX_SHARED_BYTES:
        properties.packed = data
        if len(_shared_properties) >= _MAX_SHARED:
            _shared_properties.clear()
        _shared_properties[data] = properties
    return properties


_TEXTS = ("group", "type", "dedup", "unique", "id", "failure")
_NUMBERS = ("due_ms", "expires_ms", "number", "first_ms", "born_ms")
_OPTIONS_HEAD = Struct("<HBI")  # which fields follow, priority, receive count
_DEAD_LETTER_EVENTS_BIT = 1 << 11
_ROUTE_BIT = 1 << 12


def _dead_letter_event(fields: Sequence[Any]) -> DeadLetterEvent:
    return DeadLetterEvent.from_fields(*fields) if len(fields) == 4 else DeadLetterEvent(*fields)


def pack_options(options: DeliveryOptions) -> bytes:
    if options.packed is not None:
        return options.packed
    bits = 0
    parts = [b""]
    bit = 1
    for name in _TEXTS:
        text = getattr(options, name)
        if text is not None:
            bits |= bit
            data = text.encode("utf-8", "surrogatepass")
            parts.append(_U32.pack(len(data)))
            parts.append(data)
        bit <<= 1
    for name in _NUMBERS:
        number = getattr(options, name)
        if number:
            bits |= bit
            parts.append(_U64.pack(number))
        bit <<= 1
    for flag, value in ((_DEAD_LETTER_EVENTS_BIT, options.deaths), (_ROUTE_BIT, options.route)):
        if value:
            bits |= flag
            data = pack_value(value)
            parts.append(_U32.pack(len(data)))
            parts.append(data)
    parts[0] = _OPTIONS_HEAD.pack(bits, options.priority, options.count)
    packed = b"".join(parts)
    if options.is_plain:
        # Only plain options: many messages share them. For a single message a copy would repeat the bytes on
        # disk.
        options.packed = packed
    return packed


def unpack_options(data: bytes) -> DeliveryOptions:
    shared = _shared_options.get(data)
    if shared is not None:
        return shared
    options = DeliveryOptions()
    bits, options.priority, options.count = _OPTIONS_HEAD.unpack_from(data)
    position = _OPTIONS_HEAD.size

    def take() -> bytes:
        nonlocal position
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        return data[position - size : position]

    bit = 1
    for name in _TEXTS:
        if bits & bit:
            setattr(options, name, take().decode("utf-8", "surrogatepass"))
        bit <<= 1
    for name in _NUMBERS:
        if bits & bit:
            setattr(options, name, _U64.unpack_from(data, position)[0])
            position += 8
        bit <<= 1
    if bits & _DEAD_LETTER_EVENTS_BIT:
        options.deaths = tuple(map(_dead_letter_event, unpack_value(take())))
    if bits & _ROUTE_BIT:
        exchange, key = unpack_value(take())
        options.route = (exchange, key)
    if options.mark_plain().is_plain and len(data) <= _MAX_SHARED_BYTES:
        options.packed = data
        if len(_shared_options) >= _MAX_SHARED:
            _shared_options.clear()
        _shared_options[data] = options
    return options
