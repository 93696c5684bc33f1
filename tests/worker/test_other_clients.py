"""Jobs that clients of SQS, AMQP and REST send."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openq.testing.server import OpenQServer
from openq.worker import App, Worker
from tests.waiting import until

BODY: dict[str, Any] = {"args": ["a@example.org"], "kwargs": {"subject": "hi"}}


@pytest.fixture
def server() -> Iterator[OpenQServer]:
    with OpenQServer() as server:
        yield server


def assert_runs(server: OpenQServer, send: Callable[[], object]) -> None:
    app = App(url=server.url)
    seen: list[tuple[str, str]] = []

    @app.task(queue="mail")
    def send_mail(to: str, *, subject: str) -> None:
        seen.append((to, subject))

    app.declare()
    send()
    worker = Worker(app)
    worker.start()
    until(lambda: seen == [("a@example.org", "hi")])
    worker.stop()
    app.close()


def post(url: str, document: dict[str, Any], **headers: str) -> None:
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        assert reply.status < 300


def test_boto3_sends_jobs(server: OpenQServer) -> None:
    pytest.importorskip("boto3")

    def send() -> None:
        server.sqs.send_message(
            QueueUrl=server.sqs.get_queue_url(QueueName="mail")["QueueUrl"],
            MessageBody=json.dumps(BODY),
            MessageAttributes={"message_type": {"DataType": "String", "StringValue": "send_mail"}},
        )

    assert_runs(server, send)


def test_a_request_of_sqs_sends_a_job(server: OpenQServer) -> None:
    def send() -> None:
        document = {
            "QueueUrl": f"{server.url}/000000000000/mail",
            "MessageBody": json.dumps(BODY),
            "MessageAttributes": {"message_type": {"DataType": "String", "StringValue": "send_mail"}},
        }
        target = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
        post(server.url, document, **target)

    assert_runs(server, send)


def test_pika_sends_jobs(server: OpenQServer) -> None:
    pika = pytest.importorskip("pika")

    def send() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(server.amqp_url))
        properties = pika.BasicProperties(type="send_mail")
        connection.channel().basic_publish("", "mail", json.dumps(BODY).encode(), properties)
        connection.close()

    assert_runs(server, send)


def test_rest_sends_jobs(server: OpenQServer) -> None:
    def send() -> None:
        document = {"payload": BODY, "message_type": "send_mail"}
        url = f"{server.url}/api/v1/queues/mail/messages"
        post(url, document, **{"Content-Type": "application/json"})

    assert_runs(server, send)
