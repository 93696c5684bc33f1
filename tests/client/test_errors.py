"""Every error has a type, a sentence that helps, and leaves the queue as it was."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import openq
from openq import (
    Closed,
    Consumer,
    InvalidSetting,
    Message,
    MessageNotFoundError,
    OpenQ,
    OpenQError,
    Producer,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    VirtualClock,
    VisibilityTimeoutExpired,
)
from openq.client.codecs import Codec
from tests.client.helpers import Make, bodies, ended, take

pytest_plugins = "tests.client.fixtures"


def test_every_public_error_is_an_openq_error_with_a_code() -> None:
    errors = [
        value
        for name in openq.__all__
        if isinstance(value := getattr(openq, name), type) and issubclass(value, Exception)
    ]

    assert len(errors) >= 15
    assert all(issubclass(error, OpenQError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)


@pytest.mark.parametrize(
    "options",
    [
        {"visibility_timeout": -1},
        {"visibility_timeout": "30"},
        {"visibility_timeout": math.nan},
        {"visibility_timeout": math.inf},
        {"visibility_timeout": True},
        {"delay": -1},
        {"retention": "long"},
        {"message_ttl": -5},
        {"max_length": 1.5},
        {"max_length": -1},
        {"max_bytes": "many"},
        {"overflow": "explode"},
        {"overflow": 5},
        {"fifo": "yes"},
        {"dedup_window": None},
        {"retry": "sometimes"},
        {"retry": 5},
        {"retry": {"speed": 5}},
        {"retry": {"factor": "two"}},
        {"retry": {"base": -1}},
        {"max_receives": 3},
        {"max_receives": 0, "dlq": "dead"},
        {"dlq": "jobs"},
        {"codec": "yaml"},
        {"codec": object()},
        {"storage": "tape"},
        {"url": "amqp://localhost"},
    ],
)
def test_a_setting_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        OpenQ("jobs", **options)


@pytest.mark.parametrize("name", ["", "x" * 256, "line\nbreak"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="name"):
        OpenQ(name)


def test_a_misspelt_setting_gets_a_hint() -> None:
    with pytest.raises(TypeError, match="did you mean 'retention'"):
        OpenQ("jobs", retension=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": "soon"},
        {"delay": 1, "at": 5},
        {"at": "whenever"},
        {"at": math.nan},
        {"priority": 256},
        {"priority": None},
        {"group": 5},
        {"group": ""},
        {"dedup_id": b"x"},
        {"message_type": 1},
        {"id": ""},
        {"ttl": -1},
        {"attributes": [1]},
        {"attributes": {1: "x"}},
        {"attributes": {"x": object()}},
        {"attributes": {"x": math.nan}},
    ],
)
def test_a_publish_that_cannot_be_changes_nothing(make: Make, options: dict[str, Any]) -> None:
    queue = make()

    with pytest.raises(InvalidSetting):
        queue.publish("x", **options)

    assert queue.messages == []


@pytest.mark.parametrize("body", [object(), {1, 2}, {"x": math.inf}, "\ud800", {"x": "\ud800"}])
def test_a_body_that_cannot_be_written_changes_nothing(make: Make, body: Any) -> None:
    queue = make()

    with pytest.raises(InvalidSetting):
        queue.publish(body)
    with pytest.raises(InvalidSetting):
        queue.publish_many(["fine", body])

    assert queue.messages == []


def test_an_unknown_keyword_of_publish_is_a_type_error(make: Make) -> None:
    with pytest.raises(TypeError, match="urgency"):
        make().publish("x", urgency=5)


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue, target: queue.ack(target),
        lambda queue, target: queue.nack(target),
        lambda queue, target: queue.reject(target),
        lambda queue, target: queue.extend(target, 5),
        lambda queue, target: queue.ack_many([target]),
    ],
)
def test_every_call_on_a_delivery_distinguishes_expired_from_unknown(
    make: Make, clock: VirtualClock, verb: Callable[[OpenQ, Any], object]
) -> None:
    queue = make("jobs", 5)
    message_id = queue.publish("x")
    message = take(queue)
    clock.advance(5)

    for target in (message, message.receipt_id, message_id):
        with pytest.raises(VisibilityTimeoutExpired, match=message_id):
            verb(queue, target)
    assert bodies(queue) == ["x"]
    queue.purge()
    for target in (message, message.receipt_id, message_id):
        with pytest.raises(MessageNotFoundError, match=message_id):
            verb(queue, target)


def test_a_message_of_another_queue_is_unknown_here(make: Make) -> None:
    mine, other = OpenQ("mine"), OpenQ("other")
    mine.publish("x")
    other.publish("x")
    foreign = take(other)
    take(mine)

    for target in (foreign, foreign.receipt_id, foreign.id, Message("nobody", "x")):
        with pytest.raises(MessageNotFoundError):
            mine.ack(target)
    with pytest.raises(InvalidSetting):
        mine.ack(5)  # type: ignore[arg-type]
    assert len(mine.in_flight) == 1


def test_ack_many_acks_all_it_can_before_it_raises(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "b", "c"])
    first, second, third = queue.receive_many(3, timeout=0)
    second.ack()

    with pytest.raises(MessageNotFoundError):
        queue.ack_many([first, second, "unknown", third])

    assert queue.messages == []


def test_an_exception_in_the_block_gives_the_message_back_with_its_reason(make: Make) -> None:
    queue = make(retry="none")
    queue.publish("x")

    with pytest.raises(ValueError, match="once"), queue.processing(timeout=0):
        raise ValueError("once")
    with pytest.raises(ValueError, match="again"), take(queue):
        raise ValueError("again")

    last = take(queue)
    assert (last.receive_count, last.reason) == (3, "ValueError: again")


def test_a_block_that_ends_well_acks_once(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "b", "c", "d"])

    with take(queue):
        pass
    with queue.processing(timeout=0) as message:
        assert message is not None
        message.ack()
    with take(queue) as message:
        message.reject("not wanted")
    with take(queue) as message:
        message.nack(delay=60)

    assert [message.body for message in queue.messages] == ["d"]
    with queue.processing(timeout=0) as nothing:
        assert nothing is None


def test_a_block_whose_lease_is_over_says_so(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")

    with pytest.raises(VisibilityTimeoutExpired), take(queue):
        clock.advance(5)
    late = take(queue)
    clock.advance(5)
    with pytest.raises(ValueError, match="the first error is the one to see"), late:
        raise ValueError("the first error is the one to see")

    assert bodies(queue) == ["x"]


def test_a_full_queue_refuses_or_drops_as_configured(make: Make) -> None:
    strict = make("strict", max_length=2, overflow="reject")
    strict.publish("a")
    strict.publish("b")
    with pytest.raises(QueueFull):
        strict.publish("c")
    with pytest.raises(QueueFull):
        strict.publish_many(["c", "d"])
    loose = make("loose", max_length=2)
    loose.publish_many(["a", "b", "c"])

    assert (bodies(strict), bodies(loose)) == (["a", "b"], ["b", "c"])


@pytest.mark.parametrize(
    "act",
    [
        lambda queue: queue.publish("x"),
        lambda queue: queue.publish({"a": 1}),
        lambda queue: queue.publish("x", delay=1),
        lambda queue: queue.publish_many(["x"]),
        lambda queue: queue.receive(timeout=0),
        lambda queue: queue.receive(timeout=5),
        lambda queue: queue.ack("x"),
        lambda queue: queue.peek(),
        lambda queue: queue.purge(),
        lambda queue: queue.stats(),
        lambda queue: queue.get_nowait(),
        lambda queue: len(queue),
        lambda queue: queue.queue,
        lambda queue: queue.subscribe(print),
    ],
)
def test_a_closed_queue_says_so(make: Make, act: Callable[[OpenQ], object]) -> None:
    queue = make()
    queue.close()

    with pytest.raises(Closed):
        act(queue)
    assert "closed" in repr(queue)


def test_waiting_messages_can_be_changed_and_leased_ones_cannot(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", dlq="dead")
    ids = [queue.publish(body, message_type="t", attributes={"k": "v"}) for body in ("a", "b", "c", "d")]
    held = take(queue)
    for act in (queue.cancel, lambda each: queue.edit(each, "x"), lambda each: queue.move(each, "dead")):
        with pytest.raises(QueueInUse, match=held.id):
            act(held.id)

    queue.cancel(ids[1])
    queue.edit(ids[2], {"edited": True})
    queue.reschedule(ids[3], delay=60)
    edited = take(queue)

    assert (edited.body, edited.message_type, edited.attributes) == ({"edited": True}, "t", {"k": "v"})
    assert queue.receive(timeout=0) is None
    assert queue.why(ids[3]).code == "delayed"
    assert queue.why(held.id).code == "in_flight"
    queue.move(ids[3], "dead")
    assert queue.broker.stats("dead").ready == 1
    for act in (queue.cancel, lambda each: queue.edit(each, "x"), lambda each: queue.move(each, "dead")):
        with pytest.raises(MessageNotFoundError):
            act(ids[1])
    with pytest.raises(QueueNotFound):
        queue.move(held.id, "nowhere")
    with pytest.raises(InvalidSetting):
        queue.reschedule(held.id)


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(make: Make) -> None:
    queue = make()
    message_id = queue.publish("x")
    queue.pause()
    assert queue.receive(timeout=0) is None
    assert queue.why(message_id).code == "paused"
    queue.resume()

    assert take(queue).id == message_id


def test_a_dlq_must_be_on_the_same_target(tmp_path: Path) -> None:
    memory = OpenQ("dead")
    with pytest.raises(InvalidSetting, match="same path"):
        OpenQ("jobs", dlq=memory, path=tmp_path)
    with pytest.raises(InvalidSetting, match="another clock"):
        OpenQ("jobs", dlq=memory, clock=VirtualClock())
    with pytest.raises(InvalidSetting, match="another target"):
        OpenQ("jobs").redrive(to=memory)
    memory.close()
    with pytest.raises(Closed):
        OpenQ("jobs", dlq=memory)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"payload": "x", "payload_encoding": "rot13"}',
        '{"payload": "!", "payload_encoding": "base64"}',
        '{"payload": 5, "payload_encoding": "base64"}',
        '{"payload": "x", "timestamp": "yesterday"}',
        '{"payload": "x", "id": 5}',
        '{"payload": "x", "priority": -1}',
        '{"payload": "x", "attributes": 5}',
    ],
)
def test_json_that_is_not_a_message_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting):
        Message.from_json(text)
    with pytest.raises(InvalidSetting):
        Message("1", "x").to_dict("interview")


def test_codecs_name_what_they_cannot_encode() -> None:
    for codec, value in (("raw", 5), ("msgpack", object()), ("pickle", lambda: 0), ("json", {1, 2})):
        with pytest.raises(InvalidSetting):
            Codec(codec).encode(value)

    class Wrong:
        def encode(self, value: Any) -> Any:
            return "text"

        def decode(self, data: bytes) -> Any:
            return data

    with pytest.raises(InvalidSetting, match="instead of bytes"):
        Codec(Wrong()).encode("x")


def test_a_producer_that_fails_keeps_its_error() -> None:
    queue = OpenQ("jobs")
    producer = Producer(queue, source=["fine", object()])
    producer.start()

    assert ended(producer)
    assert isinstance(producer.error, InvalidSetting)
    assert bodies(queue) == ["fine"]


def test_a_consumer_whose_lease_is_lost_goes_on(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("slow")
    done: list[int] = []

    def handle(message: Message) -> None:
        done.append(message.receive_count)
        if message.receive_count == 1:
            clock.advance(5)

    consumer = Consumer(queue, handle, idle_timeout=0)
    consumer.start()

    assert ended(consumer)
    assert (done, queue.messages) == ([1, 2], [])


@pytest.mark.parametrize("timeout", [math.nan, "5", True])
def test_a_timeout_that_is_none_is_refused(make: Make, timeout: Any) -> None:
    with pytest.raises(InvalidSetting, match="timeout"):
        make().receive(timeout)
    with pytest.raises(InvalidSetting, match="max"):
        make().receive_many(0)
