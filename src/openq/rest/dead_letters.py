"""Dead letters: list, group by reason, discard; and replay of past messages."""

from __future__ import annotations

import time
from typing import Any

from msgspec import UNSET

from ..broker.bulk import check_rate
from ..broker.dead_letter_queues import all_dead_letter_queues
from ..broker.interface import Broker, Filter
from ..broker.reasons import MAX_REASON, normalised, reason_of
from ..documents.values import iso, moment_ms, seconds
from ..errors import InvalidSetting, MessageNotFoundError, QueueInUse
from ..model import Entry
from ..server.tasks import LongOperation
from . import undo
from .call import RestCall
from .message_schemas import (
    DeadGroup,
    DeadGroups,
    DeadLetters,
    DeadLetterView,
    DeadPage,
    DeadQueue,
    DeadQueues,
    Discard,
    MessageFilter,
    Replay,
    TaskView,
)
from .messages import make_filter
from .paging import page
from .problems import Problem
from .routes import route
from .task_answers import answer_task, bulk_filter, dry_run_view
from .views import is_dead

_SAMPLES = 5
_MAX_GROUPS = 1_000
_GROUPING_S = 10.0


@route(
    "GET",
    "dead-letters",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="List dead-letter queues",
    reply=DeadQueues,
)
def list_dead_queues(call: RestCall) -> None:
    broker = call.broker
    own = [(name, broker.settings(name)) for name in broker.queues() if call.is_own(name)]
    sources = all_dead_letter_queues(broker.exchanges.router, own)
    known = set(broker.queues())
    shown: list[DeadQueue] = []
    for target in sorted(sources):
        name = call.short_name(target)
        if target in known and call.may("peek", name):
            stats = broker.stats(target)
            names = map(call.short_name, sources[target])
            visible = sorted(each for each in names if call.may("peek", each))
            shown.append(
                DeadQueue(
                    queue=name,
                    messages=stats.ready + stats.delayed + stats.in_flight,
                    sources=visible,
                    oldest_age=None if stats.oldest_age_ms is None else seconds(stats.oldest_age_ms),
                )
            )
    call.answer(DeadQueues(queues=shown))


@route(
    "GET",
    "queues/{queue}/dead-letters",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="List dead letters",
    reply=DeadLetters,
    query=DeadPage,
)
def list_dead_letters(call: RestCall) -> None:
    query, broker, queue = call.query, call.broker, call.queue

    def work() -> DeadLetters:
        entries, following = page(
            broker, queue, "all", query.after, query.limit, lambda entry: is_dead(entry, queue)
        )
        return DeadLetters(
            messages=[_dead_letter_view(call, entry, query.traceback) for entry, _ in entries],
            next=UNSET if following is None else following,
        )

    call.answer_with(work)


def _dead_letter_view(call: RestCall, entry: Entry, with_traceback: bool) -> DeadLetterView:
    assert entry.options is not None
    source, _, died_ms, count, *_ = entry.options.deaths[0]
    return DeadLetterView(
        id=call.broker.inspect.message_id(entry),
        source=call.short_name(source),
        reason=reason_of(entry),
        time=iso(died_ms),
        receive_count=count,
        message_type=entry.options.type,
        traceback=(entry.options.trace or UNSET) if with_traceback else UNSET,
    )


@route(
    "GET",
    "queues/{queue}/dead-letters/groups",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Group dead letters by reason",
    reply=DeadGroups,
)
def group_dead_letters(call: RestCall) -> None:
    broker, queue = call.broker, call.queue
    call.seek(lambda: group(call, broker, queue, _GROUPING_S))


def group(call: RestCall, broker: Broker, queue: str, budget_s: float) -> DeadGroups:
    deadline = time.monotonic() + budget_s
    groups: dict[str, DeadGroup] = {}
    times: dict[str, tuple[int, int]] = {}
    scanned = 0
    complete = True
    for entry, _, _ in broker.inspect.walk(queue, "all", None):
        scanned += 1
        if scanned % 1000 == 0 and time.monotonic() > deadline:
            complete = False
            break
        if not is_dead(entry, queue) or entry.options is None:
            continue
        reason = reason_of(entry)
        key = normalised(reason)
        source, _, died_ms, *_ = entry.options.deaths[0]
        found = groups.get(key)
        if found is None:
            if len(groups) == _MAX_GROUPS:
                complete = False
                continue
            found = DeadGroup(
                reason=key, sample=reason[:MAX_REASON], count=0, sources=[], ids=[], first="", last=""
            )
            groups[key] = found
            times[key] = (died_ms, died_ms)
        found.count += 1
        if len(found.ids) < _SAMPLES:
            found.ids.append(broker.inspect.message_id(entry))
        if call.short_name(source) not in found.sources:
            found.sources.append(call.short_name(source))
        first, last = times[key]
        times[key] = (min(first, died_ms), max(last, died_ms))
    for key, found in groups.items():
        found.first, found.last = map(iso, times[key])
    ordered = sorted(groups.values(), key=lambda each: -each.count)
    return DeadGroups(groups=ordered, scanned=scanned, complete=complete)


# -- long work ----------------------------------------------------------------------------------


@route(
    "POST",
    "queues/{queue}/discard",
    permission="manage",
    sqs_actions=("DeleteMessage", "PurgeQueue"),
    summary="Discard messages",
    request=Discard,
    reply=TaskView,
    status=(202, 200),
)
def discard(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    broker.settings(queue)
    filter = bulk_filter(call)
    if body.dry_run:
        call.seek(
            lambda: dry_run_view(call, "discard", sum(map(len, broker.inspect.matching(queue, filter))))
        )
        return
    task = call.context.tasks.start(
        "discard", call.account, call.args[0], lambda task: _discard(call, filter, task)
    )
    answer_task(call, task)


def _discard(call: RestCall, filter: Filter, task: LongOperation) -> int:
    broker, queue = call.broker, call.queue
    removal = undo.begin(call) if call.body.undo else None
    done = 0
    for part in broker.inspect.matching(queue, filter):
        loaded = part if removal is None else undo.load(call, removal, part)
        for entry in loaded:
            try:
                broker.admin.cancel(queue, broker.inspect.message_id(entry))
            except (MessageNotFoundError, QueueInUse):
                continue  # removed or received meanwhile
            done += 1
            if removal is not None:
                undo.add(call, removal, [entry])
        broker.sync()
        if not task.progress(done):
            break
    if removal is not None:
        task.result = undo.keep(call, removal)
    return done


@route(
    "POST",
    "queues/{queue}/replay",
    permission="manage",
    sqs_actions=("ReceiveMessage", "StartMessageMoveTask"),
    summary="Replay past messages",
    request=Replay,
    reply=TaskView,
    status=(202, 200),
)
def replay(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    broker.settings(queue)
    if body.since is not None and body.since_id is not None:
        raise InvalidSetting("give either since or since_id, not both")
    if body.since is None and body.since_id is None and body.filter is None:
        raise Problem("invalid", "replay needs a point (since or since_id) or a filter")
    if body.filter is not None and looks_at_deliveries(body.filter):
        raise InvalidSetting("past messages have no ages and no deliveries: use since")
    check_rate(body.rate)
    to = None
    call.require_target(call.args[0] if body.to is None else body.to)
    if body.to is not None:
        to = call.qualified(body.to)
        broker.settings(to)
    since_ms = None if body.since is None else moment_ms(body.since, "since")
    until_ms = None if body.until is None else moment_ms(body.until, "until")
    filter = None if body.filter is None else make_filter(body.filter, call)

    def work(progress: Any, dry_run: bool) -> int:
        return broker.admin.replay(
            queue,
            since_ms,
            body.since_id,
            to,
            filter=filter,
            rate=body.rate,
            progress=progress,
            dry_run=dry_run,
            include_purged=body.include_purged,
            until_ms=until_ms,
        )

    if body.dry_run:
        call.seek(lambda: dry_run_view(call, "replay", work(None, True)))
        return
    details = {"to": body.to, "since": body.since, "since_id": body.since_id, "rate": body.rate}
    if body.until is not None:
        details["until"] = body.until
    task = call.context.tasks.start(
        "replay", call.account, call.args[0], lambda task: work(task.progress, False), details=details
    )
    answer_task(call, task)


def looks_at_deliveries(filter: MessageFilter) -> bool:
    limits = (filter.min_age, filter.max_age, filter.min_receives, filter.max_receives)
    return any(limit is not None for limit in limits)
