"""Exchanges of the library: in memory, on disk and behind a server; for Redis see tests/redis."""

import asyncio
from pathlib import Path

import pytest

from openq import ExchangeInUse, ExchangeNotFound, InvalidSetting, OpenQ, aio
from tests.client.helpers import Make, bodies, take

pytest_plugins = "tests.client.fixtures"


def test_a_topic_exchange_reaches_every_queue_whose_pattern_matches(make: Make) -> None:
    orders = make("orders")
    assert orders.exchanges.declare("events", "topic")
    assert not orders.exchanges.declare("events", "topic")
    assert orders.exchanges.bind("events", "order.*")
    assert not orders.exchanges.bind("events", "order.*")

    routed = orders.exchanges.publish("events", "order.created", {"id": 1}, message_type="new", priority=3)
    lost = orders.exchanges.publish("events", "payment.created", "x")

    assert routed.queues == ["orders"]
    assert lost.queues == []
    message = take(orders)
    assert (message.id, message.body, message.message_type, message.priority) == (
        routed.id,
        {"id": 1},
        "new",
        3,
    )


def test_one_message_has_one_id_in_every_queue(make: Make) -> None:
    dead = make("dead")
    orders = make("orders", dlq=dead)
    orders.exchanges.declare("all", "fanout")
    orders.exchanges.bind("all")
    dead.exchanges.bind("all")

    routed = orders.exchanges.publish("all", "", "x")

    assert sorted(routed.queues) == ["dead", "orders"]
    assert take(orders).id == take(dead).id == routed.id


def test_a_binding_can_be_removed(make: Make) -> None:
    orders = make("orders")
    orders.exchanges.declare("events", "direct")
    orders.exchanges.bind("events", "a")
    assert [(each.source, each.key) for each in orders.exchanges.bindings()] == [("events", "a")]

    assert orders.exchanges.unbind("events", "a")
    assert not orders.exchanges.unbind("events", "a")

    assert orders.exchanges.bindings() == []
    orders.exchanges.publish("events", "a", "x")
    assert bodies(orders) == []


def test_headers_are_compared_with_the_arguments_of_a_binding(make: Make) -> None:
    orders = make("orders")
    orders.exchanges.declare("events", "headers")
    orders.exchanges.bind("events", arguments={"x-match": "all", "country": "PT"})

    orders.exchanges.publish("events", "", "no", attributes={"country": "DE"})
    orders.exchanges.publish("events", "", "yes", attributes={"country": "PT"})

    assert bodies(orders) == ["yes"]


def test_exchanges_can_be_bound_to_exchanges(make: Make) -> None:
    orders = make("orders")
    orders.exchanges.declare("outer", "fanout")
    orders.exchanges.declare("inner", "fanout", internal=True)
    orders.exchanges.bind("inner")
    assert orders.exchanges.bind_exchange("outer", "inner")

    assert orders.exchanges.publish("outer", "", "x").queues == ["orders"]
    with pytest.raises(InvalidSetting, match="internal"):
        orders.exchanges.publish("inner", "", "x")

    assert orders.exchanges.unbind_exchange("outer", "inner")
    assert orders.exchanges.publish("outer", "", "x").queues == []


def test_all_exchanges_are_listed_and_can_be_deleted(make: Make) -> None:
    orders = make("orders")
    orders.exchanges.declare("events", "topic", alternate="amq.fanout")
    orders.exchanges.bind("events", "#")
    found = {exchange.name: exchange for exchange in orders.exchanges.all()}
    assert (found["events"].kind, found["events"].alternate) == ("topic", "amq.fanout")

    with pytest.raises(ExchangeInUse):
        orders.exchanges.delete("events", if_unused=True)
    orders.exchanges.delete("events")

    assert "events" not in {exchange.name for exchange in orders.exchanges.all()}
    with pytest.raises(ExchangeNotFound):
        orders.exchanges.publish("events", "a", "x")


def test_wrong_arguments_are_refused(make: Make) -> None:
    exchanges = make("orders").exchanges
    with pytest.raises(InvalidSetting, match="an exchange is one of"):
        exchanges.declare("events", "queue")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="arguments must be a dict"):
        exchanges.declare("events", arguments="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="name must be text"):
        exchanges.declare(1)  # type: ignore[arg-type]


def test_asyncio_has_the_same_exchanges(make: Make) -> None:
    broker = make("other").broker

    async def main() -> None:
        async with aio.OpenQ("orders", broker=broker) as orders:
            assert await orders.exchanges.declare("events", "fanout")
            assert await orders.exchanges.bind("events")
            routed = await orders.exchanges.publish("events", "", "x")
            assert routed.queues == ["orders"]
            message = await orders.receive()
            assert message is not None
            assert (message.id, message.body) == (routed.id, "x")
            assert "events" in {exchange.name for exchange in await orders.exchanges.all()}
            assert len(await orders.exchanges.bindings()) == 1
            await orders.exchanges.delete("events")

    asyncio.run(main())


def test_exchanges_of_a_durable_queue_are_there_after_reopening(tmp_path: Path) -> None:
    with OpenQ("orders", path=tmp_path) as orders:
        orders.exchanges.declare("events", "fanout")
        orders.exchanges.bind("events")
    with OpenQ("orders", path=tmp_path) as orders:
        assert orders.exchanges.publish("events", "", "x").queues == ["orders"]
