"""`openq.aio` on a server: acks of many tasks are sent together, and each task gets its own result."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from openq import MessageNotFoundError, VisibilityTimeoutExpired
from openq.aio import OpenQ
from openq.errors import Closed
from tests.rest.helpers import Client
from tests.serving import Served

COUNT = 200


def requests(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    [count] = [line.split()[1] for line in lines if line.startswith("openq_requests_total ")]
    return int(count)


def test_acks_of_many_tasks_share_calls(open_server: Served, client: Client) -> None:
    async def work() -> int:
        async with OpenQ("acks-shared", url=open_server.url) as queue:
            await queue.publish_many(range(COUNT))
            messages = await queue.receive_many(COUNT)
            assert len(messages) == COUNT
            before = requests(open_server.url)
            await asyncio.gather(*(message.ack() for message in messages))
            used = requests(open_server.url) - before
            assert all(message.settled for message in messages)
            return used

    assert asyncio.run(work()) < COUNT / 10
    stats = client.get("/queues/acks-shared").value["stats"]
    assert (stats["ready"], stats["in_flight"]) == (0, 0)


def test_an_ack_that_fails_does_not_fail_those_sent_with_it(open_server: Served) -> None:
    async def work() -> None:
        async with OpenQ("acks-failed", url=open_server.url) as queue:
            await queue.publish_many(["a", "b", "c"])
            first, second, third = await queue.receive_many(3)
            await second.ack()

            results = await asyncio.gather(
                *(message.ack() for message in (first, second, third)), return_exceptions=True
            )

            assert results[::2] == [None, None]
            assert isinstance(results[1], MessageNotFoundError | VisibilityTimeoutExpired)
            assert second.id in str(results[1])

    asyncio.run(work())


def test_a_cancelled_task_leaves_the_acks_of_others_alone(open_server: Served, client: Client) -> None:
    async def work() -> None:
        async with OpenQ("acks-cancelled", url=open_server.url) as queue:
            await queue.publish_many(["a", "b"])
            first, second = await queue.receive_many(2)
            cancelled, kept = (asyncio.ensure_future(message.ack()) for message in (first, second))
            await asyncio.sleep(0)
            cancelled.cancel()

            await kept

            assert cancelled.cancelled()
            assert [first.settled, second.settled] == [False, True]  # the first call had not left

    asyncio.run(work())
    assert client.get("/queues/acks-cancelled").value["stats"]["in_flight"] == 1


def test_an_ack_after_close_says_so(open_server: Served) -> None:
    async def work() -> None:
        async with OpenQ("acks-closed", url=open_server.url) as queue:
            await queue.publish("a")
            message = await queue.receive()
            assert message is not None
        with pytest.raises(Closed):
            await message.ack()

    asyncio.run(work())


def test_the_same_queue_object_acks_on_another_loop(open_server: Served) -> None:
    queue = OpenQ("acks-loops", url=open_server.url)

    async def work() -> None:
        await queue.publish("a")
        message = await queue.receive()
        assert message is not None
        await message.ack()

    asyncio.run(work())
    asyncio.run(work())
    asyncio.run(queue.close())
