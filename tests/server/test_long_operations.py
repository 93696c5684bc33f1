"""Long operations that are paused: they wait, and do not hurry afterwards."""

from __future__ import annotations

import threading

import pytest

from openq.broker import bulk
from openq.server.tasks import LongOperation


def make_task() -> LongOperation:
    return LongOperation("1", "redrive", "", "orders", None, {}, lambda: 0)


def test_the_work_of_a_paused_task_waits_until_it_is_resumed() -> None:
    task, went_on = make_task(), threading.Event()
    assert task.pause()
    assert task.paused
    assert task.state == "running"

    def work() -> None:
        assert task.progress(1)
        went_on.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert not went_on.is_set()
    assert task.resume()
    assert went_on.wait(60)
    thread.join(60)


def test_a_cancelled_task_does_not_wait_and_is_not_paused_again() -> None:
    task = make_task()
    task.pause()
    task.cancel()
    assert not task.progress(1)
    assert not task.pause()
    assert not task.paused


def test_a_pause_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(bulk.time, "monotonic", lambda: now)

    def paused_for_a_minute(_done: int) -> bool:
        nonlocal now
        now += 60
        return True

    pace = bulk.Pace(10, paused_for_a_minute)
    assert pace.reports(0)
    now += 0.5
    assert pace.due() == pytest.approx(5)
