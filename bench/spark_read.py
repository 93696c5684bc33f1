"""Reading history: archived and not, whole and in part, by path and over HTTP, against native Parquet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .harness import BenchTarget, Run
from .server_processes import OpenQ
from .server_rounds import started
from .spark_common import drain, fill, in_turns, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NATIVE = "native Parquet scan"
NARROW = ["seq", "ts", "queue", "message_id"]


def run(run: Run) -> None:
    with spark_session() as spark:
        for size, named in ((100, "100 B"), (1024, "1 KiB")):
            count = (2_000_000 if size == 100 else 500_000) // (4 if run.quick else 1)
            _scans(run, spark, count, size, named)


def _native(spark: SparkSession, archive: str) -> DataFrame:
    from openq.history.archive import Archive

    manifest = Archive(archive).latest()
    assert manifest is not None
    files = [os.path.join(archive, each.path) for each in manifest.files if each.table == "messages"]
    return spark.read.parquet(*files)


def _scans(run: Run, spark: SparkSession, count: int, size: int, named: str) -> None:
    from openq.pipeline import history
    from openq.pipeline.archive import archive

    folder = run.folder(f"past-{size}")
    data, kept = os.path.join(folder, "data"), os.path.join(folder, "archive")
    fill(data, count, size)
    run.log(f"spark: {count} messages of {named} are in the journal; archiving them")
    archive(spark, path=data, archive=kept, include_open=True)

    def openq(**options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("openq").options(path=data, archive=kept, **given).load()

    def tail(**options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("openq").options(path=data, archive=os.devnull, **given).load()

    columns = _native(spark, kept).columns
    small = size == 100
    if small:
        in_turns(
            *(run, f"history(), archived, all columns, {named}", NATIVE),
            lambda: drain(history(spark, path=data, archive=kept)),
            lambda: drain(_native(spark, kept)),
            BenchTarget(0.90, 0.98),
            rows=count,
        )
    in_turns(
        *(run, f'format("openq"), archived, all columns, {named}', NATIVE),
        lambda: drain(openq()),
        lambda: drain(_native(spark, kept)),
        BenchTarget(0.65, 0.85) if small else BenchTarget(0.80, 1.0),
        rows=count,
    )
    in_turns(
        *(run, f"the same without bodies, {named}", "native Parquet, the same columns"),
        lambda: drain(openq(body="false")),
        lambda: drain(_native(spark, kept).select([name for name in columns if name != "body"])),
        BenchTarget(0.4, 0.8),
        rows=count,
    )
    in_turns(
        *(run, f"four small columns, {named}", "native Parquet, the same columns"),
        lambda: drain(openq(columns=",".join(NARROW))),
        lambda: drain(_native(spark, kept).select(NARROW)),
        BenchTarget(0.4, 0.6),
        rows=count,
    )
    low, high = _native(spark, kept).selectExpr("min(ts)", "max(ts)").head()
    middle = low + (high - low) / 2
    in_turns(
        *(run, f"one queue, half of the time, {named}", "native Parquet, the same predicate (time)"),
        lambda: drain(openq().where("queue = 'orders-07'").where(f"ts >= timestamp'{middle}'")),
        lambda: drain(_native(spark, kept).where("queue = 'orders-07'").where(f"ts >= timestamp'{middle}'")),
        BenchTarget(1.3, 0.9, more_is_better=False),
        rows=count,
    )
    in_turns(
        *(run, f"journal, not archived, {named}", NATIVE),
        lambda: drain(tail()),
        lambda: drain(_native(spark, kept)),
        BenchTarget(0.25, 0.6) if small else BenchTarget(0.45, 0.9),
        rows=count,
    )
    server = OpenQ(folder, "--archive", kept, "--amqp-port", "off", durable=True)
    with started(server):
        url = f"http://127.0.0.1:{server.port}"
        for what, by_path in (("archived", openq), ("not archived", tail)):
            given = {"url": url} if by_path is openq else {"url": url, "archive": os.devnull}
            in_turns(
                *(run, f"over HTTP, {what}, {named}", "the same by path"),
                lambda given=given: drain(spark.read.format("openq").options(**given).load()),  # type: ignore[misc]
                lambda by_path=by_path: drain(by_path()),  # type: ignore[misc]
                BenchTarget(0.50, 0.8),
                rows=count,
            )
