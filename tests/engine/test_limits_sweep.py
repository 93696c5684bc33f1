"""The memory of limits: idle keys are forgotten, blocked ones are not."""

from __future__ import annotations

from openq.engine.limits import _MIN_SWEEP, QueueLimits
from openq.model import QueueSettings


def test_a_key_that_waits_for_its_unblocking_is_not_forgotten() -> None:
    limits = QueueLimits(QueueSettings(key_rate="1/s"))
    for number in range(_MIN_SWEEP):
        limits.start(f"k{number}", 0)
        limits.end(f"k{number}", 0)
    limits.start("new", 60_000)  # sweeps, before the tokens that came meanwhile are handed out
    assert len(limits.unblock_due(60_000)) == _MIN_SWEEP


def test_idle_keys_are_forgotten() -> None:
    limits = QueueLimits(QueueSettings(key_rate="1000/s"))
    for number in range(10 * _MIN_SWEEP):
        now_ms = 10 * number
        limits.start(f"k{number}", now_ms)
        limits.end(f"k{number}", now_ms)
    assert len(limits.keys) <= 2 * _MIN_SWEEP
