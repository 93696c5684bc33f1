"""`Message`, the one a program sees, and its JSON in three views.

A received message computes everything but its delivery on demand: most programs read the body
and ack, and should not pay for datetimes and ids they never look at.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    Delivery,
    Entry,
)
from .codecs import Codec
from .failures import retry_delay, was_interrupted
from .times import from_ms, iso, parse_iso

if TYPE_CHECKING:
    from .queues import Queue

VIEWS = ("transmission", "persistence", "consumption")
_ENCODINGS = {ENCODING_MSGPACK: "msgpack+base64", ENCODING_PICKLE: "pickle+base64"}
STATUSES = ("unprocessed", "processing", "processed", "dead")


@dataclass
class Message:
    """One message. `content` and `payload` are other names of `body`.

    What `receive` returns and a handler gets is one that can be settled by `ack`, `nack`, `reject` and
    `extend`; any other is a value.
    """

    id: str
    body: Any
    timestamp: datetime | None = None  # sent
    received_at: datetime | None = None
    receipt_id: str | None = None
    receive_count: int = 0
    status: str = "unprocessed"  # unprocessed | processing | processed | dead
    message_type: str | None = None
    priority: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None

    @property
    def content(self) -> Any:
        return self.body

    @property
    def payload(self) -> Any:
        return self.body

    def ack(self) -> None:
        """Done: the message is never delivered again."""
        raise self._not_received("acked")

    def nack(self, delay: float | None = None, reason: str | BaseException | None = None) -> str:
        """Not done: it is tried again; see `openq.Queue.nack`."""
        raise self._not_received("nacked")

    def reject(self, reason: str | BaseException | None = None) -> str:
        """Never again: to the dlq at once, or away if there is none."""
        raise self._not_received("rejected")

    def extend(self, seconds: float) -> datetime | None:
        """A longer lease: `seconds` from now. Returns its new end."""
        raise self._not_received("extended")

    def _not_received(self, what: str) -> InvalidSetting:
        return InvalidSetting(
            f"message {self.id} cannot be {what}: only one that `receive` returned or a handler was given can"
        )

    def to_dict(self, view: str = "consumption") -> dict[str, Any]:
        """For the way to the queue (transmission), for files (persistence), for a reader (consumption)."""
        if view not in VIEWS:
            raise InvalidSetting(f"view must be one of {', '.join(VIEWS)}, not {view!r}")
        out: dict[str, Any] = {"id": self.id}
        if self.timestamp is not None:
            out["timestamp"] = iso(self.timestamp)
        out.update(self._payload())
        if view == "transmission":
            return out
        out["status"] = self.status
        out["message_type"] = self.message_type
        out["priority"] = self.priority
        out["receive_count"] = self.receive_count
        out["attributes"] = {name: _to_json_value(value) for name, value in self.attributes.items()}
        if self.group is not None:
            out["group"] = self.group
        if view == "consumption":
            out["receipt_id"] = self.receipt_id
            out["received_at"] = None if self.received_at is None else iso(self.received_at)
        return out

    def to_json(self, view: str = "consumption") -> str:
        try:
            return json.dumps(self.to_dict(view), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSetting(f"message {self.id} cannot be written as JSON: {error}") from None

    def _payload(self) -> dict[str, Any]:
        return payload_fields(self.body)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """Any of the three views. What is not given has its default."""
        if not isinstance(data, Mapping):
            raise InvalidSetting(f"a message must be a JSON object, not {type(data).__name__}")
        if "payload" not in data:
            raise InvalidSetting("a message needs a payload")
        status = data.get("status", "unprocessed")
        if status not in STATUSES:
            raise InvalidSetting(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        receive_count, priority = data.get("receive_count", 0), data.get("priority", 0)
        for name, number in (("receive_count", receive_count), ("priority", priority)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InvalidSetting(f"{name} must be a whole number, 0 or more, not {number!r}")
        attributes = data.get("attributes") or {}
        if not isinstance(attributes, Mapping):
            raise InvalidSetting("attributes must be a JSON object")
        return Message(
            id=_text(data, "id") or "",
            body=read_payload(data),
            timestamp=_moment(data, "timestamp"),
            received_at=_moment(data, "received_at"),
            receipt_id=_text(data, "receipt_id"),
            receive_count=receive_count,
            status=status,
            message_type=_text(data, "message_type"),
            priority=priority,
            attributes={name: _from_json_value(value) for name, value in attributes.items()},
            group=_text(data, "group"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Message:
        if not isinstance(text, str | bytes | bytearray):
            raise InvalidSetting(f"a message as JSON text is needed, not {text!r}")
        try:
            return cls.from_dict(json.loads(text))
        except RecursionError:
            raise InvalidSetting("this JSON is nested too deeply") from None
        except ValueError as error:
            if isinstance(error, InvalidSetting):
                raise
            raise InvalidSetting(f"this is not JSON: {error}") from None


_ESCAPED = "$dict"
_RESERVED_KEYS = {"$base64", _ESCAPED}


def _to_json_value(value: Any) -> Any:
    """Attributes may hold bytes anywhere; JSON has no word for them."""
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        out = {key: _to_json_value(each) for key, each in value.items()}
        # One that looks like our own word for bytes is wrapped, so that it is not taken for it.
        return {_ESCAPED: out} if len(out) == 1 and out.keys() <= _RESERVED_KEYS else out
    if isinstance(value, list | tuple):
        return [_to_json_value(each) for each in value]
    return value


def _from_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$base64"}:
            return read_base64(value["$base64"])
        if value.keys() == {_ESCAPED} and isinstance(value[_ESCAPED], dict):
            value = value[_ESCAPED]
        return {key: _from_json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_json_value(each) for each in value]
    return value


def payload_fields(body: Any) -> dict[str, Any]:
    """`payload`, and how it is encoded where JSON has no words for it."""
    if isinstance(body, bytes | bytearray | memoryview):
        return {"payload": base64.b64encode(body).decode(), "payload_encoding": "base64"}
    return {"payload": body}


def read_payload(data: Mapping[str, Any]) -> Any:
    payload, encoding = data["payload"], data.get("payload_encoding")
    if encoding is None:
        return payload
    if encoding == "base64":
        return read_base64(payload)
    if encoding == _ENCODINGS[ENCODING_MSGPACK]:
        return Codec().decode(read_base64(payload), ENCODING_MSGPACK)
    raise InvalidSetting(f"payload_encoding must be 'base64' or 'msgpack+base64', not {encoding!r}")


def read_base64(payload: Any) -> bytes:
    if not isinstance(payload, str):
        raise InvalidSetting("a base64 payload must be text")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSetting("the payload is not valid base64") from None


def _text(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidSetting(f"{name} must be text, not {value!r}")
    return value


def _moment(data: Mapping[str, Any], name: str) -> datetime | None:
    text = _text(data, name)
    return None if text is None else parse_iso(text, name)


class _StoredMessage(Message):
    """A message as its queue holds it. Not made through the dataclass: its fields are computed."""

    __slots__ = ("_body", "_queue")
    _queue: Queue
    _body: Any

    @property
    def _entry(self) -> Entry:
        """Each kind of message keeps it elsewhere."""
        raise NotImplementedError

    @property
    def id(self) -> str:  # type: ignore[override]
        return self._queue._id_of(self._entry)

    @property
    def body(self) -> Any:
        try:
            return self._body
        except AttributeError:
            entry = self._entry
            data = entry.body
            assert data is not None, "a message is loaded before anybody sees it"
            body_encoding = _declared_encoding(entry)
            if body_encoding != ENCODING_BYTES:
                body = self._queue.codec.decode_declared(data, body_encoding)
            else:
                body = self._queue._decode(data, entry.encoding)
            self._body = body
            return body

    @property
    def timestamp(self) -> datetime:  # type: ignore[override]
        entry = self._entry
        born_ms = 0 if entry.options is None else entry.options.born_ms
        return from_ms(born_ms or entry.sent_ms)

    @property
    def received_at(self) -> datetime | None:  # type: ignore[override]
        return None

    @property
    def receipt_id(self) -> str | None:  # type: ignore[override]
        return None

    @property
    def receive_count(self) -> int:  # type: ignore[override]
        options = self._entry.options
        return 0 if options is None else options.count

    @property
    def status(self) -> str:  # type: ignore[override]
        return "dead" if is_dead(self._entry, self._queue.name) else "unprocessed"

    @property
    def message_type(self) -> str | None:  # type: ignore[override]
        options = self._entry.options
        return None if options is None else options.type

    @property
    def priority(self) -> int:  # type: ignore[override]
        return self._entry.priority

    @property
    def attributes(self) -> Mapping[str, Any]:  # type: ignore[override]
        properties = self._entry.properties
        return {} if properties is None else properties.attributes

    @property
    def group(self) -> str | None:  # type: ignore[override]
        return self._entry.group

    @property
    def publisher(self) -> str | None:
        properties = self._entry.properties
        return None if properties is None else properties.publisher

    @property
    def reason(self) -> str | None:
        """Why its last delivery failed, as far as somebody said so."""
        options = self._entry.options
        return None if options is None else options.reason

    @property
    def traceback(self) -> str | None:
        """Of the exception that failed its last delivery, as far as its consumer gave one."""
        options = self._entry.options
        return None if options is None else options.trace

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """How it became a dead letter, newest first: queue, reason, time, receive_count.

        `times` and `first_time` say how often it died there that way, if more than once; `kind` is
        what OpenQ calls it where somebody gave another reason.
        """
        options = self._entry.options
        if options is None:
            return []
        return [
            {
                "queue": death.queue,
                "reason": death.reason,
                "time": from_ms(death.time_ms),
                "receive_count": death.count,
                **death.details(from_ms),
            }
            for death in options.deaths
        ]

    def to_dict(self, view: str = "consumption") -> dict[str, Any]:
        out = super().to_dict(view)
        if view == "persistence":
            out["position"] = self._entry.seq
            out.update(self._stored_payload())  # as it is kept, whatever somebody claims it is
        return out

    def _payload(self) -> dict[str, Any]:
        if _declared_encoding(self._entry) in (ENCODING_TEXT, ENCODING_JSON):
            return payload_fields(self.body)
        return self._stored_payload()

    def _stored_payload(self) -> dict[str, Any]:
        entry = self._entry
        if entry.encoding not in (ENCODING_TEXT, ENCODING_JSON) and entry.body is not None:
            # What the bytes mean stays the business of the codec that will read them.
            encoding = _ENCODINGS.get(entry.encoding, "base64")
            return {"payload": base64.b64encode(entry.body).decode(), "payload_encoding": encoding}
        return payload_fields(self.body)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.id, self.receipt_id) == (other.id, other.receipt_id)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        body = repr(self.body)
        return f"Message(id={self.id!r}, body={body if len(body) <= 80 else body[:77] + '...'})"

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[Any, ...]]:
        # Copies and pickles are plain values: a lease cannot travel.
        plain = [getattr(self, name) for name in Message.__dataclass_fields__]
        return Message, tuple(plain)


class PeekedMessage(_StoredMessage):
    """A look at a waiting message: no lease, so there is nothing to ack."""

    __slots__ = ("_peeked_entry",)

    def __init__(self, queue: Queue, entry: Entry) -> None:
        self._queue = queue
        self._peeked_entry = entry

    @property
    def _entry(self) -> Entry:
        return self._peeked_entry


class ReceivedMessage(_StoredMessage):
    """A message on loan. As a context manager: ack at the end, nack with the reason on an exception."""

    __slots__ = ("_delivery", "_settled")

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        self._queue = queue
        self._delivery = delivery
        self._settled = False

    @property
    def _entry(self) -> Entry:
        return self._delivery.entry

    @property
    def received_at(self) -> datetime:  # type: ignore[override]
        return from_ms(self._delivery.delivered_ms)

    @property
    def receipt_id(self) -> str:  # type: ignore[override]
        return self._queue._receipt_id(self._delivery)

    @property
    def receive_count(self) -> int:  # type: ignore[override]
        return self._delivery.count

    @property
    def status(self) -> str:  # type: ignore[override]
        return "processing"

    @property
    def deadline(self) -> datetime | None:
        """When its lease ends; None while it ends only by ack or nack."""
        until_ms = self._delivery.until_ms
        return from_ms(until_ms) if until_ms else None

    @property
    def consumer(self) -> str | None:
        return self._delivery.consumer

    def ack(self) -> None:
        self._queue.ack(self)

    def nack(self, delay: float | None = None, reason: str | BaseException | None = None) -> str:
        return self._queue.nack(self, delay, reason)

    def reject(self, reason: str | BaseException | None = None) -> str:
        return self._queue.reject(self, reason)

    def extend(self, seconds: float) -> datetime | None:
        return self._queue.extend(self, seconds)

    def __enter__(self) -> ReceivedMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        try:
            if was_interrupted(error):
                self._queue._release(self)
            else:
                self.nack(retry_delay(error), error)
        except OpenQError:
            pass  # its lease is over: it comes back anyway, and the caller must see the first error


def _declared_encoding(entry: Entry) -> int:
    """What the sender says is in a body that came as bare bytes; bytes if it does not say."""
    properties = entry.properties
    if entry.encoding != ENCODING_BYTES or properties is None or properties.amqp_properties is None:
        return ENCODING_BYTES
    from ..amqp_fields import encoding_of  # not at the top: most programs never need it

    return encoding_of(properties.amqp_properties)


def is_dead(entry: Entry, queue: str) -> bool:
    """A dead letter, as long as it has not come back to the queue where it died."""
    deaths = () if entry.options is None else entry.options.deaths
    return bool(deaths) and deaths[0][0] != queue
