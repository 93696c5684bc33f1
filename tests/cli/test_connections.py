"""`openq connections` and `openq server`, against a server with a client of each kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.cli.helpers import run_in_process
from tests.push.streams import Stream, opened
from tests.rest.helpers import Client
from tests.serving import Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("connections")
    with served(data / "data") as found:
        Client(found.url).queue("orders")
        yield found


@pytest.fixture
def stream(server: Served) -> Iterator[Stream]:
    with opened(server.url, user_agent_header="tester/1") as found:
        found.subscribe("orders", credit={"messages": 3})
        yield found


def test_connections_are_listed_shown_and_closed(server: Served, stream: Stream) -> None:
    listed = run_in_process("connections", "ls", "--url", server.url)
    assert listed.code == 0
    assert "orders" in listed.out
    assert "tester/1" in listed.out
    assert "HTTP connection" in listed.err
    one = run_in_process("connections", "ls", "--queue", "orders", "--json", "--url", server.url)
    id = json.loads(one.out)["id"]
    none = run_in_process("connections", "ls", "--protocol", "amqp", "--url", server.url)
    assert (none.code, none.out, none.err) == (0, "", "openq: no connections\n")

    shown = run_in_process("connections", "show", id, "--url", server.url)
    assert "subscription" in shown.out
    assert "orders" in shown.out
    consumers = run_in_process("connections", "consumers", "orders", "--url", server.url)
    assert id in consumers.out

    closed = run_in_process("connections", "close", id, "--reason", "moved", "--url", server.url)
    assert closed.out == f"{id} is closed: moved\n"
    with pytest.raises(ConnectionClosedError, match="moved"):
        stream.read()
    missing = run_in_process("connections", "close", id, "--url", server.url)
    assert missing.code == 3
    assert "does not exist" in missing.err


def test_a_server_without_redis_is_one_line(server: Served) -> None:
    listed = run_in_process("server", "ls", "--url", server.url)

    _, line = listed.out.splitlines()
    assert server.url in line
    assert " all " in line
    [entry] = map(json.loads, run_in_process("server", "ls", "--json", "--url", server.url).out.splitlines())
    assert (entry["pid"], entry["healthy"]) == (server.pid, True)
