"""Arguments and results as JSON or msgpack, and back into the types of the annotations.

msgspec does most of it: datetime, UUID, Decimal, enums, dataclasses and structs. A pydantic model is
recognised by its methods, so that pydantic is not imported here. Nothing is ever pickled.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from .errors import InvalidArguments, InvalidResult

CODECS = ("json", "msgpack")


def _encode_other(value: Any) -> Any:
    """The hook of msgspec for types that it does not know."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"no encoding for {type(value).__name__}")


def _decode_other(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise NotImplementedError(f"no decoding for {kind!r}")


_json = msgspec.json.Encoder(enc_hook=_encode_other)
_read_json = msgspec.json.Decoder().decode
_read_msgpack = msgspec.msgpack.Decoder().decode


def to_json(value: Any) -> str:
    return _json.encode(value).decode()


def to_plain(value: Any, codec: str) -> Any:
    """Values that the codec of a queue can write: for JSON no datetimes, bytes and the like."""
    kinds = (bytes, bytearray, memoryview) if codec == "msgpack" else ()
    return msgspec.to_builtins(value, builtin_types=kinds, str_keys=codec == "json", enc_hook=_encode_other)


def read_json(data: str | bytes) -> Any:
    return _read_json(data)


def convert(value: Any, kind: Any) -> Any:
    """A decoded value as a value of the type `kind`."""
    return msgspec.convert(value, kind, str_keys=True, dec_hook=_decode_other)


def is_supported(kind: Any) -> bool:
    """Whether values can be converted to this annotation; others are passed as they are."""
    try:
        msgspec.json.Decoder(kind, dec_hook=_decode_other)
    except (TypeError, ValueError):
        return False
    return True


def read_body(body: Any) -> dict[str, Any]:
    """The body of a job message: JSON text or bytes, or decoded by the library already."""
    if isinstance(body, bytes) and body[:1] > b"\x7f":  # the head of a msgpack map
        body = _decoded(_read_msgpack, body)
    elif isinstance(body, str | bytes):
        body = _decoded(_read_json, body)
    if not isinstance(body, dict):
        raise InvalidArguments(f'the body of a job is {{"args": [...], "kwargs": {{...}}}}, not {body!r:.80}')
    return body


def _decoded(read: Any, body: str | bytes) -> Any:
    try:
        return read(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shape = '{"args": [...], "kwargs": {...}}'
        raise InvalidArguments(f"the body of a job is {shape}, not {body!r:.80}: {error}") from None


def encode_result(value: Any, task: str) -> Any:
    """A result as plain values, for the documents that are kept."""
    try:
        return to_plain(value, "json")
    except Exception as error:  # of a model it may be anything
        raise InvalidResult(f"the result of task {task!r} cannot be encoded as JSON: {error}") from None
