"""HTTP/1.1 for all protocols: one `asyncio.Protocol` on httptools, no task and no future per request.

A handler is a plain function. It gets a complete `HttpRequest` and answers it once, at once or later. The
requests of a connection are handled one after the other, so pipelined replies keep their order. Requests that
are too large, too slow or ambiguous are rejected before memory is spent on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from . import http_checks
from .admission import MAX_LINGERING
from .buffers import SMALL
from .cached_head import MAX_CACHE_TRIES, MAX_CACHED_HEADS, CachedHead, cached_head
from .http_checks import MAX_HEAD_BYTES, MAX_HEADERS
from .http_names import METHODS, SINGLE_HEADERS, STATUS
from .http_request import NO_HEADERS, HttpRequest
from .http_stream import HttpStream, StreamSource, peer_port
from .http_upgrade import PendingUpgrade, head_without_offer, is_websocket_offer

if TYPE_CHECKING:
    from .listener import Listener

log = logging.getLogger("openq.http")

MAX_PIPELINED = 64
LINGER_S = 5.0  # for clients that are still sending a rejected request
LINGER_BYTES = 64 << 20
LARGE_BODY = 64 << 10  # only one of these is read ahead
WRITE_HIGH = 512 << 10
CHUNK_BYTES = 256 << 10  # of a reply that is written in one loop iteration
# Minimum rate of a body, besides the timeout: a kilobyte does not need an hour.
MIN_BYTES_PER_S = 10_000
_RETRY_AFTER = b"Retry-After: 1\r\n"
_SLASH = ord("/")
_NO_PARSER = httptools.HttpRequestParser(object())


class _RequestRejected(Exception):
    """Raised inside a callback to stop the parser; `_refusal` has status and text."""


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_after_head",
        "_answer",
        "_body",
        "_body_size",
        "_cache_tries",
        "_cached_heads",
        "_chunk",
        "_closing",
        "_current",
        "_deadline_for_head",
        "_fields",
        "_first",
        "_head_size",
        "_held",
        "_in_head",
        "_in_message",
        "_is_closing_after",
        "_linger",
        "_listener",
        "_more",
        "_parser",
        "_paused",
        "_pumping",
        "_queued",
        "_refusal",
        "_repeated",
        "_size",
        "_stalled",
        "_target",
        "_transport",
        "_upgrade",
        "_upgrade_head",
        "_waiting",
        "_written",
        "deadline",
        "is_tls",
        "peer",
    )

    protocol = "http"

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        # The request that is being received.
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._repeated: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._more: bytearray | None = None  # the body, if it arrives in several chunks
        self._body_size = 0
        self._size = 0  # Content-Length
        self._head_size = 0
        self._after_head = 0
        self._held = 0
        self._stalled = False
        self._chunk = 0  # size of the last chunk from the transport
        self._first = b""  # its bytes, if a request begins there
        self._cached_heads: dict[int, CachedHead] = {}  # by the length of the whole request
        self._cache_tries = 0
        self._in_head = False
        self._in_message = False
        self._deadline_for_head: bool | None = None  # the deadline is for: True the head, False the body
        self._upgrade_head = b""  # of an offer that is ignored
        self._upgrade: PendingUpgrade | None = None  # an offer that is passed on to the handler
        # The requests that are being handled.
        self._current: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._queued = 0  # bytes of their bodies
        # A reply of which only the first chunks are written.
        self._answer: memoryview | None = None
        self._written = 0
        self._is_closing_after = False
        self._pumping = False
        self._paused = False
        self._closing = False
        self._refusal: tuple[int, str] | None = None
        self._linger = 0  # bytes that are still read and dropped
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
        self._transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_HIGH // 4)
        if listener.draining:
            self._refuse(503, "shutting down")
            return
        if not listener.admission.enter("http"):
            self._reject_connection()
            return
        listener.connections.add(self)
        self.deadline = listener.now + listener.limits.idle_s

    def _reject_connection(self) -> None:
        """Answer 503; the client can read it even while it is sending. The number of these is limited."""
        listener = self._listener
        assert self._transport is not None
        if listener.admission.lingering >= MAX_LINGERING:
            self._closing = True
            self._transport.abort()
            return
        listener.admission.lingering += 1
        listener.lingering.add(self)
        self._refuse(503, "too many connections; try again later", linger=True)

    def connection_lost(self, error: Exception | None) -> None:
        listener = self._listener
        if self in listener.connections:
            listener.connections.discard(self)
            listener.admission.leave()
        elif self in listener.lingering:
            listener.lingering.discard(self)
            listener.admission.lingering -= 1
        self._closing = True
        self.deadline = 0.0
        # Parser, transport and this object form a cycle: buffers must not wait for the garbage collector.
        self._parser = _NO_PARSER
        self._transport = None
        self._forget()
        self._client_gone()

    def _forget(self) -> None:
        """Free the buffers of a partial request and of unread replies."""
        self._waiting.clear()
        self._queued = 0
        self._fields, self._cached_heads = {}, {}
        self._first = self._upgrade_head = b""
        self._body, self._more = b"", None
        self._answer = None
        if self._held:
            self._held = 0
            self._listener.buffers.hold(self, 0)

    def eof_received(self) -> bool:
        """The client closed its half. True keeps the connection open for pending replies."""
        current = self._current
        if self._answer is not None and not self.is_tls:
            if self._waiting:
                self._waiting[-1].keep_alive = False
            else:
                self._is_closing_after = True
            return True
        if current is None or current.on_gone is not None or self.is_tls or self._closing:
            # Long polls are ended now, not when the transport is closed a moment later: a reply in between
            # would be lost, and its messages with it.
            self._client_gone()
            return False
        # Some clients close their half after the request and then read the reply.
        last = self._waiting[-1] if self._waiting else current
        last.keep_alive = False
        return True

    def _client_gone(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.client_gone()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            if self._linger:
                self._linger -= len(data)
                if self._linger <= 0:
                    self._close()
            return
        if self._upgrade is not None:
            if not self._upgrade.feed(data):
                self._refuse(400, "wait for the answer before you send frames")
            return
        size = len(data)
        known = self._cached_heads.get(size)
        if known is not None and not self._in_message and data.startswith(known.head):
            # The same bytes as before and the same length of the body: the parsed head is reused.
            self._cache_tries = 0
            self._enqueue(
                HttpRequest(
                    self, known.method, known.target, known.fields, NO_HEADERS, data[known.size :], True
                )
            )
            return
        self._chunk = size
        self._first = b"" if self._in_message else data
        if self._in_message:
            data = self._limit_head(data)
        self._feed(data)
        if self._in_message and not self._closing:
            self.report()
            if self._current is None:
                self._set_deadline()

    def report(self) -> None:
        """Report the bytes that are buffered for this client. All connections share a limit: partial requests
        need no authentication, and clients need not read replies."""
        size = self._queued
        if self._in_message:
            size += self._body_size + self._head_size + (self._chunk if self._in_head else 0)
        unsent = self.unsent
        if unsent > SMALL:
            size += unsent
        if size != self._held:
            self._held = size
            self._listener.buffers.hold(self, size)

    def shed(self) -> None:
        """Close this connection: it holds the most bytes, and the limit is exceeded."""
        self._held = 0
        if self._paused or self._closing:
            self.abort()
        else:
            self._refuse(503, "clients make this server hold too many bytes; try again later", _RETRY_AFTER)
            self._body, self._more = b"", None

    def _feed(self, data: bytes) -> None:
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._upgrade is None:
                    self._ignore_upgrade(memoryview(data)[upgrade.args[0] :])
                else:
                    self._upgrade.feed(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if self._refusal is None:
                log.error("a callback of the parser failed", exc_info=error)
                self._refusal = (500, "internal error")
            self._refuse(*self._refusal)
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a valid HTTP request: {error}")

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Ignore an `Upgrade` (Java's client sends one). The parser stops after the head; a new one gets the
        head without it."""
        while True:
            self._parser = httptools.HttpRequestParser(self)
            head, self._upgrade_head = self._upgrade_head, b""
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]

    def _limit_head(self, data: bytes) -> bytes:
        """The part of `data` that the parser may get: it would buffer an endless header."""
        if not self._in_head:
            # The body has its own limit; this one is for empty chunks and trailers.
            if not self._size and self._after_head > MAX_HEAD_BYTES + 16 * self._body_size:
                self._refuse(431, "more around the chunks than in them")
                return b""
            self._after_head += len(data)
            return data
        room = MAX_HEAD_BYTES - self._head_size
        self._head_size += len(data)
        if len(data) <= room:
            return data
        # Only the head is limited, and it may end in this chunk: a small head is often followed by a large
        # body.
        self._feed(data[:room])
        if self._in_head and self._head_size > MAX_HEAD_BYTES:
            self._refuse(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
        return b"" if self._closing else data[room:]

    def _set_deadline(self) -> None:
        """Set the deadline for the rest of a partial request: one for the head, one for the body."""
        if self._deadline_for_head is not self._in_head:
            self._deadline_for_head = self._in_head
            limits = self._listener.limits
            left_s = limits.head_s if self._in_head else limits.body_s + self._size / MIN_BYTES_PER_S
            self.deadline = self._listener.now + left_s

    def pause_writing(self) -> None:
        """The client does not read its replies: read no more requests until it does."""
        self._paused = True
        self.deadline = self._listener.now + self._listener.limits.body_s
        assert self._transport is not None
        self._transport.pause_reading()
        self.report()

    def resume_writing(self) -> None:
        self._paused = False
        assert self._transport is not None
        if self._answer is not None:
            self._write_more()
            return
        self.report()
        if not self._closing:
            if not self._stalled:
                self._transport.resume_reading()
            self._set_idle_deadline()
            self._pump()

    # -- from the parser

    def on_message_begin(self) -> None:
        self._fields = {}
        self._target = b""
        self._body = b""
        self._body_size = self._head_size = self._after_head = 0
        self._in_head = self._in_message = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        name = name.lower()
        if name in fields or not self._in_head:
            self._unusual_header(name, value)
        else:
            fields[name] = value

    def _unusual_header(self, name: bytes, value: bytes) -> None:
        if name in SINGLE_HEADERS and self._in_head:
            self._reject(400, f"more than one header {name.decode()}")
        self._head_size += len(name) + len(value) + 4
        if len(self._repeated) >= MAX_HEADERS or self._head_size > MAX_HEAD_BYTES:
            self._reject(431, f"more than {MAX_HEADERS} headers")
        # Trailers are dropped: they must not change the head.
        if self._in_head:
            self._repeated.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        fields = self._fields
        version = self._parser.get_http_version()
        if (
            version != "1.1"
            or b"host" not in fields
            or b"transfer-encoding" in fields
            or b"expect" in fields
            or b"upgrade" in fields
            or self._chunk > MAX_HEAD_BYTES
            or len(fields) > MAX_HEADERS
            or self._target[0] != _SLASH
        ):
            self._check_unusual(version)
        self._size = size = int(fields.get(b"content-length", 0))
        if size > self._listener.limits.request_bytes:
            self._reject(413, f"a request body has at most {self._listener.limits.request_bytes} bytes")

    def _check_unusual(self, version: str) -> None:
        fields, method = self._fields, self._parser.get_method()
        if refusal := http_checks.head_refusal(method, self._target, version, fields):
            self._reject(*refusal)
        if b"upgrade" in fields and self._parser.should_upgrade():
            if is_websocket_offer(method, self._target, version, fields):
                self._upgrade = PendingUpgrade()
            else:
                self._upgrade_head = head_without_offer(method, self._target, version, fields)
            return
        if refusal := http_checks.body_refusal(version, fields):
            self._reject(*refusal)
        if http_checks.expects_continue(version, fields):
            # Not while an earlier reply is pending: that is sent first. Nor for a body that is too large:
            # that is refused in a moment.
            is_free = self._current is None and self._answer is None
            if is_free and int(fields.get(b"content-length", 0)) <= self._listener.limits.request_bytes:
                assert self._transport is not None
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > self._listener.limits.request_bytes:
            self._reject(413, f"a request body has at most {self._listener.limits.request_bytes} bytes")
        if self._more is not None:
            self._more += data
        elif self._body:
            # Not a list of chunks: chunks of two bytes would cost thirty times their size.
            self._more = bytearray(self._body)
            self._more += data
        else:
            self._body = data

    def on_message_complete(self) -> None:
        if self._upgrade_head:
            return  # starts again, without the offer
        self._in_message = False
        self._deadline_for_head = None
        if self._held:
            self.report()
        body = self._body
        if self._more is not None:
            body = bytes(self._more)
            self._more = None
        repeated: list[tuple[bytes, bytes]] = NO_HEADERS
        if self._repeated:
            repeated, self._repeated = self._repeated, []
        parser = self._parser
        request = HttpRequest(
            self,
            METHODS.get(parser.get_method()) or parser.get_method().decode("ascii"),
            self._target,
            self._fields,
            repeated,
            body,
            parser.should_keep_alive() and self._upgrade is None,
        )
        if self._first and request.keep_alive and not repeated:
            self._cache_head(request)
        self._enqueue(request)

    def _cache_head(self, request: HttpRequest) -> None:
        """Cache the head: most clients send the same one again, which then needs no parsing.

        Clients that sign requests never do; after some tries their heads are not cached.
        """
        data, self._first = self._first, b""
        if self._cache_tries == MAX_CACHE_TRIES:
            self._cached_heads = {}
            return
        self._cache_tries += 1
        cached = cached_head(data, request, self._size)
        if cached is not None:
            if len(self._cached_heads) == MAX_CACHED_HEADS:
                self._cached_heads = {}
            self._cached_heads[len(data)] = cached

    def _enqueue(self, request: HttpRequest) -> None:
        if self._closing:
            return  # behind the last request of this connection
        if self._current is None and self._answer is None and not self._pumping and not self._paused:
            self._start(request)
            return
        self._waiting.append(request)
        self._queued += len(request.body)
        if self._queued > SMALL:
            self.report()
        if len(self._waiting) == MAX_PIPELINED or len(request.body) > LARGE_BODY:
            assert self._transport is not None
            self._stalled = True
            self._transport.pause_reading()

    def _reject(self, status: int, text: str) -> None:
        self._refusal = (status, text)
        raise _RequestRejected

    # -- inspection

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    @property
    def peer_port(self) -> int:
        return peer_port(self._transport)

    # -- handling

    def _start(self, request: HttpRequest) -> None:
        self._current = request
        self.deadline = 0.0
        listener = self._listener
        listener.requests += 1
        try:
            listener.handler(request)
        except Exception:
            log.exception("a request failed: %s %r", request.method, request.path[:200])
            self.fail(request)

    def fail(self, request: HttpRequest) -> None:
        if self._current is request:
            request.answer(500, b"internal error; see the log of the server\n", http_checks.TEXT)

    def _pump(self) -> None:
        """Start the requests that arrived while another was handled; in a loop, not by recursion."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (
                self._waiting
                and self._current is None
                and self._answer is None
                and not self._paused
                and not self._closing
            ):
                if self._stalled and len(self._waiting) == 1 and self._transport is not None:
                    self._stalled = False
                    self._transport.resume_reading()
                request = self._waiting.popleft()
                self._queued -= len(request.body)
                if self._held:
                    self.report()
                self._start(request)
        finally:
            self._pumping = False

    def answer(
        self, request: HttpRequest, status: int, body: bytes, content_type: bytes, headers: bytes
    ) -> None:
        if request.gone or self._closing:
            return
        assert self._current is request, "a request is answered once, in order"
        self._current = None
        transport = self._transport
        assert transport is not None
        listener = self._listener
        keep = request.keep_alive and not listener.draining
        if not keep:
            headers += b"Connection: close\r\n"
        size = len(body)
        if request.method == "HEAD" or status == 304:
            body = b""
        elif size > CHUNK_BYTES:
            head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n"
            self._answer, self._written, self._is_closing_after = memoryview(body), 0, not keep
            transport.write(head % (STATUS[status], content_type, size, listener.date, headers))
            self.report()
            self._write_more()
            return
        transport.write(
            b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n%b"
            % (STATUS[status], content_type, size, listener.date, headers, body)
        )
        if not keep:
            self._close()
            return
        if not self._paused:
            self._set_idle_deadline()
        if self._waiting:
            self._pump()

    def upgrade(self, request: HttpRequest, protocol: asyncio.Protocol, headers: bytes) -> None:
        """Answer 101 and pass the socket on to `protocol`, with its place in the admission."""
        assert self._upgrade is not None, "the request offered an upgrade"
        pending = self._upgrade
        self._hand_over(request, b"%b%b%b\r\n" % (STATUS[101], self._listener.date, headers), protocol)
        early, pending.early, pending.protocol = pending.early, b"", protocol
        if early:
            protocol.data_received(early)

    def stream(
        self, request: HttpRequest, source: StreamSource, content_type: bytes, headers: bytes
    ) -> HttpStream | None:
        if request.gone or self._closing:
            return None
        stream = HttpStream(self._listener, self.peer, source)
        head = b"%bContent-Type: %b\r\n%b%bConnection: close\r\n\r\n"
        self._hand_over(request, head % (STATUS[200], content_type, self._listener.date, headers), stream)
        return stream

    def _hand_over(self, request: HttpRequest, head: bytes, protocol: asyncio.Protocol) -> None:
        """Write the head of a response and pass the socket on, with its place in the admission."""
        assert self._current is request, "a request is answered once, in order"
        transport = self._transport
        assert transport is not None
        self._listener.connections.discard(self)
        self._current = self._transport = None
        self._parser = _NO_PARSER
        self._closing = True
        self.deadline = 0.0
        self._forget()
        transport.write(head)
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.connection_made(transport)

    def _write_more(self) -> None:
        """Write one chunk of a large reply per loop iteration, and no more than the client reads."""
        answer, transport = self._answer, self._transport
        if answer is None or transport is None or self._paused:
            return  # `resume_writing` continues
        end = self._written + CHUNK_BYTES
        transport.write(answer[self._written : end])
        self._written = end
        if end < len(answer):
            asyncio.get_running_loop().call_soon(self._write_more)
            return
        self._answer = None
        if self._held:
            self.report()
        if self._is_closing_after or (self._listener.draining and not self._waiting):
            self._close()
            return
        if not self._paused:
            if not self._stalled:
                transport.resume_reading()
            self._set_idle_deadline()
            self._pump()

    @property
    def can_upgrade(self) -> bool:
        return self._upgrade is not None

    @property
    def unsent(self) -> int:
        """Bytes of replies that the client has not read."""
        # A closing transport still sends its buffer.
        transport = self._transport
        if transport is None:
            return 0
        rest = 0 if self._answer is None else len(self._answer) - self._written
        return transport.get_write_buffer_size() + rest

    def _set_idle_deadline(self) -> None:
        if self._current is None and self._in_message:
            self._set_deadline()
        elif self._current is None:
            self.deadline = self._listener.now + self._listener.limits.idle_s

    # -- closing

    def _refuse(self, status: int, text: str, headers: bytes = b"", *, linger: bool = False) -> None:
        """Answer an invalid request and close: the rest of the stream cannot be parsed."""
        if self._closing or self._transport is None:
            return
        if self._current is None and not self._waiting and self._answer is None:
            self._transport.write(http_checks.refusal(status, text, headers))
        if status == 413 or linger:
            # A client that is still sending would get a reset before it reads this.
            self._closing, self._linger = True, LINGER_BYTES
            self._forget()
            self.deadline = self._listener.now + LINGER_S
        else:
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._waiting.clear()
        self._queued = 0
        if self._transport is not None:
            # Pending bytes are sent first, within the deadline.
            self.deadline = self._listener.now + self._listener.limits.body_s
            if self._answer is None:
                self._transport.close()
            else:
                self._is_closing_after = True

    def time_out(self) -> None:
        if self._closing or self._paused:
            self.abort()
        elif self._in_message:
            self._refuse(408, "the request took too long")
        else:
            self._close()

    def close_if_idle(self) -> None:
        if self._current is None and not self._waiting and self._answer is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
