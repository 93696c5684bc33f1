"""Kill servers that send webhooks, and the endpoint, at any moment, many times.

Afterwards every message that was confirmed has reached the endpoint, and no message whose ack had reached the
disk was sent again. A message that was in flight at a kill may arrive twice: those are counted.

`python -m tests.crash.webhooks PORT FILE` is the endpoint: it writes the body of a request to a file, then it
accepts it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

from openq.broker.events import ACKED, PUBLISHED, EventFilter
from openq.local.broker import LocalBroker
from openq.redis.broker import RedisBroker
from tests.isolation import with_tests
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until

LONGEST_S = 0.4
QUEUE = "q"
BATCH = 20
PAUSE_S = 0.005  # between batches: the endpoint is slow


def serve_until_killed(port: int, path: str) -> None:
    target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            os.write(target, body + b"\n")
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    class Listener(ThreadingHTTPServer):
        allow_reuse_address = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """The server was killed."""

    listener = Listener(("127.0.0.1", port), Handler)
    print("ready", flush=True)
    listener.serve_forever()


class WebhookLoop:
    """On a journal, or with several servers on Redis, of which one is killed at a time."""

    def __init__(self, path: Path, seed: int, redis_url: str = "", servers: int = 1) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._data = path / "data"
        self._redis_url = redis_url
        self._log = path / "seen"
        self._log.touch()
        self._random = random.Random(seed)
        self._ports = [free_port() for _ in range(servers)]
        self._endpoint_port = free_port()
        self._endpoint: subprocess.Popen[bytes] | None = None
        self._next = 0
        self._confirmed: set[int] = set()
        self._problems: list[str] = []
        self.confirmed = self.repeated = 0

    def run(self, lives: int) -> str:
        """What is wrong afterwards; empty if nothing is."""
        servers = [self._start_server(port) for port in self._ports]
        for server in servers:
            server.wait()
        client = Client(servers[0].url)
        client.queue(QUEUE, retry={"kind": "fixed", "base": 0.02})
        url = f"http://127.0.0.1:{self._endpoint_port}/"
        client.put(f"/webhooks/{QUEUE}", {"url": url, "queue": QUEUE, "failures": 1_000_000})
        self._start_endpoint()
        try:
            for _ in range(lives):
                self._live(servers)
            until(lambda: self._is_empty(client), "every message is delivered")
        finally:
            self._kill_endpoint()
            for server in servers:
                server.stop()
        return self._complaint()

    def _start_server(self, port: int) -> Served:
        store = (
            ["--store", self._redis_url, "--profile", "fast"]
            if self._redis_url
            else ["--data", str(self._data)]
        )
        return Served([*store, "--webhook-allow", "127.0.0.1"], port)

    def _start_endpoint(self) -> None:
        self._endpoint = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.webhooks", str(self._endpoint_port), str(self._log)],
            stdout=subprocess.PIPE,
            env=with_tests(),
        )
        assert self._endpoint.stdout is not None
        assert self._endpoint.stdout.readline() == b"ready\n", "the endpoint did not start"

    def _kill_endpoint(self) -> None:
        assert self._endpoint is not None
        self._endpoint.kill()
        self._endpoint.wait()
        assert self._endpoint.stdout is not None
        self._endpoint.stdout.close()

    def _live(self, servers: list[Served]) -> None:
        """One life of a server or of the endpoint, which ends at a moment of chance."""
        at = self._random.randrange(len(servers))
        victim = self._random.choice(("server", "endpoint", "both"))
        ended = threading.Event()
        publisher = threading.Thread(target=self._publish, args=(ended,))
        publisher.start()
        time.sleep(self._random.random() * LONGEST_S)  # the moment of death, not a wait for anything
        if victim != "server":
            self._kill_endpoint()
        if victim != "endpoint":
            servers[at].kill()
        ended.set()
        publisher.join()
        if victim != "endpoint":
            if victim == "server":
                # Nothing reaches it while we look at what the server left.
                self._kill_endpoint()
            acked = self._acked()
            before = Counter(self._seen())
            servers[at] = self._start_server(self._ports[at]).wait()
            self._start_endpoint()
            until(lambda: self._is_empty(Client(servers[at].url)), "every message is delivered")
            after = Counter(self._seen())
            again = [number for number in acked if after[number] > before[number]]
            self._problems += [f"{number} was acked and sent again" for number in again]
        else:
            self._start_endpoint()

    def _publish(self, ended: threading.Event) -> None:
        clients = cycle([Client(f"http://127.0.0.1:{port}") for port in self._ports])
        while not ended.wait(PAUSE_S):
            client = next(clients)
            numbers = range(self._next, self._next + BATCH)
            self._next += BATCH
            try:
                reply = client.post(f"/queues/{QUEUE}/messages/batch", [str(number) for number in numbers])
            except OSError:
                continue  # not confirmed: it may be there, or not
            if reply.status == 201:
                self._confirmed.update(numbers)

    def _acked(self) -> set[int]:
        """The messages whose ack is an event, by the disk of a dead server or by Redis.

        Not those that are missing in the queue: while a server lives, its messages change their places and
        may be missing in a listing.
        """
        broker: LocalBroker | RedisBroker = (
            RedisBroker(self._redis_url, profile="fast")
            if self._redis_url
            else LocalBroker(self._data, runs_schedules=False)
        )
        numbers: dict[str | None, int] = {}
        acked: set[int] = set()
        after: str | None = None
        try:
            while True:
                page = broker.events.read(after, 1_000, EventFilter(events=frozenset((PUBLISHED, ACKED))))
                for event in page.events:
                    if event.message is not None:
                        numbers[event.message_id] = int(event.message.body)
                    else:
                        acked.add(numbers[event.message_id])
                after = page.next
                if page.is_end:
                    return acked
        finally:
            broker.close()

    def _is_empty(self, client: Client) -> bool:
        stats = client.get(f"/queues/{QUEUE}").value["stats"]
        return not (stats["ready"] or stats["delayed"] or stats["in_flight"])

    def _seen(self) -> list[int]:
        return [int(line) for line in self._log.read_text().splitlines()]

    def _complaint(self) -> str:
        seen = Counter(self._seen())
        self.confirmed = len(self._confirmed)
        self.repeated = sum(count - 1 for count in seen.values())
        lost = sorted(self._confirmed - seen.keys())
        self._problems += [f"{number} was confirmed and never sent" for number in lost]
        return "; ".join(self._problems[:10])


if __name__ == "__main__":
    serve_until_killed(int(sys.argv[1]), sys.argv[2])
