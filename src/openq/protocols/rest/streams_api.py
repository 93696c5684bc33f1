"""The history as columns where the store is Redis: `columns_api` over streams instead of a journal.

What is complete is known by asking Redis, in a thread; the rows are decoded in processes, as for a journal.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from ...errors import OpenQError
from ..site import Site
from .call import Call
from .columns_api import ARROW, MAX_PIECE, _object, _readers
from .schemas import HistoryEnd
from .values import iso

if TYPE_CHECKING:
    from ...redis.broker import RedisBroker
    from ...redis.streams import Reach

LOOK_S = 0.03  # how long after a look who waits looks again; longer if there is much to look at
_REST = 4  # how many times as long as a look took
_WHEREVER = 1 << 62  # a piece says itself where it ends


def _reach(site: Site) -> Reach:
    reach = _reaches.get(site)
    if reach is None:
        from ...redis.streams import Reach

        reach = _reaches[site] = Reach(cast("RedisBroker", site.broker))
    return reach


def _task(call: Call, do: str, end: int, **more: Any) -> dict[str, Any]:
    return {
        "do": do,
        "data": "",
        "archive": "",
        "address": asdict(cast("RedisBroker", call.broker).address),
        "end": end,
        "selection": _object(call.query.selection, "selection"),
        **more,
    }


def show_snapshot(call: Call) -> None:
    query, site = call.query, call.site
    limit = MAX_PIECE if query.max_bytes is None else min(query.max_bytes, MAX_PIECE)
    task = _task(call, "snapshot", 0, as_of=query.as_of, max_bytes=limit)
    reach = _reach(site)

    def plan(error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
        else:
            call.work(lambda: reach.now(settle=True), submit)

    def submit(end: int) -> None:
        task["end"] = end
        _readers(site).submit(call, task, lambda data: call.request.answer(200, data, b"application/json"))

    site.after_commit(plan)


def read_rows(call: Call) -> None:
    query = call.query
    piece = _object(query.piece, "piece")
    task = _task(call, "rows", _WHEREVER, piece=piece, compression=query.compression)
    _readers(call.site).submit(call, task, lambda data: call.request.answer(200, data, ARROW))


# -- how far it reaches


def show_end(call: Call) -> None:
    query = call.query
    after, wait_s = query.after, query.wait
    reach = _reach(call.site)

    def told(end: int) -> None:
        if after is None or end > after or not wait_s:
            _answer_end(call, end)
        else:
            _EndPoll(call, after, end).start(wait_s)

    call.work(lambda: reach.now(settle=not wait_s), told)


def _answer_end(call: Call, end: int) -> None:
    call.answer(HistoryEnd(position=end, time=iso(call.site.now_ms())))


class _EndPoll:
    """One request that waits for something new; one look at Redis is for all of them."""

    def __init__(self, call: Call, after: int, end: int) -> None:
        self._call = call
        self.after = after
        self._seen = end
        self.until_s = 0.0

    def start(self, wait_s: float) -> None:
        site = self._call.site
        self.until_s = site.loop.time() + wait_s
        site.polls.add(self)
        self._call.request.on_gone = self._leave
        waiting = _end_polls.setdefault(site, set())
        waiting.add(self)
        if len(waiting) == 1:
            site.loop.call_later(LOOK_S, _look, site)

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
        site = self._call.site
        site.polls.discard(self)
        _end_polls[site].discard(self)
        self._call.request.on_gone = None


def _look(site: Site) -> None:
    started_s = site.loop.time()

    def seen(end: int | None, error: BaseException | None) -> None:
        waiting = _end_polls[site]
        for poll in list(waiting):
            if error is not None or end is None:
                poll.fail(error or OpenQError("the end of the history is not known"))
            else:
                poll.see(end, site.loop.time())
        if waiting:
            took_s = site.loop.time() - started_s
            site.loop.call_later(max(LOOK_S, _REST * took_s), _look, site)

    if _end_polls[site]:
        site.run(_reach(site).now, seen)


_reaches: WeakKeyDictionary[Site, Reach] = WeakKeyDictionary()
_end_polls: WeakKeyDictionary[Site, set[_EndPoll]] = WeakKeyDictionary()
