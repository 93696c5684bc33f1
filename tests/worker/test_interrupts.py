"""Exceptions from outside that reach a handler while it uses the broker of this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openq import Queue
from openq.worker import App, Worker
from tests.isolation import with_tests
from tests.waiting import until
from tests.worker.helpers import outcomes

JOBS = 30


@pytest.mark.parametrize("store", ["memory", "path"])
def test_time_limits_of_handlers_within_the_broker_leave_it_sound(store: str, tmp_path: Path) -> None:
    target: dict[str, Any] = {} if store == "memory" else {"path": tmp_path / "data"}
    app = App(**target)
    with Queue("other", **target) as other:

        @app.task(queue="jobs", retries=0, timeout=0.003)
        def busy() -> None:
            while True:
                other.publish_many([b"x"] * 100)
                other.ack_many(other.receive_many(50, 0))

        for _ in range(JOBS):
            busy.send()
        with Worker(app, threads=1) as worker:
            until(lambda: outcomes(worker).get("dead", 0) == JOBS, "all jobs exceed their time")
        stats = other.stats()
        held = stats.ready + stats.in_flight
        assert stats.counters["published"] - stats.counters["acked"] == held
        received = 0
        while messages := other.receive_many(1000, 0):
            other.ack_many(messages)
            received += len(messages)
        assert received == stats.ready
    app.close()


class _Noisy:
    """Its destructor is where Python ignores exceptions."""

    def __del__(self) -> None:
        for _ in range(200):
            pass


def test_a_time_limit_that_python_ignores_in_a_destructor_is_raised_again() -> None:
    app = App()

    @app.task(queue="jobs", retries=0, timeout=0.01)
    def busy() -> None:
        while True:
            _Noisy()

    for _ in range(20):
        busy.send()
    with Worker(app, threads=1) as worker:
        until(lambda: outcomes(worker).get("dead", 0) == 20, "all jobs exceed their time")
    app.close()


TRACED_AFTER_A_TIME_LIMIT = """
import sys, time
from openq.worker import App, Worker
from tests.waiting import until
from tests.worker.helpers import outcomes

app = App()

@app.task(queue="jobs", retries=0, timeout=0.01)
def endless():
    while True:
        time.sleep(0.001)

endless.send()
with Worker(app, threads=1) as worker:
    until(lambda: outcomes(worker).get("dead", 0) == 1)

def traced():
    return "traced"

sys.settrace(lambda *event: None)
print(traced())
"""


def test_a_debugger_works_after_a_time_limit() -> None:
    """In a process of its own: if it does not, Python 3.11 loops for ever and hears no signal."""
    command = [sys.executable, "-c", TRACED_AFTER_A_TIME_LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=with_tests())

    assert done.stdout == "traced\n", done.stderr
