"""The time from `send` to the start of the job in an idle worker service: against dramatiq on the same Redis.

Both services are started by their commands, with one process of eight threads. A sender in another process
sends a job every 50 to 150 ms. dramatiq asks Redis again and again, ever more slowly while nothing comes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .harness import BenchTarget, ChildProcess, Run, alternate
from .redis_common import IN_MEMORY, missing, store
from .server_processes import NotAvailable, OpenQ
from .server_rounds import started
from .worker_common import BENCH, lower_is_better, obtain_rivals
from .worker_services import DramatiqService, OpenQService, ServiceSender

TARGET = BenchTarget(1.0, 0.5, more_is_better=False)


def run(run: Run) -> None:
    if reason := missing():
        run.log(f"{BENCH}: LATENCY IS LEFT OUT: {reason}")
        return
    try:
        rivals = obtain_rivals()
    except NotAvailable as absent:
        run.log(f"{BENCH}: LATENCY IS LEFT OUT: NOT COMPARED WITH dramatiq: {absent}")
        return
    rounds = run.rounds(5)
    count = 50 if run.quick else 300
    server = OpenQ(run.folder("openq"), durable=True)
    with store(run.folder("redis"), *IN_MEMORY) as redis, started(server):
        address = {
            "on the same Redis": f"{redis.url}?profile=fast",
            "durable server": f"http://127.0.0.1:{server.port}",
        }
        for where, url in address.items():
            match = alternate(
                ChildProcess(ServiceSender, OpenQService, count, run.folder("worker"), url),
                ChildProcess(
                    ServiceSender, DramatiqService, count, run.folder("dramatiq"), rivals, redis.port
                ),
                rounds,
            )
            ours = [lap.detail for lap in match.ours]
            theirs = [lap.detail for lap in match.theirs]
            for name, percent in (("p50", 50), ("p99", 99)):
                what = f"from send to start, idle worker, {where}, {name}"
                figures = [_percentile(laps, percent) for laps in (ours, theirs)]
                run.emit(lower_is_better(what, "dramatiq on Redis", *figures, TARGET, "ms"))


def _percentile(laps: Sequence[Sequence[float]], percent: int) -> list[float]:
    return [statistics.quantiles(waits, n=100, method="inclusive")[percent - 1] for waits in laps]
