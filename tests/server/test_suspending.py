"""The protocols before a broker that waits: other requests go on meanwhile, and nothing gets out of order."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pika
import pytest
from botocore.config import Config as BotoConfig

from openq.broker.waiters import Waiter
from openq.config import Config
from openq.errors import QueueNotFound, StoreUnavailable
from openq.model import Delivery, QueueSettings
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.suspending import SuspendingBroker
from tests.serving import free_port
from tests.waiting import until


@dataclass
class RunningServer:
    broker: SuspendingBroker
    server: InProcessServer
    amqp_port: int

    @contextmanager
    def sqs(self) -> Iterator[Any]:
        client = boto3.client(
            "sqs",
            "us-east-1",
            endpoint_url=f"http://127.0.0.1:{self.server.port}",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=BotoConfig(retries={"total_max_attempts": 1}),
        )
        try:
            yield client
        finally:
            client.close()

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port))


@pytest.fixture
def running() -> Iterator[RunningServer]:
    port = free_port()
    broker = SuspendingBroker()
    config = Config(memory=True, drain_timeout_s=1, amqp_port=port)
    with closing(broker), in_process_server(broker, config) as server:
        broker.is_strict = True
        try:
            yield RunningServer(broker, server, port)
        finally:
            broker.is_strict = False
        assert server.records.at_least("error") == []


def test_frames_of_a_connection_are_done_in_their_order(running: RunningServer) -> None:
    with closing(running.connect()) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        bodies = [b"%d" % number for number in range(400)]
        # Not one of them is waited for: the server has many frames while it does the first.
        for body in bodies[:200]:
            channel.basic_publish("", "jobs", body)
        channel.confirm_delivery()
        for body in bodies[200:]:
            channel.basic_publish("", "jobs", body)

    assert [each.body for each in running.broker.inspect.entries("jobs")] == bodies


def test_consumers_get_all_of_it_whole_and_acknowledge_it(running: RunningServer) -> None:
    running.broker.declare("jobs", QueueSettings())
    got: list[bytes] = []
    lock = threading.Lock()

    def consume(prefetch: int, auto_ack: bool) -> None:
        with closing(running.connect()) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=prefetch)
            for method, _, body in channel.consume("jobs", auto_ack=auto_ack, inactivity_timeout=0.2):
                with lock:
                    if method is None and len(got) >= 600:
                        break
                    if method is None:
                        continue
                    got.append(body)
                if not auto_ack:
                    channel.basic_ack(method.delivery_tag)
            channel.cancel()

    threads = [threading.Thread(target=consume, args=each) for each in ((1, False), (20, False), (0, True))]
    for thread in threads:
        thread.start()
    with closing(running.connect()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(600):
            channel.basic_publish("", "jobs", b"%d" % number * (1 + number % 50))
    for thread in threads:
        thread.join(60)

    assert sorted(got) == sorted(b"%d" % number * (1 + number % 50) for number in range(600))
    until(lambda: running.broker.stats("jobs").in_flight == 0)
    assert running.broker.stats("jobs").ready == 0


def test_what_a_connection_held_returns_when_it_is_cut_off(running: RunningServer) -> None:
    running.broker.declare("jobs", QueueSettings())
    for _ in range(30):
        running.broker.publish_body("jobs", b"x", 0)
    for _ in range(10):
        connection = running.connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=30)
        channel.basic_consume("jobs", lambda *_: None)
        connection.process_data_events(0.01)
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # in the middle of whatever goes on
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(30)

    until(lambda: running.broker.stats("jobs").ready == 30)


def test_consumers_that_come_and_go_never_starve(running: RunningServer) -> None:
    running.broker.declare("jobs", QueueSettings())
    with closing(running.connect()) as connection:
        channel = connection.channel()
        for number in range(60):
            tag = channel.basic_consume("jobs", lambda *_: None)
            channel.basic_cancel(tag)
            got: list[bytes] = []
            channel.basic_consume("jobs", lambda c, m, p, body, got=got: got.append(body), auto_ack=True)
            running.broker.publish_body("jobs", b"%d" % number, 0)
            until(lambda got=got: connection.process_data_events(0.01) or got)
            assert got == [b"%d" % number]
            for each in list(channel.consumer_tags):
                channel.basic_cancel(each)


def test_a_queue_that_another_server_deletes_during_a_consume_cancels_its_consumer(
    running: RunningServer,
) -> None:
    """A store that servers share finds it gone with the first call for it, before any waiter waits."""
    connection = running.connect()
    channel = connection.channel()
    channel.queue_declare("brief")
    cancelled: list[object] = []
    channel.add_on_cancel_callback(cancelled.append)

    def add_waiter(queue: str, waiter: Waiter) -> None:
        raise QueueNotFound(queue)

    running.broker.add_waiter = add_waiter  # type: ignore[method-assign]
    channel.basic_consume("brief", lambda *_: None)

    def is_cancelled() -> bool:
        connection.process_data_events(0.05)
        return bool(cancelled)

    until(is_cancelled)
    connection.close()


def test_a_store_that_fails_during_a_consume_is_asked_again(running: RunningServer) -> None:
    connection = running.connect()
    channel = connection.channel()
    channel.queue_declare("jobs")
    channel.basic_publish("", "jobs", b"one")
    answer, failures = running.broker.add_waiter, iter(range(2))

    def add_waiter(queue: str, waiter: Waiter) -> list[Delivery] | None:
        if next(failures, None) is not None:
            raise StoreUnavailable("Redis is unreachable")
        return answer(queue, waiter)

    running.broker.add_waiter = add_waiter  # type: ignore[method-assign]

    _, _, body = next(channel.consume("jobs", inactivity_timeout=30))
    assert body == b"one"
    connection.close()
    records = running.server.records
    assert all("deliveries are suspended" in line for line in records.at_least("error"))
    records.lines.clear()


def test_exclusive_and_brief_queues_go_with_their_connection(running: RunningServer) -> None:
    for _ in range(10):
        with closing(running.connect()) as connection:
            channel = connection.channel()
            name = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_declare("brief", durable=True, auto_delete=True)
            channel.basic_consume("brief", lambda *_: None)
            channel.basic_consume(name, lambda *_: None)
        until(lambda: running.broker.queues() == [])


def test_long_polls_are_served_and_time_out(running: RunningServer) -> None:
    got: list[str] = []

    def poll() -> None:
        with running.sqs() as sqs:
            while len(got) < 100:
                found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1, MaxNumberOfMessages=10)
                for each in found.get("Messages", ()):
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
                    got.append(each["Body"])

    threads = [threading.Thread(target=poll) for _ in range(3)]
    with running.sqs() as sqs:
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
        for thread in threads:
            thread.start()
        for number in range(100):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        for thread in threads:
            thread.join(60)

    assert sorted(got, key=int) == [str(number) for number in range(100)]


def test_a_client_that_hangs_up_while_it_waits_takes_no_message_with_it(running: RunningServer) -> None:
    running.broker.declare("jobs", QueueSettings())
    body = b'{"max": 1, "wait": 20}'
    head = b"POST /api/v1/queues/jobs/receive HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", running.server.port)) as client:
            client.sendall(head + body)
    until(lambda: not running.server.server.listener.connections)
    until(lambda: running.broker.stats("jobs").waiters == 0)
    running.broker.publish_body("jobs", b"x", 0)

    assert running.broker.stats("jobs").ready == 1


def test_pipelined_requests_are_answered_in_their_order(running: RunningServer) -> None:
    requests = b"".join(
        b"PUT /api/v1/queues/q%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" % number
        for number in range(40)
    )
    with socket.create_connection(("127.0.0.1", running.server.port)) as client:
        client.settimeout(30)
        client.sendall(requests)
        answer = b""
        while answer.count(b"HTTP/1.1 201") < 40 or b'"q39"' not in answer:
            answer += client.recv(65536)
    places = [answer.index(b'"name":"q%d"' % number) for number in range(40)]

    assert places == sorted(places)
