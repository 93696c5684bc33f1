"""`app.testing()`: jobs on a clock that is moved by hand."""

from __future__ import annotations

import asyncio

import pytest

from openq.worker import App, Message, current_job


def test_a_month_of_retries_and_delays_takes_no_time() -> None:
    app = App()
    days: list[int] = []

    @app.task
    def daily(day: int) -> None:
        days.append(day)
        daily.send_with(delay=86400)(day + 1)

    with app.testing() as testing:
        daily.send(0)
        testing.advance(30 * 86400)
    assert days == list(range(31))


def test_eager_jobs_run_within_send() -> None:
    app = App(result_ttl=60)
    seen: list[str] = []

    @app.task(retries=1)
    def flaky() -> str:
        seen.append("flaky")
        if len(seen) == 1:
            raise ValueError("first")
        return "done"

    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    @app.task
    async def nested() -> None:
        seen.append("nested")
        await inner.asend()

    @app.task
    async def inner() -> None:
        await asyncio.sleep(0)
        seen.append("inner")

    with app.testing(eager=True):
        assert flaky.send().result(timeout=0.1) == "done"
        with pytest.raises(ValueError, match="no"):
            fail.send()
        nested.send()
    assert seen == ["flaky", "flaky", "nested", "inner"]


def test_what_ran_is_listed_and_the_target_is_back_afterwards() -> None:
    app = App()
    messages: list[str] = []

    @app.task
    def work(number: int) -> None:
        if number:
            raise ValueError("no")

    @app.consumer("orders")
    def take(message: Message) -> None:
        messages.append(message.body)

    work.send(0)
    with app.testing() as testing:
        work.send(1)
        app.queues.open("orders").publish("bolt")
        assert testing.run() == 2
        assert {(ran.task, ran.attempt, type(ran.error)) for ran in testing.ran} == {
            ("work", 1, ValueError),
            ("orders", 1, type(None)),
        }
    assert messages == ["bolt"]
    assert len(app.queues.open("default")) == 1, "the job of before is where it was"
    app.close()


def test_an_eager_job_that_fails_ends_though_schedules_are_due() -> None:
    app = App(retries=1)
    attempts: list[int] = []

    @app.every(30)
    def tick() -> None: ...

    @app.task
    def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no")

    with app.testing(eager=True), pytest.raises(ValueError, match="no"):
        fail.send()
    assert attempts == [1, 2]
