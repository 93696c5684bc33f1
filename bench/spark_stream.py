"""Streams: a log cursor to Parquet against a native write, and the time of a micro-batch of one message."""

from __future__ import annotations

import os
import statistics
import time
from itertools import count as numbers
from typing import TYPE_CHECKING

from openq.local.broker import LocalBroker
from openq.model import QueueSettings

from .harness import BenchTarget, Row, Run
from .spark_common import fill, in_turns, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def run(run: Run) -> None:
    with spark_session() as spark:
        _to_parquet(run, spark)
        _one_message(run, spark)


def _to_parquet(run: Run, spark: SparkSession) -> None:
    count = 250_000 if run.quick else 2_000_000
    folder = run.folder("stream")
    data = os.path.join(folder, "data")
    fill(data, count, 100)
    rows = os.path.join(folder, "rows")
    spark.read.format("openq").option("path", data).load().write.parquet(rows)
    turn = numbers()

    def ours() -> None:
        number = next(turn)
        stream = spark.readStream.format("openq").options(path=data, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", os.path.join(folder, f"checkpoint-{number}"))
            .trigger(availableNow=True)
            .start(os.path.join(folder, f"out-{number}"))
        )
        query.awaitTermination()

    in_turns(
        *(run, "log-cursor stream to Parquet, AvailableNow, 100 B", "native Parquet write of the same rows"),
        ours,
        lambda: spark.read.parquet(rows).write.mode("overwrite").parquet(os.path.join(folder, "native")),
        BenchTarget(0.6, 0.8),
        rows=count,
    )


def _one_message(run: Run, spark: SparkSession) -> None:
    """Median `triggerExecution` of batches that brought rows; the two queries run one after the other."""
    folder = run.folder("trigger")
    count = 12 if run.quick else 40
    broker = LocalBroker(os.path.join(folder, "data"))
    broker.declare("single", QueueSettings())
    broker.publish_body("single", b"first", 0)
    broker.sync()
    rounds: list[tuple[float, float]] = []
    for number in range(run.rounds(4, quick=2)):
        stream = (
            spark.readStream.format("openq")
            .options(path=os.path.join(folder, "data"), startingOffsets="latest")
            .load()
        )
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", os.path.join(folder, f"checkpoint-{number}"))
            .start()
        )
        ours = _triggers(query, count, lambda: (broker.publish_body("single", b"x" * 100, 0), broker.sync()))
        native = (
            spark.readStream.format("rate")
            .option("rowsPerSecond", 4)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", os.path.join(folder, f"rate-{number}"))
            .start()
        )
        theirs = _triggers(native, count, lambda: None)
        rounds.append((ours, theirs))
    broker.close()
    run.emit(
        Row(
            "spark",
            "median micro-batch with one message",
            "native rate -> noop trigger",
            "x",
            [us / them for us, them in rounds],
            BenchTarget(3.0, 2.0, more_is_better=False),
            {"ours": [us for us, _ in rounds], "theirs": [them for _, them in rounds]},
            side_unit=" ms",
        )
    )


def _triggers(query: StreamingQuery, count: int, publish: object) -> float:
    """The first few batches are warm-up."""
    took: dict[int, float] = {}
    end = time.monotonic() + 120
    try:
        while len(took) < count + 3 and time.monotonic() < end:
            publish()  # type: ignore[operator]
            time.sleep(0.25)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    took[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    finally:
        query.stop()
    return statistics.median([took[batch] for batch in sorted(took)][3:])
