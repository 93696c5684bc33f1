"""Failed jobs: retries, exceptions that end them, dead letters."""

from __future__ import annotations

import pytest

from openq import RetryPolicy
from openq.worker import App, InvalidTask, Retry, current_job
from openq.worker.retry import RetryRules
from tests.waiting import until
from tests.worker.helpers import AT_ONCE, MakeApp, RunWorker


def test_a_job_that_fails_runs_again_and_then_is_a_dead_letter(
    make_app: MakeApp, run_worker: RunWorker
) -> None:
    app = make_app()
    attempts: list[int] = []

    @app.task(queue="mail", retries=2, backoff=AT_ONCE)
    def fail(number: int) -> None:
        attempts.append(number)
        raise ValueError(f"no {number}")

    job = fail.send(7)
    run_worker(app)

    dead = app.queues.open("mail-dead")
    until(lambda: len(dead) == 1)
    letter = dead.peek()
    assert letter is not None
    assert attempts == [7, 7, 7]
    assert (letter.id, letter.message_type) == (job.id, "fail")
    assert letter.reason == "ValueError: no 7"
    assert "test_retries.py" in (letter.traceback or "")
    assert letter.deaths[0]["receive_count"] == 3
    assert job.status() == "failed"


def test_a_redriven_job_has_all_its_attempts_again() -> None:
    app = App()
    attempts: list[int] = []

    @app.task(retries=1)
    def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no")

    with app.testing() as testing:
        fail.send()
        testing.advance(3600)
        assert app.queues.open("default-dead").redrive() == 1
        testing.advance(3600)
    assert attempts == [1, 2, 1, 2]


def test_exceptions_decide_about_retries() -> None:
    rules = RetryRules(retries=5, retry_on=(OSError,), give_up_on=(FileNotFoundError,), backoff=AT_ONCE)

    assert rules.delay(OSError(), 1) is not None
    assert rules.delay(FileNotFoundError(), 1) is None
    assert rules.delay(ValueError(), 1) is None
    assert rules.delay(OSError(), 6) is None
    assert rules.delay(Retry(after=30), 1) == 30
    assert rules.delay(Retry(after=30), 6) is None


def test_the_back_off_grows_and_is_spread() -> None:
    rules = RetryRules(retries=20)

    delays = [rules.delay(ValueError(), attempt) or 0 for attempt in range(1, 20)]
    assert 0.8 <= delays[0] <= 1
    assert 3.2 <= delays[2] <= 4
    assert 720 <= delays[-1] <= 900
    assert len({rules.delay(ValueError(), 10) for _ in range(20)}) > 1


def test_a_handler_says_when_to_retry() -> None:
    app = App()
    seen: list[float] = []

    @app.task(retries=3)
    def poll() -> None:
        seen.append(testing.clock.now_ms() / 1000)
        if len(seen) < 3:
            raise Retry(after=30)

    with app.testing() as testing:
        poll.send()
        testing.advance(100)

    assert [round(second - seen[0]) for second in seen] == [0, 30, 60]


def test_a_message_that_kills_every_worker_ends_as_a_dead_letter() -> None:
    app = App()

    @app.task(retries=2)
    def crash() -> None: ...

    with app.testing() as testing:
        crash.send()
        queue = app.queues.open("default")
        receives = 0
        while (
            queue.receive(timeout=0, visibility_timeout=1) is not None
        ):  # a worker that dies settles nothing
            receives += 1
            testing.clock.advance(2)
        assert receives == queue.settings.max_receives
        assert receives > 3, "more than the attempts of the task"
        assert len(app.queues.open("default-dead")) == 1


def test_the_safety_net_is_never_lowered() -> None:
    app = App()

    @app.task(retries=1)
    def few() -> None: ...

    few.send()
    assert app.queues.open("default").settings.max_receives == 7

    @app.task(retries=20)
    def many() -> None: ...

    app.declare()
    assert app.queues.open("default").settings.max_receives == 26
    app.queues.declared["default"].attempts = 2
    app.declare()
    assert app.queues.open("default").settings.max_receives == 26
    app.close()


def test_jobs_and_dead_letters_do_not_expire_by_themselves() -> None:
    app = App()

    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    with app.testing() as testing:
        fail.send_with(delay=30 * 86400)()
        testing.advance(31 * 86400)
        testing.advance(31 * 86400)
        assert len(app.queues.open("default-dead")) == 1


def test_options_of_a_queue_and_its_dead_letter_queue_are_passed_on() -> None:
    app = App()
    app.queue("mail", dlq="graveyard", max_length=5, retention=60)

    @app.task(queue="mail")
    def send_mail() -> None: ...

    settings = app.queues.open("mail").settings
    assert (settings.dead_letter, settings.max_length, settings.retention_ms) == ("graveyard", 5, 60_000)
    app.close()


def test_wrong_options_are_refused() -> None:
    app = App()
    with pytest.raises(InvalidTask, match="retries"):
        app.task(retries=-1)(print)
    with pytest.raises(InvalidTask, match="timeout"):
        app.task(timeout=0)(print)
    with pytest.raises(InvalidTask, match="retry_on"):
        app.task(retry_on="x")(print)  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match="unknown option"):
        app.task(colour="red")(print)  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match="codec"):
        App(codec="pickle")


def test_policies_of_the_library_are_back_offs() -> None:
    rules = RetryRules(retries=9, backoff=RetryPolicy("fixed", base_ms=5_000))

    assert [rules.delay(ValueError(), attempt) for attempt in (1, 2, 3)] == [5.0, 5.0, 5.0]
