"""The processes that read history for a server, and the requests that wait for them.

Rows are decoded in worker processes (`openq.history.worker`): numpy and Arrow are never loaded here, and the
loop only passes bytes on. At most two workers run at once; other requests wait.
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

from ..errors import Closed, hide_paths
from ..history.worker import MAX_FRAME, PACKAGES_MISSING, frame
from ..server.context import ServerContext, TooManySearches
from ..server.http_request import HttpRequest
from .call import RestCall
from .problems import Problem

log = logging.getLogger("openq.history")

MAX_WORKERS = 2
MAX_WAITING = 256
IDLE_S = 60.0
TASK_S = 300.0  # maximum time of a task
ABANDON_S = 1.0  # how long a worker may continue after its client disconnected
MAX_UNSENT = 256 << 20  # of unread replies; above it no more replies are made
RETRY_S = 0.05
_READ = 256 << 10

Then = Callable[[bytes], None]


class _ReadJob:
    """A task and the request that waits for it."""

    __slots__ = ("call", "is_over", "task", "then", "tries")

    def __init__(self, call: RestCall, task: dict[str, Any], then: Then) -> None:
        self.call = call
        self.task = task
        self.then = then
        self.tries = 0
        self.is_over = False  # the client disconnected

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.call.request.on_gone = None
            self.call.request.run_guarded(self.call.fail, error)

    def allowed(self, names: list[str]) -> list[str]:
        """The queues, by qualified name, whose messages the caller may peek."""
        return [name for name in names if self.call.may_peek(name)]


class _ReaderProcess:
    """A worker process and the socket to it. Everything runs on the loop without blocking."""

    def __init__(self, readers: ReaderPool) -> None:
        self._readers = readers
        self._loop = readers.context.loop
        ours, theirs = socket.socketpair()
        self._end: socket.socket | None = ours
        with theirs:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                # No imports from the working directory, and no secrets in the environment.
                [sys.executable, "-P", "-m", _program(readers.context), str(theirs.fileno())],
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
        self.job: _ReadJob | None = None
        self._loop.add_reader(ours.fileno(), self._readable)

    def start(self, job: _ReadJob) -> None:
        self.job = job
        job.tries += 1
        self._wait(TASK_S, self._too_long)
        self._send(job.task)

    def abandon(self) -> None:
        """The client disconnected: the task ends soon, or is killed."""
        self._wait(ABANDON_S, self._kill)

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
            self._handle_message(msgspec.json.decode(said))

    def _handle_message(self, said: dict[str, Any]) -> None:
        job = self.job
        if job is None:
            self.close()
            return
        if "ask" in said:
            # A disconnected client may see no queue, which ends its task quickly.
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
        """Close the socket; the process ends then."""
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

        def close_lost() -> None:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        with suppress(RuntimeError):  # the context is closed: the system does it
            self._readers.context.run(close_lost, lambda result, error: None)


_TRIES = 2


def _program(context: ServerContext) -> str:
    tables = context.broker.history.tables
    assert tables is not None
    return tables.worker


class ReaderPool:
    """The workers of a server, and the tasks that wait for them."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._workers: set[_ReaderProcess] = set()
        self._idle: list[_ReaderProcess] = []
        self._waiting: deque[_ReadJob] = deque()
        self._ending = False
        self._fetched = 0  # bytes of replies that are read from workers
        self._answered: set[HttpRequest] = set()  # requests whose replies may be unread
        self._looking = False

    def submit(self, call: RestCall, task: dict[str, Any], then: Then) -> None:
        if self._ending:
            raise Closed()
        if len(self._waiting) >= MAX_WAITING:
            raise TooManySearches()
        job = _ReadJob(call, task, then)

        def gone() -> None:
            job.is_over = True
            with suppress(ValueError):
                self._waiting.remove(job)
            for worker in self._workers:
                if worker.job is job:
                    worker.abandon()

        call.request.on_gone = gone
        self.context.long_polls.add(self)
        self._waiting.append(job)
        self._start()

    def unsent(self) -> int:
        """Bytes of replies in memory."""
        sizes = {request: request.unsent for request in self._answered}
        self._answered = {request for request, size in sizes.items() if size}
        return self._fetched + sum(sizes.values())

    def hold(self, request: HttpRequest) -> None:
        """Count a large reply until it is sent."""
        self._answered.add(request)

    def _has_capacity(self) -> bool:
        if self.unsent() < MAX_UNSENT:
            return True
        if not self._looking:
            self._looking = True
            self.context.loop.call_later(RETRY_S, self._retry_later)
        return False

    def _retry_later(self) -> None:
        self._looking = False
        if not self._ending:
            self._start()

    def _start(self) -> None:
        while self._waiting and (self._idle or len(self._workers) < MAX_WORKERS) and self._has_capacity():
            if self._idle:
                worker = self._idle.pop()
            else:
                try:
                    worker = _ReaderProcess(self)
                except OSError as error:
                    log.error("no process to read history with: %s", error)
                    self._waiting.popleft().fail(_problem("internal_error", "no process could be started"))
                    continue
                self._workers.add(worker)
            worker.start(self._waiting.popleft())

    def next_for(self, worker: _ReaderProcess) -> None:
        if self._ending:
            worker.close()
        elif self._waiting and self._has_capacity():
            worker.start(self._waiting.popleft())
        else:
            self._idle.append(worker)
            worker.rest(IDLE_S)

    def left(self, worker: _ReaderProcess, job: _ReadJob | None) -> None:
        """A worker ended; its task is repeated by another one."""
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if job is not None and not job.is_over:
            if job.tries < _TRIES and not self._ending:
                self._waiting.appendleft(job)
            else:
                log.error("a process that reads history ended in the middle")
                job.fail(_problem("internal_error", "the process that reads history ended in the middle"))
        if not self._ending:
            self._start()

    def fetch(self, job: _ReadJob, handle: int, size: int) -> None:
        """The reply is in a file; reading it into memory is a copy, which runs off the loop."""

        def read() -> bytes:
            try:
                data = os.pread(handle, size, 0)
                while len(data) < size:  # more than one read returns
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
            job.call.request.run_guarded(job.then, data)
            self.hold(job.call.request)

        if job.is_over:
            os.close(handle)
        else:
            self._fetched += size
            self.context.run(read, done)

    def end(self) -> None:
        """The server stops: waiting tasks fail, running ones are finished."""
        self._ending = True
        while self._waiting:
            self._waiting.popleft().fail(Closed())
        for worker in list(self._idle):
            worker.close()


def _problem(code: str, detail: str) -> Problem:
    if code == PACKAGES_MISSING:
        log.error("history cannot be read as columns: %s", detail)
        detail = "this server cannot read its history as columns: pyarrow is not installed there"
    if code == "internal_error":
        log.error("reading history failed: %s", detail)
        detail = ""
    return Problem(code, hide_paths(detail))


def require_reply_capacity(context: ServerContext) -> None:
    """Large replies that are made elsewhere count as well. Raises TooManySearches."""
    if reader_pool(context).unsent() >= MAX_UNSENT:
        raise TooManySearches()


def count_unsent(context: ServerContext, request: HttpRequest) -> None:
    reader_pool(context).hold(request)


_reader_pools: WeakKeyDictionary[ServerContext, ReaderPool] = WeakKeyDictionary()


def reader_pool(context: ServerContext) -> ReaderPool:
    readers = _reader_pools.get(context)
    if readers is None:
        readers = _reader_pools[context] = ReaderPool(context)
    return readers
