"""What every test shares: an isolated process, and as little else as possible."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.budget import examples
from tests.isolation import ROOT, Isolation
from tests.shared_spark import spark

__all__ = ["spark"]  # a fixture of every test

try:
    from hypothesis import settings
    from hypothesis.configuration import set_hypothesis_home_dir
except ImportError:
    pass  # a Python beside our own, where tests/pythons.py runs tests that do not need it
else:
    # No deadline per example: a busy machine is not a bug.
    settings.register_profile("openq", deadline=None, max_examples=examples(50))
    settings.load_profile("openq")
    set_hypothesis_home_dir(
        ROOT / ".hypothesis"
    )  # with pytest's own cache, not in a test's working directory

isolation = Isolation()

# A file is run by one process as a whole, and so is the group of files that use the shared Spark session: it
# takes ten seconds to start, and is quicker the longer it runs.
SPARK = tuple(
    f"tests/{name}.py"
    for name in (
        *("pipeline/test_exactly_once", "pipeline/test_analytics", "pipeline/test_archive_job"),
        *("pipeline/test_archive_remote", "pipeline/test_project", "pipeline/test_read"),
        *("pipeline/test_redrive", "pipeline/test_replay", "pipeline/test_session", "pipeline/test_sql"),
        *("pipeline/test_transfer", "pipeline/test_triage"),
        *("redis/test_spark_sink", "redis/test_spark_streams", "redis/test_stream_history"),
    )
)
# What takes longest goes first: the last one should be short.
FIRST = (
    *SPARK,
    "tests/crash/test_pipeline.py",
    "tests/pipeline/",
    "tests/test_docs.py",
    "tests/test_pythons.py",
    "tests/real_clients/",
    "tests/worker/test_service",  # these wait most of the time
    "tests/worker/test_worker.py",
    "tests/engine/test_model.py",
    "tests/amqp/test_hostile.py",
    "tests/redis/",
    "tests/crash/",
    "tests/test_isolation.py",
    "tests/scenarios/",
    "tests/server/",
    "tests/rest/",
    "tests/amqp/",
    "tests/journal/",
    "tests/test_protocols",
    "tests/client/",
    "tests/sqs/",
)


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts us in the background has SIGINT ignored, and so would every process that we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest-xdist would begin with the files that have most tests, and they are the quick ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`: by files, and the group that uses Spark at once."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "spark" if file in SPARK else file

    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """After the collection, which resolves paths of the command line."""
    # Where pytest-xdist runs the tests, its workers leave the checkout: they take their arguments from here.
    if hasattr(session.config, "workerinput") or not getattr(session.config.option, "tx", None):
        isolation.begin()


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    """Every test has a working directory of its own, and leaves the environment as it found it."""
    with isolation.fresh():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid.partition("::")[0]))  # stable: in a file nothing moves


@functools.cache
def _turn(file: str) -> int:
    return next((turn for turn, start in enumerate(FIRST) if file.startswith(start)), len(FIRST))
