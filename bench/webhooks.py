"""Webhooks against httpx: messages of a durable queue posted to one endpoint on loopback, 32 at a time.

Ours: leased from the queue, signed, posted, acked on disk; the lap ends with the last ack. The reference
posts the same bodies with the same headers from a list, with `httpx.AsyncClient` and 32 coroutines. It has no
queue and no signature. The endpoint is the same program for both and does next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import httpx

from .harness import BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap
from .server_processes import OpenQ, free_port
from .server_requests import ask

BENCH = "push"
CONCURRENCY = 32
BODY = "x" * 100
TARGET = BenchTarget(floor=1.5, aim=3)
_QUEUE = "bench"


class _Endpoint:
    def __init__(self) -> None:
        self.port = free_port()
        self._process = subprocess.Popen([sys.executable, "-m", "bench.webhooks_endpoint", str(self.port)])
        while True:
            try:
                ask(self.port, b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", timeout_s=0.2)
            except TimeoutError:
                return  # it keeps the connection: it is there
            except OSError:
                time.sleep(0.01)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class OpenQWebhook:
    def __init__(self, folder: str, count: int, mode: str) -> None:
        self._count = count
        self._done = 0
        self._endpoint = _Endpoint()
        self._server = OpenQ(folder, "--webhook-allow", "127.0.0.1", durable=True)
        self._server.start()
        self._call("PUT", f"/queues/{_QUEUE}", {})
        url = f"http://127.0.0.1:{self._endpoint.port}/hook"
        wanted = {"url": url, "queue": _QUEUE, "concurrency": CONCURRENCY, "mode": mode}
        self._call("PUT", "/webhooks/bench", wanted)
        self._call("POST", "/webhooks/bench/disable", {})

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} /api/v1{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        status, reply = ask(self._server.port, head.encode() + data)
        if status >= 300:
            raise RuntimeError(reply)
        return json.loads(reply)

    def _stats(self) -> Any:
        return self._call("GET", f"/queues/{_QUEUE}")["stats"]

    def lap(self, given: Any) -> Lap:
        for _ in range(0, self._count, 1000):
            self._call("POST", f"/queues/{_QUEUE}/messages/batch", [BODY] * 1000)
        self._done += self._count
        cpu_s = self._server.cpu_s()
        done = lap(self._count, self._deliver)
        spent_s = self._server.cpu_s() - cpu_s
        self._call("POST", "/webhooks/bench/disable", {})
        while self._stats()["waiters"]:
            time.sleep(0.005)
        return Lap(done.count, done.wall_s, spent_s)

    def _deliver(self) -> None:
        self._call("POST", "/webhooks/bench/enable", {})
        while self._stats()["counters"]["acked"] < self._done:
            time.sleep(0.005)

    def close(self) -> None:
        self._server.stop()
        self._endpoint.stop()


class Httpx:
    def __init__(self, count: int) -> None:
        self._count = count
        self._endpoint = _Endpoint()

    def lap(self, given: Any) -> Lap:
        return lap(self._count, lambda: asyncio.run(self._post_all()))

    async def _post_all(self) -> None:
        left = iter(range(self._count))
        url = f"http://127.0.0.1:{self._endpoint.port}/hook"
        limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
        headers = {
            "Content-Type": "text/plain; charset=utf-8",
            "OpenQ-Queue": _QUEUE,
            "OpenQ-Message-Id": "0" * 24,
            "OpenQ-Receive-Count": "1",
            "OpenQ-Sent": "2026-01-31T12:00:00.123Z",
            "webhook-id": "0" * 24,
            "webhook-timestamp": "1769860800",
            "webhook-signature": "v1," + "A" * 44,
        }
        body = BODY.encode()
        async with httpx.AsyncClient(limits=limits, verify=False) as client:

            async def post() -> None:
                for _ in left:
                    response = await client.post(url, content=body, headers=headers)
                    response.raise_for_status()

            await asyncio.gather(*(post() for _ in range(CONCURRENCY)))

    def close(self) -> None:
        self._endpoint.stop()


def run(run: Run) -> None:
    count = 5_000 if run.quick else 20_000
    for mode in ("raw", "json"):
        match = alternate(
            ChildProcess(OpenQWebhook, run.folder("openq"), count, mode),
            ChildProcess(Httpx, count // 5),
            run.rounds(5),
        )
        what = f"messages posted to one endpoint, 32 at a time, {mode}, 100 B"
        run.emit(faster_by(BENCH, what, "httpx.AsyncClient", match, TARGET))
