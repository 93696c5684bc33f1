"""Consumers that join and leave are events, whatever protocol they speak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.events.sse import EventStream
from tests.serving import Served, served_amqp


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
