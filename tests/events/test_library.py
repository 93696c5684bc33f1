"""`queue.events()` and its asynchronous twin, in memory, on disk and on a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import InvalidSetting, OpenQ, QueueEvent, QueueNotFound, aio
from tests.isolation import ROOT
from tests.serving import Served, served, start
from tests.waiting import until

Options = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("events") / "data") as server:
        yield server


@pytest.fixture(params=["memory", "path", "http"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    if request.param == "memory":
        return {"storage": "memory"}
    if request.param == "path":
        return {"path": tmp_path}
    return {"url": request.getfixturevalue("server").url}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name[:80]


def taken(events: Iterator[QueueEvent], count: int) -> list[QueueEvent]:
    return [next(events) for _ in range(count)]


def test_events_cover_the_life_of_a_message(target: Options, name: str) -> None:
    with OpenQ(name, **target) as queue, queue.events(bodies=True) as events:
        message_id = queue.publish({"a": [1, "é"]}, message_type="greeting", attributes={"n": 1})
        message = queue.receive(timeout=0, consumer="me")
        assert message is not None
        message.nack(delay=0, reason="not now")
        again = queue.receive()
        assert again is not None
        again.ack()

        found = taken(events, 5)

    assert [event.event for event in found] == ["published", "delivered", "nacked", "delivered", "acked"]
    assert {event.message_id for event in found} == {message_id}
    published, delivered, nacked, *_ = found
    assert published.message_type == "greeting"
    assert published.message is not None
    assert published.message.body == {"a": [1, "é"]}
    assert published.message.attributes == {"n": 1}
    assert published.message.id == message_id
    assert delivered.detail["consumer"] == "me"
    assert delivered.detail["until"] > delivered.time
    assert nacked.detail["reason"] == "not now"


@pytest.mark.parametrize("body", ["text", b"bytes \xff", 5, None, [1, {"b": 2}]])
def test_bodies_are_those_that_were_published(target: Options, name: str, body: Any) -> None:
    with OpenQ(name[:60] + str(hash(str(body))), **target) as queue, queue.events(bodies=True) as events:
        queue.publish(body)
        message = next(events).message
        assert message is not None
        assert message.body == body


def test_events_can_be_resumed_and_read_to_the_end(target: Options, name: str) -> None:
    with OpenQ(name, **target) as queue:
        for number in range(10):
            queue.publish(number)
        everything = list(queue.events("oldest", follow=False))
        assert [event.event for event in everything][-10:] == ["published"] * 10
        for number in (0, 4, len(everything) - 1):
            rest = list(queue.events(everything[number].id, follow=False))
            assert rest == everything[number + 1 :]
        assert list(queue.events(follow=False)) == everything


def test_filters_select_events_by_name_type_and_attributes(target: Options, name: str) -> None:
    with OpenQ(name, **target) as queue:
        queue.publish("a", message_type="new")
        queue.publish("b", message_type="old", attributes={"shop": "eu"})
        message = queue.receive()
        assert message is not None
        message.ack()
        assert [e.event for e in queue.events(events="acked", follow=False)] == ["acked"]
        assert [e.message_type for e in queue.events(types=["new"], follow=False)] == ["new"]
        [found] = queue.events(attributes={"shop": ["eu", b"eu"]}, follow=False)
        assert found.message_type == "old"
        assert len(list(queue.events(events=["published", "acked"], follow=False))) == 3
        with pytest.raises(InvalidSetting, match="is not an event"):
            queue.events(events="no-event")
        with pytest.raises((InvalidSetting, Exception), match="not the id of an event"):
            next(queue.events("nonsense"))


def test_a_stream_is_closed_by_another_thread(target: Options, name: str) -> None:
    with OpenQ(name, **target) as queue:
        events = queue.events()
        found: list[QueueEvent] = []
        thread = threading.Thread(target=lambda: found.extend(events))
        thread.start()
        queue.publish("x")
        until(lambda: len(found) == 1)
        events.close()
        thread.join(30)
        assert not thread.is_alive()


def test_other_queues_are_left_out(target: Options, name: str) -> None:
    with OpenQ(f"{name}*", **target) as queue:
        other = OpenQ(f"{name}-other", broker=queue.broker) if "url" not in target else OpenQ("o", **target)
        with queue.events() as events:
            other.publish("not this")
            queue.publish("this")
            assert [event.queue for event in taken(events, 1)] == [f"{name}*"]
        other.close()


def test_asyncio_iterates_over_events(target: Options, name: str) -> None:
    async def main() -> None:
        async with aio.OpenQ(name, **target) as queue:
            async with queue.events(bodies=True) as events:
                for number in range(5):
                    await queue.publish(number)
                found = []
                async for event in events:
                    found.append(event.message.body)  # type: ignore[union-attr]
                    if len(found) == 5:
                        break
                position = events.position
            assert found == list(range(5))
            await queue.publish("later")
            rest = [event async for event in queue.events(position, follow=False)]
            assert [event.event for event in rest] == ["published"]
            with pytest.raises((InvalidSetting, Exception), match="not the id of an event"):
                async for _ in queue.events("nonsense"):
                    pass

    asyncio.run(main())


def test_a_task_that_is_cancelled_or_a_stream_that_is_closed_ends(target: Options, name: str) -> None:
    async def main() -> None:
        async with aio.OpenQ(name, **target) as queue:
            events = queue.events()
            waiting = asyncio.ensure_future(anext(events))
            await events.begin()
            events.close()
            with pytest.raises(StopAsyncIteration):
                await waiting

    asyncio.run(main())


# -- only on a server


def test_a_reader_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    server = start(tmp_path / "data").wait()
    with OpenQ("q", url=server.url) as queue, queue.events(events="published") as events:
        first = [queue.publish(number) for number in range(5)]
        assert [event.message_id for event in taken(events, 5)] == first
        server.kill()
        server = start(tmp_path / "data", port=server.port).wait()
        second = [queue.publish(number) for number in range(5)]
        assert [event.message_id for event in taken(events, 5)] == second
    server.stop()


def test_an_unknown_queue_has_no_events(server: Served) -> None:
    with OpenQ("gone", url=server.url) as queue:
        queue.broker.delete("gone")
        with pytest.raises(QueueNotFound):
            queue.events()


def test_a_listener_hears_other_processes(server: Served) -> None:
    heard: list[dict[str, Any]] = []
    with OpenQ("shared", url=server.url) as queue, OpenQ("shared", url=server.url) as other:
        stop: Callable[[], None] = queue.subscribe(heard.append)
        message_id = other.publish("x")
        message = other.receive()
        assert message is not None
        message.nack(reason="bad", delay=0)
        again = other.receive()
        assert again is not None
        again.ack()
        other.purge()
        until(lambda: len(heard) == 6)
        stop()
    assert [event["event"] for event in heard] == [
        "published",
        "received",
        "requeued",
        "received",
        "acked",
        "purged",
    ]
    assert {event["id"] for event in heard[:5]} == {message_id}
    assert heard[2]["detail"] == "bad"
    assert all(event["queue"] == "shared" and event["time_ms"] for event in heard)


WITHOUT_PACKAGES = """
import asyncio, sys

for name in ("msgspec", "uvloop", "httptools", "websockets"):
    sys.modules[name] = None  # an import of it fails

from openq import OpenQ, aio
from tests.waiting import until, until_async

target = {"path": sys.argv[1]} if len(sys.argv) > 1 else {"storage": "memory"}

with OpenQ("q", visibility_timeout=20, **target) as queue:
    other = OpenQ("q", broker=queue.broker)
    heard = []
    queue.on_msg_received(lambda message: heard.append((message.body, message.message_type)))
    queue.publish({"n": 1}, message_type="mine")
    other.publish(b"2", message_type="theirs")
    until(lambda: len(heard) == 2)
    assert sorted(heard, key=str) == [(b"2", "theirs"), ({"n": 1}, "mine")], heard
    queue.receive().nack(delay=30)
    found = list(queue.events(bodies=True, follow=False))
    assert [each.event for each in found][-4:] == ["published", "published", "delivered", "nacked"], found
    assert found[0].detail["settings"]["visibility_timeout"] == 20
    assert found[-3].message.body == b"2"
    assert found[-1].detail["due"] > found[-1].time


async def run():
    async with aio.OpenQ("q", storage="memory") as queue:
        heard = []
        queue.on_msg_received(lambda message: heard.append(message.body))
        await queue.publish("one")
        await until_async(lambda: heard == ["one"])
        async for event in queue.events("oldest", follow=False, events="published"):
            assert event.event == "published"


asyncio.run(run())
print("done")
"""


@pytest.mark.parametrize("kind", ["memory", "path"])
def test_embedded_events_and_hooks_need_no_other_package(kind: str, tmp_path: Path) -> None:
    words = [str(tmp_path)] if kind == "path" else []

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES, *words], capture_output=True, text=True, timeout=60, cwd=ROOT
    )

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
