"""`openq.aio` in Redis: the verbs run on the loop itself, and what many tasks ask leaves together."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import openq
from openq.aio import Consumer, Message, OpenQ, Queue
from tests.aio import test_consumer, test_queue
from tests.redis.servers import FORCED, Server, single
from tests.redis.shared_tests import collect_tests

Place = dict[str, Any]


@pytest.fixture
def place(redis_server: Server) -> Place:
    """Fast: this server keeps nothing on disk, which the safe profile would refuse."""
    return {"url": f"{redis_server.url}?profile=fast"}


globals().update(collect_tests(test_queue, "place"))
globals().update(collect_tests(test_consumer, "place"))


def reads(server: Server) -> int:
    return int(server.info("stats")["total_reads_processed"])


def test_the_calls_of_many_tasks_leave_together(place: Place, redis_server: Server) -> None:
    async def work(queue: Queue, rounds: int) -> None:
        for _ in range(rounds):
            await queue.publish("x")
            message = await queue.receive(timeout=30)
            assert message is not None
            await queue.ack(message)

    async def main() -> None:
        async with await OpenQ.open("jobs", **place) as queue:
            await work(queue, 1)
            before = reads(redis_server)
            await asyncio.gather(*(work(queue, 20) for _ in range(50)))
            assert reads(redis_server) - before < 50 * 20  # of three calls each
            assert len(queue) == 0

    asyncio.run(main())


def test_no_thread_is_started_for_a_call(place: Place) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", **place) as queue:
            await queue.publish("first")
            before = set(threading.enumerate())

            async def work() -> None:
                await queue.publish("x")
                message = await queue.receive(timeout=30)
                assert message is not None
                await message.nack()
                await queue.peek()
                await queue.stats()

            await asyncio.gather(*(work() for _ in range(20)))
            new = {thread.name for thread in set(threading.enumerate()) - before}
            assert not [name for name in new if name.startswith(("openq-call", "asyncio"))]

    asyncio.run(main())


def test_a_cancelled_receive_loses_nothing(place: Place) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", **place) as queue:
            for i in range(40):
                waiting = asyncio.create_task(queue.receive(timeout=None))
                publishing = asyncio.create_task(queue.publish(str(i)))
                for _ in range(i % 8):
                    await asyncio.sleep(0)
                waiting.cancel()
                await publishing
                try:
                    message = await waiting
                except asyncio.CancelledError:
                    message = await queue.receive(timeout=30)
                assert message is not None
                assert message.body == str(i)
                await message.ack()

    asyncio.run(main())


def test_a_task_cancelled_at_any_moment_gives_back_what_was_on_its_way(place: Place) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", **place) as queue:
            await queue.publish("x")
            for turns in range(30):
                task = asyncio.create_task(queue.receive(timeout=None))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    taken = await task
                except asyncio.CancelledError:
                    continue
                assert taken is not None
                await taken.nack(delay=0)
            message = await queue.receive(timeout=30)
            assert message is not None

    asyncio.run(main())


def test_several_loops_use_one_object(place: Place) -> None:
    queue = OpenQ("jobs", **place)
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    async def work(name: str) -> None:
        for i in range(30):
            await queue.publish(f"{name}-{i}")
        while (message := await queue.receive(timeout=2)) is not None:
            with lock:
                seen[message.body] += 1
            await message.ack()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(str(n)))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    asyncio.run(queue.close())

    assert seen == {f"{n}-{i}": 1 for n in range(3) for i in range(30)}


def test_one_loop_after_the_other_uses_one_object(place: Place) -> None:
    queue = OpenQ("jobs", **place)
    for i in range(5):
        asyncio.run(queue.publish(str(i)))
    assert [message.body for message in queue.queue] == ["0", "1", "2", "3", "4"]
    asyncio.run(queue.close())


def test_who_waits_on_a_loop_is_served_by_a_thread(place: Place) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", **place) as queue:
            with openq.OpenQ("jobs", **place) as other:
                waiting = [asyncio.create_task(queue.receive(timeout=None)) for _ in range(5)]
                await asyncio.sleep(0)
                await asyncio.to_thread(other.publish_many, [str(i) for i in range(5)])
                received: list[Message | None] = await asyncio.gather(*waiting)
                assert sorted(m.body for m in received if m is not None) == ["0", "1", "2", "3", "4"]
                await queue.ack_many([m for m in received if m is not None])
                assert len(other) == 0

    asyncio.run(main())


def test_closing_ends_the_waits(place: Place) -> None:
    async def main() -> None:
        queue = await OpenQ.open("jobs", **place)
        waiting = [asyncio.create_task(queue.receive(timeout=None)) for _ in range(3)]
        await asyncio.sleep(0)
        await queue.close()
        assert await asyncio.gather(*waiting) == [None, None, None]
        with pytest.raises(openq.Closed):
            await queue.publish("x")

    asyncio.run(main())


@pytest.fixture
def durable() -> Iterator[Server]:
    with single(*FORCED) as server:
        yield server


def test_tasks_go_on_when_redis_was_restarted(durable: Server) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", url=durable.url, visibility_timeout=2) as queue:
            done: set[str] = set()

            async def handle(message: Message) -> None:
                done.add(message.body)

            async with Consumer(queue, handle, concurrency=5):
                sent: set[str] = set()
                for i in range(100):
                    try:
                        await queue.publish(str(i))
                    except openq.OpenQError:
                        continue  # its outcome is unknown
                    sent.add(str(i))
                    if i in (30, 60):
                        await asyncio.to_thread(durable.kill9)
                        await asyncio.to_thread(durable.start)
                async with asyncio.timeout(60):
                    while not done >= sent:
                        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_who_waits_over_a_restart_is_served_after_it(durable: Server) -> None:
    async def main() -> None:
        async with await OpenQ.open("jobs", url=durable.url) as queue:
            await queue.publish("first")
            first = await queue.receive()
            assert first is not None
            waiting = asyncio.create_task(queue.receive(timeout=None))
            await asyncio.sleep(0)
            await asyncio.to_thread(durable.kill9)
            await asyncio.to_thread(durable.start)
            await queue.ack(first)
            await queue.publish("after")
            async with asyncio.timeout(60):
                message = await waiting
            assert message is not None
            assert message.body == "after"

    asyncio.run(main())
