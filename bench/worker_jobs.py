"""Jobs that do nothing, worked off by one process with eight threads: a durable server, Redis, a path.

The queue is filled before the clock starts, see `worker_common`. The rivals have the same number of threads
and the same Redis; RQ has one thread, as its workers do. RabbitMQ's queue is durable, its messages are
persistent. Ours takes up to a thousand short jobs ahead, so its laps are long enough for that not to count.
"""

from __future__ import annotations

from .amqp_processes import RabbitMq
from .harness import BenchTarget, ChildProcess, Run, alternate, faster_by
from .redis_common import IN_MEMORY, missing, store
from .server_processes import NotAvailable, OpenQ
from .server_rounds import started
from .worker_common import BENCH, THREADS, Drained, obtain_rivals
from .worker_ours import OpenQWorker
from .worker_rivals import HueyOnSqlite, RqWorker, dramatiq_on_rabbitmq, dramatiq_on_redis

SERVER = BenchTarget(floor=2, aim=5)
REDIS_DRAMATIQ = BenchTarget(floor=1.5, aim=4)
REDIS_RQ = BenchTarget(floor=20, aim=60)
PATH = BenchTarget(floor=3, aim=10)
WHAT = f"no-op jobs, 1 process x {THREADS} threads"


def run(run: Run) -> None:
    try:
        rivals = obtain_rivals()
    except NotAvailable as absent:
        run.log(f"{BENCH}: dramatiq, RQ AND huey ARE LEFT OUT: {absent}")
        return
    _on_a_server(run, rivals)
    _on_redis(run, rivals)
    _on_a_path(run, rivals)


def _counts(run: Run) -> tuple[int, int]:
    """Jobs of a lap: ours, theirs."""
    return (20_000, 2_000) if run.quick else (50_000, 10_000)


def _on_a_server(run: Run, rivals: str) -> None:
    try:
        RabbitMq.obtain()
    except NotAvailable as absent:
        run.log(f"{BENCH}: NOT COMPARED WITH RabbitMQ: {absent}. Left out: jobs on a durable server")
        return
    ours, theirs = _counts(run)
    openq, rabbit = OpenQ(run.folder("openq"), durable=True), RabbitMq(run.folder("rabbitmq"))
    with started(openq, rabbit):
        match = alternate(
            ChildProcess(Drained, OpenQWorker, ours, {"url": f"http://127.0.0.1:{openq.port}"}),
            ChildProcess(Drained, dramatiq_on_rabbitmq, theirs, rivals, rabbit.port),
            run.rounds(5),
        )
    run.emit(faster_by(BENCH, f"{WHAT}, durable server", "dramatiq on RabbitMQ", match, SERVER))


def _on_redis(run: Run, rivals: str) -> None:
    if reason := missing():
        run.log(f"{BENCH}: JOBS ON REDIS ARE LEFT OUT: {reason}")
        return
    ours, theirs = _counts(run)
    with store(run.folder("redis"), *IN_MEMORY) as redis:
        target = {"url": f"{redis.url}?profile=fast"}
        for name, reference, bar in (
            (
                "dramatiq",
                ChildProcess(Drained, dramatiq_on_redis, theirs, rivals, redis.port),
                REDIS_DRAMATIQ,
            ),
            ("RQ, SimpleWorker", ChildProcess(RqWorker, rivals, redis.port, theirs // 5), REDIS_RQ),
        ):
            match = alternate(ChildProcess(Drained, OpenQWorker, ours, target), reference, run.rounds(5))
            run.emit(faster_by(BENCH, f"{WHAT}, on Redis", f"{name} on the same Redis", match, bar))


def _on_a_path(run: Run, rivals: str) -> None:
    ours, theirs = _counts(run)
    match = alternate(
        ChildProcess(Drained, OpenQWorker, ours, {"path": run.folder("path")}),
        ChildProcess(Drained, HueyOnSqlite, theirs // 2, rivals, run.folder("huey")),
        run.rounds(5),
    )
    run.emit(faster_by(BENCH, f"{WHAT}, embedded on a path", "huey on SQLite, fsync", match, PATH))
