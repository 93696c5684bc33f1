"""A WebSocket of the library: blocking, one thread reads, any thread sends.

Frames are those of `websockets`, without its I/O. A thread that reads must never wait for a thread that
sends: the server stops reading from a client that does not read.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import threading
from collections import deque
from typing import Any

import msgspec
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from .http import Refused, Unreachable
from .server_api import ServerApi

SILENCE_S = 75.0  # the server pings a silent client every 20 seconds
_READ_BYTES = 256 << 10
_LATER = (429, 502, 503, 504)  # the server is stopping or full, or a gateway does not reach it
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class StreamSocket:
    """Frames are msgpack maps; bodies are bytes as they are stored."""

    def __init__(self, api: ServerApi) -> None:
        """Connect. Raises Refused (404, 426, 501: the server has no stream) or Unreachable."""
        key = base64.b64encode(os.urandom(16))
        headers = (
            b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: %b\r\nsec-websocket-protocol: openq.native\r\n" % key
        )
        self._url = api.url
        try:
            self._socket, fields, rest = api.upgrade("stream", headers)
        except Refused as refused:
            if refused.status not in _LATER:
                raise
            raise Unreachable(api.url, refused.detail) from None
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
        if fields.get("sec-websocket-accept") != accept or fields.get("sec-websocket-protocol") is None:
            self._socket.close()
            raise Unreachable(api.url, "its answer to a WebSocket handshake is not valid")
        self._socket.settimeout(SILENCE_S)
        self._protocol = Protocol(Side.CLIENT, state=State.OPEN, max_size=None)
        self._lock = threading.Lock()
        self._out: deque[bytes] = deque()  # to be sent by the thread that sends now
        self._early = rest

    def send(self, frame: dict[str, Any]) -> None:
        """Raises Unreachable."""
        self.put(frame)
        self.flush()

    def put(self, frame: dict[str, Any]) -> None:
        """Add a frame to those that the next `flush` sends. Never blocks."""
        self._out.append(Frame(Opcode.BINARY, _encode(frame)).serialize(mask=True))

    def flush(self, *, wait: bool = True) -> None:
        """Raises Unreachable."""
        while self._out:
            if not self._lock.acquire(blocking=wait):
                return  # the thread that holds it sends this too, or the next one that sends
            try:
                # One by one: another thread may add a frame at any moment, and none may be lost.
                out = [self._out.popleft() for _ in range(len(self._out))]
                if out:
                    self._socket.sendall(b"".join(out))
            except OSError as error:
                self.abort()
                raise Unreachable(self._url, error.strerror or str(error)) from None
            finally:
                self._lock.release()

    def read(self) -> list[dict[str, Any]]:
        """The next frames; blocks. Raises Unreachable when the connection ends."""
        frames: list[dict[str, Any]] = []
        while not frames:
            try:
                data = self._early or self._socket.recv(_READ_BYTES)
            except OSError as error:
                why = "it was silent for too long" if isinstance(error, TimeoutError) else str(error)
                raise Unreachable(self._url, why) from None
            self._early = b""
            if not data:
                raise Unreachable(self._url, "it hung up")
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                if not isinstance(event, Frame):
                    continue
                if event.opcode is Opcode.BINARY:
                    frames.append(_decode(bytes(event.data)))
                elif event.opcode is Opcode.CLOSE:
                    raise _closed(self._url, self._protocol.close_rcvd)
            replies = b"".join(self._protocol.data_to_send())
            if replies:
                self._out.append(replies)
                self.flush(wait=False)
        return frames

    def close(self) -> None:
        """Say goodbye and close."""
        try:
            self._out.append(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
            self.flush(wait=False)
        except Unreachable:
            return
        self.abort()

    def free(self) -> None:
        """Close the file. Only the thread that reads calls it, after its last `read`."""
        with self._lock:
            self._socket.close()

    def abort(self) -> None:
        """From any thread: a `read` that waits ends."""
        try:
            # Not the method of a TLS socket, which would drop the keys that the reader needs.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass


def _closed(url: str, close: Close | None) -> Unreachable | Refused:
    """The server closed: for good (its codes from 4000 on), or to be tried again."""
    code, reason = (1006, "") if close is None else (int(close.code), close.reason)
    if code in (4401, 4403):
        return Refused(code - 4000, "login_refused" if code == 4401 else "forbidden", reason)
    return Unreachable(url, f"it closed the stream: {reason or code}")
