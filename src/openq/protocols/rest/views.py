"""Entries, deliveries, settings and tasks as the replies that show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType

from ...broker.base import QueueStats
from ...broker.full import FullBroker
from ...model import FORM_JSON, Delivery, Entry, Extra, QueueSettings
from ...names import split_name
from ..tasks import Task
from .formats import NATIVE, Format, narrowed
from .payloads import Shown, form_of, show_json, show_msgpack, show_native
from .schemas import Death, Message, Retry, Settings, Stats, TaskView
from .values import iso, iso_or_none, seconds, seconds_or_forever, to_json_value

_NO_EXTRA = Extra()


def shower(format: Format) -> Callable[[bytes, int], Shown]:
    if format.is_json:
        return show_json
    return show_native if format is NATIVE else show_msgpack


def attributes_of(values: Any, format: Format) -> dict[str, Any]:
    if not values:
        return {}
    if format.is_json:
        return {name: to_json_value(value) for name, value in values.items()}
    shown: dict[str, Any] = narrowed(dict(values))
    return shown


def received(broker: FullBroker, deliveries: list[Delivery], format: Format) -> list[Message]:
    """The consumption form."""
    prefix = broker.id_prefix
    show = shower(format)
    out: list[Message] = []
    for delivery in deliveries:
        entry = delivery.entry
        extra = entry.extra or _NO_EXTRA
        assert entry.body is not None, "a message is loaded before anybody sees it"
        payload, encoding = show(entry.body, form_of(entry.body, entry.form, entry.info, format.is_json))
        own_id = f"{prefix}{entry.seq:012x}"
        out.append(
            Message(
                id=extra.id or own_id,
                timestamp=iso(extra.born_ms or entry.sent_ms),
                payload=payload,
                payload_encoding=encoding,
                status="processing",
                message_type=extra.type,
                priority=extra.priority,
                receive_count=delivery.count,
                attributes={} if entry.info is None else attributes_of(entry.info.attributes, format),
                group=UNSET if extra.group is None else extra.group,
                receipt_id=f"{own_id}/{delivery.number:x}",
                received_at=iso(delivery.lent_ms),
                deadline=iso_or_none(delivery.until_ms),
                publisher=UNSET if entry.info is None else _or_unset(entry.info.publisher),
                reason=UNSET if extra.reason is None else extra.reason,
                traceback=UNSET if extra.trace is None else extra.trace,
                deaths=_deaths(extra) if extra.deaths else UNSET,
            )
        )
    return out


def is_dead(entry: Entry, queue: str) -> bool:
    """A dead letter, as long as it has not come back to the queue where it died."""
    deaths = () if entry.extra is None else entry.extra.deaths
    return bool(deaths) and deaths[0][0] != queue


def stored(
    broker: FullBroker,
    queue: str,
    entry: Entry,
    format: Format,
    state: str,
    lease: Delivery | None = None,
    with_receipt: bool = False,
) -> Message:
    """The persistence form, with everything that is known. A receipt is for those who may settle."""
    extra = entry.extra or _NO_EXTRA
    show = shower(format)
    body = entry.body or b""
    form = form_of(body, entry.form, entry.info, format.is_json)
    payload, encoding = show(body, form)
    info = entry.info
    if state == "in_flight":
        status = "processing"
    else:
        status = "dead" if is_dead(entry, queue) else "unprocessed"
    shown = Message(
        id=broker.message_id(entry),
        timestamp=iso(extra.born_ms or entry.sent_ms),
        payload=payload,
        payload_encoding=encoding,
        payload_form="json" if form == FORM_JSON and encoding is UNSET else UNSET,
        status=status,
        state=state,
        message_type=extra.type,
        priority=extra.priority,
        receive_count=extra.count if lease is None else lease.count,
        attributes={} if info is None else attributes_of(info.attributes, format),
        group=_or_unset(extra.group),
        position=entry.seq,
        publisher=UNSET if info is None else _or_unset(info.publisher),
        unique_key=_or_unset(extra.unique),
        due_at=iso(extra.due_ms) if extra.due_ms else UNSET,
        expires_at=iso(extra.expires_ms) if extra.expires_ms else UNSET,
        reason=_or_unset(extra.reason),
        traceback=_or_unset(extra.trace),
        deaths=_deaths(extra) if extra.deaths else UNSET,
    )
    if lease is not None:
        shown.consumer = lease.consumer
        shown.received_at = iso(lease.lent_ms)
        shown.deadline = iso_or_none(lease.until_ms)
        if with_receipt:
            shown.receipt_id = f"{broker.id_of(entry.seq)}/{lease.number:x}"
    return shown


def _or_unset(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def _deaths(extra: Extra) -> list[Death]:
    return [
        Death(
            queue=split_name(death.queue)[1],
            reason=death.reason,
            time=iso(death.time_ms),
            receive_count=death.count,
            **death.details(iso),
        )
        for death in extra.deaths
    ]


def settings_view(settings: QueueSettings) -> Settings:
    retry = settings.retry

    def short(name: str | None) -> str | None:
        return None if name is None else split_name(name)[1]

    return Settings(
        visibility_timeout=seconds(settings.visibility_ms),
        dlq=short(settings.dead_letter),
        max_receives=settings.max_receives,
        exhausted=settings.exhausted,
        dead_letter_exchange=short(settings.dead_letter_exchange),
        dead_letter_key=settings.dead_letter_key,
        dead_letter_expired=settings.dead_letter_expired,
        delay=seconds(settings.delay_ms),
        retention=seconds_or_forever(settings.retention_ms),
        message_ttl=None if settings.ttl_ms is None else seconds(settings.ttl_ms),
        max_length=settings.max_length,
        max_bytes=settings.max_bytes,
        max_body=settings.max_body,
        overflow=settings.overflow,
        max_priority=settings.max_priority,
        fifo=settings.fifo,
        dedup_window=seconds(settings.dedup_window_ms),
        dedup_by_content=settings.dedup_by_content,
        dedup_per_group=settings.dedup_per_group,
        retry=Retry(
            kind=retry.kind,  # type: ignore[arg-type]
            base=seconds(retry.base_ms),
            max=seconds(retry.max_ms),
            factor=retry.factor,
            jitter=retry.jitter,
            on_expiry=retry.on_expiry,
        ),
        history=seconds_or_forever(settings.history_ms),
        paused=settings.paused,
        relaxed=settings.relaxed,
    )


def stats_view(stats: QueueStats) -> Stats:
    return Stats(
        ready=stats.ready,
        delayed=stats.delayed,
        in_flight=stats.in_flight,
        waiting_bytes=stats.waiting_bytes,
        oldest_age=None if stats.oldest_age_ms is None else seconds(stats.oldest_age_ms),
        waiters=stats.waiters,
        counters=dict(stats.counters),
    )


def task_view(task: Task) -> TaskView:
    return TaskView(
        id=task.id,
        kind=task.kind,
        queue=task.queue,
        state=task.state,
        done=task.done,
        total=task.total,
        started=iso(task.started_ms),
        ended=iso_or_none(task.ended_ms),
        error=task.error,
        code=_or_unset(task.code),
        result=task.result,
        details=task.details,
    )
