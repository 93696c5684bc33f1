"""Spark processes from the pip package for tests: a Connect server, a job submitted to a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from openq.pipeline.java import find_java, spark_home
from tests.shared_spark import JAVA
from tests.waiting import until

HOME = Path(pyspark.__file__).parent
# Several of these share a small machine.
QUICK = f"{JAVA} -Xss1m"
# A master and a worker in the process of the driver, with an executor of two cores, which is another process.
CLUSTER = "local-cluster[1,2,600]"


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "OPENQ_", "PYTHONPATH"))
    }
    return {
        **kept,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home(HOME) or HOME),
        "SPARK_LAUNCHER_OPTS": JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


@contextmanager
def running(
    arguments: list[str], log: Path, ready: str, env: dict[str, str], count: int = 1
) -> Iterator[None]:
    """Processes of Spark for the length of a block; `ready` is what each logs when it is up."""
    logs = [log.with_stem(f"{log.stem}-{n}") for n in range(count)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for file in logs:
            with file.open("wb") as out:
                processes.append(
                    subprocess.Popen(
                        arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, cwd=log.parent
                    )
                )
        for file, process in zip(logs, processes, strict=True):
            _wait_for(ready, file, process)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(ready: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    until(lambda: ready in log.read_text("utf-8", "replace") or process.poll() is not None, seconds=180)
    assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]


def submit(
    directory: Path, master: str, program: str, *arguments: str, flags: list[str] | None = None
) -> str:
    """Run a program by spark-submit; what it printed."""
    file = directory / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [
            str(HOME / "bin" / "spark-submit"),
            *("--master", master, "--driver-memory", "512m", "--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.driver.extraJavaOptions={QUICK}"),
            *("--conf", f"spark.executor.extraJavaOptions={QUICK}"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.python.authenticate.socketTimeout=2min"),
            *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.streaming.pollingDelay=5ms"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *(flags or []),
            str(file),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(),
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout
