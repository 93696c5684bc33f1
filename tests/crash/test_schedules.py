"""Killed at any moment, a process that runs schedules neither misses nor repeats a due time."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

from openq.broker.schedules import Schedule
from openq.clock import VirtualClock
from openq.errors import DiskFull
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.crash.schedules import ScheduleLoop
from tests.crash.seeds import chosen_seed, repeat_with
from tests.journal.fake_disk import FakeDisk


def test_each_due_time_is_published_once_however_often_the_process_is_killed(tmp_path: Path) -> None:
    seed = chosen_seed()
    loop = ScheduleLoop(tmp_path / "d", seed)

    complaint = loop.run(lives=6)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.runs > 20


def test_a_power_cut_leaves_both_the_message_and_the_next_due_time_or_neither(tmp_path: Path) -> None:
    seed = chosen_seed()
    rng = random.Random(seed)
    disk = FakeDisk(tmp_path / "disk")
    clock = VirtualClock()
    broker = LocalBroker(
        clock=clock, journal=Journal(tmp_path / "disk" / "d", segment_bytes=1 << 16, io=disk)
    )
    broker.declare("q", QueueSettings(retention_ms=10**10))
    broker.schedules.put(Schedule("beat", "q", b"x" * 700, every_ms=1_000))
    broker.sync()
    for cut in range(60):
        clock.advance(rng.random() * 5)
        if cut % 3 == 0:
            broker.sync()
        place = tmp_path / f"cut{cut}"
        disk.cut(place, rng)
        survivor = LocalBroker(place / "d", clock=VirtualClock(clock.now_ms()), runs_schedules=False)
        [schedule] = survivor.schedules.list()
        assert schedule.runs == survivor.stats("q").ready, repeat_with(seed)
        assert schedule.next_ms == schedule.created_ms + (schedule.runs + 1) * 1_000
        survivor.close()
    broker.close()


def test_a_run_waits_for_room_on_a_full_disk(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path / "disk", capacity=1 << 20)
    clock = VirtualClock()
    broker = LocalBroker(
        clock=clock, journal=Journal(tmp_path / "disk" / "d", segment_bytes=1 << 16, io=disk)
    )
    broker.declare("q", QueueSettings())
    broker.schedules.put(Schedule("hourly", "q", b"x", every_ms=3_600_000))
    filled = 0
    with suppress(DiskFull):
        while True:
            broker.publish("q", Draft(b"x" * 2_000))
            broker.sync()
            filled += 1
    clock.advance(3_600 + 5)
    [waiting] = broker.schedules.list()
    assert (waiting.runs, waiting.missed) == (0, 0)
    assert "room" in str(waiting.error)

    disk.capacity = None
    deadline = time.monotonic() + 60
    while not broker.schedules.get("hourly").runs:
        assert time.monotonic() < deadline, "publishing does not resume"
        clock.advance(5)
    assert broker.stats("q").ready == filled + 1
    assert broker.schedules.get("hourly").error is None
    broker.close()
