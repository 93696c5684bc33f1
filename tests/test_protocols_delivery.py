"""Same queue, every protocol: ids, delays, times to live and failed deliveries, as docs/AMQP.md says."""

from __future__ import annotations

import datetime
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from openq import OpenQ
from tests.protocol_clients import (
    ABSENT,
    AMQP,
    LIBRARY,
    PROTOCOLS,
    REST,
    SQS,
    Document,
    Protocols,
    opened,
    protocols,
    require,
)
from tests.real_clients import boto
from tests.real_clients.boto import fresh
from tests.test_protocols import ROWS
from tests.waiting import until

__all__ = ["protocols"]  # a fixture


# -- id, delay, time to live ----------------------------------------------------------------------


def test_a_message_has_the_same_id_in_every_protocol(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh(), visibility_timeout=0)
    with OpenQ(queue, url=protocols.server.url) as opened:
        sent = opened.publish("x")
        received = opened.receive(timeout=0)
    sqs = protocols.sqs.receive(queue)
    rest = protocols.rest.receive(queue)
    reported = protocols.amqp.take(queue)

    assert received is not None
    assert (received.id, sqs and sqs["MessageId"], rest and rest["id"]) == (sent, sent, sent)
    require({"message_id": sent}, reported)


def test_id_a_message_of_amqp_has_one_of_ours_beside_its_own(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh(), visibility_timeout=0)
    protocols.amqp.send(queue, {"body": "x", "message_id": "mine"})

    rest, sqs = protocols.rest.receive(queue), protocols.sqs.receive(queue)

    assert rest is not None
    assert sqs is not None
    assert rest["id"] == sqs["MessageId"] != "mine"
    assert rest["attributes"] == {"message_id": "mine"}
    require({"message_id": "mine"}, protocols.amqp.take(queue))


DELAYED: Mapping[str, Document] = {
    LIBRARY: {"body": "x", "delay": 600},
    REST: {"payload": "x", "delay": 600},
    SQS: {"MessageBody": "x", "DelaySeconds": 600},
    AMQP: {"body": "x", "headers": {"openq.delay": 600_000}},
}
BODY: Mapping[str, Document] = {
    LIBRARY: {"attributes": {"openq.delay": ABSENT}},
    REST: {"payload": "x", "attributes": {"openq.delay": ABSENT}},
    SQS: {"Body": "x"},
    AMQP: {"body": b"x"},
}


def require_delayed(protocols: Protocols, receiver: str, queue: str) -> None:
    """Nobody sees it; its time is shown; and when that has come it is there."""
    assert protocols.by_name[receiver].take(queue) is None
    [waiting] = protocols.rest.peek(queue, "delayed")
    sent, due = (datetime.datetime.fromisoformat(waiting[name]) for name in ("timestamp", "due_at"))
    assert due - sent == datetime.timedelta(seconds=600)
    protocols.rest.call("PATCH", f"/queues/{queue}/messages/{waiting['id']}", {"delay": 0})
    require(BODY[receiver], protocols.by_name[receiver].take(queue))


@pytest.mark.parametrize("receiver", PROTOCOLS)
@pytest.mark.parametrize("sender", PROTOCOLS)
def test_delay_nobody_sees_it_before_its_time(protocols: Protocols, sender: str, receiver: str) -> None:
    queue = protocols.rest.make(fresh())

    protocols.by_name[sender].send(queue, DELAYED[sender])

    require_delayed(protocols, receiver, queue)


@pytest.mark.parametrize("receiver", PROTOCOLS)
def test_delayed_exchanges_delay_for_every_protocol(protocols: Protocols, receiver: str) -> None:
    queue, exchange = protocols.rest.make(fresh()), fresh()
    protocols.amqp.channel.exchange_declare(
        exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    protocols.amqp.channel.queue_bind(queue, exchange, queue)

    protocols.amqp.send(queue, {"body": "x", "headers": {"x-delay": 600_000}, "exchange": exchange})

    require_delayed(protocols, receiver, queue)


@pytest.mark.parametrize("second", PROTOCOLS)
@pytest.mark.parametrize("first", PROTOCOLS)
def test_deduplication_works_across_protocols(protocols: Protocols, first: str, second: str) -> None:
    queue = protocols.rest.make(fresh(".fifo"), fifo=True)

    for sender in (first, second):
        protocols.by_name[sender].send(queue, ROWS["deduplication"].sent[sender])

    assert len(protocols.rest.peek(queue)) == 1


MORTAL: Mapping[str, Document] = {
    LIBRARY: {"body": "x", "ttl": 600},
    REST: {"payload": "x", "ttl": 600},
    AMQP: {"body": "x", "expiration": "600000"},
}


@pytest.mark.parametrize("sender", MORTAL)
def test_time_to_live_is_shown_by_rest_and_amqp(protocols: Protocols, sender: str) -> None:
    queue = protocols.rest.make(fresh())

    protocols.by_name[sender].send(queue, MORTAL[sender])

    [waiting] = protocols.rest.peek(queue)
    sent, expires = (datetime.datetime.fromisoformat(waiting[name]) for name in ("timestamp", "expires_at"))
    assert expires - sent == datetime.timedelta(seconds=600)
    require({"expiration": "600000"}, protocols.amqp.take(queue))


@pytest.mark.parametrize("receiver", PROTOCOLS)
@pytest.mark.parametrize("sender", MORTAL)
def test_time_to_live_once_it_is_over_nobody_sees_it(
    protocols: Protocols, sender: str, receiver: str
) -> None:
    dead = protocols.rest.make(fresh())
    queue = protocols.rest.make(fresh(), dlq=dead, dead_letter_expired=True)
    short = {LIBRARY: {"ttl": 0.001}, REST: {"ttl": 0.001}, AMQP: {"expiration": "1"}}

    protocols.by_name[sender].send(queue, {**MORTAL[sender], **short[sender]})

    until(lambda: protocols.rest.peek(dead))
    assert protocols.by_name[receiver].take(queue) is None
    [letter] = protocols.rest.peek(dead)
    assert letter["deaths"][0]["reason"] == "expired"


# -- deliveries that fail -------------------------------------------------------------------------


def fail_by_library(protocols: Protocols, queue: str) -> None:
    with OpenQ(queue, url=protocols.server.url) as opened:
        message = opened.receive(timeout=0)
        assert message is not None
        message.nack(delay=0, reason="not today")


def fail_by_rest(protocols: Protocols, queue: str) -> None:
    message = protocols.rest.receive(queue)
    assert message is not None
    protocols.rest.call("POST", f"/queues/{queue}/nack", {"receipt_id": message["receipt_id"], "delay": 0})


def fail_by_sqs(protocols: Protocols, queue: str) -> None:
    """The visibility timeout passes."""
    assert protocols.sqs.receive(queue, VisibilityTimeout=1) is not None
    until(lambda: not protocols.rest.peek(queue, "in_flight"))


def fail_by_amqp(protocols: Protocols, queue: str) -> None:
    received = protocols.amqp.receive(queue)
    assert received is not None
    protocols.amqp.channel.basic_reject(received[0], requeue=True)
    until(lambda: not protocols.rest.peek(queue, "in_flight"))


FAILURES = {LIBRARY: fail_by_library, REST: fail_by_rest, SQS: fail_by_sqs, AMQP: fail_by_amqp}
COUNTED: Mapping[str, Document] = {
    LIBRARY: {"receive_count": 2},
    REST: {"receive_count": 2},
    SQS: {"Attributes": {"ApproximateReceiveCount": "2"}},
    AMQP: {"redelivered": True, "headers": {"x-delivery-count": 1}},
}


def test_receive_count_increases_across_protocols(protocols: Protocols) -> None:
    for sender in PROTOCOLS:
        queues = {
            (failing, receiver): protocols.rest.make(fresh())
            for failing in PROTOCOLS
            for receiver in PROTOCOLS
        }
        for (failing, _), queue in queues.items():
            protocols.by_name[sender].send(queue, ROWS["text"].sent[sender])
            if failing == SQS:
                assert protocols.sqs.receive(queue, VisibilityTimeout=1) is not None
            else:
                FAILURES[failing](protocols, queue)
        for (failing, receiver), queue in queues.items():
            until(lambda queue=queue: not protocols.rest.peek(queue, "in_flight"))  # type: ignore[misc]
            require(
                COUNTED[receiver], protocols.by_name[receiver].take(queue), f"{sender}, {failing}, {receiver}"
            )


def test_failures_in_different_protocols_add_up_and_the_death_is_shown_in_each(
    protocols: Protocols,
) -> None:
    dead = protocols.rest.make(fresh(), visibility_timeout=0)
    queue = protocols.rest.make(fresh(), dlq=dead, max_receives=4)
    protocols.amqp.send(queue, {"body": "x"})

    for fail in FAILURES.values():
        assert not protocols.rest.peek(dead)
        fail(protocols, queue)

    until(lambda: protocols.rest.peek(dead))
    with OpenQ(dead, url=protocols.server.url) as opened:
        received = opened.receive(timeout=0)
    rest, sqs, reported = protocols.rest.receive(dead), protocols.sqs.receive(dead), protocols.amqp.take(dead)
    assert received is not None
    assert [(each["queue"], each["reason"], each["receive_count"]) for each in received.deaths] == [
        (queue, "max_receives", 4)
    ]
    assert rest is not None
    [death] = rest["deaths"]
    require({"queue": queue, "reason": "max_receives", "receive_count": 4}, death)
    require({"Attributes": {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:000000000000:{queue}"}}, sqs)
    assert reported is not None
    [table] = reported["headers"]["x-death"]
    require(
        {"queue": queue, "reason": "delivery_limit", "count": 1, "exchange": "", "routing-keys": [queue]},
        table,
    )
    require({"headers": {"x-first-death-queue": queue, "x-first-death-reason": "delivery_limit"}}, reported)


@pytest.mark.parametrize("sender", PROTOCOLS)
def test_an_amqp_rejection_is_shown_by_every_protocol(protocols: Protocols, sender: str) -> None:
    dead = protocols.rest.make(fresh(), visibility_timeout=0)
    queue = fresh()
    protocols.amqp.channel.queue_declare(
        queue,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    protocols.by_name[sender].send(queue, ROWS["text"].sent[sender])

    received = protocols.amqp.receive(queue)
    assert received is not None
    protocols.amqp.channel.basic_reject(received[0], requeue=False)
    until(lambda: protocols.rest.peek(dead))

    rest, sqs, reported = protocols.rest.receive(dead), protocols.sqs.receive(dead), protocols.amqp.take(dead)
    require({"payload": "grüße", "deaths": [{"queue": queue, "reason": "rejected"}]}, _first_death(rest))
    require({"Attributes": {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:000000000000:{queue}"}}, sqs)
    require({"headers": {"x-first-death-queue": queue, "x-first-death-reason": "rejected"}}, reported)


def _first_death(message: Document | None) -> Document:
    assert message is not None
    deaths = [{name: each[name] for name in ("queue", "reason")} for each in message["deaths"]]
    return {**message, "deaths": deaths}


# -- other things that hold at every protocol ----------------------------------------------------------


def test_the_command_line_shows_the_text_that_amqp_sent(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    for body in ("grüße".encode(), b"\xff\x00"):
        protocols.amqp.send(queue, {"body": body})

    command = [
        sys.executable,
        "-m",
        "openq",
        "recv",
        queue,
        "-n",
        "2",
        "--ack",
        "--url",
        protocols.server.url,
    ]
    done = subprocess.run(command, capture_output=True, timeout=60)

    assert done.stdout == "grüße\n".encode() + b"\xff\x00\n", done.stderr


def test_a_view_of_the_library_shows_what_a_body_is_and_a_backup_what_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as protocols:
        queue = protocols.rest.make(fresh())
        protocols.amqp.send(queue, {"body": b"[1]", "content_type": "application/json", "headers": {"n": 1}})
    with OpenQ(queue, path=str(tmp_path / "data")) as kept:
        message = kept.peek()
        assert message is not None
        assert message.to_dict()["payload"] == [1]
        kept.save(tmp_path / "backup.jsonl")
        kept.purge()
        kept.load(tmp_path / "backup.jsonl")
    with opened(tmp_path / "data") as protocols:
        seen = protocols.amqp.take(queue)

    assert seen == {
        "body": b"[1]",
        "content_type": "application/json",
        "headers": {"n": 1},
        "redelivered": False,
    }


def test_a_type_that_only_sqs_knows_survives_a_way_through_amqp(protocols: Protocols) -> None:
    first, second = protocols.rest.make(fresh()), protocols.rest.make(fresh())
    price = {"DataType": "Number.euro", "StringValue": "1.50"}
    protocols.sqs.send(first, {"MessageBody": "x", "MessageAttributes": {"price": price}})
    seen = protocols.amqp.take(first)
    assert seen is not None
    assert seen["headers"]["price"] == "1.50"

    protocols.amqp.send(second, {name: seen[name] for name in ("body", "headers", "content_type")})

    require({"MessageAttributes": {"price": price}}, protocols.sqs.take(second))


def test_fifo_what_amqp_sends_without_a_group_is_one_group(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh(".fifo"), fifo=True)
    for body in ("first", "second"):
        protocols.amqp.send(queue, {"body": body})

    first = protocols.sqs.receive(queue)

    assert first is not None
    assert first["Body"] == "first"
    assert protocols.sqs.receive(queue) is None
    assert protocols.amqp.receive(queue) is None
    protocols.sqs.client.delete_message(
        QueueUrl=protocols.sqs.url(queue), ReceiptHandle=first["ReceiptHandle"]
    )
    require({"body": b"second"}, protocols.amqp.take(queue))


def test_an_exchange_routes_to_queues_of_every_protocol(protocols: Protocols) -> None:
    exchange, queue = fresh(), fresh()
    protocols.sqs.client.create_queue(QueueName=queue)
    protocols.amqp.channel.exchange_declare(exchange, "topic", durable=True)
    protocols.amqp.channel.queue_bind(queue, exchange, "order.*")

    protocols.amqp.channel.basic_publish(exchange, "order.new", "by AMQP")
    message = {"payload": "by REST", "routing_key": "order.paid"}
    protocols.rest.call("POST", f"/exchanges/{exchange}/publish", message)

    require({"Body": "by AMQP"}, protocols.sqs.take(queue))
    method, _, body = protocols.amqp.channel.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (exchange, "order.paid", b"by REST")


def test_a_vhost_is_an_account_in_every_protocol(protocols: Protocols) -> None:
    account, queue = "111122223333", fresh()
    client = boto.client(protocols.server.url, key=account)
    request = urllib.request.Request(f"{protocols.server.url}/api/vhosts/{account}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    with protocols.connect(virtual_host=account) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for body in ("one", "two", "three"):
            channel.basic_publish("", queue, body)

        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        [first] = client.receive_message(QueueUrl=url)["Messages"]
        path = f"/accounts/{account}/queues/{queue}/receive"
        [second] = protocols.rest.call("POST", path, {})["messages"]
        _, _, third = channel.basic_get(queue, auto_ack=True)
    client.close()

    assert (first["Body"], second["payload"], third) == ("one", "two", b"three")
    with pytest.raises(AssertionError, match="queue_not_found"):
        protocols.rest.receive(queue)  # of the default account
