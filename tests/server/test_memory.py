"""What nobody needs any more goes back to the system."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from openq.server.memory import BUSY_S, FULL_S, SHARE, MemoryReclaimer


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.step = 0.0  # how long each look takes

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def _collects_by_itself_never() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def garbage() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


def test_after_a_burst_of_work_cycles_are_collected_and_memory_is_trimmed_once() -> None:
    counts = iter([1, 2, 2, 2, 2])
    trims: list[object] = []
    cleared: list[bool] = []
    reclaimer = MemoryReclaimer(
        lambda: next(counts), trims.append, Clock(), clear_caches=lambda: cleared.append(True)
    )
    kept = garbage()

    reclaimer.tick()
    reclaimer.tick()
    assert kept() is not None  # clients are at work
    assert cleared == []

    reclaimer.tick()
    assert kept() is None

    later = garbage()
    reclaimer.tick()
    reclaimer.tick()
    assert later() is not None  # nothing was done since
    assert cleared == [True]
    assert len(trims) <= 1  # 0 where there is no glibc


def test_a_server_that_is_never_quiet_collects_too() -> None:
    clock = Clock()
    work = iter(range(1000))
    reclaimer = MemoryReclaimer(lambda: next(work), lambda work: None, clock)
    kept = garbage()
    reclaimer.tick()
    assert kept() is not None

    clock.now += BUSY_S
    reclaimer.tick()
    assert kept() is None

    old = Cycle()
    gc.collect(1)
    gc.collect(1)  # into the oldest generation
    gone = weakref.ref(old)
    del old
    clock.now += BUSY_S
    reclaimer.tick()
    assert gone() is not None
    clock.now += FULL_S
    reclaimer.tick()
    assert gone() is None


def test_a_collection_that_takes_long_is_not_repeated_soon() -> None:
    clock = Clock()
    clock.step = 1.0
    counts = iter([1, 1, 2, 2, 2])
    reclaimer = MemoryReclaimer(lambda: next(counts), lambda work: None, clock)
    reclaimer.tick()
    reclaimer.tick()
    kept = garbage()

    reclaimer.tick()
    reclaimer.tick()
    assert kept() is not None

    clock.now += 3 * SHARE
    reclaimer.tick()
    assert kept() is None
