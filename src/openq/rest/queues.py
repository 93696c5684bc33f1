"""Queues: list, create, change, delete, purge, pause, statistics, leases."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, to_builtins

from ..broker.interface import Filter
from ..documents.values import iso, iso_or_none, span_ms
from ..errors import QueueExists, QueueInUse, QueueNotFound
from ..model import QueueSettings, RetryPolicy, settings_difference
from ..settings import SETTINGS, Setting, merge_settings
from . import undo
from .call import RestCall
from .routes import route
from .schemas import (
    Lease,
    Leases,
    Limited,
    NewQueue,
    QueueChange,
    QueueDeletion,
    QueueList,
    QueueListing,
    QueuePut,
    QueueView,
    RemovedMessages,
    Removing,
    Retry,
    Stats,
)
from .views import settings_view, stats_view


def named_settings(call: RestCall, change: Any) -> dict[str, Any]:
    """The settings that a `QueueChange` names, by the fields of `QueueSettings`."""
    named: dict[str, Any] = {}
    for setting in SETTINGS:
        value = getattr(change, setting.name)
        if value is not UNSET:
            named[setting.field] = _stored_value(call, setting, value)
    if change.dlq is None and change.max_receives is UNSET:
        named["max_receives"] = None
    return named


def _stored_value(call: RestCall, setting: Setting, value: Any) -> Any:
    if setting.kind == "retry":
        return _retry(value)
    if value is None:
        return setting.none
    if setting.kind == "key_limits":
        return {key: to_builtins(own) for key, own in value.items()}
    if setting.kind == "duration":
        return span_ms(value, setting.name)
    if setting.kind in ("queue", "exchange"):
        call.require_target(value)
        return call.qualified(value, setting.kind)
    return value


def _retry(value: Retry | str | None) -> RetryPolicy:
    if value is None:
        return RetryPolicy()
    if isinstance(value, str):
        return RetryPolicy.named(value)
    return RetryPolicy(
        value.kind,
        span_ms(value.base, "retry.base"),
        value.factor,
        span_ms(value.max, "retry.max"),
        value.jitter,
        value.on_expiry,
    )


def _stored(call: RestCall, queue: str) -> QueueSettings | None:
    try:
        return call.broker.settings(queue)
    except QueueNotFound:
        return None


def _view(call: RestCall, queue: str) -> QueueView:
    return QueueView(
        name=call.short_name(queue),
        settings=settings_view(call.broker.settings(queue)),
        stats=stats_view(call.broker.stats(queue)),
    )


@route(
    "GET",
    "queues",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="List queues",
    reply=QueueList,
    query=QueueListing,
)
def list_queues(call: RestCall) -> None:
    query = call.query
    names = sorted(
        call.short_name(queue_key)
        for queue_key in call.broker.queues()
        if call.is_own(queue_key) and call.short_name(queue_key).startswith(query.prefix)
    )
    visible = (name for name in names if name > query.after and call.may("peek", name))
    views: list[QueueView] = []
    following: str | None = None
    for name in visible:
        if len(views) == query.limit:
            following = views[-1].name
            break
        views.append(_view(call, call.qualified(name)))
    call.answer(QueueList(queues=views, next=UNSET if following is None else following))


@route(
    "PUT",
    "queues/{queue}",
    permission="manage",
    sqs_actions=("SetQueueAttributes",),
    summary="Create or change a queue",
    request=QueueChange,
    reply=QueueView,
    query=QueuePut,
    status=(200, 201),
)
def put_queue(call: RestCall) -> None:
    queue = call.queue
    stored = _stored(call, queue)
    if stored is None or not call.query.if_absent:
        settings = merge_settings(stored, named_settings(call, call.body))
        if settings != stored:
            call.broker.declare(queue, settings, change=True)
    _answer_made(call, queue, stored is None)


@route(
    "POST",
    "queues",
    permission="manage",
    scope="body",
    sqs_actions=("CreateQueue",),
    summary="Create a queue",
    request=NewQueue,
    reply=QueueView,
    status=(200, 201),
)
def create_queue(call: RestCall) -> None:
    """Repeating the request with the same settings returns the existing queue; other settings are refused."""
    body: NewQueue = call.body
    call.require("manage", body.name)
    queue = call.qualified(body.name)
    stored = _stored(call, queue)
    named = named_settings(call, body)
    if stored is not None:
        for name, value in named.items():
            if getattr(stored, name) != value:
                raise QueueExists(body.name, settings_difference(name, getattr(stored, name), value))
    else:
        call.broker.declare(queue, merge_settings(None, named))
    _answer_made(call, queue, stored is None)


def _answer_made(call: RestCall, queue: str, created: bool) -> None:
    view = _view(call, queue)
    view.created = created
    call.after_commit(view, 201 if created else 200)


@route(
    "GET",
    "queues/{queue}",
    permission="peek",
    sqs_actions=("GetQueueAttributes",),
    summary="Settings and statistics of a queue",
    reply=QueueView,
)
def show_queue(call: RestCall) -> None:
    call.answer(_view(call, call.queue))


@route(
    "PATCH",
    "queues/{queue}",
    permission="manage",
    sqs_actions=("SetQueueAttributes",),
    summary="Change settings of a queue",
    request=QueueChange,
    reply=QueueView,
)
def change_queue(call: RestCall) -> None:
    queue = call.queue
    stored = call.broker.settings(queue)
    settings = merge_settings(stored, named_settings(call, call.body))
    if settings != stored:
        call.broker.declare(queue, settings, change=True)
    call.after_commit(_view(call, queue))


@route(
    "DELETE",
    "queues/{queue}",
    permission="manage",
    sqs_actions=("DeleteQueue",),
    summary="Delete a queue and its messages",
    reply=RemovedMessages,
    query=QueueDeletion,
)
def delete_queue(call: RestCall) -> None:
    query = call.query
    if query.dry_run:
        would = _count(call, call.queue)
        if query.if_empty and would:
            raise QueueInUse(call.queue, f"it holds {would} messages")
        call.answer(RemovedMessages(messages=would, dry_run=True))
        return
    count = call.broker.delete(call.queue, if_empty=query.if_empty, if_unused=query.if_unused)
    call.after_commit(RemovedMessages(messages=count))


@route(
    "POST",
    "queues/{queue}/purge",
    permission="manage",
    sqs_actions=("PurgeQueue",),
    summary="Purge a queue",
    reply=RemovedMessages,
    query=Removing,
)
def purge_queue(call: RestCall) -> None:
    """With `undo`, ready and delayed messages are kept; those in flight are with their consumers."""
    broker, queue = call.broker, call.queue
    if call.query.dry_run:
        call.answer(RemovedMessages(messages=_count(call, queue), dry_run=True))
        return
    if not call.query.undo:
        call.after_commit(RemovedMessages(messages=broker.purge(queue)))
        return

    def work() -> RemovedMessages:
        removal = undo.begin(call)
        for state in ("ready", "delayed"):
            for part in broker.inspect.matching(queue, Filter(state=state)):
                undo.add(call, removal, undo.load(call, removal, part))
        removed = broker.purge(queue)
        return RemovedMessages(messages=removed, **undo.keep(call, removal))  # type: ignore[arg-type]

    call.change(work)


def _count(call: RestCall, queue: str) -> int:
    stats = call.broker.stats(queue)
    return stats.ready + stats.delayed + stats.in_flight


@route(
    "POST",
    "queues/{queue}/pause",
    permission="manage",
    sqs_actions=("SetQueueAttributes",),
    summary="Pause deliveries",
    reply=QueueView,
)
def pause_queue(call: RestCall) -> None:
    _set_paused(call, True)


@route(
    "POST",
    "queues/{queue}/resume",
    permission="manage",
    sqs_actions=("SetQueueAttributes",),
    summary="Resume deliveries",
    reply=QueueView,
)
def resume_queue(call: RestCall) -> None:
    _set_paused(call, False)


def _set_paused(call: RestCall, paused: bool) -> None:
    queue = call.queue
    stored = call.broker.settings(queue)
    if stored.paused != paused:
        call.broker.declare(queue, stored.with_(paused=paused), change=True)
    call.after_commit(_view(call, queue))


@route(
    "GET",
    "queues/{queue}/stats",
    permission="peek",
    sqs_actions=("GetQueueAttributes",),
    summary="Statistics of a queue",
    reply=Stats,
)
def show_stats(call: RestCall) -> None:
    call.answer(stats_view(call.broker.stats(call.queue)))


@route(
    "GET",
    "queues/{queue}/in-flight",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="List messages in flight",
    reply=Leases,
    query=Limited,
)
def list_leases(call: RestCall) -> None:
    broker = call.broker
    total = broker.stats(call.queue).in_flight
    shown = broker.inspect.leases(call.queue, call.query.limit)
    call.answer(
        Leases(
            messages=[
                Lease(
                    id=broker.inspect.message_id(each.entry),
                    consumer=each.consumer,
                    since=iso(each.delivered_ms),
                    deadline=iso_or_none(each.until_ms),
                    receive_count=each.count,
                )
                for each in shown
            ],
            total=total,
        )
    )
