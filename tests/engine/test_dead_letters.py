"""What a message remembers of its deaths, and where it goes with them."""

from __future__ import annotations

import pytest

from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.record_values import pack_options, pack_value, unpack_options
from openq.engine.records import DEAD_LETTER_NAMES
from openq.errors import InvalidSetting
from openq.model import DEAD_LETTER_KINDS, DeadLetterEvent, DeliveryOptions, Draft

from .support import PREFIX, queue_of


def reject_one(engine: Engine, queue: QueueState, now_ms: int, reason: str | None = None) -> None:
    [delivery] = engine.receive(queue, 1, now_ms)
    engine.reject(queue, delivery.entry.seq, delivery.number, now_ms, reason)


def deaths_in(queue: QueueState) -> tuple[DeadLetterEvent, ...]:
    [entry] = queue.ready
    assert entry.options is not None
    return entry.options.deaths


def test_a_death_of_the_same_kind_in_the_same_queue_counts_once_more() -> None:
    engine = Engine(PREFIX)
    work = queue_of(engine, "work", dead_letter="dead")
    dead = queue_of(engine, "dead", dead_letter="work")
    engine.publish(work, Draft(b"x"), 1_000)

    for round in range(3):
        reject_one(engine, work, 2_000 + round, "busy")
        reject_one(engine, dead, 3_000 + round)

    assert deaths_in(work) == (
        DeadLetterEvent("dead", "rejected", 3_002, 1, "rejected", "", "dead", 3, 3_000),
        DeadLetterEvent("work", "busy", 2_002, 1, "rejected", "", "work", 3, 2_000),
    )


def test_a_death_names_the_exchange_and_key_the_message_came_with() -> None:
    engine = Engine(PREFIX)
    work = queue_of(engine, "@v/work", dead_letter="dead")
    dead = queue_of(engine, "dead")
    engine.publish(work, Draft(b"x"), 1_000)
    reject_one(engine, work, 1_000)
    assert [(each.exchange, each.key) for each in deaths_in(dead)] == [("@v/", "work")]
    engine.drop_queue(dead)
    dead = queue_of(engine, "dead")

    engine.route_to(["@v/work"], Draft(b"y", route=("@v/events", "eu")), 1_000)
    reject_one(engine, work, 1_000)

    assert [(each.exchange, each.key) for each in deaths_in(dead)] == [("@v/events", "eu")]


def test_a_queue_of_an_account_uses_its_bare_name_as_the_key_to_its_dead_letters() -> None:
    engine = Engine(PREFIX)
    work = queue_of(engine, "@v/work", dead_letter_exchange="@w/")
    dead = queue_of(engine, "@w/work")
    engine.publish(work, Draft(b"x"), 1_000)

    reject_one(engine, work, 1_000)

    [entry] = dead.ready
    assert entry.options is not None
    assert entry.options.route == ("@w/", "work")


def test_a_rejection_on_the_way_keeps_a_circle_open_only_up_to_itself() -> None:
    engine = Engine(PREFIX)
    a = queue_of(engine, "a", ttl_ms=10, dead_letter="b", dead_letter_expired=True)
    b = queue_of(engine, "b", ttl_ms=10, dead_letter="a", dead_letter_expired=True)
    engine.publish(a, Draft(b"x"), 1_000)
    reject_one(engine, a, 1_000)

    engine.advance(1_010)
    assert (a.count, b.count) == (1, 0)
    engine.advance(1_020)

    assert (a.count, b.count) == (0, 0)


def test_a_death_of_unknown_kind_counts_as_a_rejection() -> None:
    engine = Engine(PREFIX)
    a = queue_of(engine, "a", ttl_ms=10, dead_letter="b", dead_letter_expired=True)
    b = queue_of(engine, "b")
    past = DeliveryOptions(deaths=(DeadLetterEvent("b", "no address", 5, 1),))

    engine.publish(a, Draft(b"x", past=past), 1_000)
    engine.advance(1_010)

    assert b.count == 1


def test_deaths_of_early_records_are_read_with_the_kind_of_their_reason() -> None:
    options = DeliveryOptions(count=3, deaths=(DeadLetterEvent("q", "expired", 5, 1),))
    packed = pack_options(options)
    long, short = pack_value(options.deaths), pack_value([("q", "expired", 5, 1)])
    data = packed.replace(len(long).to_bytes(4, "little") + long, len(short).to_bytes(4, "little") + short)
    assert data != packed

    assert unpack_options(data).deaths == (DeadLetterEvent("q", "expired", 5, 1, "expired"),)
    assert DeadLetterEvent.from_fields("q", "no address", 5, 1).kind == ""


def test_the_fields_of_a_death_are_checked() -> None:
    with pytest.raises(InvalidSetting, match="kind"):
        DeadLetterEvent.from_fields("q", "r", 5, 1, kind="boredom")
    with pytest.raises(InvalidSetting, match="times"):
        DeadLetterEvent.from_fields("q", "r", 5, 1, times=1 << 31)


def test_the_fields_of_a_death_are_no_more_than_needed() -> None:
    assert DeadLetterEvent("q", "expired", 5, 1, "expired", first_ms=5).details(str) == {}
    assert DeadLetterEvent("q", "busy", 5, 1, "rejected", times=3, first_ms=2).details(str) == {
        "kind": "rejected",
        "times": 3,
        "first_time": "2",
    }


def test_the_kinds_of_deaths_are_those_the_records_name() -> None:
    assert set(DEAD_LETTER_KINDS) == set(DEAD_LETTER_NAMES.values())
