"""What the fuzz tests of all protocols share: a transport in memory, the log, answers of HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import typing
from collections.abc import Callable
from typing import Any

from openq.server.http import HttpConnection

_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\r\n\0]*")
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [A-Za-z' -]+")
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")


class FuzzFailure(AssertionError):
    """Something a server must not do, with what made it."""


class MemoryTransport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = False
        self.is_gone = False  # the client has left, and the server does not know it yet
        self._loop = loop
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: Any) -> None:
        if self.is_gone:
            return
        assert not self.closed, "written after the end"
        self.written += data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            protocol = typing.cast(asyncio.Protocol, self.protocol)
            self._loop.call_soon(protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0  # its readers are never behind

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_answered(self, connection: HttpConnection) -> bool:
        """A stream of events closes its socket at its end."""
        return self.protocol is connection and connection._current is None and not connection._waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if _UNPRINTABLE.search(text):
            self.errors.append(f"a log line with control characters: {text!r}")
        if record.levelno >= logging.ERROR:
            self.errors.append(logging.Formatter().format(record))


def answers_in(data: bytes, wrote_head: Callable[[int], bool] = lambda _: False) -> list[tuple[int, bytes]]:
    """Status and body of each answer; raises Found if that is no HTTP."""
    found: list[tuple[int, bytes]] = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if not end or status is None or not all(map(_FIELD.fullmatch, lines)):
            raise FuzzFailure(f"an answer that is no HTTP: {head!r}")
        code = int(status[1])
        if code == 100:
            continue
        size = 0
        if b"Content-Type: text/event-stream" in lines:
            size = len(data)  # it ends with the connection
        for line in lines:
            if line.lower().startswith(b"content-length: "):
                size = int(line[16:])
        if wrote_head(len(found)):
            size = 0
        if len(data) < size:
            raise FuzzFailure(f"an answer that is too short: {head!r}")
        found.append((code, data[:size]))
        data = data[size:]
    return found
