"""Which fields RabbitMQ's management API gives for what, in `management_fields.json`. To record them anew:

python -m tests.amqp.management_fields HTTP_PORT AMQP_PORT
"""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FIELDS = Path(__file__).with_name("management_fields.json")

# (title, path); of a list the first item counts.
LOOKS = {
    "overview": "/api/overview",
    "node": "/api/nodes",
    "vhost": "/api/vhosts/%2F",
    "whoami": "/api/whoami",
    "queue in a list": "/api/queues/%2F",
    "queue": "/api/queues/%2F/fields",
    "exchange in a list": "/api/exchanges/%2F",
    "exchange": "/api/exchanges/%2F/fields",
    "binding": "/api/queues/%2F/fields/bindings",
    "bindings": "/api/bindings",
    "consumer": "/api/consumers",
    "connection": "/api/connections",
    "channel": "/api/channels",
    "policy": "/api/policies",
    "permission": "/api/permissions",
    "user": "/api/users",
    "definitions": "/api/definitions",
    "definitions of a vhost": "/api/definitions/%2F",
    "page": "/api/queues?page=1",
    "alarms": "/api/health/checks/alarms",
    "node health": "/api/healthchecks/node",
    "aliveness": "/api/aliveness-test/%2F",
}
PROPERTIES = {"delivery_mode": 2, "headers": {"a": 1}}


class Api:
    def __init__(self, url: str, user: str = "guest", password: str = "guest") -> None:
        self.url = url
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": self.authorization, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                return error.code, json.loads(text) if text else None


def prepare(api: Api) -> None:
    """Something of each kind to look at."""
    api("PUT", "/api/queues/%2F/fields", {"durable": True})
    api("PUT", "/api/exchanges/%2F/fields", {"type": "topic", "durable": True})
    api("POST", "/api/bindings/%2F/e/fields/q/fields", {"routing_key": "k"})
    api("PUT", "/api/policies/%2F/fields", {"pattern": "^fields$", "definition": {"max-length": 100}})
    message = {"routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": PROPERTIES}
    api("POST", "/api/exchanges/%2F/fields/publish", message)


def fields_of(found: Any) -> list[str]:
    if isinstance(found, list):
        found = found[0]
    return sorted(found)


def nested(api: Api) -> dict[str, list[str]]:
    fields = {title: fields_of(api("GET", path)[1]) for title, path in LOOKS.items()}
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    fields["message"] = fields_of(api("POST", "/api/queues/%2F/fields/get", got)[1])
    queue = api("GET", "/api/queues/%2F/fields")[1]
    fields["message_stats of a queue"] = sorted(queue["message_stats"])
    overview = api("GET", "/api/overview")[1]
    for part in ("queue_totals", "object_totals", "message_stats"):
        fields[f"{part} of the overview"] = sorted(overview[part])
    return fields


if __name__ == "__main__":
    import time

    import pika

    api = Api(f"http://127.0.0.1:{sys.argv[1]}")
    prepare(api)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[2])))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("fields", lambda *_: None)
    while not all(api("GET", LOOKS[each])[1] for each in ("connection", "channel", "consumer")):
        connection.process_data_events(0.5)
        time.sleep(0.5)
    prepare(api)
    connection.process_data_events(6)
    FIELDS.write_text(json.dumps(nested(api), indent=1) + "\n")
