"""The pytest plugin: installed with OpenQ, it offers these fixtures to every test.

    def test_a_failed_order_is_redelivered(openq_queue, openq_clock):
        orders = openq_queue("orders", visibility_timeout=30)
        orders.publish("one coffee")
        orders.receive()

        openq_clock.advance(30)

        assert orders.receive(timeout=0).receive_count == 2

`openq_clock`   a `VirtualClock` that stands still until `advance(seconds)`
`openq_broker`  a broker in memory on that clock, closed after the test
`openq_queue`   opens queues on that broker, with the keywords of `openq.OpenQ`;
                for asyncio: `openq.aio.OpenQ("orders", broker=openq_broker)`
`openq_server`  a server with real ports, empty at the start of each test: `url` (SQS and REST), `amqp_url`,
                `sqs` (a boto3 client), `queue(name)` (the library over HTTP), `reset()`
`openq_clock_server`  the same on `openq_clock`, started for the test

To switch it off: `-p no:openq`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

# pytest loads this file in every project where OpenQ is installed. What the fixtures need is
# imported by the first test that uses one.
if TYPE_CHECKING:
    from ..client.queues import Queue
    from ..clock import VirtualClock
    from ..local.broker import LocalBroker
    from .server import OpenQServer


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


@pytest.fixture(scope="session")
def _openq_session_server() -> Iterator[OpenQServer]:
    """Starts with the first test that needs it; all tests of a process share it."""
    from .server import OpenQServer

    with OpenQServer() as server:
        yield server


@pytest.fixture
def openq_server(_openq_session_server: OpenQServer) -> Iterator[OpenQServer]:
    """A server with real ports (SQS, REST, AMQP), in memory and in real time; empty for each test."""
    _openq_session_server.reset()
    yield _openq_session_server
    _openq_session_server.reset()


@pytest.fixture
def openq_clock_server(openq_clock: VirtualClock) -> Iterator[OpenQServer]:
    """A server like `openq_server` whose leases, delays and expiry follow `openq_clock`."""
    from .server import OpenQServer

    with OpenQServer(openq_clock) as server:
        yield server
