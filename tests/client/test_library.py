"""Small promises of the library that no row of the contract names."""

import copy
import pickle
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from openq import (
    Closed,
    Consumer,
    InvalidSetting,
    Message,
    MessageNotFoundError,
    OpenQ,
    Producer,
    RetryPolicy,
    SimpleQueue,
    VirtualClock,
)
from openq.client.heartbeat import Heartbeat
from openq.client.message import ReceivedMessage
from openq.client.settings import retry_policy
from openq.client.times import from_ms, iso, moment_ms, parse_iso, to_ms
from openq.client.waiting import ThreadWait, WaitRegistry, release_unseen
from openq.local.broker import LocalBroker
from openq.model import Delivery
from tests.client.helpers import Make, bodies, ended, in_process, in_thread, take, until_waiting
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"


# -- messages ---------------------------------------------------------------------------------


def test_a_received_message_can_be_copied_and_pickled_as_a_value(make: Make) -> None:
    queue = make()
    queue.publish({"a": 1}, priority=2)
    message = take(queue)

    for twin in (copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert type(twin) is Message
        assert (twin.id, twin.body, twin.priority) == (message.id, {"a": 1}, 2)
        assert message == twin
    assert len({message, take_again(queue, message)}) == 1


def take_again(queue: OpenQ, message: Message) -> ReceivedMessage:
    [(held, _)] = queue.in_flight.values()
    assert held == message
    return held


def test_a_message_shows_its_id_and_a_short_body(make: Make) -> None:
    queue = make()
    queue.publish("x" * 500)
    message = take(queue)

    assert message.id in repr(message)
    assert len(repr(message)) < 200
    assert message != "x"


def test_a_copied_message_still_acks_by_its_receipt(make: Make) -> None:
    queue = make()
    queue.publish("x")

    queue.ack(copy.copy(take(queue)))

    assert queue.messages == []


def test_msgpack_bodies_survive_json(make: Make) -> None:
    queue = make(codec="msgpack")
    queue.publish({"raw": b"\x00", "n": 1})
    message = take(queue)

    assert Message.from_json(message.to_json()).body == {"raw": b"\x00", "n": 1}


def test_an_attribute_changed_after_publish_does_not_reach_the_queue(make: Make) -> None:
    queue = make()
    attributes: dict[str, Any] = {"list": [1]}
    queue.publish("x", attributes=attributes)
    attributes["list"].append(2)

    assert take(queue).attributes == {"list": [1]}


def test_a_body_json_cannot_say_is_named(make: Make) -> None:
    with pytest.raises(InvalidSetting, match="cannot be written as JSON"):
        Message("1", {1, 2}).to_json()


# -- times ------------------------------------------------------------------------------------


def test_moments_are_read_in_every_form() -> None:
    moment = datetime(2023, 4, 3, 10, 30, tzinfo=UTC)
    ms = 1_680_517_800_000

    assert moment_ms(moment, "at") == moment_ms(ms / 1000, "at") == ms
    assert moment_ms("2023-04-03T10:30:00Z", "at") == moment_ms("2023-04-03T10:30:00", "at") == ms
    assert moment_ms("2023-04-03T12:30:00+02:00", "at") == ms
    assert moment_ms(moment.astimezone().replace(tzinfo=None), "at") == ms, "without zone: local time"
    assert parse_iso("2023-04-03").isoformat() == "2023-04-03T00:00:00+00:00"


@pytest.mark.parametrize("ms", [0, 1, 999, 1000, 1_680_517_800_007, 253_402_300_799_999])
def test_milliseconds_survive_the_way_through_text(ms: int) -> None:
    assert moment_ms(iso(from_ms(ms)), "at") == ms


def test_iso_is_utc_whatever_the_zone() -> None:
    moment = datetime(2023, 4, 3, 12, 30, tzinfo=timezone(timedelta(hours=2)))

    assert iso(moment) == "2023-04-03T10:30:00Z"
    assert to_ms(0.0015, "x") == 2


def test_retry_policies_are_read_in_every_form() -> None:
    assert retry_policy(None) == RetryPolicy()
    assert retry_policy("exponential") == RetryPolicy("exponential")
    assert retry_policy({"base": 0.5, "max": 60}) == RetryPolicy("exponential", base_ms=500, max_ms=60_000)
    assert retry_policy({"kind": "fixed", "base_ms": 7}) == RetryPolicy("fixed", base_ms=7)
    with pytest.raises(InvalidSetting, match="retry must be default, none, fixed or exponential, not 'foo'"):
        retry_policy("foo")


# -- places -----------------------------------------------------------------------------------


def test_a_queue_on_a_given_broker_leaves_it_open() -> None:
    broker = LocalBroker()
    with OpenQ("jobs", broker=broker) as queue:
        queue.publish("x")
    with OpenQ("jobs", broker=broker) as again, OpenQ("other", broker=broker) as other:
        assert bodies(again) == ["x"]
        again.move(again.queue[0].id, other)
        assert bodies(other) == ["x"]
    assert broker.health().ok
    broker.close()
    with pytest.raises(InvalidSetting, match="its own path and clock"):
        OpenQ("jobs", broker=broker, clock=VirtualClock())


def test_one_target_has_one_clock(tmp_path: Path) -> None:
    clock = VirtualClock()
    first, second = OpenQ("a", path=tmp_path, clock=clock), OpenQ("b", path=tmp_path, clock=clock)
    with first, second, pytest.raises(InvalidSetting, match="another clock"):
        OpenQ("c", path=tmp_path, clock=VirtualClock())


def test_queues_in_memory_know_nothing_of_each_other() -> None:
    first, second = OpenQ("jobs"), OpenQ("jobs")
    first.publish("x")

    assert (len(first), len(second)) == (1, 0)
    assert bool(second)


def test_two_queues_may_share_a_dlq() -> None:
    dead = OpenQ("dead")
    mail, bills = OpenQ("mail", dlq=dead, max_receives=1), OpenQ("bills", dlq=dead, max_receives=1)
    for queue in (mail, bills):
        queue.publish(queue.name)
        take(queue).nack()

    assert bodies(dead) == ["mail", "bills"]
    assert dead.redrive() == 2
    assert (bodies(mail), bodies(bills)) == (["mail"], ["bills"])


def test_a_redrive_moves_dead_letters_to_the_given_queue() -> None:
    dead = OpenQ("dead")
    other, jobs = OpenQ("other", dlq=dead, max_receives=1), OpenQ("jobs", dlq=dead, max_receives=1)
    jobs.publish("failed")
    take(jobs).nack()
    dead.publish("never failed")

    assert dead.redrive() == 1
    assert (bodies(jobs), bodies(dead)) == (["failed"], ["never failed"])
    assert dead.redrive(to=other) == 1
    assert (bodies(other), bodies(dead)) == (["never failed"], [])


def test_a_process_that_forgets_to_close_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', path=sys.argv[1], relaxed=True)\n"
        "queue.publish('x')\n"
        "queue.receive(timeout=0.01).nack(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    with OpenQ("jobs", path=tmp_path) as queue:
        assert take(queue).receive_count == 2


# -- queues -----------------------------------------------------------------------------------


def test_a_loop_over_a_queue_ends_when_nothing_comes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    queue.publish_many(["a", "b"])
    receive = queue.receive
    monkeypatch.setattr(queue, "receive", lambda: receive(timeout=0))

    for message in queue:
        message.ack()

    assert queue.messages == []


def test_publish_many_takes_bodies_messages_and_options(make: Make) -> None:
    queue = make()
    own = Message("my-id", {"own": 1}, priority=3, message_type="t")

    ids = queue.publish_many(
        ["text", b"raw", own, {"body": "urgent", "priority": 9}, {"body": 1, "other": 2}]
    )

    assert ids[2] == "my-id"
    assert bodies(queue) == ["urgent", {"own": 1}, "text", b"raw", {"body": 1, "other": 2}]
    assert queue.publish_many([]) == []
    assert len(set(ids)) == 5


def test_ids_of_a_long_batch_are_those_of_its_messages(make: Make) -> None:
    queue = make()
    queue.publish_many([b"earlier"] * 200)

    ids = queue.publish_many(["text"] * 600)  # sequences beyond 256 and 512: more than the last digits change

    assert ids == [message.id for message in queue.queue][200:]


def test_an_id_of_one_s_own_names_the_message_everywhere(make: Make, clock: VirtualClock) -> None:
    queue = make()
    assert queue.publish("x", id="order-1") == "order-1"
    assert queue.publish("x", id="order-1") == "order-1"
    message = take(queue)
    assert message.id == "order-1"
    clock.advance(1)
    queue.ack("order-1")

    assert queue.status("order-1") == "processed"
    assert queue.replay_from("order-1") == 1
    assert [message.id for message in queue.queue] == ["order-1"]


def test_a_unique_key_holds_while_its_message_is_there(make: Make) -> None:
    queue = make()
    first = queue.publish("x", unique_key="report")
    message = take(queue)
    assert queue.publish("y", unique_key="report") == first
    message.ack()

    assert queue.publish("z", unique_key="report") != first


def test_a_message_not_received_before_its_ttl_is_removed(make: Make, clock: VirtualClock) -> None:
    queue = make()
    queue.publish("short", ttl=5)
    queue.publish("long")
    clock.advance(5)

    assert bodies(queue) == ["long"]


def test_a_rejected_message_goes_to_the_dlq_at_once(make: Make) -> None:
    dlq = make("dead")
    queue = make("jobs", dlq=dlq)
    queue.publish("x")

    assert take(queue).reject("never") == "dead-lettered"
    assert dlq.queue[0].deaths[0]["reason"] == "never"


def test_the_json_of_a_body_can_be_searched(make: Make) -> None:
    queue = make()
    queue.publish({"customer": {"name": "ann"}, "items": [{"sku": 1}]}, message_type="order")
    queue.publish({"customer": {"name": "bob"}})

    assert len(queue.search(json={"customer.name": "ann", "items.0.sku": 1})) == 1
    assert len(queue.search(message_type="order")) == 1
    assert len(queue.search("customer", limit=1)) == 1
    with pytest.raises(InvalidSetting, match="rate"):
        queue.redrive(rate=0)


def test_the_simple_queue_raises_key_errors_for_unknown_ids() -> None:
    queue = SimpleQueue()
    queue.requeue_expired()

    with pytest.raises(KeyError):
        queue.ack("unknown")
    with pytest.raises(MessageNotFoundError):
        queue.ack("unknown")


def test_the_items_of_a_purged_queue_are_done(make: Make) -> None:
    queue = make()
    queue.put("x")
    queue.get()
    queue.purge()

    queue.task_done()

    queue.join()
    assert queue.empty()
    for call in (lambda: queue.put("x", timeout=-1), lambda: queue.get(timeout=-1)):
        with pytest.raises(ValueError, match="non-negative"):
            call()


# -- threads ----------------------------------------------------------------------------------


def test_a_producer_can_be_stopped(make: Make) -> None:
    queue = make()
    producer = Producer(queue, num_tasks=1_000_000, delay=3600)
    producer.start()
    until(lambda: len(producer.ids) == 1, "the first is published")

    producer.stop()

    assert ended(producer)
    assert len(queue) == 1


def test_a_producer_reads_only_num_tasks_items_of_its_source(make: Make) -> None:
    queue = make()
    producer = Producer(queue, 2, source=["a", "b", "c"])
    producer.start()

    assert ended(producer)
    assert bodies(queue) == ["a", "b"]


def test_a_consumer_chooses_by_type(make: Make) -> None:
    queue = make()
    queue.publish("a", message_type="mail")
    queue.publish("b", message_type="bill")
    seen: list[Any] = []
    consumer = Consumer(queue, lambda message: seen.append(message.body), types=["bill"], idle_timeout=0)
    consumer.start()

    assert ended(consumer)
    assert (seen, bodies(queue)) == (["b"], ["a"])


def test_a_handler_may_settle_its_message_itself(make: Make) -> None:
    queue = make()
    queue.publish("x")
    consumer = Consumer(queue, lambda message: message.nack(delay=60), idle_timeout=0)
    consumer.start()

    assert ended(consumer)
    assert [message.body for message in queue.messages] == ["x"]


def test_a_consumer_that_was_stopped_before_it_started_takes_nothing(make: Make) -> None:
    queue = make()
    queue.publish("x")
    consumer = Consumer(queue, idle_timeout=None)
    consumer.stop()
    consumer.start()

    assert ended(consumer)
    assert bodies(queue) == ["x"]


def test_a_consumer_ends_with_its_queue(make: Make) -> None:
    queue = make()
    queue.publish("x")
    consumer = Consumer(queue, lambda message: queue.close(), idle_timeout=None)
    consumer.start()

    assert ended(consumer)
    with pytest.raises(Closed):
        queue.stats()


@in_process
def test_a_wait_that_was_ended_before_it_began_ends_at_once(make: Make) -> None:
    queue = make()
    wait = ThreadWait(queue.broker, queue.name, 1, None, None, None, WaitRegistry())
    wait.end()

    assert wait.wait(None) == []
    assert queue.stats().waiters == 0


def test_a_heartbeat_lets_go_of_a_lease_that_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    with OpenQ("jobs", visibility_timeout=0.06) as queue:
        queue.publish("x")
        message = take(queue)
        heartbeat = Heartbeat(queue.broker)
        heartbeat.hold(queue.name, message.delivery)
        queue.purge()

        until(lambda: "lost a lease" in caplog.text, "the loss is logged")

        heartbeat.stop()
        heartbeat.hold(queue.name, message.delivery)
        assert [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name] == []


@in_process
def test_messages_served_to_an_interrupted_wait_are_released(make: Make) -> None:
    queue = make()
    wait = ThreadWait(queue.broker, queue.name, 1, None, None, None, WaitRegistry())
    served: list[list[Delivery]] = []
    waiting = in_thread(lambda: served.append(wait.wait(60)))
    until_waiting(queue, 1)
    queue.publish("x")
    assert ended(waiting)
    assert len(queue.in_flight) == 1

    release_unseen(queue.broker, queue.name, served[0])

    assert take(queue).receive_count == 1
