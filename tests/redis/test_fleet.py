"""Servers that share a Redis: each lists all of them, and the connections of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

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
