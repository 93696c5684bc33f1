"""Exactly once through a real Spark: batches that come again and runs that end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openq import OpenQ
from openq.pipeline.closer import Closer, close_stream
from openq.pipeline.session import reason
from tests.serving import Served, served
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "data") as started:
        yield started


def publish(server: Served, queue: str, start: int, count: int) -> None:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        opened.publish_many([b"%d" % n for n in range(start, start + count)])


def counts(server: Served, queue: str) -> tuple[int, int]:
    stats = json.loads(server.get(f"/api/v1/queues/{queue}/stats")[1])
    return stats["ready"], stats["in_flight"]


def bodies(server: Served, queue: str) -> list[bytes]:
    """What waits there, without taking it."""
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return [message.body for message in opened.peek_many(1000)]


def stream(spark: SparkSession, server: Served, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("openq").options(url=server.url, **given).load()


def copied(spark: SparkSession, server: Served, checkpoint: Path) -> None:
    """One run of a query that copies queue `a` to queue `b`."""
    source = stream(spark, server, queues="a", maxMessagesPerTrigger=8)
    query = (
        source.select("body", "type", "attributes")
        .writeStream.format("openq")
        .options(url=server.url, queue="b", createQueue="true", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """As after a crash between the sink's commit and Spark's own."""
    commits = checkpoint / "commits"
    last = max((each for each in commits.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_repeated_batch_is_published_once(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    publish(server, "a", 0, 12)
    copied(spark, server, checkpoint)
    assert bodies(server, "b") == [b"%d" % n for n in range(12)]

    # What is new comes in a batch of its own, behind the one that comes again.
    forget_last_commit(checkpoint)
    publish(server, "a", 12, 5)
    copied(spark, server, checkpoint)
    assert bodies(server, "b") == [b"%d" % n for n in range(17)]
    assert len([each for each in (checkpoint / "commits").iterdir() if each.name.isdigit()]) == 3
    assert counts(server, "a") == (17, 0)  # reading the log takes nothing out of the queue


def test_a_consumed_queue_is_empty_after_the_run(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    publish(server, "a", 0, 12)
    seen: list[list[bytes]] = []

    def keep(frame: DataFrame, number: int) -> None:
        rows = sorted(bytes(row.body) for row in frame.select("body").collect())
        del seen[number:]
        seen.append(rows)

    closer = Closer(server.url)
    spark.streams.addListener(closer)
    try:
        source = stream(spark, server, mode="consume", queue="a", subscription="s", maxMessagesPerTrigger=8)
        query = (
            source.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        until(lambda: sum(map(len, seen)) == 12, seconds=300)
        query.processAllAvailable()
        query.stop()
        until(lambda: counts(server, "a") == (0, 0), seconds=120)
    finally:
        spark.streams.removeListener(closer)

    assert sorted(body for rows in seen for body in rows) == sorted(b"%d" % n for n in range(12))
    assert list(close_stream(tmp_path / "checkpoint", server.url)) == ["s"]


def test_a_table_becomes_messages_and_an_invalid_one_is_refused(spark: SparkSession, server: Served) -> None:
    table = spark.range(1000).selectExpr("to_json(struct(*)) AS body", "'order' AS type")

    def write(frame: DataFrame, **options: str) -> None:
        frame.write.format("openq").options(url=server.url, **options).mode("append").save()

    def complaint(frame: DataFrame, **options: str) -> str:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            write(frame, **options)
        return reason(raised.value) or ""

    for _ in range(2):
        write(table, queue="a", createQueue="true", jobId="load")

    assert counts(server, "a") == (1000, 0)
    assert "to_json" in complaint(spark.range(3).toDF("id"), queue="a")
    assert "did you mean jobId" in complaint(table, queue="a", jobbId="x")
    assert "nowhere" in complaint(table, queue="nowhere")
    assert counts(server, "a") == (1000, 0)


def test_stream_errors_are_one_sentence(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    publish(server, "a", 0, 3)

    def complaint(**options: object) -> str:
        given = {"mode": "consume", "queue": "a", "subscription": "s", **options}
        with pytest.raises(Exception) as raised:  # noqa: PT011
            (
                stream(spark, server, **given)
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        return reason(raised.value) or str(raised.value)

    assert complaint(subscripton="s") == "there is no option 'subscripton': did you mean subscription?"
    assert "nowhere" in complaint(queue="nowhere")
    assert complaint(leaseTimeout="1s") == "leaseTimeout must be from 5 s to 7 days"
    assert counts(server, "a") == (3, 0)
