"""What the same requests cost with a million messages waiting in the queue, against an empty queue."""

from __future__ import annotations

from . import server_wrk
from .harness import BenchTarget, Run
from .server_processes import OpenQ
from .server_rounds import (
    Contender,
    Work,
    compared,
    drain,
    drained,
    fill,
    in_turns,
    repeat_requests,
    singles,
    started,
    tens,
)

TARGET = BenchTarget(0.8, 0.95)


def run(run: Run) -> None:
    server_wrk.obtain(run.log)
    for durable in (True,) if run.quick else (False, True):
        _compare(run, durable)


def _compare(run: Run, durable: bool) -> None:
    waiting = 100_000 if run.quick else 1_000_000
    count = 15_000 if run.quick else 100_000
    seconds = 1.0 if run.quick else 2.0
    how = "durable" if durable else "in memory"
    # Two servers: in one, the objects of the backlog would weigh on the empty queue too.
    empty, full = (OpenQ(run.folder("openq"), durable=durable) for _ in range(2))
    with started(empty, full):
        wire = full.queue("backlog")
        fill(wire, waiting)
        sends, batches = wire.sends(), wire.batches()

        def refilled() -> Work:
            fill(wire, count)
            return drain(wire, count)

        for what, behind_it, alone in (
            ("SendMessage", lambda: repeat_requests(full, sends, seconds), singles(empty, seconds)),
            (
                "SendMessageBatch of 10",
                lambda: repeat_requests(full, batches, seconds, messages=10),
                tens(empty, seconds),
            ),
            ("ReceiveMessage(10) + DeleteMessageBatch(10)", refilled, drained(empty, count)),
        ):
            ours, theirs = Contender(full, behind_it), Contender(empty, alone)
            in_turns([ours, theirs], run.rounds(5, quick=2))
            text = f"{what}, {how}, with {waiting:,} waiting"
            run.emit(compared(text, "the same, empty queue", ours, theirs, None if run.quick else TARGET))
