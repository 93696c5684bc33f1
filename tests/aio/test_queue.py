"""`openq.aio.Queue`: the verbs of `openq.Queue`, awaited, in memory and on disk."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import openq
from openq import (
    Closed,
    InvalidSetting,
    MessageNotFoundError,
    QueueFull,
    VirtualClock,
    VisibilityTimeoutExpired,
)
from openq.aio import Message, OpenQ, Queue
from openq.client.queues import Queue as SyncQueue
from openq.local.broker import LocalBroker
from tests.aio.helpers import until_waiting
from tests.client.thread_server import ThreadServer
from tests.waiting import until_async

Place = dict[str, Any]


@pytest.fixture(params=["memory", "disk", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "server":
        with ThreadServer(LocalBroker()) as server:
            yield {"url": server.url}
    else:
        yield {"path": tmp_path / "data"} if request.param == "disk" else {}


def run(test: Callable[[Queue], Awaitable[None]], place: Place, **settings: Any) -> None:
    """The test's body on a queue of its own, in a loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(60):
            async with await OpenQ.open("orders", **place, **settings) as queue:
                await test(queue)

    asyncio.run(main())


# -- the same names -----------------------------------------------------------------------------

# Plain on purpose: they only look at what is in memory, or hand something out.
PLAIN = {
    *("closed", "dlq", "in_flight", "maxsize", "messages", "name", "queue", "settings", "unfinished_tasks"),
    *(
        "broker",
        "codec",
        "exchanges",
        "kv",
        "schedules",
        "webhooks",
        "visibility_timeout",
        "qsize",
        "empty",
        "full",
    ),
    *("on_msg_received", "onMsgReceived", "subscribe", "events", "processing", "listen"),
}


def test_every_verb_of_the_queue_is_a_coroutine_here() -> None:
    verbs = {name for name in dir(SyncQueue) if not name.startswith("_")} - PLAIN

    missing = {name for name in verbs if not inspect.iscoroutinefunction(getattr(Queue, name, None))}
    assert missing == set()
    assert {name for name in PLAIN if hasattr(SyncQueue, name) and not hasattr(Queue, name)} == set()


@pytest.mark.parametrize(
    "name",
    ["publish", "receive", "receive_many", "ack", "nack", "reject", "extend", "peek", "edit", "reschedule"],
)
def test_the_parameters_are_the_same_too(name: str) -> None:
    def parameters(owner: type) -> list[tuple[str, Any]]:
        signature = inspect.signature(getattr(owner, name))
        return [(each.name, each.default) for each in signature.parameters.values()]

    assert parameters(Queue) == parameters(SyncQueue)


def test_openq_itself_does_not_load_asyncio() -> None:
    program = "import sys, openq; openq.OpenQ('x').publish('y'); sys.exit('asyncio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


# -- messages -----------------------------------------------------------------------------------


def test_publish_receive_ack(place: Place) -> None:
    async def test(queue: Queue) -> None:
        message_id = await queue.publish("one coffee")
        message = await queue.receive()

        assert message is not None
        assert (message.id, message.body, message.receive_count) == (message_id, "one coffee", 1)
        await message.ack()
        assert len(queue.messages) == 0
        assert await queue.status(message_id) == "processed"

    run(test, place)


def test_bodies_and_options_travel(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish({"n": 1}, message_type="new", attributes={"shop": "north"})
        await queue.publish(b"\xff", priority=9)
        ids = await queue.publish_many(["a", {"body": "b", "message_type": "late"}])
        received = await queue.receive_many(10)

        assert [message.body for message in received] == [b"\xff", {"n": 1}, "a", "b"]
        assert received[1].attributes == {"shop": "north"}
        assert [message.id for message in received[2:]] == ids
        await queue.ack_many(received)
        assert len(queue.messages) == 0

    run(test, place)


def test_messages_on_disk_are_there_after_reopening(tmp_path: Path) -> None:
    async def first(queue: Queue) -> None:
        await queue.publish_many(["a", "b"])
        message = await queue.receive()
        assert message is not None
        await message.ack()

    async def second(queue: Queue) -> None:
        assert [message.body for message in queue.queue] == ["b"]

    run(first, {"path": tmp_path})
    run(second, {"path": tmp_path})


def test_a_message_may_be_acked_by_receipt_or_id(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish_many(["a", "b", "c"])
        first, second, third = await queue.receive_many(3)

        await queue.ack(first.receipt_id)
        await queue.acknowledge(second.id)
        await queue.delete(third)
        assert queue.in_flight == {}
        with pytest.raises(MessageNotFoundError):
            await queue.ack(first)

    run(test, place)


def test_nack_reject_and_extend(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish("a")
        message = await queue.receive()
        assert message is not None
        until = await message.extend(600)
        assert until is not None
        assert until - message.received_at > timedelta(seconds=500)
        assert await message.nack(reason="busy") == "returned"
        again = await queue.receive()
        assert again is not None
        assert (again.receive_count, again.reason) == (2, "busy")
        assert await again.reject("useless") == "dead-lettered"
        assert len(queue.messages) == 0

    run(test, place, dlq="dead")


def test_an_expired_lease_is_refused() -> None:
    clock = VirtualClock()

    async def test(queue: Queue) -> None:
        await queue.publish("a")
        message = await queue.receive()
        assert message is not None
        clock.advance(31)
        with pytest.raises(VisibilityTimeoutExpired):
            await message.ack()

    run(test, {"clock": clock})


def test_publish_many_keeps_the_others_when_one_is_refused() -> None:
    async def test(queue: Queue) -> None:
        with pytest.raises(QueueFull):
            await queue.publish_many([{"body": "a", "priority": 1}, "b", "c"])
        assert [message.body for message in queue.queue] == ["a", "b"]

    run(test, {}, max_length=2, overflow="reject")


def test_text_that_cannot_be_encoded_is_refused(place: Place) -> None:
    async def test(queue: Queue) -> None:
        with pytest.raises(InvalidSetting, match="UTF-8"):
            await queue.publish("\ud800")
        with pytest.raises(InvalidSetting, match="max must be"):
            await queue.receive_many(0)
        assert len(queue) == 0
        assert queue  # a queue, though empty

    run(test, place)


# -- context managers and loops -----------------------------------------------------------------


def test_processing_acks_at_the_end_and_nacks_on_an_exception(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish("a")

        async def fail() -> None:
            async with queue.processing():
                raise ZeroDivisionError("oh")

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with queue.processing(heartbeat=True) as message:
            assert message is not None
            assert message.reason == "ZeroDivisionError: oh"
        async with queue.processing(timeout=0) as message:
            assert message is None

    run(test, place)


def test_a_message_is_a_context_manager_itself(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish_many(["a", "b"])
        first = await queue.receive()
        assert first is not None
        async with first:
            pass
        second = await queue.receive()
        assert second is not None
        async with second:
            await second.ack()  # by hand: not acked a second time
        with pytest.raises(TypeError, match="async with"), second:
            pass
        assert len(queue.messages) == 0

    run(test, place)


def test_the_error_of_a_handler_is_seen_even_if_its_lease_is_over() -> None:
    clock = VirtualClock()

    async def test(queue: Queue) -> None:
        await queue.publish("a")

        async def fail_late() -> None:
            async with queue.processing():
                clock.advance(31)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_late()

    run(test, {"clock": clock})


def test_a_queue_can_be_iterated(place: Place) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish_many(["a", "b", "c"])
        bodies = []
        async for message in queue:
            bodies.append(message.body)
            await message.ack()
            if len(bodies) == 3:
                break
        assert bodies == ["a", "b", "c"]

    run(test, place)


def test_hooks_run_after_the_message_is_stored(place: Place) -> None:
    async def test(queue: Queue) -> None:
        seen = []
        queue.on_msg_received(lambda message: seen.append((message.body, len(queue))))
        await queue.publish("a")
        await queue.publish_many(["b", {"body": "c", "priority": 1}])
        assert seen == [("a", 1), ("b", 3), ("c", 3)]

    run(test, place)


@pytest.mark.parametrize("place", ["memory", "disk"], indirect=True)
def test_listeners_hear_of_every_change(place: Place) -> None:
    async def test(queue: Queue) -> None:
        events = []
        stop = queue.subscribe(lambda event: events.append(event["event"]))
        await queue.publish("a")
        message = await queue.receive()
        assert message is not None
        await message.nack()
        message = await queue.receive(visibility_timeout=10)
        assert message is not None
        await message.ack()
        await until_async(lambda: len(events) >= 5)  # in a shared store they come in another thread
        stop()
        assert events == ["published", "received", "requeued", "received", "acked"]

    run(test, place)


# -- looking and mending ------------------------------------------------------------------------


def test_inspecting_changes_nothing(place: Place) -> None:
    async def test(queue: Queue) -> None:
        first, last = await queue.publish_many(["a", "z"])
        looked = await queue.peek()
        rear = await queue.peek(rear=True)
        assert looked is not None
        assert rear is not None
        assert (looked.id, rear.id) == (first, last)
        assert [message.body for message in await queue.peek_many()] == ["a", "z"]
        assert [message.id for message in await queue.search("z")] == [last]
        assert (await queue.stats()).ready == 2
        assert await queue.status(first) == "unprocessed"
        assert [step.what for step in await queue.timeline(first)] == ["published"]
        assert await queue.trace(first) == ["publishMsg", "onMsgReceived", "stored"]
        assert (await queue.why(first)).code
        assert len(queue) == queue.qsize() == 2
        assert not queue.empty()
        assert not queue.full()

    run(test, place)


def test_admin_calls(place: Place) -> None:
    async def test(queue: Queue) -> None:
        async with OpenQ("other", broker=queue.broker) as other:
            a, b, c, d = await queue.publish_many(["a", "b", "c", "d"])
            await queue.cancel(a)
            await queue.edit(b, "B")
            await queue.move(c, other)
            await queue.reschedule(d, delay=60)
            assert [message.body for message in queue.messages] == ["B", "d"]
            assert [message.body for message in other.queue] == ["c"]
            await queue.pause()
            assert await queue.receive(timeout=0) is None
            await queue.resume()
            message = await queue.receive(timeout=0)
            assert message is not None
            assert await queue.purge() == 2
            await queue.requeue_expired()

    run(test, place)


def test_redrive_and_replay(place: Place) -> None:
    async def test(queue: Queue) -> None:
        async with OpenQ("dead", broker=queue.broker) as dead:
            first = await queue.publish("a")
            message = await queue.receive()
            assert message is not None
            await message.reject("no")
            assert await dead.redrive() == 1
            message = await queue.receive()
            assert message is not None
            await message.ack()
            assert await queue.replay_from(first) == 1
            message = await queue.receive()
            assert message is not None
            assert message.id == first

    run(test, place, dlq="dead")


def test_save_and_load(place: Place, tmp_path: Path) -> None:
    async def test(queue: Queue) -> None:
        await queue.publish_many(["a", "b"])
        assert await queue.save(tmp_path / "orders.json") == 2
        await queue.purge()
        assert await queue.load(tmp_path / "orders.json") == 2
        assert [message.body for message in queue.queue] == ["a", "b"]

    run(test, place)


# -- the shape of asyncio.Queue -----------------------------------------------------------------


def test_workers_written_for_asyncio_queue(place: Place) -> None:
    async def test(queue: Queue) -> None:
        done = []

        async def worker() -> None:
            while True:
                done.append(await queue.get())
                await queue.task_done()

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for number in range(20):
            await queue.put(number)
        await queue.join()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(done) == list(range(20))
        assert queue.unfinished_tasks == 0

    run(test, place)


def test_put_waits_for_room_and_put_nowait_does_not() -> None:
    async def test(queue: Queue) -> None:
        await queue.put("a")
        assert queue.full()
        with pytest.raises(asyncio.QueueFull):
            await queue.put_nowait("b")
        putting = asyncio.create_task(queue.put("b"))
        await asyncio.sleep(0)
        assert await queue.get_nowait() == "a"
        await queue.task_done()
        await putting
        assert await queue.get() == "b"
        await queue.task_done()
        with pytest.raises(asyncio.QueueEmpty):
            await queue.get_nowait()
        with pytest.raises(ValueError, match="too many times"):
            await queue.task_done()

    run(test, {}, maxsize=1)


def test_task_done_of_a_purged_item_does_not_raise() -> None:
    async def test(queue: Queue) -> None:
        await queue.put("a")
        await queue.get()
        await queue.purge()
        await queue.task_done()

    run(test, {})


# -- opening and closing ------------------------------------------------------------------------


def test_a_closed_queue_says_so(place: Place) -> None:
    async def main() -> None:
        queue = await OpenQ.open("orders", **place)
        await queue.close()
        await queue.close()
        assert queue.closed
        for call in (queue.publish("a"), queue.receive(), queue.peek(), queue.purge(), queue.publish(b"a")):
            with pytest.raises(Closed):
                await call

    asyncio.run(main())


def test_closing_ends_the_waits(place: Place) -> None:
    async def main() -> None:
        queue = await OpenQ.open("orders", **place)
        waiting = asyncio.create_task(queue.receive(timeout=None))
        await until_waiting(queue)
        await queue.close()
        assert await waiting is None

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["receive", "get"])
def test_closing_one_queue_object_ends_its_own_waits_and_no_others(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        mine, other = OpenQ("orders", path=tmp_path), OpenQ("orders", path=tmp_path)
        waiting = asyncio.create_task(mine.receive(timeout=None) if verb == "receive" else mine.get())
        await until_waiting(other)
        staying = asyncio.create_task(other.receive(timeout=None))
        await until_waiting(other, 2)

        await mine.close()

        await asyncio.wait([waiting])
        if verb == "receive":
            assert waiting.result() is None
        else:
            assert isinstance(waiting.exception(), asyncio.QueueEmpty)
        await other.publish("for the one who stayed")
        assert await staying is not None
        await other.close()

    asyncio.run(main())


def test_messages_served_to_a_task_while_the_queue_closes_are_released_uncounted(tmp_path: Path) -> None:
    async def main() -> None:
        mine, other = OpenQ("orders", path=tmp_path), OpenQ("orders", path=tmp_path)
        waiting = asyncio.create_task(mine.receive(timeout=None))
        await until_waiting(other)
        other.inner.publish("x")  # served; the task wakes up when the loop comes to it
        mine.inner.close()

        assert await waiting is None
        message = await other.receive(timeout=0)
        assert message is not None
        assert message.receive_count == 1
        await other.close()

    asyncio.run(main())


def test_a_dlq_may_be_a_queue_of_either_kind() -> None:
    async def main() -> None:
        async with OpenQ("dead") as dead, OpenQ("orders", dlq=dead) as orders:
            assert orders.broker is dead.broker
            assert orders.dlq == "dead"
        plain = openq.OpenQ("dead")
        async with OpenQ("orders", dlq=plain) as orders:
            assert orders.broker is plain.broker
            assert repr(orders) == "<openq.aio.Queue 'orders' in memory>"

    asyncio.run(main())


def test_a_message_in_flight_can_be_acked_from_the_snapshot(place: Place) -> None:
    async def test(queue: Queue) -> None:
        message_id = await queue.publish("a")
        await queue.receive()
        message, _ = queue.in_flight[message_id]
        assert isinstance(message, Message)
        await message.ack()
        assert queue.in_flight == {}

    run(test, place)
