"""Batches of a subscription: the same while they are open, also after a restart; back when forgotten."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from openq.amqp_fields import AmqpProperties, encode
from openq.broker.batch_columns import KINDS, columns_of
from openq.broker.subscriptions import (
    MAX_NUMBER,
    MAX_OPEN,
    SubscriptionInUse,
    SubscriptionNotFound,
    SubscriptionTaken,
    TooManyBatches,
)
from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.errors import InvalidSetting, QueueNotFound
from openq.local.broker import LocalBroker
from openq.model import Draft, Properties, QueueSettings
from openq.packed import pack, unpack

SEGMENT = 1 << 16


class Place:
    """A broker on small segments whose clock is moved by hand, with a queue `q`."""

    def __init__(self, path: Path | None, **settings: object) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.broker = self.open()
        self.broker.declare("q", QueueSettings(**settings))  # type: ignore[arg-type]

    def open(self) -> LocalBroker:
        self.broker = LocalBroker(self.path, clock=self.clock, seed=1, segment_bytes=SEGMENT)
        return self.broker

    def publish(self, *bodies: bytes) -> None:
        self.broker.publish_bodies("q", bodies, 0) or [
            self.broker.publish("q", Draft(body)) for body in bodies
        ]

    def crashed(self, to: Path) -> Place:
        """Another one on a copy of the disk as it is now: nothing was closed."""
        assert self.path is not None
        self.broker.sync()
        shutil.copytree(self.path, to, ignore=shutil.ignore_patterns("LOCK", "*.idx", "*.tmp"))
        other = Place.__new__(Place)
        other.path = to
        other.clock = VirtualClock()
        other.clock.advance((self.clock.now_ms() - other.clock.now_ms()) / 1000)
        other.broker = other.open()
        return other

    def next_batch(self, after: int = 0, **options: object) -> tuple[int, int] | None:
        formed = self.broker.subscriptions.next_batch("s", "q", after, **options)  # type: ignore[arg-type]
        self.broker.sync()
        return None if formed is None else (formed.batch, formed.count)

    def bodies(self, number: int, part: int = 0, parts: int = 1) -> list[bytes | None] | None:
        """None: it is gone."""
        rows = self.broker.subscriptions.rows("s", number, part, parts)
        return None if rows.expired else [entry.body for entry in rows.entries]

    def ready(self) -> int:
        return self.broker.stats("q").ready


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path / "data" if request.param == "disk" else None)


@pytest.fixture
def place_with(tmp_path: Path) -> Callable[..., Place]:
    """With settings for its queue."""
    return lambda **settings: Place(tmp_path / "data", **settings)


@pytest.fixture
def durable(tmp_path: Path) -> Place:
    return Place(tmp_path / "data")


BODIES = [b"%d" % i for i in range(5_000)]


def test_a_batch_is_the_same_every_time_it_is_asked_for_or_read(place: Place) -> None:
    place.publish(*BODIES)

    assert place.next_batch(0, limit=3_000) == (1, 3_000)
    assert place.next_batch(0, limit=10) == (1, 3_000)
    assert place.bodies(1) == place.bodies(1) == BODIES[:3_000]
    assert place.next_batch(1, limit=5_000) == (2, 2_000)
    assert place.next_batch(2) is None
    assert place.bodies(1) == BODIES[:3_000]
    assert place.bodies(2) == BODIES[3_000:]


@pytest.mark.parametrize("parts", [1, 2, 7, 100])
def test_the_parts_of_a_batch_are_the_batch(place: Place, parts: int) -> None:
    place.publish(*BODIES[:50])
    place.next_batch(0)

    pieces = [place.bodies(1, part, parts) for part in range(parts)]

    assert [body for piece in pieces for body in piece or []] == BODIES[:50]
    with pytest.raises(InvalidSetting):
        place.bodies(1, parts, parts)


def test_a_batch_ends_before_it_is_larger_than_asked_for(place: Place) -> None:
    place.publish(b"x" * 900, b"x" * 90, b"x" * 20, b"x" * 5)

    assert place.next_batch(0, max_bytes=1_000) == (1, 2)
    assert place.next_batch(1, max_bytes=1) == (2, 1)  # one at least
    assert place.next_batch(2, max_bytes=1_000) == (3, 1)


def test_acknowledged_batches_are_done_once_and_for_all(place: Place) -> None:
    place.publish(*BODIES[:10])
    for after in range(3):
        place.next_batch(after, limit=3)

    assert place.broker.subscriptions.ack("s", 2, None) == (6, 0)
    assert place.broker.subscriptions.ack("s", 2, None) == (0, 0)
    assert place.bodies(1) is place.bodies(2) is None
    assert place.bodies(3) == BODIES[6:9]
    stats = place.broker.stats("q")
    assert (stats.ready, stats.in_flight, stats.counters["acked"]) == (1, 3, 6)


def test_a_restart_brings_back_what_was_open(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES)
    durable.next_batch(0, limit=100, owner="first")
    durable.next_batch(1, limit=3_000)
    durable.next_batch(2, limit=7)
    durable.broker.subscriptions.ack("s", 1, "first")

    again = durable.crashed(tmp_path / "copy")

    assert again.bodies(1) is None
    assert again.bodies(2) == BODIES[100:3_100]
    assert again.bodies(3) == BODIES[3_100:3_107]
    assert again.next_batch(1) == (2, 3_000)
    [state] = again.broker.subscriptions.states()
    assert (state.name, state.queue, state.owner) == ("s", "q", "first")
    assert [batch.batch for batch in state.batches] == [2, 3]
    assert again.broker.subscriptions.ack("s", 3, "first") == (3_007, 0)
    assert again.ready() == 5_000 - 3_107

    # By a snapshot as well as by records.
    again.broker.subscriptions.next_batch("s", "q", 3, limit=50)
    again.broker.close()
    again.open()
    assert again.bodies(4) == BODIES[3_107:3_157]


def test_half_of_a_batch_that_nobody_heard_of_is_a_batch(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES)
    assert durable.broker.subscriptions.next_batch("other", "q", 0, limit=1) is not None  # the file is there
    broker = durable.broker
    with broker.lock:
        broker.engine.receive(broker.engine.queue("q"), 7, broker.now_ms(), 60_000, "batch:other:2")
    again = durable.crashed(tmp_path / "copy")

    formed = again.broker.subscriptions.next_batch("other", "q", 1, limit=5_000)

    assert formed is not None
    assert (formed.batch, formed.count) == (2, 7)


def test_a_forgotten_batch_returns_counted_and_its_number_is_empty(place: Place) -> None:
    place.publish(*BODIES[:5])
    place.next_batch(0, lease_ms=10_000)

    place.clock.advance(9.999)
    assert place.broker.stats("q").ready == 0
    place.clock.advance(0.001)

    assert place.bodies(1) is None
    assert place.broker.subscriptions.ack("s", 1, None)[0] == 0
    assert place.next_batch(1) == (2, 5)
    rows = place.broker.subscriptions.rows("s", 2)
    assert [delivery.count for delivery in rows.deliveries] == [2] * 5


def test_a_batch_in_use_does_not_run_out(place: Place) -> None:
    place.publish(*BODIES[:5])
    place.next_batch(0, lease_ms=10_000)

    for _ in range(4):
        place.clock.advance(9)
        assert place.bodies(1) == BODIES[:5]
    for _ in range(4):
        place.clock.advance(9)
        assert place.next_batch(0) == (1, 5)
    for _ in range(4):
        place.clock.advance(9)
        assert place.broker.subscriptions.extend("s", None) == 5
    assert place.broker.subscriptions.ack("s", 1, None) == (5, 0)


def test_extended_leases_survive_a_restart(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES[:5])
    durable.next_batch(0, lease_ms=10_000)
    durable.broker.subscriptions.extend("s", None, 100_000)
    again = durable.crashed(tmp_path / "copy")

    again.clock.advance(99)

    assert again.bodies(1) == BODIES[:5]


def test_a_new_owner_takes_over_and_the_old_one_is_refused(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES[:5])
    durable.next_batch(0, owner="a", limit=2)
    assert durable.next_batch(0, owner="b") == (1, 2)

    again = durable.crashed(tmp_path / "copy")
    for place in (durable, again):
        subscriptions = place.broker.subscriptions
        with pytest.raises(SubscriptionTaken):
            place.next_batch(0, owner="a")
        with pytest.raises(SubscriptionTaken):
            subscriptions.ack("s", 1, "a")
        with pytest.raises(SubscriptionTaken):
            subscriptions.extend("s", "a")
        assert place.next_batch(1, owner="b", limit=1) == (2, 1)
        assert subscriptions.ack("s", 1, "c") == (2, 0)
        with pytest.raises(SubscriptionTaken):
            subscriptions.ack("s", 2, "b")


def test_who_counts_otherwise_leaves_the_batches_of_others_to_run_out(place: Place) -> None:
    place.publish(*BODIES[:4])
    place.next_batch(100, limit=1, lease_ms=10_000)

    assert place.next_batch(5, limit=1) == (6, 1)
    for _ in range(3):
        place.clock.advance(8)
        assert place.broker.subscriptions.extend("s", None) == 1

    assert place.bodies(101) is None
    assert place.bodies(6) == BODIES[1:2]


def test_a_reader_that_acknowledges_nothing_is_refused_with_a_hint(place: Place) -> None:
    place.publish(*[b"x"] * (MAX_OPEN + 2))
    for after in range(MAX_OPEN):
        assert place.next_batch(after, limit=1) == (after + 1, 1)

    with pytest.raises(TooManyBatches, match="acknowledge"):
        place.next_batch(MAX_OPEN)
    assert place.next_batch(MAX_OPEN - 1) == (MAX_OPEN, 1)  # one that is open
    assert place.ready() == 2

    assert place.broker.subscriptions.ack("s", 1, None) == (1, 0)
    assert place.next_batch(MAX_OPEN, limit=1) == (MAX_OPEN + 1, 1)


def test_every_store_distinguishes_the_numbers_of_batches(place: Place) -> None:
    place.publish(b"a", b"b", b"c")
    subscriptions = place.broker.subscriptions

    for after in (MAX_NUMBER, 1 << 60, -2):
        with pytest.raises(InvalidSetting, match="numbered up to"):
            place.next_batch(after)
    assert place.next_batch(MAX_NUMBER - 2, limit=1) == (MAX_NUMBER - 1, 1)
    assert place.next_batch(MAX_NUMBER - 1, limit=1) == (MAX_NUMBER, 1)
    with pytest.raises(InvalidSetting, match="numbered up to"):
        subscriptions.ack("s", MAX_NUMBER + 1, None)

    assert subscriptions.ack("s", MAX_NUMBER - 1, None) == (1, 0)
    assert place.bodies(MAX_NUMBER) == [b"b"]
    assert subscriptions.ack("s", MAX_NUMBER, None) == (1, 0)


def test_groups_in_a_batch_are_locked_until_it_is_acknowledged(place_with: Callable[..., Place]) -> None:
    place = place_with(fifo=True)
    for i in range(6):
        place.broker.publish("q", Draft(b"%d" % i, group="ab"[i % 2]))

    assert place.next_batch(0, limit=2) == (1, 2)
    assert place.bodies(1) == [b"0", b"2"]
    assert place.next_batch(1) == (2, 3)
    assert place.bodies(2) == [b"1", b"3", b"5"]
    assert place.next_batch(2) is None
    place.broker.subscriptions.ack("s", 1, None)
    assert place.next_batch(2) == (3, 1)

    assert place.bodies(3) == [b"4"]


def test_a_message_whose_batches_are_never_acknowledged_becomes_a_dead_letter(
    place_with: Callable[..., Place],
) -> None:
    place = place_with(max_receives=2, dead_letter="dead")
    place.broker.declare("dead", QueueSettings())
    place.publish(b"poison")

    for after in range(2):
        assert place.next_batch(after, lease_ms=1_000) == (after + 1, 1)
        place.clock.advance(1)

    assert place.next_batch(2) is None
    assert place.broker.stats("dead").ready == 1


def test_a_batch_whose_queue_is_purged_or_deleted_is_gone(place: Place) -> None:
    place.publish(*BODIES[:3])
    place.next_batch(0)
    place.broker.purge("q")
    assert place.bodies(1) is None
    assert place.broker.subscriptions.ack("s", 1, None) == (0, 3)
    assert place.next_batch(1) is None

    place.publish(*BODIES[:3])
    assert place.next_batch(1) == (2, 3)
    place.broker.delete("q")
    with pytest.raises(SubscriptionNotFound):
        place.bodies(2)
    with pytest.raises(QueueNotFound):
        place.next_batch(2)

    place.broker.declare("q", QueueSettings())
    place.publish(b"new")
    assert place.next_batch(2) == (3, 1)


def test_what_somebody_settles_by_its_receipt_is_missing_and_said_to_be(place: Place) -> None:
    place.publish(*BODIES[:4])
    place.next_batch(0)
    [settled] = [each for each in place.broker.inspect.deliveries("q") if each.entry.body == BODIES[1]]

    place.broker.ack("q", [(settled.entry.seq, settled.number)])

    rows = place.broker.subscriptions.rows("s", 1)
    assert [entry.body for entry in rows.entries] == [BODIES[0], BODIES[2], BODIES[3]]
    assert (rows.expired, rows.lost) == (False, 1)
    assert place.broker.subscriptions.ack("s", 1, None) == (3, 1)


def test_a_deleted_subscription_gives_everything_back(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES[:5])
    durable.next_batch(0, limit=2)
    durable.next_batch(1, limit=2)

    assert durable.broker.subscriptions.delete("s") == 4

    for place in (durable, durable.crashed(tmp_path / "copy")):
        assert place.ready() == 5
        assert place.broker.subscriptions.states() == []
        with pytest.raises(SubscriptionNotFound):
            place.broker.subscriptions.ack("s", 1, None)
        assert [delivery.count for delivery in place.broker.receive("q", 5)] == [2, 2, 2, 2, 1]


def test_a_subscription_reads_one_queue_at_a_time(place: Place) -> None:
    place.broker.declare("other", QueueSettings())
    place.publish(b"x")
    place.next_batch(0)

    with pytest.raises(SubscriptionInUse):
        place.broker.subscriptions.next_batch("s", "other", 1)
    place.broker.subscriptions.ack("s", 1, None)

    assert place.broker.subscriptions.next_batch("s", "other", 1) is None
    with pytest.raises(QueueNotFound):
        place.broker.subscriptions.next_batch("new", "nowhere", 0)
    with pytest.raises(InvalidSetting):
        place.broker.subscriptions.next_batch("s", "other", 1, limit=100_001)
    assert [state.name for state in place.broker.subscriptions.states()] == ["s"]


def test_a_waiter_is_notified_and_takes_nothing_from_those_behind(place: Place) -> None:
    property_values: list[str] = []
    served: list[bytes | None] = []
    waiter = Waiter(1, None, None, None, lambda _: property_values.append("reported"), notify_only=True)
    assert place.next_batch(0, waiter=waiter) is None
    behind = Waiter(1, None, None, None, lambda leased: served.extend(each.entry.body for each in leased))
    assert place.broker.add_waiter("q", behind) is None

    place.publish(b"one", b"two")

    assert (property_values, served) == (["reported"], [b"one"])
    assert place.next_batch(0, waiter=waiter) == (1, 1)
    assert place.bodies(1) == [b"two"]


def test_old_segments_may_go_while_a_batch_is_open(durable: Place, tmp_path: Path) -> None:
    durable.broker.declare("q", QueueSettings(history_ms=0), change=True)
    durable.publish(*[b"%d" % i * 100 for i in range(100)])
    durable.next_batch(0, limit=50)
    expected = durable.bodies(1)
    housekeeper = durable.broker.housekeeper
    assert housekeeper is not None
    for _ in range(40):
        durable.publish(*[b"x" * 1_000] * 40)
        leased = durable.broker.receive("q", 90)
        durable.broker.ack("q", [(each.entry.seq, each.number) for each in leased])
        durable.broker.sync()
        durable.clock.advance(1)
        housekeeper.work()

    journal = durable.broker.journal
    assert journal is not None
    assert journal.segments()[0].number > 1
    assert durable.bodies(1) == expected
    assert durable.crashed(tmp_path / "copy").bodies(1) == expected


def test_rows_say_all_that_is_known_of_a_message(place: Place) -> None:
    amqp_properties = encode(
        AmqpProperties(content_type="text/plain", headers={"n": 7, "traceparent": "00-abc-def-01"})
    )
    place.broker.publish("q", Draft(b"plain"))
    place.broker.publish(
        "q",
        Draft(
            b"rich",
            type="order",
            group="g",
            priority=0,
            id="own",
            ttl_ms=60_000,
            attributes={
                "color": "red",
                "n": 5,
                "raw": b"\x00",
                "openq.replay_of": "x",
                "openq.replay_count": 2,
            },
            publisher="ann",
        ),
    )
    place.broker.publish(
        "q", Draft(b"wire", properties=Properties.from_amqp(amqp_properties), route=("ex", "key"))
    )
    place.next_batch(0)
    rows = place.broker.subscriptions.rows("s", 1)

    columns = unpack(
        pack(columns_of(place.broker.storage.id_prefix, "q", rows.deliveries, rows.entries), KINDS)
    )

    by_body = {columns["body"][i]: {name: column[i] for name, column in columns.items()} for i in range(3)}
    plain, rich, wired = by_body[b"plain"], by_body[b"rich"], by_body[b"wire"]
    assert (plain["message_id"], plain["queue"], plain["receive_count"], plain["size"]) == (
        place.broker.inspect.id_of(plain["seq"]),
        "q",
        1,
        5,
    )
    assert plain["ts_us"] == place.clock.now_ms() * 1000
    assert plain["attributes"] is plain["type"] is plain["trace_id"] is None
    assert (rich["message_id"], rich["type"], rich["group"], rich["producer"]) == ("own", "order", "g", "ann")
    assert rich["expires_us"] == (place.clock.now_ms() + 60_000) * 1000
    assert (rich["replay_of"], rich["replay_count"]) == ("x", 2)
    assert rich["attributes"]["color"] == {"type": "String", "string": "red", "binary": None}
    assert rich["attributes"]["n"] == {"type": "Number", "string": "5", "binary": None}
    assert rich["attributes"]["raw"] == {"type": "Binary", "string": None, "binary": "AA=="}
    assert (wired["exchange"], wired["routing_key"]) == ("ex", "key")
    assert (wired["content_type"], wired["trace_id"]) == ("text/plain", "abc")
    assert wired["headers"]["n"] == "7"


def test_text_that_cannot_be_written_is_shown_as_far_as_it_can() -> None:
    place = Place(None)
    place.broker.publish("q", Draft(b"x", route=("ex", "key\udc80")))
    place.next_batch(0)
    rows = place.broker.subscriptions.rows("s", 1)

    assert columns_of("", "q", rows.deliveries, rows.entries)["routing_key"] == ["key?"]


@pytest.mark.parametrize(
    "properties",
    [
        Properties(
            {"a": "b", "n": 1.5, "raw": b"\xff", "deep": {"x": [1]}, "yes": True, "none": None}, "ann"
        ),
        Properties({"n": "5", "raw": b"x", "openq.sqs-types": {"n": "Number.int", "raw": "Binary.png"}}),
        Properties({"AWSTraceHeader": "Root=1-2-3;Parent=4", "content_type": "text/plain"}),
        Properties({"openq.trace": "Root=1-2-3", "openq.replay_of": "x", "openq.replay_count": "7"}),
        Properties({"trace_id": "t", "openq.batch": "job/1", "openq.replay_count": -1}),
        Properties({}),
        Properties.from_amqp(
            encode(AmqpProperties(content_type="a/b", headers={"traceparent": "00-ab-cd-01"})), "bob"
        ),
        Properties.from_amqp(
            encode(AmqpProperties(headers={"n": 7, "t": {"x": b"y"}, "l": [1, "a"]}, app_id="app"))
        ),
        Properties.from_amqp(b"\x20\x00\x00\x00", "eve"),
        Properties.from_amqp(
            encode(AmqpProperties(headers={"price": Decimal("1.50"), "all": [Decimal("2.5")]}))
        ),
        Properties({"empty": b""}),
    ],
    ids=range(11),
)
def test_rows_say_what_the_history_says(place: Place, properties: Properties) -> None:
    from openq.history.property_values import property_values

    place.broker.publish("q", Draft(b"x", properties=properties))
    place.next_batch(0)
    rows = place.broker.subscriptions.rows("s", 1)
    columns = columns_of(place.broker.storage.id_prefix, "q", rows.deliveries, rows.entries)

    found = {name: columns.get(name, [None])[0] for name in property_values(properties)._fields}

    expected = property_values(properties)._asdict()
    for name in ("attributes", "headers"):
        expected[name] = None if expected[name] is None else dict(expected[name])
    for name, parts in (expected["attributes"] or {}).items():
        expected["attributes"][name] = dict(zip(("type", "string", "binary"), parts, strict=True))
    for shown in (found["attributes"] or {}).values():
        shown["binary"] = None if shown["binary"] is None else base64.b64decode(shown["binary"])
    assert found == expected


def test_readers_that_ask_at_once_get_the_same_batch(place: Place) -> None:
    place.publish(*BODIES)
    answers: list[tuple[int, int] | None] = []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait()
        answers.append(place.next_batch(0, limit=4_000))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [(1, 4_000)] * 4


def test_no_rows_are_packed_rows_too() -> None:
    assert unpack(pack(columns_of("", "q", (), ()), KINDS))["body"] == []


def test_nobody_else_calls_itself_a_batch(durable: Place, tmp_path: Path) -> None:
    durable.publish(*BODIES[:3])
    assert durable.next_batch(0, limit=1) == (1, 1)

    with pytest.raises(InvalidSetting, match="batch:"):
        durable.broker.receive("q", consumer="batch:s:1")
    with pytest.raises(InvalidSetting, match="batch:"):
        durable.broker.add_waiter("q", Waiter(1, None, "batch:s:1", None, lambda deliveries: None))
    assert len(durable.broker.receive("q", consumer="batch")) == 1

    again = durable.crashed(tmp_path / "again")
    assert again.broker.subscriptions.ack("s", 1, None) == (1, 0)


def test_subscriptions_go_with_their_queue(durable: Place, tmp_path: Path) -> None:
    durable.broker.declare("other", QueueSettings())
    subscriptions = durable.broker.subscriptions
    subscriptions.next_batch("kept", "q", 0)
    subscriptions.next_batch("gone", "other", 0)

    durable.broker.delete("other")

    assert [state.name for state in subscriptions.states()] == ["kept"]
    again = durable.crashed(tmp_path / "again")
    assert [state.name for state in again.broker.subscriptions.states()] == ["kept"]


def test_one_user_leaves_room_for_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.broker.subscriptions.MAX_OF_ONE", 2)
    monkeypatch.setattr("openq.broker.subscriptions.MAX_SUBSCRIPTIONS", 4)
    subscriptions = place.broker.subscriptions
    for number in range(2):
        subscriptions.next_batch(f"ann-{number}", "q", 0, maker="ann")

    with pytest.raises(InvalidSetting, match="you have made 2"):
        subscriptions.next_batch("ann-2", "q", 0, maker="ann")
    subscriptions.next_batch("ann-1", "q", 0, maker="ann")  # one that is there
    for number in range(2):
        subscriptions.next_batch(f"bob-{number}", "q", 0, maker="bob")
    with pytest.raises(InvalidSetting, match="there are 4"):
        subscriptions.next_batch("eve", "q", 0, maker="eve")


@pytest.mark.parametrize(
    "changes", [{"queue": ["q"]}, {"past": 1}, {"lease_ms": "x"}, {"lease_ms": 0}, {"owner": {}}, None]
)
def test_a_file_that_somebody_edited_stops_nobody(
    changes: dict[str, object] | None, durable: Place, caplog: pytest.LogCaptureFixture
) -> None:
    durable.broker.subscriptions.next_batch("good", "q", 0)
    durable.broker.subscriptions.next_batch("s", "q", 0)
    durable.broker.close()
    assert durable.path is not None
    file = durable.path / "pipeline" / "subscriptions.json"
    stored = json.loads(file.read_text())
    stored["s"] = None if changes is None else {**stored["s"], **changes, "of a later version": 1}
    file.write_text(json.dumps(stored))
    edited = file.read_text()

    durable.open()

    assert [state.name for state in durable.broker.subscriptions.states()] == ["good"]
    assert "subscription 's'" in caplog.text
    durable.next_batch(0)
    assert file.with_name("subscriptions.json.unreadable").read_text() == edited


# -- numbers that were acknowledged -----------------------------------------------------------------------


def test_a_number_that_was_acked_is_never_used_for_other_rows(place: Place) -> None:
    place.publish(b"a", b"b")
    assert place.next_batch(limit=1) == (1, 1)
    assert place.next_batch(1, limit=1) == (2, 1)
    place.broker.subscriptions.ack("s", 2, None)
    place.publish(b"c")

    # A reader that lost its place asks for what was acknowledged.
    assert place.next_batch(0) == (3, 1)
    assert place.bodies(1) is None
    assert place.bodies(3) == [b"c"]
    assert place.next_batch(2) == (3, 1)
    assert place.next_batch(0) == (3, 1)


def test_nor_is_it_after_a_crash_in_the_middle_of_an_ack(durable: Place, tmp_path: Path) -> None:
    durable.publish(b"a")
    assert durable.next_batch(4) == (5, 1)
    durable.broker.subscriptions.ack("s", 5, None)
    durable.broker.sync()
    durable.publish(b"b")
    again = durable.crashed(tmp_path / "copy")

    assert again.next_batch(4) == (6, 1)
    assert again.bodies(6) == [b"b"]


def test_nor_for_a_subscription_that_was_deleted_and_made_again(durable: Place, tmp_path: Path) -> None:
    durable.publish(b"a", b"b")
    assert durable.next_batch(6, limit=1) == (7, 1)
    durable.broker.subscriptions.ack("s", 7, None)
    assert durable.next_batch(7, limit=1) == (8, 1)
    durable.broker.subscriptions.delete("s")

    assert durable.next_batch(0) == (9, 1)  # 8 was given back, and may be in the hands of its reader still
    again = durable.crashed(tmp_path / "copy")
    again.broker.subscriptions.delete("s")
    assert again.next_batch(0) == (10, 1)


def test_nor_where_the_queue_was_deleted_meanwhile(place: Place) -> None:
    place.publish(b"a")
    assert place.next_batch(2) == (3, 1)
    place.broker.subscriptions.ack("s", 3, None)
    place.broker.delete("q")
    place.broker.declare("q", QueueSettings())
    place.publish(b"b")

    assert place.next_batch(0) == (4, 1)
    assert place.bodies(4) == [b"b"]


def test_a_batch_whose_lease_ran_out_was_not_acked_and_keeps_its_number(place: Place) -> None:
    place.publish(b"a")
    assert place.next_batch(0, lease_ms=1000) == (1, 1)
    place.clock.advance(5)
    place.broker.tick()

    assert place.next_batch(0) == (1, 1)
