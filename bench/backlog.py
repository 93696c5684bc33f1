"""Row 6: whether publish, receive and ack cost more when many messages wait than when few do."""

from __future__ import annotations

from typing import Any

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Row, Run, alternate, lap

TARGET = BenchTarget(floor=1.5, aim=1.1, more_is_better=False)
FEW = 1000
SYNC_EVERY = 100  # so that a lap is about the code, not the disk


def run(run: Run) -> None:
    cycles = 20_000 if run.quick else 50_000
    many = 1_000_000 if run.quick else 10_000_000
    _row(run, "durable", many, cycles)
    _row(run, "in memory", many // 10, cycles)


def _row(run: Run, kind: str, many: int, cycles: int) -> None:
    durable = kind == "durable"
    long = ChildProcess(BacklogCycles, run.folder("long") if durable else None, many, cycles)
    short = ChildProcess(BacklogCycles, run.folder("short") if durable else None, FEW, cycles)
    match = alternate(long, short, run.rounds(7))
    pairs = list(zip(match.ours, match.theirs, strict=True))
    run.emit(
        Row(
            "backlog",
            f"cost of a cycle, {many:,} waiting ({kind})",
            f"the same, {FEW:,} waiting",
            "x",
            [few.per_s / lots.per_s for lots, few in pairs],
            TARGET,
            {
                "per_s": [lots.per_s for lots, _ in pairs],
                "reference_per_s": [few.per_s for _, few in pairs],
                "cpu_ratio": [few.per_cpu_s / lots.per_cpu_s for lots, few in pairs],
                "background_cpu": [match.background],
            },
        )
    )


class BacklogCycles:
    def __init__(self, folder: str | None, waiting: int, cycles: int) -> None:
        self._cycles = cycles
        self._broker = LocalBroker(folder)
        fill(self._broker, waiting)

    def lap(self, given: Any) -> Lap:
        return lap(self._cycles, self._work)

    def _work(self) -> None:
        broker = self._broker
        for _ in range(self._cycles // SYNC_EVERY):
            for _ in range(SYNC_EVERY):
                broker.publish_body(QUEUE, BODY, ENCODING_BYTES)
                deliveries = broker.receive(QUEUE)
                broker.load(deliveries)
                broker.ack_one(QUEUE, deliveries[0].entry.seq, deliveries[0].number)
            broker.sync()

    def close(self) -> None:
        self._broker.close()


def fill(broker: LocalBroker, waiting: int) -> None:
    broker.declare(QUEUE, QueueSettings())
    for _ in range(waiting // 1000):
        broker.publish_bodies(QUEUE, [BODY] * 1000, ENCODING_BYTES)
    broker.sync()
