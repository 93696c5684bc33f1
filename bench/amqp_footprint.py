"""Resident memory with messages waiting, against RabbitMQ."""

from __future__ import annotations

import time

from .amqp_load import fill
from .amqp_processes import AmqpPeer, AmqpQueues, OpenQAmqp, RabbitMq
from .amqp_rounds import KINDS, has_rabbitmq, lower_is_better, rabbitmq
from .harness import BenchTarget, Run
from .server_footprint import SETTLE_S
from .server_rounds import started


def run(run: Run) -> None:
    if not has_rabbitmq(run, "resident memory"):
        return
    waiting = 100_000 if run.quick else 1_000_000
    rounds = 1 if run.quick else 2
    ours = [_weigh(OpenQAmqp(run.folder("openq"), durable=True), "", waiting) for _ in range(rounds)]
    for kind in KINDS:
        theirs = [_weigh(RabbitMq(run.folder("rabbitmq")), kind, waiting) for _ in range(rounds)]
        what = f"resident memory, {waiting:,} of 100 B waiting"
        # The targets are for a million.
        target = None if run.quick else BenchTarget(0.5, 0.2, more_is_better=False)
        run.emit(lower_is_better(what, rabbitmq(kind), ours, theirs, target, "MB"))


def _weigh(peer: AmqpPeer, kind: str, waiting: int) -> float:
    """On a server of its own: what an earlier load left behind would weigh as well."""
    with started(peer):
        fill(peer.amqp_port, AmqpQueues(peer, kind).next(), waiting)
        time.sleep(SETTLE_S)
        return peer.rss_bytes() / 1e6
