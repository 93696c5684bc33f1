"""Raw consumers, unknown tasks and coroutines, on every store."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from openq import OpenQ
from openq.worker import App, InvalidTask, Message, Worker, unknown
from tests.waiting import until
from tests.worker.helpers import AT_ONCE, MakeApp, RunWorker, outcomes


def test_a_consumer_gets_whole_messages_and_acks_them(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    seen: list[tuple[object, object]] = []

    @app.consumer("orders")
    def take(message: Message) -> None:
        seen.append((message.body, message.attributes.get("tenant")))

    queue = app.queues.open("orders")
    queue.publish({"item": "bolt"}, attributes={"tenant": "x"})
    queue.publish("text")
    run_worker(app)

    until(lambda: len(seen) == 2)
    until(lambda: queue.stats().in_flight == 0)
    assert ({"item": "bolt"}, "x") in seen
    assert ("text", None) in seen
    assert len(queue) == 0


def test_a_consumer_takes_batches_in_a_coroutine(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    batches: list[list[int]] = []

    @app.consumer("orders", batch=10, concurrency=2)
    async def take(messages: list[Message]) -> None:
        await asyncio.sleep(0)
        batches.append([message.body for message in messages])

    queue = app.queues.open("orders")
    queue.publish_many(range(35))
    run_worker(app)

    until(lambda: sum(map(len, batches)) == 35)
    until(lambda: queue.stats().in_flight == 0)
    assert max(map(len, batches)) == 10
    assert sorted(number for batch in batches for number in batch) == list(range(35))


def test_a_message_that_the_handler_settled_is_left_alone(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    app.queue("orders", dlq="orders-dead")

    @app.consumer("orders", batch=10)
    async def take(messages: list[Message]) -> None:
        for message in messages:
            if message.body == "bad":
                message.reject("bad order")
            elif message.body == "good":
                message.ack()
        if any(message.body == "rest" and message.receive_count == 1 for message in messages):
            raise ValueError("the rest")

    queue = app.queues.open("orders")
    queue.publish_many(["good", "bad"])
    run_worker(app)
    dead = app.queues.open("orders-dead")
    until(lambda: len(dead) == 1)
    until(lambda: len(queue) == 0 and queue.stats().in_flight == 0)
    letter = dead.peek()
    assert letter is not None
    assert (letter.body, letter.reason) == ("bad", "bad order")


def test_a_batch_that_fails_is_returned_with_the_reason(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    counts: list[int] = []

    @app.consumer("orders", retry=AT_ONCE)
    def take(message: Message) -> None:
        counts.append(message.receive_count)
        if message.receive_count == 1:
            raise ValueError("first")

    queue = app.queues.open("orders")
    queue.publish("x")
    run_worker(app)
    until(lambda: counts == [1, 2])
    until(lambda: len(queue) == 0 and queue.stats().in_flight == 0)


def test_coroutines_run_at_the_same_time(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    inside = 0
    all_inside = threading.Event()

    @app.task
    async def together() -> None:
        nonlocal inside
        inside += 1
        if inside == 50:
            all_inside.set()
        await asyncio.to_thread(all_inside.wait, 60)

    for _ in range(20):
        together.send()
    inside = 30
    worker = run_worker(app, coroutines=20)
    until(lambda: outcomes(worker).get("done") == 20)


def test_a_queue_has_tasks_or_a_consumer() -> None:
    app = App()

    @app.consumer("orders")
    def take(message: Message) -> None: ...

    with pytest.raises(InvalidTask, match="consumer"):
        app.task(queue="orders")(print)
    with pytest.raises(InvalidTask, match="already"):
        app.consumer("orders")
    app.task(name="a")(print)
    with pytest.raises(InvalidTask, match="two tasks"):
        app.task(name="a")(print)
    with pytest.raises(InvalidTask, match="no task or consumer"):
        Worker(app, ["mail"])


def test_a_job_of_a_new_task_waits_for_a_worker_that_knows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling deploy: the old worker sees the job first."""
    monkeypatch.setattr(unknown, "HOLD_S", 0.0)
    anchor = OpenQ("anchor")
    old, new = App(broker=anchor.broker), App(broker=anchor.broker)

    @old.task
    def known() -> None: ...

    @new.task
    def brand_new() -> None:
        ran.set()

    ran = threading.Event()
    job = brand_new.send()
    with caplog.at_level(logging.ERROR, "openq.worker"):
        first = Worker(old)
        first.start()
        until(lambda: outcomes(first).get("released", 0) >= 2)
        second = Worker(new)
        second.start()
        assert ran.wait(60)
        until(lambda: job.status() == "done")
    first.stop()
    second.stop()
    assert len([line for line in caplog.messages if "unknown task 'brand_new'" in line]) == 1
    assert outcomes(second) == {"done": 1}


def test_a_job_that_stays_unknown_is_kept_as_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown, "HOLD_S", 0.0)
    monkeypatch.setattr(unknown, "GIVE_UP_S", 0.0)
    app = App()

    @app.task
    def known() -> None: ...

    app.declare()
    app.queues.open("default").publish('{"args": []}', message_type="other")
    worker = Worker(app)
    worker.start()
    dead = app.queues.open("default-dead")
    until(lambda: len(dead) == 1)
    worker.stop()
    letter = dead.peek()
    assert letter is not None
    assert letter.reason == "UnknownTask: unknown task 'other' in queue 'default'"
    app.close()
