"""Schedules: each due time is published once, through restarts; what is missed, and what fails.

`tests/redis/test_schedules.py` plays the tests that ask for a `store` on Redis.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from openq.broker.interface import Broker
from openq.broker.schedules import (
    GRACE_MS,
    MAX_CATCH_UP,
    Schedule,
    following,
    next_runs,
    plan_runs,
    publish_ms,
)
from openq.clock import VirtualClock
from openq.errors import Closed, InvalidSetting, QueueFull, QueueNotFound, ScheduleNotFound
from openq.local.broker import LocalBroker
from openq.model import Delivery, Draft, QueueSettings

HOUR_MS, DAY_S = 3_600_000, 86_400.0
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
LONG = QueueSettings(retention_ms=400 * 86_400_000)


class Store(Protocol):
    """A place where brokers are opened, on a clock that is moved by hand."""

    clock: VirtualClock
    broker: Any

    def restart(self, down_s: float) -> None:
        """Close the broker, and open it again so much later."""


class LocalStore:
    def __init__(self, path: Path | None) -> None:
        self.clock = VirtualClock(START_MS)
        self.path = path
        self.broker = LocalBroker(path, clock=self.clock)

    def restart(self, down_s: float) -> None:
        assert self.path is not None, "a broker in memory ends with its process"
        self.broker.close()
        self.clock.advance(down_s)
        self.broker = LocalBroker(self.path, clock=self.clock)
        self.broker.tick()


@pytest.fixture(params=["memory", "journal"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    found = LocalStore(tmp_path / "data" if request.param == "journal" else None)
    found.broker.declare("q", LONG)
    yield found
    found.broker.close()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Store]:
    """A store that outlives its process."""
    found = LocalStore(tmp_path / "data")
    found.broker.declare("q", LONG)
    yield found
    found.broker.close()


def taken(broker: Broker, queue: str = "q") -> list[Delivery]:
    """All messages of a queue, received and acked."""
    out: list[Delivery] = []
    while deliveries := broker.load(broker.receive(queue, 500)):
        out += deliveries
        broker.ack(queue, [(each.entry.seq, each.number) for each in deliveries])
    return out


def dues(deliveries: Sequence[Delivery]) -> list[str]:
    found = []
    for each in deliveries:
        assert each.entry.properties is not None
        assert each.entry.properties.attributes is not None
        found.append(str(each.entry.properties.attributes["openq-due"]))
    return found


def hourly(**options: Any) -> Schedule:
    return Schedule("tidy", "q", b"tidy", cron="0 * * * *", **options)


# -- running ------------------------------------------------------------------------------------------


def test_a_month_of_cron_publishes_each_due_time_once_and_on_time(store: Store) -> None:
    store.broker.schedules.put(hourly())
    store.clock.advance(30 * DAY_S)

    deliveries = taken(store.broker)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    wanted = [(start + timedelta(hours=hour)).isoformat()[:19] + "Z" for hour in range(1, 721)]
    assert dues(deliveries) == wanted
    assert [each.entry.sent_ms for each in deliveries] == [START_MS + HOUR_MS * n for n in range(1, 721)]
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed, stored.error) == (720, 0, None)
    assert stored.next_ms == START_MS + 721 * HOUR_MS


@pytest.mark.parametrize(
    ("zone", "first", "hours"),
    [("Europe/Berlin", "2026-03-28T00:00:00Z", 47), ("America/New_York", "2026-10-31T12:00:00Z", 49)],
)
def test_a_daily_run_follows_the_clock_on_the_wall(store: Store, zone: str, first: str, hours: int) -> None:
    """Two days with a change of the clock are shorter or longer by an hour."""
    start = datetime.fromisoformat(first)
    store.clock.advance((start - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds())
    store.broker.schedules.put(Schedule("daily", "q", cron="0 12 * * *", timezone=zone))
    store.clock.advance(4 * DAY_S)

    found = [datetime.fromisoformat(each) for each in dues(taken(store.broker))]
    gaps = {int((after - before).total_seconds() // 3600) for before, after in itertools.pairwise(found)}
    assert gaps == {24, hours - 24}


def test_an_interval_runs_at_its_own_beats(store: Store) -> None:
    store.broker.schedules.put(Schedule("beat", "q", b"x", every_ms=1_500))
    store.clock.advance(60)
    assert [each.entry.sent_ms - START_MS for each in taken(store.broker)] == list(
        range(1_500, 60_001, 1_500)
    )


def test_a_message_carries_its_options_and_says_where_it_comes_from(store: Store) -> None:
    schedule = hourly(
        encoding=2,
        type="job",
        priority=7,
        group="g",
        attributes={"tenant": "a", "raw": b"\0"},
        publisher="me",
        ttl_ms=HOUR_MS // 2,
    )
    store.broker.schedules.put(replace(schedule, body=b'{"a":1}'))
    store.clock.advance(3600)

    [delivery] = taken(store.broker)
    entry = delivery.entry
    assert (entry.body, entry.encoding, entry.priority, entry.group) == (b'{"a":1}', 2, 7, "g")
    assert entry.options is not None
    assert entry.options.type == "job"
    assert entry.options.expires_ms == START_MS + HOUR_MS + HOUR_MS // 2
    assert entry.properties is not None
    assert entry.properties.publisher == "me"
    assert entry.properties.attributes == {
        "tenant": "a",
        "raw": b"\0",
        "openq-schedule": "tidy",
        "openq-due": "2026-01-01T01:00:00Z",
    }


def test_jitter_publishes_each_run_later_by_a_share_of_its_own(store: Store) -> None:
    store.broker.schedules.put(hourly(jitter_ms=600_000))
    store.clock.advance(50 * 3600 + 600)

    deliveries = taken(store.broker)
    late = [each.entry.sent_ms - START_MS - n * HOUR_MS for n, each in enumerate(deliveries, 1)]
    assert len(deliveries) == 50
    assert all(0 <= each <= 600_000 for each in late)
    assert len(set(late)) > 40
    assert dues(deliveries)[0] == "2026-01-01T01:00:00Z"


def test_start_and_end_limit_the_runs(store: Store) -> None:
    store.broker.schedules.put(hourly(start_ms=START_MS + 5 * HOUR_MS, end_ms=START_MS + 7 * HOUR_MS))
    store.clock.advance(DAY_S)

    assert dues(taken(store.broker)) == [f"2026-01-01T0{hour}:00:00Z" for hour in (5, 6, 7)]
    assert store.broker.schedules.get("tidy").next_ms is None


def test_each_run_counts_in_a_queue_that_deduplicates_by_content(store: Store) -> None:
    store.broker.declare("once", LONG.with_(dedup_by_content=True, dedup_window_ms=2 * HOUR_MS))
    store.broker.schedules.put(replace(hourly(), queue="once"))
    store.clock.advance(3 * 3600)
    assert len(taken(store.broker, "once")) == 3


def test_a_unique_key_keeps_runs_from_piling_up(store: Store) -> None:
    store.broker.schedules.put(hourly(unique="tidy"))
    store.clock.advance(5 * 3600)
    assert len(taken(store.broker)) == 1


# -- restarts and misfires ----------------------------------------------------------------------------


def test_a_restart_neither_loses_nor_repeats_a_run(durable: Store) -> None:
    durable.broker.schedules.put(Schedule("beat", "q", b"x", every_ms=1_000))
    for n in range(40):
        durable.clock.advance(1.1 + n * 0.013)
        durable.restart(0.7 if n % 3 else 0.0)
    durable.clock.advance(2)

    counts = Counter(dues(taken(durable.broker)))
    seconds = (durable.clock.now_ms() - START_MS) // 1000
    assert len(counts) == seconds
    assert set(counts.values()) == {1}
    assert durable.broker.schedules.get("beat").runs == seconds


@pytest.mark.parametrize(
    ("misfire", "published", "missed"), [("skip", [], 5), ("once", [5], 4), ("all", [1, 2, 3, 4, 5], 0)]
)
def test_the_misfire_policy_decides_about_runs_of_an_outage(
    durable: Store, misfire: str, published: list[int], missed: int
) -> None:
    durable.broker.schedules.put(hourly(misfire=misfire))
    durable.restart(5 * 3600 + 1800)

    assert dues(taken(durable.broker)) == [f"2026-01-01T0{hour}:00:00Z" for hour in published]
    stored = durable.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed, stored.next_ms) == (len(published), missed, START_MS + 6 * HOUR_MS)
    durable.clock.advance(1800)
    assert dues(taken(durable.broker)) == ["2026-01-01T06:00:00Z"]


def test_a_run_that_is_on_time_covers_the_missed_ones(durable: Store) -> None:
    durable.broker.schedules.put(hourly())
    durable.restart(3 * 3600 + 30)
    assert dues(taken(durable.broker)) == ["2026-01-01T03:00:00Z"]
    assert durable.broker.schedules.get("tidy").missed == 2


def test_catching_up_is_limited_to_the_newest_runs(durable: Store) -> None:
    durable.broker.schedules.put(Schedule("minutes", "q", cron="* * * * *", misfire="all"))
    durable.restart(3 * DAY_S)

    found = dues(taken(durable.broker))
    assert len(found) == len(set(found)) == MAX_CATCH_UP
    assert found == sorted(found)
    assert found[-1] == "2026-01-04T00:00:00Z"
    stored = durable.broker.schedules.get("minutes")
    assert (stored.runs, stored.missed) == (MAX_CATCH_UP, 3 * 1440 - MAX_CATCH_UP)


def test_the_plan_of_a_very_long_outage_is_made_at_once() -> None:
    schedule = Schedule("s", "q", every_ms=100, misfire="all", created_ms=START_MS)
    schedule = replace(schedule, next_ms=following(schedule, START_MS))
    now_ms = START_MS + 3 * 366 * 86_400_000
    plan = plan_runs(schedule, now_ms)
    assert plan is not None
    assert plan.next_ms is not None
    assert plan.missed == (now_ms - START_MS) // 100 - MAX_CATCH_UP
    assert now_ms - plan.due[0] < 2 * MAX_CATCH_UP * 100


def test_a_run_counts_as_missed_only_after_the_grace_time() -> None:
    schedule = replace(hourly(misfire="skip"), next_ms=START_MS)
    assert plan_runs(schedule, START_MS - 1) is None
    on_time = plan_runs(schedule, START_MS + GRACE_MS)
    assert on_time is not None
    assert (on_time.due, on_time.missed) == ((START_MS,), 0)
    late = plan_runs(schedule, START_MS + GRACE_MS + 1)
    assert late is not None
    assert (late.due, late.missed) == ((), 1)


def test_the_jitter_of_a_due_time_is_the_same_in_every_process() -> None:
    schedule = hourly(jitter_ms=1_000)
    assert publish_ms(schedule, START_MS) == publish_ms(hourly(jitter_ms=1_000), START_MS)


# -- declaring ----------------------------------------------------------------------------------------


def test_declaring_an_equal_schedule_again_changes_nothing(store: Store) -> None:
    first = store.broker.schedules.put(hourly())
    store.clock.advance(1800)
    assert store.broker.schedules.put(hourly()) == first


def test_another_message_keeps_the_next_run_and_another_time_moves_it(store: Store) -> None:
    store.broker.schedules.put(hourly())
    store.clock.advance(3600 + 60)
    changed = store.broker.schedules.put(replace(hourly(), body=b"other"))
    assert (changed.body, changed.next_ms, changed.runs) == (b"other", START_MS + 2 * HOUR_MS, 1)
    moved = store.broker.schedules.put(replace(hourly(), cron="30 * * * *"))
    assert moved.next_ms == START_MS + HOUR_MS + HOUR_MS // 2


def test_a_paused_schedule_does_not_run_until_it_is_resumed_and_makes_up_for_nothing(store: Store) -> None:
    schedules = store.broker.schedules
    schedules.put(hourly())
    assert schedules.pause("tidy").next_ms is None
    store.clock.advance(4 * 3600 + 60)
    assert schedules.put(hourly()).paused, "declaring it again does not resume it"
    assert taken(store.broker) == []
    assert schedules.resume("tidy").next_ms == START_MS + 5 * HOUR_MS
    store.clock.advance(3600)
    assert dues(taken(store.broker)) == ["2026-01-01T05:00:00Z"]


def test_a_schedule_runs_out_of_turn_on_request_even_if_it_is_paused(store: Store) -> None:
    store.broker.schedules.put(hourly())
    store.broker.schedules.pause("tidy")
    message_id = store.broker.schedules.run("tidy")
    [delivery] = taken(store.broker)
    assert store.broker.inspect.message_id(delivery.entry) == message_id
    assert dues([delivery]) == ["2026-01-01T00:00:00Z"]
    assert store.broker.schedules.get("tidy").runs == 1


def test_a_deleted_schedule_does_not_run_and_can_be_declared_again(store: Store) -> None:
    schedules = store.broker.schedules
    schedules.put(hourly())
    store.clock.advance(3600)
    schedules.delete("tidy")
    for call in (schedules.get, schedules.delete, schedules.pause, schedules.resume, schedules.run):
        with pytest.raises(ScheduleNotFound, match="'tidy' does not exist"):
            call("tidy")
    store.clock.advance(3600)
    assert [each.name for each in schedules.list()] == []
    assert schedules.put(hourly()).runs == 0
    store.clock.advance(3600)
    assert dues(taken(store.broker)) == ["2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z"]


def test_a_state_survives_a_restart(durable: Store) -> None:
    schedules = durable.broker.schedules
    schedules.put(hourly(attributes={"raw": b"\xff"}, timezone="Europe/Berlin"))
    schedules.put(replace(hourly(), name="paused"))
    schedules.pause("paused")
    schedules.put(replace(hourly(), name="gone"))
    schedules.delete("gone")
    durable.clock.advance(3600)
    before = list(schedules.list())
    durable.restart(0)
    assert list(durable.broker.schedules.list()) == before
    assert [(each.name, each.runs) for each in before] == [("paused", 0), ("tidy", 1)]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule("s", "q"), "either cron or every"),
        (Schedule("s", "q", cron="* * * * *", every_ms=1000), "either cron or every"),
        (Schedule("s", "q", every_ms=50), "every must be at least 0.1 seconds"),
        (Schedule("s", "q", cron="61 * * * *"), "minute must be 0 to 59"),
        (Schedule("s", "q", cron="* * * * *", timezone="Mars"), "unknown time zone 'Mars'"),
        (Schedule("s", "q", every_ms=1000, misfire="never"), "misfire must be skip, once or all"),
        (Schedule("s", "q", every_ms=1000, start_ms=2, end_ms=1), "must not end before it starts"),
        (Schedule("s", "q", b"x" * 300_000, every_ms=1000), "at most 262144"),
        (Schedule("s", "q", every_ms=1000, priority=300), "priority must be 0 to 255"),
        (Schedule("", "q", every_ms=1000), "schedule name"),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_line(store: Store, schedule: Schedule, words: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        store.broker.schedules.put(schedule)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert list(store.broker.schedules.list()) == []


# -- failures -----------------------------------------------------------------------------------------


def test_a_run_without_its_queue_is_missed_and_the_next_one_finds_it(store: Store) -> None:
    store.broker.schedules.put(replace(hourly(), queue="later"))
    store.clock.advance(2 * 3600)
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed, stored.error) == (0, 2, "queue 'later' does not exist")
    with pytest.raises(QueueNotFound):
        store.broker.schedules.run("tidy")

    store.broker.declare("later", LONG)
    store.clock.advance(3600)
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed, stored.error) == (1, 2, None)
    assert dues(taken(store.broker, "later")) == ["2026-01-01T03:00:00Z"]


def test_a_schedule_outlives_its_queue(store: Store) -> None:
    store.broker.schedules.put(hourly())
    store.clock.advance(3600)
    store.broker.delete("q")
    store.clock.advance(3600)
    assert store.broker.schedules.get("tidy").error == "queue 'q' does not exist"
    store.broker.declare("q", LONG)
    store.clock.advance(3600)
    assert dues(taken(store.broker)) == ["2026-01-01T03:00:00Z"]


def test_a_run_waits_for_room_in_a_full_queue(store: Store) -> None:
    store.broker.declare("small", LONG.with_(max_length=1, overflow="reject"))
    [result] = store.broker.publish_many("small", [Draft(b"first")])
    assert not isinstance(result, Exception)
    store.broker.schedules.put(replace(hourly(), queue="small"))
    store.clock.advance(3600 + 10)
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed) == (0, 0)
    assert "is full" in str(stored.error)
    with pytest.raises(QueueFull):
        store.broker.schedules.run("tidy")

    assert len(taken(store.broker, "small")) == 1
    store.clock.advance(30)
    assert dues(taken(store.broker, "small")) == ["2026-01-01T01:00:00Z"]
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed, stored.error) == (1, 0, None)


@pytest.mark.parametrize(("misfire", "published"), [("skip", 0), ("once", 1), ("all", 3)])
def test_the_misfire_policy_decides_about_runs_that_a_full_queue_delayed(
    store: Store, misfire: str, published: int
) -> None:
    store.broker.declare("small", LONG.with_(max_length=1, overflow="reject"))
    store.broker.publish_many("small", [Draft(b"first")])
    store.broker.schedules.put(replace(hourly(misfire=misfire), queue="small"))
    store.clock.advance(3 * 3600 + 1800)
    store.broker.declare("small", LONG, change=True)
    store.clock.advance(30)
    assert len(taken(store.broker, "small")) == 1 + published
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed) == (published, 3 - published)


def test_a_run_that_a_full_queue_dead_letters_is_not_repeated(store: Store) -> None:
    store.broker.declare("dead", LONG)
    store.broker.declare("small", LONG.with_(max_length=1, overflow="reject-dead-letter", dead_letter="dead"))
    store.broker.publish_many("small", [Draft(b"first")])
    store.broker.schedules.put(replace(hourly(), queue="small"))
    store.clock.advance(3600 + 60)
    assert store.broker.stats("dead").ready == 1
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed) == (0, 1)
    assert "is full" in str(stored.error)


def test_a_body_that_is_too_large_for_the_queue_is_missed(store: Store) -> None:
    store.broker.declare("tiny", LONG.with_(max_body=3))
    store.broker.schedules.put(replace(hourly(), queue="tiny"))
    store.clock.advance(3600)
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.missed) == (0, 1)
    assert "takes at most 3" in str(stored.error)
    assert stored.next_ms == START_MS + 2 * HOUR_MS


def test_a_closed_broker_refuses_schedules(store: Store) -> None:
    store.broker.close()
    with pytest.raises(Closed):
        store.broker.schedules.put(hourly())


# -- what users see -----------------------------------------------------------------------------------


def test_the_next_runs_are_those_that_come(store: Store) -> None:
    stored = store.broker.schedules.put(Schedule("s", "q", cron="*/7 3 * * *"))
    shown = next_runs(stored, 20)
    store.clock.advance(3 * DAY_S)
    found = [int(datetime.fromisoformat(each).timestamp() * 1000) for each in dues(taken(store.broker))]
    assert shown[:18] == found[:18]
    assert len(found) == 27


def test_metrics_count_runs_and_missed_runs(store: Store) -> None:
    store.broker.schedules.put(hourly())
    store.broker.schedules.put(replace(hourly(), name="@other/lost", queue="@other/none"))
    store.clock.advance(2 * 3600)
    families = {family.name: family.samples for family in store.broker.statistics.gauges()}
    tidy = {"account": "000000000000", "schedule": "tidy"}
    lost = {"account": "other", "schedule": "lost"}
    assert sorted(families["openq_schedule_runs_total"], key=str) == [(tidy, 2), (lost, 0)]
    assert sorted(families["openq_schedule_missed_total"], key=str) == [(tidy, 0), (lost, 2)]
    assert (tidy, (START_MS + 3 * HOUR_MS) / 1000) in families["openq_schedule_next_run_timestamp_seconds"]
