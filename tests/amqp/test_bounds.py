"""What one client can make the server hold, and what a broken disk can make it do, has an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from openq.amqp import methods as m
from openq.amqp.errors import AmqpError
from openq.amqp.frames import FrameReader, method_frame
from openq.amqp.method_codec import encode_method
from tests.amqp.test_frames import HEADER, MAX_FRAME, RecordingHandler, frame
from tests.amqp.test_other_protocols import http_status
from tests.serving import Served, served_amqp
from tests.waiting import until

LARGEST = 1 << 20


@pytest.fixture(scope="module")
def amqp_server() -> Iterator[tuple[Served, int]]:
    with served_amqp(None, "--max-message-bytes", str(LARGEST)) as found:
        yield found


def connect(port: int) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def test_an_uncommitted_transaction_is_limited_in_bytes(amqp_server: tuple[Served, int]) -> None:
    connection = connect(amqp_server[1])
    channel = connection.channel()
    channel.queue_declare("held", exclusive=True)
    channel.tx_select()

    def go_on_for_ever() -> None:
        while True:
            channel.basic_publish("", "held", b"x" * (LARGEST // 4))
            connection.process_data_events(0)

    with pytest.raises(ConnectionClosedByBroker, match="commit earlier"):
        go_on_for_ever()


def test_committed_transactions_are_not_limited(amqp_server: tuple[Served, int]) -> None:
    connection = connect(amqp_server[1])
    channel = connection.channel()
    channel.queue_declare("committed", exclusive=True)
    channel.tx_select()

    for number in range(30):
        channel.basic_publish("", "committed", b"x" * (LARGEST // 4))
        if number % 3 == 1:
            channel.tx_rollback()
        if number % 3 == 2:
            channel.tx_commit()

    assert channel.queue_declare("committed", passive=True).method.message_count == 10
    connection.close()


def test_partial_messages_of_all_channels_share_one_limit() -> None:
    reader = FrameReader(RecordingHandler(), MAX_FRAME, 10_000)
    publish = encode_method(m.BasicPublish("", "q", False, False))
    begun = b"\x00\x3c\x00\x00" + (10_000).to_bytes(8, "big") + b"\x00\x00"

    def begin_on_every_channel() -> None:
        for channel in range(1, 100):
            reader.feed(method_frame(channel, publish) + frame(HEADER, channel, begun))
            reader.feed(frame(3, channel, b"x" * 4000) * 2)

    with pytest.raises(AmqpError) as caught:
        begin_on_every_channel()

    assert caught.value.code == 506


def test_an_unreadable_message_does_not_block_the_others(tmp_path: Path) -> None:
    count = 1500
    with served_amqp(tmp_path) as (server, port):
        connection = connect(port)
        channel = connection.channel()
        _fill(channel, count)
        _damage(tmp_path, b"%05d" % 1200 * 300)

        consumer = connection.channel()
        got: list[bytes] = []
        consumer.basic_consume("q", lambda *reported: got.append(reported[3][:5]), auto_ack=True)
        until(lambda: connection.process_data_events(0.1) or len(got) == count - 1)

        assert got == [b"%05d" % number for number in range(count) if number != 1200]
        assert any("set aside" in line for line in server.log)
        assert server.get("/livez")[0] == 200
        connection.close()
        server.kill()


def _fill(channel: BlockingChannel, count: int) -> None:
    """One by one: each has a block of its own on disk, and those at the end are in memory no more."""
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", "q", b"%05d" % number * 300)


def _damage(data: Path, body: bytes) -> None:
    """As a bad sector would: the bytes before a body, under the running server."""
    for segment in (data / "journal").glob("*.seg"):
        at = segment.read_bytes().find(body)
        if at > 0:
            with open(segment, "r+b") as file:
                file.seek(at - 60)
                file.write(b"\xff" * 60)
            return
    raise AssertionError("the body is not on disk")


def test_basic_get_skips_an_unreadable_message(tmp_path: Path) -> None:
    with served_amqp(tmp_path) as (server, port):
        connection = connect(port)
        channel = connection.channel()
        _fill(channel, 1500)
        _damage(tmp_path, b"%05d" % 1200 * 300)
        for _ in range(1200):
            channel.basic_get("q", auto_ack=True)

        assert channel.basic_get("q", auto_ack=True)[2][:5] == b"01201"
        connection.close()
        server.kill()


def test_stored_arguments_are_limited(amqp_server: tuple[Served, int]) -> None:
    connection = connect(amqp_server[1])

    def declare(size: int) -> None:
        connection.channel().queue_declare(f"wordy-{size}", arguments={"note": "x" * size})

    declare(10_000)
    with pytest.raises(ChannelClosedByBroker, match="the maximum is 16384"):
        declare(20_000)
    connection.close()


def test_a_queue_with_a_size_limit_does_not_limit_other_queues(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    http_status(server, "PUT", "/queues/small", {"max_body": 10})
    channel.queue_declare("large", exclusive=True)
    for queue in ("small", "large"):
        channel.queue_bind(queue, "amq.fanout")
    channel.confirm_delivery()

    with pytest.raises(NackError):  # one of them refused it
        channel.basic_publish("amq.fanout", "", b"x" * 100)

    assert channel.queue_declare("large", passive=True).method.message_count == 1
    assert channel.queue_declare("small", passive=True).method.message_count == 0
    connection.close()
