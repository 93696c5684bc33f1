"""AWS JSON 1.0 <-> requests.py. Pure: bytes in, values out.

`failure` turns the error texts of msgspec into AWS's. That is slow, but only invalid requests need it.
"""

from __future__ import annotations

import re

import msgspec

from . import errors
from .errors import SqsError
from .requests import REQUESTS, SqsReply, SqsRequest

CONTENT_TYPE = b"application/x-amz-json-1.0"
TARGET_PREFIX = b"AmazonSQS."

DECODERS: dict[str, msgspec.json.Decoder[SqsRequest]] = {
    action: msgspec.json.Decoder(request) for action, request in REQUESTS.items()
}
# The exceptions of a decoder for an invalid body; see `failure`.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encode = msgspec.json.Encoder().encode

_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EMPTY = re.compile(r"Expected `str` of length >= 1")
_WRONG = re.compile(r"Expected `(\w+)(?: \| null)?`, got `(\w+)`")
_WHERE = re.compile(r" - at `\$(.*)`$")
_MEMBER = re.compile(r"(?:\.Entries\[(\d+)\])?\.?(\w*)$")


def action_of(target: bytes | None) -> str:
    """The action in `X-Amz-Target: AmazonSQS.SendMessage`."""
    if target is None or not target.startswith(TARGET_PREFIX):
        raise errors.unknown_operation("" if target is None else target.decode("latin-1"))
    action = target[len(TARGET_PREFIX) :].decode("latin-1")
    if action not in DECODERS:
        raise errors.unknown_operation(action)
    return action


def decode(action: str, body: bytes) -> SqsRequest:
    decoder = DECODERS.get(action)
    if decoder is None:
        raise errors.unknown_operation(action)
    try:
        return decoder.decode(body or b"{}")
    except DECODE_ERRORS as error:
        raise failure(action, error) from None


def encode(reply: SqsReply | dict[str, object] | None) -> bytes:
    """The body of an answer; an action without a reply (None) has an empty object."""
    return b"{}" if reply is None else _encode(reply)


def encode_error(error: SqsError) -> bytes:
    return _encode({"__type": error.type, "message": error.message})


def error_headers(error: SqsError) -> bytes:
    """The header line with the error code of the Query protocol, which clients show."""
    return f"x-amzn-query-error: {error.code};{error.fault}\r\n".encode("latin-1", "replace")


def failure(action: str, error: Exception) -> SqsError:
    """AWS's error for a body that a decoder rejected."""
    if not isinstance(error, msgspec.ValidationError):
        return errors.serialization("The request body is not valid JSON.")
    sentence = str(error)
    at = _WHERE.search(sentence)
    path = at.group(1) if at else ""
    missing = _MISSING.match(sentence)
    if missing:
        return _missing(action, f"{path}.{missing.group(1)}")
    if _EMPTY.match(sentence):
        return errors.empty_queue_name() if path == ".QueueName" else _missing(action, path)
    wrong = _WRONG.match(sentence)
    if wrong:
        expected, got = wrong.groups()
        # AWS treats null as missing. Inside a list or a map the missing member cannot be named.
        if got == "null" and not path.endswith("]"):
            return _missing(action, path)
        return errors.serialization(_conversion(expected, got))
    if "base64" in sentence:
        return errors.serialization("Invalid Base64 Encoding")
    return errors.serialization("NUMBER_VALUE can not be converted to an Integer")


def _missing(action: str, path: str) -> SqsError:
    """`.MessageBody`, or `.Entries[0].MessageBody`, for which SQS uses its name in a Query."""
    found = _MEMBER.match(path)
    index, member = found.groups() if found else (None, path)
    if index is not None:
        return errors.missing_parameter(f"{action}RequestEntry.{int(index) + 1}.{member}")
    return errors.missing_queue_name() if member == "QueueName" else errors.missing_parameter(member)


_TOKENS = {
    "str": "STRING_VALUE",
    "int": "NUMBER_VALUE",
    "float": "NUMBER_VALUE",
    "bool": "TRUE_VALUE",
    "null": "NULL_VALUE",
}


def _conversion(expected: str, got: str) -> str:
    if expected == "array":
        return "Expected list or null"
    if expected == "object" and got != "array":
        return "Expected map or null"
    if got == "array":
        return "Start of list found where not expected"
    if got == "object":
        return "Start of structure or map found where not expected."
    kind = "an Integer" if expected == "int" else "a Blob" if expected == "bytes" else "a String"
    return f"{_TOKENS.get(got, 'VALUE')} can not be converted to {kind}"
