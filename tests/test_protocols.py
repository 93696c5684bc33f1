"""Same queue, every door: what is sent by one is seen by each of the others, as docs/AMQP.md says.

Each row of the table there is a row here: how the library, REST, SQS and AMQP say a thing, and how each of
them shows it. Every way in is tested with every way out. What a row expects is a part of what is seen.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from openq import OpenQ
from tests.real_clients import boto
from tests.real_clients.boto import fresh
from tests.serving import Served, served_amqp
from tests.waiting import until

ROOT = Path(__file__).parent.parent
LIBRARY, REST, SQS, AMQP = DOORS = ("library", "rest", "sqs", "amqp")
Document = dict[str, Any]
ABSENT = object()
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"
PAST_S = 1_700_000_000


class ProtocolClient(Protocol):
    """A way to the server's queues. `take` acknowledges what it takes; None: there is nothing."""

    def send(self, queue: str, message: Document) -> None: ...
    def take(self, queue: str) -> Document | None: ...


class LibraryClient:
    def __init__(self, **where: str) -> None:
        self._where = where

    def _open(self, queue: str) -> OpenQ:
        return OpenQ(queue, **self._where)

    def send(self, queue: str, message: Document) -> None:
        with self._open(queue) as opened:
            opened.publish(**message)

    def take(self, queue: str) -> Document | None:
        with self._open(queue) as opened:
            message = opened.receive(timeout=0)
            if message is None:
                return None
            seen = {
                name: getattr(message, name)
                for name in ("id", "body", "attributes", "message_type", "priority", "group", "receive_count")
            }
            message.ack()
            return seen


class RestClient:
    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, document: Document | None = None) -> Any:
        data = None if document is None else json.dumps(document, separators=(",", ":")).encode()
        request = urllib.request.Request(f"{self._url}/api/v1{path}", data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def make(self, queue: str, **settings: object) -> str:
        self.call("PUT", f"/queues/{queue}", settings)
        return queue

    def send(self, queue: str, message: Document) -> None:
        self.call("POST", f"/queues/{queue}/messages", message)

    def receive(self, queue: str) -> Document | None:
        found: list[Document] = self.call("POST", f"/queues/{queue}/receive", {})["messages"]
        return found[0] if found else None

    def take(self, queue: str) -> Document | None:
        message = self.receive(queue)
        if message is not None:
            self.call("POST", f"/queues/{queue}/ack", {"receipt_id": message["receipt_id"]})
        return message

    def peek(self, queue: str, state: str = "all") -> list[Document]:
        messages: list[Document] = self.call("GET", f"/queues/{queue}/messages?state={state}")["messages"]
        return messages


class SqsClient:
    def __init__(self, url: str) -> None:
        self.client = boto.client(url)

    def url(self, queue: str) -> str:
        found: str = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        return found

    def send(self, queue: str, message: Document) -> None:
        self.client.send_message(QueueUrl=self.url(queue), **message)

    def receive(self, queue: str, **options: object) -> Document | None:
        answer = self.client.receive_message(
            QueueUrl=self.url(queue), MessageAttributeNames=["All"], AttributeNames=["All"], **options
        )
        found: list[Document] = answer.get("Messages", [])
        return found[0] if found else None

    def take(self, queue: str) -> Document | None:
        message = self.receive(queue)
        if message is not None:
            self.client.delete_message(QueueUrl=self.url(queue), ReceiptHandle=message["ReceiptHandle"])
        return message


class PikaClient:
    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel

    def send(self, queue: str, message: Document) -> None:
        message = dict(message)
        body, exchange = message.pop("body"), message.pop("exchange", "")
        self.channel.basic_publish(exchange, queue, body, pika.BasicProperties(**message), mandatory=True)

    def receive(self, queue: str) -> tuple[int, Document] | None:
        method, properties, body = self.channel.basic_get(queue)
        if method is None:
            return None
        seen = {name: value for name, value in vars(properties).items() if value is not None}
        return method.delivery_tag, {**seen, "body": body, "redelivered": method.redelivered}

    def take(self, queue: str) -> Document | None:
        received = self.receive(queue)
        if received is None:
            return None
        self.channel.basic_ack(received[0])
        return received[1]


class PyAmqpClient:
    """For fractions, which pika cannot send and cuts off when it reads them."""

    def __init__(self, channel: amqp.Channel) -> None:
        self._channel = channel

    def send(self, queue: str, message: Document) -> None:
        headers = message.get("headers", {})
        sent = amqp.Message(message["body"], application_headers=headers)
        self._channel.basic_publish_confirm(sent, routing_key=queue)

    def take(self, queue: str) -> Document | None:
        message = self._channel.basic_get(queue, no_ack=True)
        return None if message is None else {"headers": message.headers, "body": message.body}


@dataclass
class Protocols:
    """A server and its four doors."""

    server: Served
    amqp_port: int
    rest: RestClient
    sqs: SqsClient
    amqp: PikaClient
    by_name: Mapping[str, ProtocolClient]
    exact: PyAmqpClient

    def client(self, name: str, row: str) -> ProtocolClient:
        return self.exact if (name, row) == (AMQP, "fraction") else self.by_name[name]

    def connect(self, **options: Any) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port, **options))


@contextmanager
def opened(data: Path | None = None) -> Iterator[Protocols]:
    with served_amqp(data) as (server, port):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.confirm_delivery()
        other = amqp.Connection(f"127.0.0.1:{port}", confirm_publish=True)
        other.connect()
        rest, sqs, pika_client = RestClient(server.url), SqsClient(server.url), PikaClient(channel)
        by_name = {LIBRARY: LibraryClient(url=server.url), REST: rest, SQS: sqs, AMQP: pika_client}
        try:
            yield Protocols(server, port, rest, sqs, pika_client, by_name, PyAmqpClient(other.channel()))
        finally:
            other.close()
            sqs.client.close()
            connection.close()


@pytest.fixture(scope="module")
def protocols() -> Iterator[Protocols]:
    with opened() as found:
        yield found


# -- the table ------------------------------------------------------------------------------------


@dataclass
class Row:
    """`sent`: how a door says it; those that cannot are not named. `seen`: how a door shows it."""

    sent: Mapping[str, Document]
    seen: Mapping[str, Document]
    queue: Document = field(default_factory=dict)


def bodies(library: Any, rest: Document, sqs: Document | None, content: Document, shown: Document) -> Row:
    sent = {LIBRARY: {"body": library}, REST: rest, AMQP: content}
    if sqs is not None:
        sent[SQS] = sqs
    return Row(sent, {LIBRARY: {"body": library}, REST: rest, SQS: shown, AMQP: content})


def attribute(
    value: Any,
    rest: Any,
    sqs: tuple[str, Any] | None,
    header: Any,
    name: str = "colour",
    from_sqs: bool = False,
    only_amqp_says: bool = False,
) -> Row:
    """`sqs`: type and value as SQS shows it, None if it does not; `from_sqs`: SQS can say it too."""
    shown: object = ABSENT
    if sqs is not None:
        kind, content = sqs
        shown = {"DataType": kind, "BinaryValue" if kind == "Binary" else "StringValue": content}
    sent: dict[str, Document] = {AMQP: {"body": "x", "headers": {name: header}}}
    if not only_amqp_says:
        sent[LIBRARY] = {"body": "x", "attributes": {name: value}}
        sent[REST] = {"payload": "x", "attributes": {name: rest}}
    if from_sqs:
        sent[SQS] = {"MessageBody": "x", "MessageAttributes": {name: shown}}
    seen = {
        LIBRARY: {"attributes": {name: value}},
        REST: {"attributes": {name: rest}},
        SQS: {"MessageAttributes": {name: shown}},
        AMQP: {"headers": {name: header}},
    }
    if shown is ABSENT:
        seen[SQS] = {"MessageAttributes": ABSENT}
    return Row(sent, seen)


def property_row(name: str, value: str) -> Row:
    """A property of AMQP that is an attribute of the same name elsewhere."""
    row = attribute(value, value, ("String", value), value, name, from_sqs=True)
    return Row({**row.sent, AMQP: {"body": "x", name: value}}, {**row.seen, AMQP: {name: value}})


NESTED = {"size": 3, "tags": ["a", 2, None]}
ROWS: dict[str, Row] = {
    "text": bodies(
        "grüße",
        {"payload": "grüße"},
        {"MessageBody": "grüße"},
        {"body": "grüße".encode(), "content_type": "text/plain"},
        {"Body": "grüße"},
    ),
    "JSON": bodies(
        {"order": [7, None]},
        {"payload": {"order": [7, None]}},
        None,
        {"body": b'{"order":[7,null]}', "content_type": "application/json"},
        {"Body": '{"order":[7,null]}'},
    ),
    "bytes": bodies(
        b"\x00\xff",
        {"payload": "AP8=", "payload_encoding": "base64"},
        None,
        {"body": b"\x00\xff", "content_type": "application/octet-stream"},
        {
            "Body": "AP8=",
            "MessageAttributes": {"openq.encoding": {"DataType": "String", "StringValue": "base64"}},
        },
    ),
    "text attribute": attribute("blue", "blue", ("String", "blue"), "blue", from_sqs=True),
    "whole number": attribute(7, 7, ("Number", "7"), 7, from_sqs=True),
    "large number": attribute(1 << 40, 1 << 40, ("Number", str(1 << 40)), 1 << 40, from_sqs=True),
    "fraction": attribute(2.5, 2.5, ("Number", "2.5"), 2.5, from_sqs=True),
    "truth value": attribute(True, True, ("String", "true"), True),
    "bytes attribute": attribute(
        b"\x00\xff", {"$base64": "AP8="}, ("Binary", b"\x00\xff"), b"\x00\xff", from_sqs=True
    ),
    "nothing": attribute(None, None, None, None),
    "list": attribute(["a", 2], ["a", 2], ("String.json", '["a",2]'), ["a", 2]),
    "table": attribute(NESTED, NESTED, ("String.json", json.dumps(NESTED, separators=(",", ":"))), NESTED),
    "time": attribute(
        PAST_S,
        PAST_S,
        ("Number", str(PAST_S)),
        datetime.datetime.fromtimestamp(PAST_S, datetime.UTC),
        only_amqp_says=True,
    ),
    "decimal": attribute("1.25", "1.25", ("String", "1.25"), Decimal("1.25"), only_amqp_says=True),
    **{
        name: property_row(name, value)
        for name, value in (
            ("content_type", "application/x-cake"),
            ("content_encoding", "gzip"),
            ("correlation_id", "c-1"),
            ("reply_to", "answers"),
            ("message_id", "m-1"),
            ("user_id", "guest"),
            ("app_id", "shop"),
            ("cluster_id", "here"),
        )
    },
    "timestamp": Row(
        {
            LIBRARY: {"body": "x", "attributes": {"timestamp": PAST_S}},
            REST: {"payload": "x", "attributes": {"timestamp": PAST_S}},
            SQS: {
                "MessageBody": "x",
                "MessageAttributes": {"timestamp": {"DataType": "Number", "StringValue": str(PAST_S)}},
            },
            AMQP: {"body": "x", "timestamp": PAST_S},
        },
        {
            LIBRARY: {"attributes": {"timestamp": PAST_S}},
            REST: {"attributes": {"timestamp": PAST_S}},
            SQS: {"MessageAttributes": {"timestamp": {"DataType": "Number", "StringValue": str(PAST_S)}}},
            AMQP: {"timestamp": PAST_S},
        },
    ),
    "type": Row(
        {
            LIBRARY: {"body": "x", "message_type": "order"},
            REST: {"payload": "x", "message_type": "order"},
            SQS: {
                "MessageBody": "x",
                "MessageAttributes": {"message_type": {"DataType": "String", "StringValue": "order"}},
            },
            AMQP: {"body": "x", "type": "order"},
        },
        {
            LIBRARY: {"message_type": "order"},
            REST: {"message_type": "order"},
            SQS: {"MessageAttributes": {"message_type": {"DataType": "String", "StringValue": "order"}}},
            AMQP: {"type": "order"},
        },
    ),
    "priority": Row(
        {
            LIBRARY: {"body": "x", "priority": 9},
            REST: {"payload": "x", "priority": 9},
            AMQP: {"body": "x", "priority": 9},
        },
        {LIBRARY: {"priority": 9}, REST: {"priority": 9}, SQS: {"Body": "x"}, AMQP: {"priority": 9}},
    ),
    "group": Row(
        {
            LIBRARY: {"body": "x", "group": "g1"},
            REST: {"payload": "x", "group": "g1"},
            SQS: {"MessageBody": "x", "MessageGroupId": "g1"},
            AMQP: {"body": "x", "headers": {"x-group-id": "g1"}},
        },
        {
            LIBRARY: {"group": "g1", "attributes": {"x-group-id": ABSENT}},
            REST: {"group": "g1", "attributes": {"x-group-id": ABSENT}},
            SQS: {"Attributes": {"MessageGroupId": "g1"}},
            AMQP: {"headers": {"x-group-id": "g1"}},
        },
    ),
    "deduplication": Row(
        {
            LIBRARY: {"body": "x", "group": "g", "dedup_id": "once"},
            REST: {"payload": "x", "group": "g", "dedup_id": "once"},
            SQS: {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "once"},
            AMQP: {
                "body": "x",
                "content_type": "text/plain",
                "headers": {"x-group-id": "g", "x-deduplication-header": "once"},
            },
        },
        {
            LIBRARY: {"body": "x", "attributes": {"x-deduplication-header": ABSENT}},
            REST: {"payload": "x", "attributes": {"x-deduplication-header": ABSENT}},
            SQS: {"Attributes": {"MessageDeduplicationId": "once"}},
            AMQP: {"headers": {"x-deduplication-header": "once"}},
        },
        {"fifo": True},
    ),
    "trace": Row(
        {
            LIBRARY: {"body": "x", "attributes": {"openq.trace": TRACE}},
            REST: {"payload": "x", "attributes": {"openq.trace": TRACE}},
            SQS: {
                "MessageBody": "x",
                "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}},
            },
            AMQP: {"body": "x", "headers": {"x-amzn-trace-id": TRACE}},
        },
        {
            LIBRARY: {"attributes": {"openq.trace": TRACE}},
            REST: {"attributes": {"openq.trace": TRACE}},
            SQS: {"Attributes": {"AWSTraceHeader": TRACE}},
            AMQP: {"headers": {"x-amzn-trace-id": TRACE}},
        },
    ),
    "persistence": Row(
        {
            LIBRARY: {"body": "x"},
            REST: {"payload": "x"},
            SQS: {"MessageBody": "x"},
            AMQP: {"body": "x", "delivery_mode": 2},
        },
        {
            LIBRARY: {"attributes": {}},
            REST: {"attributes": {}},
            SQS: {"Body": "x"},
            AMQP: {"delivery_mode": 2},
        },
    ),
}
# Rows of the table whose tests are below, because time or several deliveries are in them.
OTHER_ROWS = ("id", "delay", "time to live", "receive count", "deaths")


def require(expected: Any, seen: Any, where: str = "") -> None:
    """That all of `expected` is in `seen`, types included."""
    if isinstance(expected, dict) and isinstance(seen, Mapping):
        for name, value in expected.items():
            if value is ABSENT:
                assert name not in seen, f"{where}/{name}: {seen[name]!r}"
            else:
                assert name in seen, f"{where}/{name} is missing: {seen!r}"
                require(value, seen[name], f"{where}/{name}")
        return
    kind = int if isinstance(seen, int) and not isinstance(seen, bool) else type(seen)  # pika has its own
    assert (kind, seen) == (type(expected), expected), f"{where}: {seen!r}, not {expected!r}"


def ways() -> Iterator[Any]:
    for name, row in ROWS.items():
        for sender in row.sent:
            for receiver in row.seen:
                yield pytest.param(name, sender, receiver, id=f"{name}-{sender}-{receiver}".replace(" ", "_"))


@pytest.mark.parametrize(("name", "sender", "receiver"), list(ways()))
def test_a_message_sent_by_one_protocol_is_shown_by_the_others(
    protocols: Protocols, name: str, sender: str, receiver: str
) -> None:
    row = ROWS[name]
    queue = protocols.rest.make(fresh(".fifo" if row.queue else ""), **row.queue)

    protocols.client(sender, name).send(queue, row.sent[sender])
    seen = protocols.client(receiver, name).take(queue)

    require(row.seen[receiver], seen)
    assert protocols.by_name[receiver].take(queue) is None


def test_every_way_in_is_tried_with_every_way_out() -> None:
    tried = {(sender, receiver) for row in ROWS.values() for sender in row.sent for receiver in row.seen}

    assert tried == {(sender, receiver) for sender in DOORS for receiver in DOORS}


def test_the_documented_table_has_exactly_these_rows() -> None:
    text = (ROOT / "docs" / "AMQP.md").read_text()
    table = text.partition("## One message, four protocols")[2].partition("\n## ")[0]
    names = [found[1] for found in re.finditer(r"^\| \*\*(.+?)\*\* \|", table, re.MULTILINE)]

    assert sorted(names) == sorted([*ROWS, *OTHER_ROWS])


def test_a_queue_on_disk_is_the_same_for_a_program_that_opens_it_and_for_a_server(tmp_path: Path) -> None:
    """Embedded to each door of a server that opens the directory later, and the other way round."""
    embedded = LibraryClient(path=str(tmp_path))
    rows = {name: row for name, row in ROWS.items() if not row.queue}
    outwards = {
        (name, client): fresh() for name, row in rows.items() for client in row.seen if LIBRARY in row.sent
    }
    inwards = {(name, client): fresh() for name, row in rows.items() for client in row.sent}
    with OpenQ("held", path=str(tmp_path)):  # all of them share what this one opened
        for (name, _), queue in outwards.items():
            embedded.send(queue, rows[name].sent[LIBRARY])

    with opened(tmp_path) as protocols:
        for (name, client), queue in outwards.items():
            require(
                rows[name].seen[client], protocols.client(client, name).take(queue), f"{name} to {client}"
            )
        for (name, client), queue in inwards.items():
            protocols.rest.make(queue)
            protocols.client(client, name).send(queue, rows[name].sent[client])

    with OpenQ("held", path=str(tmp_path)):
        for (name, client), queue in inwards.items():
            require(rows[name].seen[LIBRARY], embedded.take(queue), f"{name} from {client}")


def test_the_same_message_through_amqp_alone_is_byte_for_byte_what_it_was(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    sent = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"a": 1, "b": [True, None], "x-group-id": "g", "openq.delay": 0, "when": Decimal("1.5")},
        "delivery_mode": 1,
        "priority": 200,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "600000",
        "message_id": "m",
        "timestamp": PAST_S,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "k",
    }

    protocols.amqp.send(queue, {"body": b"\x00", **sent})

    assert protocols.amqp.take(queue) == {"body": b"\x00", "redelivered": False, **sent}


# -- bodies that come without a word about them ---------------------------------------------------


def test_an_amqp_body_without_content_type_is_text_in_text_protocols(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    for _ in range(3):
        protocols.amqp.send(queue, {"body": '{"a": "é"}'.encode()})

    require({"payload": '{"a": "é"}', "payload_encoding": ABSENT}, protocols.rest.take(queue))
    require({"Body": '{"a": "é"}', "MessageAttributes": ABSENT}, protocols.sqs.take(queue))
    require({"body": '{"a": "é"}'.encode()}, protocols.by_name[LIBRARY].take(queue))


@pytest.mark.parametrize("claim", ["text/plain", "application/json", "application/msgpack"])
def test_a_content_type_that_is_not_true_loses_nothing(protocols: Protocols, claim: str) -> None:
    queue = protocols.rest.make(fresh())
    for _ in range(3):
        protocols.amqp.send(queue, {"body": b"{\xff", "content_type": claim})

    require({"payload": "e/8=", "payload_encoding": "base64"}, protocols.rest.take(queue))
    require({"Body": "e/8="}, protocols.sqs.take(queue))
    require({"body": b"{\xff"}, protocols.by_name[LIBRARY].take(queue))


def test_a_compressed_body_is_bytes_whatever_its_content_type_says(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    protocols.amqp.send(queue, {"body": b"abc", "content_type": "text/plain", "content_encoding": "gzip"})

    require({"body": b"abc"}, protocols.by_name[LIBRARY].take(queue))


def test_what_amqp_sent_can_be_sent_on_by_the_others(protocols: Protocols) -> None:
    """What REST shows it takes again, and an AMQP consumer finds the same message."""
    first, second = protocols.rest.make(fresh()), protocols.rest.make(fresh())
    sent = {"body": b"[1]", "content_type": "application/json", "type": "t", "correlation_id": "c"}
    protocols.amqp.send(first, {**sent, "headers": {"n": 1, "b": b"\xff", "x-amzn-trace-id": TRACE}})
    message = protocols.rest.take(first)
    assert message is not None

    protocols.rest.send(second, {name: message[name] for name in ("payload", "message_type", "attributes")})

    require(
        {**sent, "headers": {"n": 1, "b": b"\xff", "x-amzn-trace-id": TRACE}}, protocols.amqp.take(second)
    )


def test_a_queue_without_priorities_shows_them_all_the_same_and_pages_in_its_order(
    protocols: Protocols,
) -> None:
    queue = fresh()
    protocols.amqp.channel.queue_declare(queue, durable=True)
    for number in range(6):
        protocols.amqp.send(queue, {"body": str(number), "priority": number % 3})

    pages, after = [], ""
    while True:
        page = protocols.rest.call("GET", f"/queues/{queue}/messages?limit=1&after={after}")
        pages += page["messages"]
        after = page.get("next", "")
        if not after:
            break

    assert [(each["payload"], each["priority"]) for each in pages] == [(str(n), n % 3) for n in range(6)]
    taken = [protocols.rest.take(queue) for _ in range(6)]
    assert [each and each["payload"] for each in taken] == list("012345")


# -- id, delay, time to live ----------------------------------------------------------------------


def test_a_message_has_the_same_id_in_every_protocol(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh(), visibility_timeout=0)
    with OpenQ(queue, url=protocols.server.url) as opened:
        sent = opened.publish("x")
        received = opened.receive(timeout=0)
    sqs = protocols.sqs.receive(queue)
    rest = protocols.rest.receive(queue)
    told = protocols.amqp.take(queue)

    assert received is not None
    assert (received.id, sqs and sqs["MessageId"], rest and rest["id"]) == (sent, sent, sent)
    require({"message_id": sent}, told)


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


@pytest.mark.parametrize("receiver", DOORS)
@pytest.mark.parametrize("sender", DOORS)
def test_delay_nobody_sees_it_before_its_time(protocols: Protocols, sender: str, receiver: str) -> None:
    queue = protocols.rest.make(fresh())

    protocols.by_name[sender].send(queue, DELAYED[sender])

    require_delayed(protocols, receiver, queue)


@pytest.mark.parametrize("receiver", DOORS)
def test_delayed_exchanges_delay_for_every_protocol(protocols: Protocols, receiver: str) -> None:
    queue, exchange = protocols.rest.make(fresh()), fresh()
    protocols.amqp.channel.exchange_declare(
        exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    protocols.amqp.channel.queue_bind(queue, exchange, queue)

    protocols.amqp.send(queue, {"body": "x", "headers": {"x-delay": 600_000}, "exchange": exchange})

    require_delayed(protocols, receiver, queue)


@pytest.mark.parametrize("second", DOORS)
@pytest.mark.parametrize("first", DOORS)
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


@pytest.mark.parametrize("receiver", DOORS)
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
    for sender in DOORS:
        queues = {
            (failing, receiver): protocols.rest.make(fresh()) for failing in DOORS for receiver in DOORS
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
    rest, sqs, told = protocols.rest.receive(dead), protocols.sqs.receive(dead), protocols.amqp.take(dead)
    assert received is not None
    assert [(each["queue"], each["reason"], each["receive_count"]) for each in received.deaths] == [
        (queue, "max_receives", 4)
    ]
    assert rest is not None
    [death] = rest["deaths"]
    require({"queue": queue, "reason": "max_receives", "receive_count": 4}, death)
    require({"Attributes": {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:000000000000:{queue}"}}, sqs)
    assert told is not None
    [table] = told["headers"]["x-death"]
    require(
        {"queue": queue, "reason": "delivery_limit", "count": 1, "exchange": "", "routing-keys": [queue]},
        table,
    )
    require({"headers": {"x-first-death-queue": queue, "x-first-death-reason": "delivery_limit"}}, told)


@pytest.mark.parametrize("sender", DOORS)
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

    rest, sqs, told = protocols.rest.receive(dead), protocols.sqs.receive(dead), protocols.amqp.take(dead)
    require({"payload": "grüße", "deaths": [{"queue": queue, "reason": "rejected"}]}, _first_death(rest))
    require({"Attributes": {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:000000000000:{queue}"}}, sqs)
    require({"headers": {"x-first-death-queue": queue, "x-first-death-reason": "rejected"}}, told)


def _first_death(message: Document | None) -> Document:
    assert message is not None
    deaths = [{name: each[name] for name in ("queue", "reason")} for each in message["deaths"]]
    return {**message, "deaths": deaths}


# -- other things that hold at every door ----------------------------------------------------------


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
