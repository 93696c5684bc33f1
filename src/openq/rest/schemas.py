"""The types of requests and replies: for decoding, validation, encoding and /openapi.json.

Names and units are those of the library: durations in seconds, times as ISO-8601 in UTC. A request with an
unknown field is rejected, so that misspelt fields are noticed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct, field

from ..broker.subscriptions import MAX_NUMBER
from ..limits import MAX_COUNT
from ..settings import SETTINGS, Kind, Setting

MAX_BATCH = 1_000
MAX_WAIT_S = 60

Seconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
Count = Annotated[int, Meta(ge=1, le=(1 << 60))]
Size = Annotated[int, Meta(ge=0, le=(1 << 60))]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Word = Annotated[str, Meta(min_length=1, max_length=1024)]
Moment = Annotated[str, Meta(description="ISO-8601, such as 2023-04-03T10:30:00Z")]
State = Literal["ready", "delayed", "in_flight", "all"]


class RequestBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request."""


class QueryParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a request."""


class ReplyBody(Struct, kw_only=True):
    """The body of a reply. Unset fields are left out."""


class NoQuery(QueryParameters, kw_only=True):
    pass


# -- queues -------------------------------------------------------------------------------------


class Retry(RequestBody, kw_only=True):
    """How long a message waits after a failed delivery. `on_expiry`: after a lease that ended, too."""

    kind: Literal["none", "fixed", "exponential"] = "exponential"
    base: Seconds = 1.0
    max: Seconds = 3600.0
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    on_expiry: bool = True


RateText = Annotated[str, Meta(description='a token bucket: "100/s", "100/m", "6000/h", "100/m burst 20"')]


class KeyLimit(RequestBody, kw_only=True):
    """Limits of one key. A limit that is not named is that of all keys; `null` is no limit."""

    concurrency: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | UnsetType | None = UNSET
    rate: RateText | UnsetType | None = UNSET


_LITERAL: Any = Literal  # for choices that a type checker does not see


def _given(setting: Setting) -> Any:
    """The type of a setting in a request."""
    kinds: dict[Kind, Any] = {
        "duration": Seconds if setting.name != "retention" else Annotated[float, Meta(gt=0)],
        "count": Annotated[int, Meta(ge=setting.minimum, le=setting.maximum)],
        "bytes": Size,
        "flag": bool,
        "text": str,
        "choice": _LITERAL[setting.choices],
        "queue": Name,
        "exchange": Name,
        "retry": Retry | _LITERAL[setting.choices],
        "rate": RateText,
        "key_limits": dict[str, KeyLimit],
    }
    return kinds[setting.kind] | UnsetType | (None if setting.is_optional else UnsetType)


_SHOWN: dict[Kind, Any] = {
    "duration": float,
    "count": int,
    "bytes": int,
    "flag": bool,
    "text": str,
    "choice": str,
    "queue": str,
    "exchange": str,
    "retry": Retry,
    "rate": str,
    "key_limits": dict[str, dict[str, int | str | None]],
}


def _shown(setting: Setting) -> Any:
    """The type of a setting in a reply."""
    kind = _SHOWN[setting.kind]
    return kind | None if setting.is_optional and setting.kind != "retry" else kind


QueueChange: Any = defstruct(
    "QueueChange",
    [(setting.name, _given(setting), UNSET) for setting in SETTINGS],
    bases=(RequestBody,),
    namespace={
        "__doc__": """Settings by the names of the library. Settings that are not named keep their values.

    `null` as `retention` or `history` keeps messages for ever.
    """
    },
    kw_only=True,
    module=__name__,
)
NewQueue: Any = defstruct("NewQueue", [("name", Name)], bases=(QueueChange,), kw_only=True, module=__name__)
Settings: Any = defstruct(
    "Settings",
    [(setting.name, _shown(setting)) for setting in SETTINGS],
    bases=(ReplyBody,),
    kw_only=True,
    module=__name__,
)


class Stats(ReplyBody, kw_only=True):
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_age: float | None
    waiters: int
    limited: int
    counters: dict[str, int]


class QueueView(ReplyBody, kw_only=True):
    name: str
    settings: Settings
    stats: Stats
    created: bool | UnsetType = UNSET


class QueueList(ReplyBody, kw_only=True):
    queues: list[QueueView]
    next: str | UnsetType = UNSET  # as `after` of the next request


class QueueListing(QueryParameters, kw_only=True):
    prefix: str = ""
    limit: Limit = 100
    after: str = ""


class QueuePut(QueryParameters, kw_only=True):
    if_absent: bool = False


class QueueDeletion(QueryParameters, kw_only=True):
    if_empty: bool = False
    if_unused: bool = False
    dry_run: bool = False


class DryRun(QueryParameters, kw_only=True):
    dry_run: bool = False


class RemovedMessages(ReplyBody, kw_only=True):
    messages: int
    dry_run: bool = False


class Lease(ReplyBody, kw_only=True):
    id: str
    consumer: str | None
    since: str
    deadline: str | None
    receive_count: int


class Leases(ReplyBody, kw_only=True):
    messages: list[Lease]
    total: int


class Limited(QueryParameters, kw_only=True):
    limit: Limit = 100


# -- messages in --------------------------------------------------------------------------------


class DeathView(ReplyBody, kw_only=True):
    queue: str
    reason: str
    time: str
    receive_count: int
    kind: Literal["max_receives", "rejected", "expired", "overflow"] | UnsetType = UNSET
    times: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | UnsetType = UNSET
    first_time: str | UnsetType = UNSET


class NewMessage(RequestBody, kw_only=True):
    """The transmission form, `{"id", "timestamp", "payload"}`, and the other options of a message.

    Messages of a receive or an export are accepted too; the fields of their delivery are ignored.
    """

    payload: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET  # another name of the payload
    payload_encoding: Literal["base64", "msgpack+base64", "json"] | UnsetType = UNSET
    id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    timestamp: Moment | None = None
    delay: Seconds | None = None
    at: Moment | float | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] = 0
    group: Word | None = None
    dedup_id: Word | None = None
    unique_key: Word | None = None
    message_type: Word | None = None
    attributes: dict[str, Any] | None = None
    ttl: Seconds | None = None
    publisher: Word | None = None
    status: str | None = None
    receive_count: int | None = None
    receipt_id: str | None = None
    received_at: str | None = None
    deadline: str | None = None
    position: int | None = None
    reason: str | None = None
    traceback: str | None = None
    deaths: list[DeathView] | None = None


class Restoring(QueryParameters, kw_only=True):
    """`restore` keeps the past of a message from a backup; needs the permission manage."""

    restore: bool = False


class NewMessages(RequestBody, kw_only=True):
    messages: list[Raw]


class BatchOf(RequestBody, kw_only=True):
    """A text (in msgpack also bytes) is a message with only a body.

    A msgpack list of only bytes is the fastest.
    """

    messages: Annotated[list[str | NewMessage], Meta(max_length=MAX_BATCH)]


AnyBatch = Annotated[list[str | NewMessage], Meta(max_length=MAX_BATCH)] | BatchOf


class Published(ReplyBody, kw_only=True):
    id: str
    duplicate: bool | UnsetType = UNSET  # it exists already: the id is that of the earlier message


class Outcome(ReplyBody, kw_only=True):
    """The result of one message of a batch: its id or its error."""

    id: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class PublishedBatch(ReplyBody, kw_only=True):
    """`count` messages are in the queue.

    Plain bodies get consecutive ids; only the first is returned: the last twelve digits count up. Otherwise
    `results` has one entry per message, in order, and `failed` is the number of rejected ones.
    """

    count: int
    failed: int = 0
    first_id: str | UnsetType = UNSET
    results: list[Outcome] | UnsetType = UNSET


# -- messages out -------------------------------------------------------------------------------


class Receive(RequestBody, kw_only=True):
    max: Limit = 1
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    visibility_timeout: Seconds | None = None
    types: Annotated[list[str], Meta(max_length=100)] | None = None
    consumer: Word | None = None


class MessageView(Struct, kw_only=True, gc=False):
    """One message in the consumption form, or in the persistence form where it is exported."""

    id: str
    timestamp: str
    payload: Any
    payload_encoding: str | UnsetType = UNSET
    payload_form: str | UnsetType = UNSET
    status: str
    message_type: str | None
    priority: int
    receive_count: int
    attributes: dict[str, Any]
    group: str | UnsetType = UNSET
    consumer: str | UnsetType | None = UNSET  # the current consumer
    receipt_id: str | UnsetType = UNSET
    received_at: str | UnsetType = UNSET
    deadline: str | UnsetType | None = UNSET
    state: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    due_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    traceback: str | UnsetType = UNSET  # of its last failure, where its consumer gave one
    deaths: list[DeathView] | UnsetType = UNSET


class Messages(ReplyBody, kw_only=True):
    messages: list[MessageView]


class MessagePage(ReplyBody, kw_only=True):
    messages: list[MessageView]
    next: str | UnsetType = UNSET  # as `after` of the next request
    truncated: bool | UnsetType = UNSET  # front and rear: true if more were requested than a reply carries


class Receipts(RequestBody, kw_only=True):
    """One delivery (`receipt_id`) or up to 1,000 (`receipts`)."""

    receipt_id: str | UnsetType = UNSET
    receipts: Annotated[list[str], Meta(max_length=MAX_BATCH)] | UnsetType = UNSET


class Nack(Receipts, kw_only=True):
    delay: Seconds | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    traceback: Annotated[str, Meta(max_length=65536)] | None = None  # its last 4 KiB are kept
    reject: bool = False  # dead-letter it at once
    release: bool = False  # return it at once without counting the delivery


class Extend(Receipts, kw_only=True):
    seconds: Seconds


class ReceiptFailure(ReplyBody, kw_only=True):
    receipt_id: str
    code: str
    detail: str


class Settled(ReplyBody, kw_only=True):
    """How many deliveries were settled, and which were not."""

    count: int
    failed: list[ReceiptFailure] = field(default_factory=list)
    # Of a nack: the new state of each message. Of an extension: the new end of each lease.
    outcomes: list[str] | UnsetType = UNSET


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
    ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None
    state: State = "all"


class Search(MessageFilter, kw_only=True):
    limit: Limit = 100
    budget: Annotated[float, Meta(gt=0, le=30)] = 1.0


class SearchReply(ReplyBody, kw_only=True):
    messages: list[MessageView]
    complete: bool  # False: the limit, the time or the size of the reply was reached first
    scanned: int


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


class Timeline(ReplyBody, kw_only=True):
    id: str
    steps: list[TimelineStepView]


class Reason(ReplyBody, kw_only=True):
    code: str
    text: str


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
    to: Name | None = None
    filter: MessageFilter | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None  # messages per second
    dry_run: bool = False


class Discard(RequestBody, kw_only=True):
    filter: MessageFilter | None = None
    dry_run: bool = False


class Replay(RequestBody, kw_only=True):
    """From a time, from a message, or all that history holds and `filter` matches.

    Messages that a purge removed are left out, unless `include_purged` asks for them.
    """

    since: Moment | float | None = None
    since_id: str | None = None
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


# -- history ------------------------------------------------------------------------------------


class SegmentView(ReplyBody, kw_only=True):
    number: int
    bytes: int  # durable bytes, as /data serves them
    first: str | None
    last: str | None
    sealed: bool


class SegmentList(ReplyBody, kw_only=True):
    segments: list[SegmentView]


class PastQuery(QueryParameters, kw_only=True):
    queue: Name
    since: str | None = None
    until: str | None = None
    after_seq: Size = 0
    segment: Size | None = None
    limit: Limit = 100


class PastMessageView(ReplyBody, kw_only=True):
    """A message as it was published."""

    seq: int
    id: str
    queue: str
    time: str
    payload: Any
    payload_encoding: str | UnsetType = UNSET
    message_type: str | None
    priority: int
    group: str | None
    attributes: dict[str, Any]


class PastMessages(ReplyBody, kw_only=True):
    messages: list[PastMessageView]
    next_seq: int | UnsetType = UNSET  # as `after_seq` of the next request


class HistoryEnd(ReplyBody, kw_only=True):
    """Later messages have at least this position."""

    position: int
    time: str


class EndQuery(QueryParameters, kw_only=True):
    """With `after` and `wait`: a long poll until the end is beyond `after`, for `wait` seconds at most."""

    after: Size | None = None
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class HistoryPiece(ReplyBody, kw_only=True, omit_defaults=True):
    """Rows of one request; clients send it back unchanged."""

    kind: Literal["segment", "file"]
    rows: int
    bytes: int
    journal: str
    start: int = 0
    stop: int = 0
    version: int = 0
    path: str = ""
    first_group: int = 0
    end_group: int = 0


class HistorySnapshot(ReplyBody, kw_only=True):
    end_position: int
    archive_version: int | None
    pieces: list[HistoryPiece]
    gap: list[int] | None  # requested positions that are not available: from, to
    oldest_position: int
    journal: str


class SnapshotQuery(QueryParameters, kw_only=True):
    selection: str = ""  # JSON: table, queues, since_us, until_us, ids, columns, body, ...
    as_of: Word | None = None  # a version of the archive, or a time
    max_bytes: Count | None = None  # of a piece


class RowsQuery(QueryParameters, kw_only=True):
    piece: str  # JSON, as a snapshot gave it
    selection: str = ""
    compression: Literal["lz4", "zstd"] | None = None


class Export(QueryParameters, kw_only=True):
    queue: Name
    after: str = ""
    limit: Limit = 1000


# -- subscriptions and cursors ------------------------------------------------------------------

Owner = Annotated[str, Meta(min_length=1, max_length=255)]
LeaseS = Annotated[float, Meta(ge=0.001, le=604_800)]


class BatchRequest(RequestBody, kw_only=True):
    queue: Name
    after: Annotated[int, Meta(ge=0, lt=MAX_NUMBER)] = 0  # the number of the last batch
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    max_bytes: Count | None = None
    lease_s: LeaseS | None = None  # 300 at first, then as it was
    owner: Owner | None = None
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0


class BatchFormed(ReplyBody, kw_only=True):
    batch: int
    count: int
    bytes: int
    lease_until: str | None = None


class BatchPart(QueryParameters, kw_only=True):
    part: Annotated[int, Meta(ge=0, le=100_000)] = 0
    parts: Annotated[int, Meta(ge=1, le=100_000)] = 1


class BatchAck(RequestBody, kw_only=True):
    through: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    owner: Owner | None = None


class BatchAcked(ReplyBody, kw_only=True):
    acked: int
    lost: int  # messages of these batches that were already gone


class BatchExtend(RequestBody, kw_only=True):
    owner: Owner | None = None
    lease_s: LeaseS | None = None


class BatchLeases(ReplyBody, kw_only=True):
    messages: int


class Returned(ReplyBody, kw_only=True):
    messages: int


class OpenBatch(ReplyBody, kw_only=True):
    number: int
    count: int
    bytes: int
    lease_until: str


class SubscriptionView(ReplyBody, kw_only=True):
    name: str
    queue: str
    owner: str | None
    lease_s: float
    first_open: int | None
    messages: int
    batches: list[OpenBatch]


class SubscriptionList(ReplyBody, kw_only=True):
    subscriptions: list[SubscriptionView]


class CursorMove(RequestBody, kw_only=True):
    position: Annotated[int, Meta(ge=0, le=(1 << 62))]
    hold_bytes: Size | None = None  # 8 GiB (1 GiB on Redis) at first, then as it was
    hold_s: Seconds | None = None  # 7 days at first, then as it was


class CursorView(ReplyBody, kw_only=True):
    name: str
    position: int
    moved: str
    owner: str
    hold_bytes: int
    hold_s: float
    lag_bytes: int
    lag_s: float  # upper bound of the age of unread records
    lost: bool
    detail: str


class CursorList(ReplyBody, kw_only=True):
    cursors: list[CursorView]
    holds_all: bool = False  # the stored cursors are unreadable: the whole journal is kept


# -- the server and its users -------------------------------------------------------------------


class Whoami(ReplyBody, kw_only=True):
    user: str
    account: str
    is_root: bool
    open: bool


class ServerView(ReplyBody, kw_only=True):
    version: str
    started: str
    uptime: float
    storage: str
    queues: int
    healthy: bool
    detail: str
    id_prefix: str  # prefix of the ids of this server; the rest counts up


class HealthView(ReplyBody, kw_only=True):
    ok: bool  # everything is served, perhaps degraded
    status: Literal["ok", "degraded", "failed"]
    detail: str
    disk_full: bool
    reasons: list[str]  # why it is degraded
    hint: str | None


class DamageView(ReplyBody, kw_only=True):
    """Stored data that cannot be read."""

    kind: Literal["set_aside", "lost", "found"]
    account: str | None
    queue: str | None
    id: str | None
    file: str | None
    offset: int
    count: int
    time: str
    detail: str


class DamageList(ReplyBody, kw_only=True):
    damage: list[DamageView]


class DamageCleared(ReplyBody, kw_only=True):
    cleared: int


class RuleView(RequestBody, kw_only=True):
    effect: Literal["allow", "deny"]
    actions: list[str]
    queues: str = "*"  # a name, or a pattern with * and ?
    account: str | None = None  # None: that of the user; * is every account


class UserView(ReplyBody, kw_only=True):
    name: str
    account: str
    role: str
    rules: list[RuleView]
    disabled: bool
    root: bool
    has_password: bool
    created_at: str
    created: bool | UnsetType = UNSET


class UserList(ReplyBody, kw_only=True):
    users: list[UserView]


class UserChange(RequestBody, kw_only=True):
    """Fields that are not named keep their values; the account of a user cannot change."""

    account: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    password: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    rules: Annotated[list[RuleView], Meta(max_length=1000)] | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


class OfUser(QueryParameters, kw_only=True):
    user: str | None = None


class KeyRequest(RequestBody, kw_only=True):
    user: Name
    expires: Moment | None = None


class KeyView(ReplyBody, kw_only=True):
    id: str
    user: str
    created: str
    expires: str | None
    secret: str | UnsetType = UNSET  # only in the reply to its creation


class KeyList(ReplyBody, kw_only=True):
    keys: list[KeyView]


class TokenRequest(RequestBody, kw_only=True):
    user: Name
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    expires: Moment | None = None
    rules: Annotated[list[RuleView], Meta(max_length=1000)] | None = None  # narrower than the user's


class TokenView(ReplyBody, kw_only=True):
    name: str
    user: str
    created: str
    expires: str | None
    rules: list[RuleView] | None
    token: str | UnsetType = UNSET  # only in the reply to its creation


class TokenList(ReplyBody, kw_only=True):
    tokens: list[TokenView]


# -- staged batches ------------------------------------------------------------------------------


class StagePart(ReplyBody, kw_only=True):
    rows: int
    bytes: int


class StageCommit(RequestBody, kw_only=True):
    """Which parts count, in the order in which their rows are published."""

    parts: Annotated[list[Word], Meta(max_length=100_000)]
    rows: Size | None = None  # required total of their rows
    queue: Name | None = None  # for rows that name none
    on_error: Literal["fail", "dlq"] = "fail"
    dlq: Name | None = None


class BatchCommitted(ReplyBody, kw_only=True):
    published: int
    rejected: int  # rows that went to the dlq
    repeated: bool  # the batch was already published: nothing was done


class StageAborted(ReplyBody, kw_only=True):
    committed: bool  # too late: the batch is published, or will be


class Stage(ReplyBody, kw_only=True):
    job: str
    batch: int
    parts: int
    bytes: int
    updated: Moment
    committed: bool


class StageList(ReplyBody, kw_only=True):
    stages: list[Stage]
