"""The tests pass on a machine where OpenQ is in use, and touch nothing of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openq.config import DEFAULT_AMQP_PORT, DEFAULT_PORT, KEYS, OTHER_VARIABLES, variable_of
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.cli.helpers import directory_contents
from tests.isolation import DEFAULT_PORTS, ROOT, clean, default_ports
from tests.serving import Served, free_port

# Whatever finds its place by itself: the working directory, the environment, the home, a default port. Java
# starts in the same environment as everything else, and would take longer than all of this.
SHORT_PART = (
    "tests/cli/test_pipeline_cursors.py",
    "tests/cli/test_config.py",
    "tests/client/test_persistence.py",
    "tests/pipeline/test_archive_job.py::test_invalid_arguments_give_one_line",
    "tests/server/test_server.py::test_it_reports_its_address_and_what_is_stored_when_it_stops",
    "tests/test_config.py",
    "tests/test_contract.py::test_P3_the_sample_ends_by_itself_and_prints_what_happened",
)
NONSENSE = "/nowhere/at all"
# What pytest and Python leave beside their sources.
CACHES = {".pytest_cache", ".hypothesis", "__pycache__"}


@contextmanager
def a_server_of_the_developer(data: Path) -> Iterator[Served]:
    """On the default ports, unless somebody else has them."""
    server = Served(["--data", str(data), "--amqp-port", str(DEFAULT_AMQP_PORT)], DEFAULT_PORT)
    try:
        server.wait()
    except AssertionError:
        server.stop()
        server = Served(["--data", str(data), "--amqp-port", str(free_port())], free_port()).wait()
    try:
        yield server
    finally:
        server.stop()


def listed(folder: Path) -> set[str]:
    found = set()
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in CACHES]
        found |= {os.path.join(where, name) for name in (*folders, *files)}
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The checkout with a data directory in it, as `make run` leaves one. What nobody may write is linked."""
    place = tmp_path / "clone"
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in {"tests", "openq-data", "build", *CACHES}:
            (place / path.name).symlink_to(path)
    broker = LocalBroker(place / "openq-data")
    broker.declare("orders", QueueSettings())
    for number in range(10):
        broker.publish("orders", Draft(b"%d" % number))
    broker.close()
    return place


def test_the_tests_pass_beside_a_used_directory_a_server_and_any_environment(
    clone: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    nonsense = dict.fromkeys({variable_of(key) for key in KEYS} | OTHER_VARIABLES, NONSENSE)
    environ = {**os.environ, **nonsense, "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environ |= {"AWS_PROFILE": NONSENSE, "AWS_ENDPOINT_URL": NONSENSE, "SPARK_REMOTE": "sc://127.0.0.1:1"}
    data, files = directory_contents(clone / "openq-data"), listed(clone)

    with a_server_of_the_developer(tmp_path / "served") as server, tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", f"--basetemp={temporary}/base", *SHORT_PART],
            cwd=clone,
            env={**environ, "TMPDIR": temporary},
            capture_output=True,
            text=True,
            timeout=600,
        )
        with default_ports():
            figures = server.get("/metrics")[1].decode().splitlines()
        left = os.listdir(temporary)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "openq_requests_total 1" in figures  # ours, for these figures
    assert directory_contents(clone / "openq-data") == data
    assert listed(clone) == files
    assert listed(home) == set()
    assert [name for name in left if name.startswith("openq-tests-")] == []


def test_settings_of_a_machine_are_left_out_and_those_that_tools_need_are_kept(tmp_path: Path) -> None:
    before, home = tmp_path / "before", tmp_path / "home"
    (before / ".config" / "pip").mkdir(parents=True)
    (before / ".config" / "pip" / "pip.conf").touch()

    foreign = dict.fromkeys(("OPENQ_URL", "AWS_PROFILE", "SPARK_REMOTE", "PYSPARK_PYTHON", "MASTER"), "x")
    found = clean({**foreign, "JAVA_HOME": "/java", "PATH": "/bin", "HOME": str(before)}, home)

    assert found.keys().isdisjoint(foreign)
    assert (found["JAVA_HOME"], found["PATH"], found["HOME"]) == ("/java", "/bin", str(home))
    assert found["PIP_CONFIG_FILE"] == str(before / ".config" / "pip" / "pip.conf")
    assert found["XDG_CACHE_HOME"].startswith(str(home))


def test_the_default_ports_are_those_of_the_configuration() -> None:
    assert {DEFAULT_PORT, DEFAULT_AMQP_PORT} == DEFAULT_PORTS


@pytest.mark.parametrize("port", [DEFAULT_PORT, DEFAULT_AMQP_PORT])
def test_a_test_that_uses_a_default_port_fails(port: int) -> None:
    with socket.socket() as client, pytest.raises(AssertionError, match=f"default port {port}"):
        client.connect(("127.0.0.1", port))


def test_every_test_begins_in_an_empty_directory_of_its_own() -> None:
    assert os.listdir() == []
    assert not Path.cwd().is_relative_to(ROOT)
    assert not Path.home().is_relative_to(ROOT)
