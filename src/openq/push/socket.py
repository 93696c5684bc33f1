"""The socket of a stream: an `asyncio.Protocol` around the WebSocket state machine of `websockets`.

`websockets` parses frames without I/O: masks, fragments, control frames, close codes. Here are the limits,
flow control in both directions, and the hand-over to `StreamConnection`, which runs in order although its
work may wait for a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from ..server.buffers import SMALL
from ..server.serial import SerialRunner, run_now
from .connection import StreamConnection

if TYPE_CHECKING:
    from .server import StreamServer

log = logging.getLogger("openq.push")
# The library logs each connection, and frames with their content at the level debug: not in our log.
_quiet = logging.getLogger("openq.push.websockets")
_quiet.setLevel(logging.ERROR)

MAX_FRAGMENTS = 1_024  # of one message
WRITE_HIGH = 512 << 10  # unread by the client before it gets no more messages
MAX_QUEUED_BYTES = 512 << 10  # received while earlier work waits for the store, before reading pauses


class StreamSocket(asyncio.Protocol):
    __slots__ = (
        "_buffered",
        "_connection",
        "_context",
        "_fragment_bytes",
        "_fragments",
        "_is_flushing",
        "_is_reading",
        "_is_text",
        "_make",
        "_out",
        "_queued_bytes",
        "_run_in_order",
        "_server",
        "_suspends",
        "_transport",
        "_websocket",
        "closing_s",
        "last_received_s",
        "paused_s",
        "peer",
        "pinged_s",
        "port",
    )

    protocol = "ws"

    def __init__(
        self, server: StreamServer, make: Callable[[StreamSocket], StreamConnection], peer: str
    ) -> None:
        self._server = server
        self._context = server.context
        self._make = make
        self.peer = peer
        self.port = 0
        self._websocket = Protocol(
            Side.SERVER, state=State.OPEN, max_size=server.max_frame_bytes, logger=_quiet
        )
        self._connection: StreamConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._is_flushing = False
        self._is_reading = True
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0
        self._is_text = False
        self._buffered = 0
        self._queued_bytes = 0
        self._suspends = server.context.broker.storage.waits
        self._run_in_order: Callable[..., None] = (
            SerialRunner(server.context.enter).run if self._suspends else run_now
        )
        self.last_received_s = self.pinged_s = server.context.loop.time()
        self.paused_s = 0.0  # when the client stopped reading; 0: it reads
        self.closing_s = 0.0  # when a close frame was sent; 0: open

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.port = int(address[1]) if isinstance(address, tuple) else 0
        self._transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_HIGH // 4)
        self._transport.resume_reading()
        self._connection = self._make(self)
        self._server.sockets.add(self)
        self._connection.greet()

    def data_received(self, data: bytes) -> None:
        self.last_received_s = self._context.loop.time()
        if not data or self._connection is None:
            return
        self._connection.received_bytes += len(data)
        websocket = self._websocket
        websocket.receive_data(data)
        messages = self._messages()
        replies = websocket.data_to_send()  # pongs, and the answer to a close frame
        if replies:
            self._write_raw(replies)
        if messages:
            if self._suspends:
                self._enqueue(messages)
            else:
                self._connection.process(messages)
        if websocket.state is not State.OPEN:
            self._end()
        else:
            self.report()

    def _messages(self) -> list[bytes]:
        """The complete messages among the frames that were received."""
        messages: list[bytes] = []
        for event in self._websocket.events_received():
            assert isinstance(event, Frame)
            opcode = event.opcode
            if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                self._is_text = opcode is Opcode.TEXT
            elif opcode is not Opcode.CONT:
                continue
            if event.fin and not self._fragments:
                data = bytes(event.data)
            else:
                self._fragments.append(bytes(event.data))
                self._fragment_bytes += len(event.data)
                if not event.fin:
                    if len(self._fragments) > MAX_FRAGMENTS:
                        self._refuse(CloseCode.POLICY_VIOLATION, f"more than {MAX_FRAGMENTS} fragments")
                        break
                    continue
                data = b"".join(self._fragments)
                self._fragments, self._fragment_bytes = [], 0
            if not self._is_acceptable(data):
                break
            messages.append(data)
        return messages

    def _is_acceptable(self, data: bytes) -> bool:
        connection = self._connection
        assert connection is not None
        if self._is_text is not connection.format.is_json:
            kind = "text" if connection.format.is_json else "binary"
            self._refuse(CloseCode.UNSUPPORTED_DATA, f"this subprotocol has {kind} frames")
            return False
        if self._is_text and not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError as error:
                self._refuse(CloseCode.INVALID_DATA, f"not UTF-8 at position {error.start}")
                return False
        return True

    def _enqueue(self, messages: list[bytes]) -> None:
        """Process them after earlier work, which may wait for the store."""
        size = sum(map(len, messages))
        self._queued_bytes += size
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._pause_reading()
        self._run_in_order(self._process_queued, messages, size)

    def _process_queued(self, messages: list[bytes], size: int) -> None:
        if self._connection is not None:
            self._connection.process(messages)
        self._queued_bytes -= size
        if self._queued_bytes <= MAX_QUEUED_BYTES // 4 and not self.paused_s:
            self._resume_reading()

    def eof_received(self) -> bool:
        return False  # a client that closes its half without a close frame is gone

    def connection_lost(self, error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        self._transport = None
        self._out.clear()
        self._fragments.clear()
        if self._buffered:
            self._buffered = 0
            self._context.buffers.hold(self, 0)
        self._server.sockets.discard(self)
        self._context.admission.leave()
        if connection is not None:
            self._server.closing += 1
            self._run_in_order(self._released, connection)

    def _released(self, connection: StreamConnection) -> None:
        try:
            connection.release()
        finally:
            self._server.closing -= 1

    def pause_writing(self) -> None:
        """The client does not read: it gets no more messages, and is not read from."""
        self.paused_s = self._context.loop.time()
        if self._connection is not None:
            self._connection.can_write = False
        self._pause_reading()
        self.report()

    def resume_writing(self) -> None:
        self.paused_s = 0.0
        self.last_received_s = self._context.loop.time()  # it was not read from meanwhile
        self._resume_reading()
        self.report()
        if self._connection is not None:
            self._run_in_order(self._connection.on_writable)

    def _pause_reading(self) -> None:
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    # -- from the connection

    def send(self, data: bytes) -> None:
        """Queue one message; `flush` writes it."""
        if self._websocket.state is State.OPEN:
            connection = self._connection
            if connection is None or connection.format.is_json:
                self._websocket.send_text(data)
            else:
                self._websocket.send_binary(data)

    def flush(self) -> None:
        self._write_raw(self._websocket.data_to_send())

    def flush_soon(self) -> None:
        """One write for everything in this iteration of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._context.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def _write_raw(self, parts: list[bytes]) -> None:
        transport = self._transport
        if transport is None or not parts:
            return
        is_last = parts[-1] == b""  # the library's sign to close
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if data and not transport.is_closing():
            transport.write(data)
            if self._connection is not None:
                self._connection.sent_bytes += len(data)
        if is_last:
            transport.close()

    # -- limits

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        return self._is_reading and not self._queued_bytes

    def report(self) -> None:
        """Report the bytes that this client makes the server hold."""
        transport = self._transport
        size = len(self._websocket.reader.buffer) + self._fragment_bytes + self._queued_bytes
        size = size if size > SMALL else 0
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent > SMALL:
            size += unsent
        if size != self._buffered:
            self._buffered = size
            self._context.buffers.hold(self, size)

    def shed(self) -> None:
        """This connection holds the most bytes, and the limit of all is exceeded."""
        self._buffered = 0
        self.abort()

    def ping(self, now_s: float) -> None:
        if self._websocket.state is State.OPEN:
            self.pinged_s = now_s
            self._websocket.send_ping(b"")
            self.flush()

    # -- closing

    def _refuse(self, code: CloseCode, reason: str) -> None:
        self._websocket.fail(code, reason)

    def _end(self) -> None:
        """A close frame was received, or the client broke the protocol: return its messages now."""
        connection = self._connection
        if connection is not None and not self.closing_s:
            self.closing_s = self._context.loop.time()
            self._run_in_order(connection.release)
        self.flush()

    def stop(self, code: int, reason: str) -> None:
        """Close it from outside of its work."""
        if self._connection is not None:
            self._run_in_order(self._connection.close, code, reason)

    def check_access(self) -> None:
        if self._connection is not None and not self.closing_s:
            self._run_in_order(self._connection.check_access)

    def join_queues(self, queue_keys: list[str]) -> None:
        connection = self._connection
        if connection is not None and not self.closing_s:
            self._run_in_order(self._join_queues, connection, queue_keys)

    def _join_queues(self, connection: StreamConnection, queue_keys: list[str]) -> None:
        connection.join_queues(queue_keys)
        connection.finish_turn()

    @property
    def has_patterns(self) -> bool:
        connection = self._connection
        return connection is not None and any(
            each.pattern is not None for each in connection.subscriptions.values()
        )

    @property
    def connection(self) -> StreamConnection | None:
        return self._connection

    def close(self, code: int, reason: str) -> None:
        """Send a close frame; the client closes the socket, or the server does after a while."""
        if self._websocket.state is State.OPEN:
            self.closing_s = self._context.loop.time()
            self._websocket.send_close(code, reason.encode()[:120].decode(errors="ignore"))
            self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
