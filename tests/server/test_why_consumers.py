"""What `why` says of the consumers of a queue that take none of its messages."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from tests.http_endpoint import answer, serve_endpoint
from tests.push.streams import opened
from tests.rest.helpers import Client
from tests.serving import Served, served_amqp
from tests.waiting import until
from tests.webhooks.helpers import declare


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Served, int]]:
    with served_amqp(None, "--webhook-allow", "127.0.0.1") as found:
        yield found


def publish(client: Client, queue: str) -> str:
    found: str = client.post(f"/queues/{queue}/messages", {"payload": "x"}).value["id"]
    return found


def why(client: Client, queue: str, id: str) -> str:
    found: str = client.get(f"/queues/{queue}/messages/{id}/why").value["text"]
    return found


def test_without_a_consumer_there_is_none(places: tuple[Served, int]) -> None:
    client = Client(places[0].url)
    client.queue("nobody")
    publish(client, "nobody")

    assert why(client, "nobody", publish(client, "nobody")) == (
        "ready: 1 message is ahead of it; no consumer is waiting for it"
    )


def test_a_subscriber_whose_credit_is_used_up_is_named(places: tuple[Served, int]) -> None:
    client = Client(places[0].url)
    client.queue("credit")
    with opened(places[0].url) as stream:
        stream.subscribe("credit", credit={"messages": 2}, consumer="packer")
        publish(client, "credit")
        publish(client, "credit")
        stream.messages(2)
        id = publish(client, "credit")

        assert (
            why(client, "credit", id)
            == "ready: it is next; consumer packer has the 2 that it takes at a time"
        )
        stream.ask("credit", sub="credit", messages=0)
        assert why(client, "credit", id) == "ready: it is next; consumer packer is paused: its credit is 0"


def test_a_subscriber_that_selects_others_is_named(places: tuple[Served, int]) -> None:
    client = Client(places[0].url)
    client.queue("types")
    with opened(places[0].url) as stream:
        stream.subscribe("types", types=["order"], consumer="orders")
        stream.ask("subscribe", sub=2, queue="types", types=["mail"], consumer="mails")
        id = publish(client, "types")

        assert why(client, "types", id) == (
            "ready: it is next; "
            "consumer orders takes none now: its credit is used up, or it selects others; "
            "consumer mails takes none now: its credit is used up, or it selects others"
        )


def test_an_amqp_consumer_whose_prefetch_is_used_up_is_named(places: tuple[Served, int]) -> None:
    server, amqp_port = places
    client = Client(server.url)
    client.queue("prefetch")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("prefetch", lambda *_: None, consumer_tag="reader")
    publish(client, "prefetch")
    id = publish(client, "prefetch")
    until(lambda: client.get("/consumers?queue=prefetch").value["consumers"][0]["in_flight"] == 1)

    assert why(client, "prefetch", id).endswith("has the one that it takes at a time")
    connection.close()


def test_of_an_amqp_consumer_without_a_prefetch_no_credit_is_told(places: tuple[Served, int]) -> None:
    server, amqp_port = places
    client = Client(server.url)
    client.queue("channel")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1, global_qos=True)
    channel.basic_consume("channel", lambda *_: None, consumer_tag="reader")
    publish(client, "channel")
    id = publish(client, "channel")
    until(lambda: client.get("/consumers?queue=channel").value["consumers"][0]["in_flight"] == 1)

    assert why(client, "channel", id) == (
        "ready: it is next; consumer reader takes none now: "
        "it has no limit of its own; its channel may have one, or be paused"
    )
    connection.close()


def test_a_webhook_that_cannot_send_is_named(places: tuple[Served, int]) -> None:
    client = Client(places[0].url)
    client.queue("hooked", retry="none")
    with serve_endpoint() as endpoint:
        endpoint.respond = lambda handler: endpoint.released.wait(30) and answer(handler, 200)
        declare(client, "hooked", endpoint.url, concurrency=1)
        publish(client, "hooked")
        until(lambda: len(endpoint.seen) == 1)
        id = publish(client, "hooked")

        assert why(client, "hooked", id) == (
            "ready: it is next; webhook hooked has as many requests running as it may"
        )
        endpoint.released.set()
        until(lambda: client.get("/queues/hooked").value["stats"]["counters"]["acked"] == 2)
        client.post("/webhooks/hooked/disable", {})
        until(lambda: why(client, "hooked", publish(client, "hooked")).endswith("webhook hooked is disabled"))
