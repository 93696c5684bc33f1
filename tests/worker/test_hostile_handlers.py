"""Handlers whose results and exceptions break what shows or stores them: the job ends, the worker goes on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from openq.worker import App, Retry, Worker
from openq.worker.errors import WorkerStopped
from tests.waiting import until
from tests.worker.helpers import outcomes


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class BrokenModel:
    def model_dump(self, mode: str) -> Any:
        raise KeyError("field")


def _raise(error: BaseException) -> None:
    raise error


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


FAILURES: dict[str, Callable[[], object]] = {
    "no text": lambda: _raise(NoText()),
    "half a character": lambda: _raise(ValueError("\ud800")),
    "long text": lambda: _raise(ValueError("x" * 5_000_000)),
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "base": lambda: _raise(BaseException("base")),
    "retry at no time": lambda: _raise(Retry(float("nan"))),
    "retry never": lambda: _raise(Retry(1e300)),
    "retry soon": lambda: _raise(Retry("soon")),  # type: ignore[arg-type]
    "broken model": BrokenModel,
    "endless": _endless,
    "long number": lambda: 10**5000,
    "half a character as result": lambda: "\ud800",
    "large": lambda: "x" * 2_000_000,
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_job_is_dead_lettered_and_its_thread_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "openq.worker")  # half a character cannot be in a report of pytest
    app = App()

    @app.task(queue="jobs", retries=2, give_up_on=(BaseException,), result_ttl=60)
    def broken(which: str) -> Any:
        return FAILURES[which]()

    @app.task(queue="jobs", retries=0, result_ttl=60)
    def sound() -> int:
        return 1

    with Worker(app, threads=1) as worker:
        broken.send(name)
        assert sound.send().result(timeout=60) == 1
        until(lambda: outcomes(worker) == {"dead": 1, "done": 1}, "both jobs end")
        until(lambda: not len(worker.leases), "nothing is held")
    app.close()


def test_results_that_find_no_room_do_not_hold_up_acks() -> None:
    app = App()

    @app.task(queue="jobs", retries=0, result_ttl=60)
    def with_result() -> str:
        return "x" * 1000

    @app.task(queue="jobs", retries=0)
    def without_result() -> None: ...

    app.declare()
    app.queues.any().broker.kv._values.max_bytes = 100  # type: ignore[attr-defined]
    with Worker(app, threads=2) as worker:
        with_result.send()
        without_result.send()
        until(lambda: outcomes(worker) == {"done": 2}, "both jobs are acked")
    app.close()


def test_a_job_that_is_given_back_before_it_starts_does_not_run() -> None:
    """A thread has taken the job, and the worker stops before it runs it."""
    app = App()
    ran: list[int] = []

    @app.task(queue="jobs", retries=0)
    def job() -> None:
        ran.append(1)

    worker = Worker(app, threads=1)
    run = worker.execution.run

    def late(active: Any, slot: Any) -> None:
        active.is_lost, active.interrupt = True, WorkerStopped
        worker.give_back([active])
        run(active, slot)

    worker.execution.run = late  # type: ignore[assignment,method-assign]
    job.send()
    with worker:
        until(lambda: outcomes(worker).get("released", 0) >= 1, "the job is given back")
    assert ran == []
    app.close()
