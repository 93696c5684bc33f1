"""Growth with the size of bodies: MB/s beside a bare append and fdatasync of the same blocks."""

from __future__ import annotations

import os
import statistics
from typing import Any

import msgspec

from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, QueueSettings

from . import growth_amqp
from .amqp_processes import OpenQAmqp
from .growth_run import GrowthRun
from .harness import ChildProcess, Lap, lap
from .server_load import Repeat, Tally, drive
from .server_requests import post_msgpack
from .server_rounds import started

_BLOCK_BYTES = 1 << 20  # messages go in batches of about this size
NAMES = ("disk", "publish", "receive", "rest", "amqp", "consume")


def measure(run: GrowthRun) -> None:
    points = [100, 1_000, 10_000, 100_000, 1 << 20] + ([] if run.quick else [4 << 20]) + [16 << 20]
    lap_bytes = (16 if run.quick else 96) << 20
    for x in points:
        if run.is_known(x):
            continue
        if run.is_late(x):
            return
        batch = max(1, min(1_000, _BLOCK_BYTES // x))
        batches = max(2, lap_bytes // (batch * x) // (10 if x < 1_000 else 1))
        ahead = min(500, max(4, 8 * _BLOCK_BYTES // x))
        work = (x, batch, batches)
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        disk = ChildProcess(BareDisk, run.folder(f"disk-{x}"), *work)
        embedded = ChildProcess(Embedded, run.folder(f"embedded-{x}"), *work)
        peer = OpenQAmqp(run.folder(f"server-{x}"), durable=True)
        with started(peer):
            peer.queue("bodies")
            for number in range(run.laps + 1):
                put = embedded.lap()
                found = {"disk": disk.lap().per_s, "publish": put.per_s, "receive": put.detail}
                found["rest"] = _rate(_rest(peer.port, *work))
                found["consume"] = _rate(
                    growth_amqp.consume(peer.amqp_port, "bodies", batch * batches, ahead)
                )
                found["amqp"] = _rate(growth_amqp.publish(peer.amqp_port, "bodies", *work))
                growth_amqp.consume(peer.amqp_port, "bodies", batch * batches, ahead)
                if number:  # the first lap of each is not counted
                    for name, per_s in found.items():
                        rates[name].append(x * per_s / 1e6)
        disk.close()
        embedded.close()
        run.add(x, **{f"{name}_mb_s": statistics.median(each) for name, each in rates.items()})


class BareDisk:
    """The same blocks, each appended and synced, into a file that is allocated."""

    def __init__(self, folder: str, size: int, batch: int, batches: int) -> None:
        self._block = os.urandom(size * batch)
        self._batch, self._batches = batch, batches
        self._fd = os.open(os.path.join(folder, "blocks"), os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._fd, 0, len(self._block) * batches)
        os.fsync(self._fd)

    def lap(self, given: Any) -> Lap:
        return lap(self._batch * self._batches, self._write)

    def _write(self) -> None:
        for at in range(self._batches):
            os.pwrite(self._fd, self._block, at * len(self._block))
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Embedded:
    """Durable batches through the broker; the rate of receiving and acking them is the detail of a lap."""

    def __init__(self, folder: str, size: int, batch: int, batches: int) -> None:
        self._bodies = [os.urandom(size) for _ in range(batch)]
        self._batches = batches
        self._broker = LocalBroker(folder)
        self._broker.declare("bodies", QueueSettings())

    def lap(self, given: Any) -> Lap:
        count = len(self._bodies) * self._batches
        put = lap(count, self._publish)
        return Lap(count, put.wall_s, put.cpu_s, lap(count, self._receive).per_s)

    def _publish(self) -> None:
        for _ in range(self._batches):
            self._broker.publish_bodies("bodies", self._bodies, ENCODING_BYTES)
            self._broker.sync()

    def _receive(self) -> None:
        broker = self._broker
        for _ in range(self._batches):
            deliveries = broker.receive("bodies", len(self._bodies))
            broker.load(deliveries)
            broker.ack("bodies", [(each.entry.seq, each.number) for each in deliveries])
            broker.sync()

    def close(self) -> None:
        self._broker.close()


def _rest(port: int, size: int, batch: int, batches: int) -> Tally:
    """Batches over four connections."""
    request = post_msgpack(
        port, "/api/v1/queues/bodies/messages/batch", msgspec.msgpack.encode([os.urandom(size)] * batch)
    )
    return drive(port, 4, Repeat([request], messages=batch, limit=batches))


def _rate(tally: Tally) -> float:
    return tally.count / tally.wall_s
