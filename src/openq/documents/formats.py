"""JSON and msgpack: encoding, decoding with errors as sentences, and values that they cannot represent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import msgspec.inspect

from .problem import Problem


class Format:
    """One of the two; decoders are made once per type."""

    __slots__ = ("_decoders", "content_type", "encode", "is_json", "new_decoder")

    def __init__(
        self, content_type: bytes, encode: Callable[[Any], bytes], new_decoder: Callable[[Any], Any]
    ) -> None:
        self.content_type = content_type
        self.encode = encode
        self.new_decoder = new_decoder
        self.is_json = content_type == b"application/json"
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def decode(self, data: bytes, kind: Any) -> Any:
        """Raises Problem: `malformed` for invalid JSON or msgpack, `invalid` for a wrong type."""
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._decoders[kind] = self.new_decoder(kind).decode
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            raise Problem("invalid", explain(error, kind)) from None
        except RecursionError:
            raise Problem("malformed", "the body is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise Problem("malformed", str(error)) from None


def encode_messages(format: Format, value: Any) -> bytes:
    """A reply whose first field is `messages`, encoded message by message: an encoder holds the GIL until it
    is done, and other threads can run in between."""
    frame = format.encode(msgspec.structs.replace(value, messages=[]))
    return join_messages(format, [format.encode(each) for each in value.messages], frame)


def join_messages(format: Format, messages: list[bytes], frame: bytes | None = None) -> bytes:
    """Like `encode_messages`, for messages that are already encoded. `frame` is the reply without them."""
    if frame is None:
        frame = format.encode({"messages": []})
    empty, head, comma = (b"[]", b"[", b",") if format.is_json else (b"\x90", array_head(len(messages)), b"")
    at = frame.index(b"messages") + len(b'messages":' if format.is_json else b"messages")
    assert frame.startswith(empty, at), "messages are the first field"
    end = [b"]"] if format.is_json else []
    return b"".join([frame[:at], head, comma.join(messages), *end, frame[at + len(empty) :]])


def array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


_PATH_IN_ERROR = r"(?: - at `\$(?P<path>[^`]*)`)?\Z"
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`" + _PATH_IN_ERROR, re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*?)`" + _PATH_IN_ERROR, re.DOTALL)
_INVALID_CHOICE = re.compile(r"Invalid enum value (?P<value>.*?)" + _PATH_IN_ERROR, re.DOTALL)
_WRONG_KIND = re.compile(r"Expected `(?P<kinds>[^`]+)`, got `(?P<got>[^`]+)`" + _PATH_IN_ERROR)
_OUT_OF_RANGE = re.compile(
    r"Expected `(?P<kinds>[^`]+)` (?P<length>of length )?(?P<sign>[<>]=?) (?P<limit>[-+.e\d]+)"
    + _PATH_IN_ERROR
)
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "bytes": "bytes",
}
_SIGNS = {">=": "{} or more", "<=": "at most {}", ">": "more than {}", "<": "less than {}"}


def explain(error: msgspec.ValidationError, kind: Any) -> str:
    """The error as a sentence that begins with the field; msgspec's own text if it is not known here."""
    text = str(error)
    if found := _WRONG_KIND.match(text):
        received = _received_kind(found["kinds"], found["got"])
        return f"{_json_path(found)} must be {_kinds(found['kinds'])}, not {received}"
    if found := _OUT_OF_RANGE.match(text):
        return f"{_json_path(found)} must be {_kinds(found['kinds'])} of {_range(found)}"
    if found := _MISSING_FIELD.match(text):
        return f"{_json_path(found, found['name'])} is missing"
    if found := _INVALID_CHOICE.match(text):
        choices = _choices_at(kind, found["path"] or "")
        return f"{_json_path(found)} must be " + (
            f"{' or '.join(choices)}, not {found['value']}" if choices else f"another than {found['value']}"
        )
    if found := _UNKNOWN_FIELD.match(text):
        known = _fields_at(kind, found["path"] or "")
        shown = f"unknown field {_json_path(found, found['name'])}"
        return f"{shown}; known are {', '.join(known)}" if known else shown
    return text


def _json_path(found: re.Match[str], name: str = "") -> str:
    """The field at fault, such as `retry.base` or `[3].delay`."""
    path = f"{found['path'] or ''}{f'.{name}' if name else ''}".removeprefix(".")
    if path.endswith("[...]"):
        return f"each value of {path.removesuffix('[...]') or 'the request'}"
    return path or "the request"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def _received_kind(reply_format: str, got: str) -> str:
    # JSON has one type of numbers: they are distinguished only where an integer is expected.
    if got in ("int", "float"):
        return "a fraction" if "int" in reply_format.split(" | ") else "a number"
    return "a boolean" if got == "bool" else _KINDS.get(got, got)


def _range(found: re.Match[str]) -> str:
    limit = float(found["limit"])
    text = _SIGNS[found["sign"]].format(f"{limit:.0f}" if limit.is_integer() else found["limit"])
    if not found["length"]:
        return text
    unit = {"str": "character", "bytes": "byte", "object": "field"}.get(found["kinds"], "item")
    # "1 or more characters", but "at most 1 character"
    return f"{text} {unit}" + ("" if limit == 1 and found["sign"] != ">=" else "s")


def _fields_at(kind: Any, path: str) -> list[str]:
    """The fields of the object at a path such as `[3].filter` of a request."""
    return [
        field.encode_name
        for each in _types_at(kind, path)
        if isinstance(each, msgspec.inspect.StructType)
        for field in each.fields
    ]


def _choices_at(kind: Any, path: str) -> list[str]:
    """The values that the field at a path can have, if it is one of a few."""
    return [
        str(value)
        for each in _types_at(kind, path)
        if isinstance(each, msgspec.inspect.LiteralType)
        for value in each.values
    ]


def _types_at(kind: Any, path: str) -> Iterator[Any]:
    found = [msgspec.inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        found = [inner for each in _alternatives(found) for inner in _inside(each, step[1])]
    return _alternatives(found)


def _alternatives(kinds: list[Any]) -> Iterator[Any]:
    for each in kinds:
        if isinstance(each, msgspec.inspect.Metadata):
            each = each.type
        if isinstance(each, msgspec.inspect.UnionType):
            yield from _alternatives(list(each.types))
        else:
            yield each


def _inside(kind: Any, name: str | None) -> Iterator[Any]:
    if isinstance(kind, msgspec.inspect.StructType):
        yield from (field.type for field in kind.fields if field.encode_name == name)
    elif isinstance(kind, msgspec.inspect.ListType) and name is None:
        yield kind.item_type


def drop_json_only(value: Any) -> Any:
    """For msgpack: integers of more than 64 bits, which only JSON can represent, become text."""
    if isinstance(value, dict):
        return {key: drop_json_only(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [drop_json_only(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


JSON = Format(b"application/json", msgspec.json.Encoder().encode, msgspec.json.Decoder)
MSGPACK = Format(b"application/msgpack", msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder)

# For replies to the library, which gets bodies as they are stored: bytes and their encoding.
NATIVE = Format(b"application/vnd.openq+msgpack", MSGPACK.encode, msgspec.msgpack.Decoder)
