"""When an event loop may commit by itself: after short commits, and rarely on a disk with slow ones."""

from __future__ import annotations

import random

from openq.journal.pace import REST_FACTOR, SHORT_IN_A_ROW, SHORT_S, SyncPace

SHORT = SHORT_S / 10


def after(*seconds: float) -> tuple[SyncPace, float]:
    """A pace after these commits, one right after the other, and the time at their end."""
    pace, now_s = SyncPace(), 100.0
    for each in seconds:
        pace.add(now_s, now_s + each)
        now_s += each
    return pace, now_s


def test_commits_must_have_been_short_several_times_in_a_row() -> None:
    pace, now_s = after(*[SHORT] * (SHORT_IN_A_ROW - 1))
    assert not pace.is_short(now_s)
    pace.add(now_s, now_s + SHORT)
    assert pace.is_short(now_s)


def test_after_a_slow_commit_a_loop_rests_in_proportion() -> None:
    slow_s = 0.3
    pace, ended_s = after(*[SHORT] * 100, slow_s)
    for _ in range(SHORT_IN_A_ROW):
        pace.add(ended_s, ended_s + SHORT)

    assert not pace.is_short(ended_s + slow_s * REST_FACTOR * 0.99)
    assert pace.is_short(ended_s + slow_s * REST_FACTOR * 1.01)


def test_a_small_delay_does_not_shorten_the_rest_after_a_long_one() -> None:
    pace, now_s = after(2.0, SHORT_S, *[SHORT] * SHORT_IN_A_ROW)
    assert not pace.is_short(now_s + 1.9 * REST_FACTOR)


def test_a_loop_spends_little_time_in_slow_commits_however_the_disk_behaves() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        share, slow_s = chance.choice((0.001, 0.01, 0.1, 0.5, 1.0)), chance.choice((0.002, 0.03, 1.0))
        pace, now_s, lost_s = SyncPace(), 0.0, 0.0
        for _ in range(20_000):
            seconds = slow_s if chance.random() < share else SHORT
            if pace.is_short(now_s) and seconds >= SHORT_S:
                lost_s += seconds
            pace.add(now_s, now_s + seconds)
            now_s += seconds
        # The last rest may lie beyond the end.
        assert lost_s * REST_FACTOR <= now_s + slow_s * REST_FACTOR
        assert share < 1 or lost_s == 0
