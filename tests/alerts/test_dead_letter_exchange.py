"""Dead letters that go through an exchange, as AMQP declares it: alert, lists and metric know them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika  # type: ignore[import-untyped]
import pytest

from openq.broker.dead_letter_queues import all_dead_letter_queues, dead_letter_queues
from openq.engine.routing import Binding, Exchange, ExchangeRouter
from openq.model import QueueSettings
from tests.rest.helpers import Client
from tests.serving import Served, free_port, served
from tests.waiting import until


def router(*bindings: tuple[str, str, str]) -> ExchangeRouter:
    """Bindings are (exchange, key, destination); names with x- are exchanges."""
    found = ExchangeRouter()
    for name in {name for source, _, destination in bindings for name in (source, destination)}:
        if name.startswith("x-"):
            found.declare(Exchange(name, "direct"))
    for source, key, destination in bindings:
        found.bind(Binding(source, destination, destination.startswith("x-"), key))
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (QueueSettings(), []),
        (QueueSettings(dead_letter="dead"), ["dead"]),
        (QueueSettings(dead_letter_exchange="", dead_letter_key="dead"), ["dead"]),
        (QueueSettings(dead_letter_exchange=""), []),
        (QueueSettings(dead_letter_exchange="x-no"), []),
        (QueueSettings(dead_letter_exchange="x-dead", dead_letter_key="a"), ["dead-a"]),
        (QueueSettings(dead_letter_exchange="x-dead"), ["dead-work"]),
        (QueueSettings(dead_letter_exchange="x-dead", dead_letter_key="c"), ["dead-a", "dead-work"]),
        (QueueSettings(dead_letter_exchange="x-front", dead_letter_key="a"), ["dead-a"]),
        (QueueSettings(dead_letter_exchange="x-round", dead_letter_key="a"), ["dead-round"]),
    ],
)
def test_the_queues_that_take_dead_letters(settings: QueueSettings, expected: list[str]) -> None:
    table = router(
        ("x-dead", "a", "dead-a"),
        ("x-dead", "work", "dead-work"),
        ("x-front", "any", "x-dead"),
        ("x-round", "a", "x-circle"),
        ("x-circle", "a", "x-round"),
        ("x-circle", "a", "dead-round"),
    )
    assert dead_letter_queues(table, "work", settings) == expected
    sources = all_dead_letter_queues(table, [("work", settings), ("other", QueueSettings())])
    assert sources == {name: ["work"] for name in expected}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "openq.toml"
    file.write_text('[alerts]\ninterval = "0.1s"\n')
    amqp_port = free_port()
    with served(tmp_path / "data", "--config", str(file), "--amqp-port", str(amqp_port)) as found:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
        channel = connection.channel()
        channel.exchange_declare("dlx", "fanout")
        channel.queue_declare("it's dead")
        channel.queue_bind("it's dead", "dlx")
        channel.queue_declare("orders", arguments={"x-dead-letter-exchange": "dlx"})
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"poison")
        method, _, _ = channel.basic_get("orders")
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("orders", passive=True)  # the reject was handled
        connection.close()
        yield found


def test_the_alert_names_the_queue_and_its_command_works_as_typed(server: Served) -> None:
    client = Client(server.url)

    def firing() -> list[dict[str, str]]:
        alerts = client.get("/alerts").value["alerts"]
        return [each for each in alerts if (each["alert"], each["state"]) == ("dead-letters", "firing")]

    until(firing)
    [alert] = firing()
    assert alert["summary"].startswith("1 message of orders dead-lettered to it's dead ")
    assert alert["command"] == """openq dlq redrive 'it'"'"'s dead' --rate 50"""
    line = alert["command"].replace("openq", f"{sys.executable} -m openq", 1)
    done = subprocess.run(
        ["sh", "-c", f"{line} --url {server.url} --yes"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    until(lambda: client.get("/queues/orders").value["stats"]["ready"] == 1)


def test_lists_and_metrics_know_the_queue(server: Served) -> None:
    client = Client(server.url)
    [found] = client.get("/dead-letters").value["queues"]
    assert (found["queue"], found["messages"], found["sources"]) == ("it's dead", 1, ["orders"])
    [group] = client.get("/dead-letter-groups").value["groups"]
    assert (group["count"], group["sources"]) == (1, ["orders"])
    page = server.get("/metrics")[1].decode()
    assert re.search(r"^openq_queues_without_consumers 0$", page, re.MULTILINE)
