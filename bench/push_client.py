"""The WebSocket stream as the load speaks it: msgpack frames, receipts read by their place, acks in groups.

The same idea as `amqp_client`: nothing here knows a socket, and a client that parsed every field of every
message would be slower than the server that it is to measure. The mask of each frame is zero, which RFC 6455
allows: the server has to unmask it all the same.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Callable

import msgspec

from .server_load import RequestRefused

SUBPROTOCOL = "openq.msgpack"
MAX_PUBLISH = 1_000
_BINARY, _PING = 0x82, 0x89
_NO_MASK = bytes(4)
_encode = msgspec.msgpack.Encoder().encode


class _Receipt(msgspec.Struct):
    receipt_id: str
    payload: msgspec.Raw


class _Frame(msgspec.Struct):
    """Of the server: the fields that the load looks at."""

    op: str
    id: int | None = None
    count: int = 0
    failed: msgspec.Raw = msgspec.Raw(b"\x90")
    messages: list[_Receipt] = []
    detail: str = ""


_decode = msgspec.msgpack.Decoder(_Frame).decode


def handshake(port: int, subprotocol: str = SUBPROTOCOL) -> bytes:
    lines = (
        "GET /api/v1/stream HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        f"Sec-WebSocket-Protocol: {subprotocol}",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def masked(payload: bytes) -> bytes:
    """A whole message in one frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", _BINARY, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", _BINARY, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", _BINARY, 0x80 | 127, size)
    return head + _NO_MASK + payload


def request(op: str, id: int, **fields: object) -> bytes:
    return masked(_encode({"op": op, "id": id, **fields}))


def subscribe(queue: str, credit: int, id: int = 0) -> bytes:
    return request("subscribe", id, sub=0, queue=queue, credit={"messages": credit})


class FrameReader:
    """Payloads of the frames that the server sent, in order; pings are left out."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._held:
            data = self._held + data
        payloads: list[bytes] = []
        at = 0
        while len(data) >= at + 2:
            kind, size = data[at], data[at + 1]
            start = at + 2
            if size == 126:
                if len(data) < at + 4:
                    break
                size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                if len(data) < at + 10:
                    break
                size, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if len(data) < start + size:
                break
            if kind == _BINARY:
                payloads.append(data[start : start + size])
            elif kind != _PING:
                raise RequestRefused(f"the server sent a frame {kind:#x}: {data[start : start + 300]!r}")
            at = start + size
        self._held = data[at:]
        return payloads


class Subscriber:
    """A role: gets messages and acks them until `enough` says so. Done when the last ack is on disk.

    One ack frame for each frame of deliveries, each with an id, so that each is confirmed.
    """

    def __init__(self, queue: str, credit: int, enough: Callable[[int], bool]) -> None:
        self._requests = [subscribe(queue, credit)]
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
        for payload in self._frames.feed(data):
            frame = _decode(payload)
            if frame.op == "deliver":
                messages = frame.messages
                self.took(messages)
                self.count += len(messages)
                receipts = [each.receipt_id for each in messages]
                self._requests.append(request("ack", self._next_id, receipts=receipts))
                self._next_id += 1
            elif frame.op == "settled" and bytes(frame.failed) == b"\x90":
                self._settled += frame.count
            elif frame.op not in ("ok", "hello"):
                raise RequestRefused(f"the server answered {payload[:300]!r}")

    def took(self, messages: list[_Receipt]) -> None:
        """For those who look at the deliveries."""

    def wait_s(self) -> float | None:
        return None


class StreamPublisher:
    """A role: publishes bodies in groups, one group at a time, each confirmed when it is on disk."""

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
        return request("publish", 0, queue=self._queue, messages=self._bodies[:size])

    def heard(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            frame = _decode(payload)
            if frame.op == "published":
                self.count += frame.count
                self._is_waiting = False
            elif frame.op != "hello":
                raise RequestRefused(f"the server answered {payload[:300]!r}")

    def wait_s(self) -> float | None:
        return None
