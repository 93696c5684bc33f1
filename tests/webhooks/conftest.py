from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http_endpoint import Endpoint, serve_endpoint
from tests.rest.helpers import Client
from tests.serving import Served, served


@pytest.fixture(scope="session")
def webhook_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Durable; webhooks may reach this machine. Tests share it and name their queues for themselves."""
    with served(tmp_path_factory.mktemp("webhooks") / "data", "--webhook-allow", "127.0.0.1") as server:
        yield server
        assert [line for line in server.log if "Traceback" in line] == []


@pytest.fixture
def client(webhook_server: Served) -> Client:
    return Client(webhook_server.url)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve_endpoint() as found:
        yield found


@pytest.fixture
def name(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a queue and of a webhook for this test."""
    found = "".join(char if char.isalnum() else "-" for char in request.node.name)[:80]
    client.queue(found, retry="none")
    yield found
    client.delete(f"/webhooks/{found}")
