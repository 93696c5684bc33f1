"""What the pika tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.real_clients.boto import fresh
from tests.waiting import until

Connect = Callable[..., BlockingConnection]


def parameters(port: int, **more: Any) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=30, **more)


def declared(channel: BlockingChannel, **arguments: Any) -> str:
    name = fresh()
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=given)
    return name


def send(channel: BlockingChannel, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties))


def taken(channel: BlockingChannel, queue: str) -> list[str]:
    """Everything that is ready, settled."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body.decode())


def wait_for(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue, which will come."""
    found: list[tuple[Any, Any, bytes]] = []

    def came() -> bool:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((method, properties, body))
        return bool(found)

    until(came)
    return found[0]


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def ready(connect: Connect, queue: str) -> int:
    """As another connection sees it."""
    connection = connect()
    try:
        return count(connection.channel(), queue)
    finally:
        connection.close()
