"""Hooks are called for what came into the queue: all of it, and nothing else."""

import asyncio
from typing import Any

import pytest

from openq import Message, OpenQ, QueueFull, aio
from tests.client.helpers import Make

pytest_plugins = "tests.client.fixtures"

ITEMS: list[Any] = [
    {"body": "a", "dedup_id": "1", "message_type": "bill"},
    {"body": "again", "dedup_id": "1"},
    Message("own", "b", priority=7),
    {"body": "too many"},
]
HEARD = [("a", "bill", 0), ("b", None, 7)]


def test_hooks_hear_of_accepted_items_and_not_of_duplicates(make: Make) -> None:
    queue = make(max_length=2, overflow="reject")
    heard: list[tuple[Any, str | None, int]] = []
    queue.on_msg_received(lambda m: heard.append((m.body, m.message_type, m.priority)))

    with pytest.raises(QueueFull):
        queue.publish_many(ITEMS)

    assert heard == HEARD
    assert len(queue) == 2


def test_hooks_of_asyncio_hear_the_same() -> None:
    async def main() -> None:
        async with aio.OpenQ("jobs", max_length=2, overflow="reject") as queue:
            heard: list[tuple[Any, str | None, int]] = []
            queue.on_msg_received(lambda m: heard.append((m.body, m.message_type, m.priority)))
            with pytest.raises(QueueFull):
                await queue.publish_many(ITEMS)
            assert heard == HEARD

    asyncio.run(main())


def test_a_single_duplicate_is_not_heard_of(make: Make) -> None:
    heard: list[Any] = []
    queue = make()
    queue.on_msg_received(lambda message: heard.append(message.body))

    first = queue.publish("a", dedup_id="1")

    assert queue.publish("b", dedup_id="1") == first
    assert heard == ["a"]

    async def main() -> None:
        async with aio.OpenQ("jobs", storage="memory") as other:
            other.on_msg_received(lambda message: heard.append(message.body))
            await other.publish(5)
            await other.publish("c", id="own")
            await other.publish("d", id="own")

    asyncio.run(main())
    assert heard == ["a", 5, "c"]


def test_a_heartbeat_keeps_little_of_what_was_settled_long_before_its_lease_ends() -> None:
    with OpenQ("jobs", visibility_timeout=12 * 3600, storage="memory") as queue:
        heartbeat = queue.core.handle.heartbeat
        queue.publish_many(range(1000))
        for _ in range(1000):
            with queue.processing(timeout=0, heartbeat=True):
                pass

        assert len(heartbeat._due) < 50
        assert heartbeat._held == {}
