"""AMQP before a store that is waited for: what gathers while a call is under way becomes one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from openq.config import Config
from openq.model import QueueSettings
from openq.redis.net import greenlets
from tests.amqp.raw_client import RawClient, method, publish
from tests.server.in_process import in_process_server
from tests.server.suspending import SuspendingBroker
from tests.serving import free_port
from tests.waiting import until

COUNT = 60


class GatedBroker(SuspendingBroker):
    """The first call of one verb waits until it is let go. `sizes`: how many messages each call was for."""

    def __init__(self, verb: str) -> None:
        super().__init__(None)
        self.sizes: list[int] = []
        self._release: Any = None
        real = getattr(self, verb)

        def gated(queue: str, items: Any, *more: Any, **options: Any) -> Any:
            self.sizes.append(len(items))
            if len(self.sizes) == 1:
                greenlets.wait(self._hold)
            return real(queue, items, *more, **options)

        setattr(self, verb, gated)

    def _hold(self, callback: Any) -> None:
        self._release = callback

    @property
    def is_held(self) -> bool:
        return self._release is not None

    @contextmanager
    def serving(self) -> Iterator[int]:
        port = free_port()
        config = Config(memory=True, drain_timeout_s=1, amqp_port=port)
        with closing(self), in_process_server(self, config) as server:
            self._loop = server.loop
            yield port

    def let_go(self) -> None:
        self._loop.call_soon_threadsafe(self._release, None)


def _await_arrival(port: int) -> None:
    """Until the server has read what other clients wrote before: it answers requests that came later."""
    with RawClient(port) as other:
        for _ in range(3):
            other.declare("other")


def test_publishes_that_arrive_during_a_call_are_one_call() -> None:
    broker = GatedBroker("publish_bodies")
    broker.declare("jobs", QueueSettings())
    bodies = [b"%d" % number for number in range(COUNT)]
    with broker.serving() as port, RawClient(port).confirming() as client:
        client.send(publish(1, "jobs", bodies[0]))
        until(lambda: broker.is_held)
        for body in bodies[1:]:
            client.send(publish(1, "jobs", body))
        _await_arrival(port)
        broker.let_go()

        assert client.settled(COUNT) == []
        assert broker.sizes == [1, COUNT - 1]
        assert [each.body for each in broker.inspect.entries("jobs")] == bodies


def test_acks_that_arrive_during_a_call_are_one_call() -> None:
    broker = GatedBroker("ack")
    broker.declare("jobs", QueueSettings())
    broker.publish_bodies("jobs", [b"x"] * COUNT, 0)
    with broker.serving() as port, RawClient(port) as client:
        client.call("basic.qos", prefetch_count=COUNT)
        client.call("basic.consume", queue="jobs", consumer_tag="c")
        tags = [each[2]["delivery_tag"] for each in client.receive_methods("basic.deliver", COUNT)]
        client.send(method(1, "basic.ack", delivery_tag=tags[0]))
        until(lambda: broker.is_held)
        for tag in tags[1:]:
            client.send(method(1, "basic.ack", delivery_tag=tag))
        _await_arrival(port)
        broker.let_go()

        until(lambda: broker.stats("jobs").in_flight == 0)
        assert broker.sizes == [1, COUNT - 1]
