"""Values of the model as REST documents, and back: what the library and a server exchange. Pure.

Bodies travel as they are stored, so a message is the same as from a queue in this process.
"""

from __future__ import annotations

import ast
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from .. import errors
from ..broker.interface import Filter, QueueStats
from ..broker.schedules import Schedule, schedule_draft
from ..engine.routing import Binding, Exchange
from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, VisibilityTimeoutExpired
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    FOREVER_MS,
    DeadLetterEvent,
    Delivery,
    DeliveryOptions,
    Draft,
    Entry,
    MessageFilter,
    Properties,
    QueueSettings,
    RetryPolicy,
)
from ..settings import SETTINGS, Setting
from .http import Refused
from .times import from_ms, iso, moment_ms

MAX_REASON = 4096

Document = dict[str, Any]


def time_text(ms: int) -> str:
    return iso(from_ms(ms))


def time_ms(text: str | None) -> int:
    return 0 if text is None else moment_ms(text, "a time")


# -- publishing -----------------------------------------------------------------------------------


def payload_document(draft: Draft) -> Document:
    body, encoding = draft.body, draft.encoding
    if encoding == ENCODING_TEXT:
        return {"payload": body.decode()}
    if encoding == ENCODING_BYTES:
        return {"payload": body}
    if encoding == ENCODING_JSON:
        return {"payload": body, "payload_encoding": "json"}
    if encoding == ENCODING_MSGPACK:
        return {"payload": body, "payload_encoding": "msgpack+base64"}
    raise InvalidSetting("pickles are not sent over the network: reading one runs code of its writer")


def message_document(draft: Draft) -> Document:
    """Only the fields that are set: the others have the same defaults on the server."""
    out = payload_document(draft)
    if draft.is_plain():
        return out
    if draft.delay_ms is not None:
        out["delay"] = draft.delay_ms / 1000
    if draft.due_ms:
        out["at"] = time_text(draft.due_ms)
    if draft.priority:
        out["priority"] = draft.priority
    if draft.ttl_ms is not None:
        out["ttl"] = draft.ttl_ms / 1000
    texts = {
        "group": draft.group,
        "message_type": draft.type,
        "dedup_id": draft.dedup,
        "unique_key": draft.unique,
        "id": draft.id,
        "publisher": draft.publisher,
    }
    out.update((name, text) for name, text in texts.items() if text is not None)
    if draft.attributes:
        out["attributes"] = draft.attributes
    if draft.past is not None:
        out.update(_past_fields(draft.past))
    return out


def _past_fields(past: DeliveryOptions) -> Document:
    """The earlier deliveries and dead-letterings of a message from a backup."""
    out: Document = {"receive_count": past.count}
    if past.born_ms:
        out["timestamp"] = time_text(past.born_ms)
    if past.reason is not None:
        out["reason"] = past.reason
    if past.trace is not None:
        out["traceback"] = past.trace
    if past.deaths:
        out["deaths"] = [death.document(time_text) for death in past.deaths]
    return out


# -- receiving ------------------------------------------------------------------------------------

_FORMS = {
    None: ENCODING_BYTES,
    "text": ENCODING_TEXT,
    "json": ENCODING_JSON,
    "msgpack": ENCODING_MSGPACK,
    "pickle": ENCODING_PICKLE,
}


def receipt_text(prefix: str, seq: int, number: int) -> str:
    """As the server writes it: the message id by sequence number, a slash, the delivery number."""
    return f"{prefix}{seq:012x}/{number:x}"


def receipt_prefix(document: Document) -> str | None:
    receipt: str | None = document.get("receipt_id")
    return None if receipt is None else receipt.rpartition("/")[0][:-12]


def parse_entry(document: Document, seq: int) -> Entry:
    body = document["payload"]
    get = document.get
    options = DeliveryOptions(
        id=document["id"],
        priority=document["priority"],
        type=document["message_type"],
        group=get("group"),
        count=document["receive_count"],
        unique=get("unique_key"),
        due_ms=time_ms(get("due_at")),
        expires_ms=time_ms(get("expires_at")),
        reason=get("reason"),
        trace=get("traceback"),
        deaths=tuple(
            DeadLetterEvent.from_fields(
                each["queue"],
                each["reason"],
                time_ms(each["time"]),
                each["receive_count"],
                kind=each.get("kind"),
                times=each.get("times"),
                first_ms=time_ms(each.get("first_time")),
            )
            for each in get("deaths", ())
        ),
    )
    attributes, publisher = document["attributes"], get("publisher")
    properties = Properties(attributes, publisher) if attributes or publisher is not None else None
    encoding = _FORMS.get(get("payload_encoding"), ENCODING_BYTES)
    return Entry(seq, time_ms(document["timestamp"]), 0, len(body), encoding, body, properties, options)


def parse_delivery(document: Document, consumer: str | None) -> Delivery:
    # Users who may inspect but not receive get no receipts; without one nothing can be settled.
    seq, number = document.get("position", 0), 0
    if "receipt_id" in document:
        own_id, _, text = document["receipt_id"].rpartition("/")
        seq, number = int(own_id[-12:], 16), int(text, 16)
    return Delivery(
        parse_entry(document, seq),
        number,
        time_ms(document["received_at"]),
        time_ms(document["deadline"]),
        document["receive_count"],
        consumer,
    )


# -- queues ---------------------------------------------------------------------------------------


def settings_document(settings: QueueSettings) -> Document:
    return {setting.name: _setting_value(setting, getattr(settings, setting.field)) for setting in SETTINGS}


def _setting_value(setting: Setting, value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return {
            "kind": value.kind,
            "base": value.base_ms / 1000,
            "max": value.max_ms / 1000,
            "factor": value.factor,
            "jitter": value.jitter,
            "on_expiry": value.on_expiry,
        }
    if setting.kind == "duration":
        return None if value is None or value >= FOREVER_MS else value / 1000
    return value


def parse_settings(document: Document) -> QueueSettings:
    return QueueSettings(
        **{
            setting.field: _parse_setting(setting, document[setting.name])
            for setting in SETTINGS
            if setting.name in document  # an older server does not have all of them
        }
    )


def _parse_setting(setting: Setting, value: Any) -> Any:
    if setting.kind == "retry":
        return RetryPolicy(
            value["kind"],
            round(value["base"] * 1000),
            value["factor"],
            round(value["max"] * 1000),
            value["jitter"],
            value.get("on_expiry", True),  # an older server has no such field
        )
    if setting.kind == "duration":
        return setting.none if value is None else round(value * 1000)
    return value


def differences(stored: QueueSettings, wanted: QueueSettings) -> Document:
    """The settings to send so that the stored ones become the wanted ones."""
    before, after = settings_document(stored), settings_document(wanted)
    return {name: value for name, value in after.items() if value != before[name]}


def parse_stats(queue: str, document: Document) -> QueueStats:
    age = document["oldest_age"]
    return QueueStats(
        queue,
        document["ready"],
        document["delayed"],
        document["in_flight"],
        document["waiting_bytes"],
        None if age is None else round(age * 1000),
        document["waiters"],
        document["counters"],
        document.get("limited", 0),  # an older server does not report it
    )


def filter_document(filter: Filter) -> Document:
    out: Document = {"state": filter.state}
    if filter.ids is not None:
        out["ids"] = list(filter.ids)
    for name, value in (
        ("message_type", filter.type),
        ("text", filter.text),
        ("reason", filter.reason),
        ("attributes", dict(filter.attributes) or None),
        ("json", dict(filter.json) or None),
    ):
        if value is not None:
            out[name] = value
    return out


# -- exchanges ------------------------------------------------------------------------------------


def parse_exchange(document: Document) -> Exchange:
    return Exchange(
        document["name"],
        document["kind"],
        document["durable"],
        document["auto_delete"],
        document["internal"],
        document["alternate"],
        document["arguments"],
    )


def binding_document(binding: Binding) -> Document:
    return {
        "source": binding.source,
        "destination": binding.destination,
        "to_exchange": binding.to_exchange,
        "key": binding.key,
        "arguments": dict(binding.arguments),
    }


# -- schedules ------------------------------------------------------------------------------------


def schedule_document(schedule: Schedule) -> Document:
    """What a schedule declares; the server keeps its state."""
    return {
        **message_document(schedule_draft(schedule, schedule.attributes or None)),
        "queue": schedule.queue,
        "cron": schedule.cron,
        "every": None if schedule.every_ms is None else schedule.every_ms / 1000,
        "timezone": schedule.timezone,
        "misfire": schedule.misfire,
        "jitter": schedule.jitter_ms / 1000,
        "start": None if schedule.start_ms is None else time_text(schedule.start_ms),
        "end": None if schedule.end_ms is None else time_text(schedule.end_ms),
    }


def parse_schedule(document: Document) -> Schedule:
    get = document.get

    def ms(name: str) -> int | None:
        seconds = get(name)
        return None if seconds is None else round(seconds * 1000)

    def moment(name: str) -> int | None:
        return None if document[name] is None else time_ms(document[name])

    return Schedule(
        document["name"],
        document["queue"],
        document["payload"],
        _FORMS.get(get("payload_encoding"), ENCODING_BYTES),
        cron=document["cron"],
        every_ms=ms("every"),
        timezone=document["timezone"],
        misfire=document["misfire"],
        jitter_ms=ms("jitter") or 0,
        start_ms=moment("start"),
        end_ms=moment("end"),
        priority=document["priority"],
        group=get("group"),
        type=get("message_type"),
        attributes=document["attributes"],
        delay_ms=ms("delay"),
        ttl_ms=ms("ttl"),
        unique=get("unique_key"),
        publisher=get("publisher"),
        paused=document["paused"],
        created_ms=time_ms(document["created"]),
        next_ms=moment("next_run"),
        last_ms=moment("last_run"),
        runs=document["runs"],
        missed=document["missed"],
        error=document["error"],
    )


# -- errors ---------------------------------------------------------------------------------------

_CLASSES: Mapping[str, type[OpenQError]] = {
    **{
        each.code: each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, OpenQError) and each.code != OpenQError.code
    },
    **dict.fromkeys(
        ("invalid", "malformed", "too_large", "batch_too_large", "unsupported_media_type"), InvalidSetting
    ),
}
_QUOTED = re.compile(r"(?:queue|exchange|schedule) ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_SIGN_IN = {
    "unauthorized": "sign in: give token=, or set OPENQ_TOKEN, or write user:password@ into the url",
    "login_refused": "check token= (or OPENQ_TOKEN), or the user and password in the url",
}


def selection_document(wanted: MessageFilter) -> dict[str, Any]:
    found: dict[str, Any] = {} if wanted.types is None else {"types": list(wanted.types)}
    if wanted.attributes:
        found["attributes"] = {name: list(values) for name, values in wanted.attributes}
    return found


def _tagged(value: object) -> dict[str, str]:
    assert isinstance(value, bytes)
    return {"$base64": b64encode(value).decode()}


def message_query(wanted: MessageFilter | None) -> dict[str, str]:
    """The same in the query of a stream of events."""
    found: dict[str, str] = {}
    if wanted is not None and wanted.types:
        found["types"] = ",".join(sorted(wanted.types))
    if wanted is not None and wanted.attributes:
        found["attributes"] = json.dumps(dict(wanted.attributes), default=_tagged)
    return found


def parse_error(refused: Refused, queue: str = "", message_id: str | None = None) -> OpenQError:
    """The error that a queue in this process would have raised; errors of servers only stay Refused."""
    if refused.status == 413:
        return InvalidSetting(refused.detail)
    return error_for_code(refused.code, refused.detail, queue, message_id) or _with_hint(refused)


def error_for_code(code: str, detail: str, queue: str, message_id: str | None = None) -> OpenQError | None:
    kind = _CLASSES.get(code)
    if kind is None:
        return None
    if kind in (MessageNotFoundError, VisibilityTimeoutExpired) and message_id is not None:
        return kind(message_id, queue)
    # Not through its constructor, which builds the sentence from parts that the response does not have.
    error = kind.__new__(kind)
    Exception.__init__(error, detail)
    named = _QUOTED.search(detail)
    facts = {"name": ast.literal_eval(named[1]) if named else queue, "queue": queue, "text": detail}
    facts.update(message_id=message_id, limit=detail, detail=detail, difference=detail, reason=detail)
    vars(error).update(facts)
    return error


def _with_hint(refused: Refused) -> Refused:
    hint = _SIGN_IN.get(refused.code, refused.hint)
    detail = f"{refused.detail}; {hint}" if hint else refused.detail
    return Refused(refused.status, refused.code, detail, hint)
