"""The wall clock is set while the broker is down: nothing comes early, twice, or never."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq import clock
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings

DAY_S = 86_400
SECOND_NS = 1_000_000_000


class FakeTime:
    """Stands in for the module `time` in `openq.clock`; both clocks move only by hand."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.steady_ns = 5 * SECOND_NS

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.steady_ns

    def pass_s(self, seconds: float) -> None:
        self.wall_ns += round(seconds * SECOND_NS)
        self.steady_ns += round(seconds * SECOND_NS)

    def set_s(self, jump: float) -> None:
        """Somebody sets the wall clock."""
        self.wall_ns += round(jump * SECOND_NS)

    def reboot(self) -> None:
        self.steady_ns = SECOND_NS


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clock, "time", fake)
    return fake


def start(path: Path) -> LocalBroker:
    broker = LocalBroker(path)
    if "q" not in broker.queues():
        broker.declare("q", QueueSettings())
    return broker


def bodies(broker: LocalBroker) -> list[bytes | None]:
    broker.tick()
    deliveries = broker.receive("q", 10, 60_000)
    if deliveries:
        broker.load(deliveries)
    broker.sync()
    return [delivery.entry.body for delivery in deliveries]


@pytest.mark.parametrize("jump", [-DAY_S, -3600, -1, 0], ids=["a day", "an hour", "a second", "not"])
def test_a_clock_set_back_neither_hastens_nor_holds_up_anything(
    tmp_path: Path, fake_time: FakeTime, jump: int
) -> None:
    broker = start(tmp_path / "d")
    broker.publish("q", Draft(b"leased"))
    broker.publish("q", Draft(b"delayed", delay_ms=100_000))
    assert bodies(broker) == [b"leased"]
    broker.close()

    fake_time.set_s(jump)
    fake_time.reboot()
    broker = start(tmp_path / "d")

    fake_time.pass_s(59)
    assert bodies(broker) == []
    fake_time.pass_s(1)
    assert bodies(broker) == [b"leased"]
    fake_time.pass_s(40)
    assert bodies(broker) == [b"delayed"]
    broker.close()


@pytest.mark.parametrize("jump", [3600, DAY_S], ids=["an hour", "a day"])
def test_a_clock_set_forth_and_back_loses_nothing_and_holds_up_nothing(
    tmp_path: Path, fake_time: FakeTime, jump: int
) -> None:
    broker = start(tmp_path / "d")
    broker.publish("q", Draft(b"waiting"))
    broker.publish("q", Draft(b"delayed", delay_ms=10_000))
    broker.close()

    fake_time.set_s(jump)
    broker = start(tmp_path / "d")
    broker.publish("q", Draft(b"later", delay_ms=10_000))
    broker.close()
    fake_time.set_s(-jump)
    broker = start(tmp_path / "d")

    assert bodies(broker) == [b"waiting", b"delayed"]
    fake_time.pass_s(9)
    assert bodies(broker) == []
    fake_time.pass_s(1)
    assert bodies(broker) == [b"later"]
    broker.close()


def test_a_clock_that_is_set_under_a_running_broker_changes_nothing(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    broker = start(tmp_path / "d")
    broker.publish("q", Draft(b"delayed", delay_ms=10_000))

    for _ in range(9):
        fake_time.set_s(-DAY_S)
        fake_time.pass_s(1)
        assert bodies(broker) == []
    fake_time.set_s(20 * DAY_S)
    assert bodies(broker) == []
    fake_time.pass_s(1)
    assert bodies(broker) == [b"delayed"]
    broker.close()


def test_the_memory_of_duplicates_outlives_a_clock_set_back(tmp_path: Path, fake_time: FakeTime) -> None:
    broker = start(tmp_path / "d")
    first = broker.publish("q", Draft(b"once", dedup="d"))
    broker.close()

    fake_time.set_s(-DAY_S)
    broker = start(tmp_path / "d")
    fake_time.pass_s(299)

    assert broker.publish("q", Draft(b"once", dedup="d")) == first
    fake_time.pass_s(1)
    assert broker.publish("q", Draft(b"once", dedup="d")) != first
    broker.close()


def test_nothing_happens_when_32_bit_seconds_run_out(tmp_path: Path, fake_time: FakeTime) -> None:
    fake_time.wall_ns = (2**31 - 5) * SECOND_NS
    broker = start(tmp_path / "d")
    broker.publish("q", Draft(b"delayed", delay_ms=10_000))
    broker.close()

    fake_time.pass_s(9)
    broker = start(tmp_path / "d")
    assert bodies(broker) == []
    fake_time.pass_s(1)

    assert bodies(broker) == [b"delayed"]
    broker.close()
