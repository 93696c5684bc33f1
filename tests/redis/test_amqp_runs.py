"""Consumers over Redis: one receive fills a prefetch, and tells of later messages in the same call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import redis

from openq.broker.waiters import Waiter
from openq.errors import QueueNotFound
from openq.model import NO_DEADLINE, Delivery, Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.amqp.raw_client import RawClient
from tests.redis.servers import Server
from tests.redis.test_protocols import ProtocolServer
from tests.waiting import until

# Calls that go on beside everything else: of alerts, series and the upkeep.
_UPKEEP = ("tick", "hold", "configure", "kv_sweep", "stats", "add_event")


@contextmanager
def _calls_to(server: Server) -> Iterator[list[str]]:
    """The names of the functions that are called meanwhile."""
    called: list[str] = []
    with redis.Redis("127.0.0.1", server.port) as raw, raw.monitor() as monitor:
        yield called
        server.ask("ECHO", "the end")
        for each in monitor.listen():
            if "the end" in each["command"]:
                break
            words = each["command"].split()
            name = words[1].partition("_")[2] if words[0] == "FCALL" else ""
            if name and name not in _UPKEEP and not name.startswith("kv_"):  # webhooks and alerts read theirs
                called.append(name)


def test_a_consumer_is_served_by_one_call(redis_server: Server) -> None:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        broker.declare("jobs", QueueSettings())
        broker.publish_bodies("jobs", [b"x"] * 300, 0)
        with ProtocolServer(redis_server.url) as server, RawClient(server.amqp_port) as client:
            client.call("basic.qos", prefetch_count=400)
            # A message that is announced shows that the server hears announcements: until then it asks again.
            broker.declare("first", QueueSettings())
            client.call("basic.consume", queue="first", consumer_tag="f")
            broker.publish_body("first", b"x", 0)
            assert len(client.receive_methods("basic.deliver", 1)) == 1
            with _calls_to(redis_server) as called:
                client.call("basic.consume", queue="jobs", consumer_tag="c")
                assert len(client.receive_methods("basic.deliver", 300)) == 300
            assert called == ["receive"]  # and the next message is announced

            with _calls_to(redis_server) as called:
                broker.publish_body("jobs", b"y", 0)
                assert len(client.receive_methods("basic.deliver", 1)) == 1
            assert called == ["publish", "receive"]


class _Notified:
    """A waiter that receives by itself once it is notified."""

    def __init__(self, limit: int, max_bytes: int | None = None) -> None:
        self.ready = threading.Event()
        self.ended = threading.Event()
        self.waiter = Waiter(
            *(limit, NO_DEADLINE, "c", None, self._deliver), on_ready=self.ready.set, max_bytes=max_bytes
        )

    def _deliver(self, deliveries: list[Delivery]) -> None:
        assert not deliveries
        self.ended.set()

    def next(self, broker: RedisBroker) -> list[Delivery]:
        """As a dispatcher does: ask after each notification."""
        while True:
            self.ready.clear()
            found = broker.add_waiter("jobs", self.waiter)
            if found:
                return found
            assert self.ready.wait(60)


def test_a_batch_is_limited_in_bytes_by_the_call_that_receives_it(redis_server: Server) -> None:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        broker.declare("large", QueueSettings())
        for _ in range(3):
            broker.publish_bodies("large", [b"x" * 100_000] * 4, 0)
        notified = _Notified(500, 500_000)

        sizes = []
        while found := broker.add_waiter("large", notified.waiter):
            sizes.append(len(found))

    assert sizes == [5, 5, 2]


def test_a_queue_that_was_found_empty_is_asked_again_only_after_an_announcement(
    redis_server: Server,
) -> None:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        broker.declare("jobs", QueueSettings())
        broker.publish_bodies("jobs", [b"a", b"b"], 0)
        notified = _Notified(10)
        assert len(broker.add_waiter("jobs", notified.waiter) or ()) == 2
        # When announcements are heard for the first time, any may have been missed.
        until(lambda: broker.registry.queues["jobs"].last_wake)
        with _calls_to(redis_server) as called:
            for _ in range(3):
                assert broker.add_waiter("jobs", notified.waiter) is None
                assert broker.remove_waiter("jobs", notified.waiter)
            assert broker.add_waiter("jobs", notified.waiter) is None
        assert called == ["receive"]

        with closing(RedisBroker(redis_server.url, profile="fast")) as other:
            other.publish("jobs", Draft(b"c"))
        assert notified.ready.wait(60)
        [found] = notified.next(broker)
        assert found.entry.body == b"c"


def test_a_notified_waiter_hears_of_due_messages_and_of_the_end_of_its_queue(redis_server: Server) -> None:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        broker.declare("jobs", QueueSettings())
        broker.publish("jobs", Draft(b"later", delay_ms=200))
        notified = _Notified(10)
        assert [each.entry.body for each in notified.next(broker)] == [b"later"]

        notified.ready.clear()
        assert broker.add_waiter("jobs", notified.waiter) is None
        with closing(RedisBroker(redis_server.url, profile="fast")) as other:
            other.delete("jobs")
        until(lambda: notified.ended.is_set() or notified.ready.is_set())
        if not notified.ended.is_set():
            with pytest.raises(QueueNotFound):
                notified.next(broker)
