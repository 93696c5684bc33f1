"""Webhooks in the life of a server: start, stop, restart, certificates, large messages."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.certificates import make_certificate
from tests.http_endpoint import Endpoint, answer, serve_endpoint
from tests.rest.helpers import Client
from tests.serving import served, start
from tests.waiting import until
from tests.webhooks.helpers import attempts, declare, left, publish, show, stats, until_acked

ALLOW = ("--webhook-allow", "127.0.0.1")


def test_a_webhook_survives_a_restart_with_its_secret_and_log(tmp_path: Path, endpoint: Endpoint) -> None:
    with served(tmp_path / "data", *ALLOW) as server:
        client = Client(server.url)
        client.queue("q")
        declare(client, "q", endpoint.url)
        publish(client, "q", 1)
        until_acked(client, "q", 1)
        before = show(client, "q")
    with served(tmp_path / "data", *ALLOW) as server:
        client = Client(server.url)
        publish(client, "q", 2)
        until(lambda: len(endpoint.seen) == 2)
        after = show(client, "q")
        assert [after[key] for key in ("secrets", "created")] == [
            before[key] for key in ("secrets", "created")
        ]
        until(lambda: len(attempts(client, "q")) == 2)


def test_a_server_that_stops_waits_for_running_requests(tmp_path: Path, endpoint: Endpoint) -> None:
    stopping = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        stopping.wait(30)
        answer(handler, 200)

    endpoint.respond = slow
    server = start(tmp_path / "data", *ALLOW).wait()
    client = Client(server.url)
    client.queue("q")
    declare(client, "q", endpoint.url, concurrency=2)
    publish(client, "q", *range(5))
    until(lambda: len(endpoint.seen) == 2)
    server.process.terminate()
    until(lambda: any("stopping" in line for line in (*server.lines, *server.log)))
    stopping.set()
    assert server.stop() == 0
    # The two that ran are acked; no other was begun.
    assert len(endpoint.seen) == 2
    with served(tmp_path / "data") as again:
        assert left(Client(again.url), "q") == 3


def test_a_request_that_outlives_the_drain_is_ended_and_its_message_stays(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.respond = lambda handler: endpoint.released.wait(30) and None
    server = start(tmp_path / "data", *ALLOW, "--drain-timeout-s", "0.2").wait()
    client = Client(server.url)
    client.queue("q")
    declare(client, "q", endpoint.url)
    publish(client, "q", 1)
    until(lambda: endpoint.seen)
    assert server.stop() == 0
    endpoint.released.set()
    with served(tmp_path / "data") as again:
        client = Client(again.url)
        # This server allows no address of this machine, so the message is not sent.
        until(lambda: stats(client, "q")["counters"]["nacked"] >= 1)
        assert left(client, "q") == 1
        until(lambda: "loopback address" in str(show(client, "q")["status"]["last_error"]))


def test_an_https_endpoint_is_verified(tmp_path: Path) -> None:
    cert, key, trusted = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with serve_endpoint(tls=context) as endpoint:
        for env, status in (({}, None), ({"SSL_CERT_FILE": str(trusted)}, 200)):
            with served(None, *ALLOW, env=env) as server:
                client = Client(server.url)
                client.queue("q")
                declare(client, "q", endpoint.url)
                attempt = client.post("/webhooks/q/test").value
                assert attempt["status"] == status
                assert status or "not trusted" in attempt["detail"]
        assert len(endpoint.seen) == 1


def test_large_messages_are_taken_in_parts_and_all_arrive(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    sizes = [6_000_000 + number for number in range(6)]
    client.queue(name, max_body=None)
    for size in sizes:
        publish(client, name, "x" * size)
    declare(client, name, endpoint.url, concurrency=16)
    until_acked(client, name, 6)

    assert sorted(map(len, endpoint.bodies)) == sizes
    assert stats(client, name)["in_flight"] == 0


def test_proxies_of_the_environment_are_not_used(tmp_path: Path, endpoint: Endpoint) -> None:
    env = {
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    with served(None, *ALLOW, env=env) as server:
        client = Client(server.url)
        client.queue("q")
        declare(client, "q", endpoint.url)
        assert client.post("/webhooks/q/test").value["status"] == 200
