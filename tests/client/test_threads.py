"""Many threads at once: nothing lost, nothing doubled, nobody forgotten."""

import os
import signal
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from openq import Closed, Consumer, Message, OpenQ, Producer, VirtualClock
from tests.client.concurrency import check_each_is_done_once, received_while_closing
from tests.client.helpers import Make, ended, in_process, in_thread, take, until_waiting
from tests.client.limits_watch import LIMITS, check_limits_hold
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"


@pytest.mark.parametrize("durable", [False, True])
def test_every_message_of_many_producers_reaches_one_of_many_consumers_once(
    durable: bool, tmp_path: Path
) -> None:
    each = 100 if durable else 1000
    with OpenQ("jobs", path=tmp_path if durable else None) as queue:
        check_each_is_done_once(queue, each)


@pytest.mark.parametrize("durable", [False, True])
def test_no_limit_is_exceeded_by_many_consumers(durable: bool, tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path if durable else None, **LIMITS) as queue:
        check_limits_hold([queue], 25 if durable else 200)


def test_the_order_of_each_producer_holds_for_a_single_consumer() -> None:
    with OpenQ("jobs") as queue:
        producers = [Producer(queue, source=[(p, i) for i in range(500)]) for p in range(4)]
        for producer in producers:
            producer.start()
        got: list[Any] = []
        consumer = Consumer(queue, lambda message: got.append(message.body), idle_timeout=None)
        consumer.start()

        assert ended(*producers)
        until(lambda: len(got) >= 2000, "all are received")
        consumer.stop()
        assert ended(consumer)
        for p in range(4):
            assert [i for q, i in got if q == p] == list(range(500))


def test_threads_that_fail_half_the_time_finish_everything_in_the_end() -> None:
    with OpenQ("dead") as dlq, OpenQ("jobs", dlq=dlq, max_receives=20, retry="none") as queue:
        queue.publish_many(list(range(400)))
        turn = count()
        finished: Counter[int] = Counter()
        lock = threading.Lock()

        def handle(message: Message) -> None:
            with lock:
                if next(turn) % 2:
                    raise RuntimeError("this time not")
                finished[message.body] += 1

        consumers = [Consumer(queue, handle, idle_timeout=0.5) for _ in range(4)]
        for consumer in consumers:
            consumer.start()

        assert ended(*consumers)
        accounted = set(finished) | {message.body for message in dlq.queue}
        assert accounted == set(range(400))
        assert max(finished.values()) == 1


def test_a_receive_that_runs_out_of_time_never_swallows_a_message() -> None:
    """Timeouts and publishes race on purpose: each message goes to a waiter or stays."""
    with OpenQ("jobs") as queue:
        total = 300
        got: list[str] = []
        stop = threading.Event()

        def receive_briefly() -> None:
            while not stop.is_set():
                message = queue.receive(timeout=0.0005)
                if message is not None:
                    got.append(message.body)
                    message.ack()

        threads = [in_thread(receive_briefly) for _ in range(4)]
        for i in range(total):
            queue.publish(f"m{i}")
        until(lambda: len(got) == total, "all received")
        stop.set()

        assert ended(*threads)
        assert sorted(got) == sorted(f"m{i}" for i in range(total))


def test_each_waiter_gets_a_delivery_of_its_own(make: Make) -> None:
    queue = make()
    got: list[Any] = []
    threads = [in_thread(lambda: got.append(queue.receive(timeout=60))) for _ in range(20)]
    until_waiting(queue, 20)
    for i in range(20):
        queue.publish(f"m{i}")

    assert ended(*threads)
    assert len({message.receipt_id for message in got}) == 20


def test_a_waiter_for_a_type_is_skipped_by_other_types(make: Make) -> None:
    queue = make()
    got: dict[str, Any] = {}
    choosy = in_thread(lambda: got.update(choosy=queue.receive(timeout=60, types=["bill"])))
    until_waiting(queue, 1)
    other = in_thread(lambda: got.update(other=queue.receive(timeout=60)))
    until_waiting(queue, 2)

    queue.publish("a letter", message_type="mail")
    assert ended(other)
    queue.publish("a bill", message_type="bill")

    assert ended(choosy)
    assert (got["other"].body, got["choosy"].body) == ("a letter", "a bill")


def test_an_interrupted_receive_leaves_the_line(make: Make) -> None:
    queue = make()

    def interrupt() -> None:
        until_waiting(queue, 1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.receive(timeout=60)

    assert ended(interrupting)
    until_waiting(queue, 0)  # a server notices that we hung up, a moment later
    queue.publish("not lost")
    assert take(queue).receive_count == 1


def test_closing_ends_every_wait(make: Make) -> None:
    queue = make()
    consumer = Consumer(queue, idle_timeout=None)
    consumer.start()
    until_waiting(queue, 1)
    broker = queue.broker

    queue.close()
    broker.close()

    assert ended(consumer)
    with pytest.raises(Closed):
        queue.receive(timeout=0)


@pytest.mark.parametrize("verb", ["receive", "get"])
def test_closing_one_queue_object_ends_its_own_waits_and_no_others(tmp_path: Path, verb: str) -> None:
    mine, other = OpenQ("jobs", path=tmp_path), OpenQ("jobs", path=tmp_path)
    results: list[object] = []

    def wait() -> None:
        try:
            results.append(mine.receive(timeout=None) if verb == "receive" else mine.get())
        except Empty:
            results.append(None)

    waiting = in_thread(wait)
    until_waiting(other, 1)
    staying = in_thread(lambda: results.append(other.receive(timeout=None)))
    until_waiting(other, 2)

    mine.close()

    assert ended(waiting)
    assert results == [None]
    until_waiting(other, 1)
    other.publish("for the one who stayed")
    assert ended(staying)
    assert len(other.in_flight) == 1
    other.close()


@in_process
def test_messages_served_while_the_queue_closes_are_released_uncounted(make: Make) -> None:
    queue = make()
    other = OpenQ("jobs", broker=queue.broker)
    wait = queue.core.new_wait(1)
    queue.core.waits.add(wait)
    assert queue.broker.add_waiter(queue.name, wait._waiter) is None
    other.publish("x")  # served, and its thread has not woken up yet
    assert len(other.in_flight) == 1
    keep_alive = queue.core.handle.join()

    queue.close()

    assert queue.core.waits.finish(wait) == []
    assert take(other).receive_count == 1
    other.close()
    keep_alive.leave()


@in_process
def test_closing_during_a_publish_leaves_no_lease_behind(make: Make) -> None:
    other = make()
    for _ in range(100):
        mine = OpenQ("jobs", broker=other.broker)
        got = received_while_closing(mine, other)

        leased = other.stats().in_flight
        assert leased == got
        assert other.stats().ready + leased == 1
        other.purge()


def test_messages_that_reach_a_closed_queue_are_released(make: Make) -> None:
    queue = make()
    other = OpenQ("jobs", broker=queue.broker)
    keep_alive = queue.core.handle.join()
    other.publish("x")
    deliveries = queue.core.new_wait(1).wait(0)

    queue.close()

    with pytest.raises(Closed):
        queue.core.load(deliveries)
    assert take(other).receive_count == 1
    other.close()
    keep_alive.leave()


def outlive_the_lease(message: Message, clock: VirtualClock) -> None:
    """Time passes only as far as the heartbeat has extended the lease: a busy machine loses none."""
    for _ in range(5):
        before = message.deadline
        assert before is not None
        clock.advance(0.05)
        until(lambda before=before: (message.deadline or before) > before, "the lease is extended")  # type: ignore[misc]


def test_a_heartbeat_keeps_the_lease_of_slow_work(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", visibility_timeout=0.2)
    queue.publish("slow")

    with queue.processing(heartbeat=True) as message:
        assert message is not None
        outlive_the_lease(message, clock)
        assert queue.receive(timeout=0) is None

    assert queue.messages == []


def test_a_consumer_with_a_heartbeat_outlives_its_visibility_timeout(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", visibility_timeout=0.2)
    queue.publish("slow")
    deliveries: list[int] = []

    def handle(message: Message) -> None:
        outlive_the_lease(message, clock)
        deliveries.append(message.receive_count)

    consumer = Consumer(queue, handle, idle_timeout=0.01, heartbeat=True)
    consumer.start()

    assert ended(consumer)
    assert (deliveries, queue.messages) == ([1], [])


def test_a_heartbeat_stops_with_its_message(clock: VirtualClock) -> None:
    with OpenQ("jobs", visibility_timeout=0.03, retry="none") as queue:
        queue.publish("x")
        with pytest.raises(RuntimeError), queue.processing(heartbeat=True, timeout=0):
            raise RuntimeError("gone")
        first = take(queue)

        message = queue.receive(timeout=60)

        assert message is not None
        assert message.receive_count == first.receive_count + 1


def test_a_target_may_be_opened_and_closed_by_many_threads_at_once(tmp_path: Path) -> None:
    def open_publish_close() -> None:
        for _ in range(5):
            with OpenQ("jobs", path=tmp_path) as queue:
                queue.publish("x")

    threads = [in_thread(open_publish_close) for _ in range(4)]

    assert ended(*threads)
    with OpenQ("jobs", path=tmp_path) as queue:
        assert len(queue) == 20


def test_join_waits_for_acks_of_other_queue_objects(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "b"])
    messages = queue.receive_many(2, timeout=0)
    joining = in_thread(queue.join)

    for message in messages:
        message.ack()

    assert ended(joining)


def test_any_thread_may_say_that_a_task_is_done() -> None:
    with OpenQ("jobs") as queue:
        queue.put("x")
        getting = in_thread(queue.get)
        assert ended(getting)

        queue.task_done()

        queue.join()
