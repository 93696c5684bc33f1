"""What a message costs the server in CPU time: against the least that Python can do, and against itself."""

from __future__ import annotations

from functools import partial

from .amqp_load import end_to_end, flood, flood_walker, publish
from .amqp_processes import AmqpQueues, OpenQAmqp, Walker
from .amqp_rounds import VARIED, Load, compared, on_a_fresh_queue
from .harness import BenchTarget, Run
from .server_rounds import Contender, in_turns, started


def run(run: Run) -> None:
    memory = OpenQAmqp(run.folder("openq"), durable=False)
    durable = OpenQAmqp(run.folder("openq"), durable=True)
    walker = Walker(run.folder("walker"))
    with started(memory, durable, walker):
        _against_the_walker(run, memory, walker)
        _against_itself(run, durable, memory)


def _against_the_walker(run: Run, memory: OpenQAmqp, walker: Walker) -> None:
    # CPU time comes in ticks of 10 ms: few messages would be few ticks.
    count = 200_000 if run.quick else 600_000
    queues = AmqpQueues(memory)

    def walked(varied: bool) -> Contender:
        name = f"bench-{0:06d}"  # as long as the names of the others, so that the bytes are the same
        return Contender(
            walker, lambda: partial(flood_walker, walker.port, name, 100, 2 * count, varied=varied)
        )

    def given(load: Load) -> Contender:
        return Contender(memory, on_a_fresh_queue(load)(memory, queues))

    empty = walked(varied=False)
    flooded = given(partial(flood, size=100, limit=count))
    confirmed = given(partial(publish, size=100, seconds=60.0, limit=count))
    in_turns([empty, flooded, confirmed], run.rounds(7, quick=2))
    varied_empty = walked(varied=True)
    varied_flooded = given(partial(flood, size=100, limit=count // 10, varied=True))
    in_turns([varied_empty, varied_flooded], run.rounds(7, quick=2))

    for what, ours, theirs, target in (
        ("publish, in memory, 100 B", flooded, empty, BenchTarget(0.35, 0.7)),
        ("publish + confirm, in memory, 100 B", confirmed, empty, None),
        (f"publish, in memory, {VARIED}", varied_flooded, varied_empty, None),
    ):
        run.emit(compared(what, "frame-header walker", ours, theirs, target, "per_cpu_s"))


def _against_itself(run: Run, durable: OpenQAmqp, memory: OpenQAmqp) -> None:
    seconds = 0.6 if run.quick else 2.0
    load = on_a_fresh_queue(partial(end_to_end, size=100, seconds=seconds))
    on_disk = Contender(durable, load(durable, AmqpQueues(durable)))
    in_memory = Contender(memory, load(memory, AmqpQueues(memory)))
    in_turns([on_disk, in_memory], run.rounds(7, quick=2))
    what = "publish, confirm, deliver, ack, durable, 100 B"
    run.emit(compared(what, "the same in memory", on_disk, in_memory, BenchTarget(0.6, 0.9), "per_cpu_s"))
