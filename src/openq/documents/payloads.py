"""Bodies in requests and replies.

JSON carries text and JSON values as they are, and bytes as base64 with `payload_encoding`. msgpack carries
text as str and bytes as bin; other values are stored as JSON if possible, which the library and the other
protocols read, else as msgpack. JSON bodies are kept byte for byte.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .. import amqp_fields
from ..errors import InvalidSetting
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    Properties,
)
from .problem import Problem
from .values import read_base64

MAX_DEPTH = 500  # the library can decode it at any stack depth of its caller

Body = tuple[bytes, int]  # and its encoding
PayloadView = tuple[Any, str | UnsetType]  # payload, payload_encoding

_read_json = msgspec.json.Decoder().decode
_read_json_text = msgspec.json.Decoder(str).decode
_read_msgpack = msgspec.msgpack.Decoder().decode
_read_binary = msgspec.msgpack.Decoder(bytes).decode
_write_json = msgspec.json.Encoder().encode

_STRINGS = frozenset([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB])
BINARIES = frozenset([0xC4, 0xC5, 0xC6])


# -- in -----------------------------------------------------------------------------------------


def read_json(raw: Raw, encoding: str | UnsetType) -> Body:
    data = bytes(raw)
    if encoding is not UNSET:
        return _decoded(read_base64(_text_of(data)), encoding)
    if data[:1] == b'"':
        return _text_of(data).encode(), ENCODING_TEXT
    return checked_json(data), ENCODING_JSON


def _text_of(data: bytes) -> str:
    try:
        return _read_json_text(data)
    except msgspec.ValidationError:
        raise InvalidSetting("a payload with payload_encoding must be text") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem("malformed", f"the payload: {error}") from None


def _decoded(data: bytes, encoding: str) -> Body:
    if encoding == "base64":
        return data, ENCODING_BYTES
    if encoding == "msgpack+base64":
        try:
            _read_msgpack(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise InvalidSetting("the payload is not valid msgpack") from None
        return data, ENCODING_MSGPACK
    # Not pickle: reading a pickle runs code of its writer.
    raise InvalidSetting(f"payload_encoding must be 'base64' or 'msgpack+base64', not {encoding!r}")


def checked_json(data: bytes) -> bytes:
    """JSON that every reader can read: UTF-8 throughout, and not too deep."""
    try:
        if not data.isascii():
            data.decode()
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(_read_json(data)) > MAX_DEPTH:
            raise InvalidSetting(f"the payload is nested too deeply: more than {MAX_DEPTH} levels")
    except RecursionError:
        raise InvalidSetting(f"the payload is nested too deeply: more than {MAX_DEPTH} levels") from None
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise Problem("malformed", f"the payload: {error}") from None
    return data


def _depth(value: Any) -> int:
    level = [value]
    depth = 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        parts = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for part in parts for inner in part]
        depth += 1
    return depth


def read_msgpack(raw: Raw, encoding: str | UnsetType) -> Body:
    data = bytes(raw)
    kind = data[0]
    if kind in BINARIES and encoding is UNSET:
        return _read_binary(data), ENCODING_BYTES
    try:
        value = _read_msgpack(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Problem("malformed", f"the payload: {error}") from None
    if encoding == "json":
        return _json_in(value), ENCODING_JSON
    if encoding is not UNSET:
        return _decoded(value if kind in BINARIES else read_base64(value), encoding)
    if kind in _STRINGS:
        return value.encode(), ENCODING_TEXT
    if _is_json(value):
        return checked_json(_write_json(value)), ENCODING_JSON
    return data, ENCODING_MSGPACK


def _json_in(value: object) -> bytes:
    """Values that `show_msgpack` marks because msgpack cannot represent them."""
    data = value.encode() if isinstance(value, str) else value
    try:
        if not isinstance(data, bytes):
            raise InvalidSetting("a payload with payload_encoding 'json' must be text or bytes")
        _read_json(data)
    except RecursionError:
        raise InvalidSetting(f"the payload is nested too deeply: more than {MAX_DEPTH} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise Problem("malformed", f"the payload: {error}") from None
    return checked_json(data)


def _is_json(value: Any) -> bool:
    """Whether a round trip through JSON keeps the value."""
    if value is None or isinstance(value, bool | int | str):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(each) for key, each in value.items())
    return False


# -- out ----------------------------------------------------------------------------------------


def form_of(body: bytes, body_encoding: int, properties: Properties | None, prefers_text: bool) -> int:
    """The encoding of a body. AMQP bodies are bytes with an optional content type.

    `prefers_text`: UTF-8 is text even without a content type, for a format that cannot represent bytes.
    """
    if body_encoding != ENCODING_BYTES or properties is None or properties.amqp_properties is None:
        return body_encoding
    claimed = amqp_fields.encoding_of(properties.amqp_properties)
    if (claimed == ENCODING_JSON and _reads(_read_json, body)) or (
        claimed == ENCODING_MSGPACK and _reads(_read_msgpack, body)
    ):
        return claimed
    if (claimed == ENCODING_TEXT or prefers_text) and _reads(bytes.decode, body):
        return ENCODING_TEXT
    return ENCODING_BYTES


def _reads(read: Callable[[bytes], object], body: bytes) -> bool:
    try:
        read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return False
    return True


_JSON_MARKERS = {ENCODING_MSGPACK: "msgpack+base64", ENCODING_PICKLE: "pickle+base64"}


def show_json(body: bytes, body_encoding: int) -> PayloadView:
    if body_encoding == ENCODING_TEXT:
        try:
            return body.decode(), UNSET
        except UnicodeDecodeError:
            pass  # declared as text but not UTF-8: shown as bytes
    elif body_encoding == ENCODING_JSON:
        try:
            _read_json(body)
            return Raw(body), UNSET
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            pass
    return base64.b64encode(body).decode(), _JSON_MARKERS.get(body_encoding, "base64")


_FORM_NAMES = {
    ENCODING_TEXT: "text",
    ENCODING_JSON: "json",
    ENCODING_MSGPACK: "msgpack",
    ENCODING_PICKLE: "pickle",
}


def show_native(body: bytes, body_encoding: int) -> PayloadView:
    """The stored bytes and their encoding; none for plain bytes."""
    return body, _FORM_NAMES.get(body_encoding, UNSET)


def show_msgpack(body: bytes, body_encoding: int) -> PayloadView:
    if body_encoding == ENCODING_TEXT:
        try:
            return body.decode(), UNSET
        except UnicodeDecodeError:
            pass
    elif body_encoding == ENCODING_JSON:
        try:
            return Raw(msgspec.msgpack.encode(_read_json(body))), UNSET
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError, OverflowError):
            return body, "json"  # integers or nesting that msgpack does not support
    elif body_encoding == ENCODING_MSGPACK:
        try:
            _read_msgpack(body)
            return Raw(body), UNSET
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            pass
    elif body_encoding == ENCODING_PICKLE:
        return body, "pickle"
    return body, UNSET
