"""The WebSocket stream as the load speaks it: receipts and bodies are read, all other fields are skipped.

The same idea as `amqp_client`: nothing here knows a socket, and a client that made an object of every field
would be slower than the server that it is to measure. The mask of each frame is zero, which RFC 6455 allows:
the server has to unmask it all the same.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from .server_load import RequestRefused

MAX_PUBLISH = 1_000
_TEXT, _BINARY, _PING, _PONG = 0x81, 0x82, 0x89, 0x8A
_ZERO_MASK = bytes(4)
PONG = struct.pack(">BB", _PONG, 0x80) + _ZERO_MASK


class PushedMessage(msgspec.Struct):
    receipt_id: str
    payload: Any  # bytes, or text in JSON


class ServerFrame(msgspec.Struct):
    """The fields that the load looks at."""

    op: str
    count: int = 0
    failed: Any = None
    messages: list[PushedMessage] = []

    def expect(self, *ops: str) -> None:
        if self.op not in ops or self.failed:
            raise RequestRefused(f"the server answered {self}")

    @property
    def receipts(self) -> list[str]:
        return [each.receipt_id for each in self.messages]


@dataclass(frozen=True, slots=True)
class Codec:
    """A subprotocol."""

    subprotocol: str
    opcode: int
    encode: Callable[[object], bytes]
    decode: Callable[[bytes], ServerFrame]

    def request(self, op: str, id: int, **fields: object) -> bytes:
        return masked(self.opcode, self.encode({"op": op, "id": id, **fields}))

    def subscribe(self, queue: str, credit: int) -> bytes:
        return self.request("subscribe", 0, sub=0, queue=queue, credit={"messages": credit})

    def handshake(self, port: int) -> bytes:
        lines = (
            "GET /api/v1/stream HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            f"Sec-WebSocket-Protocol: {self.subprotocol}",
        )
        return "\r\n".join([*lines, "", ""]).encode()


MSGPACK = Codec(
    "openq.msgpack", _BINARY, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(ServerFrame).decode
)
JSON = Codec("openq.json", _TEXT, msgspec.json.Encoder().encode, msgspec.json.Decoder(ServerFrame).decode)


def masked(opcode: int, payload: bytes) -> bytes:
    """A whole message in one frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", opcode, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", opcode, 0x80 | 127, size)
    return head + _ZERO_MASK + payload


class FrameReader:
    """Payloads of the frames that the server sent, in order; pings are counted."""

    __slots__ = ("_held", "_pings")

    def __init__(self) -> None:
        self._held = b""
        self._pings = 0

    def take_pings(self) -> int:
        """How many came since the last call."""
        pings, self._pings = self._pings, 0
        return pings

    def feed(self, data: bytes) -> list[bytes]:
        if self._held:
            data = self._held + data
        payloads: list[bytes] = []
        at = 0
        while len(data) >= at + 2:
            opcode, size = data[at], data[at + 1]
            start = at + 2
            if size >= 126:
                start += 2 if size == 126 else 8
                if len(data) < start:
                    break
                size = int.from_bytes(data[at + 2 : start], "big")
            if len(data) < start + size:
                break
            if opcode in (_BINARY, _TEXT):
                payloads.append(data[start : start + size])
            elif opcode == _PING:
                self._pings += 1
            else:
                raise RequestRefused(f"a frame {opcode:#x}: {data[start : start + min(size, 300)]!r}")
            at = start + size
        self._held = data[at:]
        return payloads


class Subscriber:
    """A role: gets messages and acks them until `enough` says so. Done when the last ack is on disk.

    One ack frame for each frame of deliveries, with an id, so that each is confirmed.
    """

    def __init__(
        self, queue: str, credit: int, enough: Callable[[int], bool], codec: Codec = MSGPACK
    ) -> None:
        self.codec = codec
        self._requests = [codec.subscribe(queue, credit)]
        self._frames = FrameReader()
        self._enough = enough
        self._next_id = 1
        self._settled = 0
        self.count = 0

    @property
    def done(self) -> bool:
        return self._settled == self.count and self._enough(self.count)

    def more(self) -> bytes:
        requests, self._requests = self._requests, []
        return b"".join(requests)

    def heard(self, data: bytes) -> None:
        codec = self.codec
        for payload in self._frames.feed(data):
            frame = codec.decode(payload)
            if frame.op == "deliver":
                self.count += len(frame.messages)
                self._requests.append(codec.request("ack", self._next_id, receipts=frame.receipts))
                self._next_id += 1
            else:
                frame.expect("settled", "ok", "hello")
                self._settled += frame.count

    def wait_s(self) -> float | None:
        return None


class StreamPublisher:
    """A role: publishes bodies in groups, one group at a time, each confirmed when it is on disk."""

    codec = MSGPACK

    def __init__(self, queue: str, bodies: list[bytes], count: int) -> None:
        self._queue = queue
        self._bodies = bodies
        self._left = count
        self._is_waiting = False
        self._frames = FrameReader()
        self.count = 0

    @property
    def done(self) -> bool:
        return not self._left and not self._is_waiting

    def more(self) -> bytes:
        if self._is_waiting or not self._left:
            return b""
        size = min(self._left, MAX_PUBLISH, len(self._bodies))
        self._left -= size
        self._is_waiting = True
        return self.codec.request("publish", 0, queue=self._queue, messages=self._bodies[:size])

    def heard(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            frame = self.codec.decode(payload)
            frame.expect("published", "hello")
            self.count += frame.count
            if frame.op == "published":
                self._is_waiting = False

    def wait_s(self) -> float | None:
        return None
