"""Clients of one server by each protocol: the library, REST, SQS (boto3) and AMQP (pika and py-amqp)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from openq import OpenQ
from tests.real_clients import boto
from tests.serving import Served, served_amqp

LIBRARY, REST, SQS, AMQP = PROTOCOLS = ("library", "rest", "sqs", "amqp")
Document = dict[str, Any]
ABSENT = object()
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"
CONTEXT = {
    "traceparent": "00-5759e988bd862e3fe1be46a994272793-00f067aa0ba902b7-01",
    "tracestate": "vendor=t61rcWkgMzE",
}
PAST_S = 1_700_000_000


class ProtocolClient(Protocol):
    """A way to the server's queues. `take` acknowledges what it takes; None: there is nothing."""

    def send(self, queue: str, message: Document) -> None: ...
    def take(self, queue: str) -> Document | None: ...


class LibraryClient:
    def __init__(self, **where: str) -> None:
        self._where = where

    def _open(self, queue: str) -> OpenQ:
        return OpenQ(queue, **self._where)

    def send(self, queue: str, message: Document) -> None:
        with self._open(queue) as opened:
            opened.publish(**message)

    def take(self, queue: str) -> Document | None:
        with self._open(queue) as opened:
            message = opened.receive(timeout=0)
            if message is None:
                return None
            seen = {
                name: getattr(message, name)
                for name in ("id", "body", "attributes", "message_type", "priority", "group", "receive_count")
            }
            message.ack()
            return seen


class RestClient:
    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, document: Document | None = None) -> Any:
        data = None if document is None else json.dumps(document, separators=(",", ":")).encode()
        request = urllib.request.Request(f"{self._url}/api/v1{path}", data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def make(self, queue: str, **settings: object) -> str:
        self.call("PUT", f"/queues/{queue}", settings)
        return queue

    def send(self, queue: str, message: Document) -> None:
        self.call("POST", f"/queues/{queue}/messages", message)

    def receive(self, queue: str) -> Document | None:
        found: list[Document] = self.call("POST", f"/queues/{queue}/receive", {})["messages"]
        return found[0] if found else None

    def take(self, queue: str) -> Document | None:
        message = self.receive(queue)
        if message is not None:
            self.call("POST", f"/queues/{queue}/ack", {"receipt_id": message["receipt_id"]})
        return message

    def peek(self, queue: str, state: str = "all") -> list[Document]:
        messages: list[Document] = self.call("GET", f"/queues/{queue}/messages?state={state}")["messages"]
        return messages


class SqsClient:
    def __init__(self, url: str) -> None:
        self.client = boto.client(url)

    def url(self, queue: str) -> str:
        found: str = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        return found

    def send(self, queue: str, message: Document) -> None:
        self.client.send_message(QueueUrl=self.url(queue), **message)

    def receive(self, queue: str, **options: object) -> Document | None:
        answer = self.client.receive_message(
            QueueUrl=self.url(queue), MessageAttributeNames=["All"], AttributeNames=["All"], **options
        )
        found: list[Document] = answer.get("Messages", [])
        return found[0] if found else None

    def take(self, queue: str) -> Document | None:
        message = self.receive(queue)
        if message is not None:
            self.client.delete_message(QueueUrl=self.url(queue), ReceiptHandle=message["ReceiptHandle"])
        return message


class PikaClient:
    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel

    def send(self, queue: str, message: Document) -> None:
        message = dict(message)
        body, exchange = message.pop("body"), message.pop("exchange", "")
        self.channel.basic_publish(exchange, queue, body, pika.BasicProperties(**message), mandatory=True)

    def receive(self, queue: str) -> tuple[int, Document] | None:
        method, properties, body = self.channel.basic_get(queue)
        if method is None:
            return None
        seen = {name: value for name, value in vars(properties).items() if value is not None}
        return method.delivery_tag, {**seen, "body": body, "redelivered": method.redelivered}

    def take(self, queue: str) -> Document | None:
        received = self.receive(queue)
        if received is None:
            return None
        self.channel.basic_ack(received[0])
        return received[1]


class PyAmqpClient:
    """For fractions, which pika cannot send and cuts off when it reads them."""

    def __init__(self, channel: amqp.Channel) -> None:
        self._channel = channel

    def send(self, queue: str, message: Document) -> None:
        headers = message.get("headers", {})
        sent = amqp.Message(message["body"], application_headers=headers)
        self._channel.basic_publish_confirm(sent, routing_key=queue)

    def take(self, queue: str) -> Document | None:
        message = self._channel.basic_get(queue, no_ack=True)
        return None if message is None else {"headers": message.headers, "body": message.body}


@dataclass
class Protocols:
    """A server and its four protocols."""

    server: Served
    amqp_port: int
    rest: RestClient
    sqs: SqsClient
    amqp: PikaClient
    by_name: Mapping[str, ProtocolClient]
    exact: PyAmqpClient

    def client(self, name: str, row: str) -> ProtocolClient:
        return self.exact if (name, row) == (AMQP, "fraction") else self.by_name[name]

    def connect(self, **options: Any) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port, **options))


@contextmanager
def opened(data: Path | None = None, *flags: str) -> Iterator[Protocols]:
    with served_amqp(data, *flags) as (server, port), connected(server, port) as found:
        yield found


@contextmanager
def connected(server: Served, port: int) -> Iterator[Protocols]:
    """Clients of a running server; `port` is that of AMQP."""
    with ExitStack() as stack:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.confirm_delivery()
        stack.callback(connection.close)
        other = amqp.Connection(f"127.0.0.1:{port}", confirm_publish=True)
        other.connect()
        stack.callback(other.close)
        rest, sqs, pika_client = RestClient(server.url), SqsClient(server.url), PikaClient(channel)
        stack.callback(sqs.client.close)
        by_name = {LIBRARY: LibraryClient(url=server.url), REST: rest, SQS: sqs, AMQP: pika_client}
        yield Protocols(server, port, rest, sqs, pika_client, by_name, PyAmqpClient(other.channel()))


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protocols]:
    """Durable."""
    with opened(tmp_path_factory.mktemp("protocols") / "data") as found:
        yield found


def require(expected: Any, seen: Any, where: str = "") -> None:
    """That all of `expected` is in `seen`, types included."""
    if isinstance(expected, dict) and isinstance(seen, Mapping):
        for name, value in expected.items():
            if value is ABSENT:
                assert name not in seen, f"{where}/{name}: {seen[name]!r}"
            else:
                assert name in seen, f"{where}/{name} is missing: {seen!r}"
                require(value, seen[name], f"{where}/{name}")
        return
    kind = int if isinstance(seen, int) and not isinstance(seen, bool) else type(seen)  # pika has its own
    assert (kind, seen) == (type(expected), expected), f"{where}: {seen!r}, not {expected!r}"
