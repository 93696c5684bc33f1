"""What docs/AMQP.md says of differences that are meant, as far as no recorded dialogue has it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from openq import OpenQ
from tests.cli.helpers import run_in_process
from tests.real_clients import boto
from tests.serving import Served, served_amqp
from tests.waiting import until

BEYOND_64_BITS = 1 << 70
WITHOUT_A_SIGN = 1 << 63


@pytest.fixture(scope="module")
def amqp_server() -> Iterator[tuple[Served, int]]:
    with served_amqp() as found:
        yield found


@pytest.fixture
def channel(amqp_server: tuple[Served, int]) -> Iterator[BlockingChannel]:
    connection = connect(amqp_server[1])
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def connect(port: int, name: str = "mill") -> BlockingConnection:
    properties = {"connection_name": name}
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, client_properties=properties))


def headers_of(channel: BlockingChannel, queue: str) -> dict[str, Any]:
    _, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert properties is not None
    return dict(properties.headers)


def test_a_full_queue_with_priorities_drops_the_oldest_of_the_lowest(channel: BlockingChannel) -> None:
    arguments = {"x-max-priority": 9, "x-max-length": 3}
    channel.queue_declare("ranked", durable=True, arguments=arguments)
    for priority, body in ((1, "a"), (1, "b"), (9, "c"), (5, "d"), (1, "e")):
        channel.basic_publish("", "ranked", body, pika.BasicProperties(priority=priority))
    assert [channel.basic_get("ranked", auto_ack=True)[2] for _ in range(3)] == [b"c", b"d", b"e"]


def test_an_unused_quorum_queue_can_be_deleted_with_if_unused(channel: BlockingChannel) -> None:
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_delete("quorum", if_unused=True)


def test_other_protocols_can_access_an_exclusive_queue(
    amqp_server: tuple[Served, int], channel: BlockingChannel
) -> None:
    server, _ = amqp_server
    channel.queue_declare("own", exclusive=True)
    channel.basic_publish("", "own", "seen")
    assert "seen" in run_in_process("peek", "own", "--url", server.url).out
    sqs = boto.client(server.url)
    url = sqs.get_queue_url(QueueName="own")["QueueUrl"]
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "seen"


def test_the_cli_names_the_consumer_of_a_message_in_flight(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    connections = [connect(port, name) for name in ("north", "south")]
    for tag, connection in enumerate(connections):
        channel = connection.channel()
        channel.queue_declare("shared", durable=True)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("shared", lambda *_: None, consumer_tag=f"tag{tag}")
    run_in_process("send", "shared", "--lines", "--url", server.url, answer="a\nb\n")

    def reported() -> str:
        return run_in_process("peek", "shared", "--state", "in_flight", "--url", server.url).out

    until(lambda: len(reported().splitlines()) == 2)
    assert "in flight with north/1/tag0, received 1x" in reported()
    assert "in flight with south/1/tag1, received 1x" in reported()
    for connection in connections:
        connection.close()


def test_the_data_type_of_an_sqs_attribute_is_kept_in_a_header(
    amqp_server: tuple[Served, int], channel: BlockingChannel
) -> None:
    server, _ = amqp_server
    sqs = boto.client(server.url)
    url = sqs.create_queue(QueueName="typed")["QueueUrl"]
    attributes = {
        "id": {"DataType": "String.uuid", "StringValue": "7"},
        "price": {"DataType": "Number", "StringValue": "1.50"},
    }
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    expected = {
        "id": "7",
        "price": "1.50",
        "openq.sqs-types": {"id": "String.uuid", "price": "Number"},
    }
    with OpenQ("typed", url=server.url) as typed:
        seen = typed.peek()
        assert seen is not None
        assert seen.attributes == expected
    assert headers_of(channel, "typed") == expected


def test_numbers_too_large_for_a_header_become_text(
    amqp_server: tuple[Served, int], channel: BlockingChannel
) -> None:
    server, _ = amqp_server
    channel.queue_declare("large", durable=True)
    path = f"{server.url}/api/v1/queues/large/messages"
    body = {"payload": "x", "attributes": {"beyond": BEYOND_64_BITS, "unsigned": WITHOUT_A_SIGN}}
    request = urllib.request.Request(path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()
    with urllib.request.urlopen(path, timeout=30) as answer:
        assert json.load(answer)["messages"][0]["attributes"] == body["attributes"]
    with OpenQ("large", url=server.url) as large:
        seen = large.peek()
        assert seen is not None
        assert seen.attributes == {"beyond": str(BEYOND_64_BITS), "unsigned": WITHOUT_A_SIGN}
    assert headers_of(channel, "large") == {
        "beyond": str(BEYOND_64_BITS),
        "unsigned": str(WITHOUT_A_SIGN),
    }
