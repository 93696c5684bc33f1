"""A standalone cluster: an executor, a process of its own that does not see the data, does all over HTTP."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import openq
from openq import OpenQ
from tests.pipeline.clusters import CLUSTER, submit
from tests.pipeline.conftest import fill_path
from tests.serving import served

COUNT = 24
SOURCE = Path(openq.__file__).parent

# The package comes by --py-files, where Spark does not look for sources: it is registered by hand.
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
import openq
from openq.pipeline.source import DefaultSource

url, path = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
spark.dataSource.register(DefaultSource)

def read(**options):
    return spark.read.format("openq").options(url=url, **options).load()

def host(rows):
    import pyarrow as pa
    for batch in rows:
        yield pa.RecordBatch.from_pydict({
            "seq": batch["seq"],
            "body": batch["body"],
            "sees": [os.path.exists(path)] * len(batch),
            "executor": [os.environ["SPARK_EXECUTOR_DIRS"]] * len(batch),
        })

frame = read(path=path, columns="seq,body", minPartitions="4")
rows = frame.mapInArrow(host, "seq long, body binary, sees boolean, executor string").collect()
events = len(read(table="events", columns="seq,event").where("event = 'ack'").collect())

def run(name, to, **options):
    (
        spark.readStream.format("openq").options(url=url, path=path, **options).load()
        .select("body", "priority", "attributes")
        .writeStream.format("openq")
        .options(url=url, queue=to, createQueue="true", checkpointLocation=f"checkpoint/{name}")
        .trigger(availableNow=True).start().awaitTermination()
    )

run("log", "copy", queues="events", minPartitions="2")
run("consume", "moved", mode="consume", queue="mails", subscription="cluster")
print(json.dumps({
    "shipped": "openq.zip" in openq.__file__,
    "driver": os.path.exists(path),
    "seqs": sorted(row.seq for row in rows),
    "sees": sorted({row.sees for row in rows}),
    "executors": len({row.executor for row in rows}),
    "on_driver": "SPARK_EXECUTOR_DIRS" in os.environ,
    "bodies": sorted(bytes(row.body).decode("latin-1") for row in rows),
    "acks": events,
}))
"""


def bodies(url: str, queue: str) -> list[bytes]:
    with OpenQ(queue, url=url, codec="raw") as opened:
        return sorted(message.body for message in opened.peek_many(1000))


def test_an_executor_without_the_data_uses_the_server(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "spark"
    work.mkdir()
    filled = fill_path(data, COUNT, 4 << 10)
    archive = work / "openq.zip"
    with zipfile.PyZipFile(archive, "w") as packed:
        packed.writepy(str(SOURCE))  # compiled: every process that Spark starts would do it again

    # The driver gets a path that does not exist either: it plans with the server, too.
    with served(data) as server:
        printed = submit(
            work,
            CLUSTER,
            PROGRAM,
            server.url,
            str(tmp_path / "elsewhere"),
            flags=["--py-files", str(archive)],
        )
        copied, moved, left = (bodies(server.url, name) for name in ("copy", "moved", "mails"))

    found = json.loads(printed.strip().splitlines()[-1])
    assert found["shipped"]
    assert (found["driver"], found["sees"]) == (False, [False])
    assert (found["executors"], found["on_driver"]) == (1, False)
    assert len(found["seqs"]) == len(set(found["seqs"])) == len(filled.sent)
    assert found["bodies"] == sorted(sent.body.decode("latin-1") for sent in filled.sent.values())
    assert found["acks"] == len(filled.acked)
    assert copied == sorted(sent.body for sent in filled.sent.values() if sent.queue == "events")
    assert (moved, left) == (sorted(b"mail %d" % n for n in range(COUNT)), [])
