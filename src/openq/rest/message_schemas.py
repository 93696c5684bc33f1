"""Requests and replies about messages, dead letters, exchanges and schedules (see `schemas.py`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, UnsetType, field

from ..documents.messages import DeathView as DeathView
from ..documents.messages import MessageView as MessageView
from ..documents.messages import NewMessage as NewMessage
from ..documents.messages import NewMessages as NewMessages
from ..documents.messages import Outcome as Outcome
from ..documents.messages import Published as Published
from ..documents.messages import PublishedBatch as PublishedBatch
from ..documents.messages import ReceiptFailure as ReceiptFailure
from ..documents.messages import Receipts as Receipts
from ..documents.messages import Settled as Settled
from .schemas import (
    MAX_BATCH,
    MAX_WAIT_S,
    Limit,
    Moment,
    Name,
    QueryParameters,
    ReplyBody,
    RequestBody,
    Seconds,
    State,
    Word,
)

# -- messages in --------------------------------------------------------------------------------


class Restoring(QueryParameters, kw_only=True):
    """`restore` keeps the past of a message from a backup; needs the permission manage."""

    restore: bool = False


class BatchOf(RequestBody, kw_only=True):
    """A text (in msgpack also bytes) is a message with only a body.

    A msgpack list of only bytes is the fastest.
    """

    messages: Annotated[list[str | NewMessage], Meta(max_length=MAX_BATCH)]


AnyBatch = Annotated[list[str | NewMessage], Meta(max_length=MAX_BATCH)] | BatchOf


# -- messages out -------------------------------------------------------------------------------


class Receive(RequestBody, kw_only=True):
    max: Limit = 1
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    visibility_timeout: Seconds | None = None
    types: Annotated[list[str], Meta(max_length=100)] | None = None
    attributes: dict[str, Any] | None = (
        None  # for each a value or a list of values, one of which it must have
    )
    consumer: Word | None = None


class Messages(ReplyBody, kw_only=True):
    messages: list[MessageView]


class MessagePage(ReplyBody, kw_only=True):
    messages: list[MessageView]
    next: str | UnsetType = UNSET  # as `after` of the next request
    truncated: bool | UnsetType = UNSET  # front and rear: true if more were requested than a reply carries


class Nack(Receipts, kw_only=True):
    delay: Seconds | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    traceback: Annotated[str, Meta(max_length=65536)] | None = None  # its last 4 KiB are kept
    reject: bool = False  # dead-letter it at once
    release: bool = False  # return it at once without counting the delivery


class Extend(Receipts, kw_only=True):
    seconds: Seconds


class Browse(QueryParameters, kw_only=True):
    limit: Limit = 100
    state: State = "ready"
    after: str = ""
    front: bool = False  # the next ones in the order of delivery, which groups and priorities decide
    rear: bool = False  # the last ones, last first


class MessageFilter(RequestBody, kw_only=True):
    """Selects messages: all given conditions must match."""

    text: str | None = None
    message_type: str | None = None
    attributes: dict[str, Any] | None = None
    json: dict[str, Any] | None = None  # dotted path into the body -> value
    reason: str | None = None
    reason_group: str | None = None  # the reason of a group of dead letters, whole
    ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None
    state: State = "all"
    min_age: Seconds | None = None  # since the message came into the queue
    max_age: Seconds | None = None
    min_receives: Annotated[int, Meta(ge=0)] | None = None  # deliveries that ended without an ack
    max_receives: Annotated[int, Meta(ge=0)] | None = None


class Search(MessageFilter, kw_only=True):
    limit: Limit = 100
    after: str = ""  # the `next` of a search with the same conditions
    budget: Annotated[float, Meta(gt=0, le=30)] = 1.0


class SearchReply(ReplyBody, kw_only=True):
    messages: list[MessageView]
    complete: bool  # False: the limit, the time or the size of the reply was reached first
    scanned: int
    next: str | UnsetType = UNSET  # as `after` of a search that continues


class Edit(RequestBody, kw_only=True):
    payload: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET
    payload_encoding: Literal["base64", "msgpack+base64", "json"] | UnsetType = UNSET
    message_type: Word | UnsetType | None = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    at: Moment | float | UnsetType = UNSET


class MoveTarget(RequestBody, kw_only=True):
    to: Name


class Id(ReplyBody, kw_only=True):
    id: str


class TimelineStepView(ReplyBody, kw_only=True):
    time: str
    what: str
    queue: str
    detail: str
    traceback: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


class Timeline(ReplyBody, kw_only=True):
    id: str
    steps: list[TimelineStepView]


class Reason(ReplyBody, kw_only=True):
    code: str
    text: str
    trace_id: str | UnsetType = UNSET


# -- dead letters, replay, tasks ----------------------------------------------------------------


class DeadQueue(ReplyBody, kw_only=True):
    queue: str
    messages: int
    sources: list[str]
    oldest_age: float | None


class DeadQueues(ReplyBody, kw_only=True):
    queues: list[DeadQueue]


class DeadLetterView(ReplyBody, kw_only=True):
    id: str
    source: str
    reason: str
    time: str
    receive_count: int
    message_type: str | None
    traceback: str | UnsetType = UNSET


class DeadLetters(ReplyBody, kw_only=True):
    messages: list[DeadLetterView]
    next: str | UnsetType = UNSET


class DeadPage(QueryParameters, kw_only=True):
    limit: Limit = 100
    after: str = ""
    traceback: bool = False  # with the tracebacks of their last failures


class DeadGroup(ReplyBody, kw_only=True):
    """Dead letters whose reasons differ only in numbers, ids and addresses."""

    reason: str
    sample: str
    count: int
    sources: list[str]
    ids: list[str]
    first: str
    last: str


class DeadGroups(ReplyBody, kw_only=True):
    groups: list[DeadGroup]
    scanned: int
    complete: bool


class Redrive(RequestBody, kw_only=True):
    """`set` and `remove` change fields of JSON bodies; messages that cannot be changed so stay.

    `stop_after` ends the redrive when so many of its messages have failed again; until the first ones are
    acked only so many are sent. While it waits, `waits_for` in the result of the task says for how many.
    """

    to: Name | None = None
    filter: MessageFilter | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None  # messages per second
    set: dict[str, Any] | None = None  # dotted path into the body -> new value
    remove: list[str] | None = None  # dotted paths
    stop_after: Annotated[int, Meta(ge=1, le=1000)] | None = None
    dry_run: bool = False


class Resume(RequestBody, kw_only=True):
    """With `watch` false a redrive with `stop_after` no longer waits for consumers, nor stops."""

    watch: bool = True


class Discard(RequestBody, kw_only=True):
    """With `undo` the messages are kept for ten minutes: `result` of the task has the id for an undo."""

    filter: MessageFilter | None = None
    undo: bool = False
    dry_run: bool = False


class Replay(RequestBody, kw_only=True):
    """From a time, from a message, or all that history holds and `filter` matches.

    Messages that a purge removed are left out, unless `include_purged` asks for them.
    """

    since: Moment | float | None = None
    since_id: str | None = None
    until: Moment | float | None = None  # messages of this time and later are left out
    filter: MessageFilter | None = None
    to: Name | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    dry_run: bool = False
    include_purged: bool = False


class TaskView(ReplyBody, kw_only=True):
    """A task. With `dry_run` nothing was started: `total` is the number of affected messages."""

    id: str | UnsetType = UNSET
    kind: str
    queue: str
    state: str
    paused: bool = False  # its state is "running" all the same
    done: int
    total: int | None
    started: str | None = None
    ended: str | None = None
    error: str | None = None
    code: str | UnsetType = UNSET  # of the error
    result: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class TaskListView(ReplyBody, kw_only=True):
    tasks: list[TaskView]


# -- exchanges ----------------------------------------------------------------------------------


class ExchangeChange(RequestBody, kw_only=True):
    kind: Literal["direct", "fanout", "topic", "headers"] = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: Name | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


class ExchangeView(ReplyBody, kw_only=True):
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None
    arguments: dict[str, Any]


class ExchangeList(ReplyBody, kw_only=True):
    exchanges: list[ExchangeView]


class IfUnused(QueryParameters, kw_only=True):
    if_unused: bool = False


class RoutedMessage(NewMessage, kw_only=True):
    routing_key: Annotated[str, Meta(max_length=255)] = ""


class Routed(ReplyBody, kw_only=True):
    id: str
    queues: list[str]  # those it reached


class BindingChange(RequestBody, kw_only=True):
    source: Name
    destination: Name
    to_exchange: bool = False
    key: Annotated[str, Meta(max_length=255)] = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class BindingView(ReplyBody, kw_only=True):
    source: str
    destination: str
    to_exchange: bool
    key: str
    arguments: dict[str, Any]


class BindingList(ReplyBody, kw_only=True):
    bindings: list[BindingView]


class BindingListing(QueryParameters, kw_only=True):
    source: str | None = None
    destination: str | None = None


class Changed(ReplyBody, kw_only=True):
    changed: bool  # False: nothing had to be changed


# -- schedules ----------------------------------------------------------------------------------


class ScheduleChange(RequestBody, kw_only=True):
    """A message, its queue, and when it is published: either `cron` or `every` (seconds)."""

    queue: Name
    payload: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET  # another name of the payload
    payload_encoding: Literal["base64", "msgpack+base64", "json"] | UnsetType = UNSET
    cron: Annotated[str, Meta(max_length=1000, description="such as */5 * * * *")] | None = None
    every: Seconds | None = None
    timezone: Annotated[str, Meta(max_length=255, description="such as Europe/Berlin")] = "UTC"
    misfire: Literal["skip", "once", "all"] = "once"
    jitter: Seconds = 0
    start: Moment | None = None
    end: Moment | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] = 0
    group: Word | None = None
    message_type: Word | None = None
    attributes: dict[str, Any] | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    unique_key: Word | None = None
    publisher: Word | None = None


class ScheduleView(ReplyBody, kw_only=True):
    name: str
    queue: str
    payload: Any
    payload_encoding: str | UnsetType = UNSET
    cron: str | None
    every: float | None
    timezone: str
    misfire: str
    jitter: float
    start: str | None
    end: str | None
    priority: int
    group: str | UnsetType = UNSET
    message_type: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    attributes: dict[str, Any]
    delay: float | UnsetType = UNSET
    ttl: float | UnsetType = UNSET
    paused: bool
    created: str
    next_run: str | None  # null: it is paused, or no run is left
    next_runs: list[str]
    last_run: str | None
    runs: int
    missed: int
    error: str | None  # of the last run, if it failed


class ScheduleList(ReplyBody, kw_only=True):
    schedules: list[ScheduleView]


class NextRuns(QueryParameters, kw_only=True):
    """How many of the next runs the reply shows."""

    next_runs: Annotated[int, Meta(ge=0, le=100)] = 5
