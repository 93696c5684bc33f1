"""Events as messages: queues bound to `openq.events` get them, once, in order, over restarts."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.protocol_clients import RestClient, SqsClient
from tests.real_clients.pika.helpers import parameters, wait_for
from tests.serving import Served, served, served_amqp, start
from tests.waiting import until

Seen = tuple[str, str]  # event and queue


class Sink:
    """A queue that is bound, and what arrived in it; nothing twice."""

    def __init__(self, rest: RestClient, name: str = "sink", *keys: str, **settings: object) -> None:
        self.rest = rest
        self.name = rest.make(name, **settings)
        for key in keys or ("#",):
            bind(rest, name, key)
        self.seen: list[Seen] = []
        self.ids: list[str] = []

    def collect(self) -> list[Seen]:
        while (message := self.rest.take(self.name)) is not None:
            event = message["payload"]
            assert message["id"] == event["id"]
            self.ids.append(event["id"])
            self.seen.append((event["event"], event["queue"]))
        return self.seen

    def wait(self, *events: Seen) -> None:
        until(lambda: len(self.collect()) >= len(events), f"{events}")
        assert self.seen == list(events)
        assert len(set(self.ids)) == len(self.ids)


def bind(rest: RestClient, queue: str, key: str) -> None:
    rest.call("POST", "/bindings", {"source": "openq.events", "destination": queue, "key": key})


def unbind(rest: RestClient, queue: str, key: str) -> None:
    rest.call("DELETE", "/bindings", {"source": "openq.events", "destination": queue, "key": key})


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as server:
        yield server


@contextmanager
def channel_of(port: int, **options: Any) -> Iterator[Any]:
    connection = pika.BlockingConnection(parameters(port, **options))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def test_a_pika_consumer_gets_events_as_messages() -> None:
    with served_amqp() as (server, port), channel_of(port) as channel:
        channel.exchange_declare("openq.events", passive=True)
        channel.queue_declare("mine", durable=True)
        channel.queue_bind("mine", "openq.events", "orders.#")
        rest = RestClient(server.url)
        rest.make("orders")
        rest.make("other")
        rest.send("other", {"payload": "x"})
        rest.send("orders", {"payload": "x", "attributes": {"a": "b"}, "message_type": "new"})

        method, _, body = wait_for(channel, "mine")
        assert (method.exchange, method.routing_key) == ("openq.events", "orders.queue_created")
        method, properties, body = wait_for(channel, "mine")

        event = json.loads(body)
        assert (method.exchange, method.routing_key) == ("openq.events", "orders.published")
        assert properties.content_type == "application/json"
        assert properties.message_id == event["id"]
        assert properties.timestamp > 1_600_000_000
        assert properties.headers["x-openq-event"] == "published"
        assert properties.headers["x-openq-queue"] == "orders"
        assert event["event"] == "published"
        assert event["queue"] == "orders"
        assert event["message"]["message_type"] == "new"
        assert "payload" not in event["message"]  # who may bind may not therefore read the messages


def test_the_exchange_cannot_be_deleted_changed_or_published_to() -> None:
    with served_amqp() as (server, port):
        refused = [
            (lambda channel: channel.exchange_delete("openq.events"), 403),
            (lambda channel: channel.exchange_declare("openq.events", "direct", durable=True), 406),
            (lambda channel: channel.basic_publish("openq.events", "a.b", b"x"), 403),
        ]
        for call, code in refused:
            with channel_of(port) as channel:
                channel.confirm_delivery()  # so that a publish is answered
                with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                    call(channel)
                assert caught.value.reply_code == code
        rest = RestClient(server.url)
        with pytest.raises(AssertionError, match="always there"):
            rest.call("DELETE", "/exchanges/openq.events")
        with pytest.raises(AssertionError, match="internal"):
            rest.call("POST", "/exchanges/openq.events/publish", {"payload": "x", "routing_key": "a.b"})
        assert "openq.events" in [each["name"] for each in rest.call("GET", "/exchanges")["exchanges"]]


def test_a_queue_of_another_vhost_gets_events_of_its_vhost_only_until_that_is_deleted() -> None:
    with served_amqp() as (server, port):
        request = urllib.request.Request(f"{server.url}/api/vhosts/eu", b"{}", method="PUT")
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30):
            pass
        with channel_of(port, virtual_host="eu") as channel:
            channel.exchange_declare("openq.events", passive=True)
            channel.queue_declare("sink", durable=True)
            channel.queue_bind("sink", "openq.events", "#.published")
            RestClient(server.url).make("orders")
            RestClient(server.url).send("orders", {"payload": "not yours"})
            channel.queue_declare("orders", durable=True)
            channel.basic_publish("", "orders", b"yours")

            method, _, body = wait_for(channel, "sink")

            event = json.loads(body)
            assert method.routing_key == "orders.published"
            assert (event["queue"], event["account"]) == ("orders", "eu")
        policy = {
            "pattern": ".*",
            "definition": {"alternate-exchange": "amq.fanout"},
            "apply-to": "exchanges",
        }
        for method, path, body in (
            ("PUT", "policies/eu/all", json.dumps(policy).encode()),
            ("DELETE", "vhosts/eu", b""),
        ):
            request = urllib.request.Request(f"{server.url}/api/{path}", body or None, method=method)
            request.add_header("content-type", "application/json")
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status in (201, 204)


def test_an_sqs_user_gets_events_in_a_queue(shared: Served) -> None:
    sqs, rest = SqsClient(shared.url), RestClient(shared.url)
    url = sqs.client.create_queue(QueueName="sqs-sink")["QueueUrl"]
    sqs.client.create_queue(
        QueueName="sqs-sink.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    )
    for queue in ("sqs-sink", "sqs-sink.fifo"):
        bind(rest, queue, "sqs-orders.published")
    sqs.client.create_queue(QueueName="sqs-orders")
    sqs.send("sqs-orders", {"MessageBody": "x"})

    for queue in ("sqs-sink", "sqs-sink.fifo"):
        found: list[Any] = []
        until(lambda queue=queue, found=found: found.append(sqs.take(queue)) or found[-1])  # type: ignore[misc]
        message = found[-1]
        event = json.loads(message["Body"])
        assert (event["event"], event["queue"]) == ("published", "sqs-orders")
        assert message["MessageAttributes"]["x-openq-event"]["StringValue"] == "published"
    assert message["Attributes"]["MessageGroupId"] == "sqs-orders"
    assert url


def test_a_binding_begins_at_its_own_time_and_ends_with_its_removal() -> None:
    with served() as server:
        rest = RestClient(server.url)
        rest.make("work")
        rest.send("work", {"payload": "before"})
        sink = Sink(rest, "sink", "work.published")
        rest.send("work", {"payload": "1"})
        sink.wait(("published", "work"))

        unbind(rest, "sink", "work.published")
        rest.send("work", {"payload": "in between"})
        bind(rest, "sink", "work.published")
        rest.send("work", {"payload": "2"})

        sink.wait(("published", "work"), ("published", "work"))


def test_no_loop_arises(shared: Served) -> None:
    rest = RestClient(shared.url)
    rest.make("loop-dead")
    rest.make("loop-work")
    sink = Sink(rest, "loop-sink", "#", dlq="loop-dead", max_receives=1)
    other = Sink(rest, "loop-other", "#")
    rest.send("loop-work", {"payload": "x"})

    def about(seen: list[Seen]) -> list[Seen]:
        return [each for each in seen if each[1].startswith("loop")]

    # Both are read, and one dead-letters a message: nothing of that is an event for either.
    message = None
    until(lambda: rest.peek("loop-sink"))
    message = rest.receive("loop-sink")
    assert message is not None
    rest.call("POST", "/queues/loop-sink/nack", {"receipt_id": message["receipt_id"], "delay": 0})
    assert rest.take("loop-dead") is not None
    rest.take("loop-work")
    until(lambda: about(other.collect())[-1:] == [("acked", "loop-work")])
    sink.collect()
    queues = {queue for _, queue in (*about(sink.seen), *about(other.seen))}
    assert queues <= {"loop-work", "loop-other"}
    assert ("queue_created", "loop-other") not in about(other.seen)
    for name in ("loop-sink", "loop-other"):
        unbind(rest, name, "#")


def test_a_full_queue_loses_events_and_holds_up_nobody(shared: Served) -> None:
    rest = RestClient(shared.url)
    rest.make("full-work")
    Sink(rest, "full-sink", "full-work.published", max_length=1, overflow="reject")
    sink = Sink(rest, "full-other", "full-work.published")
    for _ in range(3):
        rest.send("full-work", {"payload": "x"})

    sink.wait(*[("published", "full-work")] * 3)

    assert len(rest.peek("full-sink")) == 1
    _, metrics = shared.get("/metrics")
    [line] = [each for each in metrics.decode().splitlines() if each.startswith("openq_event_bridge_refused")]
    assert float(line.split()[1]) >= 2


def test_nothing_is_kept_while_there_is_no_binding(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        rest = RestClient(server.url)
        rest.make("work")
        sink = Sink(rest, "sink", "work.published")
        rest.send("work", {"payload": "x"})
        sink.wait(("published", "work"))
        unbind(rest, "sink", "work.published")

        def is_over() -> bool:
            _, metrics = server.get("/metrics")
            return b"openq_event_bridge_sending 0" in metrics

        until(is_over)


def test_a_restart_continues_without_a_gap_and_without_a_repeat(tmp_path: Path) -> None:
    server = start(tmp_path).wait()
    try:
        rest = RestClient(server.url)
        rest.make("work")
        sink = Sink(rest, "sink", "work.*")
        expected: list[Seen] = []
        for turn in range(2):
            for _ in range(20):
                rest.send("work", {"payload": str(turn)})
                expected.append(("published", "work"))
            server.stop()
            server = start(tmp_path, port=server.port).wait()
        sink.wait(*expected)
    finally:
        server.stop()
