"""Frameworks that bring their own way of using AMQP: Dramatiq (pika) and FastStream (aio-pika)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from tests.real_clients.celery_amqp import PROGRAMS, counts_of
from tests.real_clients.environments import python_with, run_program
from tests.serving import served_amqp
from tests.waiting import until


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
    return {**kept, "PYTHONPATH": str(PROGRAMS), **more}


def _python() -> Path:
    return python_with("frameworks", "dramatiq[rabbitmq]>=2", "faststream[rabbit]>=0.6")


def test_dramatiq_runs_delays_retries_and_gives_up_on_messages(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with served_amqp(tmp_path / "data") as (server, port):
        environment = _environment(
            DRAMATIQ_BROKER=f"amqp://guest:guest@127.0.0.1:{port}/%2F", DRAMATIQ_PLACE=str(tmp_path)
        )
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [_python(), "-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "2"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            run_program([_python(), PROGRAMS / "dramatiq_app.py"], environment)
            until(lambda: notes.exists() and len(notes.read_text().splitlines()) == 7)
            # What failed for the last time lies in a queue of its own, and nothing else is left anywhere.
            until(lambda: counts_of(server, "dramatiq-test.XQ") == (1, 0))
            until(lambda: counts_of(server, "dramatiq-test") == (0, 0))
            assert counts_of(server, "dramatiq-test.DQ") == (0, 0)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(30)

    assert Counter(notes.read_text().splitlines()) == Counter(
        ["hello ä", "hello b", "hello c", "on time", "failed", "failed", "failed"]
    )


def test_faststream_requests_forwards_routes_and_redelivers_rejected_messages(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "data") as (_, port):
        environment = _environment(FASTSTREAM_BROKER=f"amqp://guest:guest@127.0.0.1:{port}/")
        said = json.loads(run_program([_python(), PROGRAMS / "faststream_app.py"], environment))

    assert said == {"doubled": 42, "heard": "HELLO", "logged": ["a line", "info", "c-1"], "tries": 2}
