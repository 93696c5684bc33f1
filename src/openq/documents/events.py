"""Events as JSON documents: the same for server-sent events, webhooks, AMQP and the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ..broker.events import Event
from ..broker.history import PastMessage
from ..model import DeliveryOptions
from ..names import DEFAULT_ACCOUNT, split_name
from ..settings import SETTINGS
from .formats import JSON
from .payloads import form_of, show_json
from .values import iso, iso_or_none, seconds, seconds_or_forever, to_json_value

_NO_OPTIONS = DeliveryOptions()
_DURATIONS_OF_RETRY = {"base_ms": "base", "max_ms": "max"}


class EventMessageView(Struct, kw_only=True, gc=False):
    """A message as it was published. The payload is there if bodies were asked for."""

    size: int
    payload: Any | UnsetType = UNSET
    payload_encoding: str | UnsetType = UNSET
    message_type: str | None
    priority: int
    group: str | UnsetType = UNSET
    attributes: dict[str, Any]
    publisher: str | UnsetType = UNSET
    due_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class EventView(Struct, kw_only=True, gc=False):
    """One event. `detail` depends on its name; times in it are ISO-8601, null means none."""

    id: str
    event: str
    time: str
    queue: str | None  # null: an event of the whole server
    account: str | UnsetType = UNSET  # of the queue, if it is not the default account
    message_id: str | UnsetType = UNSET
    detail: dict[str, Any]
    message: EventMessageView | UnsetType = UNSET  # of `published`


def event_document(event: Event, bodies: bool = False) -> EventView:
    account, queue = split_name(event.queue)
    return EventView(
        id=event.id,
        event=event.event,
        time=iso(event.time_ms),
        queue=queue or None,
        account=UNSET if account == DEFAULT_ACCOUNT else account,
        message_id=UNSET if event.message_id is None else event.message_id,
        detail=_detail(event.detail) if event.detail else {},
        message=UNSET if event.message is None else _message(event.message, bodies),
    )


def encode_event(event: Event, bodies: bool = False) -> bytes:
    return JSON.encode(event_document(event, bodies))


def _detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in detail.items():
        if name.endswith("_ms"):
            shown[name[:-3]] = iso_or_none(value)
        elif name == "to":
            shown[name] = split_name(value)[1]
        elif name == "settings":
            shown[name] = _settings(value)
        else:
            shown[name] = to_json_value(value)
    return shown


def _settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the names and in the units of the API, as far as they differ from the defaults."""
    shown: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.field not in stored:
            continue
        value = stored[setting.field]
        if setting.kind == "retry" and isinstance(value, Mapping):
            value = {
                _DURATIONS_OF_RETRY.get(name, name): seconds(each) if name in _DURATIONS_OF_RETRY else each
                for name, each in value.items()
            }
        elif setting.kind == "duration" and value is not None:
            value = seconds_or_forever(value) if setting.is_endless else seconds(value)
        elif setting.kind in ("queue", "exchange") and value is not None:
            value = split_name(value)[1]
        shown[setting.name] = value
    return shown


def _message(past: PastMessage, bodies: bool) -> EventMessageView:
    options = past.options or _NO_OPTIONS
    properties = past.properties
    payload: Any = UNSET
    encoding: str | UnsetType = UNSET
    if bodies:
        payload, encoding = show_json(
            past.body, form_of(past.body, past.encoding, properties, prefers_text=True)
        )
    attributes = None if properties is None else properties.attributes
    return EventMessageView(
        size=len(past.body),
        payload=payload,
        payload_encoding=encoding,
        message_type=options.type,
        priority=options.priority,
        group=UNSET if options.group is None else options.group,
        attributes={name: to_json_value(value) for name, value in attributes.items()} if attributes else {},
        publisher=UNSET if properties is None or properties.publisher is None else properties.publisher,
        due_at=iso(options.due_ms) if options.due_ms else UNSET,
        expires_at=iso(options.expires_ms) if options.expires_ms else UNSET,
    )
