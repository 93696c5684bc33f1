"""`openq.testing.server`: a server for the tests of programs that speak SQS, AMQP or REST."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from openq import OpenQ, VirtualClock
from openq.testing.server import OpenQServer

pytest_plugins = "pytester"


@pytest.fixture(scope="module")
def shared() -> Iterator[OpenQServer]:
    with OpenQServer() as server:
        yield server


@pytest.fixture
def server(shared: OpenQServer) -> OpenQServer:
    shared.reset()
    return shared


def test_one_message_is_seen_by_every_protocol(server: OpenQServer) -> None:
    url = server.sqs.create_queue(QueueName="orders")["QueueUrl"]
    server.sqs.send_message(QueueUrl=url, MessageBody="by sqs")
    with pika.BlockingConnection(pika.URLParameters(server.amqp_url)) as connection:
        channel = connection.channel()
        method, _, body = channel.basic_get("orders", auto_ack=True)
        assert (method is not None, body) == (True, b"by sqs")

        channel.basic_publish("", "orders", b"by amqp")
        assert [message.body for message in server.queue("orders").messages] == [b"by amqp"]


def test_the_ports_are_below_those_of_clients(server: OpenQServer) -> None:
    ports = [int(url.rstrip("/").rpartition(":")[2]) for url in (server.url, server.amqp_url)]

    assert all(1024 < port < 32768 for port in ports)


def test_reset_removes_everything(server: OpenQServer) -> None:
    orders = server.queue("orders", dlq="dead")
    orders.publish("one coffee")
    orders.kv("results").put_many({str(i): b"" for i in range(2_000)})
    orders.exchanges.declare("events", "fanout")
    orders.exchanges.bind("events")
    orders.exchanges.bind("amq.topic", "#")
    orders.schedules.add("tidy", every=60)

    server.reset()

    assert orders.closed
    assert server.sqs.list_queues().get("QueueUrls", []) == []
    again = server.queue("orders")
    assert again.messages == []
    assert again.schedules.list() == []
    assert again.broker.kv.buckets() == []
    assert "events" not in {exchange.name for exchange in again.exchanges.all()}
    assert again.exchanges.publish("amq.topic", "key", "lost").queues == []


def test_a_name_can_be_used_again_after_reset(server: OpenQServer) -> None:
    for _ in range(2):
        url = server.sqs.create_queue(QueueName="orders")["QueueUrl"]
        server.sqs.purge_queue(QueueUrl=url)
        server.sqs.delete_queue(QueueUrl=url)
        server.sqs.create_queue(QueueName="orders")
        server.reset()


def test_a_connection_survives_reset(server: OpenQServer) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders")

        server.reset()

        assert channel.queue_declare("orders").method.message_count == 0


def test_leases_of_a_server_follow_a_virtual_clock() -> None:
    clock = VirtualClock()
    with OpenQServer(clock) as server:
        url = server.sqs.create_queue(QueueName="orders")["QueueUrl"]
        server.sqs.send_message(QueueUrl=url, MessageBody="one coffee")
        assert len(server.sqs.receive_message(QueueUrl=url, VisibilityTimeout=43_200)["Messages"]) == 1
        assert "Messages" not in server.sqs.receive_message(QueueUrl=url)

        clock.advance(43_200)

        assert len(server.sqs.receive_message(QueueUrl=url)["Messages"]) == 1


def test_scheduled_messages_reach_sqs_and_amqp_consumers() -> None:
    clock = VirtualClock()
    with OpenQServer(clock) as server:
        url = server.sqs.create_queue(QueueName="orders")["QueueUrl"]
        server.queue("orders").schedules.add("daily", "hello", every=3_600)
        clock.advance(3_600)
        [message] = server.sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
        attributes = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
        assert (message["Body"], attributes["openq-schedule"]) == ("hello", "daily")
        server.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

        clock.advance(3_600)
        with pika.BlockingConnection(pika.URLParameters(server.amqp_url)) as connection:
            _, properties, body = connection.channel().basic_get("orders", auto_ack=True)
        assert (body, properties.headers["openq-schedule"]) == (b"hello", "daily")
        assert properties.headers["openq-due"] > attributes["openq-due"]


def test_a_closed_server_is_gone() -> None:
    server = OpenQServer()
    server.close()
    server.close()

    with pytest.raises(Exception, match="nothing listens there"):
        OpenQ("orders", url=server.url, reconnect=0)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else, with this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "openq.testing.plugin")
    return pytester


def test_the_fixture_is_one_server_that_is_empty_for_each_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        urls = set()

        @pytest.mark.parametrize("turn", [1, 2])
        def test_it(openq_server, turn):
            urls.add(openq_server.url)
            orders = openq_server.queue("orders")
            assert orders.receive(timeout=0) is None
            orders.publish("left behind")
            assert len(urls) == 1

        def test_the_clock_of_a_server(openq_clock_server, openq_clock):
            orders = openq_clock_server.queue("orders", visibility_timeout=30)
            orders.publish("one coffee")
            orders.receive()

            openq_clock.advance(30)

            assert orders.receive(timeout=0).receive_count == 2
        """
    )

    project.runpytest_inprocess().assert_outcomes(passed=3)
