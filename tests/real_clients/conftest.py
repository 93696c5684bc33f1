"""One durable server for all clients, and one in memory; each test has queues of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_clients import boto
from tests.serving import Served, served, served_amqp


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def memory_server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="session", params=["json", "query", "json-memory"])
def sqs(request: pytest.FixtureRequest, server: Served) -> Iterator[Any]:
    """A boto3 client: every test that uses it runs over both wire formats, and without a disk."""
    protocol, _, where = request.param.partition("-")
    chosen: Served = request.getfixturevalue("memory_server") if where else server
    client = boto.client(chosen.url, protocol=protocol)
    yield client
    client.close()


@pytest.fixture(scope="session")
def amqp_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a durable server. With RABBITMQ_PORT set, of a RabbitMQ: what it fails is a mistake in the test."""
    judge = os.environ.get("RABBITMQ_PORT")
    if judge is not None:
        yield int(judge)
        return
    with served_amqp(tmp_path_factory.mktemp("amqp")) as (_, port):
        yield port
