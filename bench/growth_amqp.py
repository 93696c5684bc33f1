"""AMQP for the growth bench: bodies of any size, and deliveries of any size."""

from __future__ import annotations

import contextlib
import os
import struct

from .amqp_client import (
    CHANNEL,
    CLOSE,
    CLOSE_OK,
    CONSUME,
    PUBLISH,
    Acks,
    Confirms,
    frame,
    method,
    short,
)
from .amqp_load import Clock, SocketLink, drive
from .server_load import RequestRefused, Tally

_FRAME_BYTES = 131_064
_FRAME_HEADER = struct.Struct(">BHI")
_BODY_SIZE = struct.Struct(">Q")
_CLOSED = method(CLOSE_OK, channel=0)


def consume(port: int, queue: str, count: int, prefetch: int) -> Tally:
    """Consume and ack at least so many messages; deliveries beyond go back when the connection closes."""
    link = SocketLink(port)
    link.prefetch(prefetch)
    consumer = BodyConsumer(queue, count)
    clock = Clock()
    drive([(link, consumer)])
    link.write(method(CLOSE, struct.pack(">H", 200) + bytes(5), channel=0))
    with contextlib.suppress(RequestRefused):  # the server hangs up after its answer, which follows all acks
        while link.read()[-len(_CLOSED) :] != _CLOSED:
            pass
    tally = clock.count_records(consumer.acked)
    link.socket.close()
    return tally


def publish(port: int, queue: str, size: int, batch: int, batches: int) -> Tally:
    """With confirms, two batches ahead."""
    link = SocketLink(port)
    link.confirm()
    publisher = BodyPublisher(queue, size, batch, batches)
    clock = Clock()
    drive([(link, publisher)])
    tally = clock.count_records(publisher.sent)
    link.close()
    return tally


class BodyPublisher:
    """Bodies in frames of the size that both sides agreed on."""

    def __init__(self, queue: str, size: int, batch: int, batches: int) -> None:
        content = os.urandom(size)
        frames = [frame(3, CHANNEL, content[at : at + _FRAME_BYTES]) for at in range(0, size, _FRAME_BYTES)]
        header = frame(2, CHANNEL, struct.pack(">HHQHB", 60, 0, size, 1 << 12, 2))
        publish = method(PUBLISH, b"\x00\x00" + short(b"") + short(queue.encode()) + b"\x00")
        self._written = b"".join((publish, header, *frames)) * batch
        self._batch, self._left = batch, batches
        self._confirms = Confirms()
        self.sent = 0

    @property
    def done(self) -> bool:
        return not self._left and self._confirms.count == self.sent

    def more(self) -> bytes:
        if not self._left or self.sent - self._confirms.count > self._batch:
            return b""
        self._left -= 1
        self.sent += self._batch
        return self._written

    def heard(self, data: bytes) -> None:
        self._confirms.heard(data)

    def wait_s(self) -> float | None:
        return None


class BodyConsumer:
    """Counts the headers of deliveries and the bytes that follow, and acks what is whole."""

    def __init__(self, queue: str, count: int) -> None:
        tag = short(b"bench")
        self._request = method(CONSUME, b"\x00\x00" + short(queue.encode()) + tag + b"\x00" + bytes(4))
        self._count = count
        self._held = bytearray()
        self._missing = 0  # bytes of the body that has begun
        self._whole = self.acked = 0

    @property
    def done(self) -> bool:
        return self.acked >= self._count

    def more(self) -> bytes:
        if self._request:
            request, self._request = self._request, b""
            return request
        if self.acked == self._whole:
            return b""
        self.acked = self._whole
        return Acks.up_to(self._whole)

    def heard(self, data: bytes) -> None:
        held = self._held
        held += data
        at = 0
        while len(held) - at >= 7:
            kind, _, size = _FRAME_HEADER.unpack_from(held, at)
            if len(held) - at < size + 8:
                break
            if kind == 2:
                self._missing = _BODY_SIZE.unpack_from(held, at + 11)[0]
            elif kind == 3:
                self._missing -= size
                self._whole += not self._missing
            at += size + 8
        del held[:at]

    def wait_s(self) -> float | None:
        return None
