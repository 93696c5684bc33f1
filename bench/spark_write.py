"""Publishing from Spark, durable and exactly once, against a JSON file and against the server alone."""

from __future__ import annotations

import json
import os
from itertools import count as numbers
from typing import TYPE_CHECKING

from openq.broker.packed_messages import COLUMNS
from openq.client.http import HttpClient
from openq.packed import pack

from .harness import BenchTarget, Run
from .server_processes import OpenQ
from .server_rounds import started
from .spark_common import bodies, in_turns, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART = 40_000


def run(run: Run) -> None:
    count = 250_000 if run.quick else 2_000_000
    folder = run.folder("write")
    server = OpenQ(folder, "--amqp-port", "off", durable=True)
    with spark_session() as spark, started(server):
        url = f"http://127.0.0.1:{server.port}"
        rows = _rows(spark, os.path.join(folder, "rows"), count)
        turn = numbers()

        def publish() -> None:
            queue = f"bench-{next(turn)}"
            rows.write.format("openq").options(url=url, queue=queue, createQueue="true").mode("append").save()

        def as_json() -> None:
            rows.selectExpr("cast(body as string) as body").write.mode("overwrite").json(f"{folder}/json")

        in_turns(
            *(run, "bulk publish, durable, 100 B", "native JSON write"),
            *(publish, as_json),
            BenchTarget(0.5, 1.5),
            rows=count,
        )
        parts = list(_parts(count))

        def alone() -> None:
            number = next(turn)
            _publish_alone(url, f"bench-{number}", f"alone-{number}", parts)

        in_turns(
            *(run, "bulk publish, durable, 100 B", "the server's own bulk publish, no Spark"),
            *(publish, alone),
            BenchTarget(0.7, 0.9),
            rows=count,
        )


def _rows(spark: SparkSession, path: str, count: int) -> DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(path)
    flat = [body for part in bodies(count, 100) for body in part]
    half = len(flat) // 2
    for number, part in enumerate((flat[:half], flat[half:])):
        pq.write_table(pa.table({"body": pa.array(part, pa.binary())}), f"{path}/{number}.parquet")
    return spark.read.parquet(path)


def _parts(count: int) -> list[bytes]:
    flat = [body for part in bodies(count, 100) for body in part]
    return [pack({"body": flat[at : at + _PART]}, COLUMNS) for at in range(0, len(flat), _PART)]


def _publish_alone(url: str, queue: str, job: str, parts: list[bytes]) -> None:
    """The same parts that Spark's tasks would send, by one client, ready made."""
    connection = HttpClient(url, timeout_s=300)
    try:
        connection.request("PUT", f"/api/v1/queues/{queue}", b"{}").checked()
        base = f"/api/v1/pipeline/stages/{job}/0"
        for number, part in enumerate(parts):
            connection.request("PUT", f"{base}/parts/{number}", part).checked()
        named = [str(number) for number in range(len(parts))]
        given = {"parts": named, "queue": queue}
        connection.request("POST", f"{base}/commit", json.dumps(given).encode()).checked()
    finally:
        connection.close()
