"""A message that fails does no harm to others, and says why it failed: in memory, on disk, behind a server.

`tests/redis/test_library_failures.py` plays the same on Redis.
"""

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import OpenQ as founding_module
from openq import Consumer, InvalidSetting, Message, OpenQ, aio
from openq.client.message import ReceivedMessage
from openq.local.broker import LocalBroker
from openq.model import MAX_TRACE_BYTES
from tests.client.helpers import ended, in_thread
from tests.client.thread_server import ThreadServer
from tests.waiting import until

Place = dict[str, Any]


@pytest.fixture(params=["memory", "journal", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param != "server":
        yield {"path": tmp_path / "data"} if request.param == "journal" else {}
        return
    server = ThreadServer(LocalBroker())
    try:
        yield {"url": server.url}
    finally:
        server.close()


def fail(message: ReceivedMessage) -> None:
    raise ValueError(f"cannot work on {message.body}")


def interrupt(message: ReceivedMessage) -> None:
    raise KeyboardInterrupt


# -- back-off -------------------------------------------------------------------------------------


def test_a_message_that_always_fails_does_not_block_the_others(place: Place) -> None:
    with OpenQ("jobs", **place) as queue:
        queue.publish_many(["bad", *[f"good {i}" for i in range(20)]])
        done: list[str] = []

        def handle(message: ReceivedMessage) -> None:
            if message.body == "bad":
                raise ValueError("never")
            done.append(message.body)

        consumer = Consumer(queue, handle)
        consumer.start()
        until(lambda: len(done) == 20, "everything behind it is handled")
        why = queue.why(queue.search("bad")[0].id)
        consumer.stop()

        assert ended(consumer)
        assert consumer.failed < 10
        assert why.code in ("retry", "in_flight", "ready")


def test_a_nack_waits_unless_it_says_otherwise(place: Place) -> None:
    with OpenQ("jobs", **place) as queue:
        queue.publish("x")
        for delay, state in ((None, "retry"), (0, "ready")):
            first = queue.receive(timeout=30)
            assert first is not None

            assert first.nack(delay) == "returned"

            assert queue.why(first.id).code == state


def test_interrupted_work_does_not_count_as_failed(place: Place) -> None:
    """Its message returns at once, and the delivery is not one of those that `max_receives` counts."""

    async def cut_off_tasks() -> None:
        began = asyncio.Event()

        async def handle(message: aio.Message) -> None:
            began.set()
            await asyncio.Event().wait()

        async def process() -> None:
            async with queue_of_tasks.processing(timeout=30) as message:
                assert message is not None
                await handle(message)

        async with aio.OpenQ("jobs", broker=queue.broker) as queue_of_tasks:
            for work in (process, aio.Consumer(queue_of_tasks, handle).run):
                task = asyncio.create_task(work())
                await asyncio.wait_for(began.wait(), 60)
                began.clear()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    with OpenQ("dead", **place) as dead, OpenQ("jobs", dlq=dead, max_receives=1) as queue:
        sent = queue.publish("x")
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt), queue.processing(timeout=30):
                raise KeyboardInterrupt
            assert queue.why(sent).code == "ready"
        asyncio.run(cut_off_tasks())
        with pytest.raises(KeyboardInterrupt):
            Consumer(queue, interrupt).run()  # in this thread, as a small program does it

        last = queue.receive(timeout=30)
        assert last is not None
        assert (last.receive_count, last.reason) == (1, None)
        counters = queue.stats().counters
        assert (counters["released"], counters["nacked"], counters["dead_lettered"]) == (5, 0, 0)


def test_an_interrupted_consumer_gives_its_whole_batch_back(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "openq")
    with OpenQ("jobs", **place) as queue:
        queue.publish_many(["x", "y", "z"])
        consumer = Consumer(queue, interrupt, batch=3, name="first")

        with pytest.raises(KeyboardInterrupt):
            consumer.run()

        assert [message.receive_count for message in queue.receive_many(3, timeout=30)] == [1, 1, 1]
    assert (
        "first of queue 'jobs' ended because it was interrupted (KeyboardInterrupt): 0 processed, 0 failed"
        in caplog.messages
    )


# -- handlers that exit ---------------------------------------------------------------------------


def exits(message: Message) -> None:
    """SystemExit, and what a handler gets to see whose own task was cancelled, are no `Exception`."""
    if message.body == "exit":
        sys.exit(3)
    if message.body == "cancel":
        raise asyncio.CancelledError


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_handler_that_exits_has_failed_for_its_message(
    place: Place, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenQ("jobs", retry={"kind": "fixed", "base": 600}, **place) as queue:
        sent = queue.publish_many(["exit", "cancel", "well"])

        if kind == "threads":
            consumer = Consumer(queue, exits)
            consumer.start()
            until(lambda: consumer.processed == 1, "the message behind them is handled")
            consumer.stop()
            assert ended(consumer)
            counts = consumer.processed, consumer.failed
        else:
            counts = asyncio.run(exit_in_tasks(queue))

        assert counts == (1, 2)
        assert [queue.why(each).code for each in sent[:2]] == ["retry", "retry"]
        assert queue.stats().counters["nacked"] == 2
        [first] = queue.search("exit")
        assert (first.reason, first.receive_count) == ("SystemExit: 3", 1)
    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.getMessage() for each in logged] == [
        f"message {each} of queue 'jobs', attempt 1 failed" for each in sent[:2]
    ]
    assert all(each.exc_info is not None and each.exc_info[2] is not None for each in logged)


async def exit_in_tasks(queue: OpenQ) -> tuple[int, int]:
    async def handle(message: aio.Message) -> None:
        exits(message)

    async with (
        asyncio.timeout(60),
        aio.OpenQ("jobs", broker=queue.broker) as other,
        aio.Consumer(other, handle) as consumer,
    ):
        while not consumer.processed:
            await asyncio.sleep(0.01)
    return consumer.processed, consumer.failed


def test_a_block_that_exits_gives_its_message_back_at_once_and_counts(place: Place) -> None:
    """A message for which the program exits must not come back for ever."""
    with OpenQ("dead", **place) as dead, OpenQ("jobs", dlq=dead, max_receives=2) as queue:
        queue.publish("exit")
        for _ in range(2):
            with pytest.raises(SystemExit), queue.processing(timeout=30):
                sys.exit(3)

        letter = dead.peek()
        assert letter is not None
        assert letter.reason == "SystemExit: 3"


# -- heartbeat ------------------------------------------------------------------------------------


def test_a_handler_slower_than_its_lease_finishes_once(place: Place) -> None:
    """Work that ends after its lease would have, wherever a message is worked on for a program."""
    seen: list[tuple[str, int]] = []
    together = threading.Barrier(4, timeout=60)

    def slow(message: ReceivedMessage) -> None:
        together.wait()  # each of the four has one
        seen.append((message.body, message.receive_count))
        first = message.deadline
        assert first is not None
        until(lambda: datetime.now(UTC) > first, "the first lease is over")

    def in_a_block() -> None:
        with queue.processing(timeout=30) as message:
            assert message is not None
            slow(message)

    def in_a_loop() -> None:
        for message in queue:
            slow(message)
            message.ack()
            break

    async def with_asyncio() -> None:
        async def handle(message: aio.Message) -> None:
            await asyncio.to_thread(slow, message)

        async with aio.OpenQ("jobs", **place) as other, aio.Consumer(other, handle) as consumer:
            while not consumer.processed:
                await asyncio.sleep(0.01)

    with OpenQ("jobs", visibility_timeout=3, **place) as queue:
        if not place:
            together = threading.Barrier(3, timeout=60)  # a queue in memory belongs to one object
        bodies = [f"job {i}" for i in range(together.parties)]
        queue.publish_many(bodies)
        consumer = Consumer(queue, slow)
        threads = [in_thread(in_a_block), in_thread(in_a_loop), consumer]
        if place:
            threads.append(in_thread(lambda: asyncio.run(with_asyncio())))
        consumer.start()
        until(lambda: consumer.processed == 1, "the consumer has done its part")
        consumer.stop()

        assert ended(*threads)
        assert sorted(seen) == [(body, 1) for body in bodies]
        assert queue.messages == []


def test_without_a_heartbeat_a_lease_ends_as_it_always_did(place: Place) -> None:
    with OpenQ("jobs", visibility_timeout=0.05, **place) as queue:
        queue.publish("x")
        with queue.processing(timeout=30, heartbeat=False) as message:
            assert message is not None
            again = queue.receive(timeout=30)
            assert again is not None
            assert (message.receive_count, again.receive_count) == (1, 2)
            again.ack()
            message.settled = True


# -- why it failed --------------------------------------------------------------------------------


def test_a_dead_letter_keeps_the_exception_and_its_traceback(place: Place) -> None:
    with OpenQ("dead", **place) as dead, OpenQ("jobs", dlq=dead, max_receives=1) as queue:
        sent = queue.publish("bolts")
        consumer = Consumer(queue, fail, idle_timeout=0.01)
        consumer.start()
        assert ended(consumer)

        letter = dead.peek()
        assert letter is not None
        assert (letter.id, letter.reason) == (sent, "ValueError: cannot work on bolts")
        assert letter.deaths[0]["reason"] == "ValueError: cannot work on bolts"
        trace = letter.traceback
        assert trace is not None
        assert trace.startswith("Traceback (most recent call last):")
        assert 'raise ValueError(f"cannot work on {message.body}")' in trace
        assert "consumer.py" not in trace
        step = [step for step in queue.timeline(sent) if step.what == "dead-lettered"][-1]
        assert (step.traceback, "\n" in step.detail) == (trace, False)
        assert dead.redrive() == 1
        returned = queue.receive(timeout=30)
        assert returned is not None
        assert returned.traceback == trace


def test_a_traceback_is_bounded_and_its_end_is_kept(place: Place) -> None:
    def deep(level: int) -> None:
        if not level:
            raise LookupError("at the bottom")
        (deep if level % 2 else also_deep)(level - 1)

    def also_deep(level: int) -> None:
        deep(level - 1)

    with OpenQ("jobs", **place) as queue:
        queue.publish("x")
        message = queue.receive(timeout=30)
        assert message is not None
        try:
            deep(99)
        except LookupError as error:
            message.nack(0, error)

        again = queue.receive(timeout=30)
        assert again is not None
        assert again.reason == "LookupError: at the bottom"
        assert again.traceback is not None
        assert len(again.traceback.encode()) <= MAX_TRACE_BYTES
        assert again.traceback.startswith("...\n  ")
        assert again.traceback.endswith("LookupError: at the bottom")


def test_a_long_text_of_an_exception_leaves_room_for_its_frames(place: Place) -> None:
    def parse() -> None:
        try:
            raise KeyError("x\n" * 50_000)
        except KeyError as error:
            error.add_note("line\n" * 50_000)
            raise ValueError("y" * 100_000) from error

    with OpenQ("jobs", **place) as queue:
        queue.publish("x")
        message = queue.receive(timeout=30)
        assert message is not None
        try:
            parse()
        except ValueError as error:
            message.nack(0, error)

        again = queue.receive(timeout=30)
        assert again is not None
        assert again.traceback is not None
        assert len(again.traceback.encode()) <= MAX_TRACE_BYTES
        assert again.traceback.startswith("Traceback (most recent call last):")
        assert again.traceback.count(", in parse") == 2
        assert "The above exception was the direct cause" in again.traceback
        assert again.traceback.endswith("y...")
        assert again.reason is not None
        assert again.reason.startswith("ValueError: " + "y" * 1000)


def test_why_says_how_often_a_message_failed(place: Place) -> None:
    with OpenQ("jobs", **place) as queue:
        sent = queue.publish("x")
        texts = []
        for _ in range(2):
            message = queue.receive(timeout=30)
            assert message is not None
            message.nack(600)
            texts.append(queue.why(sent).text)
            queue.reschedule(sent, delay=0)

        assert [text.partition(";")[0] for text in texts] == ["failed once", "failed 2 times"]


def test_a_reason_may_be_an_exception_that_was_never_raised(place: Place) -> None:
    with OpenQ("dead", **place) as dead, OpenQ("jobs", dlq=dead) as queue:
        queue.publish("x")
        message = queue.receive(timeout=30)
        assert message is not None
        with pytest.raises(InvalidSetting, match="text or an exception"):
            message.nack(reason=5)  # type: ignore[arg-type]

        assert message.reject(TimeoutError("after 3 s \ud800")) == "dead-lettered"

        letter = dead.peek()
        assert letter is not None
        assert (letter.reason, letter.traceback) == ("TimeoutError: after 3 s \\ud800", None)


def test_a_backup_keeps_tracebacks(place: Place, tmp_path: Path) -> None:
    with OpenQ("jobs", retry="none", **place) as queue:
        queue.publish("x")
        with pytest.raises(ZeroDivisionError), queue.processing(timeout=30):
            1 / 0  # noqa: B018
        before = queue.peek()
        assert before is not None
        queue.save(tmp_path / "jobs.json")
        queue.purge()
        assert queue.load(tmp_path / "jobs.json") == 1
        after = queue.peek()
        assert after is not None

        assert before.traceback is not None
        assert (after.reason, after.traceback) == (before.reason, before.traceback)


def test_tracebacks_are_in_the_journal(tmp_path: Path) -> None:
    trace = None
    for turn in range(3):
        with OpenQ("jobs", path=tmp_path, retry="none") as queue:
            if turn == 0:
                queue.publish("x")
                with pytest.raises(ZeroDivisionError), queue.processing(timeout=30):
                    1 / 0  # noqa: B018
            message = queue.peek()
            assert message is not None
            assert message.traceback is not None
            assert trace in (None, message.traceback)
            trace = message.traceback


# -- what is logged -------------------------------------------------------------------------------


def test_a_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with OpenQ("jobs") as queue:
        sent = queue.publish("bolts")
        consumer = Consumer(queue, fail, idle_timeout=0)
        consumer.start()
        assert ended(consumer)

    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == f"message {sent} of queue 'jobs', attempt 1 failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_the_end_of_a_consumer_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openq")
    with OpenQ("jobs") as queue:
        queue.publish("bolts")
        idle = Consumer(queue, lambda _: None, idle_timeout=1, name="first")
        idle.start()
        assert ended(idle)
        stopped = Consumer(queue, name="second")
        stopped.start()
        stopped.stop()
        assert ended(stopped)
        closed = Consumer(queue, name="third")
        closed.start()
    assert ended(closed)

    reported = [each.getMessage() for each in caplog.records if "ended because" in each.getMessage()]
    assert reported == [
        "first of queue 'jobs' ended because no message came for 1 s (idle_timeout): 1 processed, 0 failed",
        "second of queue 'jobs' ended because it was stopped: 0 processed, 0 failed",
        "third of queue 'jobs' ended because the queue was closed: 0 processed, 0 failed",
    ]


def test_an_opening_that_changed_a_queue_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with OpenQ("jobs", retention=3600, **place) as queue:
        caplog.set_level(logging.INFO, "openq")
        beside = {"broker": queue.broker}
        for options in ({}, {"retention": 3600}, {"retention": 60, "retry": "none"}, {"retention": None}):
            OpenQ("jobs", **beside, **options).close()  # type: ignore[arg-type]

        assert queue.broker.settings("jobs").visibility_ms == 30_000
    reported = [each.getMessage() for each in caplog.records if "opening queue" in each.getMessage()]
    assert [text.partition(", retry from")[0] for text in reported] == [
        "opening queue 'jobs' changed its settings: retention from 3600 s to 60 s",
        "opening queue 'jobs' changed its settings: retention from 60 s to None",
    ]


def test_consumers_run_until_they_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(message: aio.Message) -> None: ...

    with OpenQ("jobs") as queue:
        assert Consumer(queue).idle_timeout is None
        assert founding_module.Consumer(queue).idle_timeout == 10.0
        assert founding_module.Consumer(queue, idle_timeout=3).idle_timeout == 3
        assert aio.Consumer(aio.OpenQ("jobs"), handle).idle_timeout is None
        monkeypatch.setenv("OPENQ_IDLE_TIMEOUT", "7")
        assert Consumer(queue).idle_timeout == 7
        assert founding_module.Consumer(queue).idle_timeout == 7
        assert aio.Consumer(aio.OpenQ("jobs"), handle).idle_timeout == 7
        monkeypatch.setenv("OPENQ_IDLE_TIMEOUT", "-1")
        with pytest.raises(InvalidSetting, match=r"OPENQ_IDLE_TIMEOUT must be None or .* 0 or more, not -1"):
            Consumer(queue)
        with pytest.raises(InvalidSetting, match=r"idle_timeout must be None or .* 0 or more, not -1"):
            aio.Consumer(aio.OpenQ("jobs"), handle, idle_timeout=-1)
    for each in (Consumer, aio.Consumer, founding_module.Consumer):
        assert "idle_timeout: 'float | None' = <OPENQ_IDLE_TIMEOUT>" in str(inspect.signature(each))
