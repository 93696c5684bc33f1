"""Same queue, every protocol: what is sent by one is seen by each of the others, as docs/AMQP.md says.

Each row of the table there is a row here: how the library, REST, SQS and AMQP say a thing, and how each of
them shows it. Every way in is tested with every way out. What a row expects is a part of what is seen.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from tests.protocol_clients import (
    ABSENT,
    AMQP,
    CONTEXT,
    LIBRARY,
    PAST_S,
    PROTOCOLS,
    REST,
    SQS,
    TRACE,
    Document,
    LibraryClient,
    Protocols,
    opened,
    protocols,
    require,
)
from tests.real_clients.boto import fresh

__all__ = ["protocols"]  # a fixture

ROOT = Path(__file__).parent.parent


# -- the table ------------------------------------------------------------------------------------


@dataclass
class Row:
    """`sent`: how a protocol says it; those that cannot are not named. `seen`: how a protocol shows it."""

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
    "trace context": Row(
        {
            LIBRARY: {"body": "x", "attributes": CONTEXT},
            REST: {"payload": "x", "attributes": CONTEXT},
            SQS: {
                "MessageBody": "x",
                "MessageAttributes": {
                    name: {"DataType": "String", "StringValue": value} for name, value in CONTEXT.items()
                },
            },
            AMQP: {"body": "x", "headers": CONTEXT},
        },
        {
            LIBRARY: {"attributes": CONTEXT},
            REST: {"attributes": CONTEXT},
            SQS: {
                "MessageAttributes": {
                    name: {"DataType": "String", "StringValue": value} for name, value in CONTEXT.items()
                },
                "Attributes": {"AWSTraceHeader": f"{TRACE};Parent=00f067aa0ba902b7;Sampled=1"},
            },
            AMQP: {"headers": CONTEXT},
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

    assert tried == {(sender, receiver) for sender in PROTOCOLS for receiver in PROTOCOLS}


def test_the_documented_table_has_exactly_these_rows() -> None:
    text = (ROOT / "docs" / "AMQP.md").read_text()
    table = text.partition("## One message, four protocols")[2].partition("\n## ")[0]
    names = [found[1] for found in re.finditer(r"^\| \*\*(.+?)\*\* \|", table, re.MULTILINE)]

    assert sorted(names) == sorted([*ROWS, *OTHER_ROWS])


def test_a_queue_on_disk_is_the_same_for_a_program_that_opens_it_and_for_a_server(tmp_path: Path) -> None:
    """Embedded to each protocol of a server that opens the directory later, and the other way round."""
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
