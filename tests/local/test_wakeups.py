"""A waiter is served as soon as a message is available for it, whatever made it available."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.engine.records import DELIVER, Record
from openq.engine.routing import Binding, Exchange
from openq.errors import DiskFull, InvalidSetting
from openq.local.broker import LocalBroker
from openq.model import Delivery, Draft, QueueSettings


def waiting(broker: LocalBroker, queue: str) -> list[Delivery]:
    """What a waiter in this queue's line gets, as it gets it."""
    got: list[Delivery] = []
    assert broker.add_waiter(queue, Waiter(10, None, None, None, got.extend)) is None
    return got


Freeing = Callable[[LocalBroker, str], object]


@pytest.mark.parametrize(
    "free",
    [
        lambda broker, blocker: broker.admin.cancel("f", blocker),
        lambda broker, blocker: broker.admin.move("f", [blocker], "other"),
    ],
)
def test_a_group_goes_on_when_the_message_that_held_it_up_is_gone(free: Freeing) -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("f", QueueSettings(fifo=True))
    broker.declare("other", QueueSettings())
    blocker = broker.publish("f", Draft(b"blocks", group="g", delay_ms=60_000))
    broker.publish("f", Draft(b"free", group="g"))
    got = waiting(broker, "f")

    free(broker, blocker)

    assert [delivery.entry.body for delivery in got] == [b"free"]


def test_the_first_publish_schedules_the_end_of_retention() -> None:
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(retention_ms=500, dead_letter="dead", dead_letter_expired=True))
    got = waiting(broker, "dead")
    broker.publish_body("q", b"old", 0)

    clock.advance(1)

    assert [delivery.entry.body for delivery in got] == [b"old"]


def test_a_waiter_whose_delivery_was_refused_once_is_tried_again() -> None:
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    broker.declare("q", QueueSettings())
    got = waiting(broker, "q")
    log = broker.engine.log

    def refuse_loans(record: Record) -> int | None:
        if record[0] == DELIVER:
            raise DiskFull("test")
        return log(record) if log is not None else None

    broker.engine.log = refuse_loans
    broker.publish_body("q", b"body", 0)
    assert got == []
    broker.engine.log = log

    clock.advance(1)

    assert [delivery.entry.body for delivery in got] == [b"body"]


def test_an_exchange_that_is_refused_leaves_no_trace() -> None:
    records: list[Record] = []
    broker = LocalBroker(clock=VirtualClock())
    broker.engine.log = records.append

    with pytest.raises(InvalidSetting):
        broker.exchanges.declare_exchange(Exchange("amq.mine", "direct"))

    assert records == []


def test_a_refused_binding_leaves_an_auto_delete_exchange_where_it_was() -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("q", QueueSettings())
    broker.exchanges.declare_exchange(Exchange("x", "fanout", auto_delete=True))

    def refuse(record: Record) -> int:
        raise DiskFull("test")

    broker.engine.log = refuse
    with pytest.raises(DiskFull):
        broker.exchanges.bind(Binding("x", "q"))

    assert "x" in broker.engine.router
    assert broker.engine.router.bindings("x") == []


def test_a_large_backlog_expires_page_by_page() -> None:
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    broker.declare("q", QueueSettings(ttl_ms=1_000))
    for number in range(5_000):
        broker.publish("q", Draft(b"%d" % number))

    clock.advance(2)

    assert broker.stats("q").ready == 0
    assert broker.stats("q").counters["expired"] == 5_000


def test_a_deleted_queue_lets_go_of_what_it_held() -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("q", QueueSettings())
    broker.publish("q", Draft(b"body", dedup="once"))
    queue = broker.engine.queue("q")

    assert broker.delete("q") == 1
    assert (queue.count, queue.dedup) == (0, {})
