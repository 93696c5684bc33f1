"""The WebSocket stream: push + ack against our own AMQP consumers, and what an idle stream costs."""

from __future__ import annotations

import socket
from dataclasses import replace

import msgspec
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from . import server_rounds
from .amqp_client import PREFETCH
from .amqp_load import Clock, consume, fill
from .amqp_processes import AmqpQueues, OpenQAmqp
from .harness import BenchTarget, Run
from .server_load import STUCK_S, RequestRefused, Tally
from .server_requests import ask
from .server_rounds import Contender, Work, in_turns, started

BENCH = "stream"
BODY = "x" * 100
_READ_BYTES = 256 << 10


class _Receipt(msgspec.Struct):
    receipt_id: str


class _Frame(msgspec.Struct):
    op: str
    id: int | None = None
    messages: list[_Receipt] = []


class StreamLink:
    """A raw client: the socket and the frames of `websockets`, nothing else."""

    def __init__(self, port: int, *, packed: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STUCK_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._packed = packed
        self._decode = (msgspec.msgpack if packed else msgspec.json).Decoder(_Frame).decode
        self._encode = msgspec.msgpack.encode if packed else msgspec.json.encode
        head = (
            b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Protocol: %b\r\n\r\n" % (b"openq.msgpack" if packed else b"openq.json")
        )
        self.socket.sendall(head)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._read()
        if not data.startswith(b"HTTP/1.1 101"):
            raise RequestRefused(data.decode("latin-1"))
        self._protocol = Protocol(Side.CLIENT, state=State.OPEN, max_size=None)
        self._early = data.partition(b"\r\n\r\n")[2]

    def _read(self) -> bytes:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RequestRefused("the server hung up")
        return data

    def send(self, frame: dict[str, object]) -> None:
        opcode = Opcode.BINARY if self._packed else Opcode.TEXT
        self.socket.sendall(Frame(opcode, self._encode(frame)).serialize(mask=True))

    def frames(self) -> list[_Frame]:
        data, self._early = self._early or self._read(), b""
        self._protocol.receive_data(data)
        return [
            self._decode(bytes(event.data))
            for event in self._protocol.events_received()
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY)
        ]

    def close(self) -> None:
        self.socket.close()


def push(port: int, queue: str, count: int, *, packed: bool) -> Tally:
    """From a queue that holds them, every frame acked as it comes. The last reply ends the lap."""
    link = StreamLink(port, packed=packed)
    clock = Clock()
    link.send({"op": "subscribe", "sub": 1, "queue": queue, "credit": {"messages": PREFETCH}})
    seen = acked = 0
    while acked < count:
        for frame in link.frames():
            if frame.op == "deliver":
                seen += len(frame.messages)
                receipts = [each.receipt_id for each in frame.messages]
                link.send({"op": "ack", "id": seen, "receipts": receipts})
            elif frame.op == "settled" and frame.id is not None:
                acked = frame.id
            elif frame.op == "error":
                raise RequestRefused(str(frame))
    tally = clock.count_records(seen)
    link.close()
    return tally


def run(run: Run) -> None:
    openq = OpenQAmqp(run.folder("openq"), durable=True)
    with started(openq):
        _push(run, openq)


def _push(run: Run, openq: OpenQAmqp) -> None:
    count = 20_000 if run.quick else 60_000
    amqp, streamed = AmqpQueues(openq), AmqpQueues(openq)

    def over_amqp() -> Work:
        queue = amqp.next()
        fill(openq.amqp_port, queue, count)
        return lambda: consume(openq.amqp_port, queue, count)

    def over_stream(packed: bool) -> Work:
        queue = streamed.next()
        batch = msgspec.json.encode([BODY] * 1000)
        head = f"POST /api/v1/queues/{queue}/messages/batch HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(batch)}\r\n\r\n"
        for _ in range(count // 1000):
            assert ask(openq.port, head.encode() + batch)[0] == 201
        return lambda: push(openq.port, queue, count, packed=packed)

    reference = Contender(openq, over_amqp)
    json, packed = (Contender(openq, lambda p=p: over_stream(p)) for p in (False, True))
    in_turns([reference, json, packed], run.rounds(6, quick=3))
    for named, ours, target in (("JSON", json, None), ("msgpack", packed, BenchTarget(0.5, 0.9))):
        what = f"push + ack, durable, {named}, credit {PREFETCH}, 100 B"
        row = server_rounds.compared(what, "our AMQP consume + ack", ours, reference, target, by="per_cpu_s")
        run.emit(replace(row, bench=BENCH))
