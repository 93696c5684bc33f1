"""The records of webhooks over REST: what is accepted, what is shown, and what never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.http_endpoint import Endpoint, answer
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until
from tests.webhooks.helpers import attempts, declare, publish, show, until_acked

PUBLIC = "https://1.1.1.1/hook"


def test_a_webhook_is_declared_shown_listed_and_deleted(client: Client, name: str) -> None:
    wanted = {
        "url": "https://joe:hush@1.1.1.1:8443/hook?x=1",
        "queue": name,
        "types": ["order"],
        "mode": "cloudevents-structured",
        "batch": 10,
        "headers": {"Authorization": "Bearer hush-hush"},
        "concurrency": 3,
        "rate": "600/m",
        "timeout": 2.5,
        "failures": 5,
        "max_attempts": 7,
    }
    made = client.put(f"/webhooks/{name}", wanted)
    assert made.status == 201
    assert made.value["secret"].startswith("whsec_")
    again = client.put(f"/webhooks/{name}", wanted)
    assert (again.status, "secret" in again.value) == (200, False)
    shown = show(client, name)
    expected = {**wanted, "url": "https://joe:...@1.1.1.1:8443/hook?x=1", "headers": ["Authorization"]}
    assert {key: shown[key] for key in expected} == expected
    assert len(shown["secrets"]) == 1
    assert shown["secrets"][0]["expires"] is None
    listed = client.get("/webhooks")
    assert name in [each["name"] for each in listed.value["webhooks"]]
    for reply in (client.get(f"/webhooks/{name}"), listed, again):
        for secret in (made.value["secret"], made.value["secret"][6:20], "hush"):
            assert secret.encode() not in reply.data
    assert client.delete(f"/webhooks/{name}").value == {"id": name}
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/test", None),
        ("POST", "/replay", {"since": 0}),
        ("POST", "/enable", None),
        ("POST", "/disable", {}),
        ("POST", "/secrets", {}),
        ("GET", "/deliveries", None),
    ):
        assert client.call(method, f"/webhooks/{name}{path}", body).code == "webhook_not_found"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": "http://169.254.169.254/latest/meta-data"}, "address_refused"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "address_refused"),
        ({"url": "http://[64:ff9b::10.0.0.1]/"}, "address_refused"),
        ({"url": "http://10.0.0.1/"}, "address_refused"),
        ({"url": "http://167772161/"}, "address_refused"),
        ({"url": "http://012.0.0.1/"}, "address_refused"),
        ({"url": "http://0xa.0.0.1/"}, "address_refused"),
        ({"url": "http://0.0.0.0/"}, "address_refused"),
        ({"url": "http://127.0.0.2/"}, "address_refused"),
        ({"url": "file:///etc/passwd"}, "invalid_setting"),
        ({"url": "http://1.1.1.1/\r\nX: y"}, "invalid_setting"),
        ({"headers": {"Host": "x"}}, "invalid_setting"),
        ({"headers": {"X": "a\r\nb"}}, "invalid_setting"),
        ({"secret": "whsec_short"}, "invalid_setting"),
        ({"mode": "raw", "batch": 2}, "invalid_setting"),
        ({"mode": "xml"}, "invalid"),
        ({"rate": "fast"}, "invalid_setting"),
        ({"timeout": 0}, "invalid"),
        ({"concurrency": 0}, "invalid"),
        ({"queue": "no-such-queue-anywhere"}, "queue_not_found"),
        ({"queue": None}, "invalid_setting"),
        ({"events": {}}, "invalid_setting"),
        ({"queue": None, "events": {"events": ["exploded"]}}, "invalid_setting"),
        ({"queue": None, "events": {}, "mode": "raw"}, "invalid_setting"),
        ({"colour": "red"}, "invalid"),
    ],
)
def test_what_cannot_be_sent_is_refused(client: Client, name: str, fields: dict[str, Any], code: str) -> None:
    refused = client.put(f"/webhooks/{name}", {"url": PUBLIC, "queue": name, **fields})
    assert refused.code == code
    assert client.get(f"/webhooks/{name}").code == "webhook_not_found"


def test_a_given_secret_is_used_and_a_rotation_signs_with_both(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    first = "whsec_" + "A" * 32
    made = declare(client, name, endpoint.url, secret=first)
    assert "secret" not in made
    rotated = client.post(f"/webhooks/{name}/secrets", {"keep": 3600}).value
    second = rotated["secret"]
    assert [each["expires"] is None for each in rotated["secrets"]] == [True, False]
    until(lambda: len(show(client, name)["secrets"]) == 2)
    publish(client, name, {"a": 1})
    until_acked(client, name, 1)
    _, headers, body = endpoint.seen[0]
    # The sender notices the rotation a moment later; whichever it had, a receiver with both accepts it.
    signatures = headers["webhook-signature"].split(" ")
    assert 1 <= len(signatures) <= 2
    assert Verifier(first).verify(body, headers) == {"a": 1}
    attempt = client.post(f"/webhooks/{name}/test").value
    assert attempt["status"] == 200
    _, headers, body = endpoint.seen[-1]
    for secret in (first, second):
        assert Verifier(secret).verify(body, headers)["type"] == "openq.test"
    only = client.post(f"/webhooks/{name}/secrets", {"keep": 0}).value
    assert len(only["secrets"]) == 1


def test_a_test_says_what_the_endpoint_answered(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url)
    client.post(f"/webhooks/{name}/disable", {})
    endpoint.respond = lambda handler: answer(handler, 418, b"I am a teapot\x07")
    attempt = client.post(f"/webhooks/{name}/test").value

    assert (attempt["status"], attempt["outcome"], attempt["detail"]) == (418, "failed", "I am a teapot?")
    assert attempt["duration"] >= 0
    declare(client, name, "http://127.0.0.1:1/")
    attempt = client.post(f"/webhooks/{name}/test").value
    assert (attempt["status"], attempt["detail"]) == (None, "connection refused")


def test_a_redirect_is_not_followed(client: Client, name: str, endpoint: Endpoint) -> None:
    endpoint.respond = lambda handler: answer(handler, 302, Location="http://169.254.169.254/latest")
    declare(client, name, endpoint.url)
    attempt = client.post(f"/webhooks/{name}/test").value

    assert (attempt["status"], attempt["outcome"]) == (302, "failed")
    assert "redirects are not followed" in attempt["detail"]
    assert len(endpoint.seen) == 1


def test_past_messages_are_sent_again(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url, concurrency=2)
    publish(client, name, *range(10))
    until_acked(client, name, 10)
    ids = {body: headers["webhook-id"] for _, headers, body in endpoint.seen}
    endpoint.seen.clear()

    task = client.post(f"/webhooks/{name}/replay", {"since": 0}).value
    assert (task["kind"], task["queue"]) == ("webhook-replay", name)
    until(lambda: client.get(f"/tasks/{task['id']}").value["state"] == "done")
    assert client.get(f"/tasks/{task['id']}").value["done"] == 10
    assert {body: headers["webhook-id"] for _, headers, body in endpoint.seen} == ids

    endpoint.seen.clear()
    some = client.post(f"/webhooks/{name}/replay", {"ids": [ids[b"3"], ids[b"7"], "unknown"]}).value
    until(lambda: client.get(f"/tasks/{some['id']}").value["state"] == "done")
    assert sorted(endpoint.bodies) == [b"3", b"7"]
    # Nothing happened to the queue.
    until_acked(client, name, 10)


def test_a_replay_that_is_cancelled_ends(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url)
    publish(client, name, *range(3))
    until_acked(client, name, 3)
    task = client.post(f"/webhooks/{name}/replay", {"since": 0, "rate": "1/h"}).value
    until(lambda: len(endpoint.seen) == 4)
    client.delete(f"/tasks/{task['id']}")
    until(lambda: client.get(f"/tasks/{task['id']}").value["state"] == "cancelled")


def test_a_replay_that_fails_says_why(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url)
    publish(client, name, "x")
    until_acked(client, name, 1)
    assert client.post(f"/webhooks/{name}/replay", {}).code == "invalid_setting"
    assert client.post(f"/webhooks/{name}/replay", {"since": "yesterday"}).code == "invalid_setting"


def test_the_key_value_api_does_not_reach_webhooks(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url)
    bucket = "openq.server.webhooks"
    for method, path, body in (
        ("GET", "", None),
        ("GET", f"/{name}", None),
        ("DELETE", f"/{name}", None),
        ("POST", "/get", {"keys": [name]}),
        ("POST", "/put", {"puts": [{"key": name, "value": "AA=="}]}),
        ("POST", "/delete", {"keys": [name]}),
        ("POST", "/wait", {"key": name}),
    ):
        assert client.call(method, f"/kv/{bucket}{path}", body).code == "invalid_setting", (method, path)
    assert client.send("PUT", f"/api/v1/kv/{bucket}/{name}", b"x").code == "invalid_setting"
    assert bucket not in json.dumps(client.get("/kv").value)
    assert show(client, name)["name"] == name


def test_the_log_shows_failures_alone_and_a_limited_number(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    declare(client, name, endpoint.url)
    publish(client, name, *range(5))
    until_acked(client, name, 5)
    assert len(attempts(client, name)) == 5
    assert len(attempts(client, name, limit=2)) == 2
    assert attempts(client, name, outcome="failed") == []


def test_metrics_count_requests_by_status(
    client: Client, webhook_server: Served, name: str, endpoint: Endpoint
) -> None:
    declare(client, name, endpoint.url)
    publish(client, name, *range(3))
    until_acked(client, name, 3)
    text = webhook_server.get("/metrics")[1].decode()
    labels = f'account="000000000000",webhook="{name}"'
    assert f'openq_webhook_requests_total{{{labels},status="2xx"}} 3' in text
    assert f'openq_webhook_messages_total{{{labels},outcome="delivered"}} 3' in text
    assert f"openq_webhook_breaker_state{{{labels}}} 0" in text
    assert f"openq_webhook_enabled{{{labels}}} 1" in text
    assert f'openq_webhook_duration_seconds_bucket{{{labels},le="+Inf"}} 3' in text


def test_a_webhook_needs_manage_and_receive_and_is_hidden_from_others(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    store = UserStore(tmp_path / "data" / "users.json")
    (tmp_path / "data").mkdir(exist_ok=True)
    rules = {
        "boss": [Rule("allow", frozenset({"manage", "receive", "send", "peek"}), "*")],
        "manager": [Rule("allow", frozenset({"manage"}), "orders")],
        "reader": [Rule("allow", frozenset({"receive", "peek"}), "orders")],
        "other": [Rule("allow", frozenset({"manage", "receive", "peek"}), "mine")],
    }
    tokens = {}
    for user, given in rules.items():
        store.add_user(user, rules=given)
        tokens[user] = store.create_token(user, "test")
    with served(tmp_path / "data", "--webhook-allow", "127.0.0.1") as server:
        clients = {
            user: Client(server.url, headers={"authorization": f"Bearer {token}"})
            for user, token in tokens.items()
        }
        boss = clients["boss"]
        boss.queue("orders")
        boss.queue("mine")
        wanted = {"url": endpoint.url, "queue": "orders"}
        for user in ("manager", "reader", "other"):
            assert clients[user].put("/webhooks/shop", wanted).code == "forbidden", user
        made = boss.put("/webhooks/shop", wanted)
        assert made.status == 201
        # Users who may manage the queue may manage its webhook; others do not see it.
        assert clients["manager"].get("/webhooks/shop").status == 200
        assert clients["manager"].post("/webhooks/shop/replay", {"since": 0}).code == "forbidden"
        for user in ("reader", "other"):
            assert clients[user].get("/webhooks/shop").code == "webhook_not_found"
            assert clients[user].get("/webhooks").value == {"webhooks": []}
            assert clients[user].delete("/webhooks/shop").code == "webhook_not_found"
            assert clients[user].post("/webhooks/shop/test").code == "webhook_not_found"
        # It cannot be taken over by moving it to an own queue.
        taken = clients["other"].put("/webhooks/shop", {**wanted, "queue": "mine"})
        assert taken.code == "name_taken"
        # Events of a pattern need the permission for all queues.
        events = {"url": endpoint.url, "events": {"queues": ["m*"]}}
        assert clients["other"].put("/webhooks/events", events).code == "forbidden"
        shown = "\n".join(server.log + server.lines)
        assert made.value["secret"] not in shown
