"""A record of the journal as a JSON object, for `openq journal dump`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..engine import records as r
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    OPTION_FIELDS,
    DeliveryOptions,
    Properties,
    split_failure,
)

ENCODING_NAMES = {
    ENCODING_BYTES: "bytes",
    ENCODING_TEXT: "text",
    ENCODING_JSON: "json",
    ENCODING_MSGPACK: "msgpack",
    ENCODING_PICKLE: "pickle",
}
_TIMES = {"due_ms": "due", "expires_ms": "expires", "first_ms": "first_delivered", "born_ms": "born"}


def time_text(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    milliseconds = time_ms % 1000
    return f"{moment}.{milliseconds:03d}Z" if milliseconds else f"{moment}Z"


class RecordDescriber:
    """Describes records, read from the beginning: queue names come from earlier records."""

    def __init__(self, bodies: bool = False) -> None:
        self._bodies = bodies
        self._names: dict[int, str] = {}

    def read_names(self, data: bytes) -> None:
        """Read the queue names of a record without describing it. Cheap for records without names."""
        if data and data[0] in (r.QUEUE, r.CHECKPOINT):
            self._read_names(r.decode(data))

    def is_orphan(self, data: bytes) -> bool:
        """Whether its queue has no name: the record with the name is lost."""
        self.read_names(data)
        number = r.HEAD.unpack_from(data)[3]
        return bool(number) and number not in self._names

    def describe(self, location: int, data: bytes) -> dict[str, Any]:
        """Never raises: a record that this version cannot decode is described as unreadable."""
        try:
            record = r.decode(data)
            self._read_names(record)
            head: dict[str, Any] = {
                "at": location,
                "kind": r.KIND_NAMES[record[0]],
                "time": time_text(record[1]),
            }
            if record[2]:
                head["queue"] = self._name(record[2])
            # In a delivery this field is the delivery's number, of a queue it is a flag.
            if record[3] and record[0] not in (r.DELIVER, r.QUEUE):
                head["seq"] = record[3]
            return {**head, **self._details(record)}
        except Exception as error:
            return {"at": location, "kind": "unreadable", "bytes": len(data), "error": f"{error}"}

    def _read_names(self, record: r.Record) -> None:
        if record[0] == r.QUEUE:
            self._names[record[2]] = record[4]
        elif record[0] == r.CHECKPOINT:
            for number, name, *_ in record[4]["queues"]:
                self._names[number] = name

    def _name(self, number: int) -> str:
        # The number alone if the record with the name is lost.
        return self._names.get(number, f"#{number}")

    def _details(self, record: r.Record) -> dict[str, Any]:
        kind, rest = record[0], record[4:]
        match kind:
            case r.PUBLISH:
                return self._content(*rest)
            case r.EDIT | r.COPY:
                return {"sent": time_text(rest[0]), **self._content(*rest[1:])}
            case r.ROUTE:
                targets = [{"queue": self._name(queue), "seq": seq} for queue, seq in rest[4]]
                return {"to": targets, **self._content(*rest[:4])}
            case r.RUN:
                return self._run(*rest)
            case r.DELIVER:
                until_ms, consumer, seqs = rest
                shown = {} if consumer is None else {"consumer": consumer}
                return {"number": record[3], "seqs": list(seqs), **_time("until", until_ms), **shown}
            case r.ACK:
                return {"seqs": list(rest[0])}
            case r.EXTEND:
                return {"seqs": list(rest[1]), **_time("until", rest[0])}
            case r.RETURN:
                why, reason, pairs = rest
                messages = [{"seq": seq, **_time("due", due_ms)} for seq, due_ms in pairs]
                return {"why": r.RETURN_NAMES[why], **_reason(reason), "messages": messages}
            case r.MOVE:
                why, reason, moves = rest
                messages = [{"seq": seq, "to": self._name(to), "new_seq": new} for seq, to, new in moves]
                return {"why": r.MOVE_NAMES[why], **_reason(reason), "messages": messages}
            case r.REMOVE:
                return {"why": r.REMOVE_NAMES[rest[0]], "seqs": list(rest[1])}
            case r.RESCHEDULE:
                return _time("due", rest[0])
            case r.QUEUE:
                return {"settings": rest[1], "created": time_text(rest[2])}
            case r.EXCHANGE:
                return {"operation": rest[0]}
            case r.MARK:
                job, _, batch, rows, is_last, rejected = rest
                return {"job": job, "batch": batch, "rows": rows, "is_last": is_last, "rejected": rejected}
            case r.KV_PUT:
                return {"bucket": rest[0], "values": [self._value(*row) for row in rest[1]]}
            case r.KV_DELETE:
                return {"bucket": rest[0], "keys": list(rest[1])}
            case r.SCHEDULE:
                operation, name, value = rest
                fields = {key: each for key, each in (value or {}).items() if key not in ("name", "body")}
                return {"operation": operation, "schedule": name, **fields}
            case r.EVENT:
                return {"event": rest[0], "queue": rest[1], "detail": rest[2]}
            case r.CHECKPOINT:
                state = rest[0]
                return {"queues": sorted(row[1] for row in state["queues"]), "next_seq": state["seq"]}
        return {}

    def _value(
        self, key: str, version: int, changed_ms: int, expires_ms: int, value: bytes
    ) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "key": key,
            "version": version,
            "changed": time_text(changed_ms),
            **_time("expires", expires_ms),
            "bytes": len(value),
        }
        if self._bodies:
            shown["value"] = plain_body(ENCODING_TEXT, value)
        return shown

    def _content(
        self, encoding: int, body: bytes, properties: Properties | None, options: DeliveryOptions | None
    ) -> dict[str, Any]:
        shown: dict[str, Any] = {"form": ENCODING_NAMES.get(encoding, encoding), "bytes": len(body)}
        shown |= _properties(properties, options)
        if self._bodies:
            shown["body"] = plain_body(encoding, body)
        return shown

    def _run(
        self,
        encoding: int,
        bodies: Sequence[bytes],
        properties: Properties | None,
        options: DeliveryOptions | None,
    ) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "count": len(bodies),
            "form": ENCODING_NAMES.get(encoding, encoding),
            "bytes": sum(map(len, bodies)),
            **_properties(properties, options),
        }
        if self._bodies:
            shown["bodies"] = [plain_body(encoding, body) for body in bodies]
        return shown


def _properties(properties: Properties | None, options: DeliveryOptions | None) -> dict[str, Any]:
    shown = {} if options is None else _extra(options)
    if properties is not None:
        if properties.attributes:
            shown["attributes"] = plain(properties.attributes)
        if properties.publisher is not None:
            shown["publisher"] = properties.publisher
    return shown


def _extra(options: DeliveryOptions) -> dict[str, Any]:
    """Only the options that are set."""
    shown: dict[str, Any] = {}
    for name in OPTION_FIELDS:
        value = getattr(options, name)
        if not value:
            continue
        if name in _TIMES:
            shown[_TIMES[name]] = time_text(value)
        elif name == "route":
            shown["exchange"], shown["key"] = value
        elif name == "deaths":
            shown["deaths"] = [
                {
                    "queue": death.queue,
                    "reason": death.reason,
                    "time": time_text(death.time_ms),
                    "count": death.count,
                    **death.details(time_text),
                }
                for death in value
            ]
        else:
            shown["traceback" if name == "trace" else name] = value
    return shown


def _time(name: str, time_ms: int) -> dict[str, str]:
    return {name: time_text(time_ms)} if time_ms else {}


def _reason(reason: str | None) -> dict[str, str]:
    if reason is None:
        return {}
    text, trace = split_failure(reason)
    return {"reason": text or "", **({} if trace is None else {"traceback": trace})}


def plain_body(encoding: int, body: bytes) -> object:
    """Text where it is text, else {"base64": ...}. Nothing is ever unpickled."""
    if encoding in (ENCODING_TEXT, ENCODING_JSON):
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": base64.b64encode(body).decode()}


def plain(value: object) -> object:
    """A value that JSON can hold: bytes become {"base64": ...}."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
