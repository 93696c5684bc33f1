"""AMQP through a server whose queues are in Redis, against the same server on its journal.

Redis syncs every change before it answers (appendfsync always), which is what the journal promises. Clients
write each message and each ack on its own, as those for programs do; the rows in bursts show the way behind
the socket.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .amqp_client import BURST
from .amqp_load import consume, fill, publish
from .amqp_processes import AmqpPeer, AmqpQueues, OpenQAmqp
from .amqp_rounds import VARIED, on_a_fresh_queue
from .harness import BenchTarget, Run
from .redis_common import BENCH, FORCED, RedisProcess, store
from .server_rounds import Contender, Prepare, Work, compared, in_turns, started

JOURNAL = BenchTarget(floor=0.4, aim=0.8)
PREFETCH = 1_000


class AmqpOnRedis(OpenQAmqp):
    def __init__(self, folder: str, redis: RedisProcess) -> None:
        super().__init__(folder, durable=False)
        self._flags = ["--store", redis.url, "--amqp-port", str(self.amqp_port)]


def run(run: Run) -> None:
    with store(run.folder("redis"), *FORCED) as redis:
        on_redis = AmqpOnRedis(run.folder("openq"), redis)
        on_disk = OpenQAmqp(run.folder("openq"), durable=True)
        with started(on_redis, on_disk):
            _publish(run, on_redis, on_disk)
            _consume(run, on_redis, on_disk)


def _publish(run: Run, on_redis: OpenQAmqp, on_disk: OpenQAmqp) -> None:
    seconds = 0.6 if run.quick else 2.0
    for named, count, varied in (
        ("100 B, each a write of its own", 1, False),
        ("100 B, in bursts", BURST, False),
        (f"{VARIED}, in bursts", BURST, True),
    ):
        load = on_a_fresh_queue(partial(publish, size=100, seconds=seconds, varied=varied, count=count))
        target = JOURNAL if count == 1 else None
        _compare(run, f"AMQP publish + confirm, {named}", on_redis, on_disk, load, target)


def _consume(run: Run, on_redis: OpenQAmqp, on_disk: OpenQAmqp) -> None:
    count = 10_000 if run.quick else 40_000
    for named, singly in (("each ack a write of its own", True), ("acks in bursts", False)):

        def prepare(peer: AmqpPeer, queues: AmqpQueues, singly: bool = singly) -> Prepare:
            def ready() -> Work:
                queue = queues.next()
                fill(peer.amqp_port, queue, count)
                return lambda: consume(peer.amqp_port, queue, count, singly=singly, prefetch=PREFETCH)

            return ready

        what = f"AMQP consume + ack, prefetch {PREFETCH}, {named}"
        _compare(run, what, on_redis, on_disk, prepare, JOURNAL if singly else None)


def _compare(
    run: Run,
    what: str,
    on_redis: OpenQAmqp,
    on_disk: OpenQAmqp,
    prepare: Callable[[AmqpPeer, AmqpQueues], Prepare],
    target: BenchTarget | None,
) -> None:
    ours, theirs = (Contender(peer, prepare(peer, AmqpQueues(peer))) for peer in (on_redis, on_disk))
    in_turns([ours, theirs], run.rounds(6, quick=2))
    what = f"{what}, Redis with appendfsync always"
    row = compared(what, "the server's own journal", ours, theirs, target, by="per_s")
    row.bench = BENCH
    run.emit(row)
