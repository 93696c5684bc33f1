"""Workers register with the store: `openq worker ls | show | quiet | stop`, REST, metrics, `openq top`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from tests.serving import Served, served
from tests.waiting import WAIT_S, until
from tests.worker.service import lines_of, worker

WAITS = "echo $$ >> started; until [ -e go ]; do sleep 0.05; done"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def jobs(server: Served, request: pytest.FixtureRequest) -> Iterator[OpenQ]:
    queue = OpenQ(request.node.name[:70], url=server.url)
    yield queue
    queue.close()


def openq(server: Served, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "openq", *words, "--url", server.url],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def workers(server: Served, name: str = "") -> list[dict[str, Any]]:
    status, body = server.get(f"/api/v1/workers{name and '/' + name}")
    found: list[dict[str, Any]] = json.loads(body).get("workers", []) if status == 200 else []
    return found


def flags(server: Served, queue: OpenQ) -> tuple[str, ...]:
    return ("--queue", queue.name, "--url", server.url)


def test_a_worker_shows_what_it_runs(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    message_id = jobs.publish("x")

    with worker(tmp_path, "--exec", WAITS, "--name", "shown", *flags(server, jobs)) as service:
        until(lambda: workers(server, "shown") and workers(server, "shown")[0]["busy"] == 1)
        [entry] = workers(server, "shown")
        listed = openq(server, "worker", "ls")
        shown = openq(server, "worker", "show", "shown")
        frame = openq(server, "top", "--once")
        as_json = json.loads(openq(server, "top", "--once", "--json"))
        until(lambda: b'openq_worker_busy_slots{account="000000000000"} 1' in server.get("/metrics")[1])
        (tmp_path / "go").touch()
        jobs.publish("y")
        until(lambda: workers(server, "shown")[0]["busy"] == 0)
        done = b'outcome="done"} 2'
        until(lambda: done in server.get("/metrics")[1])
        service.signal(signal.SIGTERM)
        assert service.wait() == 0

    assert entry["service"] == "shown"
    assert entry["queues"] == {jobs.name: 1}
    assert (entry["slots"], entry["state"], entry["runs"]) == (8, "running", WAITS)
    [job] = entry["running"]
    assert (job["id"], job["queue"], job["attempt"]) == (message_id, jobs.name, 1)
    assert entry["name"] in listed
    assert message_id in shown
    assert jobs.name in frame
    assert message_id in frame
    assert as_json["workers"][0]["name"] == entry["name"]
    assert as_json["queues"][0]["rates"]["published"] == 0
    # A worker that ended well is gone at once, and its jobs stay counted.
    assert workers(server, "shown") == []
    assert done in server.get("/metrics")[1]


def test_the_entry_of_a_killed_worker_vanishes(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    with worker(tmp_path, "--exec", "true", "--name", "killed", *flags(server, jobs)) as service:
        until(lambda: len(workers(server, "killed")) == 1)
        [entry] = workers(server, "killed")
        os.kill(entry["pid"], signal.SIGKILL)
        # It is replaced: another process, another entry.
        until(lambda: any(each["pid"] != entry["pid"] for each in workers(server, "killed")))
        until(lambda: all(each["pid"] != entry["pid"] for each in workers(server, "killed")))
        service.signal(signal.SIGTERM)
        assert service.wait() == 0


def test_a_quiet_worker_receives_nothing_more(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    with worker(tmp_path, "--exec", "cat >> seen", "--name", "quieted", *flags(server, jobs)) as service:
        until(lambda: workers(server, "quieted"))
        assert "sent quiet to 1 process of quieted" in openq(server, "worker", "quiet", "quieted")
        until(lambda: workers(server, "quieted")[0]["state"] == "quiet")
        jobs.publish("x")

        assert "is quiet" in service.get("/readyz")[1]
        assert jobs.stats().ready == 1


def test_processes_that_were_stopped_by_name_are_gone_at_once(
    server: Served, jobs: OpenQ, tmp_path: Path
) -> None:
    with worker(
        tmp_path, "--exec", "true", "--processes", "2", "--name", "left", *flags(server, jobs)
    ) as service:
        until(lambda: len(workers(server, "left")) == 2)
        openq(server, "worker", "stop", "left")
        assert service.wait() == 0
        assert workers(server, "left") == []


def test_stop_ends_one_process_or_the_whole_service(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    jobs.publish("x")

    with worker(
        tmp_path, "--exec", WAITS, "--processes", "2", "--name", "ended", *flags(server, jobs)
    ) as service:
        until(lambda: sum(entry["busy"] for entry in workers(server, "ended")) == 1)
        until(lambda: len(workers(server, "ended")) == 2)
        _busy, idle = sorted(workers(server, "ended"), key=lambda entry: -entry["busy"])
        openq(server, "worker", "stop", idle["name"])
        until(lambda: len(workers(server, "ended")) == 1)

        # It is not replaced, and the service goes on with the other one.
        assert service.get("/readyz")[0] == 200
        openq(server, "worker", "stop", "ended")
        until(lambda: workers(server, "ended")[0]["state"] == "stopping")
        (tmp_path / "go").touch()
        assert service.wait() == 0

    assert workers(server, "ended") == []
    assert len(lines_of(tmp_path / "started")) == 1
    assert jobs.stats().ready == jobs.stats().in_flight == 0


def test_an_unknown_worker_is_not_found(server: Served) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "openq", "worker", "stop", "nobody", "--url", server.url],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert ended.returncode == 3
    assert "worker 'nobody' does not exist" in ended.stderr
    request = urllib.request.Request(f"{server.url}/api/v1/workers", method="GET")
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read()).keys() == {"workers"}


def test_top_draws_on_a_terminal_and_q_quits(server: Served, jobs: OpenQ) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "openq", "top", "--url", server.url])
    shown = b""
    while b"q quits" not in shown:
        shown += os.read(terminal, 65536)
    os.write(terminal, b"q")
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break  # the terminal closed with the program
        if not data:
            break
        shown += data
    _, status = os.waitpid(pid, 0)
    os.close(terminal)

    assert os.waitstatus_to_exitcode(status) == 0
    assert jobs.name.encode()[:12] in shown
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l")  # the screen as it was before
