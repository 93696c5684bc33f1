"""`openq.aio.Consumer`: receives, works, acks; stops without losing anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from openq import InvalidSetting, VirtualClock
from openq.aio import Consumer, Message, OpenQ, Queue
from tests.aio.helpers import until_waiting
from tests.waiting import until_async


def run(test: Callable[[Queue], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), OpenQ("orders", **settings) as queue:
            await test(queue)

    asyncio.run(main())


def test_messages_are_handled_and_acked() -> None:
    async def test(queue: Queue) -> None:
        done: list[Any] = []

        async def handle(message: Message) -> None:
            done.append(message.body)

        await queue.publish_many(["a", "b", "c"])
        async with Consumer(queue, handle) as consumer:
            await queue.join()
            await until_async(lambda: consumer.processed == 3)
            assert consumer.running
        assert not consumer.running
        assert done == ["a", "b", "c"]

    run(test)


def test_as_many_as_allowed_are_in_work_at_a_time_and_no_more() -> None:
    async def test(queue: Queue) -> None:
        working = most = 0
        gate = asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal working, most
            working += 1
            most = max(most, working)
            await gate.wait()
            working -= 1

        await queue.publish_many([str(n) for n in range(20)])
        async with Consumer(queue, handle, concurrency=5) as consumer:
            await until_async(lambda: working == 5)
            assert (await queue.stats()).in_flight == 5
            gate.set()
            await until_async(lambda: consumer.processed == 20)
        assert most == 5

    run(test)


def test_a_failed_message_goes_back_with_the_reason_and_the_consumer_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(queue: Queue) -> None:
        reasons: list[str | None] = []

        async def handle(message: Message) -> None:
            reasons.append(message.reason)
            if message.receive_count == 1:
                raise ValueError("not yet")

        await queue.publish("a")
        async with Consumer(queue, handle) as consumer:
            await until_async(lambda: consumer.processed == 1)
        assert consumer.failed == 1
        assert reasons == [None, "ValueError: not yet"]

    with caplog.at_level(logging.WARNING, "openq"):
        run(test)
    assert "of queue 'orders', attempt 1 failed" in caplog.text
    # Not in the text: another library of the process may have changed how tracebacks are written.
    [failure] = [record.exc_info for record in caplog.records if record.exc_info]
    assert repr(failure[1]) == "ValueError('not yet')"


def test_stop_ends_a_wait_at_once_and_the_line_is_empty() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        consumer = Consumer(queue, handle, concurrency=3)
        consumer.start()
        consumer.start()
        await until_waiting(queue, 3)
        await consumer.stop()
        assert not consumer.running
        assert (await queue.stats()).waiters == 0

    run(test)


def test_stop_lets_the_message_in_work_finish_and_leaves_the_rest() -> None:
    async def test(queue: Queue) -> None:
        began, gate = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            began.set()
            await gate.wait()

        await queue.publish_many(["a", "b"])
        consumer = Consumer(queue, handle)
        consumer.start()
        await began.wait()
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping

        assert consumer.processed == 1
        assert [message.body for message in queue.messages] == ["b"]
        assert (await queue.stats()).in_flight == 0

    run(test)


def test_stop_before_the_tasks_ran_takes_nothing() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        await queue.publish("a")
        consumer = Consumer(queue, handle)
        await consumer.stop()
        consumer = Consumer(queue, handle)
        consumer.start()
        await consumer.stop()
        assert len(queue) == 1

    run(test)


@pytest.mark.parametrize("how", ["stop with a timeout", "cancel of run"])
def test_work_that_is_cancelled_goes_back_to_the_queue(how: str) -> None:
    async def test(queue: Queue) -> None:
        began = asyncio.Event()

        async def handle(message: Message) -> None:
            began.set()
            await asyncio.Event().wait()

        await queue.publish("a")
        consumer = Consumer(queue, handle)
        running = asyncio.create_task(consumer.run())
        await began.wait()
        if how == "cancel of run":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            await consumer.stop(timeout=0)
            await running

        assert not consumer.running
        [message] = queue.queue
        assert message.receive_count == 0

    run(test)


def test_it_ends_by_itself_when_nothing_came_for_its_idle_timeout() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        await queue.publish_many(["a", "b"])
        consumer = Consumer(queue, handle, concurrency=2, idle_timeout=0)
        await consumer.run()
        assert consumer.processed == 2

    run(test)


def test_it_ends_when_the_queue_is_closed() -> None:
    async def main() -> None:
        async def handle(message: Message) -> None: ...

        queue = OpenQ("orders")
        consumer = Consumer(queue, handle)
        consumer.start()
        await until_waiting(queue)
        await queue.close()
        async with asyncio.timeout(30):
            await consumer.join()

    asyncio.run(main())


def test_a_handler_may_settle_its_message_itself() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None:
            await message.reject("useless")

        await queue.publish("a")
        consumer = Consumer(queue, handle, idle_timeout=0, heartbeat=True)
        await consumer.run()
        assert consumer.processed == 1
        assert queue.messages == []

    run(test)


def test_a_lease_that_ended_meanwhile_is_a_warning_and_no_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None:
            if message.receive_count == 1:
                clock.advance(31)

        await queue.publish("a")
        consumer = Consumer(queue, handle, idle_timeout=0)
        await consumer.run()
        assert consumer.processed == 2
        assert queue.messages == []

    with caplog.at_level(logging.WARNING, "openq"):
        run(test, clock=clock)
    assert "could not be settled" in caplog.text


def test_only_messages_that_it_selects_are_taken() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        await queue.publish("a", message_type="new")
        await queue.publish("b", message_type="paid")
        await queue.publish("c", message_type="paid", attributes={"shop": "eu"})
        chosen = {"types": ["paid"], "attributes": {"shop": "eu"}}
        await Consumer(queue, handle, idle_timeout=0, **chosen).run()
        assert [message.body for message in queue.messages] == ["a", "b"]
        assert await queue.receive(0, types=["paid"], attributes={"shop": "us"}) is None
        assert [each.body for each in await queue.receive_many(attributes={}, types=["paid"])] == ["b"]

    run(test)


def test_an_unexpected_error_is_logged_and_ends_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        queue.broker.delete(queue.name)
        await Consumer(queue, handle).run()

    run(test)
    assert "the consumer of queue 'orders' stopped" in caplog.text


def test_wrong_settings_are_refused() -> None:
    async def test(queue: Queue) -> None:
        async def handle(message: Message) -> None: ...

        with pytest.raises(InvalidSetting, match="concurrency"):
            Consumer(queue, handle, concurrency=0)
        for wrong in ({"visibility_timeout": -1}, {"types": "paid"}, {"name": 5}, {"idle_timeout": "x"}):
            with pytest.raises(InvalidSetting, match=next(iter(wrong))):
                Consumer(queue, handle, **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting, match="handler"):
            Consumer(queue, "handle")  # type: ignore[arg-type]

    run(test)
