"""What AMQP remembers of a queue is about that very queue, whatever other doors do under its name."""

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

from tests.serving import Served, served_amqp, until


def ask(server: Served, method: str, path: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
        return int(answer.status)


def replace_queue(server: Served, name: str) -> None:
    """Delete it, make a plain one of the same name, and put a message into that."""
    ask(server, "DELETE", f"/queues/{name}")
    ask(server, "PUT", f"/queues/{name}", {})
    ask(server, "POST", f"/queues/{name}/messages", {"payload": "precious"})


def connect(port: int, **more: Any) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **more))


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Served, int]]:
    with served_amqp() as found:
        yield found


def test_who_had_an_exclusive_queue_has_no_claim_on_another_of_its_name(door: tuple[Served, int]) -> None:
    server, port = door
    owner = connect(port)
    owner.channel().queue_declare("mine", exclusive=True)

    replace_queue(server, "mine")
    other = connect(port)
    assert other.channel().queue_declare("mine", durable=True).method.message_count == 1
    owner.close()

    _, _, body = other.channel().basic_get("mine", auto_ack=True)
    assert body == b"precious"
    other.close()


def test_a_queue_does_not_expire_in_the_place_of_another(door: tuple[Served, int]) -> None:
    server, port = door
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


def test_how_a_queue_hands_out_is_not_left_to_the_next_of_its_name(door: tuple[Served, int]) -> None:
    server, port = door
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("turns", durable=True, arguments={"x-single-active-consumer": True})
    cancelled: list[object] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume("turns", lambda *_: None)
    ask(server, "DELETE", "/queues/turns")
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


def test_a_queue_from_which_another_door_receives_is_in_use(door: tuple[Served, int]) -> None:
    server, port = door
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("read", durable=True, arguments={"x-expires": 600})
    channel.queue_declare("unread", durable=True, arguments={"x-expires": 600})
    for _ in range(100):
        channel.basic_publish("", "read", b"x")

    def unread_is_gone() -> bool:
        ask(server, "POST", "/queues/read/receive", {})
        return not _is_there(connection, "unread")

    until(unread_is_gone)

    assert _is_there(connection, "read")
    connection.close()


def test_a_vhost_takes_its_connections_with_it(door: tuple[Served, int]) -> None:
    server, port = door
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


def lend(channel: BlockingChannel, queue: str, count: int) -> None:
    channel.queue_declare(queue, exclusive=True)
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode())
    for _ in range(count):
        channel.basic_get(queue)


def test_what_a_transaction_has_settled_is_not_settled_again_by_multiple(door: tuple[Served, int]) -> None:
    _, port = door
    connection = connect(port)
    channel = connection.channel()
    lend(channel, "tx-acks", 4)

    channel.tx_select()
    channel.basic_ack(2)
    channel.basic_ack(3, multiple=True)
    channel.tx_commit()
    channel.close()

    again = connection.channel()
    assert again.basic_get("tx-acks", auto_ack=True)[2] == b"3"
    assert again.basic_get("tx-acks") == (None, None, None)
    connection.close()


def test_a_rollback_opens_what_was_settled_in_its_order(door: tuple[Served, int]) -> None:
    _, port = door
    connection = connect(port)
    channel = connection.channel()
    lend(channel, "tx-back", 3)

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


def test_a_guest_is_nobody_once_there_are_users_whatever_their_names(tmp_path: Path) -> None:
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
