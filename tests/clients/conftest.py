"""One server in memory for all clients; each test has queues of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import boto
from tests.serving import Served, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="session", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: Served) -> Iterator[Any]:
    """A boto3 client: every test that uses it runs over both wire formats."""
    client = boto.client(server.url, protocol=request.param)
    yield client
    client.close()
