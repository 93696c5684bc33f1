"""Ctrl-C strikes between any two lines of a verb. The queue must go on, or say that it must be reopened."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from openq.clock import VirtualClock
from openq.errors import JournalFailed, OpenQError
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.tracing import traced

INSIDE = ("/engine/", "/local/broker.py", "/local/core.py")


class Strike:
    """Raises KeyboardInterrupt at the n-th line executed inside the broker and engine."""

    def __init__(self, n: int) -> None:
        self._left = n
        self.struck = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not any(part in frame.f_code.co_filename for part in INSIDE):
            return None
        if frame.f_code.co_name in ("on_interrupt", "rebuild", "_rebuild_queue", "close"):
            return None
        if event == "line" and not self.struck:
            self._left -= 1
            if self._left <= 0 and not _is_leaving(frame):
                self.struck = True
                raise KeyboardInterrupt
        return self


def _is_leaving(frame: FrameType) -> bool:
    """The line of a `with` is traced once more when its block ends. No signal is looked for there, between
    the last call of the block and its exit, so none can strike."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
    return line.startswith("with self._lock") and frame.f_locals["self"]._lock.locked()


def struck(n: int, verb: Callable[[], object]) -> bool:
    strike = Strike(n)
    with suppress(KeyboardInterrupt, OpenQError), traced(strike):
        verb()
    return strike.struck


def work(broker: LocalBroker) -> None:
    """A bit of everything that changes structures."""
    broker.publish_body("q", b"plain", 0)
    broker.publish("q", Draft(b"first", priority=3, group="g"))
    broker.publish("f", Draft(b"one", group="a"))
    [delivery] = broker.receive("q")
    broker.nack("q", [(delivery.entry.seq, delivery.number)], delay_ms=5)
    for name in ("q", "f"):
        for each in broker.receive(name, 2):
            broker.ack_one(name, each.entry.seq, each.number)


def declare(broker: LocalBroker) -> None:
    broker.declare("q", QueueSettings())
    broker.declare("f", QueueSettings(fifo=True))


def moments() -> Iterator[int]:
    yield from range(1, 400, 3)


def test_a_queue_in_memory_goes_on_after_an_interrupt_at_any_line() -> None:
    for n in moments():
        clock = VirtualClock()
        broker = LocalBroker(clock=clock)
        declare(broker)
        struck(n, lambda broker=broker: work(broker))  # type: ignore[misc]

        broker.publish_body("q", b"after", 0)
        broker.publish("f", Draft(b"after", group="z"))
        clock.advance(60)  # leases of before are over
        for name in ("q", "f"):
            bodies = [d.entry.body for d in broker.receive(name, 100)]
            assert b"after" in bodies, f"struck at line {n}"
            stats = broker.stats(name)
            assert (stats.ready, stats.in_flight) == (0, len(bodies)), f"struck at line {n}"
            assert stats.waiting_bytes == 0, f"struck at line {n}"


@pytest.mark.parametrize("n", range(5, 400, 23))
def test_on_disk_an_interrupted_broker_refuses_and_a_restart_has_all_that_was_safe(
    n: int, tmp_path: Path
) -> None:
    clock = VirtualClock()
    broker = LocalBroker(tmp_path, clock=clock)
    declare(broker)
    broker.publish("q", Draft(b"safe"))
    broker.sync()
    was_struck = struck(n, lambda: work(broker))
    if was_struck and broker._core.halted is not None:
        with pytest.raises(JournalFailed, match="interrupted"):
            broker.publish_body("q", b"refused", 0)
    broker.close()

    again = LocalBroker(tmp_path, clock=clock)
    clock.advance(60)
    deliveries = again.receive("q", 100)
    again.load(deliveries)

    published = again.stats("q").counters["published"]
    acked = again.stats("q").counters["acked"]
    assert len(deliveries) == published - acked
    again.close()
