"""A server with and without a disk, and connections of pika to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.real_clients.pika.helpers import Connect, declared, parameters
from tests.serving import served_amqp


@pytest.fixture(scope="session", params=["durable", "memory"])
def amqp_port(request: pytest.FixtureRequest, amqp_port: int) -> Iterator[int]:
    """Whatever pika sees is the same with a disk and without one."""
    if request.param == "durable":
        yield amqp_port
    elif "RABBITMQ_PORT" in os.environ:
        pytest.skip("RabbitMQ always has a disk")
    else:
        with served_amqp() as (_, port):
            yield port


@pytest.fixture
def connect(amqp_port: int) -> Iterator[Connect]:
    """New connections; those that a test leaves open are closed for it."""
    made: list[BlockingConnection] = []

    def one_more(**more: Any) -> BlockingConnection:
        made.append(BlockingConnection(parameters(amqp_port, **more)))
        return made[-1]

    yield one_more
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    return declared(channel)
