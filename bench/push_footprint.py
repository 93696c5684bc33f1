"""The memory of a server with ten thousand idle readers: WebSocket streams, event streams, and half of each.

Each WebSocket stream has one subscription, and each event stream follows one queue; a hundred queues. The
server is measured after a rest in which it has sent pings and heartbeats.
"""

from __future__ import annotations

from .harness import BenchTarget, Row, Run
from .push_common import BENCH
from .push_crowd import Crowd, as_many_as_allowed
from .server_processes import OpenQ
from .server_rounds import started

IDLE = 10_000
QUEUES = 100
REST_S = 22.0  # pings come after 20 seconds, heartbeats after 15
TARGET = BenchTarget(300, 300, more_is_better=False)


def run(run: Run) -> None:
    idle = as_many_as_allowed(run, 2_000 if run.quick else IDLE)
    target = TARGET if idle == IDLE else None
    for what, streams in (("WebSocket", idle), ("SSE", 0), ("WebSocket and SSE, half of each", idle // 2)):
        before_mib, after_mib, cores = _measure(run, streams, idle - streams)
        each_kib = (after_mib - before_mib) * 1024 / idle
        note = f"before them {before_mib:.0f} MiB: {each_kib:.1f} KiB each; {cores:.3f} of a core while idle"
        name = f"resident memory, {idle:,} idle connections, {what}"
        run.emit(Row(BENCH, name, "-", "MiB", [after_mib], target, note=note))


def _measure(run: Run, streams: int, readers: int) -> tuple[float, float, float]:
    """Before, after, and the cores that the server used while all of them were idle."""
    rest_s = 3.0 if run.quick else REST_S
    server = OpenQ(run.folder("openq"), durable=True)
    with started(server):
        for number in range(QUEUES):
            server.queue(_queue(number))
        before_mib = server.rss_bytes() / 2**20
        crowd = Crowd()
        try:
            crowd.open_streams(server.port, streams, _queue, credit=100)
            crowd.open_events(server.port, readers, lambda number: f"/api/v1/queues/{_queue(number)}/events")
            began_s = server.cpu_s()
            crowd.rest(rest_s)
            cores = (server.cpu_s() - began_s) / rest_s
            after_mib = server.rss_bytes() / 2**20
        finally:
            crowd.close()
    return before_mib, after_mib, cores


def _queue(number: int) -> str:
    return f"idle-{number % QUEUES}"
