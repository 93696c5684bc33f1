"""The jobs: archive against a native sort and write of the same rows, triage against a scan of them."""

from __future__ import annotations

import os
import shutil
from itertools import count as numbers
from typing import TYPE_CHECKING

from openq.local.broker import LocalBroker
from openq.model import QueueSettings

from .harness import BenchTarget, Run
from .spark_common import bodies, drain, fill, in_turns, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERRORS = (
    "TimeoutError: no answer from 10.0.0.%d within %d ms",
    "ValueError: order %d of customer c%d has no total",
    "ConnectionError: [Errno %d] host payments-%d is down",
    "KeyError: 'sku-%d-%d'",
)


def run(run: Run) -> None:
    with spark_session() as spark:
        _archive(run, spark)
        _triage(run, spark)


def _archive(run: Run, spark: SparkSession) -> None:
    from openq.history.archive import Archive
    from openq.pipeline.archive import archive

    count = 250_000 if run.quick else 1_000_000
    folder = run.folder("archive")
    data, rows = os.path.join(folder, "data"), os.path.join(folder, "rows")
    fill(data, count, 100)
    turn = numbers()

    def ours() -> str:
        kept = os.path.join(folder, f"kept-{next(turn)}")
        archive(spark, path=data, archive=kept, include_open=True)
        return kept

    first = ours()
    manifest = Archive(first).latest()
    assert manifest is not None
    for table in ("messages", "events"):
        files = [os.path.join(first, each.path) for each in manifest.files if each.table == table]
        spark.read.parquet(*files).write.parquet(f"{rows}/{table}", compression="zstd")

    def theirs() -> None:
        for table in ("messages", "events"):
            frame = spark.read.parquet(f"{rows}/{table}").selectExpr("*", "date(ts) as dt")
            sorted_ = frame.repartition("dt").sortWithinPartitions("dt", "queue", "seq")
            target = os.path.join(folder, f"native-{table}")
            sorted_.write.partitionBy("dt").mode("overwrite").parquet(target, compression="zstd")

    def ours_again() -> None:
        shutil.rmtree(ours())

    in_turns(
        *(run, "archive job, both tables, verified", "native read + sort + partitioned write"),
        *(ours_again, theirs),
        BenchTarget(0.6, 0.9),
        rows=count,
    )


def fill_dead(path: str, count: int) -> None:
    """So many dead letters, each with a reason of its own."""
    broker = LocalBroker(path, history_bytes=1 << 40)
    broker.declare("dead", QueueSettings())
    broker.declare("orders", QueueSettings(dead_letter="dead", max_receives=1))
    done = 0
    for part in bodies(count, 100):
        broker.publish_bodies("orders", part, 0)
        for delivery in broker.receive("orders", len(part)):
            reason = _ERRORS[done % len(_ERRORS)] % (done % 251, done % 1009)
            broker.reject("orders", [(delivery.entry.seq, delivery.number)], reason)
            done += 1
        if done % 10_000 == 0:
            broker.sync()
    broker.sync()
    broker.close()


def _triage(run: Run, spark: SparkSession) -> None:
    from openq.pipeline import history
    from openq.pipeline.archive import archive
    from openq.pipeline.triage import triage

    count = 100_000 if run.quick else 1_000_000
    folder = run.folder("triage")
    data, kept = os.path.join(folder, "data"), os.path.join(folder, "archive")
    fill_dead(data, count)
    archive(spark, path=data, archive=kept, include_open=True)
    in_turns(
        *(run, f"triage of {count:,} dead letters", "history scan of the same rows (time)"),
        lambda: triage(spark, path=data, archive=kept),
        lambda: drain(history(spark, path=data, archive=kept, table="events")),
        BenchTarget(2.0, 1.3, more_is_better=False),
        rows=count,
    )
