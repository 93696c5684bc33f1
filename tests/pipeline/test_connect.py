"""Spark Connect: a client without a JVM of its own reads through a Spark server that has OpenQ installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.pipeline.clusters import HOME, QUICK, environment, running
from tests.pipeline.conftest import fill_path
from tests.serving import free_port, served

COUNT = 50
CLIENT = """
import json, sys
from openq.pipeline import history, reason, session

master, url, path = sys.argv[1:]
spark = session(master)
found = {"setting": spark.conf.get("spark.sql.python.filterPushdown.enabled")}
frame = spark.read.format("openq").options(url=url, columns="seq,queue,message_id").load()
found["ids"] = sorted(row.message_id for row in frame.collect())
found["orders"] = frame.where("queue = 'orders'").count()
found["events"] = history(spark, path=path, table="events", columns=["event"]).where("event = 'ack'").count()
try:
    spark.read.format("openq").options(url=url, queus="a").load().collect()
except Exception as error:
    found["mistake"] = reason(error)
spark.stop()
print(json.dumps(found))
"""


def test_a_connect_client_reads_the_history(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "spark"
    work.mkdir()
    filled = fill_path(data, COUNT)
    port = free_port()
    env = environment(SPARK_DAEMON_MEMORY="768m")  # spark-submit takes this server for a daemon
    server = [
        str(HOME / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false", "--conf", f"spark.driver.extraJavaOptions={QUICK}"),
        "spark-internal",
    ]
    with (
        served(data) as openq,
        running(server, work / "connect.log", "Spark Connect server started", env),
    ):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CLIENT, f"sc://127.0.0.1:{port}", openq.url, str(data)],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=work,
            env=environment(),
        )

    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["setting"] == "true"
    assert found["ids"] == sorted(filled.sent)
    assert found["orders"] == COUNT
    assert found["events"] == len(filled.acked)
    assert found["mistake"] == "there is no option 'queus': did you mean queues?"
