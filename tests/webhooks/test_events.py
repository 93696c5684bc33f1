"""Events are sent to a URL: in order, all of them, from where the last request was delivered."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from tests.http_endpoint import Endpoint, answer, serve_endpoint
from tests.rest.helpers import Client
from tests.serving import Served, start
from tests.waiting import until
from tests.webhooks.helpers import attempts, publish, show


def declare_events(client: Client, name: str, url: str, **fields: Any) -> dict[str, Any]:
    selected = {"queues": [name], **fields.pop("events", {})}
    made = client.put(f"/webhooks/{name}", {"url": url, "events": selected, **fields})
    assert made.status in (200, 201), made.data
    found: dict[str, Any] = made.value
    return found


def documents(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = [json.loads(body) for body in endpoint.bodies]
    return [each for one in found for each in (one if isinstance(one, list) else [one])]


def sizes(endpoint: Endpoint) -> list[int]:
    return [each["message"]["size"] for each in documents(endpoint) if each["event"] == "published"]


def publish_sizes(client: Client, name: str, values: range) -> None:
    """Messages that differ in size."""
    for value in values:
        publish(client, name, "x" * value)


def test_what_happens_to_a_message_is_sent_in_order(client: Client, name: str, endpoint: Endpoint) -> None:
    made = declare_events(client, name, endpoint.url, events={"bodies": True})
    publish(client, name, {"n": 1}, message_type="order")
    [message] = client.receive(f"/queues/{name}")
    client.post(f"/queues/{name}/ack", {"receipt_id": message["receipt_id"]})
    until(lambda: len(endpoint.seen) == 3)

    events = documents(endpoint)
    assert [each["event"] for each in events] == ["published", "delivered", "acked"]
    assert {each["message_id"] for each in events} == {message["id"]}
    assert events[0]["message"]["payload"] == {"n": 1}
    _, headers, body = endpoint.seen[0]
    assert Verifier(made["secret"]).verify(body, headers)["id"] == headers["webhook-id"].replace("%2E", ".")


def test_only_selected_events_are_sent(client: Client, name: str, endpoint: Endpoint) -> None:
    client.queue(f"{name}-other")
    declare_events(
        client, name, endpoint.url, events={"events": ["published"], "types": ["a"], "attributes": {"n": 1}}
    )
    publish(client, f"{name}-other", 1, message_type="a")
    publish(client, name, 1, message_type="b")
    publish(client, name, 1, message_type="a", attributes={"n": 2})
    publish(client, name, 1, message_type="a", attributes={"n": 1})
    until(lambda: endpoint.seen)

    [event] = documents(endpoint)
    assert (event["queue"], event["message"]["message_type"]) == (name, "a")
    assert "payload" not in event["message"]


@pytest.mark.parametrize("mode", ["json", "cloudevents-structured", "cloudevents-binary"])
def test_events_in_every_mode(client: Client, name: str, endpoint: Endpoint, mode: str) -> None:
    declare_events(client, name, endpoint.url, mode=mode, events={"events": ["published"]})
    publish(client, name, "x")
    until(lambda: endpoint.seen)

    [(_, headers, body)] = endpoint.seen
    document = json.loads(body)
    if mode == "cloudevents-structured":
        assert (document["type"], document["source"]) == ("openq.published", f"/queues/{name}")
        document = document["data"]
    elif mode == "cloudevents-binary":
        assert headers["ce-type"] == "openq.published"
        assert headers["ce-id"] == document["id"]
    assert (document["event"], document["queue"]) == ("published", name)


def test_a_failed_request_is_repeated_and_the_order_stays(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    def fail_once(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 500 if len(endpoint.seen) == 2 else 200)

    endpoint.respond = fail_once
    declare_events(client, name, endpoint.url, events={"events": ["published"]})
    publish_sizes(client, name, range(1, 6))
    until(lambda: len(endpoint.seen) == 6)

    assert sizes(endpoint) == [1, 2, 2, 3, 4, 5]
    ids = [headers["webhook-id"] for _, headers, _ in endpoint.seen]
    assert ids[1] == ids[2]


def test_an_event_is_dropped_after_its_attempts(client: Client, name: str, endpoint: Endpoint) -> None:
    def fail_first(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 500 if len(endpoint.seen) == 1 else 200)

    endpoint.respond = fail_first
    declare_events(client, name, endpoint.url, max_attempts=1, events={"events": ["published"]})
    publish_sizes(client, name, range(1, 4))
    until(lambda: len(endpoint.seen) == 3)

    assert sizes(endpoint) == [1, 2, 3]
    assert [each["outcome"] for each in attempts(client, name)] == ["delivered", "delivered", "failed"]


def test_410_disables_and_later_events_are_sent_once_it_is_enabled(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    endpoint.respond = lambda handler: answer(handler, 410)
    declare_events(client, name, endpoint.url, events={"events": ["published"]})
    publish_sizes(client, name, range(1, 4))
    until(lambda: not show(client, name)["enabled"])
    endpoint.seen.clear()
    endpoint.respond = lambda handler: answer(handler, 200)
    client.post(f"/webhooks/{name}/enable")
    until(lambda: len(endpoint.seen) == 3)

    assert sizes(endpoint) == [1, 2, 3]


def test_events_in_batches(client: Client, name: str, endpoint: Endpoint) -> None:
    declare_events(client, name, endpoint.url, batch=10, events={"events": ["published"]})
    client.post(f"/webhooks/{name}/disable", {})
    until(lambda: show(client, name)["status"]["in_flight"] == 0)
    publish_sizes(client, name, range(1, 26))
    client.post(f"/webhooks/{name}/enable")
    until(lambda: len(documents(endpoint)) >= 25)

    assert sizes(endpoint) == list(range(1, 26))
    assert len(endpoint.seen) <= 5


def test_a_webhook_sends_no_events_of_other_accounts(client: Client, name: str, endpoint: Endpoint) -> None:
    declare_events(client, name, endpoint.url, events={"queues": ["*"], "events": ["published"]})
    other = Client(f"http://{client.host}:{client.port}", account="111122223333")
    other.queue(name)
    publish(other, name, "secret")
    publish(client, name, "x")
    until(lambda: [each for each in documents(endpoint) if each["queue"] == name])

    assert [each.get("account") for each in documents(endpoint) if each["queue"] == name] == [None]


def restarted(server: Served, data: Path, kill: bool) -> Served:
    if kill:
        server.kill()
    else:
        server.stop()
    return start(data, "--webhook-allow", "127.0.0.1", port=server.port).wait()


def exactly(values: list[int], wanted: range) -> bool:
    """Whether every value came, in order; some again, right after a restart."""
    return list(dict.fromkeys(values)) == list(wanted)


@pytest.mark.parametrize("kill", [False, True])
def test_events_continue_after_a_restart_without_a_gap(tmp_path: Path, kill: bool) -> None:
    with serve_endpoint() as endpoint:
        server = start(tmp_path / "data", "--webhook-allow", "127.0.0.1").wait()
        try:
            client = Client(server.url)
            client.queue("q")
            declare_events(client, "q", endpoint.url, events={"events": ["published"]})
            publish_sizes(client, "q", range(1, 11))
            until(lambda: len(endpoint.seen) >= 5)
            endpoint.respond = lambda handler: answer(handler, 503)
            publish_sizes(client, "q", range(11, 21))
            server = restarted(server, tmp_path / "data", kill)
            endpoint.respond = lambda handler: answer(handler, 200)
            publish_sizes(client, "q", range(21, 26))
            until(lambda: sizes(endpoint)[-1] == 25)
            assert exactly(sizes(endpoint), range(1, 26))
            if not kill:
                delivered = [
                    each["attempt"] for each in attempts(client, "q", outcome="delivered", limit=100)
                ]
                assert len(delivered) == 25
        finally:
            server.stop()


def test_a_webhook_for_events_begins_at_the_time_of_its_declaration(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    publish(client, name, "before")
    declare_events(client, name, endpoint.url, events={"events": ["published"]})
    publish_sizes(client, name, range(50, 51))
    until(lambda: endpoint.seen)

    assert sizes(endpoint) == [50]


def test_a_webhook_that_starts_and_stops_is_a_consumer_that_joins_and_leaves(
    client: Client, name: str, endpoint: Endpoint
) -> None:
    client.queue(f"{name}-hooked")
    events = {"queues": [f"{name}-hooked"], "events": ["consumer_joined", "consumer_left"]}
    declare_events(client, name, endpoint.url, events=events)
    client.put(f"/webhooks/{name}-2", {"url": endpoint.url, "queue": f"{name}-hooked"})
    until(lambda: len(endpoint.seen) == 1)
    client.delete(f"/webhooks/{name}-2")
    until(lambda: len(endpoint.seen) == 2)

    found = documents(endpoint)
    assert [each["event"] for each in found] == ["consumer_joined", "consumer_left"]
    assert {each["detail"]["consumer"] for each in found} == {f"webhook:{name}-2"}
