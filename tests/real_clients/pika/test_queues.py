"""Queues with pika: declaration, deletion, priorities, limits."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    UnroutableError,
)

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import Connect, count, declared, send, taken
from tests.waiting import until

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
