"""pika, RabbitMQ's own client for Python: a tour of all that AMQP and RabbitMQ's extensions offer."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.credentials import ExternalCredentials
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.real_clients.boto import fresh
from tests.serving import free_port, served_amqp, until

Connect = Callable[..., BlockingConnection]


def parameters(port: int, **more: Any) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=30, **more)


@pytest.fixture(scope="module", params=["durable", "memory"])
def amqp_port(request: pytest.FixtureRequest, amqp_port: int) -> Iterator[int]:
    """Whatever pika sees is the same with a disk and without one."""
    if request.param == "durable":
        yield amqp_port
    elif "RABBITMQ_PORT" in os.environ:
        pytest.skip("RabbitMQ always has a disk")
    else:
        with served_amqp() as (_, port):
            yield port


@pytest.fixture
def connect(amqp_port: int) -> Iterator[Connect]:
    """New connections; those that a test leaves open are closed for it."""
    made: list[BlockingConnection] = []

    def one_more(**more: Any) -> BlockingConnection:
        made.append(BlockingConnection(parameters(amqp_port, **more)))
        return made[-1]

    yield one_more
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    return declared(channel)


def declared(channel: BlockingChannel, **arguments: Any) -> str:
    name = fresh()
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=given)
    return name


def send(channel: BlockingChannel, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties))


def taken(channel: BlockingChannel, queue: str) -> list[str]:
    """Everything that is ready, settled."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body.decode())


def wait_for(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue, which will come."""
    found: list[tuple[Any, Any, bytes]] = []

    def came() -> bool:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((method, properties, body))
        return bool(found)

    until(came)
    return found[0]


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def ready(connect: Connect, queue: str) -> int:
    """As another connection sees it."""
    connection = connect()
    try:
        return count(connection.channel(), queue)
    finally:
        connection.close()


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


# -- queues


def test_declare_purge_and_delete_return_counts(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, *"12345")

    assert channel.queue_declare(queue, passive=True).method.message_count == 5
    assert channel.queue_purge(queue).method.message_count == 5
    send(channel, queue, *"12")
    assert channel.queue_delete(queue).method.message_count == 2
    assert channel.queue_delete(queue).method.message_count == 0


def test_a_queue_in_use_or_not_empty_is_kept_if_asked(connect: Connect, queue: str) -> None:
    channel = connect().channel()
    send(channel, queue, "1")
    with pytest.raises(ChannelClosedByBroker, match=f"queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)

    channel = connect().channel()
    channel.basic_consume(queue, lambda *_: None)
    with pytest.raises(ChannelClosedByBroker, match=f"queue '{queue}' in vhost '/' in use"):
        connect().channel().queue_delete(queue, if_unused=True)


def test_a_different_declare_is_refused_and_names_the_difference(connect: Connect, queue: str) -> None:
    for changed, said in (
        ({"durable": False}, "inequivalent arg 'durable'.*received 'false' but current is 'true'"),
        ({"durable": True, "auto_delete": True}, "inequivalent arg 'auto_delete'"),
        ({"durable": True, "arguments": {"x-message-ttl": 1}}, "inequivalent arg 'x-message-ttl'"),
        ({"durable": True, "exclusive": True}, "cannot obtain exclusive access"),
    ):
        with pytest.raises(ChannelClosedByBroker, match=said):
            connect().channel().queue_declare(queue, **changed)


def test_a_queue_without_a_name_gets_one(channel: BlockingChannel) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue

    assert name.startswith("amq.gen-")
    send(channel, name, "1")
    assert taken(channel, name) == ["1"]


def test_an_exclusive_queue_belongs_to_one_connection(connect: Connect) -> None:
    owner, other = connect(), connect()
    name = fresh()
    owner.channel().queue_declare(name, exclusive=True)

    with pytest.raises(
        ChannelClosedByBroker, match="cannot obtain exclusive access to locked queue"
    ) as locked:
        other.channel().queue_declare(name, exclusive=True)
    assert locked.value.reply_code == 405

    owner.close()

    def is_gone() -> bool:
        try:
            other.channel().queue_declare(name, passive=True)
        except ChannelClosedByBroker as closed:
            return closed.reply_code == 404
        return False

    until(is_gone)


def test_an_auto_delete_queue_is_deleted_with_its_last_consumer(
    connect: Connect, channel: BlockingChannel
) -> None:
    name = fresh()
    channel.queue_declare(name, auto_delete=True)
    tags = [channel.basic_consume(name, lambda *_: None) for _ in range(2)]
    channel.basic_cancel(tags[0])
    channel.queue_declare(name, passive=True)

    channel.basic_cancel(tags[1])

    with pytest.raises(ChannelClosedByBroker) as closed:
        connect().channel().queue_declare(name, passive=True)
    assert closed.value.reply_code == 404


def test_an_unused_queue_expires(connect: Connect) -> None:
    name = declared(connect().channel(), expires=200)

    def is_gone() -> bool:
        # Asking uses it, so that it is asked about in another way: whether messages get there.
        channel = connect().channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", name, b"x", mandatory=True)
        except UnroutableError:
            return True
        return False

    until(is_gone)


def test_higher_priorities_are_delivered_first(channel: BlockingChannel) -> None:
    queue = declared(channel, max_priority=10)
    for priority in (0, 5, 1, 9, 200):
        send(channel, queue, str(priority), priority=priority)

    until(lambda: count(channel, queue) == 5)
    # What is more than the most counts as the most.
    assert taken(channel, queue) == ["200", "9", "5", "1", "0"]


def test_a_queue_without_priorities_keeps_the_order_and_carries_the_property(
    channel: BlockingChannel, queue: str
) -> None:
    send(channel, queue, "low", priority=1)
    send(channel, queue, "high", priority=9)

    _, properties, body = channel.basic_get(queue, auto_ack=True)

    assert (body, properties.priority) == (b"low", 1)


def test_the_oldest_message_is_dropped_over_max_length(channel: BlockingChannel) -> None:
    queue = declared(channel, max_length=3)
    send(channel, queue, *"12345")

    assert taken(channel, queue) == ["3", "4", "5"]


# -- dead letters and time


def dead_lettered(channel: BlockingChannel, **arguments: Any) -> tuple[str, str, str]:
    """A queue, the queue of its dead letters and the exchange between them."""
    exchange = fresh()
    channel.exchange_declare(exchange, "fanout", durable=True)
    dead = declared(channel)
    channel.queue_bind(dead, exchange)
    return declared(channel, dead_letter_exchange=exchange, **arguments), dead, exchange


def history(properties: Any) -> list[dict[str, Any]]:
    return [{**each, "time": None} for each in properties.headers["x-death"]]


def test_a_rejected_message_is_dead_lettered_with_x_death(channel: BlockingChannel) -> None:
    queue, dead, exchange = dead_lettered(channel)
    send(channel, queue, "x", headers={"mine": 1})
    method, _, _ = channel.basic_get(queue)

    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = wait_for(channel, dead)

    assert (method.exchange, method.routing_key, body) == (exchange, queue, b"x")
    assert history(properties) == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": queue,
            "time": None,
            "exchange": "",
            "routing-keys": [queue],
        }
    ]
    assert {key: value for key, value in properties.headers.items() if key != "x-death"} == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
    }


def test_an_expired_message_is_dead_lettered(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel)
    send(channel, queue, "x", expiration="20")

    _, properties, _ = wait_for(channel, dead)

    [death] = history(properties)
    assert (death["reason"], death["original-expiration"]) == ("expired", "20")
    assert properties.expiration is None


def test_messages_of_a_queue_with_a_time_to_live_expire(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, message_ttl=20)
    send(channel, queue, "x")

    _, properties, _ = wait_for(channel, dead)

    assert history(properties)[0]["reason"] == "expired"


def test_a_message_dropped_over_max_length_is_dead_lettered(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, max_length=1)
    send(channel, queue, "1", "2")

    _, properties, body = wait_for(channel, dead)

    assert (history(properties)[0]["reason"], body) == ("maxlen", b"1")
    assert taken(channel, queue) == ["2"]


def test_a_retry_by_time_to_live_counts_its_rounds(channel: BlockingChannel) -> None:
    work, pause = fresh(), fresh()
    to = {"x-dead-letter-exchange": ""}
    channel.queue_declare(work, arguments={**to, "x-dead-letter-routing-key": pause})
    channel.queue_declare(pause, arguments={**to, "x-dead-letter-routing-key": work, "x-message-ttl": 10})
    send(channel, work, "x")
    rounds = []
    for method, properties, _ in channel.consume(work):
        deaths = (properties.headers or {}).get("x-death", [])
        rounds.append([(each["queue"], each["reason"], each["count"]) for each in deaths])
        channel.basic_reject(method.delivery_tag, requeue=False)
        if len(rounds) == 3:
            break
    channel.cancel()

    assert rounds == [
        [],
        [(pause, "expired", 1), (work, "rejected", 1)],
        [(pause, "expired", 2), (work, "rejected", 2)],
    ]


def test_a_quorum_queue_counts_deliveries_and_gives_up_at_its_limit(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, queue_type="quorum", delivery_limit=2)
    channel.confirm_delivery()
    send(channel, queue, "x")
    counts = []
    for method, properties, _ in channel.consume(queue):
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_reject(method.delivery_tag, requeue=True)
        if len(counts) == 3:
            break
    _, properties, _ = wait_for(channel, dead)

    assert counts == [None, 1, 2]
    assert history(properties)[0]["reason"] == "delivery_limit"


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


# -- connections


def test_a_wrong_password_is_refused_as_such(connect: Connect) -> None:
    with pytest.raises(
        ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"
    ):
        connect(credentials=pika.PlainCredentials("guest", "wrong"))


def test_an_unknown_vhost_is_refused_as_such(connect: Connect) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="vhost nowhere not found"):
        connect(virtual_host="nowhere")


def test_a_connection_keeps_to_small_frames_if_the_client_wants_them(connect: Connect, queue: str) -> None:
    channel = connect(frame_max=4096).channel()
    body = b"x" * 100_000
    channel.basic_publish("", queue, body)

    _, _, got = wait_for(channel, queue)

    assert got == body


def test_update_secret_is_accepted(connect: Connect) -> None:
    connection = connect()
    connection.update_secret("another", "it was time")
    assert connection.is_open


def test_a_second_consumer_with_the_same_tag_ends_the_connection(connect: Connect, queue: str) -> None:
    # pika itself would refuse it, were both on one of its channel objects.
    channel = connect().channel()
    channel.basic_consume(queue, lambda *_: None, consumer_tag="same")
    channel._impl._consumers.clear()
    channel._consumer_infos.clear()

    with pytest.raises(ConnectionClosedByBroker, match="attempt to reuse consumer tag 'same'") as closed:
        channel.basic_consume(queue, lambda *_: None, consumer_tag="same")

    assert closed.value.reply_code == 530


def test_many_channels_work_side_by_side(connect: Connect, queue: str) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(200)]
    for number, channel in enumerate(channels):
        send(channel, queue, str(number))

    until(lambda: count(channels[0], queue) == 200)
    assert sorted(map(int, taken(channels[-1], queue))) == list(range(200))


def test_the_asyncio_adapter_publishes_with_confirms_and_consumes(amqp_port: int) -> None:
    name = fresh()

    async def play() -> list[bytes]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[bytes]] = loop.create_future()
        got: list[bytes] = []
        confirmed: list[int] = []

        def settled() -> None:
            if len(got) == 100 and confirmed and confirmed[-1] == 100 and not done.done():
                done.set_result(got)

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            settled()

        def on_confirm(frame: Any) -> None:
            confirmed.append(frame.method.delivery_tag)
            settled()

        def on_queue(channel: Any) -> None:
            channel.confirm_delivery(on_confirm)
            channel.basic_consume(name, on_message)
            for number in range(100):
                channel.basic_publish("", name, str(number).encode())

        connection = AsyncioConnection(
            parameters(amqp_port),
            on_open_callback=lambda opened: opened.channel(
                on_open_callback=lambda channel: channel.queue_declare(
                    name, callback=lambda _: on_queue(channel), auto_delete=True
                )
            ),
            on_open_error_callback=lambda _, error: done.set_exception(error),
        )
        closed = loop.create_future()
        connection.add_on_close_callback(lambda *_: closed.set_result(None))
        try:
            return await asyncio.wait_for(done, 30)
        finally:
            connection.close()
            await asyncio.wait_for(closed, 30)

    assert asyncio.run(play()) == [str(number).encode() for number in range(100)]


# -- users, vhosts and certificates

PASSWORD = "correct horse battery"


def add_user(data: Path, name: str, *more: str) -> None:
    """By another process, as an operator would."""
    command = [sys.executable, "-m", "openq", "user", "add", name, *more, "--password", "--data", str(data)]
    environment = {**os.environ, "OPENQ_PASSWORD": PASSWORD}
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment)


def test_users_have_vhosts_of_their_own_and_do_what_their_role_allows(tmp_path: Path) -> None:
    add_user(tmp_path, "root", "--role", "admin")
    add_user(tmp_path, "shop", "--role", "manager", "--account", "shop")
    add_user(tmp_path, "reader", "--role", "consumer", "--account", "shop")

    with served_amqp(tmp_path) as (_, port):

        def connect(user: str, vhost: str, password: str = PASSWORD) -> BlockingConnection:
            credentials = pika.PlainCredentials(user, password)
            return BlockingConnection(parameters(port, virtual_host=vhost, credentials=credentials))

        with pytest.raises(ProbableAuthenticationError):
            connect("guest", "/", "guest")
        with pytest.raises(ProbableAuthenticationError):
            connect("shop", "shop", "wrong")
        with pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user 'shop'"):
            connect("shop", "/")
        shop, root, reader = connect("shop", "shop"), connect("root", "/"), connect("reader", "shop")
        try:
            channel = shop.channel()
            channel.queue_declare("orders", durable=True)
            send(channel, "orders", "1")
            until(lambda: count(channel, "orders") == 1)
            with pytest.raises(ChannelClosedByBroker, match="no queue 'orders' in vhost '/'"):
                root.channel().queue_declare("orders", passive=True)
            _, _, body = reader.channel().basic_get("orders", auto_ack=True)
            assert body == b"1"
            refused = "access to queue 'mine' in vhost 'shop' refused for user 'reader'"
            with pytest.raises(ChannelClosedByBroker, match=refused) as closed:
                reader.channel().queue_declare("mine")
            assert closed.value.reply_code == 403
            writing = reader.channel()
            writing.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker, match="refused for user 'reader'"):
                writing.basic_publish("", "orders", b"x")
        finally:
            for each in (shop, root, reader):
                each.close()


def test_a_client_signs_in_by_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    for name, issued in (
        ("server", authority.issue_cert("localhost", "127.0.0.1")),
        ("alice", authority.issue_cert("alice.example", common_name="alice")),
        ("nobody", authority.issue_cert("nobody.example", common_name="nobody")),
    ):
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    data, server = tmp_path / "data", str(tmp_path / "server.pem")
    add_user(data, "alice", "--role", "manager")
    port = free_port()
    files = ["--tls-cert", server, "--tls-key", server, "--tls-ca", str(trusted)]

    def connect(name: str | None, **more: Any) -> BlockingConnection:
        context = ssl.create_default_context(cafile=str(trusted))
        if name is not None:
            context.load_cert_chain(tmp_path / f"{name}.pem")
        options = pika.SSLOptions(context, "localhost")
        return BlockingConnection(parameters(port, ssl_options=options, **more))

    with served_amqp(data, *files, "--amqps-port", str(port)):
        external = ExternalCredentials()
        connection = connect("alice", credentials=external)
        channel = connection.channel()
        queue = declared(channel)
        send(channel, queue, "by certificate", user_id="alice")
        _, properties, body = wait_for(channel, queue)
        connection.close()
        assert (properties.user_id, body) == ("alice", b"by certificate")

        connection = connect(None, credentials=pika.PlainCredentials("alice", PASSWORD))
        connection.close()
        with pytest.raises(ProbableAuthenticationError, match="authentication mechanism EXTERNAL"):
            connect("nobody", credentials=external)
        with pytest.raises(AMQPConnectionError):
            connect(None, credentials=external)
