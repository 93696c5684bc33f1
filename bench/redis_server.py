"""SendMessage through a server whose queues are in Redis: against its journal, and two servers against one.

Redis syncs every change before it answers (appendfsync always), which is what the journal promises.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from . import server_wrk
from .harness import BenchTarget, Row, Run
from .redis_common import BENCH, FORCED, RedisProcess, store
from .server_load import Tally
from .server_processes import OpenQ, ServerProcess
from .server_rounds import (
    CONNECTIONS,
    Contender,
    FreshQueues,
    Prepare,
    Work,
    compared,
    in_turns,
    singles,
    started,
)

JOURNAL = BenchTarget(floor=0.4, aim=0.7)
TWO = BenchTarget(floor=1.3, aim=1.7)


class OpenQOnRedis(OpenQ):
    def __init__(self, folder: str, redis: RedisProcess) -> None:
        super().__init__(folder)
        self._flags = ["--store", redis.url, "--amqp-port", "off"]


class Pair(ServerProcess):
    """Two running servers, measured together."""

    name = "two servers"

    def __init__(self, folder: str, first: ServerProcess, second: ServerProcess) -> None:
        super().__init__(folder)
        self.members = (first, second)

    def cpu_s(self) -> float:
        return sum(member.cpu_s() for member in self.members)


def run(run: Run) -> None:
    server_wrk.obtain(run.log)
    seconds = 1.0 if run.quick else 2.0
    rounds = run.rounds(5, quick=2)
    with store(run.folder("redis"), *FORCED) as redis:
        first, second = (OpenQOnRedis(run.folder("openq"), redis) for _ in range(2))
        journal = OpenQ(run.folder("openq"), "--amqp-port", "off", durable=True)
        with started(first, second, journal):
            on_redis = Contender(first, singles(first, seconds))
            on_disk = Contender(journal, singles(journal, seconds))
            in_turns([on_redis, on_disk], rounds)
            what = f"SendMessage, Redis with appendfsync always, {CONNECTIONS} connections, wall"
            run.emit(
                _ours(compared(what, "the server's own journal", on_redis, on_disk, JOURNAL, by="per_s"))
            )

            alone = Contender(first, singles(first, seconds))
            pair = Pair(run.folder("openq"), first, second)
            both = Contender(pair, _together(first, second, seconds))
            in_turns([alone, both], rounds)
            what = f"SendMessage, two servers on one Redis, {CONNECTIONS} connections each, wall"
            row = _ours(compared(what, "one server", both, alone, TWO, by="per_s"))
            row.ceiling = 2.0  # beyond, the machine was busy: more processes got more of it
            run.emit(row)


def _together(first: OpenQ, second: OpenQ, seconds: float) -> Prepare:
    """The load of `singles` on both at once; each has a queue of its own."""
    pairs = [(peer.port, FreshQueues(peer)) for peer in (first, second)]

    def prepare() -> Work:
        loads = [(port, queues.next().sends()) for port, queues in pairs]

        def work() -> Tally:
            with ThreadPoolExecutor(len(loads)) as pool:
                running = [
                    pool.submit(server_wrk.repeat, port, CONNECTIONS, requests, seconds=seconds)
                    for port, requests in loads
                ]
                tallies = [each.result() for each in running]
            return Tally(
                sum(each.count for each in tallies),
                sum(each.requests for each in tallies),
                max(each.wall_s for each in tallies),
                sum(each.client_cpu_s for each in tallies),
            )

        return work

    return prepare


def _ours(row: Row) -> Row:
    row.bench = BENCH
    row.note = "; ".join(filter(None, [row.note, "CPU time is that of our servers, without Redis"]))
    return row
