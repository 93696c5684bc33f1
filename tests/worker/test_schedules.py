"""Cron and intervals."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from openq.worker import App, InvalidTask, current_job
from tests.waiting import until
from tests.worker.helpers import MakeApp, RunWorker


def test_a_month_of_cron_runs_at_its_times() -> None:
    app = App()
    times: list[datetime] = []

    @app.cron("0 7 * * *", timezone="Europe/Berlin")
    def report() -> None:
        times.append(datetime.fromtimestamp(testing.clock.now_ms() / 1000, UTC))

    with app.testing() as testing:
        testing.advance(30 * 86400)

    assert len(times) == 30
    assert {time.hour for time in times} <= {5, 6}


def test_an_interval_runs_its_task_with_the_options_of_the_task() -> None:
    app = App()
    runs: list[int] = []

    @app.every(60, name="tick")
    @app.task(queue="ticks", retries=0)
    def poll() -> None:
        runs.append(current_job().attempt)

    with app.testing() as testing:
        testing.advance(600)
        assert [each.name for each in app.queues.open("ticks").schedules.list()] == ["tick"]
    assert len(runs) == 10


def test_workers_declare_the_schedules_of_their_app(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    ran: list[str] = []

    @app.every(1)
    async def poll() -> None:
        ran.append(current_job().id)

    run_worker(app)
    run_worker(app)
    until(lambda: len(ran) >= 2)
    assert len(set(ran)) == len(ran)


def test_a_schedule_needs_a_task_without_arguments() -> None:
    app = App()
    with pytest.raises(InvalidTask, match="without arguments"):

        @app.every(5)
        def needs(what: str) -> None: ...

    @app.every(5)
    def fine(what: str = "x") -> None: ...

    with pytest.raises(InvalidTask, match="two schedules"):
        app.every(6)(fine)
