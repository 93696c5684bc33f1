"""A server on which every screen has something to show, filled by real clients of each protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from openq import OpenQ
from openq.auth.store import UserStore
from tests import serving
from tests.http_endpoint import answer, serve_endpoint
from tests.real_clients import boto
from tests.rest.helpers import Client
from tests.serving import Served

PASSWORD = "canary-admin-password"
# Of a user who may do little.
FEW = {"effect": "allow", "actions": ["send", "peek"], "queues": "orders*"}
REASONS = ("timeout calling payment 4711", "KeyError: 'customer'", "no such product: 99")
TRACEBACK = """Traceback (most recent call last):
  File "shop.py", line 7, in handle
    name = order["customer"]
KeyError: 'customer'
"""
# One alert that fires as soon as it is evaluated.
ALERTS = """
[alerts]
interval = "0.2s"
[alerts.rules.backlog]
expression = "queue.ready >= n"
n = 3
severity = "critical"
summary = "{queue} has {value:count} messages"
queues = ["orders"]
command = "openq queue purge {queue}"
"""


@dataclass
class Filled:
    """A server with a user, and what its screens show."""

    server: Served
    amqp_port: int
    token: str
    client: Client
    message_id: str
    connection: pika.BlockingConnection


def config(folder: Path, more: str = "") -> list[str]:
    path = folder / "openq.toml"
    path.write_text(f'webhook_allow = ["127.0.0.1"]\n{ALERTS}{more}')
    return ["--config", str(path)]


def fail_some(url: str, token: str | None = None) -> str:
    """Orders that fail for good, each with a reason; the id of the first."""
    dead = OpenQ("orders-dead", url=url, token=token)
    with OpenQ("orders", url=url, token=token, dlq=dead, max_receives=1) as orders:
        ids = orders.publish_many([{"order": number, "customer": f"c{number % 3}"} for number in range(9)])
        for number, message in enumerate(orders.receive_many(9, 10)):
            orders.nack(message, reason=REASONS[number % 3])
        orders.publish_many([{"order": number, "total": 10 + number} for number in range(6)])
        orders.publish({"order": 99}, delay=3600)
        orders.receive()
    return str(ids[0])


def by_sqs(url: str, key: str, secret: str) -> None:
    sqs = boto.client(url, key=key, secret=secret)
    queue = sqs.create_queue(QueueName="mails")["QueueUrl"]
    colour = {"colour": {"DataType": "String", "StringValue": "red"}}
    sqs.send_message(QueueUrl=queue, MessageBody="dear Ada", MessageAttributes=colour)
    sqs.receive_message(QueueUrl=queue)
    sqs.close()


def by_amqp(port: int, user: str, password: str) -> pika.BlockingConnection:
    """A connection that stays open, with a consumer and a topic exchange."""
    credentials = pika.PlainCredentials(user, password)
    properties = {"connection_name": "shop backend"}
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, credentials=credentials, client_properties=properties, heartbeat=0
        )
    )
    channel = connection.channel()
    channel.queue_declare("shipments", durable=True)
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_bind("shipments", "shop", "order.*.paid")
    channel.basic_publish("shop", "order.7.paid", b"paid", pika.BasicProperties(content_type="text/plain"))
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("shipments", lambda *_: None, consumer_tag="packer-1")
    return connection


def by_rest(client: Client, endpoint: str) -> None:
    put: list[tuple[str, dict[str, Any]]] = [
        ("/schedules/tidy", {"queue": "mails", "every": 3600, "payload": {"job": "tidy"}}),
        ("/schedules/report", {"queue": "mails", "cron": "0 7 * * mon-fri", "payload": "report"}),
        ("/webhooks/shop", {"url": f"{endpoint}/hook", "events": {"queues": ["orders"]}}),
        ("/users/bob", {"role": "viewer", "password": "canary-other-password"}),
        ("/users/cid", {"role": "none", "password": PASSWORD, "rules": [FEW]}),
        ("/webhooks/mailer", {"url": f"{endpoint}/mail", "queue": "mails"}),
    ]
    for path, body in put:
        reply = client.put(path, body)
        assert reply.status in (200, 201), (path, reply.data)
    nack = {"payload": "fails", "attributes": {"shop": "north"}}
    client.queue("reports-dead")
    path = client.queue("reports", dlq="reports-dead", max_receives=1)
    client.post(f"{path}/messages", nack)
    [message] = client.receive(path)
    body = {"receipt_id": message["receipt_id"], "reason": "KeyError: 'customer'", "traceback": TRACEBACK}
    assert client.post(f"{path}/nack", body).status == 200


@contextmanager
def filled(folder: Path) -> Iterator[Filled]:
    data = folder / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    token = store.create_token("ann", "setup")
    key = store.create_key("ann")
    with ExitStack() as stack:
        endpoint = stack.enter_context(serve_endpoint())
        endpoint.respond = lambda handler: answer(handler, 200, json.dumps({"ok": True}).encode())
        server, port = stack.enter_context(serving.served_amqp(data, *config(folder)))
        client = Client(server.url, headers={"authorization": f"Bearer {token}"})
        message_id = fail_some(server.url, token)
        by_sqs(server.url, key.id, key.secret)
        by_rest(client, endpoint.url)
        connection = by_amqp(port, "ann", PASSWORD)
        stack.callback(connection.close)
        yield Filled(server, port, token, client, message_id, connection)
