"""Growth with the number of queues: creating them, messages to all in turn, idling, metrics, restart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from .growth_run import GrowthRun
from .growth_server import InTurn, cost, create_queues, receive_request, send_request
from .server_load import Tally, drive
from .server_processes import OpenQ, ServerProcess
from .server_requests import ask
from .server_rounds import started

MAX_USED = 5_000  # queues that get messages, evenly spaced: the load has a finished request for each
METRICS = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def measure(run: GrowthRun) -> None:
    points = [10, 100, 1_000, 10_000] + ([] if run.quick else [100_000])
    if all(run.is_known(x) for x in points):
        return
    peer = OpenQ(run.folder("server"), durable=True)
    there = 0
    with started(peer):
        for x in points:
            if run.is_late(x):
                return
            before_s, before_bytes = peer.cpu_s(), peer.rss_bytes()
            created = create_queues(peer.port, [_name(number) for number in range(there, x)])
            create_us = (peer.cpu_s() - before_s) / created.count * 1e6
            queue_bytes = (peer.rss_bytes() - before_bytes) / (x - there)
            there = x
            if run.is_known(x):
                continue
            used = [_name(number) for number in range(0, x, max(1, x // MAX_USED))]
            send_us, send_rate = cost(run, peer, _sends(run, peer, used))
            receive_us, _ = cost(run, peer, _receives(run, peer, used))
            run.add(
                x,
                create_us=create_us,
                queue_bytes=queue_bytes,
                send_us=send_us,
                send_per_s=send_rate,
                receive_us=receive_us,
                idle_share=_idle_share(run, peer),
                metrics_ms=_metrics_ms(run, peer),
                restart_s=_restart_s(peer),
            )


def _name(number: int) -> str:
    return f"q{number}"


def _sends(run: GrowthRun, peer: ServerProcess, queues: list[str]) -> Callable[[], Tally]:
    requests = itertools.cycle([send_request(peer.port, name, at) for at, name in enumerate(queues)])
    count = run.lap_count
    return lambda: drive(peer.port, 32, InTurn(requests, count))


def _receives(run: GrowthRun, peer: ServerProcess, queues: list[str]) -> Callable[[], Tally]:
    """Receive one message from each queue in turn."""
    requests = [receive_request(peer.port, name) for name in queues]
    count = run.lap_count
    return lambda: drive(peer.port, 32, InTurn(itertools.cycle(requests), count))


def _idle_share(run: GrowthRun, peer: ServerProcess) -> float:
    """CPU time of a server without requests, per second."""
    time.sleep(0.5)
    before_s, began_s = peer.cpu_s(), time.perf_counter()
    time.sleep(1.0 if run.quick else 3.0)
    return (peer.cpu_s() - before_s) / (time.perf_counter() - began_s)


def _metrics_ms(run: GrowthRun, peer: ServerProcess) -> float:
    """CPU time of the server for one page of metrics."""
    count = 2 if run.quick else 5
    before_s = peer.cpu_s()
    for _ in range(count):
        ask(peer.port, METRICS, timeout_s=60.0)
    return (peer.cpu_s() - before_s) / count * 1000


def _restart_s(peer: ServerProcess) -> float:
    peer.stop()
    peer.start()
    return peer.start_s
