"""One Spark session for all tests of a process, which must not stop it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.isolation import JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = {
    "driver_memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "5ms",
    # A few rows are read sooner than a program that reads them is generated and compiled. The jobs of other
    # tests (a cluster, Spark Connect, documents, crashes) run as Spark does by default.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from openq.pipeline.session import session

    made = session("local[2]", app_name="openq-tests", **SPARK)
    # Every session of this process uses this context, also those of `newSession`.
    context = made.sparkContext
    context.stop = _refuse  # type: ignore[method-assign]
    yield made
    del context.stop  # type: ignore[method-assign]
    made.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the collector
        _end_java()


def _refuse() -> NoReturn:
    raise AssertionError(
        "other tests use this Spark session too: a test that ends one starts its own process"
    )


def _end_java() -> None:
    """End the JVM of this process; Spark itself would keep it for the next session."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        if gateway.proc is not None and gateway.proc.stdin is not None:
            gateway.proc.stdin.close()
            gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
