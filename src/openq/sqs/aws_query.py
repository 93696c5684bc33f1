"""The Query protocol <-> requests.py: form parameters in, XML out. Pure.

Older SDKs and shell scripts use it. A list or map is flattened: `AttributeName.1`, `Attribute.1.Name`,
`Attribute.1.Value`, and a batch entry is a prefix before the parameters of its own. Both directions follow
plans that are built once from the classes in requests.py, so a new member needs no line here.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from . import errors
from .errors import SqsError
from .requests import REPLIES, REQUESTS, MessageAttributeValue, SqsReply, SqsRequest

CONTENT_TYPE = b"text/xml"
VERSION = "2012-11-05"
NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"

# Ten entries with ten attributes of three parameters each, with a wide margin for queues without limits.
MAX_PARAMETERS = 20_000

# Element names of the items of a list or map. A list of classes uses the name of the class.
_ITEMS = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "BinaryListValues": "BinaryListValue",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "QueueUrls": "QueueUrl",
    "StringListValues": "StringListValue",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "queueUrls": "QueueUrl",
    "tags": "Tag",
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}\Z")
_QUEUE_PATH = re.compile(r"/[0-9]+/[^/]+/?\Z")  # ACCOUNT/NAME: the address of a queue
# Actions that AWS accepts at the service address only. GetQueueUrl is accepted at queue URLs too.
_NOT_OF_A_QUEUE = ("CreateQueue", "ListQueues")


class Field(NamedTuple):
    """One member of a request or a reply. A list or map has the `item` that its parameters begin with."""

    attribute: str
    wire: str
    item: str
    key: str  # of a map: `Name`, or `Key` for tags
    kind: str  # text | integer | boolean | binary | texts | binaries | map | values | entries
    required: bool
    inner: type[msgspec.Struct] | None  # the class of the entries


def _build_plans(cls: type[msgspec.Struct]) -> tuple[Field, ...]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(_field(field) for field in info.fields)


def _field(field: msgspec.inspect.Field) -> Field:
    wire = field.encode_name
    kind, inner = _kind(field.type)
    item = inner.__name__ if kind == "entries" and inner is not None else _ITEMS.get(wire, wire)
    return Field(field.name, wire, item, "Key" if item == "Tag" else "Name", kind, field.required, inner)


def _kind(annotation: msgspec.inspect.Type) -> tuple[str, type[msgspec.Struct] | None]:
    match annotation:
        case msgspec.inspect.UnionType(types=types):
            [some] = [one for one in types if not isinstance(one, msgspec.inspect.NoneType)]
            return _kind(some)
        case msgspec.inspect.StrType():
            return "text", None
        case msgspec.inspect.IntType():
            return "integer", None
        case msgspec.inspect.BoolType():
            return "boolean", None
        case msgspec.inspect.BytesType():
            return "binary", None
        case msgspec.inspect.ListType(item_type=msgspec.inspect.StructType(cls=cls)):
            return "entries", cls
        case msgspec.inspect.ListType(item_type=msgspec.inspect.BytesType()):
            return "binaries", None
        case msgspec.inspect.ListType():
            return "texts", None
        case msgspec.inspect.DictType(value_type=msgspec.inspect.StructType(cls=cls)):
            return "values", cls
        case msgspec.inspect.DictType():
            return "map", None
    raise TypeError(f"requests.py has a type that Query does not know: {annotation}")


def _classes(roots: Iterable[type[msgspec.Struct]]) -> dict[type[msgspec.Struct], tuple[Field, ...]]:
    plans: dict[type[msgspec.Struct], tuple[Field, ...]] = {}
    waiting = list(roots)
    while waiting:
        cls = waiting.pop()
        if cls not in plans:
            plans[cls] = _build_plans(cls)
            waiting.extend(field.inner for field in plans[cls] if field.inner is not None)
    return plans


_PLANS = _classes([*REQUESTS.values(), *REPLIES.values()])


# In.


Pairs = list[tuple[str, str]]


def parameters_of(query: str, body: bytes) -> dict[str, str]:
    """The parameters of a request: those of the URL and those of the form; the form takes precedence."""
    try:
        return dict(_pairs(query) + _pairs(body.decode()))
    except ValueError as error:
        raise errors.malformed_query_string(f"The query string cannot be understood: {error}") from None


def _pairs(text: str) -> Pairs:
    if not text:
        return []
    return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)


def action_of(parameters: Mapping[str, str]) -> str:
    action = parameters.get("Action")
    if not action:
        raise errors.missing_action()
    version = parameters.get("Version", VERSION)
    if version != VERSION:
        raise errors.invalid_version(version)
    if action not in REQUESTS:
        raise errors.unknown_operation(action)
    return action


def decode(query: str, body: bytes, path: str = "/") -> tuple[str, SqsRequest]:
    """The action and its request. `path`: for clients that name the queue only in the URL that they call."""
    parameters = parameters_of(query, body)
    action = action_of(parameters)
    if action in _NOT_OF_A_QUEUE and _QUEUE_PATH.search(path):
        raise errors.unknown_operation(action)
    if path.strip("/") and not parameters.get("QueueUrl"):
        parameters["QueueUrl"] = path
    request: SqsRequest = _struct(REQUESTS[action], parameters, "")
    return action, request


def _struct(cls: type[Any], parameters: Mapping[str, str], prefix: str) -> Any:
    """`prefix`: of a batch entry, for the error that names a parameter."""
    grouped: dict[str, Pairs] = {}
    for name, text in parameters.items():
        head, dot, rest = name.partition(".")
        if dot:
            grouped.setdefault(head, []).append((rest, text))
    values: dict[str, object] = {}
    for field in _PLANS[cls]:
        value = _READERS[field.kind](field, parameters, grouped.get(field.item, []), prefix)
        if value is None and field.required:
            raise _missing(field, prefix, parameters)
        if value is not None:
            values[field.attribute] = value
    return cls(**values)


def _missing(field: Field, prefix: str, parameters: Mapping[str, str]) -> SqsError:
    if field.wire == "QueueName":
        return errors.empty_queue_name() if field.wire in parameters else errors.missing_queue_name()
    name = f"{field.item}.{field.key}" if field.item == "Attribute" else field.wire
    return errors.missing_parameter(prefix + name)


Given = Mapping[str, str]


def _text(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> str | None:
    value = parameters.get(field.wire)
    # Inside a batch the action judges an empty value: it fails one entry, not all of them.
    return None if value == "" and field.required and not prefix else value


def _integer(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> int | None:
    text = parameters.get(field.wire)
    if not text:
        return None
    if _INTEGER.match(text) is None or not -(2**31) <= int(text) < 2**31:
        raise errors.serialization(f"{text} can not be converted to an Integer")
    return int(text)


def _binary(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> bytes | None:
    text = parameters.get(field.wire)
    return None if text is None else _from_base64(text)


def _texts(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> list[str] | None:
    items = {number: parts[""] for number, parts in _numbered(dotted).items() if "" in parts}
    if field.item in parameters:
        items[0] = parameters[field.item]  # a single item may have no number
    return [items[number] for number in sorted(items)] or None


def _binaries(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> list[bytes] | None:
    return [_from_base64(text) for text in _texts(field, parameters, dotted, prefix) or ()] or None


def _map(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for number, parts in sorted(_numbered(dotted).items()):
        where = f"{prefix}{field.item}." + (f"{number}." if number else "")
        if field.key not in parts:
            raise errors.missing_parameter(where + field.key)
        if "Value" not in parts:
            raise errors.missing_parameter(where + "Value")
        found[parts[field.key]] = parts["Value"]
    return found or None


def _values(
    field: Field, parameters: Given, dotted: Pairs, prefix: str
) -> dict[str, MessageAttributeValue] | None:
    found: dict[str, MessageAttributeValue] = {}
    for _, parts in sorted(_numbered(dotted).items()):
        name = parts.get("Name", "")
        if name in found:
            raise errors.invalid_parameter_value(f"Message attribute name '{name}' already exists.")
        inner = {part[6:]: value for part, value in parts.items() if part.startswith("Value.")}
        found[name] = _struct(MessageAttributeValue, inner, "")
    return found or None


def _entries(field: Field, parameters: Given, dotted: Pairs, prefix: str) -> list[object]:
    # A batch without entries has its own error, which the action raises.
    return [
        _struct(field.inner or SqsRequest, parts, f"{field.item}.{number}.")
        for number, parts in sorted(_numbered(dotted).items())
    ]


# No request has a boolean.
_READERS: dict[str, Callable[[Field, Given, Pairs, str], object]] = {
    "text": _text,
    "integer": _integer,
    "binary": _binary,
    "texts": _texts,
    "binaries": _binaries,
    "map": _map,
    "values": _values,
    "entries": _entries,
}


def _numbered(dotted: Pairs) -> dict[int, dict[str, str]]:
    """`1.Name`, `1.Value` -> {1: {Name, Value}}; without a number it is item 0, the only one."""
    items: dict[int, dict[str, str]] = {}
    for rest, value in dotted:
        head, _, tail = rest.partition(".")
        if head.isascii() and head.isdecimal() and len(head) < 10:
            items.setdefault(int(head), {})[tail] = value
        else:
            items.setdefault(0, {})[rest] = value
    return items


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise errors.serialization("Invalid Base64 Encoding") from None


# Out.


_SPECIAL = re.compile('[&<>"\r]|[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')
# A carriage return that is not written as a reference reaches the reader as a line feed.
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}


def escape(text: str) -> str:
    """Text as XML content. Characters that XML cannot carry, sent by another protocol, become U+FFFD."""
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(lambda found: _ESCAPES.get(found.group(), "\ufffd"), text)


def encode(action: str, reply: SqsReply | None, request_id: str) -> bytes:
    out = [f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">']
    if reply is not None:
        content: list[str] = []
        _write(reply, content)
        if content:
            out.append(f"<{action}Result>")
            out += content
            out.append(f"</{action}Result>")
        else:
            out.append(f"<{action}Result/>")
    out.append(
        f"<ResponseMetadata><RequestId>{escape(request_id)}</RequestId></ResponseMetadata></{action}Response>"
    )
    return "".join(out).encode()


def encode_error(error: SqsError, request_id: str) -> bytes:
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{error.fault}</Type>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(error.query_message)}</Message><Detail/></Error>"
        f"<RequestId>{escape(request_id)}</RequestId></ErrorResponse>"
    ).encode()


def _write(value: msgspec.Struct, out: list[str]) -> None:
    for field in _PLANS[type(value)]:
        content = getattr(value, field.attribute)
        if content is not None:
            _WRITERS[field.kind](field, content, out)


def _write_scalar(field: Field, content: object, out: list[str]) -> None:
    out.append(_element(field.wire, content))


def _write_list(field: Field, content: Iterable[object], out: list[str]) -> None:
    out.extend(_element(field.item, item) for item in content)


def _write_map(field: Field, content: Mapping[str, str], out: list[str]) -> None:
    for key, value in content.items():
        out.append(f"<{field.item}>{_element(field.key, key)}{_element('Value', value)}</{field.item}>")


def _write_values(field: Field, content: Mapping[str, msgspec.Struct], out: list[str]) -> None:
    for name, value in content.items():
        out.append(f"<{field.item}>{_element('Name', name)}<Value>")
        _write(value, out)
        out.append(f"</Value></{field.item}>")


def _write_entries(field: Field, content: Iterable[msgspec.Struct], out: list[str]) -> None:
    for entry in content:
        out.append(f"<{field.item}>")
        _write(entry, out)
        out.append(f"</{field.item}>")


_WRITERS: dict[str, Callable[[Field, Any, list[str]], None]] = {
    "text": _write_scalar,
    "integer": _write_scalar,
    "boolean": _write_scalar,
    "binary": _write_scalar,
    "texts": _write_list,
    "binaries": _write_list,
    "map": _write_map,
    "values": _write_values,
    "entries": _write_entries,
}


def _element(name: str, content: object) -> str:
    if isinstance(content, bool):
        text = "true" if content else "false"
    elif isinstance(content, bytes):
        text = b64encode(content).decode()
    else:
        text = escape(str(content))
    return f"<{name}>{text}</{name}>"


# Replies as JSON for `Accept: application/json`: names as in XML, lists as lists, maps as lists
# of pairs, and null for missing values.

_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}
JSON_TYPE = b"application/json"


def encode_json(action: str, reply: SqsReply | None, request_id: str) -> bytes:
    content: dict[str, object] = {"ResponseMetadata": {"RequestId": request_id}}
    if reply is not None:
        content[f"{action}Result"] = _plain(reply)
    return msgspec.json.encode({f"{action}Response": content})


def encode_json_error(error: SqsError, request_id: str) -> bytes:
    details = {"Code": error.code, "Message": error.query_message, "Type": error.fault, "Detail": None}
    return msgspec.json.encode({"Error": details, "RequestId": request_id})


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return {
            _JSON_NAMES.get(field.wire, field.wire): _plain_map(field, content)
            if isinstance(content := getattr(value, field.attribute), dict)
            else _plain(content)
            for field in _PLANS[type(value)]
        }
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _plain_map(field: Field, content: Mapping[str, object]) -> list[dict[str, object]]:
    return [{field.key: key, "Value": _plain(each)} for key, each in content.items()]
