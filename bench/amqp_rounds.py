"""What the AMQP benches share: who takes part, and rows against RabbitMQ's two kinds of queue."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from . import server_rounds
from .amqp_processes import AmqpPeer, AmqpQueues, OpenQAmqp, RabbitMq
from .harness import BenchTarget, Row, Run
from .server_load import Tally
from .server_processes import NotAvailable
from .server_rounds import Contender, Prepare

BENCH = "amqp"
KINDS = ("classic", "quorum")
OPENQ = "openq"
VARIED = "100 B, each with an id and headers of its own"

T = TypeVar("T")
Load = Callable[[int, str], Tally]  # of a port and a queue


def has_rabbitmq(run: Run, rows: str) -> bool:
    """False, said aloud with the rows that are missing now, if there is no RabbitMQ to compare with."""
    try:
        RabbitMq.obtain()
    except NotAvailable as missing:
        run.log(f"{BENCH}: NOT COMPARED WITH RabbitMQ: {missing}. Left out: {rows}")
        return False
    return True


def rabbitmq(kind: str) -> str:
    return f"RabbitMQ {kind}"


def sides(openq: OpenQAmqp, rabbit: RabbitMq) -> list[tuple[str, AmqpPeer, AmqpQueues]]:
    """Ours, then both kinds of RabbitMQ's queues, all durable."""
    return [
        (OPENQ, openq, AmqpQueues(openq)),
        *((rabbitmq(kind), rabbit, AmqpQueues(rabbit, kind)) for kind in KINDS),
    ]


def contenders(
    openq: OpenQAmqp, rabbit: RabbitMq, prepare: Callable[[AmqpPeer, AmqpQueues], Prepare]
) -> dict[str, Contender]:
    return {name: Contender(peer, prepare(peer, queues)) for name, peer, queues in sides(openq, rabbit)}


def on_a_fresh_queue(load: Load) -> Callable[[AmqpPeer, AmqpQueues], Prepare]:
    """The queue is made before the clock starts."""

    def prepare(peer: AmqpPeer, queues: AmqpQueues) -> Prepare:
        def ready() -> server_rounds.Work:
            queue = queues.next()
            return lambda: load(peer.amqp_port, queue)

        return ready

    return prepare


def compared(
    what: str, reference: str, ours: Contender, theirs: Contender, target: BenchTarget | None, by: str
) -> Row:
    return replace(server_rounds.compared(what, reference, ours, theirs, target, by=by), bench=BENCH)


def against_each(
    what: str, taking_part: Mapping[str, Contender], targets: Mapping[str, BenchTarget | None]
) -> list[Row]:
    ours = taking_part[OPENQ]
    return [
        compared(what, rabbitmq(kind), ours, taking_part[rabbitmq(kind)], target, by="per_s")
        for kind, target in targets.items()
    ]


def against_the_faster(what: str, taking_part: Mapping[str, Contender], target: BenchTarget | None) -> Row:
    """By the clock on the wall. What the slower of the two did is in the note."""

    def rate(name: str) -> float:
        return statistics.median(lap.per_s for lap in taking_part[name].laps)

    slower, faster = sorted((name for name in taking_part if name != OPENQ), key=rate)
    row = compared(what, faster, taking_part[OPENQ], taking_part[faster], target, by="per_s")
    row.note = "; ".join(filter(None, [row.note, f"{slower}: {rate(slower):,.0f}/s"]))
    return row


def figures_in_turns(measures: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Like `in_turns`, for what is not a rate."""
    figures: dict[str, list[T]] = {name: [] for name in measures}
    names = list(measures)
    for name in names:
        measures[name]()
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            figures[name].append(measures[name]())
    return figures


def lower_is_better(
    what: str,
    reference: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: BenchTarget | None,
    unit: str,
) -> Row:
    return Row(
        BENCH,
        what,
        reference,
        "x",
        [us / them for us, them in zip(ours, theirs, strict=True)],
        target,
        {unit: list(ours), f"reference_{unit}": list(theirs)},
        side_unit=f" {unit}",
        by=unit,
    )
