"""The log of a server process: where its lines go, the log of requests, and that of slow operations."""

from __future__ import annotations

import asyncio
import atexit
import logging
import select
import sys
import time
from collections.abc import Callable

from ..config import Config
from ..logs import JsonLines, LogWriter, TextLines, emit, log_uncaught
from ..trace_context import read_parent
from .http_request import Handler, HttpRequest

log = logging.getLogger("openq.requests")
slow_log = logging.getLogger("openq.slow")

_MAX_PATH = 200
_LAG_INTERVAL_S = 0.1  # how often the delay of the event loop is measured


def set_up_logging(config: Config, process: int = 0) -> LogWriter:
    """All lines of this process go to stderr, those of libraries and of uncaught errors too. `process` is its
    number, if the server has several.
    """
    handler = LogWriter(sys.stderr, max_write_bytes=select.PIPE_BUF if process else None)
    more = {"process": process} if process else None
    handler.setFormatter(JsonLines(more) if log_kind(config) == "json" else TextLines(process))
    ours = logging.getLogger("openq")
    ours.handlers[:] = [handler]
    ours.propagate = False
    ours.setLevel(config.log_level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log_uncaught(ours)
    atexit.register(handler.flush)
    return handler


def log_kind(config: Config) -> str:
    if config.log_format != "auto":
        return config.log_format
    return "text" if sys.stderr.isatty() else "json"


def log_writer() -> LogWriter | None:
    """The writer of this process; None in a program that has set up its own log."""
    handlers = logging.getLogger("openq").handlers
    return next((each for each in handlers if isinstance(each, LogWriter)), None)


def log_kind_of(writer: LogWriter) -> str:
    return "json" if isinstance(writer.formatter, JsonLines) else "text"


class RequestLog:
    """Logs requests on demand, and those that take long. Requests cost nothing while both are off."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.logs_all = False
        self.slow_s = 0.0

    @property
    def is_on(self) -> bool:
        return self.logs_all or self.slow_s > 0

    def handle(self, request: HttpRequest) -> None:
        start_s = time.perf_counter()

        def answered(status: int, size: int) -> None:
            duration_s = time.perf_counter() - start_s
            if self.logs_all:
                _log_request(log, "request", request, status, size, duration_s)
            # A long poll that waits for a message is not slow.
            if 0 < self.slow_s < duration_s and not request.waited:
                _log_request(slow_log, "slow_request", request, status, size, duration_s, logging.WARNING)

        request.when_answered(answered)
        self._handler(request)


def _log_request(
    log: logging.Logger,
    event: str,
    request: HttpRequest,
    status: int,
    size: int,
    duration_s: float,
    level: int = logging.INFO,
) -> None:
    target = request.header(b"x-amz-target")
    emit(
        log,
        level,
        event,
        protocol="http",
        conn=request.peer,
        user=request.user or None,
        method=request.method,
        # Without the query: a client may put a secret there.
        path=request.path[:_MAX_PATH],
        action=None if target is None else target.decode("latin-1")[:_MAX_PATH],
        status=status or None,
        gone=True if status == 0 else None,
        request_bytes=len(request.body),
        reply_bytes=size,
        duration_s=round(duration_s, 6),
        trace_id=trace_id_of(request.header(b"traceparent")),
    )


def trace_id_of(traceparent: bytes | str | None) -> str | None:
    """The trace id in a W3C `traceparent`; None if there is none."""
    text = traceparent.decode("latin-1") if isinstance(traceparent, bytes) else traceparent
    parent = read_parent(text)
    return None if parent is None else parent.trace_id


class LoopWatch:
    """Logs when the event loop was held up for longer than the limit: everything waits then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slow_s: Callable[[], float]) -> None:
        self._loop = loop
        self._slow_s = slow_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None and self._slow_s() > 0:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        due_s = self._loop.time() + _LAG_INTERVAL_S
        self._timer = self._loop.call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._timer = None
        slow_s = self._slow_s()
        late_s = self._loop.time() - due_s
        if 0 < slow_s < late_s:
            emit(slow_log, logging.WARNING, "slow_event_loop", duration_s=round(late_s, 6))
        self.start()
