"""The health port of a worker service: /healthz, /readyz and /metrics, on the loop of the supervisor."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from ..metrics import Family, render
from .reports import stats_of
from .supervisor import Supervisor

MAX_CONNECTIONS = 64
MAX_REQUEST = 8192
TIMEOUT_S = 5.0
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


@dataclass(eq=False)
class _Connection:
    sock: socket.socket
    deadline: float
    data: bytes = b""


class HealthPort:
    """Answers one request per connection. `port` 0 takes a free one."""

    def __init__(self, supervisor: Supervisor, port: int, host: str = "127.0.0.1") -> None:
        self._supervisor = supervisor
        self._connections: set[_Connection] = set()
        self._listener = socket.create_server((host, port), backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        supervisor.add_reader(self._listener, self._accept)
        supervisor.add_timer(self._expire)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the client has gone already
        if len(self._connections) >= MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        connection = _Connection(sock, time.monotonic() + TIMEOUT_S)
        self._connections.add(connection)
        self._supervisor.add_reader(sock, lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.data += data
        if b"\r\n\r\n" in connection.data:
            self._answer(connection)
        elif not data or len(connection.data) > MAX_REQUEST:
            self._close(connection)

    def _answer(self, connection: _Connection) -> None:
        method, _, rest = connection.data.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, kind, body = self._respond(method, path)
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        try:
            # The answer fits the buffer of the socket; a client that does not read must not stop the service.
            connection.sock.settimeout(1.0)
            connection.sock.sendall(head if method == "HEAD" else head + body)
        except OSError:
            pass
        self._close(connection)

    def _respond(self, method: str, path: str) -> tuple[str, str, bytes]:
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", _TEXT, b"only GET\n"
        if path in ("/healthz", "/livez"):
            return "200 OK", _TEXT, b"alive\n"
        if path == "/readyz":
            problems = readiness(self._supervisor)
            text = f"not ready: {'; '.join(problems)}\n" if problems else "ready\n"
            return "503 Service Unavailable" if problems else "200 OK", _TEXT, text.encode()
        if path == "/metrics":
            return "200 OK", _METRICS, render(families(self._supervisor))
        return "404 Not Found", _TEXT, b"/healthz, /readyz and /metrics\n"

    def _expire(self, now: float) -> None:
        for connection in list(self._connections):
            if now > connection.deadline:
                self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._supervisor.remove_reader(connection.sock)
            connection.sock.close()

    def close(self) -> None:
        for connection in list(self._connections):
            self._close(connection)
        self._supervisor.remove_reader(self._listener)
        self._listener.close()


def readiness(supervisor: Supervisor) -> list[str]:
    """Why the service does not process everything it should; empty if it is ready."""
    if supervisor.is_stopping:
        return ["stopping"]
    now = time.monotonic()
    problems = []
    for slot in supervisor.slots:
        handle = slot.current
        if not slot.is_open:
            continue
        if handle is None:
            problems.append(f"process {slot.number} is not running")
        elif handle.state == "starting":
            problems.append(f"process {slot.number} is starting" + _because(handle.waits_for))
        elif handle.is_silent(now):
            problems.append(f"process {slot.number} does not respond")
        elif not handle.is_connected:
            problems.append(f"process {slot.number} cannot reach its broker")
        elif handle.is_quiet:
            problems.append(f"process {slot.number} is quiet")
    if not any(slot.is_open for slot in supervisor.slots):
        problems.append("every process was stopped by an operator")
    return problems


def _because(why: str | None) -> str:
    return f": {why}" if why else ""


def families(supervisor: Supervisor) -> list[Family]:
    handles = supervisor.handles
    snapshots = [handle.snapshot for handle in handles]
    totals = supervisor.totals.copy()
    for handle in handles:
        totals.add(stats_of(handle.snapshot, handle.name))
    slots = sum(snapshot.get("slots", 0) for snapshot in snapshots)
    busy = sum(len(snapshot.get("running", ())) for snapshot in snapshots)
    states: dict[str, int] = dict.fromkeys(("starting", "ready", "stopping"), 0)
    for handle in handles:
        states[handle.state] = states.get(handle.state, 0) + 1
    return [
        Family(
            "openq_worker_processes",
            "gauge",
            "Processes of a worker, by state.",
            [({"state": state}, count) for state, count in states.items()],
        ),
        Family(
            "openq_worker_process_restarts_total",
            "counter",
            "Processes that were replaced because they crashed, exceeded a limit, or timed out.",
            [({}, supervisor.restarts)],
        ),
        Family("openq_worker_slots", "gauge", "Jobs that a worker can run at once.", [({}, slots)]),
        Family("openq_worker_busy_slots", "gauge", "Jobs that a worker runs now.", [({}, busy)]),
        Family(
            "openq_worker_memory_bytes",
            "gauge",
            "Resident memory of a worker process.",
            [({"process": handle.name}, handle.snapshot.get("memory", 0)) for handle in handles],
        ),
        *totals.families(),
    ]
