from collections.abc import Iterator

import pytest

from tests.push.streams import Stream, opened
from tests.rest.helpers import Client
from tests.serving import Served, served


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Durable, and open to everybody on this machine. Tests share it and name their queues for themselves."""
    with served(tmp_path_factory.mktemp("push") / "data") as server:
        yield server
        failures = [line for line in server.log if "Traceback" in line]
        assert failures == []


@pytest.fixture
def client(open_server: Served) -> Client:
    return Client(open_server.url)


@pytest.fixture
def stream(open_server: Served) -> Iterator[Stream]:
    with opened(open_server.url) as found:
        yield found
