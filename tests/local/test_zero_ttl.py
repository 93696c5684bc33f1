"""A message with TTL 0 is offered only to consumers that wait when it arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.model import MAX_DEAD_LETTER_EVENTS, Draft, QueueSettings

from .test_waiters import Someone, stand

CLOSED = QueueSettings(dead_letter="dead", dead_letter_expired=True)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock) -> LocalBroker:
    broker = LocalBroker(clock=clock, seed=1)
    broker.declare("dead", QueueSettings())
    broker.declare("q", CLOSED)
    broker.declare("brief", CLOSED.with_(ttl_ms=0))
    return broker


def dead(broker: LocalBroker) -> list[bytes | None]:
    return [entry.body for entry in broker.inspect.peek("dead", 10)]


@pytest.mark.parametrize(("queue", "draft"), [("q", Draft(b"x", ttl_ms=0)), ("brief", Draft(b"x"))])
def test_who_waits_gets_it(broker: LocalBroker, queue: str, draft: Draft) -> None:
    someone = Someone()
    stand(broker, someone, queue=queue)

    broker.publish(queue, draft)

    assert someone.got == [b"x"]
    assert broker.stats(queue).in_flight == 1
    assert dead(broker) == []


@pytest.mark.parametrize(("queue", "draft"), [("q", Draft(b"x", ttl_ms=0)), ("brief", Draft(b"x"))])
def test_without_one_who_waits_it_is_over_at_once(broker: LocalBroker, queue: str, draft: Draft) -> None:
    broker.publish(queue, draft)

    assert broker.receive(queue) == []
    assert dead(broker) == [b"x"]


def test_more_than_those_who_wait_can_take_are_over(broker: LocalBroker) -> None:
    someone = Someone()
    stand(broker, someone, queue="brief")

    broker.publish_many("brief", [Draft(b"a"), Draft(b"b"), Draft(b"c")])

    assert someone.got == [b"a"]
    assert dead(broker) == [b"b", b"c"]


def test_a_paused_queue_gives_it_to_nobody(broker: LocalBroker) -> None:
    someone = Someone()
    broker.declare("brief", CLOSED.with_(ttl_ms=0, paused=True), change=True)
    stand(broker, someone, queue="brief")

    broker.publish("brief", Draft(b"x"))

    assert someone.got == []
    assert dead(broker) == [b"x"]


def test_given_back_it_is_over(broker: LocalBroker) -> None:
    someone, other = Someone(), Someone()
    stand(broker, someone, other, queue="brief")
    broker.publish("brief", Draft(b"x"))
    [delivery] = someone.deliveries

    assert broker.nack("brief", [(delivery.entry.seq, delivery.number)], 0) == ["dead-lettered"]

    assert other.got == []
    assert dead(broker) == [b"x"]


def test_it_may_reach_one_who_waits_at_the_end_of_a_chain(broker: LocalBroker) -> None:
    broker.declare("first", QueueSettings(ttl_ms=0, dead_letter="brief", dead_letter_expired=True))
    someone = Someone()
    stand(broker, someone, queue="brief")

    broker.publish("first", Draft(b"x"))

    assert someone.got == [b"x"]


@pytest.mark.parametrize("count", [1, 2, MAX_DEAD_LETTER_EVENTS, MAX_DEAD_LETTER_EVENTS + 3])
def test_a_circle_of_queues_ends_however_large_it_is(broker: LocalBroker, count: int) -> None:
    names = [f"q{number}" for number in range(count)]
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        broker.declare(name, QueueSettings(ttl_ms=0, dead_letter=following, dead_letter_expired=True))

    broker.publish("q0", Draft(b"x"))

    assert [broker.stats(name).ready for name in names] == [0] * count


def test_a_delayed_one_is_for_who_waits_when_it_is_due(broker: LocalBroker, clock: VirtualClock) -> None:
    someone = Someone()
    stand(broker, someone)
    broker.publish("q", Draft(b"x", delay_ms=5_000, ttl_ms=0))

    clock.advance(5)

    assert someone.got == [b"x"]


def test_the_moment_is_that_of_the_publish_however_long_serving_takes(tmp_path: Path) -> None:
    class Hasty(VirtualClock):
        """A millisecond later each time somebody looks."""

        def now_ms(self) -> int:
            self.looks = getattr(self, "looks", 0) + 1
            return super().now_ms() + self.looks

    with_journal = LocalBroker(tmp_path, clock=Hasty())
    with_journal.declare("brief", QueueSettings(ttl_ms=0))
    someone = Someone()
    stand(with_journal, someone, queue="brief")

    with_journal.publish("brief", Draft(b"x"))

    assert someone.got == [b"x"]
    with_journal.close()


def test_what_nobody_took_stays_gone_over_a_restart(tmp_path: Path, clock: VirtualClock) -> None:
    broker = LocalBroker(tmp_path, clock=clock)
    broker.declare("brief", QueueSettings(ttl_ms=0))
    someone = Someone(lease_ms=1_000)
    stand(broker, someone, queue="brief")
    broker.publish_many("brief", [Draft(b"taken"), Draft(b"late")])
    broker.close()

    again = LocalBroker(tmp_path, clock=clock)

    assert (again.stats("brief").ready, again.stats("brief").in_flight) == (0, 1)
    clock.advance(2)
    assert again.receive("brief") == []
    again.close()
