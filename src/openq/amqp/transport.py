"""The socket of a connection: an `asyncio.Protocol` with flow control in both directions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..server.admission import MAX_LINGERING
from ..server.context import ServerContext
from . import methods as m
from .errors import CONNECTION_FORCED, AmqpError
from .frames import method_frame
from .method_codec import encode_method

if TYPE_CHECKING:
    from .connection import AmqpConnection
    from .server import AmqpServer

log = logging.getLogger("openq.amqp")

REFUSAL_TIMEOUT_S = 5.0  # a refused connection that sends nothing is aborted then
WRITE_BUFFER_BYTES = 512 * 1024  # unread by the client before it gets no more messages
MAX_WRITE_BUFFER_BYTES = 8 * 1024 * 1024  # unread by the client before it is no longer read from
MAX_QUEUED_BYTES = 512 * 1024  # received while earlier work waits for the store, before reading pauses


class ConnectionTransport(Protocol):
    """What a connection uses of its socket."""

    @property
    def is_write_buffer_full(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class _ClosedTransport:
    """Replaces a lost socket, so that socket and connection do not reference each other."""

    is_write_buffer_full = False
    unsent_bytes = 0

    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


CLOSED_TRANSPORT = _ClosedTransport()


class AmqpSocket(asyncio.Protocol):
    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._context = server.context
        self._loop_time = server.context.loop.time
        self._transport: asyncio.Transport | None = None
        self._connection: AmqpConnection | None = None
        self._is_stalled = False  # the client reads nothing, so it is not read from
        self._suspends = server.context.broker.storage.waits  # work may suspend: bytes are queued meanwhile
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self.is_backlogged = False  # more than MAX_QUEUED_BYTES are queued
        self._is_refused = False
        self.connected_s = self.last_sent_s = self.closing_s = 0.0

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.connected_s = self.last_sent_s = self._loop_time()
        if not self._context.admission.enter("amqp"):
            self._refuse(self._context)
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=WRITE_BUFFER_BYTES // 4)
        self._connection = self._server.connect(
            self,
            peer=_address(transport, "peername"),
            local=_address(transport, "sockname"),
            certificate_name=_common_name(transport.get_extra_info("peercert")),
            is_tls=transport.get_extra_info("ssl_object") is not None,
        )
        self._connection.last_received_s = self.connected_s

    def _refuse(self, context: ServerContext) -> None:
        """Send the reason once the client has spoken. Only a few refused clients may wait for that."""
        assert self._transport is not None
        log.warning("AMQP connection refused: too many connections (%d)", context.admission.open)
        if context.admission.lingering >= MAX_LINGERING:
            self._transport.abort()
            return
        context.admission.lingering += 1
        self._is_refused = True
        context.loop.call_later(REFUSAL_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if self._is_refused and self._transport is not None and not self._transport.is_closing():
            error = AmqpError(CONNECTION_FORCED, "too many connections; try again later")
            close = m.ConnectionClose(error.code, error.reply_text, 0, 0)
            self._transport.write(method_frame(0, encode_method(close)))
            self._transport.close()
        elif connection is not None:
            connection.last_received_s = self._loop_time()
            connection.received_bytes += len(data)
            if self._suspends:
                self._enqueue(connection, data)
            else:
                self._feed(connection, data)

    def _feed(self, connection: AmqpConnection, data: bytes) -> None:
        connection.feed(data)
        if not connection.can_write and self.is_write_buffer_full:
            self._is_stalled = True
            self.pause_reading()

    def _enqueue(self, connection: AmqpConnection, data: bytes) -> None:
        """Feed it after earlier work, which may wait for the store. Everything that arrives meanwhile is fed
        together, so that it becomes as few calls as possible. Pause reading when too much is queued."""
        self._queued_bytes += len(data)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self.is_backlogged = True
            self.pause_reading()
        self._queued.append(data)
        if len(self._queued) == 1:
            connection.run_in_order(self._feed_queued, connection)

    def _feed_queued(self, connection: AmqpConnection) -> None:
        queued, self._queued = self._queued, []
        data = queued[0] if len(queued) == 1 else b"".join(queued)
        self._feed(connection, data)
        self._queued_bytes -= len(data)
        if self.is_backlogged and self._queued_bytes <= MAX_QUEUED_BYTES // 4:
            self.is_backlogged = False
            if not connection.reader.is_paused:
                self.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        self._transport = None
        if self._is_refused:
            self._is_refused = False
            self._context.admission.lingering -= 1
        if connection is not None:
            self._context.admission.leave()
            self._server.disconnect(connection)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.can_write = False
            self._connection.report_buffered()

    def resume_writing(self) -> None:
        connection = self._connection
        if connection is not None:
            if self._is_stalled:
                self._is_stalled = False
                if not connection.reader.is_paused:
                    self.resume_reading()
            connection.report_buffered()
            connection.run_in_order(connection.on_writable)

    # -- the connection's side

    @property
    def is_write_buffer_full(self) -> bool:
        return self._transport is not None and (
            self._transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES
        )

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self.last_sent_s = self._loop_time()
            self._transport.write(data)

    def write_eof(self) -> None:
        """End the output. The client closes the socket, or the server does after CLOSE_TIMEOUT_S."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_stalled or self.is_backlogged or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()


def _address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int]:
    host, port, *_ = transport.get_extra_info(name) or ("", 0)
    return str(host), int(port)


def _common_name(certificate: Any) -> str | None:
    """The common name of a verified client certificate; None without one."""
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None
