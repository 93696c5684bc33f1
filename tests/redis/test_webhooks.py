"""Webhooks of servers that share a Redis: one of them sends, and another one takes over when it dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.webhooks import WebhookLoop
from tests.http_endpoint import Endpoint, answer, serve_endpoint
from tests.redis.servers import Server
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until
from tests.webhooks.helpers import attempts, declare, left, publish, show, until_acked


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve_endpoint() as found:
        yield found


@pytest.fixture
def servers(redis_server: Server) -> Iterator[list[Served]]:
    flags = ["--store", redis_server.url, "--profile", "fast", "--webhook-allow", "127.0.0.1"]
    with ExitStack() as stack:
        found = [Served(flags, free_port()) for _ in range(2)]
        for each in found:
            stack.callback(each.stop)
        for each in found:
            each.wait()
        yield found
    assert [line for each in found for line in each.log if "Traceback" in line] == []


def states(servers: list[Served], name: str) -> list[str]:
    return [show(Client(each.url), name)["status"]["state"] for each in servers]


def test_one_server_sends_and_the_other_takes_over_when_it_is_killed(
    servers: list[Served], endpoint: Endpoint
) -> None:
    clients = [Client(each.url) for each in servers]
    clients[0].queue("orders", retry="none")
    declare(clients[1], "orders", endpoint.url)
    until(lambda: sorted(states(servers, "orders")) == ["elsewhere", "running"])
    publish(clients[0], "orders", *range(10))
    until_acked(clients[0], "orders", 10)
    assert sorted(map(int, endpoint.bodies)) == list(range(10))

    owner = states(servers, "orders").index("running")
    other = 1 - owner
    owned_by = f"/{servers[owner].pid}/"
    until(lambda: owned_by in show(clients[other], "orders")["status"].get("owner", ""))
    # Requests are running when it dies: their messages come back.
    endpoint.respond = lambda handler: endpoint.released.wait(30) and answer(handler, 200)
    publish(clients[other], "orders", *range(10, 15))
    until(lambda: len(endpoint.seen) == 15)
    servers[owner].kill()
    endpoint.respond = lambda handler: answer(handler, 200)
    publish(clients[other], "orders", *range(15, 20))
    until(lambda: left(clients[other], "orders") == 0)

    assert show(clients[other], "orders")["status"]["state"] == "running"
    assert sorted(set(map(int, endpoint.bodies))) == list(range(20))


def test_every_message_arrives_however_often_two_servers_and_the_endpoint_are_killed(
    redis_server: Server, tmp_path: Path
) -> None:
    seed = chosen_seed()
    loop = WebhookLoop(tmp_path, seed, redis_server.url, servers=2)

    complaint = loop.run(lives=3)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.confirmed > 0


def test_a_server_that_stops_hands_over_at_once_and_the_log_is_shared(
    servers: list[Served], endpoint: Endpoint
) -> None:
    clients = [Client(each.url) for each in servers]
    clients[0].queue("orders")
    declare(clients[0], "orders", endpoint.url)
    until(lambda: "running" in states(servers, "orders"))
    publish(clients[0], "orders", 1)
    until_acked(clients[0], "orders", 1)
    owner = states(servers, "orders").index("running")
    client = clients[1 - owner]
    assert servers[owner].stop() == 0
    publish(client, "orders", 2)
    until_acked(client, "orders", 2)

    assert sorted(map(int, endpoint.bodies)) == [1, 2]
    assert [each["outcome"] for each in attempts(client, "orders")] == ["delivered"] * 2


def test_a_change_at_one_server_reaches_the_sender_at_the_other(
    servers: list[Served], endpoint: Endpoint
) -> None:
    clients = [Client(each.url) for each in servers]
    clients[0].queue("orders")
    declare(clients[0], "orders", f"{endpoint.url}/one")
    until(lambda: "running" in states(servers, "orders"))
    owner = states(servers, "orders").index("running")
    other = clients[1 - owner]
    other.post("/webhooks/orders/disable", {})
    until(
        lambda: (
            b'openq_webhook_enabled{account="000000000000",webhook="orders"} 0'
            in servers[owner].get("/metrics")[1]
        )
    )
    until(
        lambda: (
            b'openq_webhook_in_flight{account="000000000000",webhook="orders"} 0'
            in servers[owner].get("/metrics")[1]
        )
    )
    publish(other, "orders", 1)
    declare(other, "orders", f"{endpoint.url}/two")
    other.post("/webhooks/orders/enable")
    until_acked(other, "orders", 1)

    assert [path for path, _, _ in endpoint.seen] == ["/two"]


def test_events_are_sent_in_order_by_one_server_and_continue_at_the_other(
    servers: list[Served], endpoint: Endpoint
) -> None:
    clients = [Client(each.url) for each in servers]
    clients[0].queue("orders")
    wanted = {"url": endpoint.url, "events": {"queues": ["orders"], "events": ["published"]}}
    assert clients[0].put("/webhooks/audit", wanted).status == 201
    until(lambda: sorted(states(servers, "audit")) == ["elsewhere", "running"])

    def sizes() -> list[int]:
        return [json.loads(body)["message"]["size"] for body in endpoint.bodies]

    publish(clients[0], "orders", *("x" * size for size in range(1, 11)))
    until(lambda: len(endpoint.seen) == 10)
    assert sizes() == list(range(1, 11))
    owner = states(servers, "audit").index("running")
    servers[owner].kill()
    publish(clients[1 - owner], "orders", *("x" * size for size in range(11, 21)))
    until(lambda: sizes()[-1:] == [20])

    # After a kill those of the last moment may come again, with the same ids.
    ids = [headers["webhook-id"] for _, headers, _ in endpoint.seen]
    assert list(dict.fromkeys(sizes())) == list(range(1, 21))
    assert len(set(ids)) == 20
