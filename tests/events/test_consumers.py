"""Consumers that join and leave are events, whatever protocol they speak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.events.sse import EventStream
from tests.push.streams import opened
from tests.rest.helpers import Client
from tests.serving import Served, served_amqp, start
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int]]:
    path: Path = tmp_path_factory.mktemp("consumers")
    with served_amqp(path / "data") as found:
        yield found


def test_an_amqp_consumer_joins_and_leaves(server: tuple[Served, int]) -> None:
    served, port = server
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    with EventStream(served.port, "queues/q/events?events=consumer_joined,consumer_left") as stream:
        stream.started()
        tag = channel.basic_consume("q", lambda *_: None)
        [joined] = stream.take(1)
        channel.basic_cancel(tag)
        [left] = stream.take(1)
        channel.basic_consume("q", lambda *_: None)
        stream.take(1)
        connection.close()
        [gone] = stream.take(1)
    assert (joined.event, left.event, gone.event) == ("consumer_joined", "consumer_left", "consumer_left")
    assert joined.data["detail"]["protocol"] == "amqp"
    assert joined.data["detail"]["consumer"].endswith(f"/{tag}")
    assert left.data["detail"] == joined.data["detail"]


def test_consumers_of_a_server_that_stops_have_left(tmp_path: Path) -> None:
    server = start(tmp_path / "data").wait()
    Client(server.url).queue("q")
    names = "events=consumer_joined,consumer_left&from=oldest&follow=0"
    with opened(server.url) as stream:
        stream.subscribe("q", consumer="me")

        def has_joined() -> bool:
            return b"consumer_joined" in Client(server.url).get(f"/queues/q/events?{names}").data

        until(has_joined)
        server.stop()

    server = start(tmp_path / "data").wait()
    with EventStream(server.port, f"queues/q/events?{names}") as events:
        found = events.take(2)
    server.stop()
    assert [each.event for each in found] == ["consumer_joined", "consumer_left"]
    assert {each.data["detail"]["consumer"] for each in found} == {"me"}
