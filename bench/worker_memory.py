"""Resident memory of an idle worker process that has run one job: against dramatiq's.

Only the process that runs the jobs is weighed, not the ones that watch over it. The row for the whole
service adds up what each of its processes has for itself and its part of what they share (PSS).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .harness import BenchTarget, Run
from .redis_common import IN_MEMORY, missing, store
from .server_footprint import SETTLE_S
from .server_processes import NotAvailable, OpenQ
from .server_rounds import started
from .worker_common import BENCH, lower_is_better, obtain_rivals
from .worker_services import DramatiqService, OpenQService, WorkerService

TARGET = BenchTarget(1.0, 0.6, more_is_better=False)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def run(run: Run) -> None:
    if reason := missing():
        run.log(f"{BENCH}: MEMORY IS LEFT OUT: {reason}")
        return
    try:
        rivals = obtain_rivals()
    except NotAvailable as absent:
        run.log(f"{BENCH}: MEMORY IS LEFT OUT: NOT COMPARED WITH dramatiq: {absent}")
        return
    rounds = 1 if run.quick else 3
    server = OpenQ(run.folder("openq"), durable=True)
    with store(run.folder("redis"), *IN_MEMORY) as redis, started(server):
        theirs = [_weigh(DramatiqService(run.folder("dramatiq"), rivals, redis.port)) for _ in range(rounds)]
        address = {"on Redis": f"{redis.url}?profile=fast", "on a server": f"http://127.0.0.1:{server.port}"}
        for where, url in address.items():
            ours = [_weigh(OpenQService(run.folder("worker"), url)) for _ in range(rounds)]
            rows = (
                (f"memory of an idle worker process {where}", TARGET),
                (f"memory of the idle service {where}", None),
            )
            for at, (what, target) in enumerate(rows):
                sides = [[figures[at] for figures in side] for side in (ours, theirs)]
                run.emit(lower_is_better(what, "dramatiq on Redis", *sides, target, "MB"))


def _weigh(service: WorkerService) -> tuple[float, float]:
    """MB of the worker process (RSS), and of the whole service (sum of PSS)."""
    with started(service):
        time.sleep(SETTLE_S)
        rss = int(Path(f"/proc/{service.worker_pid()}/statm").read_text("ascii").split()[1]) * _PAGE
        return rss / 1e6, sum(map(_pss_bytes, service.pids())) / 1e6


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of process {pid}")
