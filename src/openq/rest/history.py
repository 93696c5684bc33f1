"""History: the segments of the journal as files, and past messages as they were published.

A parallel reader lists the segments and gives one to each worker, which reads either its bytes and its index
(the format of the journal) or, with `segment=`, decoded messages.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ..broker.history import HistoryRange
from ..broker.history import PastMessage as Past
from ..broker.history_source import HistoryFiles, HistorySegment
from ..documents.payloads import form_of, show_json, show_msgpack
from ..documents.values import iso, iso_or_none, moment_ms, read_moment
from ..errors import HistoryUnavailable, NotOnThisStore
from .call import RestCall
from .formats import JSON
from .history_schemas import Export, PastMessages, PastMessageView, PastQuery, SegmentList, SegmentView
from .paging import MAX_ANSWER_BYTES, page
from .problems import Problem
from .routes import route
from .views import attributes_of, stored

_OCTETS = b"application/octet-stream"
_LINES = b"application/x-ndjson"
MAX_PIECE = 16 << 20


def _files(call: RestCall) -> HistoryFiles:
    files = call.broker.history.files
    if files is None:
        raise NotOnThisStore(
            "files of the journal",
            "read GET /api/v1/history/messages, or move the queues with `openq migrate` to a data directory",
        )
    return files


@route(
    "GET",
    "history/segments",
    permission="admin",
    scope="server",
    summary="List segments of the journal",
    reply=SegmentList,
)
def list_segments(call: RestCall) -> None:
    views = [
        SegmentView(
            number=each.number,
            bytes=each.bytes,
            first=iso_or_none(each.first_ms),
            last=iso_or_none(each.last_ms),
            sealed=each.sealed,
        )
        for each in _files(call).segments()
    ]
    call.answer(SegmentList(segments=views))


def _segment(call: RestCall) -> HistorySegment:
    text = call.args[0]
    if text.isascii() and text.isdigit() and len(text) < 20:
        for each in _files(call).segments():
            if each.number == int(text):
                return each
    raise HistoryUnavailable(f"segment {text[:40]} of the journal does not exist, or no longer")


@route(
    "GET",
    "history/segments/{number}/data",
    permission="admin",
    scope="server",
    summary="Durable bytes of a segment; by Range",
    status=(200, 206),
    media=("application/octet-stream",),
)
def read_segment(call: RestCall) -> None:
    files, segment = _files(call), _segment(call)
    total = segment.bytes
    asked = call.request.header(b"range")
    start, end = 0, total
    if asked is not None:
        start, end = _range(asked, total)
    elif total > MAX_PIECE:
        raise Problem("invalid", f"{total} bytes; use Range, at most {MAX_PIECE} at a time")
    end = min(end, start + MAX_PIECE)

    def then(data: bytes) -> None:
        headers = b"Accept-Ranges: bytes\r\n"
        if asked is not None:
            headers += b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, total)
        call.request.answer(200 if asked is None else 206, data, _OCTETS, headers)

    call.work(lambda: files.read(segment.number, start, end), then)


def _range(asked: bytes, total: int) -> tuple[int, int]:
    """One range of bytes, as `bytes=0-99`, `bytes=100-` or `bytes=-100`."""
    unit, _, text = asked.partition(b"=")
    first, dash, last = text.strip().partition(b"-")
    unsatisfiable = Problem(
        "range_not_satisfiable", f"there are {total} bytes", b"Content-Range: bytes */%d\r\n" % total
    )
    digits = (first + last).isdigit() and len(first + last) < 40
    if unit.strip() != b"bytes" or not dash or not digits:
        raise unsatisfiable
    if not first:
        start, end = max(0, total - int(last)), total
    else:
        start, end = int(first), min(int(last) + 1, total) if last else total
    if start >= end:
        raise unsatisfiable
    return start, end


@route(
    "GET",
    "history/segments/{number}/index",
    permission="admin",
    scope="server",
    summary="Index of a segment, in rows of 32 bytes",
    media=("application/octet-stream",),
)
def read_index(call: RestCall) -> None:
    """Rows of 32 bytes, little-endian: sequence u64, time in ms u64, queue u32, offset u32, length u32,
    kind u8, flags u8, two bytes of padding."""
    files, segment = _files(call), _segment(call)
    call.work(lambda: files.index(segment.number), lambda rows: call.request.answer(200, rows, _OCTETS))


@route(
    "GET",
    "history/messages",
    permission="peek",
    scope="query",
    sqs_actions=("ReceiveMessage",),
    summary="Past messages, as published",
    reply=PastMessages,
    query=PastQuery,
)
def list_past(call: RestCall) -> None:
    query, broker = call.query, call.broker
    queue = call.qualified(query.queue)
    span = HistoryRange(
        since_ms=0 if query.since is None else moment_ms(read_moment(query.since), "since"),
        until_ms=None if query.until is None else moment_ms(read_moment(query.until), "until"),
        after_seq=query.after_seq,
        segment=query.segment,
        limit=query.limit,
        max_bytes=MAX_ANSWER_BYTES,
    )

    def work() -> PastMessages:
        found = broker.inspect.past(queue, span)
        return PastMessages(
            messages=[_view(call, query.queue, each) for each in found],
            next_seq=found[-1].seq if span.is_full(found) else UNSET,
        )

    call.answer_with(work)


def _view(call: RestCall, queue: str, past: Past) -> PastMessageView:
    show = show_json if call.format.is_json else show_msgpack
    payload, encoding = show(
        past.body, form_of(past.body, past.encoding, past.properties, call.format.is_json)
    )
    options = past.options
    return PastMessageView(
        seq=past.seq,
        id=(options.id if options is not None else None) or call.broker.inspect.id_of(past.seq),
        queue=queue,
        time=iso(past.time_ms),
        payload=payload,
        payload_encoding=encoding,
        message_type=None if options is None else options.type,
        priority=0 if options is None else options.priority,
        group=None if options is None else options.group,
        attributes={} if past.properties is None else attributes_of(past.properties.attributes, call.format),
    )


@route(
    "GET",
    "export",
    permission="peek",
    scope="query",
    sqs_actions=("ReceiveMessage",),
    summary="Export a queue as JSON lines, page by page",
    query=Export,
    media=("application/x-ndjson",),
)
def export(call: RestCall) -> None:
    """The persistence form, one JSON document per line; `OpenQ-Next` is the `after` of the next page."""
    query, broker = call.query, call.broker
    queue = call.qualified(query.queue)
    encode = msgspec.json.Encoder().encode_lines

    def work() -> tuple[bytes, str | None]:
        entries, following = page(broker, queue, "all", query.after, query.limit)
        held = broker.inspect.leases_of(queue, [entry.seq for entry, _ in entries])
        lines = [stored(broker, queue, entry, JSON, state, held.get(entry.seq)) for entry, state in entries]
        return encode(lines), following

    def then(result: tuple[bytes, str | None]) -> None:
        data, following = result
        headers = b"" if following is None else f"OpenQ-Next: {following}\r\n".encode()
        call.request.answer(200, data, _LINES, headers)

    call.work(work, then)
