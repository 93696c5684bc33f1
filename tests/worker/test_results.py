"""Results, progress, status and cancelling, on every store."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from openq.worker import (
    App,
    JobCancelled,
    JobFailed,
    JobWasCancelled,
    LeaseLost,
    ResultNotKept,
    ResultTimeout,
    Worker,
    current_job,
)
from tests.waiting import until
from tests.worker.helpers import AT_ONCE, MakeApp, RunWorker, outcomes


def test_a_result_has_the_type_of_the_annotation(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(result_ttl=60)

    @app.task
    def price(amount: Decimal, when: datetime) -> tuple[Decimal, datetime]:
        return amount * 2, when

    run_worker(app)
    when = datetime(2026, 1, 2, tzinfo=UTC)
    job = price.send(Decimal("1.50"), when)

    assert job.result(timeout=30) == (Decimal("3.00"), when)
    assert app.job(job.id, price).result(timeout=30) == (Decimal("3.00"), when)
    assert job.status() == "done"


def test_a_coroutine_waits_for_a_result(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(result_ttl=60)

    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def main() -> int:
        job = await double.asend(21)
        return await job.aresult(timeout=30)

    run_worker(app)
    assert asyncio.run(main()) == 42


def test_a_failed_job_raises_its_reason(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(result_ttl=60)

    @app.task(retries=1, backoff=AT_ONCE)
    def fail() -> None:
        raise ValueError("no")

    run_worker(app)
    job = fail.send()
    with pytest.raises(JobFailed, match="ValueError: no"):
        job.result(timeout=30)
    until(lambda: job.status() == "failed")


@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_the_last_progress_stays_after_the_end(
    make_app: MakeApp, run_worker: RunWorker, is_coroutine: bool, pages: int
) -> None:
    app = make_app(result_ttl=60)

    def report() -> None:
        for page in range(1, pages + 1):
            current_job().progress(page / 10, f"page {page}")

    async def report_in_coroutine() -> None:
        report()

    task = app.task(report_in_coroutine if is_coroutine else report)
    run_worker(app)
    job = task.send()
    job.result(timeout=30)

    last = job.progress()
    assert last is not None
    assert (last.fraction, last.text) == (pages / 10, f"page {pages}")


def test_a_report_that_came_too_soon_is_seen_while_the_job_runs(
    make_app: MakeApp, run_worker: RunWorker
) -> None:
    app = make_app()
    seen = threading.Event()

    @app.task
    def stay() -> None:
        current_job().progress(0.1)
        current_job().progress(0.2)
        seen.wait(60)

    run_worker(app)
    job = stay.send()
    until(lambda: (report := job.progress()) is not None and report.fraction == 0.2)
    seen.set()


def test_progress_is_seen_while_the_job_runs(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    release = threading.Event()

    @app.task
    def long() -> None:
        current_job().progress(0.4, "page 12")
        release.wait(60)

    run_worker(app)
    job = long.send()
    until(lambda: job.progress() is not None)
    report = job.progress()
    assert report is not None
    assert (report.fraction, report.text) == (0.4, "page 12")
    assert job.status() == "running"
    release.set()
    until(lambda: job.status() == "done")


def test_a_waiting_job_is_cancelled_at_once(make_app: MakeApp) -> None:
    app = make_app(result_ttl=60)

    @app.task
    def later() -> None: ...

    job = later.send_with(delay=3600)()
    assert job.status() == "waiting"
    assert job.cancel()
    assert job.status() == "cancelled"
    assert len(app.queues.open("default")) == 0
    with pytest.raises(JobWasCancelled):
        job.result(timeout=30)
    assert not job.cancel()


def test_a_running_job_is_cancelled(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(result_ttl=60)
    seen: list[str] = []

    @app.task
    def spin() -> None:
        seen.append("started")
        try:
            while True:
                time.sleep(0.001)
        except JobCancelled:
            seen.append("reported")
            raise

    @app.task(queue="other")
    async def sleep() -> None:
        seen.append("started")
        await asyncio.sleep(3600)

    worker = run_worker(app)
    jobs = [spin.send(), sleep.send()]
    until(lambda: len(seen) == 2)
    assert [job.cancel() for job in jobs] == [True, True]
    for job in jobs:
        with pytest.raises(JobWasCancelled):
            job.result(timeout=30)
    until(lambda: outcomes(worker) == {"cancelled": 2})
    assert seen == ["started", "started", "reported"]
    assert [job.status() for job in jobs] == ["cancelled", "cancelled"]


def test_results_are_kept_only_where_they_are_wanted() -> None:
    app = App()

    @app.task
    def forgotten() -> int:
        return 1

    @app.task(result_ttl=10)
    def kept() -> int:
        return 2

    with app.testing() as testing:
        nothing, something = forgotten.send(), kept.send()
        testing.run()
        with pytest.raises(ResultNotKept):
            nothing.result(timeout=0)
        assert something.result(timeout=0.1) == 2
        testing.advance(11)
        with pytest.raises(ResultNotKept, match="expired"):
            something.result(timeout=0.1)
        with pytest.raises(ResultTimeout):
            kept.send().result(timeout=0.01)


def test_a_result_that_cannot_be_kept_is_a_dead_letter() -> None:
    app = App(result_ttl=10)

    @app.task(retries=5)
    def odd() -> object:
        return object()

    @app.task(retries=5)
    def huge() -> str:
        return "x" * (2 << 20)

    with app.testing() as testing:
        odd.send()
        huge.send()
        assert testing.run() == 2, "no second attempt: it would fail too"
        reasons = [message.reason or "" for message in app.queues.open("default-dead").peek_many()]
    assert "cannot be encoded" in reasons[0]
    assert "at most 1048576 are kept" in reasons[1]


def test_a_job_whose_lease_was_lost_stores_nothing(make_app: MakeApp) -> None:
    """The message is taken away while the handler runs, as after a pause of the process."""
    app = make_app(result_ttl=60, lease=1)
    seen: list[str] = []

    @app.task
    def slow() -> str:
        seen.append("started")
        try:
            while True:
                time.sleep(0.001)
        except LeaseLost:
            seen.append("reported")
        return "late"

    job = slow.send()
    worker = Worker(app)
    worker.start()
    until(lambda: seen == ["started"])
    app.queues.open("default").purge()
    until(lambda: outcomes(worker) == {"lost": 1})
    worker.stop()
    assert seen == ["started", "reported"]
    assert app.store.outcome(job.id) is None
