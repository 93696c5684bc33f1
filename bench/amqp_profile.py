"""`python -m bench.amqp_profile [work...]`: what a message costs inside the server, without any socket.

The real server runs in this process; its AMQP protocol gets bytes as a read from a socket would bring them,
one read per connection and turn of the loop. What is left out is the kernel's share and that of the loop's
own polling: a server under load pays both on top. The client's share (below 0.2 us a message) is in it.

    publish   100 B, default exchange, no confirms        confirm   the same with confirms
    consume   deliver and ack, prefetch 500               cycle     publish, confirm, deliver, ack
    push      deliver and ack on the WebSocket stream, which is measured against `consume`

    --varied         each message has an id and headers of its own: nothing is like the one before
    --top 20         the functions that take the time (under cProfile, which inflates small ones)
    --instructions   instructions per message, counted by valgrind: exact where clocks are noisy
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openq.config import load
from openq.local.broker import LocalBroker
from openq.server.app import Server
from openq.server.listener import new_loop

from .amqp_client import BURST, PREFETCH, Consumer, Flood, Link, Publisher, Role, body, bursts
from .push_client import MAX_PUBLISH, MSGPACK, StreamPublisher, Subscriber
from .server_load import STUCK_S, RequestRefused
from .server_processes import free_port

QUEUE = "profile"
ROUNDS = 5
_READ_BYTES = 64 << 10


class LoopSignal:
    """Rung when the server writes. A loop that turned while it waits for the disk would count as its work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._is_rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Until it was rung since the last time."""
        if not self._is_rung:
            self._waiting = self._loop.create_future()
            try:
                async with asyncio.timeout(STUCK_S):
                    await self._waiting
            except TimeoutError:
                raise RequestRefused("the server does not answer") from None
        self._is_rung = False


class FakeTransport(asyncio.Transport):
    """The far end of a connection: keeps what the server says until it is taken."""

    def __init__(self, port: int, bell: LoopSignal) -> None:
        super().__init__()
        self._ring = bell.ring
        self._written: list[bytes] = []
        self._names = {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", port)}
        self.is_paused = False
        self.is_closed = False

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self._written.append(bytes(data))
        self._ring()

    def writelines(self, list_of_data: Any) -> None:
        self._written += map(bytes, list_of_data)
        self._ring()

    def take(self) -> bytes:
        written, self._written = self._written, []
        if not written and self.is_closed:
            raise RequestRefused("the server hung up")
        return written[0] if len(written) == 1 else b"".join(written)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self._ring()

    def is_reading(self) -> bool:
        return not self.is_paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self._ring()

    def abort(self) -> None:
        self.close()


class InnerLink(Link):
    """A connection to the server in this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bell: LoopSignal, connection: Any, port: int) -> None:
        super().__init__()
        self._loop = loop
        self._bell = bell
        self._connection = connection
        self._is_buffered = isinstance(connection, asyncio.BufferedProtocol)
        self._pending = b""
        self.wire = FakeTransport(port, self._bell)
        connection.connection_made(self.wire)
        self.open()

    def write(self, data: bytes) -> None:
        self._pending += data
        while self._pending:
            self._push()
            self._loop.run_until_complete(asyncio.sleep(0))

    def read(self) -> bytes:
        while not (data := self.wire.take()):
            self._loop.run_until_complete(self._bell.wait())
        return data

    def close(self) -> None:
        super().close()
        self._connection.connection_lost(None)

    def is_done(self, role: Role) -> bool:
        return role.done and not self._pending

    def advance(self, role: Role) -> bool:
        """What one read of the server brings: under load that is more than one write of the client."""
        while len(self._pending) < _READ_BYTES and (more := role.more()):
            self._pending += more
        return self._push()

    def _push(self) -> bool:
        if not self._pending or self.wire.is_paused:
            return False
        piece, self._pending = self._pending[:_READ_BYTES], self._pending[_READ_BYTES:]
        if not self._is_buffered:
            self._connection.data_received(piece)
            return True
        while piece:
            space = self._connection.get_buffer(len(piece))
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            self._connection.buffer_updated(count)
            piece = piece[count:]
        return True


class InnerStream(InnerLink):
    """The same for the WebSocket stream. `rest` is what the server sent after the handshake."""

    rest = b""

    def open(self) -> None:
        self.write(MSGPACK.handshake(80))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.read()
        head, _, self.rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RequestRefused(f"the handshake was answered with {head[:300]!r}")
        self._connection = self.wire.protocol

    def close(self) -> None:
        self._connection.connection_lost(None)


class Bench:
    def __init__(self, durable: bool, varied: bool, flags: Mapping[str, object] | None = None) -> None:
        self.bursts = bursts(QUEUE, 100, varied=varied)
        self._folder = tempfile.TemporaryDirectory(prefix="openq-profile-")
        data = self._folder.name if durable else None
        self.port = free_port()
        store = {"memory": True} if data is None else {"data": data}
        config = load({**store, "port": 0, "amqp_port": self.port, **(flags or {})})
        self.loop = new_loop()
        self._bell = LoopSignal(self.loop)
        self.broker = LocalBroker(data)
        self.server = Server(config, self.broker, self.loop)
        self._make = self._start()
        self.control = self.link()
        self._fresh()
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)

    def _start(self) -> Callable[[], Any]:
        """Start the server, noting how it makes the connections of its AMQP port."""
        makers: dict[object, Callable[[], Any]] = {}
        create_server = self.loop.create_server

        def noting(factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any) -> Any:
            makers[port] = factory
            return create_server(factory, host, port, **options)

        self.loop.create_server = noting  # type: ignore[method-assign, assignment]
        self.loop.run_until_complete(self.server.start())
        return makers[self.port]

    def link(self) -> InnerLink:
        return InnerLink(self.loop, self._bell, self._make(), self.port)

    def stream(self, role: Role) -> InnerStream:
        found = InnerStream(self.loop, self._bell, self.server.listener.make(), self.port)
        role.heard(found.rest)
        return found

    def _fresh(self) -> None:
        self.control.declare(QUEUE)

    def clear(self) -> None:
        self.control.delete(QUEUE)
        self._fresh()

    def run(self, *pairs: tuple[InnerLink, Role]) -> None:
        self.loop.run_until_complete(self._run(pairs))

    async def _run(self, pairs: Sequence[tuple[InnerLink, Role]]) -> None:
        while True:
            is_idle = True
            for link, role in pairs:
                if link.advance(role):
                    is_idle = False
            await asyncio.sleep(0)
            for link, role in pairs:
                if data := link.wire.take():
                    role.heard(data)
                    is_idle = False
            if all(link.is_done(role) for link, role in pairs):
                return
            if is_idle:
                await self._bell.wait()

    def close(self) -> None:
        self.server.context.close()
        self.broker.close()
        self._folder.cleanup()


Work = Callable[[], int]  # returns the count of messages


def _publish(bench: Bench, count: int) -> Work:
    link = bench.link()
    role = Flood(bench.bursts, count)

    def work() -> int:
        bench.run((link, role))
        link.waiting(QUEUE)
        link.close()
        return role.sent

    return work


def _confirm(bench: Bench, count: int) -> Work:
    link = bench.link()
    link.confirm()
    role = Publisher(bench.bursts, limit=count)

    def work() -> int:
        bench.run((link, role))
        link.close()
        return role.count

    return work


def _consume(bench: Bench, count: int) -> Work:
    _confirm(bench, count)()
    link = bench.link()
    link.prefetch()
    count = count // BURST * BURST
    role = Consumer(QUEUE, lambda taken: taken >= count)

    def work() -> int:
        bench.run((link, role))
        link.waiting(QUEUE)
        link.close()
        return role.count

    return work


def _cycle(bench: Bench, count: int) -> Work:
    sending, receiving = bench.link(), bench.link()
    sending.confirm()
    receiving.prefetch()
    publisher = Publisher(bench.bursts, limit=count)
    consumer = Consumer(QUEUE, lambda taken: publisher.done and taken == publisher.sent)

    def work() -> int:
        bench.run((sending, publisher), (receiving, consumer))
        receiving.waiting(QUEUE)
        receiving.close()
        sending.close()
        return consumer.count

    return work


def _push(bench: Bench, count: int) -> Work:
    publisher = StreamPublisher(QUEUE, [body(number, 100) for number in range(MAX_PUBLISH)], count)
    bench.run((bench.stream(publisher), publisher))
    subscriber = Subscriber(QUEUE, PREFETCH, lambda taken: taken >= count)
    link = bench.stream(subscriber)

    def work() -> int:
        bench.run((link, subscriber))
        link.close()
        return subscriber.count

    return work


WORKS: dict[str, Callable[[Bench, int], Work]] = {
    "publish": _publish,
    "confirm": _confirm,
    "consume": _consume,
    "cycle": _cycle,
    "push": _push,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.amqp_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("work", nargs="*", help=f"{', '.join(WORKS)} (default: all)")
    parser.add_argument(
        "--durable", action="store_true", help="with a journal in the folder for temporary files"
    )
    parser.add_argument("--varied", action="store_true")
    parser.add_argument("--count", type=int, default=20_000, help="messages (default 20,000)")
    parser.add_argument("--top", type=int, default=0, metavar="N")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--flags", type=json.loads, default={}, help="keys of the server, as JSON")
    options = parser.parse_args()
    for name in options.work or WORKS:
        if name not in WORKS:
            parser.error(f"there is no work {name!r}, only {', '.join(WORKS)}")
        if options.instructions:
            _count_instructions(name, [f"--{flag}" for flag in ("durable", "varied") if vars(options)[flag]])
        else:
            _measure(name, options)
    return 0


def _measure(name: str, options: argparse.Namespace) -> None:
    count = options.count
    bench = Bench(options.durable, options.varied, options.flags)
    try:
        if options.once:
            WORKS[name](bench, count)()
            return
        costs_us = []
        rates = []
        WORKS[name](bench, count)()
        for _ in range(ROUNDS):
            bench.clear()
            work = WORKS[name](bench, count)
            gc.collect()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            done = work()
            costs_us.append((time.process_time() - began_cpu_s) / done * 1e6)
            rates.append(done / (time.perf_counter() - began_s))
        print(
            f"{name}: {min(costs_us):.2f} us of CPU per message, median {statistics.median(costs_us):.2f}; "
            f"{statistics.median(rates):,.0f}/s by the clock",
            flush=True,
        )
        if options.top:
            bench.clear()
            work = WORKS[name](bench, count)
            profile = cProfile.Profile()
            profile.enable()
            work()
            profile.disable()
            pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(options.top)
    finally:
        bench.close()


def _count_instructions(name: str, flags: list[str]) -> None:
    """The difference between two runs: what the start costs is in both."""
    if shutil.which("valgrind") is None:
        raise SystemExit("--instructions needs valgrind")
    few, many = 500, 2_500
    counts = [_instructions(name, flags, count) for count in (few, many)]
    print(f"{name}: {(counts[1] - counts[0]) / (many - few):,.0f} instructions per message", flush=True)


def _instructions(name: str, flags: list[str], count: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += ["-m", "bench.amqp_profile", name, "--once", "--count", str(count), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or collected is None:
        raise SystemExit(f"valgrind failed: {done.stderr[-1000:]}")
    return int(collected[1])


if __name__ == "__main__":
    sys.exit(main())
