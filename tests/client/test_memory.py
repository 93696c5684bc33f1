"""No leaks: what is acked, purged or closed leaves nothing behind."""

import gc
import sys
import threading
import tracemalloc
import weakref

from openq import OpenQ, VirtualClock
from tests.client.helpers import take


def in_use() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_memory_is_back_where_it_was_after_200_000_messages() -> None:
    clock = VirtualClock()
    queue = OpenQ("jobs", clock=clock)

    def work(count: int) -> int:
        for _ in range(count):
            queue.publish("a body of some length")
            message = queue.receive(timeout=0)
            assert message is not None
            queue.ack(message)
        clock.advance(60)  # past every deadline there was
        gc.collect()
        return sys.getallocatedblocks()

    before = work(20_000)  # the bounded history is full from here on
    grown = work(200_000) - before

    assert queue.messages == []
    # A leak of one object per message would show as 200 000.
    assert grown < 5_000, f"{grown} objects more than before"


def test_leases_that_end_leave_no_timers_behind() -> None:
    clock = VirtualClock()
    queue = OpenQ("jobs", 12 * 3600, clock=clock)

    for _ in range(30_000):
        queue.publish("x")
        take(queue).ack()

    assert queue.broker.engine.timers.size < 20_000


def test_a_purge_gives_the_memory_back() -> None:
    queue = OpenQ("jobs", history=0)
    queue.publish_many(["warm up"] * 1000)
    queue.purge()
    tracemalloc.start()
    try:
        before = in_use()
        for _ in range(50):
            queue.publish_many(["x" * 200] * 1000)
            queue.receive_many(500, timeout=0)
            queue.purge()
        grown = in_use() - before
    finally:
        tracemalloc.stop()

    assert grown < 20_000_000, f"{grown} bytes more than before"


def test_a_forgotten_queue_is_collected_with_its_threads() -> None:
    before = set(threading.enumerate())
    queue = OpenQ("jobs")
    queue.receive(timeout=0.001)  # from here on a thread waits for what comes due
    [ticker] = set(threading.enumerate()) - before
    forgotten = weakref.ref(queue.broker)
    del queue
    gc.collect()

    assert not ticker.is_alive()
    del ticker
    assert forgotten() is None


def test_a_closed_queue_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with OpenQ("jobs", visibility_timeout=5) as queue:
        queue.publish("x")
        with queue.processing(heartbeat=True):
            pass
        queue.receive(timeout=0.001)

    assert set(threading.enumerate()) <= before


def test_a_received_message_is_small() -> None:
    queue = OpenQ("jobs")
    queue.publish("x")

    assert sys.getsizeof(take(queue)) < 120
