"""`on_msg_received` is called for every arrival once, whichever object published the message."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ, aio
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until, until_async


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("arrivals") / "data") as server:
        yield server


@pytest.fixture(params=["memory", "path", "http"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[OpenQ, OpenQ]]:
    """Two objects of one queue."""
    name = request.node.name[:80]
    if request.param == "http":
        url = request.getfixturevalue("server").url
        first, second = OpenQ(name, url=url), OpenQ(name, url=url)
    else:
        first = OpenQ(name, storage="memory") if request.param == "memory" else OpenQ(name, path=tmp_path)
        second = OpenQ(name, broker=first.broker)
    with first, second:
        yield first, second


def test_a_hook_hears_own_and_foreign_messages_each_once(pair: tuple[OpenQ, OpenQ]) -> None:
    queue, other = pair
    heard: list[Any] = []
    queue.on_msg_received(lambda message: heard.append((message.id, message.body, message.message_type)))

    mine = queue.publish({"n": 1}, message_type="mine")
    assert heard == [(mine, {"n": 1}, "mine")]  # before `publish` returned
    theirs = other.publish({"n": 2}, message_type="theirs")
    until(lambda: len(heard) == 2)
    assert heard[1] == (theirs, {"n": 2}, "theirs")
    many = [*queue.publish_many(["a", "b"]), *other.publish_many(["c", "d"])]
    until(lambda: len(heard) == 6)
    assert {row[0] for row in heard[2:]} == set(many)


def test_nothing_is_heard_twice_while_both_publish_at_once(pair: tuple[OpenQ, OpenQ]) -> None:
    queue, other = pair
    heard: Counter[str] = Counter()
    lock = threading.Lock()

    @queue.on_msg_received
    def hear(message: Any) -> None:
        with lock:
            heard[message.id] += 1

    ids: list[str] = []

    def publish(target: OpenQ) -> None:
        found = [target.publish(f"x{number}") for number in range(30)]
        with lock:
            ids.extend(found)

    threads = [threading.Thread(target=publish, args=(each,)) for each in (queue, other, queue, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(heard) == 120)
    last = other.publish("last")
    until(lambda: last in heard)
    assert heard == Counter([*ids, last])


def test_listeners_of_a_dead_letter_queue_get_its_dead_letters() -> None:
    with OpenQ("dead", storage="memory") as dead:
        queue = OpenQ("q", dlq=dead, broker=dead.broker)
        heard: list[Any] = []
        dead.on_msg_received(lambda message: heard.append(message.body))
        queue.publish("bad")
        message = queue.receive()
        assert message is not None
        message.reject("broken")
        until(lambda: heard == ["bad"])
        queue.close()


def test_other_protocols_are_heard(server: Served) -> None:
    client = Client(server.url)
    heard: list[Any] = []
    with OpenQ("rest", url=server.url) as queue:
        queue.on_msg_received(lambda message: heard.append((message.body, dict(message.attributes))))
        client.post("/queues/rest/messages", {"payload": [1, 2], "attributes": {"a": 1}})
        until(lambda: heard == [([1, 2], {"a": 1})])


def test_a_subclass_hears_others_and_can_be_collected() -> None:
    heard: list[Any] = []

    class Listening(OpenQ):
        def on_msg_received(self, message: Any) -> None:
            heard.append(message.body)

    with OpenQ("q", storage="memory") as other:
        queue = Listening("q", broker=other.broker)
        other.publish("x")
        until(lambda: heard == ["x"])
        gone = weakref.ref(queue)
        del queue

        def is_collected() -> bool:
            gc.collect()
            return gone() is None

        until(is_collected)


def test_hooks_of_asyncio_hear_others_on_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        thread = threading.get_ident()
        async with aio.OpenQ("q", path=tmp_path) as queue:
            heard: list[tuple[Any, bool]] = []
            queue.on_msg_received(lambda m: heard.append((m.body, threading.get_ident() == thread)))
            other = OpenQ("q", broker=queue.broker)
            await asyncio.to_thread(other.publish, "theirs")
            await until_async(lambda: len(heard) == 1)
            await queue.publish("mine")
            await queue.publish_many(["a", "b"])
            assert heard == [(body, True) for body in ("theirs", "mine", "a", "b")]
            await asyncio.to_thread(other.publish, "last")
            await until_async(lambda: len(heard) == 5)
            other.close()

    asyncio.run(main())
