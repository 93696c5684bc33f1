"""What tests of webhooks share."""

from __future__ import annotations

from typing import Any

from tests.rest.helpers import Client
from tests.waiting import until


def declare(client: Client, name: str, url: str, **fields: Any) -> dict[str, Any]:
    """A webhook that sends the messages of the queue of its name."""
    made = client.put(f"/webhooks/{name}", {"url": url, "queue": name, **fields})
    assert made.status in (200, 201), made.data
    found: dict[str, Any] = made.value
    return found


def publish(client: Client, queue: str, *payloads: Any, **fields: Any) -> None:
    for payload in payloads:
        sent = client.post(f"/queues/{queue}/messages", {"payload": payload, **fields})
        assert sent.status == 201, sent.data


def stats(client: Client, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/queues/{queue}").value["stats"]
    return found


def left(client: Client, queue: str) -> int:
    found = stats(client, queue)
    return int(found["ready"] + found["delayed"] + found["in_flight"])


def until_acked(client: Client, queue: str, count: int) -> None:
    until(lambda: stats(client, queue)["counters"]["acked"] == count, f"{count} acked in {queue}")


def show(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/webhooks/{name}").value
    return found


def attempts(client: Client, name: str, **query: Any) -> list[dict[str, Any]]:
    text = "&".join(f"{key}={value}" for key, value in query.items())
    found: list[dict[str, Any]] = client.get(f"/webhooks/{name}/deliveries?{text}").value["deliveries"]
    return found
