"""Servers that share a Redis: each lists all of them, and the connections of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.http_endpoint import answer, serve_endpoint
from tests.push.streams import opened
from tests.redis.servers import Server
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until


@pytest.fixture
def fleet(redis_server: Server) -> Iterator[list[Served]]:
    store = ["--store", redis_server.url, "--profile", "fast"]
    started = [Served(store, free_port()) for _ in range(2)]
    try:
        yield [each.wait() for each in started]
    finally:
        for each in started:
            each.stop()


def servers(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Client(served.url).get("/servers").value["servers"]
    return found


def test_servers_and_connections_of_a_store_are_listed_by_each_server(fleet: list[Served]) -> None:
    here, there = (Client(each.url) for each in fleet)
    here.queue("jobs")
    with opened(fleet[1].url) as stream:
        stream.subscribe("jobs", credit={"messages": 2})
        until(lambda: here.get("/connections").value["total"] == 1)
        [found] = here.get("/connections").value["connections"]

        assert found["server"] == next(each["name"] for each in servers(fleet[1]) if each["self"])
        assert (found["protocol"], found["queues"]) == ("ws", ["jobs"])
        assert there.get("/connections").value["connections"][0]["id"] == found["id"]
        [consumer] = here.get("/consumers?queue=jobs").value["consumers"]
        assert (consumer["server"], consumer["credit"]) == (found["server"], 2)
        assert here.get("/connections?server=another").value["total"] == 0
        shown = here.get(f"/connections/{found['id']}").value
        assert shown["subscription_details"][0]["queue"] == "jobs"

        answer = here.delete(f"/connections/{found['id']}?reason=rolling%20restart")
        assert (answer.status, answer.value["state"]) == (202, "closing")
        with pytest.raises(ConnectionClosedError) as closed:
            stream.read()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4410, "rolling restart")
    until(lambda: here.get("/connections").value["total"] == 0)

    first, second = fleet
    until(lambda: {each["url"] for each in servers(first)} == {first.url, second.url})
    until(lambda: {each["url"] for each in servers(second)} == {first.url, second.url})

    lines = servers(first)
    assert [each["self"] for each in lines] == [True, False]
    assert {each["pid"] for each in lines} == {first.pid, second.pid}
    assert all(each["healthy"] and each["store"] == "redis" for each in lines)
    assert len({each["instance"] for each in lines}) == 2
    # One of them sweeps all queues.
    until(lambda: sum("sweeper" in each["roles"] for each in servers(first)) == 1)
    second.stop()
    assert [each["url"] for each in servers(first)] == [first.url]


def test_the_webhooks_of_a_queue_are_listed_as_consumers_by_each_server(redis_server: Server) -> None:
    options = ["--store", redis_server.url, "--profile", "fast", "--webhook-allow", "127.0.0.1"]
    started = [Served(options, free_port()) for _ in range(2)]
    try:
        clients = [Client(each.wait().url) for each in started]
        with serve_endpoint() as endpoint:
            endpoint.respond = lambda handler: endpoint.released.wait(30) and answer(handler, 200)
            clients[0].queue("hooked")
            assert clients[0].put("/webhooks/hook", {"url": endpoint.url, "queue": "hooked"}).status == 201
            clients[0].post("/queues/hooked/messages", {"payload": "x"})
            for client in clients:
                until(lambda client=client: _held(client) == [("hook", "webhook", 1)])  # type: ignore[misc]
            endpoint.released.set()
            for client in clients:
                until(lambda client=client: _held(client) == [("hook", "webhook", 0)])  # type: ignore[misc]
    finally:
        for each in started:
            each.stop()


def _held(client: Client) -> list[tuple[str, str, int]]:
    found = client.get("/consumers?queue=hooked").value["consumers"]
    return [(each["name"], each["protocol"], each["in_flight"]) for each in found]
