"""The data pipeline on Spark against Spark's own formats: the same rows, one warm JVM, runs in turns."""

from __future__ import annotations

from . import spark_jobs, spark_read, spark_stream, spark_write
from .harness import Run, optional


def run(run: Run) -> None:
    if optional("pyspark") is None:
        run.log("spark: left out, pyspark is not installed (pip install 'openq[spark]')")
        return
    for part in (spark_read, spark_write, spark_jobs, spark_stream):
        part.run(run)
