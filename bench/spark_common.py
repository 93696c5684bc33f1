"""What the Spark benches share: a session, a past to read, and laps in turns inside one JVM."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from openq.local.broker import LocalBroker
from openq.model import QueueSettings

from .harness import BenchTarget, Row, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 20
_SLICE = 500


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    from openq.pipeline import session

    spark = session("local[2]", **{"spark.driver.memory": "4g"})
    try:
        yield spark
    finally:
        spark.stop()


def bodies(count: int, size: int) -> Iterator[list[bytes]]:
    """Like real ones: JSON whose numbers differ, in slices."""
    chance = random.Random(7)
    for start in range(0, count, _SLICE):
        found = []
        for number in range(start, min(start + _SLICE, count)):
            head = b'{"order":%d,"customer":"c%06d","total":%d.%02d,"note":"' % (
                number,
                chance.randrange(1_000_000),
                chance.randrange(1000),
                chance.randrange(100),
            )
            filling = b"%x" % chance.getrandbits(4 * max(size - len(head) - 2, 1))
            found.append((head + filling.ljust(size - len(head) - 2, b"0") + b'"}')[:size])
        yield found


def fill(path: str, count: int, size: int, queues: int = QUEUES) -> None:
    """A data directory with so many messages in its journal."""
    broker = LocalBroker(path, history_bytes=1 << 40)
    names = [f"orders-{number:02d}" for number in range(queues)]
    for name in names:
        broker.declare(name, QueueSettings())
    for number, part in enumerate(bodies(count, size)):
        broker.publish_bodies(names[number % queues], part, 0)
        if number % 20 == 0:
            broker.sync()
    broker.sync()
    broker.close()


def drain(frame: DataFrame) -> None:
    """Every row and column, to nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(
    run: Run,
    what: str,
    reference: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    target: BenchTarget,
    *,
    rows: int,
    rounds: int | None = None,
    note: str = "",
) -> None:
    """The first round warms both up and does not count; who goes first changes every round."""
    both: list[tuple[float, float]] = []
    for number in range(1 + (rounds or run.rounds(5, quick=3))):
        if number % 2:
            their_s = seconds(theirs)
            our_s = seconds(ours)
        else:
            our_s = seconds(ours)
            their_s = seconds(theirs)
        if number:
            both.append((our_s, their_s))
    values = [them / us if target.more_is_better else us / them for us, them in both]
    rates = {"per_s": [rows / us for us, _ in both], "reference_per_s": [rows / them for _, them in both]}
    run.emit(Row("spark", what, reference, "x", values, target, rates, note))
