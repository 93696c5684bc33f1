"""Messages of a queue are sent to a URL: what the endpoint answers decides."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from standardwebhooks.webhooks import Webhook

from tests.http_endpoint import Endpoint, answer
from tests.rest.helpers import Client
from tests.waiting import until
from tests.webhooks.helpers import attempts, declare, left, publish, show, stats, until_acked


def test_a_message_is_posted_as_it_was_published_and_acked_by_2xx(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    made = declare(client, name, f"{endpoint.url}/hook?a=1", headers={"X-Team": "orders"})
    publish(client, name, {"n": 1}, message_type="order", group="g", attributes={"tenant": "a"})
    until_acked(client, name, 1)

    [(path, headers, body)] = endpoint.seen
    assert (path, json.loads(body)) == ("/hook?a=1", {"n": 1})
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Team"] == "orders"
    assert headers["OpenQ-Message-Type"] == "order"
    assert headers["OpenQ-Group"] == "g"
    assert headers["OpenQ-Attribute-tenant"] == "a"
    assert headers["webhook-id"] == headers["OpenQ-Message-Id"]
    # The verifier of Standard Webhooks accepts it.
    assert Webhook(made["secret"]).verify(body, headers) == {"n": 1}
    assert left(client, name) == 0


def test_a_failed_message_comes_back_and_ends_in_the_dead_letter_queue_with_the_reason(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    client.queue(f"{name}-dead")
    client.queue(name, dlq=f"{name}-dead", max_receives=3)
    endpoint.respond = lambda handler: answer(handler, 500, b"out of \x1b[31mstock\r\n")
    declare(client, name, endpoint.url)
    publish(client, name, "x")
    until(lambda: left(client, f"{name}-dead") == 1)

    ids = {headers["webhook-id"] for _, headers, _ in endpoint.seen}
    assert (len(endpoint.seen), len(ids)) == (3, 1)
    [group] = client.get(f"/queues/{name}-dead/dead-letters/groups").value["groups"]
    assert "HTTP 500: out of ?[31mstock" in group["sample"]
    [message_id] = group["ids"]
    steps = client.get(f"/queues/{name}-dead/messages/{message_id}/timeline").value["steps"]
    assert any(f"webhook:{name}" in step["detail"] for step in steps)
    log = attempts(client, name)
    assert [(each["status"], each["attempt"], each["outcome"]) for each in log] == [
        (500, 3, "failed"),
        (500, 2, "failed"),
        (500, 1, "failed"),
    ]
    assert log[0]["detail"] == "out of ?[31mstock"
    assert show(client, name)["status"]["last_error"] == "HTTP 500: out of ?[31mstock"


def test_410_disables_the_webhook_and_the_message_stays(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    endpoint.respond = lambda handler: answer(handler, 410, b"bye")
    declare(client, name, endpoint.url)
    publish(client, name, "x")
    until(lambda: not show(client, name)["enabled"])

    assert show(client, name)["reason"] == "HTTP 410: bye"
    until(lambda: stats(client, name)["ready"] == 1)
    assert len(endpoint.seen) == 1
    # The delivery was taken back: it does not count against max_receives.
    [message] = client.get(f"/queues/{name}/messages").value["messages"]
    assert message["receive_count"] == 0
    events = f"/queues/{name}/events?from=oldest&follow=0&events=alert"
    until(lambda: f"webhook '{name}' is disabled: HTTP 410: bye".encode() in client.get(events).data)
    # Declaring it again does not enable it.
    declare(client, name, endpoint.url)
    assert show(client, name)["status"]["state"] == "disabled"
    endpoint.respond = lambda handler: answer(handler, 204)
    assert client.post(f"/webhooks/{name}/enable").value["enabled"]
    until_acked(client, name, 1)


def test_retry_after_pauses_the_endpoint(client: Client, name: str, endpoint: Endpoint) -> None:
    endpoint.respond = lambda handler: answer(handler, 429, b"slow down", Retry_After="3600")
    declare(client, name, endpoint.url, concurrency=1)
    publish(client, name, "x", "y")
    until(lambda: show(client, name)["status"]["state"] == "paused")

    assert show(client, name)["status"]["paused_until"] is not None
    until(lambda: (stats(client, name)["delayed"], stats(client, name)["ready"]) == (1, 1))
    assert len(endpoint.seen) == 1
    assert [each["outcome"] for each in attempts(client, name)] == ["paused"]


def test_a_short_pause_ends_by_itself(client: Client, name: str, endpoint: Endpoint) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        if len(endpoint.seen) == 1:
            answer(handler, 503, Retry_After="1")
        else:
            answer(handler, 200)

    endpoint.respond = respond
    declare(client, name, endpoint.url)
    publish(client, name, "x", "y")
    until_acked(client, name, 2)


def test_failures_in_a_row_open_the_circuit_breaker_and_a_success_closes_it(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    endpoint.respond = lambda handler: answer(handler, 500)
    declare(client, name, endpoint.url, failures=3, concurrency=1)
    publish(client, name, *range(5))
    until(lambda: show(client, name)["status"]["breaker"] != "closed")
    assert len(endpoint.seen) >= 3
    endpoint.respond = lambda handler: answer(handler, 200)
    until_acked(client, name, 5)

    assert show(client, name)["status"]["breaker"] == "closed"


def test_never_more_requests_at_once_than_the_concurrency(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        endpoint.released.wait(0.02)
        with lock:
            running -= 1
        answer(handler, 200)

    endpoint.respond = respond
    publish(client, name, *range(30))
    declare(client, name, endpoint.url, concurrency=3)
    until_acked(client, name, 30)

    assert most == 3


def test_the_limits_of_a_queue_hold_for_its_webhook(client: Client, endpoint: Endpoint) -> None:
    client.queue("limited-hook", retry="none", concurrency=1)
    endpoint.respond = lambda handler: endpoint.released.wait(30) and answer(handler, 200)
    declare(client, "limited-hook", endpoint.url, concurrency=8)
    publish(client, "limited-hook", "a", "b")
    until(lambda: len(endpoint.seen) == 1)

    shown = client.get("/queues/limited-hook").value["stats"]
    assert (shown["in_flight"], shown["ready"]) == (1, 1)
    endpoint.released.set()
    until_acked(client, "limited-hook", 2)


def test_a_rate_limits_the_requests(client: Client, name: str, endpoint: Endpoint) -> None:
    publish(client, name, *range(5))
    declare(client, name, endpoint.url, rate="1/h burst 2")
    until_acked(client, name, 2)

    assert stats(client, name)["ready"] == 3
    assert len(endpoint.seen) == 2


def test_a_batch_is_one_array_and_is_acked_as_one(client: Client, name: str, endpoint: Endpoint) -> None:
    publish(client, name, *range(25))
    made = declare(client, name, endpoint.url, mode="json", batch=10, concurrency=1)
    until_acked(client, name, 25)

    batches = [json.loads(body) for body in endpoint.bodies]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert [each["payload"] for batch in batches for each in batch] == list(range(25))
    _, headers, body = endpoint.seen[0]
    Webhook(made["secret"]).verify(body, headers)


def test_only_selected_messages_are_sent(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url, types=["order"], attributes={"shop": ["eu", "us"]})
    publish(client, name, "other", message_type="other", attributes={"shop": "eu"})
    publish(client, name, "elsewhere", message_type="order", attributes={"shop": "asia"})
    publish(client, name, "order", message_type="order", attributes={"shop": "eu"})
    until_acked(client, name, 1)

    assert endpoint.bodies == [b"order"]
    assert stats(client, name)["ready"] == 2


def test_an_endpoint_that_is_down_is_tried_again(client: Client, name: str, endpoint: Endpoint) -> None:
    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        if len(endpoint.seen) < 3:
            handler.close_connection = True
        else:
            answer(handler, 200)

    endpoint.respond = hang_up
    declare(client, name, endpoint.url)
    publish(client, name, "x")
    until_acked(client, name, 1)

    failures = attempts(client, name, outcome="failed")
    assert [each["detail"] for each in failures] == [
        "the endpoint closed the connection without a response"
    ] * 2


def test_a_disabled_webhook_sends_nothing_until_it_is_enabled(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    declare(client, name, endpoint.url)
    shown = client.post(f"/webhooks/{name}/disable", {"reason": "maintenance"}).value
    assert (shown["enabled"], shown["reason"]) == (False, "maintenance")
    until(lambda: stats(client, name)["waiters"] == 0)
    publish(client, name, "x")
    assert endpoint.seen == []

    client.post(f"/webhooks/{name}/enable")
    until_acked(client, name, 1)


def test_a_changed_webhook_sends_to_its_new_url(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, f"{endpoint.url}/one")
    publish(client, name, "x")
    until_acked(client, name, 1)
    changed = client.put(f"/webhooks/{name}", {"url": f"{endpoint.url}/two", "queue": name})
    assert changed.status == 200
    assert "secret" not in changed.value
    until(lambda: stats(client, name)["waiters"] == 1)
    publish(client, name, "y")
    until_acked(client, name, 2)

    assert endpoint.seen[0][0] == "/one"
    assert endpoint.seen[-1][0] == "/two"


def test_a_deleted_webhook_leaves_its_messages(client: Client, name: str, endpoint: Endpoint) -> None:
    declare(client, name, endpoint.url)
    until(lambda: stats(client, name)["waiters"] == 1)
    assert client.delete(f"/webhooks/{name}").status == 200
    until(lambda: stats(client, name)["waiters"] == 0)
    publish(client, name, "x")

    assert (stats(client, name)["ready"], endpoint.seen) == (1, [])
    assert client.get(f"/webhooks/{name}").code == "webhook_not_found"


def test_a_queue_that_is_deleted_and_made_again_is_served_again(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    declare(client, name, endpoint.url)
    until(lambda: stats(client, name)["waiters"] == 1)
    client.delete(f"/queues/{name}")
    until(lambda: show(client, name)["status"]["state"] == "waiting")
    assert "does not exist" in show(client, name)["status"]["trouble"]
    client.queue(name)
    publish(client, name, "x")
    until_acked(client, name, 1)


def test_a_webhook_is_listed_as_a_consumer_with_what_it_holds(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get(f"/consumers?queue={name}&protocol=webhook").value[
            "consumers"
        ]
        return found

    endpoint.respond = lambda handler: endpoint.released.wait(30) and answer(handler, 200)
    declare(client, name, endpoint.url, concurrency=2)
    publish(client, name, 1, 2, 3)
    until(lambda: [each["in_flight"] for each in listed()] == [2])

    [found] = client.get(f"/consumers?queue={name}").value["consumers"]
    assert (found["name"], found["protocol"], found["credit"]) == (name, "webhook", 2)
    assert (found["connection"], found["peer"]) == ("", "")
    assert client.get(f"/connections?queue={name}").value["total"] == 0

    endpoint.released.set()
    until_acked(client, name, 3)
    until(lambda: [each["in_flight"] for each in listed()] == [0])
    client.post(f"/webhooks/{name}/disable", {})
    until(lambda: listed() == [])
