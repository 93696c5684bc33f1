"""Snapshots, freed segments, copied messages: a restart brings all back, and disk use stays bounded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.engine.records import Record
from openq.errors import DiskFull
from openq.local.broker import LocalBroker
from openq.local.core import BrokerCore
from openq.model import (
    NO_DEADLINE,
    OPTION_FIELDS,
    Draft,
    MessageFilter,
    Properties,
    QueueSettings,
    plain_options,
)
from tests.waiting import until

SEGMENT = 1 << 16
BODY = b"b" * 1_000
INFO = Properties.from_amqp(b"\x80\x00\x03a/b", "someone")


class Place:
    """A broker on small segments whose clock and housekeeping are moved by hand."""

    def __init__(self, path: Path, history_bytes: int = 1 << 30) -> None:
        self.clock = VirtualClock()
        self.path = path
        self.history_bytes = history_bytes
        self.broker = self.open()

    def open(self) -> LocalBroker:
        broker = LocalBroker(
            self.path,
            clock=self.clock,
            seed=1,
            segment_bytes=SEGMENT,
            history_bytes=self.history_bytes,
        )
        self.broker = broker
        return broker

    def work(self) -> None:
        self.broker.sync()
        journal = self.broker.journal
        assert journal is not None
        # The age of a segment is known once another thread has indexed it.
        until(lambda: all(segment.last_ms is not None for segment in journal.segments()[:-1]))
        housekeeper = self.broker.housekeeper
        assert housekeeper is not None
        housekeeper.work()

    def segments(self) -> list[int]:
        assert self.broker.journal is not None
        return [segment.number for segment in self.broker.journal.segments()]

    def load_bodies(self, queue: str, segments: int) -> None:
        """Traffic that comes and goes, over so many segments."""
        last = self.segments()[-1] + segments
        while self.segments()[-1] < last:
            self.broker.publish_bodies(queue, [BODY] * 20, 0)
            receipts = [(d.entry.seq, d.number) for d in self.broker.receive(queue, 20)]
            self.broker.ack(queue, receipts)
            self.broker.sync()

    def bodies(self, queue: str) -> list[bytes | None]:
        return [entry.body for entry in self.broker.inspect.entries(queue)]

    def state(self) -> dict[str, object]:
        """What can be seen from outside."""
        found: dict[str, object] = {}
        for name in self.broker.queues():
            stats = self.broker.stats(name)
            counters = {key: value for key, value in stats.counters.items() if key != "deduplicated"}
            entries = []
            for entry in self.broker.inspect.entries(name):
                options = entry.options
                reported = None if options is None else [getattr(options, each) for each in OPTION_FIELDS]
                properties = None
                if entry.properties is not None:
                    properties = (
                        entry.properties.amqp_properties,
                        dict(entry.properties.attributes),
                        entry.properties.publisher,
                    )
                entries.append((entry.seq, entry.sent_ms, entry.encoding, entry.body, properties, reported))
            leases = sorted(
                (d.entry.seq, d.number, d.until_ms, d.count) for d in self.broker.inspect.deliveries(name)
            )
            found[name] = (stats.ready, stats.delayed, stats.waiting_bytes, counters, entries, leases)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data", history_bytes=0)


def queue(place: Place, name: str = "q", **settings: object) -> None:
    place.broker.declare(name, QueueSettings(history_ms=0, dedup_window_ms=0).with_(**settings))


def test_segments_that_nothing_needs_are_freed(place: Place) -> None:
    queue(place)
    place.load_bodies("q", 6)
    place.clock.advance(1)

    place.work()

    assert len(place.segments()) <= 2
    place.broker.close()


def test_a_message_that_nobody_takes_does_not_pin_the_segments_after_it(place: Place) -> None:
    queue(place)
    queue(place, "kept")
    place.broker.publish("kept", Draft(b"forgotten", attributes={"a": b"\x00"}, type="t", id="mine"))
    place.broker.publish("kept", Draft(b"later", delay_ms=86_400_000))
    place.broker.publish("kept", Draft(b"leased"))
    [leased] = place.broker.receive("kept", lease_ms=3_600_000, wanted=MessageFilter.of(["t"]), consumer="me")
    place.broker.publish_bodies("kept", [b"one", b"two", b"three"], 0)
    place.broker.publish_bodies("kept", [b"four", b"5"], 0, INFO, plain_options(("amq.direct", "key")))
    place.broker.sync()
    before = place.segments()[0]
    place.load_bodies("q", 8)
    place.clock.advance(1)

    for _ in range(3):
        place.work()

    assert place.segments()[0] > before + 4
    wanted = [b"leased", b"one", b"two", b"three", b"four", b"5", b"later", b"forgotten"]
    assert place.bodies("kept") == wanted
    for _ in range(2):
        state = place.state()
        place.broker.close()
        place.open()
        assert place.state() == state
    assert place.broker.ack("kept", [(leased.entry.seq, leased.number)]) == [None]
    place.broker.close()


def test_a_long_backlog_in_pages_is_copied_forward_as_a_whole(place: Place) -> None:
    queue(place)
    queue(place, "backlog")
    for i in range(3_000):
        place.broker.publish_body("backlog", b"%d" % i, 0)
    place.broker.publish_bodies("backlog", [b"r"] * 50, 0)
    place.broker.publish_bodies("backlog", [b"s"] * 50, 0, INFO, plain_options(("amq.direct", "key")))
    place.broker.sync()
    first = place.segments()[0]
    place.load_bodies("q", 12)
    place.clock.advance(1)

    for _ in range(8):
        place.work()

    assert place.segments()[0] > first
    wanted = [b"%d" % i for i in range(3_000)] + [b"r"] * 50 + [b"s"] * 50
    assert place.bodies("backlog") == wanted
    place.broker.close()
    place.open()
    assert place.bodies("backlog") == wanted
    assert [entry.properties for entry in place.broker.inspect.entries("backlog")] == [None] * 3_050 + [
        INFO
    ] * 50
    place.broker.close()


def test_without_its_snapshot_the_end_of_a_journal_is_enough(place: Place) -> None:
    queue(place)
    queue(place, "kept", fifo=True)
    place.broker.publish("kept", Draft(b"a", group="g"))
    place.broker.publish("kept", Draft(b"b", group="g", delay_ms=50_000_000))
    place.broker.publish("kept", Draft(b"c", group="h", priority=3))
    [leased] = place.broker.receive("kept", lease_ms=3_600_000)
    place.broker.admin.edit(
        "kept", place.broker.inspect.message_id(place.broker.inspect.peek("kept")[0]), Draft(b"edited")
    )
    place.load_bodies("q", 8)
    place.clock.advance(1)
    for _ in range(4):
        place.work()
    assert place.segments()[0] > 2
    reported = {key: place.state()[key][4:] for key in place.state()}  # type: ignore[index]
    place.broker.close()
    shutil.rmtree(place.path / "snapshots")

    place.open()

    assert {key: place.state()[key][4:] for key in place.state()} == reported  # type: ignore[index]
    assert place.broker.ack("kept", [(leased.entry.seq, leased.number)]) == [None]
    place.broker.close()


def test_history_is_kept_for_as_long_and_as_much_as_was_said(tmp_path: Path) -> None:
    place = Place(tmp_path / "data", history_bytes=4 * SEGMENT)
    queue(place, history_ms=3_600_000)
    place.load_bodies("q", 2)
    place.clock.advance(1800)
    place.load_bodies("q", 1)

    place.work()
    assert place.segments()[0] == 1, "an hour is not over, and it is not too much"

    place.clock.advance(1801)
    place.work()
    kept = place.segments()
    assert kept[0] > 1, "the oldest are over an hour old"
    place.load_bodies("q", 8)
    place.clock.advance(1)
    place.work()
    assert len(place.segments()) <= 6, "more than the bytes that history may take"
    place.broker.close()


def test_the_window_of_repeated_messages_survives_whatever_is_freed(place: Place) -> None:
    queue(place)
    queue(place, "once", dedup_window_ms=3_600_000)
    first = place.broker.publish("once", Draft(b"x", dedup="d"))
    [delivery] = place.broker.receive("once")
    place.broker.ack("once", [(delivery.entry.seq, delivery.number)])
    place.load_bodies("q", 6)
    place.clock.advance(60)
    place.work()
    place.broker.close()

    place.open()

    assert place.broker.publish("once", Draft(b"x", dedup="d")) == first
    place.clock.advance(3_600)
    assert place.broker.publish("once", Draft(b"x", dedup="d")) != first
    place.broker.close()


def test_leases_bound_to_a_connection_end_with_the_process_also_in_small_segments(place: Place) -> None:
    queue(place)
    queue(place, "kept")
    place.broker.publish("kept", Draft(b"a"))
    place.broker.receive("kept", lease_ms=NO_DEADLINE)
    place.load_bodies("q", 6)
    place.clock.advance(1)
    place.work()
    place.work()
    place.broker.close()

    place.open()

    assert [d.count for d in place.broker.receive("kept")] == [2]  # counted: it may have killed its holder
    place.broker.close()


def test_a_disk_without_room_does_not_keep_a_broker_from_opening(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(place)
    place.broker.publish("q", Draft(b"a"))
    place.broker.receive("q", lease_ms=NO_DEADLINE)
    place.broker.close()
    log = BrokerCore._log

    def refuse(self: BrokerCore, record: Record) -> int:
        raise DiskFull("test")

    monkeypatch.setattr(BrokerCore, "_log", refuse)
    place.open()
    assert place.broker.stats("q").in_flight == 1
    monkeypatch.setattr(BrokerCore, "_log", log)
    place.broker.engine.log = place.broker._core._log
    place.clock.advance(5)

    assert [d.count for d in place.broker.receive("q")] == [2]
