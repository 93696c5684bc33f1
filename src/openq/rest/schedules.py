"""Schedules: messages that the server publishes by itself, by cron expression or at an interval."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ..broker.schedules import Schedule, next_runs
from ..documents.drafts import read_payload
from ..documents.payloads import form_of
from ..documents.values import iso, iso_or_none, moment_ms, read_attributes, seconds, span_ms
from ..errors import ScheduleNotFound
from .call import RestCall
from .message_schemas import Id, NextRuns, ScheduleChange, ScheduleList, ScheduleView
from .problems import Problem
from .routes import route
from .views import attributes_of, payload_encoder


def _schedule(call: RestCall) -> Schedule:
    """The schedule in the path. Not found if the caller may not see its queue."""
    name = call.qualified(call.args[0], "schedule")
    found = call.broker.schedules.get(name)
    queue = call.short_name(found.queue)
    if not call.may(call.route.permission, queue):
        if not call.may("peek", queue):
            raise ScheduleNotFound(name)
        raise Problem("forbidden", f"{call.principal.user} may not {call.route.permission} {queue[:100]!r}")
    return found


def _view(call: RestCall, schedule: Schedule, runs: int) -> ScheduleView:
    show = payload_encoder(call.format)
    body = schedule.body
    payload, encoding = show(body, form_of(body, schedule.encoding, None, call.format.is_json))
    return ScheduleView(
        name=call.short_name(schedule.name),
        queue=call.short_name(schedule.queue),
        payload=payload,
        payload_encoding=encoding,
        cron=schedule.cron,
        every=None if schedule.every_ms is None else seconds(schedule.every_ms),
        timezone=schedule.timezone,
        misfire=schedule.misfire,
        jitter=seconds(schedule.jitter_ms),
        start=iso_or_none(schedule.start_ms),
        end=iso_or_none(schedule.end_ms),
        priority=schedule.priority,
        group=_or_unset(schedule.group),
        message_type=_or_unset(schedule.type),
        unique_key=_or_unset(schedule.unique),
        publisher=_or_unset(schedule.publisher),
        attributes=attributes_of(schedule.attributes, call.format),
        delay=UNSET if schedule.delay_ms is None else seconds(schedule.delay_ms),
        ttl=UNSET if schedule.ttl_ms is None else seconds(schedule.ttl_ms),
        paused=schedule.paused,
        created=iso(schedule.created_ms),
        next_run=iso_or_none(schedule.next_ms),
        next_runs=[iso(due_ms) for due_ms in next_runs(schedule, runs)],
        last_run=iso_or_none(schedule.last_ms),
        runs=schedule.runs,
        missed=schedule.missed,
        error=schedule.error,
    )


def _or_unset(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


@route(
    "GET",
    "schedules",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="List schedules, with their next runs",
    reply=ScheduleList,
    query=NextRuns,
)
def list_schedules(call: RestCall) -> None:
    runs = call.query.next_runs
    shown = [
        _view(call, each, runs)
        for each in call.broker.schedules.list()
        if call.is_own(each.name) and call.may("peek", call.short_name(each.queue))
    ]
    call.answer(ScheduleList(schedules=sorted(shown, key=lambda each: each.name)))


@route(
    "GET",
    "schedules/{schedule}",
    permission="peek",
    scope="schedule",
    sqs_actions=("GetQueueAttributes",),
    summary="Show a schedule, with its next runs",
    reply=ScheduleView,
    query=NextRuns,
)
def show_schedule(call: RestCall) -> None:
    call.answer(_view(call, _schedule(call), call.query.next_runs))


@route(
    "PUT",
    "schedules/{schedule}",
    permission="manage",
    scope="body",
    sqs_actions=("SetQueueAttributes",),
    summary="Declare a schedule",
    request=ScheduleChange,
    reply=ScheduleView,
    query=NextRuns,
    status=(200, 201),
)
def put_schedule(call: RestCall) -> None:
    """An equal schedule is not changed; a different one is replaced. A paused schedule stays paused."""
    body = call.body
    call.require("manage", body.queue)
    call.require_target(body.queue)
    name = call.qualified(call.args[0], "schedule")
    is_new = False
    try:
        known = call.broker.schedules.get(name)
        if not call.may("manage", call.short_name(known.queue)):
            raise Problem("name_taken", f"schedule {call.args[0][:100]!r} belongs to a queue of others")
    except ScheduleNotFound:
        is_new = True
    payload, encoding = read_payload(body, call.sent)
    stored = call.broker.schedules.put(
        Schedule(
            name=name,
            queue=call.qualified(body.queue),
            body=payload,
            encoding=encoding,
            cron=body.cron,
            every_ms=None if body.every is None else span_ms(body.every, "every"),
            timezone=body.timezone,
            misfire=body.misfire,
            jitter_ms=span_ms(body.jitter, "jitter"),
            start_ms=None if body.start is None else moment_ms(body.start, "start"),
            end_ms=None if body.end is None else moment_ms(body.end, "end"),
            priority=body.priority,
            group=body.group,
            type=body.message_type,
            attributes=read_attributes(body.attributes, call.sent.is_json) if body.attributes else {},
            delay_ms=None if body.delay is None else span_ms(body.delay, "delay"),
            ttl_ms=None if body.ttl is None else span_ms(body.ttl, "ttl"),
            unique=body.unique_key,
            publisher=body.publisher,
        )
    )
    call.after_commit(_view(call, stored, call.query.next_runs), 201 if is_new else 200)


@route(
    "DELETE",
    "schedules/{schedule}",
    permission="manage",
    scope="schedule",
    sqs_actions=("SetQueueAttributes",),
    summary="Delete a schedule",
    reply=Id,
)
def delete_schedule(call: RestCall) -> None:
    call.broker.schedules.delete(_schedule(call).name)
    call.after_commit(Id(id=call.args[0]))


@route(
    "POST",
    "schedules/{schedule}/run",
    permission="send",
    scope="schedule",
    sqs_actions=("SendMessage",),
    summary="Publish the message of a schedule now, out of turn",
    reply=Id,
    status=(201,),
)
def run_schedule(call: RestCall) -> None:
    """The reply has the id of the message."""
    message_id = call.broker.schedules.run(_schedule(call).name)
    call.after_commit(Id(id=message_id), 201)


@route(
    "POST",
    "schedules/{schedule}/pause",
    permission="manage",
    scope="schedule",
    sqs_actions=("SetQueueAttributes",),
    summary="Pause a schedule: it does not run until it is resumed",
    reply=ScheduleView,
    query=NextRuns,
)
def pause_schedule(call: RestCall) -> None:
    paused = call.broker.schedules.pause(_schedule(call).name)
    call.after_commit(_view(call, paused, call.query.next_runs))


@route(
    "POST",
    "schedules/{schedule}/resume",
    permission="manage",
    scope="schedule",
    sqs_actions=("SetQueueAttributes",),
    summary="Resume a paused schedule, with its next run after now",
    reply=ScheduleView,
    query=NextRuns,
)
def resume_schedule(call: RestCall) -> None:
    resumed = call.broker.schedules.resume(_schedule(call).name)
    call.after_commit(_view(call, resumed, call.query.next_runs))
