"""The history as columns: what there is, its rows as Arrow streams, and how far it reaches.

Rows are decoded in processes of their own (`openq.columns.worker`): numpy and Arrow are never loaded here,
and the loop only passes bytes on. At most two of them work at once; whoever comes then waits in line.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ...columns.worker import MAX_FRAME, MISSING, frame
from ...errors import Closed, OpenQError, hide_paths
from ...storage.files import FileJournal
from ..http import Request
from ..site import Site, TooManySearches
from .call import Call, journal_of
from .problems import Problem
from .schemas import HistoryEnd
from .values import iso

log = logging.getLogger("openq.columns")

ARROW = b"application/vnd.apache.arrow.stream"
MAX_WORKERS = 2
MAX_WAITING = 256
IDLE_S = 60.0
TASK_S = 300.0  # a worker that takes longer is ended
GONE_S = 1.0  # so long a worker may go on for a client that has gone
MAX_PIECE = 32 << 20
MAX_UNSENT = 256 << 20  # of answers that their clients have not taken yet; no others are made meanwhile
ROOM_S = 0.05
TICK_S = 0.01
_READ = 256 << 10

Then = Callable[[bytes], None]


def _journal(call: Call) -> FileJournal:
    journal = journal_of(call)
    if journal is None:
        raise Problem("no_history", "this server keeps nothing on disk, so there is no history to read")
    return journal


def _task(call: Call, journal: FileJournal, do: str, **more: Any) -> dict[str, Any]:
    archive = call.site.config.archive or os.path.join(journal.path, "archive")
    return {
        "do": do,
        "data": journal.path,
        "archive": os.path.abspath(archive),
        "end": journal.durable_at,
        "selection": _object(call.query.selection, "selection"),
        **more,
    }


def _is_on_redis(site: Site) -> bool:
    return site.broker.storage == "redis"


def _object(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        raise Problem("invalid", f"{what} must be a JSON object") from None


def show_snapshot(call: Call) -> None:
    if _is_on_redis(call.site):
        from . import streams_api

        streams_api.show_snapshot(call)
        return
    journal, query = _journal(call), call.query
    limit = MAX_PIECE if query.max_bytes is None else min(query.max_bytes, MAX_PIECE)
    task = _task(call, journal, "snapshot", as_of=query.as_of, max_bytes=limit)

    def plan(error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
            return
        # What was answered so far is part of the history.
        task["end"] = journal.durable_at
        _readers(call.site).submit(call, task, answer)

    def answer(data: bytes) -> None:
        call.request.answer(200, data, b"application/json")

    call.site.after_commit(plan)


def read_rows(call: Call) -> None:
    if _is_on_redis(call.site):
        from . import streams_api

        streams_api.read_rows(call)
        return
    journal, query = _journal(call), call.query
    piece = _object(query.piece, "piece")
    task = _task(call, journal, "rows", piece=piece, compression=query.compression)
    _readers(call.site).submit(call, task, lambda data: call.request.answer(200, data, ARROW))


# -- how far it reaches


def show_end(call: Call) -> None:
    if _is_on_redis(call.site):
        from . import streams_api

        streams_api.show_end(call)
        return
    journal, query = _journal(call), call.query
    if query.after is None or journal.durable_at > query.after or not query.wait:
        _answer_end(call, journal)
    else:
        _EndPoll(call, journal, query.after).start(query.wait)


def _answer_end(call: Call, journal: FileJournal) -> None:
    call.answer(HistoryEnd(position=journal.durable_at, time=iso(call.site.now_ms())))


class _EndPoll:
    """One request that waits for something new; one timer ticks for all of them."""

    __slots__ = ("_after", "_call", "_end_s", "_journal")

    def __init__(self, call: Call, journal: FileJournal, after: int) -> None:
        self._call = call
        self._journal = journal
        self._after = after
        self._end_s = 0.0

    def start(self, wait_s: float) -> None:
        site = self._call.site
        self._end_s = site.loop.time() + wait_s
        site.polls.add(self)
        self._call.request.on_gone = self._leave
        waiting = _end_polls.setdefault(site, set())
        waiting.add(self)
        if len(waiting) == 1:
            site.loop.call_later(TICK_S, _tick, site)

    def is_due(self, now_s: float) -> bool:
        journal = self._journal
        return journal.durable_at > self._after or journal.error is not None or now_s >= self._end_s

    def end(self) -> None:
        self._leave()
        if not self._call.request.gone:
            self._call.request.later(_answer_end, self._call, self._journal)

    def _leave(self) -> None:
        site = self._call.site
        site.polls.discard(self)
        _end_polls[site].discard(self)
        self._call.request.on_gone = None


_end_polls: WeakKeyDictionary[Site, set[_EndPoll]] = WeakKeyDictionary()


def _tick(site: Site) -> None:
    waiting = _end_polls[site]
    now_s = site.loop.time()
    for poll in [each for each in waiting if each.is_due(now_s)]:
        poll.end()
    if waiting:
        site.loop.call_later(TICK_S, _tick, site)


# -- the processes that read


class _Job:
    """A task and who waits for it."""

    __slots__ = ("call", "is_over", "task", "then", "tries")

    def __init__(self, call: Call, task: dict[str, Any], then: Then) -> None:
        self.call = call
        self.task = task
        self.then = then
        self.tries = 0
        self.is_over = False  # the client is gone

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.call.request.on_gone = None
            self.call.request.later(self.call.fail, error)

    def allowed(self, names: list[str]) -> list[str]:
        """Those of the queues, by their full names, whose messages the caller may look at."""
        return [name for name in names if self.call.may_peek(name)]


class _Worker:
    """One process and our end of the sockets to it. All of it on the loop; nothing here blocks."""

    def __init__(self, readers: _Readers) -> None:
        self._readers = readers
        self._loop = readers.site.loop
        ours, theirs = socket.socketpair()
        self._end: socket.socket | None = ours
        with theirs:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                # Not what lies in the working directory; and nothing of ours that is secret.
                [sys.executable, "-P", "-m", _program(readers.site), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")},
                start_new_session=True,
            )
        self._in = bytearray()
        self._out = bytearray()
        self._handle: int | None = None
        self._timer: TimerHandle | None = None
        self.job: _Job | None = None
        self._loop.add_reader(ours.fileno(), self._readable)

    def start(self, job: _Job) -> None:
        self.job = job
        job.tries += 1
        self._wait(TASK_S, self._too_long)
        self._send(job.task)

    def abandon(self) -> None:
        """Nobody waits for its task any more: it ends soon, or is ended."""
        self._wait(GONE_S, self._kill)

    def _kill(self) -> None:
        self._process.kill()
        self.close()

    def rest(self, idle_s: float) -> None:
        self._wait(idle_s, self.close)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, then)

    def _send(self, value: Any) -> None:
        waiting = bool(self._out)
        self._out += frame(value)
        if not waiting:
            self._writable()

    def _writable(self) -> None:
        if self._end is None:
            return
        try:
            while self._out:
                sent = self._end.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._writable)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._end.fileno())

    def _readable(self) -> None:
        if self._end is None:
            return
        try:
            data, handles, _, _ = socket.recv_fds(self._end, _READ, 1)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        for handle in handles:
            self._handle = handle
        if not data:
            self.close()
            return
        self._in += data
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "little")
            if size > MAX_FRAME:
                self.close()
                return
            if len(self._in) < 4 + size:
                return
            said = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            self._hear(msgspec.json.decode(said))

    def _hear(self, said: dict[str, Any]) -> None:
        job = self.job
        if job is None:
            self.close()
            return
        if "ask" in said:
            # A client that has gone sees nothing, which is the quickest way to the end of its task.
            self._send({"allowed": [] if job.is_over else job.allowed(said["ask"])})
            return
        self.job = None
        handle, self._handle = self._handle, None
        if "failed" in said:
            job.fail(_problem(said["failed"], said["detail"]))
        elif handle is not None:
            self._readers.fetch(job, handle, said["done"])
        self._readers.next_for(self)

    def _too_long(self) -> None:
        log.error("reading history took more than %d s; process %d is ended", TASK_S, self._process.pid)
        if self.job is not None:
            self.job.tries = _TRIES
        self._kill()

    def close(self) -> None:
        """The process ends when it sees that nobody is there any more."""
        if self._end is None:
            return
        end, self._end = self._end, None
        self._loop.remove_reader(end.fileno())
        self._loop.remove_writer(end.fileno())
        end.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._handle is not None:
            os.close(self._handle)
        job, self.job = self.job, None
        self._readers.left(self, job)
        process = self._process

        def bury() -> None:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        with suppress(RuntimeError):  # the site is closed: the system does it
            self._readers.site.run(bury, lambda result, error: None)


_TRIES = 2


def _program(site: Site) -> str:
    return "openq.redis.columns_worker" if _is_on_redis(site) else "openq.columns.worker"


class _Readers:
    """The workers of one server, and who waits for them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._line: deque[_Job] = deque()
        self._ending = False
        self._fetched = 0  # bytes of answers that are on their way from a worker
        self._answered: set[Request] = set()  # those whose clients may still be reading
        self._looking = False

    def submit(self, call: Call, task: dict[str, Any], then: Then) -> None:
        if self._ending:
            raise Closed()
        if len(self._line) >= MAX_WAITING:
            raise TooManySearches()
        job = _Job(call, task, then)

        def gone() -> None:
            job.is_over = True
            with suppress(ValueError):
                self._line.remove(job)
            for worker in self._workers:
                if worker.job is job:
                    worker.abandon()

        call.request.on_gone = gone
        self.site.polls.add(self)
        self._line.append(job)
        self._start()

    def unsent(self) -> int:
        """Bytes of answers in memory."""
        sizes = {request: request.unsent for request in self._answered}
        self._answered = {request for request, size in sizes.items() if size}
        return self._fetched + sum(sizes.values())

    def hold(self, request: Request) -> None:
        """It was answered with much; that counts until it is sent."""
        self._answered.add(request)

    def _has_room(self) -> bool:
        if self.unsent() < MAX_UNSENT:
            return True
        if not self._looking:
            self._looking = True
            self.site.loop.call_later(ROOM_S, self._look_again)
        return False

    def _look_again(self) -> None:
        self._looking = False
        if not self._ending:
            self._start()

    def _start(self) -> None:
        while self._line and (self._idle or len(self._workers) < MAX_WORKERS) and self._has_room():
            if self._idle:
                worker = self._idle.pop()
            else:
                try:
                    worker = _Worker(self)
                except OSError as error:
                    log.error("no process to read history with: %s", error)
                    self._line.popleft().fail(_problem("internal_error", "no process could be started"))
                    continue
                self._workers.add(worker)
            worker.start(self._line.popleft())

    def next_for(self, worker: _Worker) -> None:
        if self._ending:
            worker.close()
        elif self._line and self._has_room():
            worker.start(self._line.popleft())
        else:
            self._idle.append(worker)
            worker.rest(IDLE_S)

    def left(self, worker: _Worker, job: _Job | None) -> None:
        """A worker is gone; what it was doing another one does once more."""
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if job is not None and not job.is_over:
            if job.tries < _TRIES and not self._ending:
                self._line.appendleft(job)
            else:
                log.error("a process that reads history ended in the middle")
                job.fail(_problem("internal_error", "the process that reads history ended in the middle"))
        if not self._ending:
            self._start()

    def fetch(self, job: _Job, handle: int, size: int) -> None:
        """The answer is in a file; taking it into memory is a copy, which needs no loop."""

        def read() -> bytes:
            try:
                data = os.pread(handle, size, 0)
                while len(data) < size:  # more than one read gives at once
                    more = os.pread(handle, size - len(data), len(data))
                    if not more:
                        raise OSError("an answer ends early")
                    data += more
                return data
            finally:
                os.close(handle)

        def done(data: bytes | None, error: BaseException | None) -> None:
            self._fetched -= size
            if job.is_over:
                return
            if data is None:
                job.fail(_problem("internal_error", str(error)))
                return
            job.is_over = True
            job.call.request.on_gone = None
            job.call.request.later(job.then, data)
            self.hold(job.call.request)

        if job.is_over:
            os.close(handle)
        else:
            self._fetched += size
            self.site.run(read, done)

    def end(self) -> None:
        """The server stops: those who wait are told, those who are served are served to the end."""
        self._ending = True
        while self._line:
            self._line.popleft().fail(Closed())
        for worker in list(self._idle):
            worker.close()


def _problem(code: str, detail: str) -> Problem:
    if code == MISSING:
        log.error("history cannot be read as columns: %s", detail)
        detail = "this server cannot read its history as columns: pyarrow is not installed there"
    if code == "internal_error":
        log.error("reading history failed: %s", detail)
        detail = ""
    return Problem(code, hide_paths(detail))


def require_room(site: Site) -> None:
    """Large answers that are made elsewhere count as well. Raises TooManySearches."""
    if _readers(site).unsent() >= MAX_UNSENT:
        raise TooManySearches()


def hold_unsent(site: Site, request: Request) -> None:
    _readers(site).hold(request)


_all_readers: WeakKeyDictionary[Site, _Readers] = WeakKeyDictionary()


def _readers(site: Site) -> _Readers:
    readers = _all_readers.get(site)
    if readers is None:
        readers = _all_readers[site] = _Readers(site)
    return readers
