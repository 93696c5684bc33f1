"""`queue.listen` of asyncio, in memory, on disk and behind a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openq.aio import Message, OpenQ
from tests.serving import Served
from tests.waiting import WAIT_S, until_async

Run = Callable[[Callable[[OpenQ], Awaitable[None]]], None]


@pytest.fixture(params=["memory", "path", "server"])
def run(request: pytest.FixtureRequest, tmp_path: Path, open_server: Served) -> Run:
    place: dict[str, Any] = {}
    if request.param != "memory":
        place = {"path": tmp_path} if request.param == "path" else {"url": open_server.url}
    name = request.node.name.replace("[", "-").replace("]", "")

    def run_it(body: Callable[[OpenQ], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), await OpenQ.open(name, retry="none", **place) as queue:
                await body(queue)

        asyncio.run(main())

    return run_it


def test_a_loop_gets_messages_as_they_come(run: Run) -> None:
    async def body(queue: OpenQ) -> None:
        await queue.publish("before")
        seen = []
        async with queue.listen(prefetch=10) as messages:
            async for message in messages:
                seen.append(message.body)
                await message.ack()
                if len(seen) == 1:
                    await queue.publish("after")
                else:
                    break
        assert seen == ["before", "after"]
        assert (await queue.stats()).in_flight == 0

    run(body)


def test_a_loop_that_is_left_returns_what_it_has_not_seen(run: Run) -> None:
    async def body(queue: OpenQ) -> None:
        await queue.publish_many(["a", "b", "c"])

        async for message in queue.listen(prefetch=10):
            await message.ack()
            break

        async with asyncio.timeout(WAIT_S):
            while (await queue.stats()).ready != 2:
                await asyncio.sleep(0.001)
        await queue.publish("d")
        assert (await queue.stats()).ready == 3, "nothing is pushed to it any more"

    run(body)


def test_closing_ends_a_loop_and_returns_what_it_has_not_seen(run: Run) -> None:
    async def body(queue: OpenQ) -> None:
        await queue.publish_many(["a", "b", "c"])
        messages = queue.listen(prefetch=10)
        first = await anext(messages)

        await messages.close()

        assert [each async for each in messages] == []
        await first.ack()
        assert [each.body for each in await queue.receive_many(10)] == ["b", "c"]

    run(body)


def test_no_more_than_the_prefetch_is_taken(run: Run) -> None:
    async def body(queue: OpenQ) -> None:
        await queue.publish_many(map(str, range(5)))
        async with queue.listen(prefetch=2) as messages:
            one, two = await anext(messages), await anext(messages)
            assert (await queue.stats()).ready == 3
            await one.ack()
            assert (await anext(messages)).body == "2"
            await two.ack()

    run(body)


def test_a_handler_is_awaited_and_its_messages_are_acked(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body(queue: OpenQ) -> None:
        seen: list[str] = []

        async def handle(message: Message) -> None:
            if message.body == "7" and message.receive_count == 1:
                raise ValueError("once")
            seen.append(message.body)

        await queue.publish_many(map(str, range(50)))
        with caplog.at_level(logging.CRITICAL, logger="openq"):
            async with queue.listen(handle, prefetch=10):
                await until_async(lambda: len(seen) == 50)
        assert sorted(seen, key=int) == [str(i) for i in range(50)]
        stats = await queue.stats()
        assert (stats.ready, stats.in_flight) == (0, 0)

    run(body)


def test_a_loop_that_waits_can_be_closed(run: Run) -> None:
    async def body(queue: OpenQ) -> None:
        messages = queue.listen()

        async def loop() -> list[Message]:
            return [each async for each in messages]

        task = asyncio.create_task(loop())
        await asyncio.sleep(0)
        await messages.close()
        assert await task == []

    run(body)
