"""Listings that are read page by page, while messages leave between two pages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from openq.clock import VirtualClock
from openq.model import Draft, Entry, QueueSettings
from openq.redis import inspection
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server

PAGE = 4


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(
    redis_server: Server, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisBroker]:
    monkeypatch.setattr(inspection, "_PAGE", PAGE)
    with closing(RedisBroker(redis_server.url, profile="fast", clock=clock)) as broker:
        broker.declare("q", QueueSettings())
        # Sequences from 1, so that they have different numbers of digits. Redis sorts them as texts.
        [key] = redis_server.ask("KEYS", "*:q")
        redis_server.ask("HSET", key, "seq", 0, "cur", 0, "last", 100_000)
        yield broker


def publish_delayed(broker: RedisBroker, delays_ms: list[int]) -> None:
    for delay_ms in delays_ms:
        broker.publish("q", Draft(b"x", delay_ms=delay_ms))


def numbers(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_delayed_messages_that_come_due_between_two_pages_hide_no_others(
    broker: RedisBroker, clock: VirtualClock
) -> None:
    publish_delayed(broker, [1000 * number for number in range(1, 13)])
    walk = broker.inspect.walk("q", "delayed", None)
    first = [next(walk)[0].seq for _ in range(PAGE)]

    clock.advance(2.5)
    assert broker.stats("q").ready == 2

    assert first + [entry.seq for entry, _, _ in walk] == list(range(1, 13))


def test_messages_in_flight_that_are_acked_between_two_pages_hide_no_others(broker: RedisBroker) -> None:
    broker.publish_bodies("q", [b"x"] * 12, 0)
    deliveries = broker.receive("q", 12)
    walk = broker.inspect.walk("q", "in_flight", None)
    first = [next(walk)[0].seq for _ in range(PAGE)]

    broker.ack("q", [(each.entry.seq, each.number) for each in deliveries if each.entry.seq in (1, 2, 6)])

    assert first + [entry.seq for entry, _, _ in walk] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]


def test_messages_due_at_the_same_time_are_listed_by_sequence_each_once(broker: RedisBroker) -> None:
    publish_delayed(broker, [5000] * 250)
    for number in range(3, 90):  # few short numbers among many long ones
        broker.admin.cancel("q", broker.inspect.id_of(number))
    left = [1, 2, *range(90, 251)]

    assert numbers(broker.inspect.entries("q", "delayed")) == left

    walk = broker.inspect.walk("q", "delayed", None)
    found = [next(walk)[0].seq for _ in range(PAGE)]
    for number in (1, 2, 90, 91, 100):
        broker.admin.cancel("q", broker.inspect.id_of(number))
    found += [entry.seq for entry, _, _ in walk]
    assert found == [each for each in left if each != 100]


def test_delayed_messages_are_listed_by_due_time_and_sequence_from_every_mark(broker: RedisBroker) -> None:
    chance = random.Random(7)
    publish_delayed(broker, [chance.choice((1000, 2000, 2001, 70_000)) for _ in range(120)])
    steps = list(broker.inspect.walk("q", "delayed", None))
    places = [mark for _, _, mark in steps]

    assert places == sorted(places)
    assert sorted(mark[2] for mark in places) == list(range(1, 121))
    for at, mark in list(enumerate(places))[::9]:
        assert [each for _, _, each in broker.inspect.walk("q", "delayed", mark)] == places[at + 1 :]


def test_a_page_of_delayed_messages_reads_no_more_than_its_part(
    broker: RedisBroker, redis_server: Server
) -> None:
    publish_delayed(broker, [1000 * number for number in range(1, 30)] + [50_000] * 30)
    with redis.Redis("127.0.0.1", redis_server.port) as raw, raw.monitor() as monitor:
        broker.inspect.entries("q", "delayed")
        redis_server.ask("ECHO", "the end")
        commands = []
        for each in monitor.listen():
            if "the end" in each["command"]:
                break
            commands.append(each["command"].split())

    ranks = [words for words in commands if words[0] == "ZRANGE" and words[1].endswith(":d")]
    scores = [words for words in commands if words[0] == "ZRANGEBYSCORE" and words[1].endswith(":d")]
    assert ranks
    assert all(0 <= int(words[3]) - int(words[2]) < PAGE for words in ranks)
    assert any("LIMIT" in words for words in scores)
    assert all(int(words[-1]) <= PAGE for words in scores if "LIMIT" in words)


@pytest.mark.parametrize("chosen", [(1, 2), (3, 9, 10, 11), tuple(range(1, 13))])
def test_messages_that_came_back_from_the_outbox_are_listed_in_their_place(
    broker: RedisBroker, chosen: tuple[int, ...]
) -> None:
    """Without a history their records are gone from the stream, which takes no older entries."""
    settings = QueueSettings(history_ms=0, dead_letter="missing", max_receives=1)
    broker.declare("q", settings, change=True)
    broker.publish_bodies("q", [b"x"] * 20, 0)
    deliveries = broker.receive("q", 12)
    receipts = {each.entry.seq: (each.entry.seq, each.number) for each in deliveries}
    broker.nack("q", [receipts[seq] for seq in chosen], 0)
    broker.release("q", [receipt for seq, receipt in receipts.items() if seq not in chosen])

    assert numbers(broker.inspect.entries("q", "ready")) == list(range(1, 21))
    assert numbers([each.entry for each in broker.receive("q", 20)]) == list(range(1, 21))


def test_a_message_whose_history_is_trimmed_while_it_is_in_the_outbox_is_not_lost(
    broker: RedisBroker, clock: VirtualClock
) -> None:
    broker.declare("q", QueueSettings(history_ms=1000, dead_letter="missing", max_receives=1), change=True)
    broker.publish("q", Draft(b"kept"))
    [delivery] = broker.receive("q", lease_ms=60_000)
    clock.advance(5)
    broker.publish_bodies("q", [b"x"] * 600, 0)  # trims the history past the first message

    assert broker.nack("q", [(delivery.entry.seq, delivery.number)], 0) == ["returned"]
    assert [each.entry.body for each in broker.receive("q")] == [b"kept"]
    assert broker.stats("q").counters["damaged"] == 0
