"""Requests: messages and events in the modes of a webhook, with their signatures.

    raw                     the body as it was published; OpenQ-* headers say the rest
    json                    one document, or an array of them in batches
    cloudevents-binary      CloudEvents 1.0: attributes as ce-* headers, the body as it was published
    cloudevents-structured  CloudEvents 1.0: one JSON document, or an array of them in batches

CloudEvents extensions have simple values and names of small letters and digits. Message attributes that do
not fit are together in the extension `openqattributes`, as JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from ..documents.payloads import form_of, show_json
from ..documents.values import iso, to_json_value
from ..http_text import attribute_text, header_text
from ..model import ENCODING_JSON, ENCODING_MSGPACK, ENCODING_TEXT, Delivery, DeliveryOptions, Properties
from ..names import DEFAULT_ACCOUNT, split_name
from ..trace_context import outgoing_headers
from .endpoint import MAX_HEADER_BYTES, fixed_head, read_url
from .model import CE_BINARY, CE_STRUCTURED, RAW, Webhook
from .signing import key_of, sign

_CONTENT_TYPES = {
    ENCODING_TEXT: "text/plain; charset=utf-8",
    ENCODING_JSON: "application/json",
    ENCODING_MSGPACK: "application/msgpack",
}
_BINARY = "application/octet-stream"
_ID_SAFE = "-_~:/+=@"
_NO_OPTIONS = DeliveryOptions()
_EXTENSION = re.compile(r"[a-z0-9]{1,20}", re.ASCII)
_CE_RESERVED = {
    *("specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "subject", "data"),
    *("openqgroup", "openqpriority", "openqreceivecount", "openqattributes"),
}

_encode = msgspec.json.Encoder().encode


class Item(NamedTuple):
    """One message, or one event, to be sent. An event is its document, with no properties and options."""

    id: str
    queue: str  # the queue key
    type: str | None
    time_ms: int
    body: bytes
    encoding: int
    properties: Properties | None = None
    options: DeliveryOptions = _NO_OPTIONS
    deliveries: int = 1  # with this one
    document: Any = None  # of an event; None for a message


def item_of(queue: str, delivery: Delivery, prefix: str) -> Item:
    entry = delivery.entry
    options = entry.options
    assert entry.body is not None, "bodies are loaded before"
    if options is None:
        return Item(
            f"{prefix}{entry.seq:012x}",
            queue,
            None,
            entry.sent_ms,
            entry.body,
            entry.encoding,
            entry.properties,
            _NO_OPTIONS,
            delivery.count,
        )
    return Item(
        options.id or f"{prefix}{entry.seq:012x}",
        queue,
        options.type,
        options.born_ms or entry.sent_ms,
        entry.body,
        entry.encoding,
        entry.properties,
        options,
        delivery.count,
    )


class MessageDocument(msgspec.Struct, kw_only=True):
    """A message in the mode json: the fields of a receive over REST, without those of the lease."""

    id: str
    queue: str
    timestamp: str
    payload: Any
    payload_encoding: str | UnsetType = UNSET
    message_type: str | None
    priority: int
    receive_count: int
    attributes: dict[str, Any]
    group: str | UnsetType = UNSET
    publisher: str | UnsetType = UNSET


class WebhookRequest(NamedTuple):
    id: str  # the header webhook-id
    head: bytes
    body: bytes


class RequestBuilder:
    """Writes the requests of one webhook."""

    def __init__(self, webhook: Webhook) -> None:
        self._mode = webhook.mode
        self._is_batch = webhook.batch > 1
        self._head = fixed_head(read_url(webhook.url), webhook.headers)
        self._secrets = [(key_of(each.text), each.until_ms) for each in webhook.secrets]

    def build(self, items: list[Item], now_ms: int) -> WebhookRequest:
        """One request for these: for one, unless the webhook has batches."""
        if self._is_batch:
            request_id = _batch_id(items)
            parts = [_structured(each) if self._mode == CE_STRUCTURED else _document(each) for each in items]
            kind = (
                "application/cloudevents-batch+json; charset=utf-8"
                if self._mode == CE_STRUCTURED
                else "application/json"
            )
            return self._signed(request_id, _encode(parts), kind, b"", now_ms)
        [item] = items
        request_id = item.id if item.id.isalnum() and item.id.isascii() else quote(item.id, safe=_ID_SAFE)
        # `quote` leaves full stops, which separate the parts that are signed.
        request_id = request_id.replace(".", "%2E")
        trace = b"" if item.properties is None else _trace_headers(item.properties)
        if self._mode == RAW:
            headers = _openq_headers(item) + trace
            return self._signed(request_id, item.body, _content_type(item), headers, now_ms)
        if self._mode == CE_BINARY:
            headers = _ce_headers(item) + trace
            return self._signed(request_id, _data(item), _content_type(item), headers, now_ms)
        if self._mode == CE_STRUCTURED:
            kind = "application/cloudevents+json; charset=utf-8"
            return self._signed(request_id, _encode(_structured(item)), kind, trace, now_ms)
        return self._signed(request_id, _encode(_document(item)), "application/json", trace, now_ms)

    def _signed(self, request_id: str, body: bytes, kind: str, headers: bytes, now_ms: int) -> WebhookRequest:
        id_bytes, timestamp = request_id.encode(), b"%d" % (now_ms // 1000)
        keys = [key for key, until_ms in self._secrets if not until_ms or until_ms > now_ms]
        head = (
            b"%bContent-Type: %b\r\nContent-Length: %d\r\n%bwebhook-id: %b\r\nwebhook-timestamp: %b\r\n"
            b"webhook-signature: %b\r\n\r\n"
        ) % (
            *(self._head, kind.encode(), len(body), headers),
            *(id_bytes, timestamp, sign(keys, id_bytes, timestamp, body)),
        )
        return WebhookRequest(request_id, head, body)


def _batch_id(items: list[Item]) -> str:
    """Equal for equal messages: a batch that is tried again as it was has its old id."""
    if len(items) == 1:
        return f"batch_{quote(items[0].id, safe=_ID_SAFE).replace('.', '%2E')}"
    digest = hashlib.sha256("\0".join(each.id for each in items).encode()).hexdigest()
    return f"batch_{digest[:32]}"


def _trace_headers(properties: Properties) -> bytes:
    """The trace context of the message as that of the request. A batch has none: each message has its own."""
    passed_on = outgoing_headers(properties.attributes)
    return "".join(f"{name}: {value}\r\n" for name, value in passed_on.items()).encode("ascii")


def _form(item: Item) -> int:
    return form_of(item.body, item.encoding, item.properties, prefers_text=True)


def _content_type(item: Item) -> str:
    return "application/json" if item.document is not None else _CONTENT_TYPES.get(_form(item), _BINARY)


def _attributes(item: Item) -> dict[str, Any]:
    return {} if item.properties is None else dict(item.properties.attributes)


def _data(item: Item) -> bytes:
    return item.body if item.document is None else _encode(item.document)


def _document(item: Item) -> Any:
    if item.document is not None:
        return item.document
    payload, encoding = show_json(item.body, _form(item))
    publisher = None if item.properties is None else item.properties.publisher
    return MessageDocument(
        id=item.id,
        queue=split_name(item.queue)[1],
        timestamp=iso(item.time_ms),
        payload=payload,
        payload_encoding=encoding,
        message_type=item.type,
        priority=item.options.priority,
        receive_count=item.deliveries,
        attributes={name: to_json_value(value) for name, value in _attributes(item).items()},
        group=UNSET if item.options.group is None else item.options.group,
        publisher=UNSET if publisher is None else publisher,
    )


# -- raw ----------------------------------------------------------------------------------------


def _openq_headers(item: Item) -> bytes:
    options = item.options
    named: list[tuple[str, object]] = [
        ("OpenQ-Queue", split_name(item.queue)[1]),
        ("OpenQ-Message-Id", item.id),
        ("OpenQ-Receive-Count", item.deliveries),
        ("OpenQ-Sent", iso(item.time_ms)),
    ]
    if options is not _NO_OPTIONS:
        named += [("OpenQ-Message-Type", item.type), ("OpenQ-Priority", options.priority or None)]
        named.append(("OpenQ-Group", options.group))
    if item.properties is not None:
        named += [
            (f"OpenQ-Attribute-{re.sub('[^A-Za-z0-9-]', '-', name)[:100]}", attribute_text(value))
            for name, value in item.properties.attributes.items()
        ]
    lines = [f"{name}: {header_text(value)}\r\n" for name, value in named if value is not None]
    return "".join(line for line in lines if len(line) <= MAX_HEADER_BYTES).encode("ascii")


# -- CloudEvents --------------------------------------------------------------------------------


def _source(queue: str) -> str:
    """A URI reference."""
    account, name = split_name(queue)
    if not name:
        return "/"
    path = f"/queues/{quote(name, safe='')}"
    return path if account == DEFAULT_ACCOUNT else f"/accounts/{quote(account, safe='')}{path}"


def _context_attributes(item: Item) -> dict[str, Any]:
    """The attributes of the event, without its data."""
    options = item.options
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": item.id,
        "source": _source(item.queue),
        "type": item.type or "openq.message",
        "time": iso(item.time_ms),
        "datacontenttype": _content_type(item),
    }
    if options.group is not None:
        event["openqgroup"] = options.group
    if options.priority:
        event["openqpriority"] = options.priority
    if item.deliveries > 1:
        event["openqreceivecount"] = item.deliveries
    rest: dict[str, Any] = {}
    for name, value in _attributes(item).items():
        if name not in _CE_RESERVED and _EXTENSION.fullmatch(name) and _is_simple(value):
            event[name] = value
        else:
            rest[name] = to_json_value(value)
    if rest:
        event["openqattributes"] = json.dumps(rest, default=str, ensure_ascii=False)
    return event


def _is_simple(value: Any) -> bool:
    """Whether it is a value of the types of CloudEvents, which have 32-bit integers and no control codes."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return -(1 << 31) <= value < 1 << 31
    return isinstance(value, str) and value.isprintable()


def _ce_headers(item: Item) -> bytes:
    lines = []
    for name, value in _context_attributes(item).items():
        if name == "datacontenttype":
            continue  # the Content-Type
        text = str(value).lower() if isinstance(value, bool) else str(value)
        line = f"ce-{name}: {_ce_text(text)}\r\n"
        if len(line) <= MAX_HEADER_BYTES:
            lines.append(line)
    return "".join(lines).encode("ascii")


# What the HTTP binding of CloudEvents leaves as it is: U+0021 to U+007E without `"` and `%`.
_CE_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def _ce_text(text: str) -> str:
    return quote(text, safe=_CE_SAFE)


def _structured(item: Item) -> dict[str, Any]:
    event = _context_attributes(item)
    if item.document is not None:
        event["data"] = item.document
        return event
    form = _form(item)
    payload, encoding = show_json(item.body, form)
    if encoding is UNSET:
        event["data"] = payload
    else:
        event["data_base64"] = base64.b64encode(item.body).decode()
    return event
