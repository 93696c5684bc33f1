"""The pytest plugin: installed with OpenQ, it offers these fixtures to every test.

    def test_a_failed_order_is_tried_again(openq_queue, openq_clock):
        orders = openq_queue("orders", visibility_timeout=30)
        orders.publish("one coffee")
        orders.receive()

        openq_clock.advance(30)

        assert orders.receive(timeout=0).receive_count == 2

`openq_clock`   a `VirtualClock` that stands still until `advance(seconds)`
`openq_broker`  a broker in memory on that clock, closed after the test
`openq_queue`   opens queues on that broker, with the keywords of `openq.OpenQ`;
                for asyncio: `openq.aio.OpenQ("orders", broker=openq_broker)`

To switch it off: `-p no:openq`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

# pytest loads this file in every project where OpenQ is installed. What the fixtures need is
# imported by the first test that asks for one.
if TYPE_CHECKING:
    from ..client.queues import Queue
    from ..clock import VirtualClock
    from ..local.broker import LocalBroker


class OpenQueue(Protocol):
    def __call__(self, name: str = "queue", **options: Any) -> Queue: ...


@pytest.fixture
def openq_clock() -> VirtualClock:
    """Time that stands still until `advance(seconds)`."""
    from ..clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def openq_broker(openq_clock: VirtualClock) -> Iterator[LocalBroker]:
    """A broker in memory, on `openq_clock`."""
    from . import memory_broker

    broker = memory_broker(openq_clock)
    yield broker
    broker.close()


@pytest.fixture
def openq_queue(openq_broker: LocalBroker) -> Iterator[OpenQueue]:
    """Opens queues on `openq_broker`: `openq_queue("orders", visibility_timeout=30, dlq="dead")`."""
    from ..client.queues import Queue

    opened: list[Queue] = []

    def open_queue(name: str = "queue", **options: Any) -> Queue:
        queue = Queue(name, broker=openq_broker, **options)
        opened.append(queue)
        return queue

    yield open_queue
    for queue in reversed(opened):
        queue.close()
