"""Schedules of the library: in memory, on disk and behind a server; for Redis see tests/redis."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from openq import Closed, InvalidSetting, OpenQ, ScheduleNotFound, VirtualClock, aio
from openq.client.schedules import ScheduleInfo
from tests.client.helpers import Make, bodies, take

pytest_plugins = "tests.client.fixtures"


def test_a_schedule_publishes_its_message_with_its_options(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", retention=10 * 86400)
    info = queue.schedules.add(
        "tidy", {"kind": "tidy"}, every=300, message_type="tidy", priority=3, attributes={"tenant": "a"}
    )
    assert (info.name, info.queue, info.every, info.cron, info.runs) == ("tidy", "jobs", 300, None, 0)
    clock.advance(300)

    message = take(queue)
    assert (message.body, message.message_type, message.priority) == ({"kind": "tidy"}, "tidy", 3)
    assert message.attributes == {
        "tenant": "a",
        "openq-schedule": "tidy",
        "openq-due": _text(info.next_run),
    }


def _text(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_cron_follows_the_time_zone_and_the_next_runs_are_shown(make: Make) -> None:
    queue = make("jobs")
    info = queue.schedules.add("report", cron="0 7 * * mon-fri", timezone="Europe/Berlin")
    runs = queue.schedules.next_runs("report", 3)
    assert info.next_run == runs[0]
    assert len(runs) == 3
    for run in runs:
        assert (run.hour, run.minute) == (7, 0)
        assert run.isoweekday() <= 5
        assert str(run.tzinfo) == "Europe/Berlin"


def test_schedules_are_listed_paused_resumed_run_and_removed(make: Make, clock: VirtualClock) -> None:
    queue, other = make("jobs"), make("other")
    queue.schedules.add("tidy", "x", every=60)
    assert [each.name for each in queue.schedules.list()] == ["tidy"]
    assert other.schedules.list() == []

    paused = queue.schedules.pause("tidy")
    assert (paused.paused, paused.next_run) == (True, None)
    assert queue.schedules.next_runs("tidy") == []
    clock.advance(120)
    assert bodies(queue) == []
    message_id = queue.schedules.run("tidy")
    message = take(queue)
    assert message.id == message_id
    message.ack()
    resumed = queue.schedules.resume("tidy")
    assert resumed.next_run is not None
    clock.advance(60)
    assert len(bodies(queue)) == 1
    assert queue.schedules.get("tidy").runs == 2

    queue.schedules.remove("tidy")
    for call in (queue.schedules.get, queue.schedules.remove, queue.schedules.run, queue.schedules.next_runs):
        with pytest.raises(ScheduleNotFound, match="'tidy' does not exist"):
            call("tidy")


def test_adding_the_same_schedule_again_keeps_its_next_run(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs")

    def add(body: str) -> ScheduleInfo:
        return queue.schedules.add("tidy", body, every=100, misfire="skip", jitter=0, ttl=30)

    first = add("x")
    clock.advance(50)
    assert add("x") == first
    assert add("y").next_run == first.next_run


def test_start_and_end_take_datetimes_texts_and_seconds(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs")
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    info = queue.schedules.add(
        "tidy",
        every=60,
        start=now + timedelta(seconds=10),
        end=(now + timedelta(seconds=100)).isoformat(),
    )
    assert info.start == now + timedelta(seconds=10) == info.next_run
    assert info.end == now + timedelta(seconds=100)
    clock.advance(1000)
    assert len(bodies(queue)) == 2
    assert queue.schedules.get("tidy").next_run is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either cron or every"),
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": 5}, "cron must be"),
        ({"every": -1}, "every must be"),
        ({"every": 60, "timezone": "Mars"}, "unknown time zone 'Mars'"),
        ({"every": 60, "misfire": "never"}, "misfire"),
        ({"every": 60, "priority": 500}, "priority"),
        ({"every": 60, "start": "soon"}, "start must look like"),
    ],
)
def test_wrong_arguments_are_refused(make: Make, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        make("jobs").schedules.add("tidy", **options)  # type: ignore[arg-type]


def test_a_closed_queue_has_no_schedules(make: Make) -> None:
    queue = make("jobs")
    queue.close()
    with pytest.raises(Closed):
        queue.schedules.list()


def test_a_schedule_outlives_the_process_that_added_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:
        queue.schedules.add("tidy", "x", every=3600, misfire="all")
    clock.advance(2 * 3600)
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:
        queue.broker.tick()
        assert bodies(queue) == ["x", "x"]


def test_schedules_run_on_the_clock_of_the_machine_too() -> None:
    with OpenQ("jobs") as queue:
        queue.schedules.add("tidy", "x", every=0.1)
        messages = [queue.receive(60), queue.receive(60)]
        assert all(messages)


def test_the_asyncio_twin_has_the_same_calls(tmp_path: Path) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with aio.OpenQ("jobs", path=tmp_path, clock=clock) as queue:
            info = await queue.schedules.add("tidy", "x", every=60)
            assert info.runs == 0
            clock.advance(60)
            message = await queue.receive(5)
            assert message is not None
            assert message.body == "x"
            assert [each.name for each in await queue.schedules.list()] == ["tidy"]
            assert len(await queue.schedules.next_runs("tidy", 2)) == 2
            assert (await queue.schedules.pause("tidy")).paused
            assert not (await queue.schedules.resume("tidy")).paused
            assert await queue.schedules.run("tidy")
            assert (await queue.schedules.get("tidy")).runs == 2
            await queue.schedules.remove("tidy")

    asyncio.run(main())
