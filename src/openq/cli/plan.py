"""`openq doctor --plan`: whether a machine carries a load, from a measurement of some seconds on its disk.

Measured here: how many messages a second a journal on this disk makes durable, how long a publish waits for
it, and what a message costs in bytes and CPU. Calculated from it: what the wanted load needs. The cost of a
protocol is that of docs/CAPACITY.md, scaled by the speed of this machine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DiskFull
from ..local.broker import LocalBroker
from ..model import ENCODING_BYTES, QueueSettings
from .terminal import size_text

Finding = tuple[str, str, str]

MEASURE_S = 1.5
PUBLISHERS = 64  # that wait at once, as in a server with as many busy clients
CHUNK = 100
QUEUE = "plan"
MAX_STALL_S = 60.0  # of a disk that takes nothing
OUTAGE_S = 3600  # how long consumers may be away
_MAX_WRITTEN = 512 << 20  # bytes of a measurement; less on a small disk
_DISK_SHARE = 0.8  # of the free space that a plan may use
_BUSY_SHARE = 0.7  # of a core, or of the measured rate: above it latencies grow
PLAIN_BYTES, RICH_BYTES = 26, 400  # of memory for a waiting message, without and with options

# CPU time of a server for one message that is published, received and acked: docs/CAPACITY.md has the
# measurement. Microseconds on a machine where the engine alone needs ENGINE_US for the same.
ENGINE_US = 3.8
PROTOCOL_US = {"AMQP": 22.0, "SQS in tens": 77.0, "SQS one by one": 424.0}


@dataclass(frozen=True, slots=True)
class Load:
    per_s: float
    size: int
    retention_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    wait_p50_ms: float  # for the disk
    wait_p99_ms: float
    durable_per_s: float  # by PUBLISHERS that each wait for their message
    alone_per_s: float  # by one that waits for each
    bytes_each: float  # of the journal, for a message that is published, delivered and acked
    engine_us: float  # CPU time of the engine for the same, without the disk
    free_bytes: int


def plan(folder: str, load: Load, history_bytes: int) -> tuple[Measured, list[Finding]]:
    """Raises OSError if the folder cannot be written."""
    measured = measure(folder, load.size)
    return measured, list(judge(load, measured, history_bytes))


def as_document(load: Load, measured: Measured, findings: list[Finding]) -> dict[str, Any]:
    return {
        "load": asdict(load),
        "measured": asdict(measured),
        "checks": [{"check": what, "verdict": verdict, "detail": text} for what, verdict, text in findings],
    }


# -- measuring ----------------------------------------------------------------------------------


def measure(folder: str, size: int) -> Measured:
    """In a directory of its own beside the data, which is removed."""
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    room = min(_MAX_WRITTEN, free // 4)
    body = os.urandom(size)
    place = tempfile.mkdtemp(prefix=".openq-plan-", dir=folder)
    try:
        broker = LocalBroker(os.path.join(place, "data"))
        try:
            return _measure(broker, body, room // (size + 200), free)
        finally:
            broker.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure(broker: LocalBroker, body: bytes, room: int, free: int) -> Measured:
    """`room`: the number of messages that fit on the disk."""
    assert broker.journal is not None
    broker.declare(QUEUE, QueueSettings())
    _Publishers(broker, body, PUBLISHERS).run(0.1, room // 4)  # warm: the first segment, the code
    _, alone, _ = _Publishers(broker, body, 1).run(MEASURE_S / 2, room // 4)
    _consume_all(broker)
    figures = broker.journal.commit_figures
    written = figures.written_bytes
    count, per_s, waits_s = _Publishers(broker, body, PUBLISHERS).run(MEASURE_S, room // 4)
    _consume_all(broker)
    broker.sync()
    bytes_each = (figures.written_bytes - written) / count
    waits_s.sort()
    return Measured(
        wait_p50_ms=waits_s[len(waits_s) // 2] * 1000,
        wait_p99_ms=waits_s[len(waits_s) * 99 // 100] * 1000,
        durable_per_s=per_s,
        alone_per_s=alone,
        bytes_each=bytes_each,
        engine_us=engine_us(body),
        free_bytes=free,
    )


class _Publishers:
    """Each publishes its next message when its last one is durable, as the clients of a server do."""

    def __init__(self, broker: LocalBroker, body: bytes, count: int) -> None:
        self._broker = broker
        self._body = body
        self._count = count
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._published = 0
        self._waits_s: list[float] = []
        self._end_s = 0.0
        self._most = 0

    def run(self, seconds: float, most: int) -> tuple[int, float, list[float]]:
        """How many messages, per second, and how long each group waited for the disk."""
        started = time.perf_counter()
        self._end_s, self._most = started + seconds, most
        self._continue(started)
        if not self._over.wait(seconds + MAX_STALL_S):
            raise DiskFull(f"the disk took no messages for {MAX_STALL_S:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self._published, self._published / (time.perf_counter() - started), self._waits_s

    def _continue(self, since_s: float) -> None:
        """Also called after commits, where an error would only be logged."""
        try:
            self._next(since_s)
        except Exception as error:
            self._failure = error
            self._over.set()

    def _next(self, since_s: float) -> None:
        now_s = time.perf_counter()
        if self._published:
            self._waits_s.append(now_s - since_s)
            if now_s >= self._end_s or self._published >= self._most:
                self._over.set()
                return
        broker, journal = self._broker, self._broker.journal
        assert journal is not None
        for _ in range(self._count):
            broker.publish_body(QUEUE, self._body, ENCODING_BYTES)
        self._published += self._count
        began_s = time.perf_counter()
        with broker.lock:
            journal.after_commit(lambda: self._continue(began_s))
        journal.flush()


def _consume_all(broker: LocalBroker) -> None:
    while deliveries := broker.receive(QUEUE, CHUNK):
        broker.load(deliveries)
        broker.ack(QUEUE, [(each.entry.seq, each.number) for each in deliveries])


def engine_us(body: bytes) -> float:
    """CPU time of one message in memory: published, received, acked. The best of some runs."""
    broker = LocalBroker()
    broker.declare(QUEUE, QueueSettings())
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(2_000):
            broker.publish_body(QUEUE, body, ENCODING_BYTES)
            for each in broker.receive(QUEUE, 1):
                broker.ack_one(QUEUE, each.entry.seq, each.number)
        best = min(best, time.process_time() - began)
    broker.close()
    return best / 2_000 * 1e6


# -- judging ------------------------------------------------------------------------------------


def judge(load: Load, measured: Measured, history_bytes: int) -> Iterator[Finding]:
    yield _rate(load, measured)
    yield _latency(measured)
    yield from _disk(load, measured, history_bytes)
    yield _memory(load, measured)
    yield from _cpu(load, measured)


def _rate(load: Load, measured: Measured) -> Finding:
    share = load.per_s / measured.durable_per_s
    text = (
        f"{measured.durable_per_s:,.0f} messages/s become durable here with {PUBLISHERS} publishers, "
        f"{measured.alone_per_s:,.0f}/s with one that waits for each; {share:.0%} of that is wanted"
    )
    if share > 1:
        return "rate", "failed", f"{text}: publish in batches, use a faster disk, or several servers on Redis"
    if share > _BUSY_SHARE:
        return "rate", "warning", f"{text}: publish in batches, so that peaks do not queue up"
    return "rate", "ok", text


def _latency(measured: Measured) -> Finding:
    text = f"a publish waits {measured.wait_p50_ms:.1f} ms for the disk (p99 {measured.wait_p99_ms:.1f} ms)"
    return "latency", "warning" if measured.wait_p99_ms > 100 else "ok", text


def _disk(load: Load, measured: Measured, history_bytes: int) -> Iterator[Finding]:
    kept = load.per_s * load.retention_s * measured.bytes_each
    room = measured.free_bytes * _DISK_SHARE
    text = (
        f"{size_text(int(kept))} for {_time_text(load.retention_s)} of messages "
        f"({measured.bytes_each:,.0f} bytes each, with their deliveries and acks); "
        f"{size_text(measured.free_bytes)} are free"
    )
    if kept > room:
        seconds = room / (load.per_s * measured.bytes_each)
        yield "disk", "failed", f"{text}: enough for {_time_text(seconds)}"
    else:
        yield "disk", "warning" if kept > room / 2 else "ok", text
    if history_bytes < kept <= room:
        yield (
            "history",
            "warning",
            f"history_bytes is {size_text(history_bytes)}: settled messages are dropped earlier, after "
            f"{_time_text(history_bytes / (load.per_s * measured.bytes_each))}; set history_bytes = "
            f"{-(-int(kept) // (1 << 30))}GiB, and history = {_time_text(load.retention_s)} of the queues",
        )
    yield "writes", "ok", f"{size_text(int(load.per_s * measured.bytes_each))}/s are written, in sequence"


def _memory(load: Load, measured: Measured) -> Finding:
    count = load.per_s * OUTAGE_S
    return (
        "memory",
        "ok",
        f"an hour without consumers is {count:,.0f} waiting messages: "
        f"{size_text(int(count * PLAIN_BYTES))} of memory, up to {size_text(int(count * RICH_BYTES))} with "
        "attributes and groups; their bodies are on disk",
    )


def _cpu(load: Load, measured: Measured) -> Iterator[Finding]:
    slower = measured.engine_us / ENGINE_US
    for protocol, us in PROTOCOL_US.items():
        cores = load.per_s * us * slower / 1e6
        text = f"{protocol}: {cores:.2f} cores of the server to publish, receive and ack all of it"
        if cores > 1:
            servers = int(cores / _BUSY_SHARE) + 1
            yield "cpu", "failed", f"{text}, which has one: {servers} servers on Redis, or larger batches"
        elif cores > _BUSY_SHARE:
            yield "cpu", "warning", f"{text}, which has one"
        else:
            yield "cpu", "ok", text


def _time_text(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"
