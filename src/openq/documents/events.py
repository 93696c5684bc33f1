"""Events as JSON documents: the same for server-sent events, webhooks, AMQP and the clients of a server."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ..broker.events import Event
from ..broker.history import PastMessage
from ..model import DeliveryOptions
from ..names import DEFAULT_ACCOUNT, split_name
from .event_details import show_detail
from .formats import JSON
from .payloads import form_of, show_json
from .values import iso, to_json_value

_NO_OPTIONS = DeliveryOptions()


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
        detail=show_detail(event.detail) if event.detail else {},
        message=UNSET if event.message is None else _message(event.message, bodies),
    )


def encode_event(event: Event, bodies: bool = False) -> bytes:
    return JSON.encode(event_document(event, bodies))


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
