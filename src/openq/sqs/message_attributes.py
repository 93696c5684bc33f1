"""What SQS allows in texts, names and message attributes, and the conversion of message attributes.

Checks raise `SqsError` with AWS's wording. Incoming: `check_message_attributes`, then `to_openq`; outgoing:
`from_openq`, then `select`, then `md5_of`. What the value alone cannot express (a custom type such as
`String.uuid`, a number whose text would change) is kept in the attribute `openq.sqs-types`, so that messages
that are sent and received by SQS do not change.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from math import isfinite
from typing import Protocol

import msgspec

from ..trace_context import (
    AMAZON,
    AMAZON_HEADER,
    AMAZON_SYSTEM_ATTRIBUTE,
    TRACEPARENT,
    read_parent,
    write_amazon,
)
from .errors import (
    ALLOWED_CHARACTERS,
    batch_entry_ids_not_distinct,
    empty_batch_request,
    invalid_batch_entry_id,
    invalid_message_contents,
    invalid_parameter_value,
    invalid_value,
    too_many_entries_in_batch_request,
    unsupported_operation,
)
from .requests import AttributeValues, MessageAttributeValue


def _choose_md5() -> Callable[..., hashlib._Hash]:
    """Not for security. Python's own MD5 is twice as fast as OpenSSL's for short texts, and is available
    where a policy disables OpenSSL's."""
    try:
        return importlib.import_module("_md5").md5  # type: ignore[no-any-return]
    except ImportError:
        return partial(hashlib.md5, usedforsecurity=False)


md5 = _choose_md5()

MAX_ATTRIBUTES = 10
MAX_ATTRIBUTE_NAME = 256
MAX_DATA_TYPE = 256
MAX_BATCH = 10
MAX_NUMBER_DIGITS = 38
NUMBER_EXPONENTS = range(-128, 127)

RESERVED = "openq."
TYPES = "openq.sqs-types"
MESSAGE_TYPE = "message_type"
TRACE_FIELD = AMAZON_HEADER.encode()  # by which X-Ray's clients and load balancers pass it on
MAX_TRACE = 1_024  # bytes of that header; it does not count towards the size of the message

MESSAGE_SYSTEM_ATTRIBUTES = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    AMAZON_SYSTEM_ATTRIBUTE,
    "DeadLetterQueueSourceArn",
)

# Other valid names. AWS's reference lists the second one; no message has it.
OTHER_SYSTEM_ATTRIBUTES = ("All", "SqsManagedSseEnabled")

_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME = re.compile(r"[\w.-]+\Z")  # letters and digits of any script: AWS accepts `größe`, not `§`
_BATCH_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_FIFO_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo\Z")
_FIFO_ID = re.compile(r"[!-~]{1,128}\Z")  # the letters, digits and punctuation of ASCII
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")


# Texts and names.


def is_valid_text(text: str) -> bool:
    """Only characters that XML 1.0 allows. Printable text, as most bodies are, needs no search."""
    return text.isprintable() or _NOT_ALLOWED.search(text) is None


def check_body(body: str) -> None:
    if not body.isprintable():
        found = _NOT_ALLOWED.search(body)
        if found is not None:
            raise invalid_message_contents(found.group())


def is_valid_queue_name(name: str) -> bool:
    return (_FIFO_QUEUE_NAME if name.endswith(".fifo") else _QUEUE_NAME).match(name) is not None


def check_queue_name(name: str, is_fifo: bool) -> None:
    if is_fifo:
        if _FIFO_QUEUE_NAME.match(name) is None:
            raise invalid_parameter_value(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
                "must end with .fifo suffix and be 1 to 80 in length"
            )
    elif _QUEUE_NAME.match(name) is None:
        raise invalid_parameter_value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


def check_fifo_id(value: str, parameter: str) -> None:
    """`parameter`: MessageGroupId, MessageDeduplicationId or ReceiveRequestAttemptId."""
    if _FIFO_ID.match(value) is None:
        reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid_value(value, parameter, reason)


def is_valid_batch_id(entry_id: str) -> bool:
    return _BATCH_ID.match(entry_id) is not None


class BatchEntry(Protocol):
    id: str


def check_batch(entries: Sequence[BatchEntry], entry_name: str, limit: int | None = MAX_BATCH) -> None:
    """The checks that reject a whole batch; `entry_name` is such as `SendMessageBatchRequestEntry`."""
    if not entries:
        raise empty_batch_request(entry_name)
    if limit is not None and len(entries) > limit:
        raise too_many_entries_in_batch_request(len(entries), limit)
    seen = set()
    for entry in entries:
        if _BATCH_ID.match(entry.id) is None:
            raise invalid_batch_entry_id()
        if entry.id in seen:
            raise batch_entry_ids_not_distinct(entry.id)
        seen.add(entry.id)


# Incoming message attributes.


def check_message_attributes(attributes: AttributeValues, limit: int | None = MAX_ATTRIBUTES) -> int:
    """Their size in bytes, which counts towards the size of the message."""
    if limit is not None and len(attributes) > limit:
        raise invalid_parameter_value(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{limit}]."
        )
    size = 0
    for name, value in attributes.items():
        _check_name(name)
        size += len(name.encode()) + _check_value(name, value)
    return size


def check_system_attributes(attributes: AttributeValues) -> None:
    """Only the trace header may be sent, as a String. System attributes do not count towards the size."""
    for name, value in attributes.items():
        if name != AMAZON_SYSTEM_ATTRIBUTE:
            raise invalid_parameter_value(f"Message system attribute name '{name}' is invalid.")
        if value.data_type != "String" or not value.string_value:
            raise invalid_parameter_value(
                f"Message system attribute '{name}' must contain a non-empty value of type 'String'."
            )
        _check_characters(name, value.string_value)


def _check_name(name: str) -> None:
    if not name:
        raise invalid_parameter_value("The request must contain non-empty message (user) attribute names.")
    if len(name) > MAX_ATTRIBUTE_NAME:
        raise invalid_parameter_value("Message (user) attribute name must be shorter than 256 bytes.")
    if _ATTRIBUTE_NAME.match(name) is None:
        raise invalid_parameter_value(
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters."
        )
    if name.startswith(".") or name.endswith(".") or ".." in name:
        raise invalid_parameter_value(
            f"The message attribute name '{name}' is invalid. "
            "It must not start or end with a period, nor have periods in succession."
        )
    lower = name.lower()
    if lower.startswith(("aws.", "amazon.")):
        raise invalid_parameter_value(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    # Our own reserved attributes are not shown to SQS, and must not be forged through it.
    if name.startswith(RESERVED):
        raise invalid_parameter_value(
            f"You can't use message attribute names beginning with '{RESERVED}'. "
            "This string is reserved for internal use."
        )


def _check_value(name: str, value: MessageAttributeValue) -> int:
    if value.string_list_values or value.binary_list_values:
        raise unsupported_operation(
            "Message attribute list values in SendMessage operation are not supported."
        )
    text, data, data_type = value.string_value, value.binary_value, value.data_type
    if not data_type:
        if not text and not data:
            raise invalid_parameter_value(
                f"The message (user) attribute '{name}' must contain a non-empty message attribute value."
            )
        raise invalid_parameter_value(
            f"Message (user) attribute '{name}' must contain a non-empty attribute type."
        )
    base = data_type.partition(".")[0]
    if base not in ("String", "Number", "Binary"):
        raise invalid_parameter_value(
            f"The message attribute '{name}' has an invalid message attribute type, "
            "the set of supported type prefixes is Binary, Number, and String."
        )
    type_size = len(data_type.encode("utf-8", "surrogatepass"))
    if type_size > MAX_DATA_TYPE:
        raise invalid_parameter_value("Message (user) attribute type must be shorter than 256 bytes.")
    _check_characters(name, data_type)
    if text and data:
        raise invalid_parameter_value(f"Message (user) attribute '{name}' has multiple values.")
    if base == "Binary":
        if not data:
            raise _empty(name, base)
        return type_size + len(data)
    if not text:
        raise _empty(name, base)
    _check_characters(name, text)
    if base == "Number":
        _check_number(name, text)
    return type_size + len(text.encode())


def _empty(name: str, base: str) -> Exception:
    return invalid_parameter_value(
        f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'."
    )


def _check_characters(name: str, text: str) -> None:
    if text.isprintable():
        return
    found = _NOT_ALLOWED.search(text)
    if found is not None:
        raise invalid_parameter_value(
            f"Invalid binary character '#x{ord(found.group()):X}' was found in the message attribute "
            f"'{name}' value, the set of allowed characters is {ALLOWED_CHARACTERS}."
        )


def _check_number(name: str, text: str) -> None:
    try:
        number = Decimal(text) if _NUMBER.match(text) else None
    except InvalidOperation:  # an exponent that not even Decimal can hold
        number = None
    if number is None:
        raise invalid_parameter_value(
            f"Can't cast the value of message (user) attribute '{name}' to a number."
        )
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if len(digits) > MAX_NUMBER_DIGITS or (digits and number.adjusted() not in NUMBER_EXPONENTS):
        raise invalid_parameter_value(
            f"Message (user) attribute '{name}' is out of range: a number has up to 38 digits of precision "
            "and lies between 10^-128 and 10^+126."
        )


# Between SQS's attributes and ours.


def to_openq(
    attributes: AttributeValues | None, system_attributes: AttributeValues | None = None
) -> tuple[str | None, dict[str, object] | None]:
    """The `type` and the `attributes` of a Draft, from checked message attributes."""
    message_type: str | None = None
    ours: dict[str, object] = {}
    types: dict[str, object] = {}
    for name, value in (attributes or {}).items():
        data_type = value.data_type or "String"
        if data_type.startswith("Binary"):
            ours[name] = value.binary_value or b""
            if data_type != "Binary":
                types[name] = data_type
            continue
        text = value.string_value or ""
        if data_type == "String":
            if name == MESSAGE_TYPE:
                message_type = text
            else:
                ours[name] = text
            continue
        if data_type.startswith("Number"):
            number = _number(text)
            ours[name] = number
            if data_type != "Number" or isinstance(number, str):
                types[name] = data_type
        else:
            ours[name] = text
            types[name] = data_type
    if types:
        ours[TYPES] = types
    if system_attributes:
        trace = system_attributes.get(AMAZON_SYSTEM_ATTRIBUTE)
        if trace is not None:
            ours[AMAZON] = trace.string_value or ""
    return message_type, ours or None


def from_openq(attributes: Mapping[str, object] | None, message_type: str | None = None) -> AttributeValues:
    """The message attributes of a message of any protocol."""
    shown: AttributeValues = {}
    if message_type:
        shown[MESSAGE_TYPE] = MessageAttributeValue(string_value=message_type, data_type="String")
    if not attributes:
        return shown
    noted = attributes.get(TYPES)
    types = noted if isinstance(noted, Mapping) else {}
    for name, value in attributes.items():
        if value is not None and not name.startswith(RESERVED):
            data_type = types.get(name)
            shown[name] = _shown(value, data_type if isinstance(data_type, str) else None)
    return shown


def trace_of(field: bytes | None) -> AttributeValues | None:
    """The system attributes of a message whose request has this `X-Amzn-Trace-Id` header and no others.

    The header is not part of the request: it counts in no digest, and an invalid one is ignored.
    """
    if not field or len(field) > MAX_TRACE or not field.isascii():
        return None
    text = field.decode("ascii").strip()
    if not text or not text.isprintable():
        return None
    return {AMAZON_SYSTEM_ATTRIBUTE: MessageAttributeValue(string_value=text, data_type="String")}


def trace_header(attributes: Mapping[str, object] | None) -> str | None:
    """`AWSTraceHeader`, which SQS returns as a system attribute: as it was sent, or from a `traceparent`."""
    if not attributes:
        return None
    trace = attributes.get(AMAZON)
    if isinstance(trace, str):
        return trace
    parent = read_parent(attributes.get(TRACEPARENT))
    return None if parent is None else write_amazon(parent)


def _number(text: str) -> int | float | str:
    """The number, if its text can be restored from it; else None."""
    if len(text) > 32:
        return text
    try:
        whole = int(text)
        # Other protocols cannot carry more than 64 bits.
        if str(whole) == text and -(1 << 63) <= whole < 1 << 63:
            return whole
    except ValueError:
        pass
    try:
        real = float(text)
    except ValueError:
        return text
    return real if isfinite(real) and repr(real) == text else text


def _shown(value: object, data_type: str | None) -> MessageAttributeValue:
    """`data_type` counts only if the value still has that type: another protocol may have changed it."""
    if isinstance(value, bytes):
        known = data_type if data_type and data_type.startswith("Binary") else "Binary"
        return MessageAttributeValue(binary_value=value, data_type=known)
    if isinstance(value, bool):
        return MessageAttributeValue(string_value="true" if value else "false", data_type="String")
    if isinstance(value, str):
        known = data_type if data_type and not data_type.startswith("Binary") else "String"
        return MessageAttributeValue(string_value=value, data_type=known)
    if isinstance(value, int | float) and (isinstance(value, int) or isfinite(value)):
        known = data_type if data_type and data_type.startswith("Number") else "Number"
        return MessageAttributeValue(string_value=repr(value), data_type=known)
    if isinstance(value, float):
        return MessageAttributeValue(string_value=repr(value), data_type="String")
    # Lists and tables come from other protocols only.
    return MessageAttributeValue(string_value=msgspec.json.encode(value).decode(), data_type="String.json")


# Outgoing message attributes.


def select(attributes: AttributeValues, names: Sequence[str] | None) -> AttributeValues:
    """The requested attributes: `All`, `.*`, `*`, `prefix.*` or a name."""
    if not names or not attributes:
        return {}
    if "All" in names or ".*" in names or "*" in names:
        return attributes
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in names or name.startswith(prefixes)}


def md5_of(attributes: AttributeValues) -> str | None:
    """MD5OfMessageAttributes as AWS computes it; also MD5OfMessageSystemAttributes. None when there are none.

    Over the names in order: name, type, one byte for the kind of value, value; each with its length
    before it as four bytes, big-endian.
    """
    if not attributes:
        return None
    digest = md5()
    for name in sorted(attributes):
        value = attributes[name]
        if value.binary_value is not None and (value.data_type or "").startswith("Binary"):
            kind, content = b"\x02", value.binary_value
        else:
            kind, content = b"\x01", (value.string_value or "").encode("utf-8", "surrogatepass")
        for part in (
            name.encode("utf-8", "surrogatepass"),
            (value.data_type or "").encode("utf-8", "surrogatepass"),
        ):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(kind + len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def md5_of_body(body: bytes) -> str:
    return md5(body).hexdigest()
