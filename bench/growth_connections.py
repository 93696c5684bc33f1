"""Growth with the number of connections: all of them busy, or ten of them."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Iterator

from . import server_load
from .amqp_client import ACK, message
from .amqp_load import SocketLink
from .amqp_processes import OpenQAmqp
from .growth_run import GrowthRun
from .growth_server import cost, send_request
from .server_load import STUCK_S, Repeat, RequestRefused, Tally
from .server_rounds import started

FEW = 10
_CONFIRM_BYTES = 21
_SPARE = 300


def measure(run: GrowthRun) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    points = [10, 100, 1_000] + ([] if run.quick else [10_000])
    allowed = [x for x in points if x + FEW + _SPARE <= hard]
    if allowed != points:
        run.log(f"only {hard:,} open files are allowed here")
    for x in allowed:
        if run.is_known(x):
            continue
        if run.is_late(x):
            return
        # A server of its own for each: what closed connections leave behind does not count.
        peer = OpenQAmqp(run.folder(f"server-{x}"), durable=True)
        with started(peer):
            peer.queue("crowd")
            _measure_point(run, peer, x)


def _measure_point(run: GrowthRun, peer: OpenQAmqp, x: int) -> None:
    requests = [send_request(peer.port, "crowd", number) for number in range(100)]

    def busy(connections: int) -> Tally:
        return server_load.drive(
            peer.port, connections, Repeat(requests, limit=max(run.lap_count, 2 * connections))
        )

    busy(FEW)
    before_bytes = peer.rss_bytes()
    with _idle(peer.port, x):
        bytes_each = (peer.rss_bytes() - before_bytes) / x
        idle_us, _ = cost(run, peer, lambda: busy(FEW))
    busy_us, busy_rate = cost(run, peer, lambda: busy(x))
    with _amqp_lines(peer.amqp_port, x) as lines:
        amqp_us, amqp_rate = cost(run, peer, lambda: _confirmed(lines, max(run.lap_count, 2 * x)))
    run.add(
        x,
        busy_us=busy_us,
        busy_per_s=busy_rate,
        idle_us=idle_us,
        connection_bytes=bytes_each,
        amqp_us=amqp_us,
        amqp_per_s=amqp_rate,
    )


@contextlib.contextmanager
def _idle(port: int, count: int) -> Iterator[None]:
    """Connections that have been used once."""
    with contextlib.ExitStack() as stack:
        some: list[socket.socket] = []
        for number in range(count):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=STUCK_S))
            line.sendall(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % port)
            some.append(line)
            if len(some) == 100 or number == count - 1:
                for each in some:
                    if not each.recv(4096).startswith(b"HTTP/1.1 200"):
                        raise RequestRefused("an idle connection got no answer")
                some.clear()
        yield


@contextlib.contextmanager
def _amqp_lines(port: int, count: int) -> Iterator[list[socket.socket]]:
    links: list[SocketLink] = []
    try:
        for _ in range(count):
            link = SocketLink(port)
            links.append(link)
            link.confirm()
        yield [link.socket for link in links]
    finally:
        for link in links:
            link.socket.close()


def _confirmed(lines: list[socket.socket], limit: int) -> Tally:
    """On each connection one publish at a time; the next one after its confirm."""
    published = message("crowd", b"x" * 100)
    by_fileno = {line.fileno(): line for line in lines}
    held = dict.fromkeys(by_fileno, 0)
    count, sent, open_now = 0, len(lines), len(lines)
    with select.epoll() as poll:
        for fileno in by_fileno:
            poll.register(fileno, select.EPOLLIN)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for line in lines:
            line.sendall(published)
        while open_now:
            ready = poll.poll(STUCK_S, 512)
            if not ready:
                raise RequestRefused(f"no confirm in {STUCK_S:.0f} s on {open_now} connections")
            for fileno, _ in ready:
                line = by_fileno[fileno]
                data = line.recv(4096)
                if not data or (not held[fileno] and data[7:11] != bytes((0, ACK[0], 0, ACK[1]))):
                    raise RequestRefused(f"not a confirm: {data[:300]!r}")
                held[fileno] += len(data)
                if held[fileno] < _CONFIRM_BYTES:
                    continue
                held[fileno] = 0
                count += 1
                if sent < limit:
                    sent += 1
                    line.sendall(published)
                else:
                    open_now -= 1
    return Tally(count, count, time.perf_counter() - began_s, time.process_time() - began_cpu_s)
