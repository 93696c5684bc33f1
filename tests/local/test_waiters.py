"""Waiters are served: n waiters and n messages make n deliveries, and nothing is lost on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.errors import Closed, QueueNotFound
from openq.local.broker import LocalBroker
from openq.model import Delivery, Draft, MessageFilter, QueueSettings

_TIMEOUT_S = 60.0  # how long a broken wake-up takes to be called one


class Someone:
    """A waiter that keeps what it is given."""

    def __init__(self, limit: int = 1, types: list[str] | None = None, lease_ms: int | None = None) -> None:
        self.got: list[bytes | None] = []
        self.deliveries: list[Delivery] = []
        self.served = threading.Event()
        wanted = None if types is None else MessageFilter(frozenset(types))
        self.waiter = Waiter(limit, lease_ms, None, wanted, self._deliver)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.deliveries += deliveries
        self.got += [delivery.entry.body for delivery in deliveries]
        self.served.set()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock) -> LocalBroker:
    broker = LocalBroker(clock=clock, seed=1)
    broker.declare("q", QueueSettings(visibility_ms=10_000))
    return broker


def stand(broker: LocalBroker, *people: Someone, queue: str = "q") -> None:
    for person in people:
        assert broker.add_waiter(queue, person.waiter) is None


def test_a_message_that_is_there_is_had_at_once(broker: LocalBroker) -> None:
    broker.publish("q", Draft(b"a"))

    deliveries = broker.add_waiter("q", Someone().waiter)

    assert deliveries is not None
    assert [delivery.entry.body for delivery in deliveries] == [b"a"]
    assert broker.stats("q").waiters == 0


def test_those_who_wait_are_served_in_the_order_they_came(broker: LocalBroker) -> None:
    first, second, third = Someone(), Someone(limit=2), Someone()
    stand(broker, first, second, third)

    broker.publish_bodies("q", [b"a", b"b", b"c"], 0)

    assert (first.got, second.got, third.got) == ([b"a"], [b"b", b"c"], [])
    assert broker.stats("q").waiters == 1
    broker.publish_body("q", b"d", 0)
    assert third.got == [b"d"]


@pytest.mark.parametrize("way", ["delay", "lease", "nack", "resume", "release", "move", "route"])
def test_whatever_makes_a_message_available_wakes_who_waits(
    way: str, broker: LocalBroker, clock: VirtualClock
) -> None:
    broker.declare("other", QueueSettings())
    person = Someone()
    if way == "delay":
        broker.publish("q", Draft(b"a", delay_ms=5_000))
    elif way == "move":
        message_id = broker.publish("other", Draft(b"a"))
    elif way == "resume":
        broker.declare("q", QueueSettings(paused=True), change=True)
        broker.publish("q", Draft(b"a"))
    elif way != "route":
        broker.publish("q", Draft(b"a"))
        [delivery] = broker.receive("q")
        receipt = (delivery.entry.seq, delivery.number)
    stand(broker, person)
    assert person.got == []

    if way in ("delay", "lease"):
        clock.advance(10)
    elif way == "nack":
        broker.nack("q", [receipt], 0)
    elif way == "release":
        broker.release("q", [receipt])
    elif way == "resume":
        broker.declare("q", QueueSettings(), change=True)
    elif way == "move":
        broker.admin.move("other", [message_id], "q")
    else:
        broker.exchanges.route("", "q", Draft(b"a"))

    assert person.got == [b"a"]


def test_the_next_of_a_fifo_group_goes_to_who_waits_when_the_one_before_is_acked(broker: LocalBroker) -> None:
    broker.declare("steps", QueueSettings(fifo=True))
    broker.publish_many("steps", [Draft(b"one", group="g"), Draft(b"two", group="g")])
    [delivery] = broker.receive("steps")
    person = Someone()
    stand(broker, person, queue="steps")

    broker.ack_one("steps", delivery.entry.seq, delivery.number)

    assert person.got == [b"two"]


def test_a_waiter_for_another_type_is_skipped_and_keeps_its_place(broker: LocalBroker) -> None:
    picky, anyone, other = Someone(types=["t"]), Someone(), Someone(types=["u", "t"])
    stand(broker, picky, anyone, other)

    broker.publish("q", Draft(b"plain"))
    assert (picky.got, anyone.got, other.got) == ([], [b"plain"], [])
    broker.publish("q", Draft(b"t", type="t"))
    broker.publish("q", Draft(b"u", type="u"))

    assert (picky.got, other.got) == ([b"t"], [b"u"])


def test_who_left_is_not_served_and_who_was_served_cannot_leave(broker: LocalBroker) -> None:
    gone, stays = Someone(), Someone()
    stand(broker, gone, stays)
    assert broker.remove_waiter("q", gone.waiter)

    broker.publish_body("q", b"a", 0)

    assert (gone.got, stays.got) == ([], [b"a"])
    assert not broker.remove_waiter("q", stays.waiter)
    assert not broker.remove_waiter("q", gone.waiter)
    broker.publish_body("q", b"b", 0)
    assert [delivery.entry.body for delivery in broker.receive("q")] == [b"b"]


def test_a_deleted_queue_ends_all_waits_and_its_successor_serves_its_own(broker: LocalBroker) -> None:
    before, after = Someone(), Someone()
    stand(broker, before)

    broker.delete("q")
    assert before.served.is_set()
    with pytest.raises(QueueNotFound):
        broker.add_waiter("q", after.waiter)
    broker.declare("q", QueueSettings())
    stand(broker, after)
    broker.publish_body("q", b"a", 0)

    assert (before.got, after.got) == ([], [b"a"])


def test_closing_sends_everybody_home(broker: LocalBroker) -> None:
    person = Someone()
    stand(broker, person)

    broker.close()

    assert person.served.is_set()
    assert person.got == []
    with pytest.raises(Closed):
        broker.add_waiter("q", Someone().waiter)


@pytest.mark.parametrize("durable", [False, True])
def test_as_many_deliveries_as_messages_with_waiters_and_publishers_at_once(
    durable: bool, tmp_path: Path
) -> None:
    broker = LocalBroker(tmp_path / "data" if durable else None)
    broker.declare("q", QueueSettings())
    workers, each = 6, 40
    got: list[int] = []
    lock = threading.Lock()

    def consume() -> None:
        for _ in range(each):
            person = Someone()
            deliveries = broker.add_waiter("q", person.waiter)
            if deliveries is None:
                assert person.served.wait(_TIMEOUT_S), "a wake-up was lost"
                deliveries = person.deliveries
            broker.load(deliveries)
            with lock:
                got.extend(delivery.entry.seq for delivery in deliveries)
            broker.ack("q", [(delivery.entry.seq, delivery.number) for delivery in deliveries])

    def produce() -> None:
        for _ in range(each):
            broker.publish_body("q", b"x", 0)

    threads = [threading.Thread(target=work) for work in (consume, produce) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_S)

    assert sorted(got) == list(range(1, workers * each + 1))
    assert broker.stats("q").counters["acked"] == workers * each
    broker.close()


def test_who_leaves_at_the_moment_it_is_served_loses_nothing() -> None:
    """Either it left and somebody else gets the message, or it has it and can give it back."""
    broker = LocalBroker()
    broker.declare("q", QueueSettings())
    rounds = 300
    start = threading.Barrier(2)

    def produce() -> None:
        for _ in range(rounds):
            start.wait(_TIMEOUT_S)
            broker.publish_body("q", b"x", 0)
            start.wait(_TIMEOUT_S)

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(rounds):
        person = Someone()
        early = broker.add_waiter("q", person.waiter)
        assert early is None
        start.wait(_TIMEOUT_S)
        left = broker.remove_waiter("q", person.waiter)
        start.wait(_TIMEOUT_S)
        deliveries = broker.receive("q") if left else person.deliveries
        assert len(deliveries) == 1
        assert left != bool(person.deliveries)
        broker.ack("q", [(delivery.entry.seq, delivery.number) for delivery in deliveries])
    thread.join(_TIMEOUT_S)

    assert broker.stats("q").ready == 0
    broker.close()


def test_a_waiter_with_an_impossible_lease_is_refused_and_takes_nothing(broker: LocalBroker) -> None:
    person = Someone(lease_ms=-7)

    with pytest.raises(ValueError, match="lease"):
        broker.add_waiter("q", person.waiter)
    assert broker.stats("q").waiters == 0
