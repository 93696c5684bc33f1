"""Real Spark jobs over servers on Redis, restarted from their checkpoints: every message once, in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openq import OpenQ
from tests.redis.servers import Server
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

LIMIT = 500  # messages that a queue keeps for nobody in particular


@contextmanager
def served(redis: Server, port: int) -> Iterator[Served]:
    started = Served(["--store", f"{redis.url}?history={LIMIT}", "--profile", "fast"], port)
    try:
        yield started.wait()
    finally:
        started.stop()


class Job:
    """A stream into Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path, **options: object) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self._spark.readStream.format("openq").options(**self._options).load()
        out = stream.selectExpr("CAST(body AS STRING) AS text").writeStream.format("parquet")
        out = out.option("path", str(self._folder / "out"))
        return out.option("checkpointLocation", str(self._folder / "seen")).trigger(**trigger).start()

    def run(self) -> list[int]:
        """All that there is by now, and what is in the files then."""
        assert self.start(availableNow=True).awaitTermination(120)
        return self.found()

    def found(self) -> list[int]:
        rows = self._spark.read.schema("text STRING").parquet(str(self._folder / "out")).collect()
        return sorted(int(row["text"]) for row in rows)


def publish(server: Served, first: int, end: int, *, work_off: bool = False) -> None:
    with OpenQ("jobs", url=server.url, codec="raw") as jobs:
        for at in range(first, end, 500):
            count = min(500, end - at)
            jobs.publish_many([b"%d" % number for number in range(at, at + count)])
            for message in jobs.receive_many(count) if work_off else ():
                jobs.ack(message)


def test_a_log_stream_with_a_cursor_misses_nothing_of_a_short_history(
    spark: SparkSession,
    redis_server: Server,
    tmp_path: Path,
) -> None:
    port = free_port()
    job = Job(spark, tmp_path, url=f"http://127.0.0.1:{port}", queues="jobs", cursor="job", holdTime="1h")
    with served(redis_server, port) as first:
        publish(first, 0, 300, work_off=True)
        assert job.run() == list(range(300))
        [cursor] = Client(first.url).get("/pipeline/cursors").value["cursors"]
        assert (cursor["name"], cursor["hold_s"], cursor["lost"]) == ("job", 3_600, False)
        publish(first, 300, 3_000, work_off=True)  # five times what would be kept without it
        first.kill()
    with served(redis_server, port) as second:
        assert job.run() == list(range(3_000))
        publish(second, 3_000, 3_100, work_off=True)

        assert job.run() == list(range(3_100))


def test_a_consuming_stream_takes_every_message_once_whatever_is_killed(
    spark: SparkSession,
    redis_server: Server,
    tmp_path: Path,
) -> None:
    port = free_port()
    job = Job(
        spark,
        tmp_path,
        url=f"http://127.0.0.1:{port}",
        mode="consume",
        queue="jobs",
        subscription="job",
        maxMessagesPerTrigger=200,
        leaseTimeout="60s",
    )
    with served(redis_server, port) as first:
        publish(first, 0, 2_000)
        query = job.start(processingTime="0 seconds")
        until(lambda: len(query.recentProgress) >= 2)
        first.kill()
    with served(redis_server, port) as second:
        until(lambda: len(query.recentProgress) >= 4 or query.exception() is not None, seconds=120)
        query.stop()

        assert job.run() == list(range(2_000))
        publish(second, 2_000, 2_300)
        assert job.run() == list(range(2_300))
        stats = Client(second.url).get("/queues/jobs/stats").value
        assert (stats["ready"], stats["in_flight"]) == (0, 0)
