"""Log lines: text for terminals, JSON for programs, and a writer that never blocks its caller.

A line is a sentence (`log.info("...")`), or an event with fields (`emit`). As JSON every line is one object
with `ts`, `level`, `event` and `logger`; an event adds its fields. Common fields have one name everywhere:
`queue`, `message_id`, `conn` (the address of a client), `protocol`, `user`, `trace_id`, `duration_s`. Units
are suffixes. No field holds a password, a token, a secret or the body of a message.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

# The level of state changes: above info, so that it has a name of its own; `openq.events` sets its own level.
EVENT = 22
logging.addLevelName(EVENT, "EVENT")

MAX_WAITING_LINES = 20_000  # lines that wait for a slow reader; later ones are dropped and counted
MAX_FIELD_CHARACTERS = 2_000
CLOSE_S = 2.0  # how long the end of the process waits for a reader of the log

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")


def emit(log: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log an event with its fields. Fields that are None are left out."""
    if log.isEnabledFor(level):
        log.log(level, "%s", event, extra={"fields": fields})


class SlowLog:
    """Logs operations of this process that take longer than a limit."""

    def __init__(self) -> None:
        self.limit_s = 0.0  # 0: none is logged
        self._log = logging.getLogger("openq.slow")

    def check(self, event: str, duration_s: float, **fields: object) -> None:
        if 0 < self.limit_s < duration_s:
            emit(self._log, logging.WARNING, event, duration_s=round(duration_s, 6), **fields)


SLOW = SlowLog()


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, "fields", {})
    return found


def timestamp(record: logging.LogRecord) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{when}.{int(record.msecs):03d}Z"


class JsonLines(logging.Formatter):
    """One JSON object per line; names that clients choose cannot inject lines."""

    def __init__(self, more: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._more = dict(more or {})  # the same for every line of a process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            if value is not None and name not in line:
                line[name] = value[:MAX_FIELD_CHARACTERS] if isinstance(value, str) else value
        line["logger"] = record.name
        line.update(self._more)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """One line per event; only tracebacks have more."""

    def __init__(self, process: int = 0) -> None:
        """`process` is the number of this process, if there are several."""
        shown = f"[{process}] " if process else ""
        super().__init__(f"%(asctime)s %(levelname)s {shown}%(name)s: ")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        text = self.formatMessage(record) + _one_line(record.message)
        pairs = [f"{name}={_shown(value)}" for name, value in fields_of(record).items() if value is not None]
        text = " ".join((text, *pairs))
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text[:MAX_FIELD_CHARACTERS]
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class LogWriter(logging.Handler):
    """Hands lines to a thread that writes them: a reader that stalls must not stall the server.

    Lines that find no room are dropped and counted in `dropped`; the log says so when it is read again.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        max_lines: int = MAX_WAITING_LINES,
        max_write_bytes: int | None = None,
    ) -> None:
        """Several processes may write to one pipe: what they write with one call must not be too long for it
        (`max_write_bytes`), or lines would be mixed up. A single line may be longer.
        """
        super().__init__()
        self._max_write_bytes = max_write_bytes
        self._stream = stream or sys.stderr
        self._max_lines = max_lines
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._is_closed = False
        self._reported = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="openq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            # Errors get through where the lines of requests and events have filled the room.
            room = self._max_lines if record.levelno < logging.WARNING else 2 * self._max_lines
            if len(self._waiting) >= room:
                self.dropped += 1
                return
            self._waiting.append(line)
            self._changed.notify_all()

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be formatted is a bug of ours; the standard one would print a traceback."""
        with self._changed:
            self.dropped += 1

    def add_lines(self, lines: Sequence[str]) -> None:
        """Formatted already, for a thread that has waited for room; none is dropped."""
        with self._changed:
            self._waiting.extend(lines)
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until half of the room is free; for threads that can wait. False: there is none yet."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed or len(self._waiting) < self._max_lines // 2, timeout_s
            )

    def flush(self) -> None:
        """Wait until all lines are written, but not for ever."""
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._writing) or self._is_closed, CLOSE_S)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting) or self._is_closed)
                if not self._waiting:
                    return
                lines = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1_000))]
                self._writing = True
                dropped, self._reported = self.dropped - self._reported, self.dropped
            if dropped:
                lines.append(self.format(_dropped_record(dropped)))
            for some in self._pieces(lines):
                self._write("\n".join(some) + "\n", len(some))

    def _pieces(self, lines: list[str]) -> Iterator[list[str]]:
        """What is written with one call each."""
        if self._max_write_bytes is None:
            yield lines
            return
        some: list[str] = []
        size = 0
        for line in lines:
            line_bytes = len(line.encode(errors="replace")) + 1
            if some and size + line_bytes > self._max_write_bytes:
                yield some
                some, size = [], 0
            some.append(line)
            size += line_bytes
        if some:
            yield some

    def _write(self, text: str, count: int) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed by its reader, or a full disk: there is nowhere to say it
            with self._changed:
                self.dropped += count


def _dropped_record(count: int) -> logging.LogRecord:
    text = "log_lines_dropped"
    record = logging.LogRecord("openq.logs", logging.WARNING, "", 0, text, None, None)
    record.fields = {"count": count}
    return record


def log_uncaught(log: logging.Logger) -> None:
    """Errors that nothing catches, and warnings of Python, become log lines."""
    logging.captureWarnings(True)

    def main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("uncaught error", exc_info=(kind, error, trace))

    def in_thread(given: Any) -> None:
        if given.exc_type is not SystemExit:
            name = given.thread.name if given.thread is not None else "?"
            trace = (given.exc_type, given.exc_value, given.exc_traceback)
            log.critical("uncaught error in thread %s", name, exc_info=trace)

    def unraisable(given: Any) -> None:
        log.error(
            "%s: %r",
            given.err_msg or "error ignored in",
            given.object,
            exc_info=(given.exc_type, given.exc_value, given.exc_traceback),
        )

    sys.excepthook = main
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
