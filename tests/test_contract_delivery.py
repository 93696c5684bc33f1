"""The founding contract's rows about delivery, concurrency and resolved conflicts; see test_contract.py."""

import subprocess
import sys
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import OpenQ as founding_module
from openq import (
    Consumer,
    InvalidSetting,
    MessageNotFoundError,
    OpenQ,
    VirtualClock,
    VisibilityTimeoutExpired,
)
from openq.client.message import ReceivedMessage
from tests.client.helpers import (
    Make,
    bodies,
    ended,
    in_process,
    in_thread,
    take,
    until_waiting,
)
from tests.waiting import until

ROOT = Path(__file__).parent.parent
pytest_plugins = "tests.client.fixtures"


# -- 3. delivery ------------------------------------------------------------------------------


def test_D1_messages_stay_until_they_are_consumed(make: Make, clock: VirtualClock) -> None:
    queue = make()
    queue.publish("x")
    clock.advance(3 * 86400)

    assert take(queue).body == "x"


def test_D2_a_message_is_with_one_consumer_at_a_time(make: Make) -> None:
    queue = make()
    queue.publish("x")
    take(queue)

    assert queue.receive(timeout=0) is None


def test_D3_messages_come_in_the_order_they_were_published(make: Make) -> None:
    queue = make()
    sent = [f"m{i}" for i in range(50)]
    for body in sent[:25]:
        queue.publish(body)
    queue.publish_many(sent[25:])

    assert [take(queue).body for _ in sent] == sent


def test_D3_a_fifo_group_is_processed_one_after_the_other(make: Make) -> None:
    queue = make("orders.fifo", fifo=True)
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        queue.publish(body, group=group)

    first, other = take(queue), take(queue)
    assert [first.body, other.body] == ["a1", "b1"]
    assert queue.receive(timeout=0) is None
    first.ack()

    assert take(queue).body == "a2"


def test_D4_a_lease_may_be_chosen_per_receive_and_extended(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    message = take(queue, visibility_timeout=60)
    clock.advance(59)
    until = message.extend(30)
    assert until == message.deadline
    clock.advance(29)
    assert queue.receive(timeout=0) is None
    clock.advance(1)

    assert take(queue).receive_count == 2


def test_D5_an_acked_message_never_comes_back(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    take(queue).ack()
    clock.advance(1000)

    assert queue.receive(timeout=0) is None


def test_D6_an_unacked_message_is_redelivered_to_a_waiting_consumer(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    take(queue)
    received: list[Any] = []
    waiting = in_thread(lambda: received.append(queue.receive(timeout=30)))
    until_waiting(queue, 1)

    clock.advance(5)

    assert ended(waiting)
    assert received[0].receive_count == 2


def test_D7_retries_are_counted_delayed_and_survive_a_restart(tmp_path: Path, clock: VirtualClock) -> None:
    retry = {"kind": "exponential", "base": 10, "factor": 2}
    with OpenQ("jobs", path=tmp_path, clock=clock, retry=retry) as queue:
        queue.publish("x")
        take(queue).nack(reason="once")
        assert queue.receive(timeout=0) is None
        clock.advance(10)
        take(queue).nack(reason="twice")
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:
        clock.advance(19)
        assert queue.receive(timeout=0) is None
        clock.advance(1)
        message = take(queue)

        assert (message.receive_count, message.reason) == (3, "twice")


def test_D8_K5_expired_messages_return_to_their_positions(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    for body in "abcd":
        queue.publish(body)
    for _ in range(3):
        take(queue)
    clock.advance(5)

    assert bodies(queue) == ["a", "b", "c", "d"]


def test_D9_K3_the_receive_limit_leads_to_the_dlq(make: Make, clock: VirtualClock) -> None:
    dlq = make("dead")
    queue = make("jobs", 5, dlq)
    queue.publish("x")
    for count in (1, 2, 3):
        assert take(queue).receive_count == count
        clock.advance(5)

    assert queue.receive(timeout=0) is None
    assert bodies(dlq) == ["x"]


def test_D9_K3_a_limit_of_one_moves_on_the_first_expiry(make: Make, clock: VirtualClock) -> None:
    dlq = make("dead")
    queue = make("jobs", 5, dlq, max_receives=1)
    queue.publish("x")
    take(queue)
    clock.advance(5)

    assert bodies(dlq) == ["x"]


def test_D10_the_dlq_is_a_full_queue(make: Make) -> None:
    dlq = make("dead", 7)
    queue = make("jobs", 5, dlq, max_receives=1)
    sent = [queue.publish(f"order {i}", attributes={"n": i}) for i in range(3)]
    for _ in sent:
        take(queue).nack(reason="bad address")

    assert dlq.peek() is not None
    assert [message.id for message in dlq.search("order 1")] == [sent[1]]
    assert [message.id for message in dlq.search(attributes={"n": 2})] == [sent[2]]
    assert len(dlq.search(reason="address")) == 3
    dlq.edit(sent[0], "order 0, mended")
    assert dlq.redrive(ids=sent[:1]) == 1
    assert dlq.redrive() == 2
    assert bodies(queue) == ["order 0, mended", "order 1", "order 2"]
    assert [message.id for message in queue.queue] == sent


def test_D11_without_a_dlq_messages_are_requeued_for_ever(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    for count in range(1, 20):
        assert take(queue).receive_count == count
        clock.advance(5)
    with pytest.raises(InvalidSetting, match="dlq"):
        make("other", max_receives=3)


def test_D12_D13_n_waiters_and_n_messages_make_n_deliveries(make: Make) -> None:
    queue = make()
    received: list[Any] = []
    waiting = [in_thread(lambda: received.append(queue.receive(timeout=30))) for _ in range(5)]
    until_waiting(queue, 5)

    queue.publish_many([f"m{i}" for i in range(5)])

    assert ended(*waiting)
    assert sorted(message.body for message in received) == [f"m{i}" for i in range(5)]


def test_D13_K8_a_returned_message_wakes_every_waiter_it_can_serve(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish_many(["a", "b", "c"])
    queue.receive_many(3, timeout=0)
    received: list[Any] = []
    waiting = [in_thread(lambda: received.append(queue.receive(timeout=30))) for _ in range(3)]
    until_waiting(queue, 3)

    clock.advance(5)

    assert ended(*waiting)
    assert sorted(message.body for message in received) == ["a", "b", "c"]


def test_D15_messages_of_a_dead_consumer_are_there_for_the_next_process(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', 1, path=sys.argv[1])\n"
        "queue.publish('x')\n"
        "queue.receive()\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)

    with OpenQ("jobs", path=tmp_path) as queue:
        message = queue.receive(timeout=30)

    # Whether its first delivery is counted depends on when the process died: loans are not waited for.
    assert message is not None
    assert message.body == "x"


def test_D16_K10_higher_priorities_come_first_and_order_holds_inside_one(make: Make) -> None:
    queue = make()
    for body, priority in (("a", 0), ("b", 1), ("c", 255), ("d", 1), ("e", 0)):
        queue.publish(body, priority=priority)

    assert [take(queue).body for _ in range(5)] == ["c", "b", "d", "a", "e"]
    for wrong in (-1, 256, 1.5, "1"):
        with pytest.raises(InvalidSetting, match="priority"):
            queue.publish("x", priority=wrong)  # type: ignore[arg-type]


def test_D17_consumers_may_choose_by_type(make: Make) -> None:
    queue = make()
    queue.publish("a", message_type="mail")
    queue.publish("b", message_type="bill")

    chosen = take(queue, types=["bill"])

    assert (chosen.body, chosen.message_type) == ("b", "bill")
    assert queue.receive(timeout=0, types=["bill"]) is None


@in_process
def test_D19_subscribers_hear_of_every_change(make: Make, clock: VirtualClock) -> None:
    dlq = make("dead")
    queue = make("jobs", 5, dlq, max_receives=2)
    heard: list[tuple[str, str | None]] = []
    stop = queue.subscribe(lambda event: heard.append((event["event"], event["id"])))
    first = queue.publish("a")
    take(queue)
    clock.advance(5)
    take(queue).nack()
    clock.advance(0.001)  # on Redis, publishes of one millisecond come before its other events
    second = queue.publish("b")
    take(queue).nack(0)
    take(queue).ack()
    clock.advance(0.001)
    queue.publish("c")
    queue.purge()
    clock.advance(0.001)  # there a thread reads events, once their millisecond has passed
    until(lambda: len(heard) >= 12)
    stop()
    queue.publish("unheard")

    names = [name for name, _ in heard]
    assert names == [
        *("published", "received", "expired", "received", "dead-lettered"),
        *("published", "received", "requeued", "received", "acked", "published", "purged"),
    ]
    assert [message_id for _, message_id in heard[:5]] == [first] * 5
    assert [message_id for _, message_id in heard[5:10]] == [second] * 5


def test_D20_K17_purge_takes_everything_and_old_receipts_are_unknown(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("waiting")
    queue.publish("delayed", delay=60)
    held = take(queue)

    assert queue.purge() == 2
    clock.advance(3600)

    assert queue.messages == []
    assert queue.receive(timeout=0) is None
    with pytest.raises(MessageNotFoundError):
        held.ack()


def test_D22_peek_changes_nothing(make: Make) -> None:
    queue = make()
    assert queue.peek() is None
    for body in "abc":
        queue.publish(body)

    for _ in range(2):
        front, rear = queue.peek(), queue.peek(rear=True)
        assert front is not None
        assert rear is not None
        assert (front.body, rear.body, front.receive_count) == ("a", "c", 0)
    assert [message.body for message in queue.peek_many(2)] == ["a", "b"]
    assert take(queue).receive_count == 1


def test_D23_K18_a_dedup_id_makes_a_second_publish_the_first(make: Make, clock: VirtualClock) -> None:
    queue = make(dedup_window=60)
    first = queue.publish("x", dedup_id="order-1")

    assert queue.publish("x", dedup_id="order-1") == first
    take(queue).ack()
    assert queue.publish("x", dedup_id="order-1") == first
    assert queue.messages == []
    clock.advance(60)
    assert queue.publish("x", dedup_id="order-1") != first


def test_D24_the_status_of_every_message_can_be_asked_for(make: Make) -> None:
    dlq = make("dead")
    queue = make("jobs", 5, dlq, max_receives=1)
    ids = {name: queue.publish(name) for name in ("processed", "dead", "processing", "unprocessed")}
    delayed = queue.publish("later", delay=60)
    take(queue).ack()
    take(queue).nack()
    take(queue, consumer="worker-7")

    for name, message_id in ids.items():
        assert queue.status(message_id) == name
    assert queue.status(delayed) == "unprocessed"
    assert dlq.status(ids["dead"]) == "dead"
    assert queue.status(str(uuid.uuid4())) == "unknown"
    [(held, _)] = queue.in_flight.values()
    assert isinstance(held, ReceivedMessage)
    assert held.consumer == "worker-7"
    assert held.deadline is not None
    assert held.deadline - held.received_at == timedelta(seconds=5)


# -- 6. concurrency and cost ------------------------------------------------------------------


def test_X1_waiting_and_consumed_messages_are_two_visible_structures(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "b", "c"])
    queue.publish("later", delay=60)
    take(queue)

    stats = queue.stats()

    assert (stats.ready, stats.in_flight, stats.delayed) == (2, 1, 1)
    assert (len(queue.queue), len(queue.in_flight), len(queue)) == (2, 1, 3)


def test_X6_K4_many_leases_need_no_thread_each(make: Make) -> None:
    queue = make()
    queue.publish_many(["x"] * 500)
    before = set(threading.enumerate())

    queue.receive_many(500, timeout=0)

    assert set(threading.enumerate()) <= before


# -- 9. the resolved conflicts that no row above shows ----------------------------------------


def test_K2_a_late_consumer_cannot_ack_the_next_one_s_delivery(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    late = take(queue)
    clock.advance(5)
    current = take(queue)

    for stale in (late, late.receipt_id):
        with pytest.raises(VisibilityTimeoutExpired):
            queue.ack(stale)
    assert late.receipt_id != current.receipt_id
    current.ack()


def test_K2_a_bare_id_acts_on_the_lease_of_its_own_queue_object(tmp_path: Path, clock: VirtualClock) -> None:
    first = OpenQ("jobs", 5, path=tmp_path, clock=clock)
    second = OpenQ("jobs", path=tmp_path, clock=clock)
    with first, second:
        message_id = first.publish("x")
        take(first)
        clock.advance(5)
        take(second)

        with pytest.raises(VisibilityTimeoutExpired):
            first.ack(message_id)
        second.ack(message_id)


def test_K13_a_consumer_ends_when_it_was_idle_for_long_enough(make: Make) -> None:
    queue = make()
    assert founding_module.Consumer(queue).idle_timeout == 10.0
    assert founding_module.Consumer(queue, idle_timeout=None).idle_timeout is None
    assert Consumer(queue).idle_timeout is None
    consumer = Consumer(queue, idle_timeout=0.01)

    consumer.start()

    assert ended(consumer)


def test_K14_timeouts_are_seconds_and_may_be_fractions(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 0.25)
    queue.publish("x")
    take(queue)
    clock.advance(0.249)
    assert queue.receive(timeout=0) is None
    clock.advance(0.001)

    assert take(queue).receive_count == 2


def test_K16_unknown_and_late_are_different_errors(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    message_id = queue.publish("x")
    for never_delivered in (message_id, str(uuid.uuid4())):
        with pytest.raises(MessageNotFoundError) as missing:
            queue.ack(never_delivered)
        assert isinstance(missing.value, KeyError)
    message = take(queue)
    clock.advance(5)
    for late in (message, message.receipt_id, message.id):
        with pytest.raises(VisibilityTimeoutExpired):
            queue.ack(late)
    again = take(queue)
    again.ack()
    for gone in (again, again.receipt_id, again.id):
        with pytest.raises(MessageNotFoundError, match=message_id):
            queue.ack(gone)
    assert queue.receive(timeout=0) is None


def test_K24_the_clock_can_be_injected(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 12 * 3600)
    queue.publish("x")
    take(queue)
    clock.advance(12 * 3600)

    assert take(queue).receive_count == 2
