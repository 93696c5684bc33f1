"""`python -m bench.server_profile [work...]`: what a request costs inside the server, without any socket.

The real listener, router, protocols and broker run in this process; requests are handed to 64 connections as
a read from a socket would, one each per turn of the loop. The shares of the kernel and of the loop's polling
are missing: a server under load pays both on top. The client's few microseconds are included.

    --top 20         the functions that take the time (under cProfile, which inflates small ones)
    --instructions   instructions per request, counted by valgrind: exact where clocks are noisy
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
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from openq.config import load
from openq.local.broker import LocalBroker
from openq.server.app import Server
from openq.server.listener import new_loop

from .server_load import Drain, Repeat, RequestPlan
from .server_requests import (
    VARIETY,
    AwsJson,
    SignedJson,
    body,
    post_json,
    post_msgpack,
    signing_client,
)

CONNECTIONS = 64
PORT = 9324
URL = f"http://127.0.0.1:{PORT}/000000000000/profile"
ROUNDS = 5


class FakeTransport(asyncio.Transport):
    """The far end of a connection: keeps the last answer."""

    def __init__(self, answered: asyncio.Event) -> None:
        super().__init__()
        self.answer = b""
        self._answered = answered

    def write(self, data: Any) -> None:
        self.answer = data
        self._answered.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise RuntimeError(f"the server hung up after {self.answer[:500]!r}")


class ServerProfile:
    def __init__(self, durable: bool, flags: Mapping[str, object] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="openq-profile-")
        data = self._folder.name if durable else None
        config = load({**({"memory": True} if data is None else {"data": data}), **(flags or {})})
        self.loop = new_loop()
        self.broker = LocalBroker(data)
        self.server = Server(config, self.broker, self.loop)
        self.server.listener.start(self.loop)
        self.connections = []
        self._answered = asyncio.Event()  # by any of the connections: waiting for the disk costs nothing
        for _ in range(CONNECTIONS):
            connection, wire = self.server.listener.make(), FakeTransport(self._answered)
            connection.connection_made(wire)
            self.connections.append((connection, wire))
        self.wire = AwsJson(PORT, URL)
        self._signed: SignedJson | None = None
        self.run(Repeat([post_json(PORT, "CreateQueue", b'{"QueueName": "profile"}')], limit=1))
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)

    def signed(self) -> SignedJson:
        """Signed requests; from now on every request must be signed."""
        if self._signed is None:
            store = self.server.store
            store.add_user("root", role="admin", is_root=True)
            key = store.create_key("root")
            self._signed = SignedJson(PORT, URL, signing_client(PORT, key.id, key.secret))
        return self._signed

    def run(self, plan: RequestPlan) -> None:
        self.loop.run_until_complete(self._run(plan))

    async def _run(self, plan: RequestPlan) -> None:
        plan.begin()
        asked = [each for each in self.connections if self._ask(each, plan.step(None))]
        while asked:
            await asyncio.sleep(0)
            await self._answered.wait()
            self._answered.clear()
            again = []
            for each in asked:
                answer = each[1].answer
                if not answer:  # it waits for the disk
                    again.append(each)
                    continue
                if answer[9:10] != b"2":
                    raise RuntimeError(f"the server answered {answer[:500]!r}")
                if self._ask(each, plan.step(answer.partition(b"\r\n\r\n")[2])):
                    again.append(each)
            asked = again

    def _ask(self, each: tuple[Any, FakeTransport], request: bytes | None) -> bool:
        if request is None:
            return False
        connection, wire = each
        wire.answer = b""
        connection.data_received(request)
        return True

    def close(self) -> None:
        self.server.context.close()
        self.broker.close()
        if self.server.tracing is not None:
            self.server.tracing.close()
        self._folder.cleanup()


def _sends(bench: ServerProfile, count: int) -> RequestPlan:
    return Repeat(bench.wire.sends(), limit=count)


def _batches(bench: ServerProfile, count: int) -> RequestPlan:
    return Repeat(bench.wire.batches(), limit=count)


def _drain(bench: ServerProfile, count: int) -> RequestPlan:
    bench.run(Repeat(bench.wire.batches(), limit=count // 2))
    return Drain(bench.wire.receive(), bench.wire.delete, count // 2 * 10)


def _rest(bench: ServerProfile, count: int) -> RequestPlan:
    batches = [[body(100 * number + at).encode() for at in range(100)] for number in range(VARIETY // 100)]
    path = "/api/v1/queues/profile/messages/batch"
    return Repeat([post_msgpack(PORT, path, msgspec.msgpack.encode(batch)) for batch in batches], limit=count)


def _rest_single(bench: ServerProfile, count: int) -> RequestPlan:
    path = "/api/v1/queues/profile/messages"
    bodies = [msgspec.msgpack.encode({"payload": body(number).encode()}) for number in range(VARIETY)]
    return Repeat([post_msgpack(PORT, path, each) for each in bodies], limit=count)


def _signed(bench: ServerProfile, count: int) -> RequestPlan:
    return Repeat(bench.signed().sends(), limit=count)


def _single_drain(bench: ServerProfile, count: int) -> RequestPlan:
    bench.run(Repeat(bench.wire.sends(), limit=count // 2))
    return Drain(bench.wire.receive_one(), bench.wire.delete_one, count // 2)


WORKS: dict[str, Callable[[ServerProfile, int], RequestPlan]] = {
    "send": _sends,  # SendMessage
    "batch": _batches,  # SendMessageBatch of 10
    "drain": _drain,  # ReceiveMessage(10) and DeleteMessageBatch(10), half and half
    "signed": _signed,  # SendMessage, signed by botocore and verified
    "drain1": _single_drain,  # ReceiveMessage(1) and DeleteMessage
    "rest": _rest,  # a msgpack batch of 100
    "rest1": _rest_single,  # one message in msgpack
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.server_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("work", nargs="*", help=f"{', '.join(WORKS)} (default: all)")
    parser.add_argument(
        "--durable", action="store_true", help="with a journal in the folder for temporary files"
    )
    parser.add_argument("--count", type=int, default=5_000, help="requests (default 5,000)")
    parser.add_argument("--top", type=int, default=0, metavar="N")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--flags", type=json.loads, default={}, help="keys of the server, as JSON")
    options = parser.parse_args()
    for name in options.work or WORKS:
        if name not in WORKS:
            parser.error(f"unknown work {name!r}; known: {', '.join(WORKS)}")
        if options.instructions:
            _count_instructions(name, options.durable)
        else:
            _measure(name, options)
    return 0


def _measure(name: str, options: argparse.Namespace) -> None:
    count, top = options.count, options.top
    bench = ServerProfile(options.durable, options.flags)
    try:
        if options.once:
            bench.run(WORKS[name](bench, count))
            return
        costs_us = []
        for _ in range(ROUNDS):
            plan = WORKS[name](bench, count)
            gc.collect()
            began_s = time.process_time()
            bench.run(plan)
            costs_us.append((time.process_time() - began_s) / plan.requests * 1e6)
        print(
            f"{name}: {min(costs_us):.1f} us of CPU per request, median {statistics.median(costs_us):.1f}",
            flush=True,
        )
        if top:
            plan = WORKS[name](bench, count)
            profile = cProfile.Profile()
            profile.enable()
            bench.run(plan)
            profile.disable()
            pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(top)
    finally:
        bench.close()


def _count_instructions(name: str, durable: bool) -> None:
    """The difference between two runs: what the start costs is in both."""
    if shutil.which("valgrind") is None:
        raise SystemExit("--instructions needs valgrind")
    few, many = 320, 960
    counts = [_instructions(name, durable, count) for count in (few, many)]
    print(f"{name}: {(counts[1] - counts[0]) / (many - few):,.0f} instructions per request", flush=True)


def _instructions(name: str, durable: bool, count: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += ["-m", "bench.server_profile", name, "--once", "--count", str(count)]
    if durable:
        command.append("--durable")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or collected is None:
        raise SystemExit(f"valgrind failed: {done.stderr[-1000:]}")
    return int(collected[1])


if __name__ == "__main__":
    sys.exit(main())
