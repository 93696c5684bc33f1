"""asyncio over the network: the loop never stands still, and a cancelled wait takes no message with it.

What each verb does is in tests/aio, which run over the network too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from openq import QueueFull, Unreachable
from openq.aio import Consumer, Message, OpenQ
from openq.local.broker import LocalBroker
from tests.client.thread_server import ThreadServer
from tests.serving import free_port, start
from tests.waiting import until_async


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(LocalBroker()) as running:
        yield running


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


def waiters(server: ThreadServer) -> int:
    return server.broker.stats("jobs").waiters


def test_a_cancelled_receive_takes_no_message_with_it(server: ThreadServer) -> None:
    async def test() -> None:
        async with await OpenQ.open("jobs", url=server.url) as queue:
            for i in range(30):
                waiting = asyncio.create_task(queue.receive(timeout=None))
                await until_async(lambda: waiters(server) == 1)
                publishing = asyncio.create_task(queue.publish(i))
                waiting.cancel()
                await publishing
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await until_async(lambda: server.broker.stats("jobs").in_flight == 0)
                assert await queue.purge() == 1

    run(test)


def test_a_hundred_waits_do_not_keep_a_publish_waiting(server: ThreadServer) -> None:
    async def test() -> None:
        async with await OpenQ.open("jobs", url=server.url) as queue:
            waiting = [asyncio.create_task(queue.receive(timeout=None)) for _ in range(100)]
            await until_async(lambda: waiters(server) == 100)

            await queue.publish_many(range(100))

            messages = [await each for each in waiting]
            assert sorted(message.body for message in messages if message is not None) == list(range(100))
            await queue.ack_many([message for message in messages if message is not None])
            assert (await queue.stats()).in_flight == 0

    run(test)


def test_a_consumer_works_and_stops_at_once(server: ThreadServer) -> None:
    async def test() -> None:
        async with await OpenQ.open("jobs", url=server.url) as queue:
            done: list[object] = []

            async def handle(message: Message) -> None:
                if message.body == 3 and message.receive_count == 1:
                    raise ValueError("once more")
                done.append(message.body)

            async with Consumer(queue, handle, concurrency=4, heartbeat=True):
                await queue.publish_many(range(10))
                await until_async(lambda: len(done) == 10)
            assert sorted(done, key=str) == list(range(10))
            await until_async(lambda: waiters(server) == 0)
            assert queue.messages == []

    run(test)


def test_hooks_run_for_new_messages_only(server: ThreadServer) -> None:
    async def test() -> None:
        async with await OpenQ.open("jobs", url=server.url, max_length=2, overflow="reject") as queue:
            heard: list[object] = []
            queue.on_msg_received(lambda message: heard.append(message.body))
            await queue.publish("a", dedup_id="1")
            await queue.publish("b", dedup_id="1")
            with pytest.raises(QueueFull):
                await queue.publish_many(["c", "d"])
            assert heard == ["a", "c"]

    run(test)


def test_the_loop_keeps_running_while_the_server_is_unreachable(tmp_path: Path) -> None:
    port = free_port()

    async def test() -> None:
        server = start(tmp_path / "data", port=port).wait()
        async with await OpenQ.open("jobs", url=server.url) as queue:
            await asyncio.to_thread(server.kill)
            publishing = asyncio.create_task(queue.publish("x"))
            again = await asyncio.to_thread(lambda: start(tmp_path / "data", port=port).wait())
            await publishing
            assert (await queue.stats()).ready == 1
            again.stop()
        with pytest.raises(Unreachable):
            await OpenQ.open("jobs", url=server.url)

    run(test)
