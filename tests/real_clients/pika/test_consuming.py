"""Consumers, acknowledgements and prefetch with pika."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
)

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import Connect, count, declared, ready, send, taken
from tests.waiting import until

# -- consuming


def test_a_consumer_gets_everything_in_order_and_settles_in_bulk(
    channel: BlockingChannel, queue: str
) -> None:
    bodies = [str(number) for number in range(1000)]
    send(channel, queue, *bodies)
    got = []

    for method, _, body in channel.consume(queue):
        got.append(body.decode())
        if len(got) == len(bodies):
            channel.basic_ack(method.delivery_tag, multiple=True)
            break
    channel.cancel()

    assert got == bodies
    assert channel.basic_get(queue) == (None, None, None)


def test_a_requeued_message_returns_to_its_position(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, "1", "2", "3")
    first, _, _ = channel.basic_get(queue)
    second, _, _ = channel.basic_get(queue)

    channel.basic_reject(first.delivery_tag, requeue=True)
    channel.basic_nack(second.delivery_tag, requeue=True)

    again, _, body = channel.basic_get(queue)
    assert (again.redelivered, body) == (True, b"1")
    assert taken(channel, queue) == ["2", "3"]


def test_recover_requeues_unacked_messages(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, "1", "2")
    channel.basic_get(queue)
    channel.basic_get(queue)

    channel.basic_recover(requeue=True)

    method, _, body = channel.basic_get(queue)
    assert (method.redelivered, body) == (True, b"1")


def test_a_closed_connection_requeues_its_messages_in_order(connect: Connect) -> None:
    first = connect()
    channel = first.channel()
    queue = declared(channel)
    send(channel, queue, "1", "2", "3")
    for _ in range(2):
        channel.basic_get(queue)

    first.close()

    other = connect().channel()
    until(lambda: count(other, queue) == 3)
    assert taken(other, queue) == ["1", "2", "3"]


def test_a_consumer_has_no_more_open_than_its_prefetch(connect: Connect, queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    send(channel, queue, *"123456")
    channel.basic_qos(prefetch_count=2)
    tags: list[int] = []
    channel.basic_consume(queue, lambda ch, method, p, body: tags.append(method.delivery_tag))
    while len(tags) < 2:
        connection.process_data_events(1)

    assert ready(connect, queue) == 4

    channel.basic_ack(tags[0])
    while len(tags) < 3:
        connection.process_data_events(1)
    assert ready(connect, queue) == 3


def test_a_prefetch_for_the_channel_is_shared_by_its_consumers(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queues = [declared(channel), declared(channel)]
    for queue in queues:
        send(channel, queue, *"1234")
    channel.basic_qos(prefetch_count=3, global_qos=True)
    tags: list[int] = []
    for queue in queues:
        channel.basic_consume(queue, lambda ch, method, p, body: tags.append(method.delivery_tag))
    while len(tags) < 3:
        connection.process_data_events(1)

    assert sum(ready(connect, queue) for queue in queues) == 5


def test_an_unknown_delivery_tag_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    channel.basic_ack(5)

    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(queue, passive=True)

    assert (closed.value.reply_code, closed.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - unknown delivery tag 5",
    )


def test_two_consumers_take_turns_and_a_higher_priority_goes_first(connect: Connect, queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    got: list[str] = []
    for name, priority in (("a", 0), ("b", 0), ("first", 9)):
        channel.basic_consume(
            queue,
            lambda ch, m, p, b: got.append(m.consumer_tag),
            consumer_tag=name,
            arguments={"x-priority": priority},
        )
    send(channel, queue, *"123456")
    while len(got) < 6:
        connection.process_data_events(1)

    assert got.count("a") == got.count("b") == 2
    assert got[:2] == ["first", "first"]


def test_single_active_consumer(connect: Connect) -> None:
    channel = connect().channel()
    queue = declared(channel, single_active_consumer=True)
    got: list[str] = []
    for name in ("one", "two"):
        channel.basic_consume(
            queue, lambda ch, m, p, b: got.append(m.consumer_tag), auto_ack=True, consumer_tag=name
        )
    send(channel, queue, "1", "2")
    while len(got) < 2:
        channel.connection.process_data_events(1)
    channel.basic_cancel("one")
    send(channel, queue, "3")
    while len(got) < 3:
        channel.connection.process_data_events(1)

    assert got == ["one", "one", "two"]


def test_the_active_consumer_stays_active_when_others_join(connect: Connect) -> None:
    channel = connect().channel()
    queue = declared(channel, single_active_consumer=True)
    got: list[tuple[str, bytes]] = []

    def take(_: object, method: Any, __: object, body: bytes) -> None:
        got.append((method.consumer_tag, body))

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, take, consumer_tag="low")
    channel.basic_consume(queue, take, consumer_tag="high", arguments={"x-priority": 10})
    send(channel, queue, "1", "2")
    while not got:
        channel.connection.process_data_events(1)
    channel.connection.process_data_events(0.2)
    assert got == [("low", b"1")]

    channel.basic_cancel("low")
    while len(got) < 2:
        channel.connection.process_data_events(1)
    assert got[1] == ("high", b"2")


def test_an_empty_routing_key_is_kept_in_x_death(connect: Connect) -> None:
    channel = connect().channel()
    dead = declared(channel)
    queue = declared(channel, dead_letter_exchange="", dead_letter_routing_key=dead)
    exchange = fresh("fanout")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_bind(queue, exchange)
    channel.basic_publish(exchange, "", b"x")
    method, _, _ = channel.basic_get(queue)
    channel.basic_reject(method.delivery_tag, requeue=False)

    _, properties, _ = channel.basic_get(dead, auto_ack=True)
    while properties is None:
        _, properties, _ = channel.basic_get(dead, auto_ack=True)

    assert properties.headers["x-death"][0]["routing-keys"] == [""]


def test_a_consumer_is_cancelled_when_its_queue_is_deleted(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)

    connect().channel().queue_delete(queue)
    while not cancelled:
        channel.connection.process_data_events(1)

    assert cancelled == [tag]
    assert channel.is_open


def test_deleting_the_queue_of_an_own_consumer_gives_delete_ok_and_cancel(
    channel: BlockingChannel, queue: str
) -> None:
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)

    channel.queue_delete(queue)
    while not cancelled:
        channel.connection.process_data_events(1)

    assert cancelled == [tag]


def test_an_exclusive_consumer_keeps_others_out(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    channel.basic_consume(queue, lambda *_: None, exclusive=True)

    with pytest.raises(ChannelClosedByBroker, match="in exclusive use") as closed:
        connect().channel().basic_consume(queue, lambda *_: None)

    assert closed.value.reply_code == 403
