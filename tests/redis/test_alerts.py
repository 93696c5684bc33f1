"""Alerts of servers that share a Redis: one evaluates and tells, another takes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.alerts.receivers import Receivers, receivers
from tests.redis.servers import Server
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until

RULE = """
[alerts.rules.many]
expression = "queue.ready >= 3"
keep = "0.2s"
summary = "{queue} has {value:count} messages"
command = "openq queue purge {queue}"
"""


@pytest.fixture
def receiving() -> Iterator[Receivers]:
    with receivers() as found:
        yield found


@pytest.fixture
def servers(redis_server: Server, tmp_path: Path, receiving: Receivers) -> Iterator[list[Served]]:
    config = str(receiving.write(tmp_path, RULE))
    flags = ["--store", redis_server.url, "--profile", "fast", "--config", config]
    with ExitStack() as stack:
        found = [Served(flags, free_port()) for _ in range(2)]
        for each in found:
            stack.callback(each.stop)
        for each in found:
            each.wait()
        yield found
    assert [line for each in found for line in each.log if "Traceback" in line] == []


def evaluates(server: Served) -> bool:
    return b"openq_alert_evaluator 1" in server.get("/metrics")[1].splitlines()


def fill(client: Client, queue: str) -> None:
    client.put(f"/queues/{queue}", {})
    for number in range(3):
        client.post(f"/queues/{queue}/messages", {"payload": number})


def test_one_server_notifies_and_another_takes_over_without_repeating_it(
    servers: list[Served], receiving: Receivers
) -> None:
    clients = [Client(each.url) for each in servers]
    until(lambda: [evaluates(each) for each in servers].count(True) == 1)
    owner = [evaluates(each) for each in servers].index(True)
    other = 1 - owner
    fill(clients[other], "many")
    first = receiving.until_notified("many", "firing")

    def shown() -> list[dict[str, object]]:
        found: list[dict[str, object]] = clients[other].get("/alerts?state=firing&alert=many").value["alerts"]
        return found

    until(lambda: shown() and len(shown()[0]["notified"]) == 5)  # type: ignore[arg-type]
    assert shown()[0]["id"] == first["id"]
    servers[owner].kill()
    until(lambda: evaluates(servers[other]), "the other one takes over")
    fill(clients[other], "more")
    until(lambda: len(receiving.hooks("many", "firing")) == 2)
    clients[other].post("/queues/many/purge")
    clients[other].post("/queues/more/purge")
    until(
        lambda: (
            len(receiving.hooks("many", "resolved")) == 2 and len(receiving.mails("many", "resolved")) == 2
        )
    )

    subjects = [each["labels"]["queue"] for each in receiving.hooks("many", "firing")]
    assert sorted(subjects) == ["many", "more"]
    assert sorted(each["labels"]["queue"] for each in receiving.hooks("many", "resolved")) == ["many", "more"]
    receiving.no_secrets(*servers[other].log)
