"""A message whose bytes on disk are damaged stops nobody, and is set aside."""

import asyncio
from pathlib import Path

import pytest

from openq import Consumer, OpenQ, VirtualClock, aio
from openq.journal.repair import repair
from tests.client.helpers import ended
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"

POISON = "the body that will be damaged"


def with_damage(path: Path, clock: VirtualClock, max_receives: int = 2) -> OpenQ:
    """A queue of three messages, the second of them unreadable."""
    with OpenQ("jobs", dlq="dead", max_receives=max_receives, path=path, clock=clock) as queue:
        for body in ("first", POISON, "last"):
            queue.publish(body)
    queue = OpenQ("jobs", path=path, clock=clock)  # from here on the bodies are only on disk
    damaged = 0
    for file in path.rglob("*"):
        if file.is_file() and POISON.encode() in (data := file.read_bytes()):
            file.write_bytes(data.replace(b"damaged", b"DAMAGED"))
            damaged += 1
    assert damaged
    return queue


def test_an_unreadable_message_is_set_aside_and_its_neighbours_are_not_counted(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with with_damage(tmp_path, clock) as queue:
        received = queue.receive_many(10, timeout=0)

        assert [(message.body, message.receive_count) for message in received] == [("first", 1), ("last", 1)]
        assert queue.stats().in_flight == 2
        assert queue.stats().ready == queue.stats().delayed == 0
        [damage] = queue.broker.inspect.damage.listed()
        assert (damage.kind, damage.queue) == ("set_aside", "jobs")
        for part in ("jobs", damage.message_id, damage.file, str(damage.offset)):
            assert part in caplog.text
        assert queue.broker.health().status == "degraded"
    repair(tmp_path)  # the damage is in the last segment: it must be sound to be written on
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:
        clock.advance(60)
        assert sorted(message.body for message in queue.receive_many(10, timeout=0)) == ["first", "last"]
        assert queue.broker.inspect.damage.listed() == [damage]
        assert OpenQ("dead", path=tmp_path).stats().ready == 0


def test_a_waiting_receive_gets_the_message_behind_an_unreadable_one(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with with_damage(tmp_path, clock) as queue:
        bodies = [queue.receive(timeout=0), queue.receive(timeout=0), queue.receive(timeout=0)]

        assert [message and message.body for message in bodies] == ["first", "last", None]


def test_inspecting_a_queue_shows_the_readable_messages(tmp_path: Path, clock: VirtualClock) -> None:
    with with_damage(tmp_path, clock) as queue:
        assert [message.body for message in queue.peek_many(10)] == ["first", "last"]
        assert queue.broker.inspect.damage.set_aside() == {"jobs": 1}
        assert queue.stats().ready == 2


def test_a_consumer_goes_on_after_an_unreadable_message(tmp_path: Path, clock: VirtualClock) -> None:
    with with_damage(tmp_path, clock) as queue:
        seen: list[str] = []
        consumer = Consumer(queue, lambda message: seen.append(message.body), idle_timeout=None)
        consumer.start()

        until(lambda: seen == ["first", "last"], "both readable messages are worked on")

        consumer.stop()
        assert ended(consumer)
        assert queue.broker.inspect.damage.set_aside() == {"jobs": 1}


def test_a_task_goes_on_after_an_unreadable_message(tmp_path: Path, clock: VirtualClock) -> None:
    async def main() -> None:
        queue = aio.OpenQ("jobs", path=tmp_path, clock=clock)
        first = await queue.receive(timeout=0)
        second = await queue.receive(timeout=0)
        assert first is not None
        assert second is not None
        assert [first.body, second.body] == ["first", "last"]
        assert await queue.receive_many(10, timeout=0) == []
        await queue.close()

    with with_damage(tmp_path, clock):
        asyncio.run(main())
