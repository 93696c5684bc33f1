"""A real Spark that writes to servers on Redis: killed and repeated, every row is there once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openq.model import QueueSettings
from openq.pipeline.redrive import redrive
from openq.pipeline.replay import replay
from openq.pipeline.sqljob import sql
from openq.pipeline.transfer import load
from tests.local.test_staging import waiting
from tests.pipeline.test_exactly_once import bodies, copied, forget_last_commit, publish
from tests.redis.servers import Server
from tests.redis.staging_helpers import opened
from tests.serving import Served, free_port
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 60_000


def launch(redis: Server, port: int) -> Served:
    return Served(["--store", redis.url, "--profile", "fast"], port).wait()


@contextmanager
def serving(redis: Server) -> Iterator[Served]:
    server = launch(redis, free_port())
    try:
        yield server
    finally:
        server.stop()


def test_a_stream_whose_last_batch_comes_again_by_another_server(
    spark: SparkSession,
    redis_server: Server,
    tmp_path: Path,
) -> None:
    with serving(redis_server) as server:
        publish(server, "a", 0, 12)
        copied(spark, server, tmp_path)
        assert bodies(server, "b") == [b"%d" % n for n in range(12)]

    forget_last_commit(tmp_path)
    with serving(redis_server) as server:
        publish(server, "a", 12, 5)
        copied(spark, server, tmp_path)
        assert bodies(server, "b") == [b"%d" % n for n in range(17)]


def test_a_table_is_there_once_however_often_its_servers_die(
    spark: SparkSession,
    redis_server: Server,
) -> None:
    port = free_port()
    server = launch(redis_server, port)
    is_written = threading.Event()

    def write(table: DataFrame) -> None:
        options = {"url": server.url, "queue": "t", "createQueue": "true", "jobId": "load"}
        table.write.format("openq").options(**options).mode("append").save()

    def keep_killing() -> None:
        nonlocal server
        with opened(redis_server.url) as broker:
            until(lambda: is_written.is_set() or broker.staging.stages(), seconds=120)
        server.kill()
        server = launch(redis_server, port)

    killer = threading.Thread(target=keep_killing)
    killer.start()
    table = spark.range(ROWS).selectExpr("to_json(struct(*)) AS body", "'order' AS type").repartition(4)
    try:
        for _ in range(10):
            try:
                write(table)
                break
            except Exception:  # of whatever kind: a job that failed is run again
                killer.join(60)
        else:
            pytest.fail("it fails every time")
        is_written.set()
        killer.join(60)
        write(table)
    finally:
        is_written.set()
        killer.join(60)
        server.stop()

    with opened(redis_server.url) as broker:
        found = Counter(waiting(broker, "t"))
        assert len(found) == ROWS
        assert set(found.values()) == {1}
        assert broker.staging.stages() == []


def test_the_commands_that_publish_do_so_once(
    spark: SparkSession,
    redis_server: Server,
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"{n}\n" for n in range(20)))
    wanted = {b"%d" % n for n in range(20)}
    with serving(redis_server) as server, opened(redis_server.url) as broker:
        broker.declare("dead", QueueSettings())
        broker.declare("loaded", QueueSettings(max_receives=1, dead_letter="dead"))
        for name in ("chosen", "copies"):
            broker.declare(name, QueueSettings())
        for _ in range(2):
            load(spark, tmp_path / "rows.txt", "loaded", url=server.url)
            text = "INSERT INTO queue(chosen) SELECT body FROM stream(queue(loaded)) WHERE length(body) = 1"
            sql(spark, text, url=server.url, checkpoint=tmp_path / "checkpoint")
            replay(spark, "loaded", "copies", url=server.url, plan=tmp_path / "replay.json")
        assert Counter(waiting(broker, "loaded")) == Counter(wanted)
        assert Counter(waiting(broker, "chosen")) == Counter(body for body in wanted if len(body) == 1)
        assert Counter(waiting(broker, "copies")) == Counter(wanted)

        for delivery in broker.receive("loaded", 20):
            broker.reject("loaded", [(delivery.entry.seq, delivery.number)], "ValueError: bad")
        for _ in range(2):
            redrive(
                spark, "dead", url=server.url, transform="concat(body, '!')", plan=tmp_path / "redrive.json"
            )
        assert Counter(waiting(broker, "loaded")) == Counter(body + b"!" for body in wanted)
        assert waiting(broker, "dead") == []
