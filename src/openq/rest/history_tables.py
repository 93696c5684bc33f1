"""History as tables: snapshots, rows as Arrow streams, and the end of the history.

Rows are decoded in worker processes (`history_readers.py`): numpy and Arrow are never loaded here, and the
loop only passes bytes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ..broker.history_source import HistoryTables
from ..documents.values import iso
from ..errors import OpenQError
from ..server.context import ServerContext
from .call import RestCall
from .history_readers import reader_pool
from .history_schemas import EndQuery, HistoryEnd, HistorySnapshot, RowsQuery, SnapshotQuery
from .problems import Problem
from .routes import route

ARROW = b"application/vnd.apache.arrow.stream"
MAX_PIECE = 32 << 20
_REST = 4  # polls of the end are at least this multiple of the duration of the last poll apart


def _tables(call: RestCall) -> HistoryTables:
    tables = call.broker.history.tables
    if tables is None:
        raise Problem("no_history", "this server keeps nothing on disk: there is no history")
    return tables


def _task(call: RestCall, do: str, **more: Any) -> dict[str, Any]:
    task = _tables(call).task(call.context.config.archive)
    return {"do": do, **task, "selection": _object(call.query.selection, "selection"), **more}


def _object(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        raise Problem("invalid", f"{what} must be a JSON object") from None


def _with_end(call: RestCall, then: Callable[[int], None], settle: bool) -> None:
    """`then` gets the end of the history, on the loop."""
    tables = _tables(call)
    if call.broker.storage.waits:
        call.work(lambda: tables.end(settle), then)
    else:
        then(tables.end(settle))


@route(
    "GET",
    "history/snapshot",
    permission="peek",
    scope="each",
    sqs_actions=("ReceiveMessage",),
    summary="Snapshot of a selection, in pieces",
    reply=HistorySnapshot,
    query=SnapshotQuery,
)
def show_snapshot(call: RestCall) -> None:
    query = call.query
    limit = MAX_PIECE if query.max_bytes is None else min(query.max_bytes, MAX_PIECE)
    task = _task(call, "snapshot", as_of=query.as_of, max_bytes=limit)

    def plan(error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
        else:
            _with_end(call, submit, settle=True)  # everything answered so far is included

    def submit(end: int) -> None:
        task["end"] = end
        reader_pool(call.context).submit(call, task, answer)

    def answer(data: bytes) -> None:
        call.request.answer(200, data, b"application/json")

    call.context.after_commit(plan)


@route(
    "GET",
    "history/rows",
    permission="peek",
    scope="each",
    sqs_actions=("ReceiveMessage",),
    summary="Rows of a piece, as an Arrow stream",
    query=RowsQuery,
    media=("application/vnd.apache.arrow.stream",),
)
def read_rows(call: RestCall) -> None:
    query = call.query
    piece = _object(query.piece, "piece")
    task = _task(call, "rows", piece=piece, compression=query.compression)
    reader_pool(call.context).submit(call, task, lambda data: call.request.answer(200, data, ARROW))


# -- the end of the history


@route(
    "GET",
    "history/end",
    permission="none",
    scope="caller",
    summary="End of the history; with after and wait, a long poll",
    reply=HistoryEnd,
    query=EndQuery,
)
def show_end(call: RestCall) -> None:
    after, wait_s = call.query.after, call.query.wait

    def found(end: int) -> None:
        if after is None or end > after or not wait_s:
            _answer_end(call, end)
        else:
            _EndPoll(call, _tables(call), after, end).start(wait_s)

    _with_end(call, found, settle=not wait_s)


def _answer_end(call: RestCall, end: int) -> None:
    call.answer(HistoryEnd(position=end, time=iso(call.context.now_ms())))


class _EndPoll:
    """One request that waits for new history; one poll of the store serves all of them."""

    __slots__ = ("_after", "_call", "_seen", "_tables", "_until_s")

    def __init__(self, call: RestCall, tables: HistoryTables, after: int, end: int) -> None:
        self._call = call
        self._tables = tables
        self._after = after
        self._seen = end
        self._until_s = 0.0

    def start(self, wait_s: float) -> None:
        context = self._call.context
        self._until_s = context.loop.time() + wait_s
        context.long_polls.add(self)
        self._call.request.on_gone = self._leave
        waiting = _end_polls.setdefault(context, set())
        waiting.add(self)
        if len(waiting) == 1:
            context.loop.call_later(self._tables.poll_s, _poll_end, context, self._tables)

    def see(self, end: int, now_s: float) -> None:
        self._seen = end
        if end > self._after or self._tables.is_over or now_s >= self._until_s:
            self.end()

    def fail(self, error: BaseException) -> None:
        self._leave()
        if not self._call.request.gone:
            self._call.request.run_guarded(self._call.fail, error)

    def end(self) -> None:
        self._leave()
        if not self._call.request.gone:
            self._call.request.run_guarded(_answer_end, self._call, self._seen)

    def _leave(self) -> None:
        context = self._call.context
        context.long_polls.discard(self)
        _end_polls[context].discard(self)
        self._call.request.on_gone = None


_end_polls: WeakKeyDictionary[ServerContext, set[_EndPoll]] = WeakKeyDictionary()


def _poll_end(context: ServerContext, tables: HistoryTables) -> None:
    started_s = context.loop.time()

    def seen(end: int | None, error: BaseException | None) -> None:
        waiting = _end_polls[context]
        for poll in list(waiting):
            if error is not None or end is None:
                poll.fail(error or OpenQError("the end of the history is unknown"))
            else:
                poll.see(end, context.loop.time())
        if waiting:
            took_s = context.loop.time() - started_s
            context.loop.call_later(max(tables.poll_s, _REST * took_s), _poll_end, context, tables)

    if not _end_polls[context]:
        return
    if context.broker.storage.waits:
        context.run(tables.end, seen)
    else:
        seen(tables.end(), None)
