"""Push and ack with Python clients, by the clock: ours against aio-pika on RabbitMQ and nats-py on JetStream.

Each side has one consumer in its own process, which asks for 500 messages ahead. OpenQ confirms every ack
when it is on disk; RabbitMQ and NATS confirm no acks. The queues are filled before the clock starts.
"""

from __future__ import annotations

import asyncio
import itertools
import threading

from . import push_load
from .amqp_client import PREFETCH
from .amqp_processes import RabbitMq
from .amqp_rounds import KINDS, rabbitmq
from .harness import BenchTarget, ChildProcess, Run, alternate, faster_by
from .push_client import MSGPACK
from .push_common import BENCH, stream_url
from .push_rivals import AioPika, Emptied, NatsPush, NatsServer, obtain_rivals
from .server_processes import NotAvailable, OpenQ
from .server_requests import AwsJson
from .server_rounds import started

RABBITMQ = BenchTarget(2, 5)
NATS = BenchTarget(1, 2)
NATS_SYNC = "NATS syncs its file every two minutes; OpenQ syncs before it confirms an ack"


class OpenQConsumer(Emptied):
    """Fills its queue by the raw client of the bench."""

    _numbers = itertools.count(1)

    def __init__(self, port: int, count: int) -> None:
        super().__init__(count)
        self._port = port
        self._url = f"http://127.0.0.1:{port}"
        self._queue = ""

    async def fill(self) -> None:
        self._queue = f"bench-{next(self._numbers)}"
        AwsJson.create(self._port, self._queue)
        push_load.fill(self._port, self._queue, self._count)


class Handled(OpenQConsumer):
    """`queue.listen(handler)` of `openq.aio`: a task for each message, which acks it."""

    async def consume(self) -> None:
        from openq.aio import OpenQ as Client

        left = self._count
        is_done = asyncio.Event()

        async def handler(message: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                is_done.set()

        async with Client(self._queue, url=self._url) as queue, queue.listen(handler, prefetch=PREFETCH):
            await is_done.wait()


class ThreadHandled(OpenQConsumer):
    """`queue.listen(handler)` of `openq`, in a thread."""

    async def consume(self) -> None:
        await asyncio.to_thread(self._consume)

    def _consume(self) -> None:
        from openq import OpenQ as Client

        left = self._count
        is_done = threading.Event()

        def handler(message: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                is_done.set()

        with Client(self._queue, url=self._url) as queue:
            listening = queue.listen(handler, prefetch=PREFETCH)
            is_done.wait()
            listening.close()


class StreamConsumer(OpenQConsumer):
    """The package `websockets`, as docs/PUSH.md shows it, with msgpack: one ack for each frame."""

    async def consume(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.typing import Subprotocol

        async with connect(
            stream_url(self._url),
            subprotocols=[Subprotocol(MSGPACK.subprotocol)],
            compression=None,
            proxy=None,
        ) as socket:
            credit = {"messages": PREFETCH}
            request = {"op": "subscribe", "sub": 1, "queue": self._queue, "credit": credit}
            await socket.send(MSGPACK.encode(request))
            settled = 0
            while settled < self._count:
                frame = MSGPACK.decode(await socket.recv())  # type: ignore[arg-type]
                if frame.op == "deliver":
                    await socket.send(MSGPACK.encode({"op": "ack", "id": 1, "receipts": frame.receipts}))
                else:
                    frame.expect("hello", "settled")
                    settled += frame.count


OURS: dict[str, type[OpenQConsumer]] = {
    "openq.aio listen(handler)": Handled,
    "openq listen(handler)": ThreadHandled,
    "websockets": StreamConsumer,
}


def run(run: Run) -> None:
    try:
        rivals = obtain_rivals()
    except NotAvailable as absent:
        run.log(f"{BENCH}: CLIENTS ARE LEFT OUT: {absent}")
        return
    count = 5_000 if run.quick else 20_000
    openq = OpenQ(run.folder("openq"), durable=True)
    with started(openq):
        for name, ours in OURS.items():
            what = f"push + ack, durable, prefetch {PREFETCH}, 100 B, {name}, wall"
            _against_rabbitmq(run, what, ours, openq.port, rivals, count)
            _against_nats(run, what, ours, openq.port, rivals, count)


def _against_rabbitmq(
    run: Run, what: str, ours: type[OpenQConsumer], port: int, rivals: str, count: int
) -> None:
    try:
        RabbitMq.obtain()
    except NotAvailable as absent:
        run.log(f"{BENCH}: NOT COMPARED WITH aio-pika on RabbitMQ: {absent}")
        return
    rows = []
    with started(rabbit := RabbitMq(run.folder("rabbitmq"))):
        for kind in KINDS:
            theirs = ChildProcess(AioPika, rivals, rabbit.port, count, kind)
            match = alternate(ChildProcess(ours, port, count), theirs, run.rounds(5))
            rows.append(faster_by(BENCH, what, f"aio-pika on {rabbitmq(kind)}", match))
    faster = min(rows, key=lambda row: row.result)
    faster.target = RABBITMQ
    for row in rows:
        run.emit(row)


def _against_nats(run: Run, what: str, ours: type[OpenQConsumer], port: int, rivals: str, count: int) -> None:
    try:
        NatsServer.obtain()
    except NotAvailable as absent:
        run.log(f"{BENCH}: NOT COMPARED WITH nats-py on NATS JetStream: {absent}")
        return
    with started(nats := NatsServer(run.folder("nats"))):
        theirs = ChildProcess(NatsPush, rivals, nats.port, count)
        match = alternate(ChildProcess(ours, port, count), theirs, run.rounds(5))
    reference = "nats-py on JetStream, files, synced every 2 min"
    run.emit(faster_by(BENCH, what, reference, match, NATS, NATS_SYNC))
