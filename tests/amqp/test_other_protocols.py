"""AMQP's state of a queue does not apply to a later queue of the same name made by another protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.serving import Served, served_amqp
from tests.waiting import until


def http_status(server: Served, method: str, path: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
        return int(answer.status)


def replace_queue(server: Served, name: str) -> None:
    """Delete it, make a plain one of the same name, and put a message into that."""
    http_status(server, "DELETE", f"/queues/{name}")
    http_status(server, "PUT", f"/queues/{name}", {})
    http_status(server, "POST", f"/queues/{name}/messages", {"payload": "precious"})


def connect(port: int, **more: Any) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **more))


@pytest.fixture(scope="module")
def amqp_server() -> Iterator[tuple[Served, int]]:
    with served_amqp() as found:
        yield found


def test_the_owner_of_an_exclusive_queue_does_not_own_a_later_queue_of_its_name(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    owner = connect(port)
    owner.channel().queue_declare("mine", exclusive=True)

    replace_queue(server, "mine")
    other = connect(port)
    assert other.channel().queue_declare("mine", durable=True).method.message_count == 1
    owner.close()

    _, _, body = other.channel().basic_get("mine", auto_ack=True)
    assert body == b"precious"
    other.close()


def test_the_expiry_of_a_deleted_queue_does_not_delete_a_later_one_of_its_name(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("short", durable=True, arguments={"x-expires": 500})
    replace_queue(server, "short")
    channel.queue_declare("clock", durable=True, arguments={"x-expires": 1000})  # armed after the other

    until(lambda: not _is_there(connection, "clock"))

    assert _is_there(connection, "short")
    connection.close()


def _is_there(connection: BlockingConnection, name: str) -> bool:
    """Without asking for it by name through AMQP, which would count as use."""
    channel = connection.channel()
    try:
        channel.queue_bind(name, "amq.fanout")
    except ChannelClosedByBroker:
        return False
    channel.close()
    return True


def test_dispatch_settings_are_not_inherited_by_a_later_queue_of_the_same_name(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("turns", durable=True, arguments={"x-single-active-consumer": True})
    cancelled: list[object] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume("turns", lambda *_: None)
    http_status(server, "DELETE", "/queues/turns")
    until(lambda: connection.process_data_events(0.05) or cancelled)

    channel.queue_declare("turns", durable=True)
    channel.basic_qos(prefetch_count=1)
    got: list[str] = []
    channel.basic_consume("turns", lambda *_: got.append("one"))
    channel.basic_consume("turns", lambda *_: got.append("two"))
    for _ in range(2):
        channel.basic_publish("", "turns", b"x")
    until(lambda: connection.process_data_events(0.05) or len(got) == 2)

    assert sorted(got) == ["one", "two"]
    connection.close()


def test_a_queue_with_receivers_of_another_protocol_is_in_use(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("read", durable=True, arguments={"x-expires": 600})
    channel.queue_declare("unread", durable=True, arguments={"x-expires": 600})
    for _ in range(100):
        channel.basic_publish("", "read", b"x")

    def unread_is_gone() -> bool:
        http_status(server, "POST", "/queues/read/receive", {})
        return not _is_there(connection, "unread")

    until(unread_is_gone)

    assert _is_there(connection, "read")
    connection.close()


def test_deleting_a_vhost_closes_its_connections(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    manage(server, "PUT", "/vhosts/passing")
    connection = connect(port, virtual_host="passing")
    channel = connection.channel()

    manage(server, "DELETE", "/vhosts/passing")

    with pytest.raises(ConnectionClosedByBroker, match="passing"):
        channel.queue_declare("too-late")
    assert b"passing" not in server.get("/api/vhosts")[1]


def manage(server: Served, method: str, path: str) -> None:
    request = urllib.request.Request(f"{server.url}/api{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def receive_unacked(channel: BlockingChannel, queue: str, count: int) -> None:
    channel.queue_declare(queue, exclusive=True)
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode())
    for _ in range(count):
        channel.basic_get(queue)


def test_multiple_does_not_settle_again_what_a_transaction_settled(amqp_server: tuple[Served, int]) -> None:
    _, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    receive_unacked(channel, "tx-acks", 4)

    channel.tx_select()
    channel.basic_ack(2)
    channel.basic_ack(3, multiple=True)
    channel.tx_commit()
    channel.close()

    again = connection.channel()
    assert again.basic_get("tx-acks", auto_ack=True)[2] == b"3"
    assert again.basic_get("tx-acks") == (None, None, None)
    connection.close()


def test_a_rollback_restores_settled_deliveries_in_order(amqp_server: tuple[Served, int]) -> None:
    _, port = amqp_server
    connection = connect(port)
    channel = connection.channel()
    receive_unacked(channel, "tx-back", 3)

    channel.tx_select()
    channel.basic_ack(1)
    channel.basic_nack(3, requeue=False)
    channel.tx_rollback()
    channel.basic_ack(2, multiple=True)
    channel.tx_commit()
    channel.close()

    again = connection.channel()
    assert again.basic_get("tx-back", auto_ack=True)[2] == b"2"
    assert again.basic_get("tx-back") == (None, None, None)
    connection.close()


def openq(data: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "openq", *words, "--data", str(data)], check=True, capture_output=True
    )


def test_guest_is_refused_once_there_are_users(tmp_path: Path) -> None:
    with served_amqp(tmp_path) as (_, port):
        connection = connect(port)
        channel = connection.channel()
        openq(tmp_path, "user", "add", "root", "--role", "admin")

        def is_out() -> bool:
            try:
                channel.queue_declare("still-here")
            except AMQPError:
                return True
            return False

        until(is_out)
        with pytest.raises((AMQPError, ConnectionClosedByBroker)):
            connect(port)
