"""Requests and replies of the data pipeline: history, subscriptions, cursors, staged batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from ..broker.subscriptions import MAX_NUMBER
from .schemas import (
    MAX_WAIT_S,
    Count,
    Limit,
    Moment,
    Name,
    QueryParameters,
    ReplyBody,
    RequestBody,
    Seconds,
    Size,
    Word,
)

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
