"""Messages, properties, confirms and returns with pika."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    NackError,
    UnroutableError,
)

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import declared, send, taken, wait_for

# -- messages


def test_all_properties_and_headers_of_every_type_come_back(channel: BlockingChannel, queue: str) -> None:
    headers = {
        "text": "äöü 😀",
        "int": 7,
        "negative": -7,
        "long": 2**40,
        "yes": True,
        "no": False,
        "none": None,
        "decimal": Decimal("12.34"),
        "when": datetime(2024, 2, 29, 12, 0, tzinfo=UTC),
        "bytes": b"\x00\xff",
        "table": {"inner": {"deep": [1, "two", {"three": 3}]}},
        "list": [1, 2, [3, [4]]],
        "empty": {},
    }
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c-1",
        reply_to="answers",
        expiration="3600000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"{}", sent)

    method, got, body = channel.basic_get(queue)

    assert body == b"{}"
    assert (method.exchange, method.routing_key, method.redelivered) == ("", queue, False)
    assert {**got.__dict__, "headers": None} == {**sent.__dict__, "headers": None}
    assert got.headers == headers


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
def test_a_body_of_any_size_comes_back(channel: BlockingChannel, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    channel.confirm_delivery()
    channel.basic_publish("", queue, body)
    channel.basic_consume(queue, lambda ch, m, p, got: received.append(got), auto_ack=True)
    received: list[bytes] = []

    while not received:
        channel.connection.process_data_events(1)

    assert received == [body]


def test_names_keys_and_bodies_may_be_in_any_script(channel: BlockingChannel) -> None:
    name = f"очередь-{fresh()}-队列"
    exchange = f"échange-{fresh()}"
    channel.queue_declare(name)
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(name, exchange, "ключ.#")

    channel.basic_publish(
        exchange, "ключ.ü.😀", "тело".encode(), pika.BasicProperties(headers={"ключ": "значение"})
    )
    method, properties, body = wait_for(channel, name)

    assert (method.exchange, method.routing_key) == (exchange, "ключ.ü.😀")
    assert (properties.headers, body.decode()) == ({"ключ": "значение"}, "тело")


def test_basic_get_reports_the_remaining_count_or_an_empty_queue(
    channel: BlockingChannel, queue: str
) -> None:
    assert channel.basic_get(queue) == (None, None, None)
    send(channel, queue, "1", "2", "3")

    method, _, _ = channel.basic_get(queue)

    assert method.message_count == 2


# -- confirms and returns


def test_an_unroutable_mandatory_publish_is_returned(
    channel: BlockingChannel,
) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", "nobody", b"x")

    with pytest.raises(UnroutableError) as refused:
        channel.basic_publish("", "nobody", b"x", pika.BasicProperties(app_id="a"), mandatory=True)

    [returned] = refused.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.properties.app_id, returned.body) == ("a", b"x")


def test_a_full_queue_that_rejects_answers_with_a_nack(channel: BlockingChannel) -> None:
    queue = declared(channel, max_length=2, overflow="reject-publish")
    channel.confirm_delivery()
    send(channel, queue, "1", "2")

    with pytest.raises(NackError):
        send(channel, queue, "3")

    assert taken(channel, queue) == ["1", "2"]
    send(channel, queue, "4")
    assert taken(channel, queue) == ["4"]


def test_a_publish_to_an_exchange_that_is_not_there_closes_the_channel(channel: BlockingChannel) -> None:
    channel.confirm_delivery()

    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.basic_publish("nowhere", "", b"x")

    assert closed.value.reply_code == 404
    assert closed.value.reply_text == "NOT_FOUND - no exchange 'nowhere' in vhost '/'"


def test_a_false_user_id_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()

    with pytest.raises(ChannelClosedByBroker, match="user_id property set to 'other'") as closed:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(user_id="other"))

    assert closed.value.reply_code == 406
