"""A message by its id alone: which queue it is in, or what became of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ..broker.interface import TimelineStep
from ..errors import MessageNotFoundError, QueueNotFound
from ..names import split_name
from .call import RestCall
from .message_schemas import MessageView, TimelineStepView
from .messages import step_view
from .routes import route
from .schemas import QueryParameters, ReplyBody
from .views import stored

# What the last step of a timeline says of a message that is in no queue.
_ENDS = {"acked": "acked", "dead-lettered": "dead_lettered", "moved": "moved", "expired": "expired"}


class FindQuery(QueryParameters, kw_only=True):
    budget: Annotated[float, Meta(gt=0, le=30, description="seconds")] = 5.0
    timeline: bool = True


class FoundMessage(ReplyBody, kw_only=True):
    queue: str
    state: str  # ready, delayed, in_flight; or how it ended: acked, dead_lettered, expired, removed, ...
    message: MessageView | None  # None: it is in no queue any more
    steps: list[TimelineStepView]  # as far as history is kept, in queues that the caller may peek


class FoundMessages(ReplyBody, kw_only=True):
    """Usually one. An id that its publisher chose, or a copy by an exchange, may be in several queues."""

    id: str
    found: list[FoundMessage]
    complete: bool  # false: the time was up before all queues were looked at


@route(
    "GET",
    "messages/{id}",
    permission="peek",
    scope="each",
    sqs_actions=("ReceiveMessage",),
    summary="Find a message by its id in all queues, with its timeline",
    query=FindQuery,
    reply=FoundMessages,
)
def find_message(call: RestCall) -> None:
    broker, query, message_id = call.broker, call.query, call.args[0]

    def work() -> FoundMessages:
        deadline = time.monotonic() + query.budget
        names = [each for each in sorted(broker.queues()) if call.is_own(each)]
        holders: list[tuple[str, str]] = []
        complete = True
        for number, name in enumerate(names):
            if number % 64 == 0 and time.monotonic() > deadline:
                complete = False
                break
            try:
                state = broker.inspect.status(name, message_id)
            except QueueNotFound:
                continue
            if state is not None and call.may("peek", call.short_name(name)):
                holders.append((name, state))
        found = [
            each for name, state in holders if (each := _held(call, name, state, message_id)) is not None
        ]
        if not found and (query.timeline or complete):
            visible = [name for name in names if call.may("peek", call.short_name(name))]
            steps = broker.inspect.trace(message_id, visible, max(0.1, deadline - time.monotonic()))
            found = _gone(call, steps)
        return FoundMessages(id=message_id, found=found, complete=complete)

    call.seek(work)


def _held(call: RestCall, queue: str, state: str, message_id: str) -> FoundMessage | None:
    broker = call.broker
    try:
        entry = broker.inspect.find(queue, message_id)
        lease = broker.inspect.lease_of(queue, message_id)
    except (MessageNotFoundError, QueueNotFound):
        return None  # it went while we looked, or the id is that of another message
    steps = broker.inspect.timeline(queue, message_id) if call.query.timeline else []
    settles = call.may("receive", call.short_name(queue))
    view = stored(broker, queue, entry, call.format, state, lease, settles)
    return FoundMessage(queue=call.short_name(queue), state=state, message=view, steps=_visible(call, steps))


def _gone(call: RestCall, steps: Sequence[TimelineStep]) -> list[FoundMessage]:
    """The last queue it was in, and how it ended there."""
    seen = [
        step for step in steps if call.is_own(step.queue) and call.may("peek", call.short_name(step.queue))
    ]
    if not seen:
        return []
    last = seen[-1]
    return [
        FoundMessage(
            queue=call.short_name(last.queue),
            state=_ENDS.get(last.what, last.what.replace("-", "_")),
            message=None,
            steps=[step_view(step) for step in seen] if call.query.timeline else [],
        )
    ]


def _visible(call: RestCall, steps: Sequence[TimelineStep]) -> list[TimelineStepView]:
    may: dict[str, bool] = {}
    for step in steps:
        account, name = split_name(step.queue)
        if step.queue not in may:
            may[step.queue] = account == call.account and call.may("peek", name)
    return [step_view(step) for step in steps if may[step.queue]]
