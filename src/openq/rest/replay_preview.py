"""What a replay would publish again: how many messages, when they were published, and a few of them."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta

from ..broker.filters import matches
from ..broker.history import HistoryRange, PastMessage
from ..documents.values import iso, moment_ms
from ..errors import InvalidSetting
from ..model import Entry
from .call import RestCall
from .dead_letters import looks_at_deliveries
from .message_schemas import MessageFilter
from .messages import make_filter
from .routes import route
from .schemas import Moment, ReplyBody, RequestBody

MAX_BUCKETS = 500
SAMPLES = 5
_PAGE = 500
_PAGE_BYTES = 8 << 20


class ReplayPreviewRequest(RequestBody, kw_only=True):
    since: Moment | float
    until: Moment | float | None = None  # default: now
    filter: MessageFilter | None = None
    buckets: Annotated[int, Meta(ge=1, le=MAX_BUCKETS)] = 60
    budget: Annotated[float, Meta(gt=0, le=30)] = 5.0


class PreviewSample(ReplyBody, kw_only=True):
    id: str
    time: str


class ReplayPreview(ReplyBody, kw_only=True):
    """Messages that were published in the span and match. A replay leaves out those that are still in the
    queue or were purged; its own dry run counts exactly."""

    since: str
    until: str
    step: float  # seconds of a bucket
    counts: list[int]  # one for each bucket, the first begins at `since`
    matched: int
    bytes: int
    samples: list[PreviewSample]  # the first ones
    scanned: int
    complete: bool  # false: the time was up; the counts are those up to `scanned_until`
    scanned_until: str


@route(
    "POST",
    "queues/{queue}/replay/preview",
    permission="peek",
    sqs_actions=("ReceiveMessage",),
    summary="Count and histogram of the messages that a replay would take; changes nothing",
    request=ReplayPreviewRequest,
    reply=ReplayPreview,
)
def preview_replay(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    broker.settings(queue)
    now_ms = call.context.now_ms()
    since_ms = moment_ms(body.since, "since")
    until_ms = now_ms + 1 if body.until is None else moment_ms(body.until, "until")
    if since_ms >= until_ms:
        raise InvalidSetting("since must be before until")
    if body.filter is not None and looks_at_deliveries(body.filter):
        raise InvalidSetting("past messages have no ages and no deliveries: use since and until")
    filter = None if body.filter is None else make_filter(body.filter, call)
    inspect = broker.inspect

    def id_of(entry: Entry) -> str:
        return inspect.message_id(entry)

    def work() -> ReplayPreview:
        deadline = time.monotonic() + body.budget
        counts = [0] * body.buckets
        samples: list[PreviewSample] = []
        matched = size = scanned = after_seq = 0
        last_ms, complete = since_ms, True
        while True:
            span = HistoryRange(since_ms, until_ms, after_seq, None, _PAGE, _PAGE_BYTES)
            page = inspect.past(queue, span)
            for each in page:
                entry = _entry(each)
                if filter is not None and not matches(id_of, entry, filter):
                    continue
                matched += 1
                size += len(each.body)
                at = (each.time_ms - since_ms) * body.buckets // (until_ms - since_ms)
                counts[min(max(at, 0), body.buckets - 1)] += 1
                if len(samples) < SAMPLES:
                    samples.append(PreviewSample(id=id_of(entry), time=iso(each.time_ms)))
            scanned += len(page)
            if not page:
                break
            after_seq, last_ms = page[-1].seq, page[-1].time_ms
            if time.monotonic() > deadline:
                complete = False
                break
        return ReplayPreview(
            since=iso(since_ms),
            until=iso(until_ms),
            step=(until_ms - since_ms) / body.buckets / 1000,
            counts=counts,
            matched=matched,
            bytes=size,
            samples=samples,
            scanned=scanned,
            complete=complete,
            scanned_until=iso(until_ms if complete else last_ms),
        )

    call.seek(work)


def _entry(past: PastMessage) -> Entry:
    """A past message in the form that filters take."""
    size = len(past.body)
    return Entry(past.seq, past.time_ms, 0, size, past.encoding, past.body, past.properties, past.options)
