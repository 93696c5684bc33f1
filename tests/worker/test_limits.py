"""Time limits of functions and coroutines."""

from __future__ import annotations

import asyncio
import threading
import time

from openq.worker import ActiveJob, App, TimeLimitExceeded, Worker, current_job
from tests.waiting import until
from tests.worker.helpers import AT_ONCE, outcomes


def test_a_function_that_takes_too_long_gets_an_exception() -> None:
    app = App()
    caught: list[str] = []

    @app.task(timeout=0.05, retries=0)
    def slow() -> None:
        try:
            while True:
                time.sleep(0.001)
        except TimeLimitExceeded:
            caught.append("reported")
            raise

    @app.task
    def after() -> None:
        caught.append("after")

    slow.send()
    after.send()
    worker = Worker(app, threads=1)
    worker.start()
    dead = app.queues.open("default-dead")
    until(lambda: len(dead) == 1 and "after" in caught)
    worker.stop()

    letter = dead.peek()
    assert letter is not None
    assert letter.reason == "TimeLimitExceeded: longer than 0.05 s"
    assert sorted(caught) == ["after", "reported"], "the next job of the thread is not hit"
    app.close()


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    app = App()
    cancelled = threading.Event()

    @app.task(timeout=0.05, retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    slow.send()
    worker = Worker(app)
    worker.start()
    dead = app.queues.open("default-dead")
    until(lambda: len(dead) == 1)
    worker.stop()

    letter = dead.peek()
    assert cancelled.is_set()
    assert letter is not None
    assert letter.reason == "TimeLimitExceeded: longer than 0.05 s"
    app.close()


def test_the_time_limit_of_one_job_never_hits_another() -> None:
    """Many jobs end just at their limit, so exceptions come while they end."""
    app = App()
    strays: list[BaseException] = []

    @app.task(timeout=0.005, retries=0)
    def close() -> None:
        end = time.monotonic() + 0.005
        while time.monotonic() < end:
            pass

    @app.task
    def innocent() -> None:
        try:
            sum(range(2000))
        except BaseException as error:
            strays.append(error)
            raise

    for _ in range(60):
        close.send()
        innocent.send()
    worker = Worker(app, threads=2)
    worker.start()
    queue = app.queues.open("default")
    until(lambda: len(queue) == 0 and not queue.in_flight)
    assert worker.idle_threads == 2
    worker.stop()

    assert strays == []
    assert sum(outcomes(worker).values()) == 120
    app.close()


def test_the_hard_limit_is_left_to_the_service() -> None:
    app = App()
    release, reported = threading.Event(), threading.Event()
    jobs: list[ActiveJob] = []

    @app.task(hard_timeout=0.05)
    def stuck() -> None:
        jobs.append(current_job())
        release.wait(60)

    def on_hard_timeout(job: ActiveJob) -> None:
        jobs.append(job)
        reported.set()

    stuck.send()
    worker = Worker(app, on_hard_timeout=on_hard_timeout)
    worker.start()
    assert reported.wait(30)
    release.set()
    worker.stop()

    assert jobs[0] is jobs[1]
    app.close()


def test_a_retried_time_out_runs_again() -> None:
    app = App()
    attempts: list[int] = []

    @app.task(timeout=0.05, retries=1, backoff=AT_ONCE)
    def slow_at_first() -> None:
        attempts.append(current_job().attempt)
        while len(attempts) == 1:
            time.sleep(0.001)

    slow_at_first.send()
    worker = Worker(app)
    worker.start()
    until(lambda: outcomes(worker).get("done") == 1)
    worker.stop()

    assert attempts == [1, 2]
    app.close()
