"""Each kind of record and its events."""

from __future__ import annotations

from typing import Any

import pytest

from openq.broker import events as e
from openq.broker.record_events import EVENTS_OF_KIND, events_of
from openq.engine import records as r
from openq.model import DeliveryOptions

NOW = 1_700_000_000_000
OPTIONS = DeliveryOptions(type="t", id="own")


class Names:
    def queue_name(self, number: int) -> str:
        return f"q{number}"

    def message_id(self, number: int, seq: int) -> str:
        return f"m{seq}"


Row = tuple[str, str, str | None, dict[str, Any]]


def rows(record: r.Record, first: int = 1) -> list[Row]:
    found = list(events_of(record, Names(), lambda number: f"id-{number}", first))
    assert [event.id for event in found] == [f"id-{first + i}" for i in range(len(found))]
    assert all(event.time_ms == NOW for event in found)
    return [(event.event, event.queue, event.message_id, dict(event.detail)) for event in found]


CASES: dict[str, tuple[r.Record, list[Row]]] = {
    "publish": ((r.PUBLISH, NOW, 1, 5, 0, b"x", None, OPTIONS), [(e.PUBLISHED, "q1", "m5", {})]),
    "run": (
        (r.RUN, NOW, 1, 5, 0, (b"x", b"y"), None, None),
        [(e.PUBLISHED, "q1", "m5", {}), (e.PUBLISHED, "q1", "m6", {})],
    ),
    "route": (
        (r.ROUTE, NOW, 1, 5, 0, b"x", None, OPTIONS, ((1, 5), (2, 6))),
        [(e.PUBLISHED, "q1", "m5", {}), (e.PUBLISHED, "q2", "m6", {})],
    ),
    "deliver": (
        (r.DELIVER, NOW, 1, 77, NOW + 5, "c", [5, 6]),
        [
            (e.DELIVERED, "q1", "m5", {"consumer": "c", "until_ms": NOW + 5}),
            (e.DELIVERED, "q1", "m6", {"consumer": "c", "until_ms": NOW + 5}),
        ],
    ),
    "ack": ((r.ACK, NOW, 1, 5, (5, 6)), [(e.ACKED, "q1", "m5", {}), (e.ACKED, "q1", "m6", {})]),
    "nack": (
        (r.RETURN, NOW, 1, 0, r.NACKED, "why", ((5, 0), (6, 9))),
        [
            (e.NACKED, "q1", "m5", {"reason": "why", "due_ms": 0}),
            (e.NACKED, "q1", "m6", {"reason": "why", "due_ms": 9}),
        ],
    ),
    "lease expired": (
        (r.RETURN, NOW, 1, 0, r.EXPIRED, None, ((5, 0),)),
        [(e.LEASE_EXPIRED, "q1", "m5", {"due_ms": 0})],
    ),
    "release": ((r.RETURN, NOW, 1, 0, r.RELEASED, None, ((5, 0),)), [(e.RELEASED, "q1", "m5", {})]),
    "extend": ((r.EXTEND, NOW, 1, 0, NOW + 9, [5]), [(e.EXTENDED, "q1", "m5", {"until_ms": NOW + 9})]),
    "dead letters": (
        (r.MOVE, NOW, 1, 5, r.DEAD_RECEIVES, "broken", ((5, 2, 9), (5, 3, 10))),
        [
            (e.DEAD_LETTERED, "q1", "m5", {"to": "q2", "why": "max_receives", "reason": "broken"}),
            (e.DEAD_LETTERED, "q1", "m5", {"to": "q3", "why": "max_receives", "reason": "broken"}),
        ],
    ),
    "redrive": (
        (r.MOVE, NOW, 1, 5, r.REDRIVEN, None, ((5, 2, 9),)),
        [(e.REDRIVEN, "q1", "m5", {"to": "q2"})],
    ),
    "move": ((r.MOVE, NOW, 1, 5, r.MOVED, None, ((5, 2, 9),)), [(e.MOVED, "q1", "m5", {"to": "q2"})]),
    "expired": ((r.REMOVE, NOW, 1, 0, r.REMOVED_EXPIRED, [5]), [(e.EXPIRED, "q1", "m5", {})]),
    "removed": (
        (r.REMOVE, NOW, 1, 0, r.REMOVED_OVERFLOW, [5, 6]),
        [(e.REMOVED, "q1", "m5", {"why": "overflow"}), (e.REMOVED, "q1", "m6", {"why": "overflow"})],
    ),
    "purge": ((r.PURGE, NOW, 1, 1), [(e.PURGED, "q1", None, {"keeps_in_flight": True})]),
    "edit": ((r.EDIT, NOW, 1, 5, NOW - 9, 0, b"x", None, None), [(e.EDITED, "q1", "m5", {})]),
    "reschedule": ((r.RESCHEDULE, NOW, 1, 5, NOW + 9), [(e.RESCHEDULED, "q1", "m5", {"due_ms": NOW + 9})]),
    "created": (
        (r.QUEUE, NOW, 1, 0, "n", {"fifo": True}, NOW),
        [(e.QUEUE_CREATED, "n", None, {"settings": {"fifo": True}})],
    ),
    "changed in the same millisecond": (
        (r.QUEUE, NOW, 1, 1, "n", {}, NOW),
        [(e.QUEUE_CHANGED, "n", None, {"settings": {}})],
    ),
    "changed, by an earlier version": (
        (r.QUEUE, NOW, 1, 0, "n", {}, NOW - 1),
        [(e.QUEUE_CHANGED, "n", None, {"settings": {}})],
    ),
    "deleted": ((r.UNQUEUE, NOW, 1, 0), [(e.QUEUE_DELETED, "q1", None, {})]),
    "added": (
        (r.EVENT, NOW, 1, 0, e.CONSUMER_LEFT, "n", {"consumer": "c"}),
        [(e.CONSUMER_LEFT, "n", None, {"consumer": "c"})],
    ),
    "copy": ((r.COPY, NOW, 1, 5, NOW - 9, 0, b"x", None, None), []),
    "checkpoint": ((r.CHECKPOINT, NOW, 0, 0, {}), []),
    "exchange": ((r.EXCHANGE, NOW, 0, 0, {}), []),
    "mark": ((r.MARK, NOW, 0, 0, "job", "owner", 1, 2, True, 0), []),
    "schedule": ((r.SCHEDULE, NOW, 0, 0, "put", "s", {}), []),
    "values": ((r.KV_PUT, NOW, 0, 0, "b", ()), []),
    "keys": ((r.KV_DELETE, NOW, 0, 0, "b", ()), []),
}


@pytest.mark.parametrize("name", CASES)
def test_a_record_has_its_events(name: str) -> None:
    record, expected = CASES[name]
    assert rows(record) == expected
    assert {row[0] for row in expected} <= EVENTS_OF_KIND.get(record[0], frozenset())


@pytest.mark.parametrize("name", CASES)
def test_the_events_of_a_record_can_be_resumed(name: str) -> None:
    record, expected = CASES[name]
    for first in range(1, len(expected) + 2):
        assert rows(record, first) == expected[first - 1 :]


def test_every_kind_of_record_is_covered() -> None:
    assert {record[0] for record, _ in CASES.values()} == r.KIND_NAMES.keys()


def test_a_published_event_has_the_message() -> None:
    [event] = events_of(CASES["publish"][0], Names(), str)
    assert event.message is not None
    assert (event.message.seq, event.message.body, event.message.options) == (5, b"x", OPTIONS)
