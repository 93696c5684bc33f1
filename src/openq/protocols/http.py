"""HTTP/1.1 for every door: one `asyncio.Protocol` on httptools, no task and no future per request.

A handler is a plain function. It gets a whole `Request` and answers it once, at once or later. Requests
of one connection are handled one after the other, so pipelined answers keep their order. What is too
large, too slow or ambiguous is refused before memory is spent on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import httptools

log = logging.getLogger("openq.http")

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 << 10
MAX_PIPELINED = 64
WRITE_HIGH = 1 << 20
# A body may take this long in all, besides the timeout: nobody needs an hour for a kilobyte.
SLOWEST_BYTES_PER_S = 10_000
_TEXT = b"text/plain; charset=utf-8"

STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

Handler = Callable[["Request"], None]


class Request:
    """One request, whole. The handler answers it exactly once, on the loop."""

    __slots__ = (
        "_connection",
        "body",
        "fields",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "path",
        "query",
        "target",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        fields: dict[bytes, bytes],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.target = target  # as on the wire: signatures are over these bytes
        path, _, query = target.decode("latin-1").partition("?")
        self.path = path
        self.query = query
        self.headers = headers  # names in lower case, in order
        self.fields = fields  # the same by name; of several, the last
        self.body = body
        self.keep_alive = keep_alive
        self.gone = False  # the client hung up; an answer goes nowhere
        self.on_gone: Callable[[], None] | None = None

    def header(self, name: bytes) -> bytes | None:
        return self.fields.get(name)

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def is_tls(self) -> bool:
        return self._connection.is_tls

    def answer(self, status: int, body: bytes, content_type: bytes, headers: bytes = b"") -> None:
        """`headers` are further lines, each with its CRLF."""
        self._connection.answer(self, status, body, content_type, headers)


class _Refused(Exception):
    """Raised inside a callback to stop the parser; the connection knows the rest."""


class Limits:
    """What a listener grants its clients. Seconds and bytes."""

    __slots__ = ("body_s", "connections", "head_s", "idle_s", "request_bytes")

    def __init__(
        self,
        *,
        request_bytes: int = 20 << 20,
        connections: int = 20_000,
        head_s: float = 10.0,
        body_s: float = 30.0,
        idle_s: float = 120.0,
    ) -> None:
        self.request_bytes = request_bytes
        self.connections = connections
        self.head_s = head_s
        self.body_s = body_s
        self.idle_s = idle_s


class Listener:
    """Everything that the connections of one server share: the handler, limits, a coarse clock."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.connections: set[Connection] = set()
        self.draining = False
        self.requests = 0
        self.now = time.monotonic()
        self.date = b""
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep(loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once a second: the clock, the Date header, and whoever is too slow."""
        self.now = now = time.monotonic()
        self.date = b"Date: " + formatdate(usegmt=True).encode() + b"\r\n"
        late = [each for each in self.connections if 0 < each.deadline < now]
        for connection in late:
            connection.too_late()
        self._sweeper = loop.call_later(1.0, self._sweep, loop)

    def make(self) -> Connection:
        return Connection(self)

    def drain(self) -> None:
        """No more requests than those that are here. Idle connections are closed at once."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_size",
        "_closing",
        "_current",
        "_fields",
        "_head_size",
        "_headers",
        "_in_head",
        "_in_message",
        "_listener",
        "_offered",
        "_parser",
        "_paused",
        "_pumping",
        "_refusal",
        "_target",
        "_transport",
        "_waiting",
        "deadline",
        "is_tls",
        "peer",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._head_size = 0
        self._in_head = False
        self._in_message = False
        self._offered = b""
        self._fields: dict[bytes, bytes] = {}
        self._current: Request | None = None
        self._waiting: deque[Request] = deque()
        self._pumping = False
        self._paused = False
        self._closing = False
        self._refusal: tuple[int, str] | None = None
        self.deadline = 0.0  # of the listener's clock; 0 = none
        self.peer = ""
        self.is_tls = False

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        listener = self._listener
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)
        if len(listener.connections) >= listener.limits.connections or listener.draining:
            self._refuse(503, "too many connections" if not listener.draining else "shutting down")
            return
        listener.connections.add(self)
        self.deadline = listener.now + listener.limits.idle_s

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._closing = True
        self.deadline = 0.0
        current, self._current = self._current, None
        self._waiting.clear()
        if current is not None:
            current.gone = True
            if current.on_gone is not None:
                current.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD_BYTES:
                # The parser would go on to collect one endless header.
                self._refuse(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An offer to speak something else, which a server may pass over (Java's client makes one). The
            # parser stops after the head; another one goes on, as if the offer had not been there.
            self._parser = httptools.HttpRequestParser(self)
            head, self._offered = self._offered, b""
            self.data_received(head + data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if self._refusal is None:
                log.error("a callback of the parser failed", exc_info=error)
                self._refusal = (500, "internal error")
            self._refuse(*self._refusal)
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a valid HTTP request: {error}")

    def pause_writing(self) -> None:
        """The client does not read its answers: no more of its requests until it does."""
        self._paused = True
        self.deadline = self._listener.now + self._listener.limits.body_s
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        assert self._transport is not None
        if not self._closing:
            self._transport.resume_reading()
            self._rest()
            self._pump()

    # -- from the parser

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._body = []
        self._body_size = 0
        self._head_size = 0
        self._in_head = self._in_message = True
        if self._current is None:
            self.deadline = self._listener.now + self._listener.limits.head_s

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nothing that comes after the body may change what the head said
        headers = self._headers
        headers.append((name.lower(), value))
        if len(headers) > MAX_HEADERS or len(value) > MAX_HEAD_BYTES:
            self._stop(431, f"more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = self._headers
        self._fields = fields = dict(headers)
        limits = self._listener.limits
        if len(self._target) + sum(map(len, fields.values())) > MAX_HEAD_BYTES:
            self._stop(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
        if len(fields) != len(headers) and sum(name == b"host" for name, _ in headers) > 1:
            self._stop(400, "exactly one Host header is needed")
        if self._parser.get_method() == b"CONNECT":
            self._stop(501, "this is no proxy")
        if b"upgrade" in fields and self._parser.should_upgrade():
            kept = [(n, v) for n, v in headers if n not in (b"upgrade", b"connection", b"http2-settings")]
            lines = b"".join(b"%b: %b\r\n" % each for each in kept)
            self._offered = b"%b %b HTTP/1.1\r\n%b\r\n" % (self._parser.get_method(), self._target, lines)
            return
        version = self._parser.get_http_version()
        if version != "1.1":
            if version != "1.0":
                self._stop(505, "HTTP/1.1 is spoken here")
            if b"transfer-encoding" in fields:
                self._stop(400, "HTTP/1.0 has no transfer encodings")
        elif b"host" not in fields:
            self._stop(400, "exactly one Host header is needed")
        size = int(fields.get(b"content-length", 0))
        if b"transfer-encoding" in fields:
            if fields[b"transfer-encoding"].strip().lower() != b"chunked":
                self._stop(501, "the only transfer encoding is chunked")
        elif not size:
            return
        if size > limits.request_bytes:
            self._stop(413, f"a request body has at most {limits.request_bytes} bytes")
        if self._current is None:
            self.deadline = self._listener.now + limits.body_s + size / SLOWEST_BYTES_PER_S
        if b"expect" in fields:
            if fields[b"expect"].lower() != b"100-continue":
                self._stop(417, "the only expectation is 100-continue")
            # Not while an answer to an earlier request is due: that comes first.
            if self._current is None and version == "1.1":
                assert self._transport is not None
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > self._listener.limits.request_bytes:
            self._stop(413, f"a request body has at most {self._listener.limits.request_bytes} bytes")
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._offered:
            return  # begins anew, without the offer
        parser = self._parser
        body = self._body
        self._in_message = False
        request = Request(
            self,
            parser.get_method().decode("ascii"),
            self._target,
            self._headers,
            self._fields,
            body[0] if len(body) == 1 else b"".join(body),
            parser.should_keep_alive(),
        )
        if self._current is None and not self._pumping and not self._paused:
            self._start(request)
            return
        self._waiting.append(request)
        if len(self._waiting) == MAX_PIPELINED:
            assert self._transport is not None
            self._transport.pause_reading()

    def _stop(self, status: int, text: str) -> None:
        self._refusal = (status, text)
        raise _Refused

    # -- handling

    def _start(self, request: Request) -> None:
        self._current = request
        self.deadline = 0.0
        listener = self._listener
        listener.requests += 1
        try:
            listener.handler(request)
        except Exception:
            log.exception("a request failed: %s %s", request.method, request.path)
            if self._current is request:
                request.answer(500, b"internal error; the log says more\n", _TEXT)

    def _pump(self) -> None:
        """Those that came while another was being handled; in a loop, not by recursion."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and self._current is None and not self._paused and not self._closing:
                if len(self._waiting) == MAX_PIPELINED and self._transport is not None:
                    self._transport.resume_reading()
                self._start(self._waiting.popleft())
        finally:
            self._pumping = False

    def answer(self, request: Request, status: int, body: bytes, content_type: bytes, headers: bytes) -> None:
        if request.gone or self._closing:
            return
        assert self._current is request, "a request is answered once, and in its turn"
        self._current = None
        transport = self._transport
        assert transport is not None
        listener = self._listener
        keep = request.keep_alive and not listener.draining
        if not keep:
            headers += b"Connection: close\r\n"
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
            STATUS[status],
            content_type,
            len(body),
            listener.date,
            headers,
        )
        transport.write(head + body if request.method != "HEAD" else head)
        if not keep:
            self._close()
            return
        if not self._paused:
            self._rest()
        if self._waiting:
            self._pump()

    def _rest(self) -> None:
        if self._current is None:
            limits = self._listener.limits
            self.deadline = self._listener.now + (limits.head_s if self._in_message else limits.idle_s)

    # -- the end

    def _refuse(self, status: int, text: str) -> None:
        """An answer for what is not a request; afterwards nothing on this connection can be trusted."""
        if self._closing or self._transport is None:
            return
        body = f"{text}\n".encode("utf-8", "backslashreplace")
        if self._current is None and not self._waiting:
            self._transport.write(
                b"%bContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                % (STATUS[status], _TEXT, len(body), body)
            )
        self._close()

    def _close(self) -> None:
        self._closing = True
        self._waiting.clear()
        if self._transport is not None:
            # What is written goes out first; a client that does not take it is cut off in time.
            self.deadline = self._listener.now + self._listener.limits.body_s
            self._transport.close()

    def too_late(self) -> None:
        if self._closing or self._paused:
            self.abort()
        elif self._in_message:
            self._refuse(408, "the request took too long")
        else:
            self._close()

    def close_if_idle(self) -> None:
        if self._current is None and not self._waiting:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def host_of(request: Request) -> str:
    """The Host header as text; empty for HTTP/1.0 clients without one."""
    value = request.header(b"host")
    return "" if value is None else value.decode("latin-1").strip()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is a wheel of it: nearly twice the requests per second."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
