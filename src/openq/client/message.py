"""`Message` and its JSON in three views.

A received message computes everything but its delivery on demand: most programs read the body
and ack, and should not pay for datetimes and ids that they never read.
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
    from .core import QueueObject
    from .queues import Queue

VIEWS = ("transmission", "persistence", "consumption")
_ENCODINGS = {ENCODING_MSGPACK: "msgpack+base64", ENCODING_PICKLE: "pickle+base64"}
STATUSES = ("unprocessed", "processing", "processed", "dead")


@dataclass
class Message:
    """One message. `content` and `payload` are other names of `body`.

    A message that `receive` returned or a handler was given can be settled by `ack`, `nack`, `reject` and
    `extend`; any other message is a plain value.
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
        """Acknowledge: the message is never delivered again."""
        raise self._not_received("acked")

    def nack(self, delay: float | None = None, reason: str | BaseException | None = None) -> str:
        """Return the message to its queue; see `openq.Queue.nack`."""
        raise self._not_received("nacked")

    def reject(self, reason: str | BaseException | None = None) -> str:
        """Dead-letter the message at once, or remove it if there is no dlq."""
        raise self._not_received("rejected")

    def extend(self, seconds: float) -> datetime | None:
        """Extend the lease to `seconds` from now. Returns its new end."""
        raise self._not_received("extended")

    def _not_received(self, what: str) -> InvalidSetting:
        return InvalidSetting(
            f"message {self.id} cannot be {what}: only one that `receive` returned or a handler was given can"
        )

    def _repr_html_(self) -> str:
        from .notebook import message_html

        return message_html(self)

    def to_dict(self, view: str = "consumption") -> dict[str, Any]:
        """One of three views: transmission (to the queue), persistence (files), consumption (consumers)."""
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
        """From any of the three views; missing fields have their defaults."""
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
            raise InvalidSetting(f"expected a message as JSON text, not {text!r}")
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
    """Attributes may hold bytes anywhere; in JSON they are {"$base64": ...}."""
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        out = {key: _to_json_value(each) for key, each in value.items()}
        # A dict that looks like our encoding of bytes is escaped, so that it is not decoded as such.
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
    """`payload`, and its encoding if it is bytes."""
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
    """A message in a queue. Its fields are computed from its entry, not set by the dataclass."""

    __slots__ = ("_body", "queue")
    queue: QueueObject
    _body: Any

    @property
    def _entry(self) -> Entry:
        """Each kind of message stores it elsewhere."""
        raise NotImplementedError

    @property
    def id(self) -> str:  # type: ignore[override]
        return self.queue.core.message_id(self._entry)

    @property
    def body(self) -> Any:
        try:
            return self._body
        except AttributeError:
            entry = self._entry
            data = entry.body
            assert data is not None, "a message is loaded before it is returned"
            body_encoding = _declared_encoding(entry)
            if body_encoding != ENCODING_BYTES:
                body = self.queue.core.codec.decode_declared(data, body_encoding)
            else:
                body = self.queue.core.decode(data, entry.encoding)
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
        return "dead" if is_dead(self._entry, self.queue.name) else "unprocessed"

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
        """Why its last delivery failed, if its consumer gave a reason."""
        options = self._entry.options
        return None if options is None else options.reason

    @property
    def traceback(self) -> str | None:
        """The traceback of its last failed delivery, if its consumer gave an exception."""
        options = self._entry.options
        return None if options is None else options.trace

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """How it was dead-lettered, newest first: queue, reason, time, receive_count.

        `times` and `first_time` are there if it was dead-lettered more than once from that queue for that
        reason; `kind` is OpenQ's own name of the cause if a consumer gave another reason.
        """
        options = self._entry.options
        if options is None:
            return []
        return [death.document(from_ms) for death in options.deaths]

    def to_dict(self, view: str = "consumption") -> dict[str, Any]:
        out = super().to_dict(view)
        if view == "persistence":
            out["position"] = self._entry.seq
            out.update(self._stored_payload())  # as stored, whatever its content type says
        return out

    def _payload(self) -> dict[str, Any]:
        if _declared_encoding(self._entry) in (ENCODING_TEXT, ENCODING_JSON):
            return payload_fields(self.body)
        return self._stored_payload()

    def _stored_payload(self) -> dict[str, Any]:
        entry = self._entry
        if entry.encoding not in (ENCODING_TEXT, ENCODING_JSON) and entry.body is not None:
            # Only the codec that reads them knows what the bytes mean.
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
        # Copies and pickles are plain values without the lease.
        plain = [getattr(self, name) for name in Message.__dataclass_fields__]
        return Message, tuple(plain)


class PeekedMessage(_StoredMessage):
    """A message that was inspected, not received: it has no lease and cannot be acked."""

    __slots__ = ("_peeked_entry",)

    def __init__(self, queue: QueueObject, entry: Entry) -> None:
        self.queue = queue
        self._peeked_entry = entry

    @property
    def _entry(self) -> Entry:
        return self._peeked_entry


class ReceivedMessage(_StoredMessage):
    """A delivered message. As a context manager: ack at the end, nack with the reason on an exception."""

    __slots__ = ("delivery", "settled")
    queue: Queue

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        self.queue = queue
        self.delivery = delivery
        self.settled = False

    @property
    def _entry(self) -> Entry:
        return self.delivery.entry

    @property
    def received_at(self) -> datetime:  # type: ignore[override]
        return from_ms(self.delivery.delivered_ms)

    @property
    def receipt_id(self) -> str:  # type: ignore[override]
        return self.queue.core.receipt_id(self.delivery)

    @property
    def receive_count(self) -> int:  # type: ignore[override]
        return self.delivery.count

    @property
    def status(self) -> str:  # type: ignore[override]
        return "processing"

    @property
    def deadline(self) -> datetime | None:
        """When its lease ends; None if it ends only by ack or nack."""
        until_ms = self.delivery.until_ms
        return from_ms(until_ms) if until_ms else None

    @property
    def consumer(self) -> str | None:
        return self.delivery.consumer

    def ack(self) -> None:
        self.queue.ack(self)

    def nack(self, delay: float | None = None, reason: str | BaseException | None = None) -> str:
        return self.queue.nack(self, delay, reason)

    def reject(self, reason: str | BaseException | None = None) -> str:
        return self.queue.reject(self, reason)

    def extend(self, seconds: float) -> datetime | None:
        return self.queue.extend(self, seconds)

    def __enter__(self) -> ReceivedMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
            return
        try:
            if was_interrupted(error):
                self.queue.core.release([self])
            else:
                self.nack(retry_delay(error), error)
        except OpenQError:
            pass  # its lease is over: it returns anyway, and the caller must see the first error


def _declared_encoding(entry: Entry) -> int:
    """The encoding of a body of bytes by its AMQP content type; bytes without one."""
    properties = entry.properties
    if entry.encoding != ENCODING_BYTES or properties is None or properties.amqp_properties is None:
        return ENCODING_BYTES
    from ..amqp_fields import encoding_of  # imported late: most programs never need it

    return encoding_of(properties.amqp_properties)


def is_dead(entry: Entry, queue: str) -> bool:
    """Whether an entry is a dead letter that has not returned to the queue it came from."""
    deaths = () if entry.options is None else entry.options.deaths
    return bool(deaths) and deaths[0][0] != queue
