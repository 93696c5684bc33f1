"""A full disk: webhooks go on, and make room."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.config import Config
from openq.journal import writer
from tests.crash.faults import FaultyDisk
from tests.http_endpoint import Endpoint, answer
from tests.rest.helpers import Client
from tests.server.in_process import in_process_server
from tests.server.test_disk_full import MIB, indoor_broker
from tests.waiting import until
from tests.webhooks.helpers import declare, left


def test_a_full_disk_is_emptied_by_a_webhook(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=8 * MIB)
    config = Config(memory=True, drain_timeout_s=1, webhook_allow=("127.0.0.1",))
    with in_process_server(indoor_broker(tmp_path, disk), config) as server:
        client = Client(f"http://127.0.0.1:{server.port}")
        client.queue("q", history=0)
        client.queue("other", history=0)
        endpoint.respond = lambda handler: answer(handler, 500)
        declare(client, "q", endpoint.url, failures=1)
        sent = 0
        for size in (100_000, 1_000, 10):
            while client.post("/queues/q/messages", {"payload": "x" * size}).status == 201:
                sent += 1
        # A new webhook has no room now; the acks of the other one have their reserve.
        assert client.put("/webhooks/other", {"url": endpoint.url, "queue": "other"}).status == 507
        endpoint.seen.clear()
        endpoint.respond = lambda handler: answer(handler, 200)
        until(lambda: left(client, "q") == 0)
        assert len({headers["webhook-id"] for _, headers, _ in endpoint.seen}) == sent
        until(lambda: client.post("/queues/q/messages", {"payload": "x" * 100_000}).status == 201)
        assert [line for line in server.records.lines if "Traceback" in line] == []
