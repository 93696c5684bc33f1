"""Every kind of record is described, with all its fields."""

from __future__ import annotations

import json

import pytest

from openq.cli.record_json import RecordDescriber, plain, plain_body, time_text
from openq.engine import records as r
from openq.model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    DeadLetterEvent,
    DeliveryOptions,
    Properties,
)

NOW_MS = 1_680_517_800_000  # 2023-04-03T10:30:00Z
NOW = "2023-04-03T10:30:00Z"
LATER = "2023-04-03T10:30:01.500Z"
QUEUE = (r.QUEUE, NOW_MS, 1, 0, "orders", {"fifo": True}, NOW_MS)


def described(record: r.Record, bodies: bool = False) -> dict[str, object]:
    describer = RecordDescriber(bodies)
    describer.read_names(r.encode(QUEUE))
    described_as = describer.describe(7, r.encode(record))
    assert json.loads(json.dumps(described_as)) == described_as
    assert described_as.pop("at") == 7
    assert described_as.pop("time") == NOW
    return described_as


EXTRA = DeliveryOptions(
    priority=3,
    group="g",
    due_ms=NOW_MS,
    deaths=(DeadLetterEvent("orders", "rejected", NOW_MS, 2),),
    route=("events", "order.new"),
)

CASES: dict[str, tuple[r.Record, dict[str, object]]] = {
    "publish": (
        (r.PUBLISH, NOW_MS, 1, 5, ENCODING_TEXT, b"hello", None, None),
        {"kind": "published", "queue": "orders", "seq": 5, "form": "text", "bytes": 5},
    ),
    "publish with everything": (
        (
            r.PUBLISH,
            NOW_MS,
            1,
            5,
            ENCODING_JSON,
            b"{}",
            Properties({"raw": b"\xff", "n": [1]}, "till"),
            EXTRA,
        ),
        {
            "kind": "published",
            "queue": "orders",
            "seq": 5,
            "form": "json",
            "bytes": 2,
            "priority": 3,
            "group": "g",
            "due": NOW,
            "deaths": [{"queue": "orders", "reason": "rejected", "time": NOW, "count": 2}],
            "exchange": "events",
            "key": "order.new",
            "attributes": {"raw": {"base64": "/w=="}, "n": [1]},
            "publisher": "till",
        },
    ),
    "run": (
        (r.RUN, NOW_MS, 1, 5, ENCODING_BYTES, [b"a", b"bc"], None, None),
        {"kind": "published", "queue": "orders", "seq": 5, "count": 2, "form": "bytes", "bytes": 3},
    ),
    "run with properties": (
        (
            *(r.RUN, NOW_MS, 1, 5, ENCODING_BYTES, [b"a", b"bc"]),
            Properties.from_amqp(b"\x80\x00\x0atext/plain", "till"),
            DeliveryOptions(route=("events", "order.new")),
        ),
        {
            "kind": "published",
            "queue": "orders",
            "seq": 5,
            "count": 2,
            "form": "bytes",
            "bytes": 3,
            "exchange": "events",
            "key": "order.new",
            "attributes": {"content_type": "text/plain"},
            "publisher": "till",
        },
    ),
    "route": (
        (r.ROUTE, NOW_MS, 0, 0, ENCODING_BYTES, b"a", None, None, ((1, 5), (9, 6))),
        {
            "kind": "published",
            "to": [{"queue": "orders", "seq": 5}, {"queue": "#9", "seq": 6}],
            "form": "bytes",
            "bytes": 1,
        },
    ),
    "lend": (
        (r.DELIVER, NOW_MS, 1, 40, NOW_MS + 1500, "till", [5, 6]),
        {
            "kind": "delivered",
            "queue": "orders",
            "number": 40,
            "seqs": [5, 6],
            "until": LATER,
            "consumer": "till",
        },
    ),
    "ack": ((r.ACK, NOW_MS, 1, 5, [5]), {"kind": "acked", "queue": "orders", "seq": 5, "seqs": [5]}),
    "return": (
        (r.RETURN, NOW_MS, 1, 5, r.NACKED, "busy", ((5, NOW_MS + 1500), (6, 0))),
        {
            "kind": "returned",
            "queue": "orders",
            "seq": 5,
            "why": "nacked",
            "reason": "busy",
            "messages": [{"seq": 5, "due": LATER}, {"seq": 6}],
        },
    ),
    "extend": (
        (r.EXTEND, NOW_MS, 1, 5, NOW_MS + 1500, [5]),
        {"kind": "extended", "queue": "orders", "seq": 5, "seqs": [5], "until": LATER},
    ),
    "move": (
        (r.MOVE, NOW_MS, 1, 5, r.REDRIVEN, None, ((5, 1, 8),)),
        {
            "kind": "moved",
            "queue": "orders",
            "seq": 5,
            "why": "redriven",
            "messages": [{"seq": 5, "to": "orders", "new_seq": 8}],
        },
    ),
    "remove": (
        (r.REMOVE, NOW_MS, 1, 5, r.REMOVED_CANCELLED, [5]),
        {"kind": "removed", "queue": "orders", "seq": 5, "why": "cancelled", "seqs": [5]},
    ),
    "purge": ((r.PURGE, NOW_MS, 1, 0), {"kind": "purged", "queue": "orders"}),
    "edit": (
        (r.EDIT, NOW_MS, 1, 5, NOW_MS, ENCODING_TEXT, b"hi", None, None),
        {"kind": "edited", "queue": "orders", "seq": 5, "sent": NOW, "form": "text", "bytes": 2},
    ),
    "reschedule": (
        (r.RESCHEDULE, NOW_MS, 1, 5, NOW_MS + 1500),
        {"kind": "rescheduled", "queue": "orders", "seq": 5, "due": LATER},
    ),
    "copy": (
        (r.COPY, NOW_MS, 1, 5, NOW_MS, ENCODING_PICKLE, b"x", None, None),
        {"kind": "copied", "queue": "orders", "seq": 5, "sent": NOW, "form": "pickle", "bytes": 1},
    ),
    "queue": (
        QUEUE,
        {"kind": "queue", "queue": "orders", "settings": {"fifo": True}, "created": NOW},
    ),
    "unqueue": ((r.UNQUEUE, NOW_MS, 1, 0), {"kind": "queue deleted", "queue": "orders"}),
    "exchange": (
        (r.EXCHANGE, NOW_MS, 0, 0, {"op": "delete", "name": "events"}),
        {"kind": "exchange", "operation": {"op": "delete", "name": "events"}},
    ),
    "checkpoint": (
        (r.CHECKPOINT, NOW_MS, 0, 0, {"queues": [[2, "b", {}, 0], [3, "a", {}, 0]], "seq": 9}),
        {"kind": "checkpoint", "queues": ["a", "b"], "next_seq": 9},
    ),
    "mark": (
        (r.MARK, NOW_MS, 0, 0, "load", "ann", 7, 100, True, 2),
        {"kind": "marked", "job": "load", "batch": 7, "rows": 100, "is_last": True, "rejected": 2},
    ),
    "schedule": (
        (r.SCHEDULE, NOW_MS, 0, 0, "put", "s", {"name": "s", "queue": "a", "body": b"x", "every_ms": 100}),
        {"kind": "schedule", "operation": "put", "schedule": "s", "queue": "a", "every_ms": 100},
    ),
    "schedule gone": (
        (r.SCHEDULE, NOW_MS, 0, 0, "delete", "s", None),
        {"kind": "schedule", "operation": "delete", "schedule": "s"},
    ),
    "event": (
        (r.EVENT, NOW_MS, 0, 0, "consumer_joined", "a", {"consumer": "c"}),
        {"kind": "event", "event": "consumer_joined", "queue": "a", "detail": {"consumer": "c"}},
    ),
    "values": (
        (r.KV_PUT, NOW_MS, 0, 0, "b", (("k", 3, NOW_MS, NOW_MS + 1500, b"hi"), ("l", 4, NOW_MS, 0, b""))),
        {
            "kind": "values put",
            "bucket": "b",
            "values": [
                {"key": "k", "version": 3, "changed": NOW, "expires": LATER, "bytes": 2},
                {"key": "l", "version": 4, "changed": NOW, "bytes": 0},
            ],
        },
    ),
    "values deleted": (
        (r.KV_DELETE, NOW_MS, 0, 0, "b", ("k", "l")),
        {"kind": "values deleted", "bucket": "b", "keys": ["k", "l"]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_field_of_a_record_is_described(name: str) -> None:
    record, expected = CASES[name]

    assert described(record) == expected


def test_every_kind_of_record_is_described() -> None:
    assert {record[0] for record, _ in CASES.values()} == set(r.KIND_NAMES)


def test_bodies_are_shown_only_with_the_option() -> None:
    assert described(CASES["publish"][0], bodies=True)["body"] == "hello"
    assert described(CASES["values"][0], bodies=True)["values"][0]["value"] == "hi"
    assert described(CASES["run"][0], bodies=True)["bodies"] == [{"base64": "YQ=="}, {"base64": "YmM="}]


def test_a_body_that_is_not_utf8_is_base64() -> None:
    assert plain_body(ENCODING_TEXT, b"\xff") == {"base64": "/w=="}
    assert plain({1: (b"\xff", "x")}) == {"1": [{"base64": "/w=="}, "x"]}


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xfe" * 40, r.encode(CASES["ack"][0])[:20]])
def test_an_undecodable_record_is_described_as_unreadable(data: bytes) -> None:
    described_as = RecordDescriber().describe(7, data)

    assert (described_as["at"], described_as["kind"], described_as["bytes"]) == (7, "unreadable", len(data))


def test_names_come_from_checkpoints_too() -> None:
    describer = RecordDescriber()
    describer.read_names(r.encode(CASES["checkpoint"][0]))

    assert describer.describe(7, r.encode((r.PURGE, NOW_MS, 3, 0)))["queue"] == "a"


def test_a_record_of_an_unnamed_queue_is_an_orphan() -> None:
    describer = RecordDescriber()

    assert describer.is_orphan(r.encode((r.PURGE, NOW_MS, 1, 0)))
    assert not describer.is_orphan(r.encode(QUEUE))
    assert not describer.is_orphan(r.encode((r.PURGE, NOW_MS, 1, 0)))
    assert not describer.is_orphan(r.encode(CASES["route"][0]))


def test_times_are_utc_with_milliseconds_only_where_there_are_any() -> None:
    assert time_text(NOW_MS) == NOW
    assert time_text(NOW_MS + 1500) == LATER
