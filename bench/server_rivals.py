"""Other servers that speak SQS, by the clock on the wall and with the same client.

None of them keeps anything on disk. Each row is against the fastest of those that start here, found out by a
short trial of each before the rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from . import server_wrk
from .harness import BenchTarget, Run
from .server_processes import RIVALS, Moto, NotAvailable, OpenQ, ServerProcess
from .server_rounds import Contender, Prepare, compared, drained, in_turns, obtain, singles, started, tens

WARM_S = 2.0
TRIAL_S = 1.0
TRIAL_COUNT = 2_000
OUT_OF_REACH = 0.1
DRAINERS = (
    16  # connections: receivers are fewer than senders in real life, and two servers do worse with more
)


def run(run: Run) -> None:
    server_wrk.obtain(run.log)
    memory = OpenQ(run.folder("openq"))
    durable = OpenQ(run.folder("openq"), durable=True)
    with contextlib.ExitStack() as stack:
        rivals = _those_that_start(run, stack)
        if not rivals:
            run.log("server: NO OTHER SQS SERVER STARTS HERE; the rows against them are left out")
            return
        stack.enter_context(started(memory, durable))
        for rival in rivals:
            # A Java or a JavaScript machine compiles what it has seen often enough.
            Contender(rival, singles(rival, WARM_S if run.quick else 4 * WARM_S)).lap(counts=False)
        rivals = _those_in_reach(run, rivals)
        for connections in (64,) if run.quick else (16, 64):
            _sends(run, rivals, memory, durable, connections)
        _batches(run, rivals, durable)
        _drains(run, rivals, durable)


def _sends(run: Run, rivals: list[ServerProcess], memory: OpenQ, durable: OpenQ, connections: int) -> None:
    rival, rates = _fastest(rivals, partial(singles, seconds=TRIAL_S, connections=connections))
    theirs, in_memory, on_disk = (
        Contender(peer, singles(peer, _seconds(run), connections)) for peer in (rival, memory, durable)
    )
    in_turns([theirs, in_memory, on_disk], run.rounds(5, quick=2))
    for how, ours, target in (
        ("in memory", in_memory, BenchTarget(1.5, 3)),
        ("durable", on_disk, BenchTarget(1.0, 2)),
    ):
        what = f"SendMessage, {how}, {connections} connections, wall"
        run.emit(compared(what, rival.name, ours, theirs, target, by="per_s", note=rates))


def _batches(run: Run, rivals: list[ServerProcess], durable: OpenQ) -> None:
    rival, rates = _fastest(rivals, partial(tens, seconds=TRIAL_S))
    theirs, ours = (Contender(peer, tens(peer, _seconds(run))) for peer in (rival, durable))
    in_turns([theirs, ours], run.rounds(5, quick=2))
    what = "SendMessageBatch of 10, durable, messages, wall"
    run.emit(compared(what, rival.name, ours, theirs, BenchTarget(1.2, 2.5), by="per_s", note=rates))


def _drains(run: Run, rivals: list[ServerProcess], durable: OpenQ) -> None:
    count = 15_000 if run.quick else 100_000
    rival, rates = _fastest(
        rivals, partial(drained, count=TRIAL_COUNT, connections=DRAINERS, seconds=TRIAL_S)
    )
    theirs, ours = (Contender(peer, drained(peer, count, DRAINERS)) for peer in (rival, durable))
    in_turns([theirs, ours], run.rounds(5, quick=2))
    what = "ReceiveMessage(10) + DeleteMessageBatch(10), durable, messages, wall"
    run.emit(compared(what, rival.name, ours, theirs, BenchTarget(2, 4), by="per_s", note=rates))


def _seconds(run: Run) -> float:
    return 1.0 if run.quick else 2.0


def _those_that_start(run: Run, stack: contextlib.ExitStack) -> list[ServerProcess]:
    found: list[ServerProcess] = []
    for kind in RIVALS:
        if run.quick and kind is Moto:
            run.log(
                "server: moto is left out of a quick run: its trial takes longer than the others together"
            )
        elif obtain(run, kind):
            peer = kind(run.folder(kind.name))
            try:
                stack.enter_context(started(peer))
                found.append(peer)
            except NotAvailable as missing:
                run.log(f"server: NOT COMPARED WITH {kind.name}: {missing}")
    return found


def _those_in_reach(run: Run, rivals: list[ServerProcess]) -> list[ServerProcess]:
    """Filling a queue of the slowest would take longer than everything else."""
    trials = _trials(rivals, partial(singles, seconds=TRIAL_S))
    best = trials[0][0]
    for per_s, rival in trials:
        if per_s < best * OUT_OF_REACH:
            run.log(
                f"server: {rival.name} is left out: {per_s:,.0f} SendMessage/s, the fastest {best:,.0f}/s"
            )
    return [rival for per_s, rival in trials if per_s >= best * OUT_OF_REACH]


def _fastest(
    rivals: list[ServerProcess], work: Callable[[ServerProcess], Prepare]
) -> tuple[ServerProcess, str]:
    trials = _trials(rivals, work)
    rates = ", ".join(f"{rival.name} {per_s:,.0f}/s" for per_s, rival in trials)
    return trials[0][1], f"in the trial: {rates}"


def _trials(
    rivals: list[ServerProcess], work: Callable[[ServerProcess], Prepare]
) -> list[tuple[float, ServerProcess]]:
    """The fastest first."""
    trials = []
    for rival in rivals:
        contender = Contender(rival, work(rival))
        contender.lap()
        trials.append((contender.laps[0].per_s, rival))
    return sorted(trials, key=lambda trial: -trial[0])
