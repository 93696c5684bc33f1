"""A Spark session that is set up for OpenQ: Java found, workers on this interpreter, loopback, quiet, UTC.

Spark and its Java never run inside a server. Everything set here is a default: the caller and the environment
variables of Spark have priority.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from .java import find_java, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    # A job takes a session, or a function that starts one after everything else has been checked.
    Spark = SparkSession | Callable[[], SparkSession]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
DEFAULT_MASTER = "local[*]"
REACH_S = 5.0  # for a master to accept a connection
_LOOPBACK = "127.0.0.1"
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|(spark|k8s|sc)://\S+|yarn")


class NoSpark(OpenQError):
    """pyspark, or a part of it that the call needs, is not installed."""

    code = "no_spark"


class SparkFailed(OpenQError):
    """Spark did not start; its last message is in the error."""

    code = "spark_failed"


def ensure_session(spark: Spark) -> SparkSession:
    return spark() if callable(spark) else spark


def session(master: str | None = None, app_name: str = "openq", **conf: object) -> SparkSession:
    """The Spark session of this process: a new one, or the existing one.

    `master`: `local[*]` (the default), `spark://host:port`, `yarn`, `k8s://...`, or `sc://host:port` for a
    Spark Connect server. `conf` are Spark's settings; `driver_memory="4g"` means `spark.driver.memory`, and
    names with dots are passed on: `**{"spark.sql.ansi.enabled": True}`.
    """
    master = master or os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or DEFAULT_MASTER
    if not _MASTER.fullmatch(master):
        raise InvalidSetting(
            f"master must be local[*], local[N], spark://host:port, yarn, k8s://... or sc://host:port, "
            f"not {master!r}"
        )
    settings = {_setting(name): _text(value) for name, value in conf.items()}
    try:
        import pyspark
    except ImportError:
        raise NoSpark("the data pipeline needs Spark: pip install 'openq[spark]'") from None
    if int(pyspark.__version__.partition(".")[0]) < 4:
        raise NoSpark(
            f"the data pipeline needs Spark 4.3 or later, this is {pyspark.__version__}: "
            "pip install 'openq[spark]'"
        )
    check_master(master)
    if master.startswith("sc://"):
        return _connect_session(master, settings)
    return _start_session(master, app_name, settings)


def check_master(master: str) -> None:
    """Raises SparkFailed if no node of a master listens: Spark itself would retry for minutes."""
    addresses = _addresses(master)
    if not addresses:
        return
    end = time.monotonic() + REACH_S
    problem = ""
    for host, port in addresses:
        try:
            socket.create_connection((host, port), max(0.1, end - time.monotonic())).close()
            return
        except OSError as error:
            problem = f"{host} port {port}: {error.strerror or error}"
    raise SparkFailed(
        f"the master {master} is unreachable ({problem}); start it, name another with --master, "
        f"or leave it out to run on this machine"
    )


def _addresses(master: str) -> list[tuple[str, int]]:
    """The addresses of a master; none for local and yarn."""
    found = re.match(r"(spark|sc|k8s)://(?:(https?)://)?([^/;?]+)", master)
    if found is None:
        return []
    default = {"spark": 7077, "sc": 15002, "k8s": 80 if found[2] == "http" else 443}[found[1]]
    addresses = []
    for address in found[3].split(","):  # several masters of a standalone cluster
        host, _, port = address.rpartition(":") if re.search(r":\d+$", address) else (address, "", "")
        addresses.append((host.strip("[]"), int(port) if port else default))
    return addresses


def is_running() -> bool:
    """Whether this process has a Spark session: then `session` returns it, and its owner ends it."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None


def _connect_session(remote: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    if find_spec("grpc") is None:
        raise NoSpark("a master sc://... needs Spark's client: pip install 'openq[spark]'")
    builder = SparkSession.builder.remote(remote)
    spark: SparkSession = builder.getOrCreate()
    for name, value in {**_common_settings(), **settings}.items():
        spark.conf.set(name, value)
    return spark


def _start_session(master: str, app_name: str, settings: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    all_settings = {**_common_settings(), **_defaults(master), **settings}
    if SparkContext._active_spark_context is None and SparkContext._gateway is None:
        java = find_java()
        gateway_conf = SparkConf(loadDefaults=False)
        for name, value in {"spark.master": master, "spark.app.name": app_name, **all_settings}.items():
            gateway_conf.set(name, value)
        with _environment(master, str(java.home)):
            _start_java(gateway_conf)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in all_settings.items():
        builder = builder.config(name, value)
    with _environment(master, None):
        spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _silence_loggers()
    return spark


def _silence_loggers() -> None:
    """Spark would print each error in a user's SQL, with a stack trace in JSON, before it raises it."""
    from pyspark.logger import PySparkLogger

    for kind in ("SQL", "DataFrame"):
        PySparkLogger.getLogger(f"{kind}QueryContextLogger").setLevel(logging.CRITICAL + 1)


def _start_java(conf: Any) -> None:
    """Start the JVM with its output in a file, not on the terminal."""
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    handle, log = tempfile.mkstemp(prefix="openq-spark-", suffix=".log")
    atexit.register(_delete_log, log)
    try:
        # Stdout too: prints of workers would mix with the output of a command.
        launch: Any = java_gateway.launch_gateway
        gateway = launch(conf, popen_kwargs={"stdout": handle, "stderr": handle})
    except PySparkRuntimeError:
        with open(log, encoding="utf-8", errors="replace") as text:
            lines = [line.strip() for line in text if line.strip() and "WARNING" not in line]
        last = next((line for line in lines if re.search("error|exception", line, re.IGNORECASE)), "")
        message = last or (lines[-1] if lines else "nothing")
        raise SparkFailed(f"Spark's Java did not start: {message[:300]}") from None
    finally:
        os.close(handle)
    SparkContext._ensure_initialized(gateway=gateway)


def _delete_log(log: str) -> None:
    try:
        os.unlink(log)
    except OSError:
        pass


def _common_settings() -> dict[str, str]:
    """Settings of every session, also of one on a Connect server."""
    return {PUSHDOWN: "true", "spark.sql.session.timeZone": "UTC"}


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # On a busy machine a new Python process may take long to authenticate.
        "spark.python.authenticate.socketTimeout": "2min",
        # Listing the hundreds of files of an archive takes less time than a Spark job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
    }
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = str(2 * _cores(master))
        settings["spark.driver.memory"] = "2g"
    if _is_on_this_host(master):
        settings["spark.driver.host"] = _LOOPBACK
        settings["spark.driver.bindAddress"] = _LOOPBACK
    return settings


def _cores(master: str) -> int:
    cores = re.search(r"\[(\d+)", master)
    if cores:
        return max(1, int(cores[1]))
    return (os.cpu_count() or 1) if "*" in master else 1


def _is_on_this_host(master: str) -> bool:
    return master.startswith("local") or bool(
        re.match(r"spark://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:|$)", master)
    )


@contextmanager
def _environment(master: str, java_home: str | None) -> Iterator[None]:
    """Environment variables that Spark reads when it starts; restored afterwards."""
    variables: dict[str, str] = {}
    if master != "yarn" and not master.startswith("k8s://") and "PYSPARK_PYTHON" not in os.environ:
        # Without it the workers run the `python3` of the PATH.
        variables["PYSPARK_PYTHON"] = sys.executable
    if "PYSPARK_DRIVER_PYTHON" not in os.environ and "PYSPARK_PYTHON" not in os.environ:
        variables["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_on_this_host(master) and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    if java_home is not None:
        variables["JAVA_HOME"] = java_home
        # Only if workers run on this interpreter, which has pyspark.
        own = _packaged_spark() if "PYSPARK_PYTHON" in variables and master.startswith("local") else None
        if own is not None and "SPARK_HOME" not in os.environ:
            variables["SPARK_HOME"] = str(own)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _packaged_spark() -> Path | None:
    import pyspark

    home = Path(pyspark.__file__).parent
    return spark_home(home) if (home / "bin" / "spark-submit").exists() else None


def _setting(name: str) -> str:
    if "." in name:
        return name
    return "spark." + name.removeprefix("spark_").replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_OPENQ_ERROR = re.compile(r"^(?:[\w.]+:\s+)*openq\.[\w.]+:\s+(.+)$", re.MULTILINE)


def reason(error: BaseException) -> str | None:
    """The message of an OpenQ error that was raised inside Spark; None for other errors.

    Spark passes an error of a Python data source on as text, with two stack traces around it.
    """
    if isinstance(error, OpenQError):
        return str(error)
    found = _OPENQ_ERROR.findall(str(error))
    return found[-1].strip() if found else None
