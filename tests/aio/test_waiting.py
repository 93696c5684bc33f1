"""Waiting: for the disk together, for messages without losing one, on any number of loops."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
import uvloop

import openq
from openq import JournalFailed
from openq.aio import OpenQ
from openq.aio.waiting import commit_notifier
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from tests.aio.helpers import until_waiting
from tests.waiting import until_async


class SlowIo(DiskIo):
    """A disk whose syncs wait for the gate to open, or fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False

    def fdatasync(self, fd: int) -> None:
        assert self.gate.wait(30)
        if self.failing:
            raise OSError(errno.EIO, "no more")
        super().fdatasync(fd)


def slow_broker(path: Path) -> tuple[LocalBroker, SlowIo]:
    io = SlowIo()
    return LocalBroker(journal=Journal(path, io=io)), io


# -- for the disk -------------------------------------------------------------------------------


def test_publishers_of_one_tick_share_a_commit(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue, other = OpenQ("orders", broker=broker), OpenQ("others", broker=broker)
        assert broker.journal is not None
        io.gate.clear()
        before = broker.journal.group
        publishing = [asyncio.create_task(each.publish("a")) for each in (queue, other) for _ in range(100)]
        await until_async(lambda: len(queue) == len(other) == 100)
        await asyncio.sleep(0)
        io.gate.set()
        await asyncio.gather(*publishing)

        # One commit under way while the gate was shut, and at most one more for those who came meanwhile.
        assert broker.journal.group - before <= 3
        broker.close()

    asyncio.run(main())


def test_nothing_is_answered_before_it_is_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker)
        io.gate.clear()
        publishing = asyncio.create_task(queue.publish("a"))
        await until_async(lambda: len(queue) == 1)
        receiving = asyncio.create_task(queue.receive())
        await until_async(lambda: len(queue) == 0)
        for _ in range(10):
            await asyncio.sleep(0)

        assert not publishing.done()
        assert not receiving.done()
        io.gate.set()
        message_id = await publishing
        message = await receiving
        assert message is not None
        assert message.id == message_id
        broker.close()

    asyncio.run(main())


def test_a_call_that_changed_nothing_waits_for_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker)
        first = await queue.publish("a", unique_key="only one")
        io.gate.clear()
        assert await queue.publish("a", unique_key="only one") == first
        io.gate.set()
        broker.close()

    asyncio.run(main())


def test_a_message_whose_publish_failed_is_never_seen(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker)
        io.gate.clear()
        receiving = asyncio.create_task(queue.receive())
        await until_waiting(queue)
        publishing = asyncio.create_task(queue.publish("a"))
        await until_async(lambda: queue.inner.stats().in_flight == 1)
        io.failing = True
        io.gate.set()
        errors = await asyncio.gather(receiving, publishing, return_exceptions=True)
        assert [type(error) for error in errors] == [JournalFailed, JournalFailed]
        broker.close()

    asyncio.run(main())


def test_a_relaxed_queue_answers_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker, relaxed=True)
        io.gate.clear()
        await queue.publish("a")
        io.gate.set()
        broker.close()

    asyncio.run(main())


def test_a_failed_disk_raises_in_every_wait_now_and_later(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker)
        await queue.publish("a")
        io.gate.clear()
        waiting = [asyncio.create_task(queue.publish("b")) for _ in range(5)]
        gone = asyncio.create_task(queue.publish("c"))
        await until_async(lambda: len(queue) == 7)
        gone.cancel()
        await asyncio.sleep(0)
        io.failing = True
        io.gate.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)

        assert all(isinstance(error, JournalFailed) for error in errors)
        assert len({id(error) for error in errors}) == 5
        for call in (queue.publish("d"), queue.receive(), queue.receive_many(2)):
            with pytest.raises(JournalFailed):
                await call
        broker.close()

    asyncio.run(main())


def test_queue_objects_on_one_loop_wait_together_and_loops_do_not(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    first, same, other = (commit_notifier(broker, loop) for loop in (loops[0], loops[0], loops[1]))

    assert first is same
    assert first is not other
    for loop in loops:
        loop.close()
    broker.close()


def test_a_closed_loop_does_not_disturb_others(tmp_path: Path) -> None:
    broker, io = slow_broker(tmp_path)
    queue = OpenQ("orders", broker=broker)
    loop = asyncio.new_event_loop()
    io.gate.clear()
    task = loop.create_task(queue.publish("a"))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    io.gate.set()

    sync = openq.OpenQ("orders", broker=broker)
    sync.publish("b")
    assert [message.body for message in sync.queue] == ["a", "b"]
    broker.close()


# -- for messages -------------------------------------------------------------------------------


def test_n_messages_wake_n_tasks() -> None:
    async def main() -> None:
        queue = OpenQ("orders")
        waiting = [asyncio.create_task(queue.receive(timeout=None)) for _ in range(5)]
        await until_waiting(queue, 5)
        await queue.publish_many(["a", "b", "c"])
        await until_async(lambda: sum(task.done() for task in waiting) == 3)

        assert (await queue.stats()).waiters == 2
        await queue.close()
        received = await asyncio.gather(*waiting)
        assert sorted(message.body for message in received if message is not None) == ["a", "b", "c"]

    asyncio.run(main())


def test_receive_returns_nothing_when_its_time_is_up() -> None:
    async def main() -> None:
        queue = OpenQ("orders")
        assert await queue.receive(timeout=0) is None
        assert await queue.receive(timeout=0.01) is None
        assert await queue.receive_many(5, timeout=-1) == []
        assert (await queue.stats()).waiters == 0

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_line() -> None:
    async def main() -> None:
        queue = OpenQ("orders")
        waiting = asyncio.create_task(queue.receive(timeout=None))
        await until_waiting(queue)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await queue.stats()).waiters == 0
        await queue.publish("a")
        assert len(queue) == 1

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["served", "woken"])
def test_a_task_cancelled_with_a_message_on_its_way_gives_it_back_uncounted(moment: str) -> None:
    async def main() -> None:
        queue = OpenQ("orders")
        waiting = asyncio.create_task(queue.receive(timeout=None))
        await until_waiting(queue)
        queue.inner.publish("a")  # served from here on: the lease is the task's, which does not know yet
        assert (await queue.stats()).in_flight == 1
        if moment == "served":
            waiting.cancel()
        else:
            asyncio.get_running_loop().call_soon(waiting.cancel)  # after the wake-up, before the task runs
        with pytest.raises(asyncio.CancelledError):
            await waiting

        message = await queue.receive(timeout=0)
        assert message is not None
        assert message.receive_count == 1

    asyncio.run(main())


def test_a_task_cancelled_while_its_message_goes_to_disk_gives_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        broker, io = slow_broker(tmp_path)
        queue = OpenQ("orders", broker=broker)
        io.gate.clear()
        publishing = asyncio.create_task(queue.publish("a"))
        await until_async(lambda: len(queue) == 1)
        receiving = asyncio.create_task(queue.receive())
        await until_async(lambda: len(queue) == 0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert len(queue) == 1
        io.gate.set()
        await publishing
        message = await queue.receive(timeout=0)
        assert message is not None
        assert message.receive_count == 1
        broker.close()

    asyncio.run(main())


def test_a_message_in_processing_goes_back_when_the_task_is_cancelled() -> None:
    async def main() -> None:
        queue = OpenQ("orders")
        await queue.publish("a")
        began = asyncio.Event()

        async def work() -> None:
            async with queue.processing():
                began.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        message = await queue.receive(timeout=0)
        assert message is not None
        assert (message.receive_count, message.reason) == (1, None)

    asyncio.run(main())


def test_a_loop_closed_over_a_waiting_task_gives_the_message_back() -> None:
    queue = OpenQ("orders")
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(queue.receive(timeout=None))
    loop.run_until_complete(until_waiting(queue))
    loop.close()
    sync = openq.OpenQ("orders", broker=queue.broker)

    sync.publish("a")
    message = sync.receive(timeout=30)

    assert message is not None
    assert message.receive_count == 1
    waiting.get_coro().close()  # type: ignore[union-attr]
    # What asyncio would otherwise log when the task is collected.
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


# -- many loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_loops_and_threads_share_one_target(tmp_path: Path, kind: str) -> None:
    """Three loops and a thread publish, three loops and a thread consume: each message once."""
    each = 200
    got: list[str] = []
    owner = openq.OpenQ("orders", path=tmp_path)

    async def produce(label: str) -> None:
        async with OpenQ("orders", path=tmp_path) as queue:
            await asyncio.gather(*(queue.publish(f"{label} {n}") for n in range(each)))

    async def consume(label: str) -> None:
        async with OpenQ("orders", path=tmp_path) as queue:
            for _ in range(each):
                message = await queue.receive(timeout=60)
                assert message is not None
                got.append(message.body)
                await message.ack()

    def produce_here() -> None:
        for n in range(each):
            owner.publish(f"thread {n}")

    def consume_here() -> None:
        for _ in range(each):
            message = owner.receive(timeout=60)
            assert message is not None
            got.append(message.body)
            message.ack()

    def in_loop(work: object, label: str) -> None:
        factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work(label))  # type: ignore[operator]

    threads = [threading.Thread(target=work) for work in (produce_here, consume_here)]
    for number in range(3):
        threads.append(threading.Thread(target=in_loop, args=(consume, f"loop {number}")))
        threads.append(threading.Thread(target=in_loop, args=(produce, f"loop {number}")))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == len(set(got)) == 4 * each
    assert owner.stats().ready == owner.stats().in_flight == 0
    owner.close()


def test_one_queue_object_may_be_used_from_several_loops(tmp_path: Path) -> None:
    queue = OpenQ("orders", path=tmp_path)

    async def work() -> None:
        for _ in range(50):
            await queue.publish("a")
            message = await queue.receive()
            assert message is not None
            await message.ack()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert queue.inner.stats().counters["acked"] == 150
    asyncio.run(queue.close())
