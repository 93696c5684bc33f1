"""Queues behind a server whose connection breaks, and servers that restart."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openq
from openq import (
    Consumer,
    Message,
    MessageNotFoundError,
    OpenQ,
    QueueNotFound,
    Uncertain,
    Unreachable,
)
from openq.local.broker import LocalBroker
from tests.client.helpers import bodies, ended, in_thread, take, until_waiting
from tests.client.lossy_proxy import LossyProxy
from tests.client.thread_server import ThreadServer
from tests.serving import free_port, served, start
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(LocalBroker()) as running:
        yield running


# -- responses get lost -----------------------------------------------------------------------------


@pytest.fixture
def cut(server: ThreadServer) -> Iterator[LossyProxy]:
    with LossyProxy(server.url) as documents:
        yield documents


def test_a_publish_whose_answer_is_lost_is_not_sent_twice(cut: LossyProxy, server: ThreadServer) -> None:
    with OpenQ("jobs", url=cut.url) as queue:
        cut.lose = 1
        with pytest.raises(Uncertain, match="it is not known whether it was published"):
            queue.publish("x")

        assert bodies(queue) == ["x"]


@pytest.mark.parametrize("option", ["dedup_id", "id"])
def test_a_publish_that_cannot_double_is_sent_until_it_is_answered(cut: LossyProxy, option: str) -> None:
    with OpenQ("jobs", url=cut.url) as queue:
        cut.lose = 3
        message_id = queue.publish("x", **{option: "my-own"})
        cut.lose = 1
        many = queue.publish_many([{"body": i, option: f"{i}"} for i in range(3)])

        assert [message.id for message in queue.queue] == [message_id, *many]


def test_settling_is_repeated_until_it_is_answered(cut: LossyProxy) -> None:
    with OpenQ("dead", url=cut.url) as dead, OpenQ("jobs", dlq=dead) as queue:
        queue.publish_many(["acked", "acked too", "returned", "rejected"])
        first, second, third, fourth = queue.receive_many(4, timeout=0)
        for settle, outcome in (
            (first.ack, None),
            (lambda: queue.ack_many([second]), None),
            (lambda: third.nack(0), "returned"),
            (fourth.reject, "dead-lettered"),
        ):
            cut.lose = 1
            assert settle() == outcome

        assert (bodies(queue), bodies(dead)) == (["returned"], ["rejected"])
        with pytest.raises(MessageNotFoundError):
            queue.ack(first)


def test_a_receive_whose_answer_is_lost_costs_a_lease_and_no_message(
    cut: LossyProxy, server: ThreadServer
) -> None:
    with OpenQ("jobs", 0.2, url=cut.url) as queue:
        queue.publish("x")
        cut.lose = 1

        message = queue.receive(timeout=30)

        assert message is not None
        assert (message.body, message.receive_count) == ("x", 2)


def test_calls_that_are_not_idempotent_are_not_retried(cut: LossyProxy) -> None:
    with OpenQ("jobs", url=cut.url) as queue:
        queue.publish("x")
        cut.requests.clear()
        for verb in (queue.purge, queue.redrive, lambda: queue.replay_from(0)):
            cut.lose = 1
            with pytest.raises(Uncertain):
                verb()

        assert len(cut.requests) == 3


def test_reads_are_retried(cut: LossyProxy) -> None:
    with OpenQ("jobs", url=cut.url) as queue:
        queue.publish("x")
        cut.lose = 2

        assert queue.stats().ready == 1


# -- servers come and go --------------------------------------------------------------------------


def test_a_server_that_stays_unreachable_raises_in_the_end(tmp_path: Path) -> None:
    server = start(tmp_path / "data").wait()
    with OpenQ("jobs", url=server.url, reconnect=0.2) as queue:
        server.kill()

        for verb in (queue.stats, lambda: queue.publish("x"), lambda: queue.receive(timeout=0)):
            with pytest.raises(Unreachable, match="openq serve"):
                verb()


def test_everything_goes_on_when_the_server_was_killed_in_the_middle(tmp_path: Path) -> None:
    """Publishers with dedup ids and consumers notice nothing but a pause."""
    port, each = free_port(), 150
    server = start(tmp_path / "data", port=port).wait()
    with OpenQ("jobs", 5, url=server.url) as queue:
        done: Counter[str] = Counter()
        half_way = threading.Event()
        lock = threading.Lock()

        def handle(message: Message) -> None:
            with lock:
                done[message.body] += 1
                if len(done) > each:
                    half_way.set()

        def publish(name: str) -> None:
            for i in range(each):
                queue.publish(f"{name}-{i}", dedup_id=f"{name}-{i}")

        publishers = [in_thread(lambda name=name: publish(name)) for name in "ab"]  # type: ignore[misc]
        consumers = [Consumer(queue, handle, idle_timeout=None, batch=3) for _ in range(2)]
        for consumer in consumers:
            consumer.start()
        try:
            for _ in range(2):
                server.kill()
                server = start(tmp_path / "data", port=port).wait()
                assert half_way.wait(60)
            assert ended(*publishers)
            wanted = {f"{name}-{i}" for name in "ab" for i in range(each)}
            until(lambda: done.keys() == wanted and queue.stats().in_flight == 0, "all is done")
            assert queue.messages == []
        finally:
            for consumer in consumers:
                consumer.stop()
            assert ended(*consumers)
            queue.close()
            server.stop()


def test_a_waiting_receive_outlives_a_restart(tmp_path: Path) -> None:
    port = free_port()
    server = start(tmp_path / "data", port=port).wait()
    with OpenQ("jobs", url=server.url) as queue:
        got: list[Any] = []
        waiting = in_thread(lambda: got.append(queue.receive(timeout=60)))
        until_waiting(queue, 1)

        assert server.stop() == 0
        server = start(tmp_path / "data", port=port).wait()
        queue.publish("after")

        assert ended(waiting)
        assert got[0].body == "after"
        got[0].ack()
    server.stop()


def test_a_queue_can_be_closed_while_its_server_is_unreachable(tmp_path: Path) -> None:
    server = start(tmp_path / "data").wait()
    queue = OpenQ("jobs", 1, url=server.url, reconnect=3600)
    queue.publish("x")
    working, finish = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        working.set()
        finish.wait()

    at_work = Consumer(queue, handle, idle_timeout=None, heartbeat=True)
    waiting = Consumer(queue, idle_timeout=None)
    at_work.start()
    assert working.wait(60)
    waiting.start()
    server.kill()

    queue.close()

    finish.set()
    assert ended(at_work, waiting)


def test_opening_the_directory_of_a_server_names_its_address(tmp_path: Path) -> None:
    with served(tmp_path / "data") as running:
        with pytest.raises(openq.DirectoryInUse) as reported:
            OpenQ("jobs", path=tmp_path / "data")
        with OpenQ("jobs", url=reported.value.url) as queue:
            queue.publish("x")
            assert (reported.value.url, bodies(queue)) == (running.url, ["x"])


def test_a_server_without_a_disk_that_was_started_anew_has_no_queue(tmp_path: Path) -> None:
    port = free_port()
    server = start(None, port=port).wait()
    with OpenQ("jobs", url=server.url) as queue:
        queue.publish("x")
        old = take(queue)
        server.kill()
        server = start(None, port=port).wait()

        with pytest.raises(QueueNotFound):
            queue.publish("y")
        with OpenQ("jobs", url=server.url):
            queue.publish("z")
            new = take(queue)
            assert new.delivery.entry.seq == old.delivery.entry.seq, "it counts from the beginning"
            for late in (old, old.receipt_id):
                with pytest.raises(MessageNotFoundError):
                    queue.ack(late)
            assert len(queue.in_flight) == 1
            queue.ack(new.receipt_id)
            assert queue.messages == []
    server.stop()
