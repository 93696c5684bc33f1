"""Entries and deliveries as the documents that show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType

from ..broker.interface import Broker
from ..model import ENCODING_JSON, Delivery, DeliveryOptions, Entry
from ..names import split_name
from .formats import NATIVE, Format, drop_json_only
from .messages import DeathView, MessageView
from .payloads import PayloadView, form_of, show_json, show_msgpack, show_native
from .values import iso, iso_or_none, to_json_value

_NO_EXTRA = DeliveryOptions()


def payload_encoder(format: Format) -> Callable[[bytes, int], PayloadView]:
    if format.is_json:
        return show_json
    return show_native if format is NATIVE else show_msgpack


def attributes_of(values: Any, format: Format) -> dict[str, Any]:
    if not values:
        return {}
    if format.is_json:
        return {name: to_json_value(value) for name, value in values.items()}
    shown: dict[str, Any] = drop_json_only(dict(values))
    return shown


def received(broker: Broker, deliveries: list[Delivery], format: Format) -> list[MessageView]:
    """The consumption form."""
    prefix = broker.storage.id_prefix
    show = payload_encoder(format)
    out: list[MessageView] = []
    for delivery in deliveries:
        entry = delivery.entry
        options = entry.options or _NO_EXTRA
        assert entry.body is not None, "bodies are loaded before"
        payload, encoding = show(
            entry.body, form_of(entry.body, entry.encoding, entry.properties, format.is_json)
        )
        own_id = f"{prefix}{entry.seq:012x}"
        out.append(
            MessageView(
                id=options.id or own_id,
                timestamp=iso(options.born_ms or entry.sent_ms),
                payload=payload,
                payload_encoding=encoding,
                status="processing",
                message_type=options.type,
                priority=options.priority,
                receive_count=delivery.count,
                attributes={}
                if entry.properties is None
                else attributes_of(entry.properties.attributes, format),
                group=UNSET if options.group is None else options.group,
                receipt_id=f"{own_id}/{delivery.number:x}",
                received_at=iso(delivery.delivered_ms),
                deadline=iso_or_none(delivery.until_ms),
                publisher=UNSET if entry.properties is None else _or_unset(entry.properties.publisher),
                reason=UNSET if options.reason is None else options.reason,
                traceback=UNSET if options.trace is None else options.trace,
                deaths=_deaths(options) if options.deaths else UNSET,
            )
        )
    return out


def is_dead(entry: Entry, queue: str) -> bool:
    """Whether it is a dead letter: it has not returned to the queue where it was dead-lettered."""
    deaths = () if entry.options is None else entry.options.deaths
    return bool(deaths) and deaths[0][0] != queue


def stored(
    broker: Broker,
    queue: str,
    entry: Entry,
    format: Format,
    state: str,
    lease: Delivery | None = None,
    with_receipt: bool = False,
) -> MessageView:
    """The persistence form with all fields. The receipt is only for callers who may settle."""
    options = entry.options or _NO_EXTRA
    show = payload_encoder(format)
    body = entry.body or b""
    body_encoding = form_of(body, entry.encoding, entry.properties, format.is_json)
    payload, encoding = show(body, body_encoding)
    properties = entry.properties
    if state == "in_flight":
        status = "processing"
    else:
        status = "dead" if is_dead(entry, queue) else "unprocessed"
    shown = MessageView(
        id=broker.inspect.message_id(entry),
        timestamp=iso(options.born_ms or entry.sent_ms),
        payload=payload,
        payload_encoding=encoding,
        payload_form="json" if body_encoding == ENCODING_JSON and encoding is UNSET else UNSET,
        status=status,
        state=state,
        message_type=options.type,
        priority=options.priority,
        receive_count=options.count if lease is None else lease.count,
        attributes={} if properties is None else attributes_of(properties.attributes, format),
        group=_or_unset(options.group),
        position=entry.seq,
        publisher=UNSET if properties is None else _or_unset(properties.publisher),
        unique_key=_or_unset(options.unique),
        due_at=iso(options.due_ms) if options.due_ms else UNSET,
        expires_at=iso(options.expires_ms) if options.expires_ms else UNSET,
        reason=_or_unset(options.reason),
        traceback=_or_unset(options.trace),
        deaths=_deaths(options) if options.deaths else UNSET,
    )
    if lease is not None:
        shown.consumer = lease.consumer
        shown.received_at = iso(lease.delivered_ms)
        shown.deadline = iso_or_none(lease.until_ms)
        if with_receipt:
            shown.receipt_id = f"{broker.inspect.id_of(entry.seq)}/{lease.number:x}"
    return shown


def _or_unset(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def _deaths(options: DeliveryOptions) -> list[DeathView]:
    return [
        DeathView(
            queue=split_name(death.queue)[1],
            reason=death.reason,
            time=iso(death.time_ms),
            receive_count=death.count,
            **death.details(iso),
        )
        for death in options.deaths
    ]
