"""Jobs from `send` to the end of their handler, on every store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from openq.worker import InvalidArguments, InvalidTask, Worker
from tests.waiting import until
from tests.worker.helpers import MakeApp, RunWorker, outcomes


def test_a_sent_job_runs_and_is_acked(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    seen: list[tuple[str, str]] = []

    @app.task(queue="mail")
    def send_mail(to: str, *, subject: str) -> None:
        seen.append((to, subject))

    job = send_mail.send("a@example.org", subject="hi")
    run_worker(app)

    until(lambda: seen == [("a@example.org", "hi")])
    queue = app.queues.open("mail")
    until(lambda: queue.status(job.id) == "processed")
    assert len(queue) == 0


def test_many_jobs_run_once_each(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    seen: list[int] = []

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    for number in range(300):
        note.send(number)
    worker = run_worker(app)

    until(lambda: len(seen) >= 300)
    until(lambda: outcomes(worker) == {"done": 300})
    assert sorted(seen) == list(range(300))


def test_jobs_sent_together_run_once_each_and_are_known_in_their_order(
    make_app: MakeApp, run_worker: RunWorker
) -> None:
    app = make_app()

    @app.task(queue="squares", result_ttl=60)
    def square(number: int) -> int:
        return number * number

    @app.task(queue="doubles", codec="msgpack", result_ttl=60)
    def double(number: int) -> int:
        return 2 * number

    calls = [task.s(number) for number in range(50) for task in (square, double)]
    jobs = app.send_many(calls)
    run_worker(app)

    results = [job.result(timeout=60) for job in jobs]
    assert results == [value for number in range(50) for value in (number * number, 2 * number)]


def test_wrong_calls_are_refused_before_anything_is_sent(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidTask, match="a chain by itself"):
        app.send_many([double.s(1), double.s(1).then(double)])  # type: ignore[list-item]
    with pytest.raises(InvalidArguments):
        app.send_many([double.s(1), double.s("two")])  # type: ignore[arg-type]

    assert len(app.queues.open("default")) == 0


def test_a_stopping_worker_gives_back_what_it_did_not_finish(make_app: MakeApp) -> None:
    app = make_app()
    started, release = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        started.set()
        release.wait(60)

    for _ in range(3):
        wait.send()
    worker = Worker(app, threads=1)
    worker.start()
    assert started.wait(30)
    worker.stop(grace=0)
    release.set()

    queue = app.queues.open("default")
    messages = queue.receive_many(10, 30)
    while len(messages) < 3:
        messages += queue.receive_many(10, 30)
    assert [message.receive_count for message in messages] == [1, 1, 1], "given back uncounted"


def test_arguments_are_checked_when_a_job_is_sent(make_app: MakeApp) -> None:
    import pytest

    from openq.worker import InvalidArguments

    app = make_app()

    @app.task
    def add(first: int, second: int) -> int:
        return first + second

    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {}),
        ((1, 2, 3), {}),
        ((1, "two"), {}),
        ((1, 2), {"x": 3}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(InvalidArguments):
            add.send(*args, **kwargs)
    assert add(1, 2) == 3
