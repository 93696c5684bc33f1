"""Counts and rates of all queues: as one page, and as a stream of what changes, about once a second."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from msgspec.json import encode as to_json

from ..documents.values import iso
from ..names import split_name
from ..server.event_access import EventAccess
from ..server.live_feed import MAX_READERS, LiveRow, LiveTotals, Sample, sum_up
from .call import RestCall
from .problems import Problem
from .routes import EVENT_STREAM, route
from .schemas import QueryParameters, ReplyBody
from .stream import login_of

MAX_ROWS = 10_000
MAX_OFFSET = 1_000_000
_MEDIA = EVENT_STREAM.encode()
_HEADERS = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"


class QueueRow(ReplyBody, kw_only=True):
    """A queue with its counts. Rates are messages per second, over the last second or so."""

    name: str
    ready: int
    delayed: int
    in_flight: int
    bytes: int  # of the bodies that wait
    oldest: str | None  # when the oldest ready message arrived; its age is the time of the sample minus this
    consumers: int  # that wait or are subscribed at this server
    limited: int  # ready messages that limits hold now
    in_rate: float  # published
    out_rate: float  # acked
    fail_rate: float  # nacked, or not acked in time
    dead_rate: float  # dead-lettered
    dlq: str | None
    paused: bool


class RowTotals(ReplyBody, kw_only=True):
    """Sums over all queues that the caller may see, whatever the page shows of them."""

    queues: int
    ready: int
    delayed: int
    in_flight: int
    bytes: int
    oldest: str | None
    in_rate: float
    out_rate: float
    fail_rate: float
    dead_rate: float


class Overview(ReplyBody, kw_only=True):
    time: str  # of the sample
    totals: RowTotals
    queues: list[QueueRow]
    matched: int  # queues that the filter selects
    next: int | UnsetType = UNSET  # as `offset` of the next request


class LiveEvent(ReplyBody, kw_only=True):
    """The data of an event `queues`. The first events have all queues, later ones those that changed.

    `complete` is false if more rows of the same sample follow.
    """

    time: str
    totals: RowTotals
    queues: list[QueueRow]
    removed: list[str]
    complete: bool


SortKey = Literal[
    "name", "ready", "delayed", "in_flight", "bytes", "age", "consumers", "in", "out", "fail", "dead"
]


class OverviewQuery(QueryParameters, kw_only=True):
    match: Annotated[str, Meta(max_length=255, description="a part of the name, in any case")] = ""
    sort: SortKey = "name"
    descending: bool = False
    limit: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 100
    offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] = 0


class LiveQuery(QueryParameters, kw_only=True):
    follow: Annotated[Literal["0", "1", "true", "false"], Meta(description="0: one sample, then the end")] = (
        "1"
    )


_COLUMNS: dict[str, Any] = {
    "name": lambda row: row.queue_key,
    "ready": lambda row: row.ready,
    "delayed": lambda row: row.delayed,
    "in_flight": lambda row: row.in_flight,
    "bytes": lambda row: row.waiting_bytes,
    "age": lambda row: -(row.oldest_ms or 1 << 60),
    "consumers": lambda row: row.consumers,
    "in": lambda row: row.in_rate,
    "out": lambda row: row.out_rate,
    "fail": lambda row: row.fail_rate,
    "dead": lambda row: row.dead_rate,
}


@route(
    "GET",
    "overview",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="All queues with counts, rates and ages: filtered, sorted, by page",
    query=OverviewQuery,
    reply=Overview,
)
def show_overview(call: RestCall) -> None:
    """The first request takes half a second, because rates need two samples."""
    query, feed, account = call.query, call.context.live_feed, call.account
    access = _access(call)
    match = query.match.lower()

    def work() -> Overview:
        sample = feed.look()
        rows = [row for row in sample.rows.values() if _is_of(row.queue_key, account)]
        rows = [row for row in rows if access.may(row.queue_key)]
        totals = sum_up(rows)
        if match:
            rows = [row for row in rows if match in split_name(row.queue_key)[1].lower()]
        # By name first: the sort is stable, so equal values have one order on every page.
        rows.sort(key=_COLUMNS["name"])
        rows.sort(key=_COLUMNS[query.sort], reverse=query.descending)
        end = query.offset + query.limit
        return Overview(
            time=iso(sample.time_ms),
            totals=_totals(totals),
            queues=[_row(row) for row in rows[query.offset : end]],
            matched=len(rows),
            next=end if query.limit and end < len(rows) else UNSET,
        )

    call.seek(work)


@route(
    "GET",
    "live",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="Counts and rates of all queues as server-sent events, about once a second",
    query=LiveQuery,
    reply=LiveEvent,
    media=(EVENT_STREAM,),
)
def follow_live(call: RestCall) -> None:
    """An event `queues` every second, with totals and the queues that changed; the first have all queues."""
    feed, account = call.context.live_feed, call.account
    if call.request.method == "HEAD":
        call.request.answer(200, b"", _MEDIA, _HEADERS)
        return
    if feed.readers >= MAX_READERS:
        raise Problem("too_many_streams", f"{MAX_READERS} pages follow the counts of this server")
    follow = call.query.follow in ("1", "true")
    reader = feed.open(_access(call), lambda queue_key: _is_of(queue_key, account), _event, follow=follow)
    stream = call.request.stream(reader, _MEDIA, _HEADERS)
    if stream is None:
        feed.remove(reader)
    else:
        feed.start(reader, stream)


def _access(call: RestCall) -> EventAccess:
    return EventAccess(
        call.context,
        login_of(call),
        call.request.peer,
        call.request.is_tls,
        call.account,
        None,
        "GetQueueAttributes",
    )


def _is_of(queue_key: str, account: str) -> bool:
    return split_name(queue_key)[0] == account


def _row(row: LiveRow) -> QueueRow:
    return QueueRow(
        name=split_name(row.queue_key)[1],
        ready=row.ready,
        delayed=row.delayed,
        in_flight=row.in_flight,
        bytes=row.waiting_bytes,
        oldest=None if row.oldest_ms is None else iso(row.oldest_ms),
        consumers=row.consumers,
        limited=row.limited,
        in_rate=row.in_rate,
        out_rate=row.out_rate,
        fail_rate=row.fail_rate,
        dead_rate=row.dead_rate,
        dlq=None if row.dead_letter is None else split_name(row.dead_letter)[1],
        paused=row.paused,
    )


def _totals(totals: LiveTotals) -> RowTotals:
    return RowTotals(
        queues=totals.queues,
        ready=totals.ready,
        delayed=totals.delayed,
        in_flight=totals.in_flight,
        bytes=totals.waiting_bytes,
        oldest=None if totals.oldest_ms is None else iso(totals.oldest_ms),
        in_rate=round(totals.in_rate, 2),
        out_rate=round(totals.out_rate, 2),
        fail_rate=round(totals.fail_rate, 2),
        dead_rate=round(totals.dead_rate, 2),
    )


def _event(
    sample: Sample, rows: list[LiveRow], removed: list[str], totals: LiveTotals, is_complete: bool
) -> bytes:
    data = LiveEvent(
        time=iso(sample.time_ms),
        totals=_totals(totals),
        queues=[_row(row) for row in rows],
        removed=[split_name(each)[1] for each in removed],
        complete=is_complete,
    )
    return b"event: queues\ndata: %b\n\n" % to_json(data)
