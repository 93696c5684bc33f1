"""Ten thousand idle connections and a thousand long polls: their memory, and how soon a poll wakes up.

A message is sent to one of a hundred queues, on each of which ten wait. The time runs from before it is sent
until the answer of the poll that got it has been read.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import statistics
import time

from .harness import BenchTarget, Row, Run
from .server_load import STUCK_S, RequestRefused
from .server_processes import OpenQ
from .server_requests import AwsJson, post_json
from .server_rounds import BENCH, started

IDLE = 10_000
POLLS = 1_000
QUEUES = 100
PACE_PER_S = 100
WAIT_S = 20
PORTS_PER_ADDRESS = 5_000  # a machine may have few of them, but it has many loopback addresses


def run(run: Run) -> None:
    idle, polls = _as_many_as_allowed(run)
    wakes = 300 if run.quick else 2_000
    peer = OpenQ(run.folder("openq"), durable=True)
    with started(peer):
        before_mb = peer.rss_bytes() / 1e6
        crowd: list[socket.socket] = []
        try:
            for number in range(idle):
                crowd.append(_connect(peer.port, number))
            _send_one_request(peer.port, crowd)
            with_idle_mb = peer.rss_bytes() / 1e6
            waits = LongPolls(peer, polls, first_number=idle)
            try:
                waits.wake(min(wakes, 100))  # once, uncounted
                took_ms = waits.wake(wakes)
                rss_mib = peer.rss_bytes() / 2**20
                cores = waits.server_cores
            finally:
                waits.close()
            _send_one_request(
                peer.port, crowd[:: max(1, len(crowd) // 100)]
            )  # none of them was dropped meanwhile
        finally:
            for connection in crowd:
                connection.close()
    took_ms.sort()
    p99_ms = took_ms[int(len(took_ms) * 0.99)]
    crowd_text = f"{idle:,} idle connections, {polls:,} long polls"
    note = f"before anybody came {before_mb:.0f} MB, with the idle ones {with_idle_mb:.0f} MB"
    run.emit(
        Row(BENCH, f"resident memory, {crowd_text}", "-", "MiB", [rss_mib], _target(run, 600), note=note)
    )
    note = (
        f"{len(took_ms)} wake-ups at {PACE_PER_S}/s; p50 {statistics.median(took_ms):.2f} ms, "
        f"longest {took_ms[-1]:.1f} ms; the server used {cores:.2f} of a core"
    )
    run.emit(Row(BENCH, f"wake-up p99, {crowd_text}", "-", "ms", [p99_ms], _target(run, 100), note=note))


def _target(run: Run, bar: float) -> BenchTarget | None:
    """The targets are for the full number of connections."""
    return None if run.quick else BenchTarget(bar, bar, more_is_better=False)


def _as_many_as_allowed(run: Run) -> tuple[int, int]:
    """Each connection is an open file here and another one in the server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle, polls = (2_000, 200) if run.quick else (IDLE, POLLS)
    if hard != resource.RLIM_INFINITY and idle + polls + 200 > hard:
        run.log(f"server: only {hard} open files are allowed here; FEWER THAN {IDLE:,} idle connections")
        idle = hard - polls - 200
    return idle, polls


def _connect(port: int, number: int) -> socket.socket:
    source = f"127.0.0.{1 + number // PORTS_PER_ADDRESS}"
    return socket.create_connection(("127.0.0.1", port), timeout=STUCK_S, source_address=(source, 0))


def _send_one_request(port: int, connections: list[socket.socket]) -> None:
    """One request on each connection: an idle connection has been used before."""
    for start in range(0, len(connections), 100):
        some = connections[start : start + 100]
        for connection in some:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % port)
        for connection in some:
            if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                raise RequestRefused("an idle connection got no answer")


class LongPolls:
    """The long polls, and the sender that wakes them."""

    def __init__(self, peer: OpenQ, polls: int, first_number: int) -> None:
        self._peer = peer
        self._connections = [
            AwsJson.create(peer.port, f"crowd-{number}") for number in range(min(QUEUES, polls))
        ]
        self._requests: dict[int, bytes] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self._sender = _connect(peer.port, first_number + polls)
        self._sockets[self._sender.fileno()] = self._sender
        self._poll.register(self._sender.fileno(), select.EPOLLIN)
        self._sent_s: dict[str, float] = {}
        self._next = 0
        self.server_cores = 0.0
        for number in range(polls):
            connection = _connect(peer.port, first_number + number)
            url = self._connections[number % len(self._connections)].queue_url
            asked = {"QueueUrl": url, "WaitTimeSeconds": WAIT_S, "MaxNumberOfMessages": 1}
            fileno = connection.fileno()
            self._sockets[fileno] = connection
            self._requests[fileno] = post_json(peer.port, "ReceiveMessage", json.dumps(asked).encode())
            self._poll.register(fileno, select.EPOLLIN)
            connection.sendall(self._requests[fileno])

    def wake(self, count: int) -> list[float]:
        """Send this many messages at an even pace. How long each took to arrive, in ms."""
        took_ms: list[float] = []
        began_s, began_cpu_s = time.perf_counter(), self._peer.cpu_s()
        end_s = began_s + count / PACE_PER_S + STUCK_S
        sent = 0
        while len(took_ms) < count:
            now_s = time.perf_counter()
            if now_s > end_s:
                raise RequestRefused(f"{count - len(took_ms)} of {count} messages woke no long poll")
            due_s = began_s + sent / PACE_PER_S
            if sent < count and now_s >= due_s:
                self._send()
                sent += 1
                continue
            for fileno, _ in self._poll.poll(due_s - now_s if sent < count else 1.0):
                took_ms += self._woken(fileno)
        self.server_cores = (self._peer.cpu_s() - began_cpu_s) / (time.perf_counter() - began_s)
        return took_ms

    def _send(self) -> None:
        self._next += 1
        body = f"wake-{self._next}-"
        wire = self._connections[self._next % len(self._connections)]
        content = json.dumps({"QueueUrl": wire.queue_url, "MessageBody": body}).encode()
        self._sent_s[body] = time.perf_counter()
        self._sender.sendall(post_json(wire.port, "SendMessage", content))

    def _woken(self, fileno: int) -> list[float]:
        connection = self._sockets[fileno]
        answer = connection.recv(1 << 16)
        now_s = time.perf_counter()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RequestRefused(f"a request ended with {answer[:300]!r}")
        if connection is self._sender:
            return []
        connection.sendall(self._requests[fileno])
        # An empty poll is repeated.
        at = answer.find(b"wake-")
        if at < 0:
            return []
        body = answer[at : answer.find(b'"', at)].decode()
        return [(now_s - self._sent_s.pop(body)) * 1000]

    def close(self) -> None:
        self._poll.close()
        for connection in self._sockets.values():
            connection.close()
