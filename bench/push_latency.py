"""From publish to pushed at a steady pace, durable: against Redis Streams, which waits for the disk as well.

A sender process publishes with the blocking client, one message every 3.3 ms, and a receiver process gets
them: `websockets` on the stream, which acks each message, and redis-py with `XREAD BLOCK`, which has no acks.
The time runs from before the publish until the receiver has the message.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .amqp_client import PREFETCH
from .amqp_rounds import figures_in_turns
from .harness import BenchTarget, ChildProcess, Lap, Run
from .push_client import MSGPACK
from .push_common import BENCH, lower_is_better, stream_url
from .redis_common import FORCED, missing, store
from .server_load import STUCK_S
from .server_processes import OpenQ
from .server_rounds import started

RATE = 300
QUEUE = "bench"
TARGETS = {50: BenchTarget(1.0, 0.7, more_is_better=False), 99: BenchTarget(1.0, 0.5, more_is_better=False)}
_STAMP = struct.Struct(">Q")
_PADDING = bytes(100 - _STAMP.size)


def run(run: Run) -> None:
    if reason := missing():
        run.log(f"{BENCH}: LATENCY IS LEFT OUT: {reason}")
        return
    count = RATE * (3 if run.quick else 10)
    server = OpenQ(run.folder("openq"), durable=True)
    with store(run.folder("redis"), *FORCED) as redis, started(server):
        url = f"http://127.0.0.1:{server.port}"
        server.queue(QUEUE)
        ours = Side(ChildProcess(WebSocketReader, url, count), ChildProcess(openq_sender, url, count))
        reader = ChildProcess(StreamReader, redis.port, count)
        theirs = Side(reader, ChildProcess(redis_sender, redis.port, count))
        found = figures_in_turns({"ours": ours.lap, "theirs": theirs.lap}, run.rounds(6, quick=3))
        ours.close()
        theirs.close()
    for percent, target in TARGETS.items():
        us, them = ([_percentile(waits, percent) for waits in found[side]] for side in ("ours", "theirs"))
        what = f"publish to pushed at {RATE}/s, durable, p{percent}"
        run.emit(lower_is_better(what, "Redis Streams, appendfsync always", us, them, target, "ms"))


def _percentile(waits: Sequence[float], percent: int) -> float:
    return statistics.quantiles(waits, n=100, method="inclusive")[percent - 1]


class Side:
    """A sender and a receiver, each in its own process."""

    def __init__(self, receiver: ChildProcess, sender: ChildProcess) -> None:
        self._receiver = receiver
        self._sender = sender

    def lap(self) -> list[float]:
        """How long each message took, in milliseconds; the first tenth is left out."""
        with ThreadPoolExecutor(1) as threads:
            receiving = threads.submit(self._receiver.lap)
            self._sender.lap()
            waits: list[float] = receiving.result().detail
        return waits[len(waits) // 10 :]

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


class Sender:
    """A contestant that sends at an even pace, with the time in each body."""

    def __init__(self, send: Callable[[bytes], object], count: int) -> None:
        self._send = send
        self._count = count

    def lap(self, given: Any) -> Lap:
        time.sleep(0.1)  # the receiver is asked first
        began_s = time.perf_counter()
        for number in range(self._count):
            wait_s = began_s + number / RATE - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            self._send(_STAMP.pack(time.perf_counter_ns()) + _PADDING)
        return Lap(self._count, time.perf_counter() - began_s, time.process_time())

    def close(self) -> None:
        pass


def openq_sender(url: str, count: int) -> Sender:
    from openq import OpenQ as Client

    return Sender(Client(QUEUE, url=url).publish, count)


def redis_sender(port: int, count: int) -> Sender:
    import redis

    client = redis.Redis(port=port)
    return Sender(lambda content: client.xadd(QUEUE, {"body": content}), count)


class Waits:
    """In milliseconds, one for each message."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def add(self, content: bytes) -> None:
        self.found.append((time.perf_counter_ns() - _STAMP.unpack_from(content)[0]) / 1e6)


class StreamReader:
    """redis-py, blocking."""

    def __init__(self, port: int, count: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)
        self._count = count
        self._last = b"0"

    def lap(self, given: Any) -> Lap:
        waits = Waits()
        while len(waits.found) < self._count:
            answer: Any = self._redis.xread({QUEUE: self._last}, block=int(STUCK_S * 1000))
            if not answer:
                raise RuntimeError(f"{len(waits.found)} of {self._count} messages came")
            for self._last, fields in answer[0][1]:
                waits.add(fields[b"body"])
        return Lap(self._count, 1.0, 1.0, waits.found)

    def close(self) -> None:
        self._redis.close()


class WebSocketReader:
    """The package `websockets`, as docs/PUSH.md shows it, with msgpack."""

    def __init__(self, url: str, count: int) -> None:
        self._url = stream_url(url)
        self._count = count
        self._loop = asyncio.new_event_loop()
        self._socket: Any = self._loop.run_until_complete(self._open())

    async def _open(self) -> Any:
        from websockets.asyncio.client import connect
        from websockets.typing import Subprotocol

        socket = await connect(
            self._url, subprotocols=[Subprotocol(MSGPACK.subprotocol)], compression=None, proxy=None
        )
        credit = {"messages": PREFETCH}
        await socket.send(MSGPACK.encode({"op": "subscribe", "sub": 1, "queue": QUEUE, "credit": credit}))
        return socket

    def lap(self, given: Any) -> Lap:
        return Lap(self._count, 1.0, 1.0, self._loop.run_until_complete(self._receive()))

    async def _receive(self) -> list[float]:
        waits = Waits()
        async with asyncio.timeout(STUCK_S):
            while len(waits.found) < self._count:
                frame = MSGPACK.decode(await self._socket.recv())
                if frame.op != "deliver":
                    frame.expect("hello")
                    continue
                for message in frame.messages:
                    waits.add(message.payload)
                await self._socket.send(MSGPACK.encode({"op": "ack", "receipts": frame.receipts}))
        return waits.found

    def close(self) -> None:
        self._loop.run_until_complete(self._socket.close())
        self._loop.close()
