"""`queue.listen` and `Consumer` in memory, on disk and behind a server: the same promises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.client.message import ReceivedMessage
from openq.errors import InvalidSetting, OpenQError, QueueNotFound, VisibilityTimeoutExpired
from tests.serving import Served, served
from tests.waiting import until

NewQueue = Callable[..., OpenQ]


@pytest.fixture(params=["memory", "path", "server"])
def new_queue(request: pytest.FixtureRequest, tmp_path: Path, open_server: Served) -> Iterator[NewQueue]:
    """Queue objects on the same target."""
    opened: list[OpenQ] = []

    def make(name: str, **options: Any) -> OpenQ:
        name = f"{request.node.name}-{name}".replace("[", "-").replace("]", "")
        if request.param == "path":
            options["path"] = tmp_path
        elif request.param == "server":
            options["url"] = open_server.url
        elif opened:
            options["broker"] = opened[0].broker
        opened.append(OpenQ(name, **options))
        return opened[-1]

    yield make
    for queue in reversed(opened):
        queue.close()


def test_a_loop_gets_messages_as_they_come(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    queue.publish("before")
    with queue.listen(prefetch=10) as messages:
        first = next(messages)
        queue.publish("after")
        second = next(messages)

        assert [first.body, second.body] == ["before", "after"]
        first.ack()
        second.nack(delay=0)
        third = next(messages)
        assert (third.body, third.receive_count) == ("after", 2)
        third.ack()
    assert len(queue) == 0


def test_no_more_than_the_prefetch_is_taken(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    queue.publish_many(map(str, range(10)))
    with queue.listen(prefetch=3) as messages:
        held = [next(messages) for _ in range(3)]
        until(lambda: queue.stats().in_flight == 3)
        assert queue.stats().ready == 7

        held[0].ack()
        assert next(messages).body == "3"
        assert queue.stats().in_flight == 3


def test_closing_returns_what_the_loop_has_not_seen(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    queue.publish_many(["a", "b", "c"])
    messages = queue.listen(prefetch=10)
    first = next(messages)

    messages.close()

    until(lambda: queue.stats().ready == 2)
    assert list(messages) == []
    first.ack()
    assert [each.receive_count for each in queue.receive_many(10)] == [1, 1], "they were not counted"


def test_a_loop_that_is_left_returns_what_it_has_not_seen(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    queue.publish_many(["a", "b", "c"])

    for message in queue.listen(prefetch=10):
        message.ack()
        break

    until(lambda: queue.stats().ready == 2)
    queue.publish("d")
    assert queue.stats().ready == 3, "nothing is pushed to it any more"


def test_a_lease_of_a_message_that_was_acked_is_not_reported_as_lost(
    new_queue: NewQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("q", visibility_timeout=2)
    queue.publish("a")
    with queue.listen() as messages:
        next(messages).ack()

    queue.publish("b")  # its lease is due after that of "a"
    with queue.listen() as messages:
        second = next(messages)
        until(lambda: second.delivery.until_ms > second.delivery.delivered_ms + 2_000, "a longer lease")

    assert [each.getMessage() for each in caplog.records if "lost a lease" in each.getMessage()] == []


def test_close_ends_a_loop_that_waits(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    messages = queue.listen()
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(each.body for each in messages))
    thread.start()

    messages.close()

    thread.join(30)
    assert not thread.is_alive()


def test_a_handler_is_called_and_its_messages_are_acked(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    seen: list[Any] = []
    consumer = queue.listen(lambda message: seen.append(message.body), prefetch=50)
    queue.publish_many(map(str, range(200)))

    until(lambda: len(seen) == 200)
    consumer.close()

    assert seen == [str(i) for i in range(200)]
    stats = queue.stats()
    assert (stats.ready, stats.in_flight) == (0, 0)


def test_a_handler_that_fails_returns_its_message(
    new_queue: NewQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue("q", retry="none")
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.receive_count)
        if len(seen) == 1:
            raise ValueError("not yet")

    queue.publish("a")
    with caplog.at_level(logging.CRITICAL, logger="openq"), queue.listen(handle):
        until(lambda: seen == [1, 2])
    assert queue.stats().in_flight == 0


def test_types_and_attributes_select_messages(new_queue: NewQueue) -> None:
    queue = new_queue("q")
    for body, kind, shop in (("a", "x", "eu"), ("b", "y", "us"), ("c", "y", "eu")):
        queue.publish(body, message_type=kind, attributes={"shop": shop, "raw": b"\xff"})
    with queue.listen(types=["y"], attributes={"shop": ["eu", "asia"], "raw": b"\xff"}) as messages:
        message = next(messages)
        assert message.body == "c"
        message.ack()
        queue.publish("d", message_type="y", attributes={"shop": "asia"})
        queue.publish("e", message_type="y", attributes={"shop": "asia", "raw": b"\xff"})
        message = next(messages)
        assert message.body == "e"
        message.ack()
    seen: list[object] = []
    consumer = queue.listen(lambda message: seen.append(message.body), attributes={"shop": "us"})
    until(lambda: seen == ["b"])
    consumer.close()
    until(lambda: len(queue) == 2)
    with pytest.raises(InvalidSetting, match="attributes"):
        queue.listen(attributes="shop")  # type: ignore[call-overload]


def test_all_that_a_message_can_do_works_on_a_stream(new_queue: NewQueue) -> None:
    dead = new_queue("dead")
    queue = new_queue("q", dlq=dead.name, max_receives=5)
    queue.publish({"a": 1}, attributes={"n": 1, "b": b"\x00"}, priority=2)
    queue.publish(b"\xff")
    with queue.listen(prefetch=1, heartbeat=False, visibility_timeout=100) as messages:
        first = next(messages)
        assert (first.body, dict(first.attributes)) == ({"a": 1}, {"n": 1, "b": b"\x00"})
        assert first.extend(200) is not None
        first.reject("bad")
        second = next(messages)
        assert second.body == b"\xff"
        queue.release_many([second])
        again = next(messages)
        assert again.receive_count == 1
        queue.ack_many([again])
    assert len(dead) == 1


# -- behind a server


def test_a_deleted_queue_ends_the_loop_with_an_error(open_server: Served) -> None:
    with OpenQ("listen-deleted", url=open_server.url) as queue, queue.listen() as messages:
        thread = threading.Thread(target=lambda: queue.broker.delete(queue.name))
        queue.publish("a")
        next(messages).ack()
        thread.start()
        with pytest.raises(QueueNotFound):
            next(messages)
        thread.join()


def test_a_listener_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        port = server.port
        queue = OpenQ("q", url=server.url, reconnect=60)
        messages = queue.listen(prefetch=1)
        queue.publish("one")
        held = next(messages)
        queue.publish("two")  # commits the lease too
        server.kill()
        with served(tmp_path, port=port):
            held.ack()  # its lease is on disk
            message = next(messages)

            assert (message.body, message.receive_count) == ("two", 1)
            message.ack()
            assert len(queue) == 0
            messages.close()
            queue.close()


def test_messages_return_at_once_when_the_process_dies(open_server: Served) -> None:
    with (
        OpenQ("listen-dies", url=open_server.url) as queue,
        OpenQ("listen-dies", url=open_server.url, reconnect=1) as other,
    ):
        queue.publish("a")
        messages = other.listen()
        held = next(messages)
        feed: Any = messages._feed
        feed._socket.abort()

        message = queue.receive(30)
        assert message is not None
        with pytest.raises(VisibilityTimeoutExpired):
            held.ack()
        message.ack()


def test_a_server_without_a_stream_is_polled(open_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from openq.client.http import Refused
    from openq.client.server_api import ServerApi

    def refuse(*_: object) -> None:
        raise Refused(426, "error", "a proxy that knows no upgrades")

    monkeypatch.setattr(ServerApi, "upgrade", refuse)
    with (
        OpenQ("listen-polled", url=open_server.url, reconnect=3) as queue,
        queue.listen(prefetch=2) as messages,
    ):
        queue.publish("a")
        message = next(messages)
        assert message.body == "a"
        message.ack()
        assert len(queue) == 0


def test_wrong_credentials_are_an_error_at_once(tmp_path: Path) -> None:
    with served(tmp_path, "--auth", "on") as server, pytest.raises(OpenQError):
        OpenQ("q", url=server.url, token="oq_wrong")
