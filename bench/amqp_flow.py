"""Messages per second and latency through AMQP, against RabbitMQ: a raw client, all durable and confirmed."""

from __future__ import annotations

import statistics
from functools import partial

from .amqp_client import PREFETCH
from .amqp_load import Latency, consume, end_to_end, fill, paced, percentile, publish
from .amqp_processes import AmqpPeer, AmqpQueues, OpenQAmqp, RabbitMq
from .amqp_rounds import (
    KINDS,
    OPENQ,
    VARIED,
    against_each,
    against_the_faster,
    contenders,
    figures_in_turns,
    has_rabbitmq,
    lower_is_better,
    on_a_fresh_queue,
    rabbitmq,
    sides,
)
from .harness import BenchTarget, Run
from .server_rounds import Prepare, Work, in_turns, started

RATE = 2_000


def run(run: Run) -> None:
    if not has_rabbitmq(run, "publish + confirm, consume + ack, end to end, latency"):
        return
    openq, rabbit = OpenQAmqp(run.folder("openq"), durable=True), RabbitMq(run.folder("rabbitmq"))
    with started(openq, rabbit):
        _publish(run, openq, rabbit)
        _consume(run, openq, rabbit)
        _end_to_end(run, openq, rabbit)
        _latency(run, openq, rabbit)


def _publish(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    seconds = 0.6 if run.quick else 2.0
    for size, named, varied in ((100, "100 B", False), (1_024, "1 KiB", False), (100, VARIED, True)):
        load = on_a_fresh_queue(partial(publish, size=size, seconds=seconds, varied=varied))
        taking_part = contenders(openq, rabbit, load)
        in_turns(list(taking_part.values()), run.rounds(6, quick=2))
        target = None if varied else BenchTarget(3, 8)
        run.emit(against_the_faster(f"publish + confirm, pipelined, {named}", taking_part, target))


def _consume(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    count = 10_000 if run.quick else 60_000
    targets = {"classic": BenchTarget(3, 6), "quorum": BenchTarget(1.5, 4)}
    for multiple, named in ((False, "each"), (True, "all that a read brought")):

        def prepare(peer: AmqpPeer, queues: AmqpQueues, multiple: bool = multiple) -> Prepare:
            def ready() -> Work:
                queue = queues.next()
                fill(peer.amqp_port, queue, count)
                return lambda: consume(peer.amqp_port, queue, count, multiple=multiple)

            return ready

        taking_part = contenders(openq, rabbit, prepare)
        in_turns(list(taking_part.values()), run.rounds(6, quick=2))
        what = f"consume + ack of {named}, prefetch {PREFETCH}, 100 B"
        # The promise is for acks one by one; the other row is for those who want to know.
        for row in against_each(what, taking_part, dict.fromkeys(KINDS) if multiple else targets):
            run.emit(row)


def _end_to_end(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    seconds = 0.6 if run.quick else 2.0
    for named, varied in (("100 B", False), (VARIED, True)):
        load = on_a_fresh_queue(partial(end_to_end, size=100, seconds=seconds, varied=varied))
        taking_part = contenders(openq, rabbit, load)
        in_turns(list(taking_part.values()), run.rounds(6, quick=2))
        what = f"end to end, 1 producer with confirms + 1 consumer, {named}"
        run.emit(against_the_faster(what, taking_part, None if varied else BenchTarget(2, 5)))


def _latency(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    limit = RATE * (2 if run.quick else 5)

    def one_lap(peer: AmqpPeer, queues: AmqpQueues) -> Latency:
        return paced(peer.amqp_port, queues.next(), RATE, limit)

    measures = {name: partial(one_lap, peer, queues) for name, peer, queues in sides(openq, rabbit)}
    laps = figures_in_turns(measures, run.rounds(6, quick=2))
    ours = laps[OPENQ]
    # A classic queue hands a message to a waiting consumer before it is on disk, the others after.
    for kind in KINDS:
        theirs = laps[rabbitmq(kind)]
        row = lower_is_better(
            f"p99 latency at {RATE:,} msg/s, sent to delivered",
            rabbitmq(kind),
            [lap.p99_ms for lap in ours],
            [lap.p99_ms for lap in theirs],
            BenchTarget(1.0, 0.3, more_is_better=False),
            "ms",
        )
        row.note = (
            f"median {_median(ours, 50):.2f} against {_median(theirs, 50):.2f} ms, "
            f"p99.9 {_median(ours, 99.9):.1f} against {_median(theirs, 99.9):.1f} ms, "
            f"the sender was late by {max(lap.late_ms for lap in ours):.1f} ms at most"
        )
        run.emit(row)
        run.emit(
            lower_is_better(
                f"p99 latency at {RATE:,} msg/s, sent to confirmed",
                rabbitmq(kind),
                [percentile(lap.confirmed, 99) for lap in ours],
                [percentile(lap.confirmed, 99) for lap in theirs],
                None,
                "ms",
            )
        )


def _median(laps: list[Latency], percent: float) -> float:
    return statistics.median(percentile(lap.delivered, percent) for lap in laps)
