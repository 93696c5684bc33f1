"""Exchanges, transactions and direct replies with pika."""

from __future__ import annotations

import os

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
)

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import Connect, declared, ready, send, taken, wait_for

# -- exchanges


@pytest.mark.parametrize(
    ("kind", "pattern", "hits", "misses"),
    [
        ("direct", "a", ["a"], ["b", ""]),
        ("fanout", "", ["a", "", "b.c"], []),
        ("topic", "a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("topic", "a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
    ],
)
def test_exchanges_route_by_their_type(
    channel: BlockingChannel, queue: str, kind: str, pattern: str, hits: list[str], misses: list[str]
) -> None:
    exchange = fresh()
    channel.exchange_declare(exchange, kind)
    channel.queue_bind(queue, exchange, pattern)
    for key in (*hits, *misses):
        channel.basic_publish(exchange, key, key.encode())

    assert taken(channel, queue) == hits
    channel.queue_unbind(queue, exchange, pattern)
    for key in hits:
        channel.basic_publish(exchange, key, key.encode())
    assert taken(channel, queue) == []


def test_a_headers_exchange_routes_by_headers(channel: BlockingChannel) -> None:
    exchange = fresh()
    channel.exchange_declare(exchange, "headers")
    both, either = declared(channel), declared(channel)
    channel.queue_bind(both, exchange, arguments={"x-match": "all", "a": 1, "b": "x"})
    channel.queue_bind(either, exchange, arguments={"x-match": "any", "a": 1, "b": "x"})
    for body, headers in (("ab", {"a": 1, "b": "x"}), ("a", {"a": 1}), ("c", {"c": 1}), ("", None)):
        channel.basic_publish(exchange, "", body.encode(), pika.BasicProperties(headers=headers))

    assert taken(channel, both) == ["ab"]
    assert taken(channel, either) == ["ab", "a"]


def test_exchanges_can_be_bound_to_exchanges(channel: BlockingChannel, queue: str) -> None:
    outer, inner = fresh(), fresh()
    channel.exchange_declare(outer, "topic")
    channel.exchange_declare(inner, "fanout", internal=True)
    channel.exchange_bind(inner, outer, "logs.#")
    channel.queue_bind(queue, inner)

    channel.basic_publish(outer, "logs.app", b"1")
    channel.basic_publish(outer, "other", b"2")
    method, _, body = wait_for(channel, queue)

    assert (method.exchange, method.routing_key, body) == (outer, "logs.app", b"1")
    channel.exchange_unbind(inner, outer, "logs.#")
    channel.basic_publish(outer, "logs.app", b"3")
    assert taken(channel, queue) == []
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker, match=f"cannot publish to internal exchange '{inner}'"):
        channel.basic_publish(inner, "", b"x")


def test_an_alternate_exchange_gets_unroutable_messages(channel: BlockingChannel, queue: str) -> None:
    exchange, alternate = fresh(), fresh()
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    channel.queue_bind(queue, alternate)
    channel.confirm_delivery()

    channel.basic_publish(exchange, "nobody", b"x", mandatory=True)
    method, _, _ = wait_for(channel, queue)

    assert (method.exchange, method.routing_key) == (exchange, "nobody")


def test_cc_and_bcc_route_to_more_queues_and_bcc_is_removed(channel: BlockingChannel) -> None:
    first, second, third = (declared(channel) for _ in range(3))
    send(channel, first, "x", headers={"CC": [second], "BCC": [third], "mine": True})

    for queue in (first, second, third):
        method, properties, _ = wait_for(channel, queue)
        assert method.routing_key == first
        assert properties.headers == {"CC": [second], "mine": True}


@pytest.mark.skipif("RABBITMQ_PORT" in os.environ, reason="RabbitMQ has this in a plugin")
def test_a_delayed_exchange_delays_messages(channel: BlockingChannel, queue: str) -> None:
    exchange = fresh()
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    channel.queue_bind(queue, exchange, "k")
    no_number = "1" * 20 + "x"
    # A message that comes due takes its place by the time of its publish: the one in front is the one that
    # must not come, and the others come in this order however late they are asked for.
    for body, delay in (
        ("in an hour", 3_600_000),
        ("now", 0),
        ("also now", "soon"),
        ("and now", no_number),
        ("soon", "20"),
        ("a bit later", 40),
    ):
        channel.basic_publish(exchange, "k", body.encode(), pika.BasicProperties(headers={"x-delay": delay}))

    found = [wait_for(channel, queue) for _ in range(5)]

    assert [each[2] for each in found] == [b"now", b"also now", b"and now", b"soon", b"a bit later"]
    assert channel.basic_get(queue)[0] is None
    # Published again as it came, it is not delayed again.
    assert found[4][1].headers == {"x-delay": -40}


def test_an_exchange_declared_otherwise_or_in_use_is_refused(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    exchange = fresh()
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k")

    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'type'"):
        connect().channel().exchange_declare(exchange, "topic")
    with pytest.raises(ChannelClosedByBroker, match=f"exchange '{exchange}' in vhost '/' in use"):
        connect().channel().exchange_delete(exchange, if_unused=True)
    with pytest.raises(ChannelClosedByBroker, match="no exchange"):
        connect().channel().exchange_declare(fresh(), passive=True)
    channel.exchange_delete(exchange)
    channel.exchange_delete(exchange)


# -- transactions and replies


def test_a_transaction_is_seen_when_it_is_committed_and_not_at_all_when_it_is_rolled_back(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    channel.tx_select()
    send(channel, queue, "1", "2")
    assert ready(connect, queue) == 0
    channel.tx_commit()
    assert ready(connect, queue) == 2

    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    send(channel, queue, "3")
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()

    assert taken(connect().channel(), queue) == ["2"]


def test_direct_reply_to(connect: Connect, queue: str) -> None:
    asking, serving = connect().channel(), connect().channel()
    serving.basic_consume(
        queue,
        lambda ch, method, properties, body: ch.basic_publish(
            "",
            properties.reply_to,
            body.upper(),
            pika.BasicProperties(correlation_id=properties.correlation_id),
        ),
        auto_ack=True,
    )
    answers: list[tuple[str, bytes]] = []
    asking.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda ch, m, p, body: answers.append((p.correlation_id, body)),
        auto_ack=True,
    )
    send(asking, queue, "question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    while not answers:
        serving.connection.process_data_events(0.05)
        asking.connection.process_data_events(0.05)

    assert answers == [("7", b"QUESTION")]
