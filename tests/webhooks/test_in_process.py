"""Limits and failures of webhooks that would take long, or much, with the real figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from openq.broker.events import ALERT
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.webhooks import declaring, delivery_log, single
from openq.webhooks.store import WebhookStore
from tests.http_endpoint import Endpoint, answer
from tests.rest.helpers import Client
from tests.server.in_process import InProcessServer, in_process_server
from tests.waiting import until
from tests.webhooks.helpers import attempts, declare, publish, until_acked

CONFIG = Config(memory=True, drain_timeout_s=1, webhook_allow=("127.0.0.1",))


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with in_process_server(LocalBroker(), replace(CONFIG)) as running:
        yield running


def test_an_event_that_cannot_be_written_takes_no_others_of_its_batch_with_it(endpoint: Endpoint) -> None:
    broker = LocalBroker()
    with in_process_server(broker, CONFIG) as running:
        client = Client(f"http://127.0.0.1:{running.port}")
        client.put("/webhooks/all", {"url": endpoint.url, "events": {"events": ["alert"]}, "batch": 10})
        client.post("/webhooks/all/disable", {})
        until(lambda: client.get("/webhooks/all").value["status"]["state"] == "disabled")
        for text in ("first", "\ud800", "third", "fourth"):
            broker.events.add(ALERT, "", {"text": text})
        client.post("/webhooks/all/enable", {})
        until(lambda: len(endpoint.seen) == 3)
        broker.events.add(ALERT, "", {"text": "last"})
        until(lambda: len(endpoint.seen) == 4)

    texts = [[each["detail"]["text"] for each in json.loads(body)] for body in endpoint.bodies]
    assert texts == [["first"], ["third"], ["fourth"], ["last"]]


@pytest.fixture
def client(server: InProcessServer) -> Client:
    found = Client(f"http://127.0.0.1:{server.port}")
    found.queue("q")
    return found


def test_a_replay_that_is_refused_every_time_fails_and_says_why(
    client: Client, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "FIRST_PAUSE_S", 0.001)
    declare(client, "q", endpoint.url)
    publish(client, "q", "x")
    until_acked(client, "q", 1)
    endpoint.respond = lambda handler: answer(handler, 500, b"no")
    task = client.post("/webhooks/q/replay", {"since": 0}).value
    until(lambda: client.get(f"/tasks/{task['id']}").value["state"] == "failed")

    ended = client.get(f"/tasks/{task['id']}").value
    assert (
        "was not delivered in 5 attempts: HTTP 500: no; 0 messages were sent again before" in ended["error"]
    )
    assert ended["code"] == "replay_failed"
    assert len(endpoint.seen) == 1 + 5


def test_only_an_endpoint_that_answered_410_is_gone_whatever_reason_a_user_writes(
    server: InProcessServer, client: Client, endpoint: Endpoint
) -> None:
    store = WebhookStore(server.server.context.broker.kv)
    endpoint.respond = lambda handler: answer(handler, 410)
    declare(client, "q", endpoint.url)
    client.post("/webhooks/q/disable", {"reason": "HTTP 410, says a user"})
    assert not store.get("q").is_gone
    client.post("/webhooks/q/enable", {})
    publish(client, "q", "x")
    until(lambda: not store.get("q").enabled)
    assert store.get("q").is_gone


def test_there_is_a_limit_of_webhooks(
    client: Client, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaring, "MAX_WEBHOOKS", 2)
    wanted = {"url": endpoint.url, "queue": "q"}
    assert [client.put(f"/webhooks/{name}", wanted).status for name in ("a", "b", "a")] == [201, 201, 200]
    refused = client.put("/webhooks/c", wanted)
    assert refused.code == "invalid_setting"
    client.delete("/webhooks/a")
    assert client.put("/webhooks/c", wanted).status == 201


def test_the_delivery_log_is_bounded_and_keeps_failures(
    client: Client, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "MAX_PART", 5)
    monkeypatch.setattr(delivery_log, "MAX_PARTS", 3)
    endpoint.respond = lambda handler: answer(handler, 500 if len(endpoint.seen) == 1 else 200)
    client.queue("q", retry="none")
    declare(client, "q", endpoint.url, concurrency=1)
    publish(client, "q", *range(20))
    until_acked(client, "q", 20)
    page = client.get("/webhooks/q/deliveries").value
    # 21 attempts, in one part or two; the failure is there.
    assert 5 <= len(page["deliveries"]) <= 10
    assert len(page["deliveries"]) + page["skipped"] == 21
    assert len(attempts(client, "q", outcome="failed")) == 1
    for number in range(5):
        publish(client, "q", number)
        until_acked(client, "q", 21 + number)
        attempts(client, "q")
    assert len(attempts(client, "q")) <= 15
