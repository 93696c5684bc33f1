"""Worker processes are killed at random moments, and nothing is missing."""

from __future__ import annotations

import importlib.util
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from openq.testing.server import OpenQServer
from openq.worker import App, Worker, group
from tests.waiting import until

PROGRAM = Path(__file__).parent / "killed_program.py"
MEMBERS = 30
KILLS = 5


def test_chains_and_groups_complete_although_workers_are_killed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    chance = random.Random(4711)
    with OpenQServer() as server:
        program = load_program(server.url, notes)
        groups = [
            group([program.step.s(number).then(program.double) for number in range(MEMBERS)])
            .then(program.total, name)
            .send()
            for name in ("a", "b")
        ]
        single = [program.step.send(number) for number in range(100, 100 + MEMBERS)]
        for _ in range(KILLS):
            worker = subprocess.Popen(
                [sys.executable, str(PROGRAM), server.url, str(notes)], stdout=subprocess.PIPE
            )
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            before = notes.stat().st_size
            until(lambda before=before: notes.stat().st_size > before)  # type: ignore[misc]
            time.sleep(chance.random() / 20)  # any moment is right
            worker.kill()
            worker.wait()
            worker.stdout.close()
        with Worker(program.app, threads=4):
            expected = sum(2 * number for number in range(MEMBERS))
            assert [job.result(timeout=60) for job in groups] == [expected, expected]
            assert [job.result(timeout=60) for job in single] == list(range(100, 100 + MEMBERS))
            queues = [program.app.queues.open(name) for name in ("default", "other")]
            until(lambda: all(len(queue) == 0 and queue.stats().in_flight == 0 for queue in queues))
        assert [len(program.app.queues.open(f"{name}-dead")) for name in ("default", "other")] == [0, 0]
        lines = notes.read_text().splitlines()
        assert {f"step {number}" for number in [*range(MEMBERS), *range(100, 100 + MEMBERS)]} <= set(lines)
        assert [lines.count("total a"), lines.count("total b")] == [1, 1], "the effect happened once"
        program.app.close()


def load_program(url: str, notes: Path) -> ModuleType:
    """The same app in this process."""
    sys.argv, kept = [str(PROGRAM), url, str(notes)], sys.argv
    try:
        spec = importlib.util.spec_from_file_location("killed_program", PROGRAM)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.argv = kept


PAUSED = """
import sys, time
from openq.worker import App, LeaseLost, Worker
app = App(url=sys.argv[1], lease=1, result_ttl=600)
@app.task
def job() -> str:
    print("started", flush=True)
    try:
        while True:
            time.sleep(0.001)
    except LeaseLost:
        print("reported", flush=True)
    return "first"
Worker(app).run()
"""


def test_a_worker_that_was_paused_learns_that_its_job_runs_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "paused.py"
    file.write_text(PAUSED)
    with OpenQServer() as server:
        app = App(url=server.url, lease=1, result_ttl=600)

        @app.task
        def job() -> str:
            return "second"

        sent = job.send()
        paused = subprocess.Popen([sys.executable, str(file), server.url], stdout=subprocess.PIPE)
        try:
            assert paused.stdout is not None
            assert paused.stdout.readline() == b"started\n"
            paused.send_signal(signal.SIGSTOP)
            with Worker(app):
                assert sent.result(timeout=60) == "second"
                until(lambda: sent.status() == "done")
            paused.send_signal(signal.SIGCONT)
            assert paused.stdout.readline() == b"reported\n"
            assert sent.result(timeout=60) == "second"
            assert len(app.queues.open("default")) == 0
        finally:
            paused.kill()
            paused.wait()
            assert paused.stdout is not None
            paused.stdout.close()
        app.close()
