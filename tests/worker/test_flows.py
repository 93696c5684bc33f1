"""Chains, groups and `once`, on every store."""

from __future__ import annotations

import threading
import time

import pytest

from openq.worker import App, JobFailed, JobWasCancelled, Retry, current_job, group, once
from tests.waiting import until
from tests.worker.helpers import MakeApp, RunWorker


def test_a_chain_passes_each_result_on(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()

    @app.task
    def number(text: str) -> int:
        return int(text)

    @app.task(queue="other")
    async def add(first: int, *, more: int) -> int:
        return first + more

    @app.task
    def show(value: int, unit: str) -> str:
        return f"{value} {unit}"

    run_worker(app)
    job = number.s("40").then(add, more=2).then(show, "km").send()

    assert job.result(timeout=30) == "42 km"


def test_a_group_has_one_result(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()

    @app.task
    def square(number: int) -> int:
        return number * number

    @app.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    run_worker(app)
    job = group([square.s(number) for number in range(20)]).send()
    assert job.result(timeout=60) == [number * number for number in range(20)]
    assert job.done() == 20

    total = group([square.s(number) for number in range(20)]).then(add_up).send()
    assert total.result(timeout=60) == sum(number * number for number in range(20))


def test_a_failure_ends_what_waits_for_it(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(retries=0)

    @app.task
    def fail(number: int) -> int:
        raise ValueError(f"no {number}")

    @app.task
    def double(number: int) -> int:
        return number * 2

    run_worker(app)
    with pytest.raises(JobFailed, match="ValueError: no 1"):
        fail.s(1).then(double).then(double).send().result(timeout=30)
    with pytest.raises(JobFailed, match="ValueError: no 2"):
        group([double.s(1), fail.s(2).then(double)]).send().result(timeout=30)

    @app.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(JobFailed, match="ValueError: no 3"):
        group([double.s(1), fail.s(3)]).then(add_up).then(double).send().result(timeout=30)


def test_a_chain_that_waits_is_cancelled_as_a_whole(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def double(number: int) -> int:
        return number * 2

    job = double.s(1).then(double).then(double).send()
    assert job.status() == "waiting"

    assert job.cancel()
    assert job.status() == "cancelled"
    with pytest.raises(JobWasCancelled):
        job.result(timeout=30)
    assert not job.cancel()


def test_a_chain_is_cancelled_in_the_step_that_runs(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    runs: list[str] = []

    @app.task
    def stay(number: int) -> int:
        runs.append("stay")
        while True:
            time.sleep(0.01)

    @app.task
    def after(number: int) -> int:
        runs.append("after")
        return number

    run_worker(app)
    job = stay.s(1).then(after).send()
    until(lambda: runs)

    assert job.status() == "waiting"
    assert job.cancel()
    with pytest.raises(JobWasCancelled):
        job.result(timeout=30)
    assert runs == ["stay"]


def test_a_group_that_waits_is_cancelled_as_a_whole(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def double(number: int) -> int:
        return number * 2

    @app.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    job = group([double.s(1), double.s(2).then(double)]).send()
    assert job.cancel() == 2
    with pytest.raises(JobWasCancelled):
        job.result(timeout=30)

    total = group([double.s(1), double.s(2)]).then(add_up).send()
    assert total.status() == "waiting"
    assert total.cancel()
    with pytest.raises(JobWasCancelled):
        total.result(timeout=30)


def test_the_results_of_members_are_kept_until_the_group_is_done(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(result_ttl=0.001)
    def double(number: int) -> int:
        return number * 2

    @app.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    with app.testing() as testing:
        job = group([double.s(1), double.s(2).then(double)]).then(add_up).send()
        testing.run()
        assert job.result(timeout=30) == 10


def test_a_member_that_runs_twice_counts_once() -> None:
    app = App()
    runs: list[int] = []

    @app.task
    def step(number: int) -> int:
        runs.append(number)
        return number

    @app.task
    def merge(numbers: list[int]) -> list[int]:
        runs.append(100)
        return numbers

    with app.testing() as testing:
        job = group([step.s(1), step.s(2)]).then(merge).send()
        queue = app.queues.open("default")
        # The worker of the first member dies just before its ack.
        ack, queue_acks = testing._execution._ack, 0

        def dying_ack(active: object) -> None:
            nonlocal queue_acks
            queue_acks += 1
            if queue_acks != 1:
                ack(active)  # type: ignore[arg-type]

        testing._execution._ack = dying_ack
        testing.run()
        testing.advance(60)
        assert job.result(timeout=1) == [1, 2]
        assert sorted(runs) == [1, 1, 2, 100]
        assert len(queue) == 0


def test_an_effect_happens_once(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    effects: list[int] = []
    ends: list[bool] = []

    @app.task
    def charge(order: int) -> None:
        with once(f"charge-{order}") as first:
            if first:
                effects.append(order)
        ends.append(first)

    run_worker(app)
    for _ in range(10):
        charge.send(4711)
    until(lambda: len(ends) == 10)
    assert effects == [4711]
    assert ends.count(True) == 1


def test_an_effect_that_failed_may_happen_again() -> None:
    app = App()
    app.queue("default")

    def fail() -> None:
        with once("key", app=app) as first:
            assert first
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with once("key", app=app) as first:
        assert first
    with once("key", app=app) as first:
        assert not first
    app.close()


def test_a_claim_of_a_dead_process_expires() -> None:
    app = App()
    seen: list[bool] = []

    @app.task(retries=3)
    def effect() -> None:
        with current_job().once("key", claim=60) as first:
            seen.append(first)

    with app.testing() as testing:
        app.store.bucket("openq.once").put("effect/key", b"claimed by the dead", 60)
        effect.send()
        claim = once("effect/key", wait=0, app=app)
        with pytest.raises(Retry):
            claim.__enter__()
        testing.clock.advance(61)
        testing.run()
        assert seen == [True]
        effect.send()
        testing.run()
        assert seen == [True, False]


def test_a_second_job_waits_for_the_first_in_the_block() -> None:
    app = App()
    app.queue("default")
    inside, go_on = threading.Event(), threading.Event()
    second: list[bool] = []

    def first_one() -> None:
        with once("key", app=app):
            inside.set()
            go_on.wait(60)

    def second_one() -> None:
        with once("key", app=app) as first:
            second.append(first)

    threads = [threading.Thread(target=first_one), threading.Thread(target=second_one)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert second == [False]
    app.close()
