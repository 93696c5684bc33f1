"""History tables of a Redis store: like `history_tables.py`, over streams instead of a journal.

The end of the history is read from Redis, in a thread; rows are decoded in processes, as for a journal.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from ..errors import OpenQError
from ..server.context import ServerContext
from .call import RestCall
from .history_tables import ARROW, MAX_PIECE, _object, _reader_pool
from .schemas import HistoryEnd
from .values import iso

if TYPE_CHECKING:
    from ..redis.broker import RedisBroker
    from ..redis.stream_positions import StreamHistoryEnd

POLL_S = 0.03  # minimum interval of the polls of Redis
_REST = 4  # and at least this multiple of the duration of the last poll
_WHEREVER = 1 << 62  # a piece has its own end


def _reach(context: ServerContext) -> StreamHistoryEnd:
    reach = _reaches.get(context)
    if reach is None:
        from ..redis.stream_positions import StreamHistoryEnd

        reach = _reaches[context] = StreamHistoryEnd(cast("RedisBroker", context.broker).store)
    return reach


def _task(call: RestCall, do: str, end: int, **more: Any) -> dict[str, Any]:
    return {
        "do": do,
        "data": "",
        "archive": "",
        "address": asdict(cast("RedisBroker", call.broker).address),
        "end": end,
        "selection": _object(call.query.selection, "selection"),
        **more,
    }


def show_snapshot(call: RestCall) -> None:
    query, context = call.query, call.context
    limit = MAX_PIECE if query.max_bytes is None else min(query.max_bytes, MAX_PIECE)
    task = _task(call, "snapshot", 0, as_of=query.as_of, max_bytes=limit)
    reach = _reach(context)

    def plan(error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
        else:
            call.work(lambda: reach.now(settle=True), submit)

    def submit(end: int) -> None:
        task["end"] = end
        _reader_pool(context).submit(
            call, task, lambda data: call.request.answer(200, data, b"application/json")
        )

    context.after_commit(plan)


def read_rows(call: RestCall) -> None:
    query = call.query
    piece = _object(query.piece, "piece")
    task = _task(call, "rows", _WHEREVER, piece=piece, compression=query.compression)
    _reader_pool(call.context).submit(call, task, lambda data: call.request.answer(200, data, ARROW))


# -- the end of the history


def show_end(call: RestCall) -> None:
    query = call.query
    after, wait_s = query.after, query.wait
    reach = _reach(call.context)

    def told(end: int) -> None:
        if after is None or end > after or not wait_s:
            _answer_end(call, end)
        else:
            _StreamEndPoll(call, after, end).start(wait_s)

    call.work(lambda: reach.now(settle=not wait_s), told)


def _answer_end(call: RestCall, end: int) -> None:
    call.answer(HistoryEnd(position=end, time=iso(call.context.now_ms())))


class _StreamEndPoll:
    """One request that waits for new history; one poll of Redis serves all of them."""

    def __init__(self, call: RestCall, after: int, end: int) -> None:
        self._call = call
        self.after = after
        self._seen = end
        self.until_s = 0.0

    def start(self, wait_s: float) -> None:
        context = self._call.context
        self.until_s = context.loop.time() + wait_s
        context.long_polls.add(self)
        self._call.request.on_gone = self._leave
        waiting = _end_polls.setdefault(context, set())
        waiting.add(self)
        if len(waiting) == 1:
            context.loop.call_later(POLL_S, _poll_end, context)

    def see(self, end: int, now_s: float) -> None:
        self._seen = end
        if end > self.after or now_s >= self.until_s:
            self.end()

    def fail(self, error: BaseException) -> None:
        self._leave()
        if not self._call.request.gone:
            self._call.request.later(self._call.fail, error)

    def end(self) -> None:
        self._leave()
        if not self._call.request.gone:
            self._call.request.later(_answer_end, self._call, self._seen)

    def _leave(self) -> None:
        context = self._call.context
        context.long_polls.discard(self)
        _end_polls[context].discard(self)
        self._call.request.on_gone = None


def _poll_end(context: ServerContext) -> None:
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
            context.loop.call_later(max(POLL_S, _REST * took_s), _poll_end, context)

    if _end_polls[context]:
        context.run(_reach(context).now, seen)


_reaches: WeakKeyDictionary[ServerContext, StreamHistoryEnd] = WeakKeyDictionary()
_end_polls: WeakKeyDictionary[ServerContext, set[_StreamEndPoll]] = WeakKeyDictionary()
