"""Slow redrives and replays: they end when they are cancelled, not when their next message is due."""

import math
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from openq.broker.bulk import MIN_RATE
from openq.errors import InvalidSetting
from openq.local.broker import LocalBroker
from openq.model import DeadLetterEvent, DeliveryOptions, Draft, QueueSettings


def stopped_after_the_first(work: Callable[[Callable[[int], bool]], int]) -> int:
    stop = threading.Event()
    first = threading.Event()
    counts: list[int] = []

    def progress(done: int) -> bool:
        if done:
            first.set()
        return not stop.is_set()

    thread = threading.Thread(target=lambda: counts.append(work(progress)), daemon=True)
    thread.start()
    assert first.wait(30)
    stop.set()
    thread.join(30)  # the next message is due in 100 seconds
    assert not thread.is_alive()
    return counts[0]


def test_a_slow_redrive_is_stopped_between_two_messages() -> None:
    with closing(LocalBroker(None)) as broker:
        broker.declare("q", QueueSettings())
        broker.declare("dead", QueueSettings())
        for _ in range(3):
            broker.publish(
                "dead", Draft(b"x", past=DeliveryOptions(deaths=(DeadLetterEvent("q", "rejected", 1, 1),)))
            )

        assert stopped_after_the_first(lambda p: broker.admin.redrive("dead", rate=MIN_RATE, progress=p)) == 1
        assert len(broker.inspect.entries("dead")) == 2


def test_a_slow_replay_is_stopped_between_two_messages(tmp_path: Path) -> None:
    with closing(LocalBroker(tmp_path)) as broker:
        broker.declare("q", QueueSettings(history_ms=3_600_000))
        broker.declare("copy", QueueSettings())
        for _ in range(3):
            broker.publish("q", Draft(b"x"))

        def work(progress: Callable[[int], bool]) -> int:
            return broker.admin.replay("q", 0, None, "copy", rate=MIN_RATE, progress=progress)

        assert stopped_after_the_first(work) == 1
        assert len(broker.inspect.entries("copy")) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, MIN_RATE / 2, math.inf, math.nan])
def test_a_rate_is_a_number_that_comes_to_an_end(rate: float) -> None:
    with closing(LocalBroker(None)) as broker:
        broker.declare("q", QueueSettings())
        with pytest.raises(InvalidSetting, match="rate"):
            broker.admin.redrive("q", rate=rate)
        with pytest.raises(InvalidSetting, match="rate"):
            broker.admin.replay("q", 0, None, rate=rate)
