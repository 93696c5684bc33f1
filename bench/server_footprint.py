"""How soon the server is ready and how much memory it needs, empty and with a million messages on disk."""

from __future__ import annotations

import signal
import time

from .harness import BenchTarget, Row, Run
from .server_processes import OpenQ
from .server_requests import AwsJson, ask, post_json
from .server_rounds import BENCH, fill, started

SETTLE_S = 3.0  # after a fill: what a background thread still has to do must not be missed


def run(run: Run) -> None:
    waiting = 100_000 if run.quick else 1_000_000
    rounds = run.rounds(5, quick=2)

    empty_s: list[float] = []
    idle_mb: list[float] = []
    for _ in range(rounds):
        peer = OpenQ(run.folder("openq"), durable=True)
        with started(peer):
            empty_s.append(peer.start_s)
            idle_mb.append(_resident_mb(peer))

    peer = OpenQ(run.folder("openq"), durable=True)
    with started(peer):
        fill(peer.queue("backlog"), waiting)
        time.sleep(SETTLE_S)
        full_mb = [_resident_mb(peer)]
        peer.stop(signal.SIGKILL)
    killed_s, killed_mb = _starts(peer, rounds, signal.SIGKILL, waiting)
    closed_s, closed_mb = _starts(peer, rounds, signal.SIGTERM, waiting)

    def emit(what: str, unit: str, values: list[float], target: BenchTarget | None) -> None:
        run.emit(Row(BENCH, what, "-", unit, values, target))

    emit("start to ready, empty, wall", "s", empty_s, BenchTarget(0.5, 0.3, more_is_better=False))
    # The targets are for a million.
    full_start = None if run.quick else BenchTarget(2.0, 1.0, more_is_better=False)
    emit(f"start to ready, {waiting:,} waiting, after kill -9, wall", "s", killed_s, full_start)
    emit(f"start to ready, {waiting:,} waiting, after a stop, wall", "s", closed_s, full_start)
    emit("resident memory, idle", "MB", idle_mb, BenchTarget(60, 45, more_is_better=False))
    full_weight = None if run.quick else BenchTarget(150, 80, more_is_better=False)
    emit(f"resident memory, {waiting:,} of 100 B sent and waiting", "MB", full_mb, full_weight)
    emit(
        f"resident memory, {waiting:,} of 100 B waiting, after a start",
        "MB",
        killed_mb + closed_mb,
        full_weight,
    )


def _starts(
    peer: OpenQ, rounds: int, end_with: signal.Signals, waiting: int
) -> tuple[list[float], list[float]]:
    """The first start is not counted: the server before it may have ended differently."""
    times_s: list[float] = []
    weights_mb: list[float] = []
    for number in range(rounds + 1):
        with started(peer):
            if number:
                times_s.append(peer.start_s)
                weights_mb.append(_resident_mb(peer))
            if (found := _waiting(peer)) != waiting:
                raise RuntimeError(f"{found} of {waiting} messages are back")
            peer.stop(end_with)
    return times_s, weights_mb


def _waiting(peer: OpenQ) -> int:
    wire = AwsJson.create(peer.port, "backlog")
    content = (
        b'{"QueueUrl": "%b", "AttributeNames": ["ApproximateNumberOfMessages"]}' % wire.queue_url.encode()
    )
    _, answer = ask(peer.port, post_json(peer.port, "GetQueueAttributes", content))
    return int(answer.rpartition(b'"ApproximateNumberOfMessages":')[2].strip(b' "}'))


def _resident_mb(peer: OpenQ) -> float:
    return peer.rss_bytes() / 1e6
