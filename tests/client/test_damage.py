"""A message whose bytes on disk are damaged stops nobody, and ends among the dead letters."""

import asyncio
from pathlib import Path

import pytest

from openq import Consumer, JournalDamaged, OpenQ, VirtualClock, aio
from tests.client.helpers import ended, until

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


def test_an_unreadable_message_is_given_back_and_reaches_the_dead_letters(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with with_damage(tmp_path, clock) as queue:
        first = queue.receive(timeout=0)
        assert first is not None
        assert first.body == "first"
        first.ack()

        with pytest.raises(JournalDamaged):
            queue.receive(timeout=0)
        last = queue.receive(timeout=0)
        assert last is not None
        assert last.body == "last"
        last.ack()

        clock.advance(1)
        with pytest.raises(JournalDamaged):
            queue.receive(timeout=0)
        assert queue.stats().in_flight == queue.stats().ready == queue.stats().delayed == 0
        assert OpenQ("dead", path=tmp_path).stats().ready == 1


def test_those_who_came_with_an_unreadable_message_are_not_counted(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with with_damage(tmp_path, clock) as queue:
        with pytest.raises(JournalDamaged):
            queue.receive_many(10, timeout=0)

        received = queue.receive_many(10, timeout=0)

        assert [(message.body, message.receive_count) for message in received] == [("first", 1), ("last", 1)]
        assert queue.stats().delayed == 1


def test_a_consumer_goes_on_after_an_unreadable_message(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with with_damage(tmp_path, clock) as queue:
        seen: list[str] = []
        consumer = Consumer(queue, lambda message: seen.append(message.body), idle_timeout=None)
        consumer.start()

        until(lambda: seen == ["first", "last"], "both readable messages are worked on")

        consumer.stop()
        assert ended(consumer)
        assert "could not receive" in caplog.text


def test_a_task_that_meets_an_unreadable_message_gives_it_back_counted(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        queue = aio.OpenQ("jobs", path=tmp_path, clock=clock)
        seen: list[str] = []
        done = asyncio.Event()

        async def handle(message: aio.Message) -> None:
            seen.append(message.body)
            if message.body == "last":
                done.set()

        async with aio.Consumer(queue, handle):
            await asyncio.wait_for(done.wait(), 30)
        assert seen == ["first", "last"]
        assert (await queue.stats()).delayed == 1
        await queue.close()

    with with_damage(tmp_path, clock):
        asyncio.run(main())
    assert "could not receive" in caplog.text
