"""Connections, users, vhosts and certificates with pika."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingConnection
from pika.credentials import ExternalCredentials
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import Connect, count, declared, parameters, send, taken, wait_for
from tests.serving import free_port, served_amqp
from tests.waiting import until

# -- connections


def test_a_wrong_password_is_refused_as_such(connect: Connect) -> None:
    with pytest.raises(
        ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"
    ):
        connect(credentials=pika.PlainCredentials("guest", "wrong"))


def test_an_unknown_vhost_is_refused_as_such(connect: Connect) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="vhost nowhere not found"):
        connect(virtual_host="nowhere")


def test_a_connection_keeps_to_small_frames_if_the_client_wants_them(connect: Connect, queue: str) -> None:
    channel = connect(frame_max=4096).channel()
    body = b"x" * 100_000
    channel.basic_publish("", queue, body)

    _, _, got = wait_for(channel, queue)

    assert got == body


def test_update_secret_is_accepted(connect: Connect) -> None:
    connection = connect()
    connection.update_secret("another", "it was time")
    assert connection.is_open


def test_a_second_consumer_with_the_same_tag_ends_the_connection(connect: Connect, queue: str) -> None:
    # pika itself would refuse it, were both on one of its channel objects.
    channel = connect().channel()
    channel.basic_consume(queue, lambda *_: None, consumer_tag="same")
    channel._impl._consumers.clear()
    channel._consumer_infos.clear()

    with pytest.raises(ConnectionClosedByBroker, match="attempt to reuse consumer tag 'same'") as closed:
        channel.basic_consume(queue, lambda *_: None, consumer_tag="same")

    assert closed.value.reply_code == 530


def test_many_channels_work_side_by_side(connect: Connect, queue: str) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(200)]
    for number, channel in enumerate(channels):
        send(channel, queue, str(number))

    until(lambda: count(channels[0], queue) == 200)
    assert sorted(map(int, taken(channels[-1], queue))) == list(range(200))


def test_the_asyncio_adapter_publishes_with_confirms_and_consumes(amqp_port: int) -> None:
    name = fresh()

    async def play() -> list[bytes]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[bytes]] = loop.create_future()
        got: list[bytes] = []
        confirmed: list[int] = []

        def settled() -> None:
            if len(got) == 100 and confirmed and confirmed[-1] == 100 and not done.done():
                done.set_result(got)

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            settled()

        def on_confirm(frame: Any) -> None:
            confirmed.append(frame.method.delivery_tag)
            settled()

        def on_queue(channel: Any) -> None:
            channel.confirm_delivery(on_confirm)
            channel.basic_consume(name, on_message)
            for number in range(100):
                channel.basic_publish("", name, str(number).encode())

        connection = AsyncioConnection(
            parameters(amqp_port),
            on_open_callback=lambda opened: opened.channel(
                on_open_callback=lambda channel: channel.queue_declare(
                    name, callback=lambda _: on_queue(channel), auto_delete=True
                )
            ),
            on_open_error_callback=lambda _, error: done.set_exception(error),
        )
        closed = loop.create_future()
        connection.add_on_close_callback(lambda *_: closed.set_result(None))
        try:
            return await asyncio.wait_for(done, 30)
        finally:
            connection.close()
            await asyncio.wait_for(closed, 30)

    assert asyncio.run(play()) == [str(number).encode() for number in range(100)]


# -- users, vhosts and certificates

PASSWORD = "correct horse battery"


def add_user(data: Path, name: str, *more: str) -> None:
    """By another process, as an operator would."""
    command = [sys.executable, "-m", "openq", "user", "add", name, *more, "--password", "--data", str(data)]
    environment = {**os.environ, "OPENQ_PASSWORD": PASSWORD}
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment)


def test_users_have_vhosts_of_their_own_and_do_what_their_role_allows(tmp_path: Path) -> None:
    add_user(tmp_path, "root", "--role", "admin")
    add_user(tmp_path, "shop", "--role", "manager", "--account", "shop")
    add_user(tmp_path, "reader", "--role", "consumer", "--account", "shop")

    with served_amqp(tmp_path) as (_, port):

        def connect(user: str, vhost: str, password: str = PASSWORD) -> BlockingConnection:
            credentials = pika.PlainCredentials(user, password)
            return BlockingConnection(parameters(port, virtual_host=vhost, credentials=credentials))

        with pytest.raises(ProbableAuthenticationError):
            connect("guest", "/", "guest")
        with pytest.raises(ProbableAuthenticationError):
            connect("shop", "shop", "wrong")
        with pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user 'shop'"):
            connect("shop", "/")
        shop, root, reader = connect("shop", "shop"), connect("root", "/"), connect("reader", "shop")
        try:
            channel = shop.channel()
            channel.queue_declare("orders", durable=True)
            send(channel, "orders", "1")
            until(lambda: count(channel, "orders") == 1)
            with pytest.raises(ChannelClosedByBroker, match="no queue 'orders' in vhost '/'"):
                root.channel().queue_declare("orders", passive=True)
            _, _, body = reader.channel().basic_get("orders", auto_ack=True)
            assert body == b"1"
            refused = "access to queue 'mine' in vhost 'shop' refused for user 'reader'"
            with pytest.raises(ChannelClosedByBroker, match=refused) as closed:
                reader.channel().queue_declare("mine")
            assert closed.value.reply_code == 403
            writing = reader.channel()
            writing.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker, match="refused for user 'reader'"):
                writing.basic_publish("", "orders", b"x")
        finally:
            for each in (shop, root, reader):
                each.close()


def test_a_client_signs_in_by_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    for name, issued in (
        ("server", authority.issue_cert("localhost", "127.0.0.1")),
        ("alice", authority.issue_cert("alice.example", common_name="alice")),
        ("nobody", authority.issue_cert("nobody.example", common_name="nobody")),
    ):
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    data, server = tmp_path / "data", str(tmp_path / "server.pem")
    add_user(data, "alice", "--role", "manager")
    port = free_port()
    files = ["--tls-cert", server, "--tls-key", server, "--tls-ca", str(trusted)]

    def connect(name: str | None, **more: Any) -> BlockingConnection:
        context = ssl.create_default_context(cafile=str(trusted))
        if name is not None:
            context.load_cert_chain(tmp_path / f"{name}.pem")
        options = pika.SSLOptions(context, "localhost")
        return BlockingConnection(parameters(port, ssl_options=options, **more))

    with served_amqp(data, *files, "--amqps-port", str(port)):
        external = ExternalCredentials()
        connection = connect("alice", credentials=external)
        channel = connection.channel()
        queue = declared(channel)
        send(channel, queue, "by certificate", user_id="alice")
        _, properties, body = wait_for(channel, queue)
        connection.close()
        assert (properties.user_id, body) == ("alice", b"by certificate")

        connection = connect(None, credentials=pika.PlainCredentials("alice", PASSWORD))
        connection.close()
        with pytest.raises(ProbableAuthenticationError, match="authentication mechanism EXTERNAL"):
            connect("nobody", credentials=external)
        with pytest.raises(AMQPConnectionError):
            connect(None, credentials=external)
