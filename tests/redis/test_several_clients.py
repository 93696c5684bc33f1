"""What one client must find out about what another did, and what must not stay in Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openq.clock import VirtualClock
from openq.engine.routing import Binding
from openq.errors import QueueFull
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.key_checks import Keys, check_queue
from tests.redis.servers import Server

Two = tuple[RedisBroker, RedisBroker]


@pytest.fixture
def two(redis_server: Server) -> Iterator[Two]:
    clock = VirtualClock()
    first, second = (RedisBroker(redis_server.url, profile="fast", clock=clock) for _ in range(2))
    yield first, second
    first.close()
    second.close()


def receipt(broker: RedisBroker, queue: str) -> tuple[int, int]:
    [delivery] = broker.receive(queue)
    return delivery.entry.seq, delivery.number


def test_dead_letters_find_a_queue_that_another_client_has_just_made(two: Two) -> None:
    first, second = two
    first.declare("orders", QueueSettings(dead_letter="dead"))
    second.publish("orders", Draft(b"x"))
    mine = receipt(second, "orders")
    first.declare("dead", QueueSettings())

    assert second.reject("orders", [mine]) == ["dead-lettered"]
    assert [entry.body for entry in first.inspect.peek("dead")] == [b"x"]


def test_dead_letters_follow_a_binding_that_another_client_has_just_made(two: Two) -> None:
    first, second = two
    first.declare("orders", QueueSettings(dead_letter_exchange="amq.fanout"))
    first.declare("dead", QueueSettings())
    second.publish("orders", Draft(b"x"))
    mine = receipt(second, "orders")
    first.exchanges.bind(Binding("amq.fanout", "dead"))

    assert second.reject("orders", [mine]) == ["dead-lettered"]
    assert [entry.body for entry in first.inspect.peek("dead")] == [b"x"]


def test_a_message_is_kept_when_another_client_has_just_deleted_its_dead_letter_queue(two: Two) -> None:
    first, second = two
    first.declare("dead", QueueSettings())
    first.declare("orders", QueueSettings(dead_letter="dead", max_receives=1))
    second.publish("orders", Draft(b"x"))
    mine = receipt(second, "orders")
    first.delete("dead")

    assert second.nack("orders", [mine], 0) == ["returned"]
    assert [entry.body for entry in second.inspect.peek("orders")] == [b"x"]


def test_a_queue_that_another_client_made_anew_is_the_one_that_is_meant(two: Two) -> None:
    first, second = two
    first.declare("orders", QueueSettings())
    second.publish("orders", Draft(b"old"))
    first.delete("orders")
    first.declare("orders", QueueSettings())

    second.publish("orders", Draft(b"new"))

    assert [entry.body for entry in first.inspect.peek("orders", 5)] == [b"new"]


def test_what_a_full_queue_refuses_has_one_id_wherever_its_copies_go(two: Two) -> None:
    broker, _ = two
    settings = QueueSettings(max_length=0, overflow="reject-dead-letter", dead_letter_exchange="amq.fanout")
    broker.declare("full", settings)
    for name in ("one", "two"):
        broker.declare(name, QueueSettings())
        broker.exchanges.bind(Binding("amq.fanout", name))

    with pytest.raises(QueueFull):
        broker.publish("full", Draft(b"x"))

    [one], [two_] = broker.inspect.peek("one", 5), broker.inspect.peek("two", 5)
    assert broker.inspect.message_id(one) == broker.inspect.message_id(two_)


@pytest.mark.parametrize("history_ms", [0, 60_000])
def test_a_purge_of_what_waits_leaves_no_records_without_history(
    two: Two, redis_server: Server, history_ms: int
) -> None:
    """Also where what is with consumers was leased when the queue still kept history."""
    broker, _ = two
    broker.declare("orders", QueueSettings(history_ms=history_ms))
    broker.publish_bodies("orders", [b"a", b"b", b"c", b"d"], 1)
    leased = broker.receive("orders", 2)
    broker.declare("orders", QueueSettings(history_ms=0), change=True)

    assert broker.purge("orders", waiting_only=True) == 2

    check_queue(redis_server, broker.registry.prefix, broker.get_queue("orders"), had_history=False)
    assert broker.nack("orders", [(each.entry.seq, each.number) for each in leased], 0) == ["returned"] * 2
    assert [entry.body for entry in broker.inspect.peek("orders", 5)] == [b"a", b"b"]


def test_history_is_removed_when_a_queue_is_set_to_keep_none(two: Two, redis_server: Server) -> None:
    broker, _ = two
    broker.declare("orders", QueueSettings())
    broker.publish("orders", Draft(b"x"))
    broker.publish("orders", Draft(b"y"))
    broker.ack_one("orders", *receipt(broker, "orders"))
    broker.declare("orders", QueueSettings(history_ms=0), change=True)

    keys = Keys(redis_server, broker.registry.prefix, broker.get_queue("orders").number)
    assert len(keys.records()) == 1
    assert "h" not in keys.names


def test_one_of_very_many_messages_received_together_can_be_acked(two: Two) -> None:
    broker, _ = two
    broker.declare("orders", QueueSettings())
    broker.publish_bodies("orders", [b"x"] * 9_000, 1)
    leased = broker.receive("orders", 9_000)

    broker.ack_one("orders", leased[7].entry.seq, leased[7].number)

    assert broker.stats("orders").in_flight == 8_999


def test_the_estimated_time_is_never_ahead_of_redis(redis_server: Server) -> None:
    """Otherwise a delay from then on would end early, and a reader from then on would miss events."""
    broker = RedisBroker(redis_server.url, profile="fast")
    try:
        broker.declare("orders", QueueSettings())
        for _ in range(1000):
            broker.stats("orders")
            estimated_ms = broker.now_ms()
            seconds, micros = broker.calls.call(b"", "TIME")

            assert estimated_ms <= int(seconds) * 1000 + int(micros) // 1000
    finally:
        broker.close()
