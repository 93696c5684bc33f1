"""The founding contract, row by row: the name of each test begins with the row that it holds to.

Every row is tested in memory and on disk where both can differ, on a clock that stands still until it
is moved. Rows about other protocols (HTTP, AMQP) and Redis are tested with those.
"""

import inspect
import json
import logging
import queue as standard
import subprocess
import sys
import threading
import uuid
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import OpenQ as founding_module
import openq
from openq import (
    Consumer,
    InvalidSetting,
    Message,
    MessageNotFoundError,
    OpenQ,
    OpenQError,
    Producer,
    Queue,
    SimpleQueue,
    VirtualClock,
    VisibilityTimeoutExpired,
)
from openq.client.message import ReceivedMessage
from tests import test_contract_delivery, test_contract_formats
from tests.client.helpers import (
    Make,
    bodies,
    ended,
    in_process,
    in_thread,
    take,
    until_waiting,
)

ROOT = Path(__file__).parent.parent
pytest_plugins = "tests.client.fixtures"


ROWS = {"P": 11, "N": 25, "D": 24, "M": 7, "R": 8, "X": 6}
# Rows that a test in another file, or no test of the library, can hold to.
ELSEWHERE = {
    "P1": "tests/test_contract_amqp.py, and tests/real_clients with other clients",
    "P8": "the evidence is the crash tests and the benchmarks",
    "P9": "tests/client/test_remote.py; nearly every test here runs over the network too",
    "P10": "tests/test_docs.py runs the documented snippets",
    "N24": "tests/test_layers.py holds the parts apart",
    "D14": "tests/client/test_threads.py",
    "D18": "tests/test_contract_amqp.py for AMQP; the two kinds of poll are D12 here",
    "R8": "tests/client/test_memory.py",
    "X2": "bench/ measures it",
    "X3": "bench/ measures it",
    "X4": "tests/client/test_threads.py",
    "X5": "bench/ measures it",
}


def test_every_row_of_the_contract_has_its_test() -> None:
    names = {*globals(), *vars(test_contract_delivery), *vars(test_contract_formats)}
    named = {word for name in names if name.startswith("test_") for word in name.split("_")}
    rows = {f"{letter}{number}" for letter, last in ROWS.items() for number in range(1, last + 1)}

    assert rows - named == ELSEWHERE.keys()


# -- 1. product, package, first run -----------------------------------------------------------


def test_P2_the_founding_import_line_gives_the_same_classes() -> None:
    assert founding_module.OpenQ is OpenQ
    assert founding_module.Producer is Producer
    assert issubclass(founding_module.Consumer, Consumer)  # the same but for its idle_timeout: K13


def test_P3_the_sample_ends_by_itself_and_prints_what_happened() -> None:
    done = subprocess.run([sys.executable, "-m", "openq.sample"], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "Published 10, acked 10" in done.stdout
    assert (ROOT / "requirements.txt").exists()


def test_P4_producer_and_consumer_move_ten_messages_and_both_joins_return() -> None:
    dlq = OpenQ(name="dead-letter-queue", visibility_timeout=100)
    main_queue = OpenQ(name="main-queue", visibility_timeout=100, dlq=dlq)
    producer = Producer(main_queue, num_tasks=10)
    consumer = Consumer(main_queue, idle_timeout=1)

    producer.start()
    consumer.start()

    assert ended(producer, consumer)
    assert consumer.processed == 10
    assert len(main_queue) == len(dlq) == 0
    assert main_queue.in_flight == {}


def test_P5_a_crashed_consumer_costs_the_simple_queue_nothing() -> None:
    queue = SimpleQueue(visibility_timeout=1)
    done: list[str] = []

    def good() -> None:
        while message := queue.receive(timeout=2):
            done.append(message.body)
            queue.ack(message.id)

    for i in range(3):
        queue.publish(f"message {i}")
    assert queue.receive() is not None  # and its consumer dies
    workers = [in_thread(good), in_thread(good)]

    assert ended(*workers)
    assert sorted(done) == ["message 0", "message 1", "message 2"]
    assert f"{list(queue.queue)} {queue.in_flight}" == "[] {}"


def test_P6_the_standard_library_s_shape_works() -> None:
    shared = Queue()
    done: list[Any] = []

    def consume() -> None:
        while True:
            done.append(shared.get())
            shared.task_done()

    for i in range(5):
        shared.put(f"Message {i}")
    in_thread(consume)
    shared.join()

    assert done == [f"Message {i}" for i in range(5)]


def test_P6_put_and_get_keep_the_standard_library_s_promises() -> None:
    bounded = Queue(2)
    bounded.put("a")
    bounded.put({"b": 1})

    assert bounded.full()
    assert bounded.qsize() == 2
    with pytest.raises(standard.Full):
        bounded.put("c", block=False)
    with pytest.raises(standard.Full):
        bounded.put("c", timeout=0.01)
    assert bounded.get() == "a"
    assert bounded.get_nowait() == {"b": 1}
    with pytest.raises(standard.Empty):
        bounded.get(timeout=0.01)
    with pytest.raises(standard.Empty):
        bounded.get_nowait()
    assert bounded.unfinished_tasks == 2
    bounded.task_done()
    bounded.task_done()
    with pytest.raises(ValueError, match="too many times"):
        bounded.task_done()
    bounded.join()


def test_P6_a_put_that_waits_goes_on_when_there_is_room() -> None:
    bounded = Queue(1)
    bounded.put("first")
    waiting = in_thread(lambda: bounded.put("second"))

    assert bounded.get() == "first"
    assert ended(waiting)
    assert bounded.get() == "second"


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("OPENQ_VISIBILITY_TIMEOUT", "2.5", "visibility_ms", 2500),
        ("OPENQ_DELAY", "3", "delay_ms", 3000),
        ("OPENQ_RETENTION", "60", "retention_ms", 60_000),
        ("OPENQ_MESSAGE_TTL", "9", "ttl_ms", 9000),
        ("OPENQ_MAX_LENGTH", "7", "max_length", 7),
        ("OPENQ_MAX_BYTES", "700", "max_bytes", 700),
        ("OPENQ_DEDUP_WINDOW", "1", "dedup_window_ms", 1000),
        ("OPENQ_HISTORY", "5", "history_ms", 5000),
        ("OPENQ_FIFO", "true", "fifo", True),
        ("OPENQ_OVERFLOW", "reject", "overflow", "reject"),
    ],
)
def test_P7_every_number_is_an_environment_variable_too(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)

    assert getattr(OpenQ("configured").settings, field) == value


def test_P7_a_keyword_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENQ_VISIBILITY_TIMEOUT", "2.5")

    assert OpenQ("configured", visibility_timeout=4).visibility_timeout == 4


def test_P7_the_numbers_of_producer_and_consumer_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENQ_NUM_TASKS", "3")
    monkeypatch.setenv("OPENQ_IDLE_TIMEOUT", "0.5")

    assert Producer(OpenQ("q")).num_tasks == 3
    assert Consumer(OpenQ("q")).idle_timeout == 0.5


def test_P7_a_variable_that_is_not_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENQ_DELAY", "soon")

    with pytest.raises(InvalidSetting, match="OPENQ_DELAY must be a number, not 'soon'"):
        OpenQ("q")


def test_P11_storage_priorities_acks_and_many_consumers_are_in_the_box(make: Make) -> None:
    queue = make()
    queue.publish("low")
    queue.publish("high", priority=9)

    first, second = take(queue, consumer="one"), take(queue, consumer="two")

    assert [first.body, second.body] == ["high", "low"]
    queue.ack_many([first, second])
    assert queue.messages == []


# -- 2. names and signatures ------------------------------------------------------------------


def test_N1_the_constructor_takes_name_timeout_and_dlq() -> None:
    dlq = OpenQ(name="dead", visibility_timeout=0.5)
    queue = OpenQ(name="main", visibility_timeout=100, dlq=dlq)

    assert (queue.name, queue.visibility_timeout, queue.dlq) == ("main", 100, "dead")
    assert dlq.visibility_timeout == 0.5
    assert OpenQ("positional", 7, dlq).visibility_timeout == 7


def test_N1_a_dlq_may_be_named(make: Make) -> None:
    queue = make("main", dlq="dead", max_receives=1)
    queue.publish("x")
    take(queue).nack()

    assert bodies(make("dead")) == ["x"] if queue.broker.storage.name != "memory" else queue.dlq == "dead"


def test_N2_the_simple_queue_has_four_methods_and_a_default_of_five_seconds() -> None:
    methods = {name for name, _ in inspect.getmembers(SimpleQueue, inspect.isfunction) if name[0] != "_"}

    assert methods == {"publish", "receive", "ack", "requeue_expired"}
    assert SimpleQueue().visibility_timeout == 5.0


def test_N3_publish_returns_a_uuid_and_takes_text_bytes_and_json(make: Make) -> None:
    queue = make()
    sent = ["text", b"\x00\xff", {"a": [1, None]}, [1, 2], 7, True, None, "é✓"]

    ids = [queue.publish(body) for body in sent]

    assert all(str(uuid.UUID(each)) == each for each in ids)
    assert len(set(ids)) == len(ids)
    assert [take(queue).body for _ in sent] == sent


def test_N4_receive_gives_none_when_nothing_comes(make: Make) -> None:
    assert make().receive(timeout=0) is None
    assert make().receive(timeout=0.01) is None
    assert inspect.signature(OpenQ.receive).parameters["timeout"].default == 10.0


def test_N5_ack_takes_a_message_a_receipt_id_or_a_message_id(make: Make) -> None:
    queue = make()
    for _ in range(3):
        queue.publish("x")

    queue.ack(take(queue))
    queue.ack(take(queue).receipt_id)
    queue.ack(take(queue).id)

    assert queue.messages == []


def test_N6_requeue_expired_is_idempotent_and_never_needed(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    queue.publish("x")
    take(queue)
    clock.advance(5)

    queue.requeue_expired()
    queue.requeue_expired()

    assert bodies(queue) == ["x"]


@pytest.mark.parametrize("name", ["ack", "acknowledge", "delete"])
def test_N7_N8_acknowledge_and_delete_mean_ack(make: Make, name: str) -> None:
    queue = make()
    queue.publish("x")

    getattr(queue, name)(take(queue))

    assert queue.messages == []


@pytest.mark.parametrize(
    ("write", "read"), [("enqueue", "dequeue"), ("publish_msg", "pull_msg"), ("publishMsg", "pullMsg")]
)
def test_N9_K6_the_other_names_are_the_same_verbs(make: Make, write: str, read: str) -> None:
    queue = make()

    message_id = getattr(queue, write)("x")

    assert getattr(queue, read)().id == message_id


def test_N10_N22_the_general_class_and_the_product_s_are_one() -> None:
    assert Queue is OpenQ
    assert {"put", "get", "task_done", "join"} <= set(dir(Queue))


def test_N11_a_message_is_a_dataclass_with_id_and_body() -> None:
    assert is_dataclass(Message)
    assert Message(id="1", body="x") == Message("1", "x")
    assert issubclass(ReceivedMessage, Message)


def test_N12_a_received_message_knows_everything_about_itself(make: Make, clock: VirtualClock) -> None:
    queue = make()
    sent = queue.publish("x", message_type="order", priority=3, attributes={"n": 1}, group="g")
    clock.advance(1.5)

    message = take(queue)

    assert (message.id, message.body, message.content, message.payload) == (sent, "x", "x", "x")
    assert (message.message_type, message.priority, message.group) == ("order", 3, "g")
    assert (message.receive_count, message.status, message.attributes) == (1, "processing", {"n": 1})
    assert message.received_at - message.timestamp == timedelta(seconds=1.5)
    assert isinstance(message.receipt_id, str)


def test_N13_received_at_is_in_utc_and_iso_in_json(make: Make) -> None:
    queue = make()
    queue.publish("x")

    message = take(queue)

    assert message.received_at.tzinfo is UTC
    written = json.loads(message.to_json())["received_at"]
    assert datetime.fromisoformat(written) == message.received_at


@in_process
def test_N14_the_private_helpers_keep_working(
    make: Make, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue = make("jobs", 5)
    queue.publish("x")
    queue._save_to_disk()
    assert (tmp_path / "jobs.json").exists()
    queue._purge()
    assert not (tmp_path / "jobs.json").exists()
    queue.publish("y")
    queue._save_to_disk(tmp_path / "kept.json")
    queue._purge()
    assert queue._load_from_disk(tmp_path / "kept.json") == 1

    message = take(queue)
    queue._cancel_timer(message)
    clock.advance(3600)

    message.ack()


def test_N15_the_readable_attributes_are_snapshots(make: Make, clock: VirtualClock) -> None:
    queue = make("jobs", 5)
    for body in "abc":
        queue.publish(body)
    taken = take(queue)

    [(message_id, (message, since))] = queue.in_flight.items()

    assert (queue.name, queue.visibility_timeout) == ("jobs", 5)
    assert bodies(queue) == ["b", "c"]
    assert (message_id, message.body, since) == (taken.id, "a", clock.now_ms() / 1000)
    queue.in_flight.clear()
    queue.queue.clear()
    assert len(queue.messages) == 3


def test_N16_a_producer_is_a_thread_that_publishes_numbered_messages(make: Make) -> None:
    queue = make()
    producer = Producer(queue, num_tasks=3)
    sourced = Producer(queue, source=iter(["real", {"pay": "load"}]), delay=0.001)

    producer.start()
    assert ended(producer)
    sourced.start()
    assert ended(sourced)

    assert isinstance(producer, threading.Thread)
    assert bodies(queue) == ["Message 0", "Message 1", "Message 2", "real", {"pay": "load"}]
    assert [message.id for message in queue.queue] == producer.ids + sourced.ids
    assert inspect.signature(Producer).parameters["num_tasks"].default in (10, None)
    assert Producer(queue).num_tasks == 10


def test_N17_a_waiting_consumer_stops_at_once(make: Make) -> None:
    queue = make()
    consumer = Consumer(queue, idle_timeout=None)
    consumer.start()
    until_waiting(queue, 1)

    consumer.stop()

    assert ended(consumer)
    assert queue.stats().waiters == 0


def test_N17_a_stopping_consumer_finishes_its_message_and_leaves_the_rest(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "b", "c"])
    started, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        started.set()
        assert go_on.wait(30)

    consumer = Consumer(queue, handle, idle_timeout=None, batch=2)
    consumer.start()
    assert started.wait(30)
    consumer.stop()
    go_on.set()

    assert ended(consumer)
    assert consumer.processed == 1
    assert [(message.body, message.receive_count) for message in queue.queue] == [("b", 0), ("c", 0)]
    assert queue.in_flight == {}


def test_N17_a_handler_that_raises_gives_back_with_the_reason_and_the_consumer_goes_on(make: Make) -> None:
    dlq = make("dead")
    queue = make("jobs", dlq=dlq, max_receives=2, retry="none")
    queue.publish("bad")
    queue.publish("good")
    done: list[str] = []

    def handle(message: Message) -> None:
        if message.body == "bad":
            raise ValueError("no way")
        done.append(message.body)

    consumer = Consumer(queue, handle, idle_timeout=0.05)
    consumer.start()

    assert ended(consumer)
    assert (done, consumer.processed, consumer.failed) == (["good"], 1, 2)
    [dead] = dlq.queue
    assert dead.deaths[0]["reason"] == "ValueError: no way"


def test_N17_without_a_handler_the_message_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    queue = make()
    sent = queue.publish("hello")
    with caplog.at_level(logging.INFO, "openq"):
        consumer = Consumer(queue, idle_timeout=0)
        consumer.start()
        assert ended(consumer)

    assert f"received message {sent}: 'hello'" in caplog.text


def test_N18_N21_both_spellings_of_producer_and_consumer(make: Make) -> None:
    queue = make()
    producer, consumer = Producer(queue), Consumer(queue)

    ids = [producer.publishMsg("a"), producer.publish_msg("b", priority=1)]
    first, second = consumer.pullMsg(timeout=0), consumer.pull_msg(timeout=0)

    assert first is not None
    assert second is not None
    assert [first.id, second.id] == [ids[1], ids[0]]
    first.ack()
    consumer.ack(second)
    assert consumer.pull_msg(timeout=0) is None
    assert queue.messages == []


@pytest.mark.parametrize("spelling", ["on_msg_received", "onMsgReceived"])
def test_N19_a_hook_runs_after_the_message_is_stored(make: Make, spelling: str) -> None:
    queue = make()
    seen: list[tuple[str, Any, str]] = []
    getattr(queue, spelling)(
        lambda message: seen.append((message.id, message.body, queue.status(message.id)))
    )

    first = queue.publish("a")
    second = queue.publish({"b": 1}, priority=1)
    [third] = queue.publish_many(["c"])

    assert seen == [
        (first, "a", "unprocessed"),
        (second, {"b": 1}, "unprocessed"),
        (third, "c", "unprocessed"),
    ]


@pytest.mark.parametrize("spelling", ["on_msg_received", "onMsgReceived"])
def test_N19_a_subclass_may_override_the_hook(spelling: str) -> None:
    seen: list[Any] = []
    sub = type("Sub", (OpenQ,), {spelling: lambda self, message: seen.append(message.body)})

    sub("jobs").publish("a")

    assert seen == ["a"]


def test_N19_a_hook_that_fails_does_not_break_publish(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    queue = make()

    @queue.on_msg_received
    def fail(message: Message) -> None:
        raise RuntimeError("broken hook")

    queue.publish("a")

    assert bodies(queue) == ["a"]
    assert "broken hook" in caplog.text


@pytest.mark.parametrize("spelling", ["replay_from", "replayFrom"])
def test_N20_D21_K19_K27_replay_takes_a_time_or_an_id(make: Make, clock: VirtualClock, spelling: str) -> None:
    queue = make()
    replay = getattr(queue, spelling)
    ids = []
    for body in ("a", "b", "c"):
        ids.append(queue.publish(body))
        take(queue).ack()
        clock.advance(10)
    second_ms = clock.now_ms() - 20_000
    second = datetime.fromtimestamp(second_ms / 1000, UTC)

    for point in (second, second.isoformat(), second_ms / 1000, ids[1]):
        assert replay(point) == 2
        assert bodies(queue) == ["b", "c"]
        assert [message.id for message in queue.queue] == ids[1:]
        assert replay(point) == 0, "what is in the queue already is not doubled"
        for _ in ids[1:]:
            take(queue).ack()


def test_D20_D21_a_purge_is_final_unless_the_caller_says_so(make: Make) -> None:
    queue = make()
    queue.publish("a")
    queue.purge()

    assert queue.replay_from(0) == 0
    assert queue.replay_from(0, include_purged=True) == 1


def test_N20_replay_into_another_queue(make: Make) -> None:
    queue = make("jobs", dlq="other")
    queue.publish("a")
    take(queue).ack()

    assert queue.replay_from(0, to="other") == 1
    assert bodies(queue) == []
    assert queue.broker.stats("other").ready == 1


def test_N20_a_point_that_is_not_in_history_is_an_error(make: Make) -> None:
    queue = make()
    with pytest.raises(openq.HistoryUnavailable):
        queue.replay_from(str(uuid.uuid4()))
    with pytest.raises(openq.HistoryUnavailable):
        make("forgetful", history=0).replay_from(0)


def test_N23_the_two_exceptions_have_their_names_and_a_common_base() -> None:
    assert VisibilityTimeoutExpired.__name__ == "VisibilityTimeoutExpired"
    assert MessageNotFoundError.__name__ == "MessageNotFoundError"
    assert issubclass(VisibilityTimeoutExpired, OpenQError)
    assert issubclass(MessageNotFoundError, OpenQError)


def test_N25_a_trace_shows_the_steps_of_the_design_in_order(make: Make) -> None:
    queue = make()
    producer, consumer = Producer(queue), Consumer(queue)
    message_id = producer.publishMsg("x")
    message = consumer.pullMsg(timeout=0)
    assert message is not None
    consumer.acknowledge(message)

    assert queue.trace(message_id) == [
        "publishMsg",
        "onMsgReceived",
        "stored",
        "pullMsg",
        "retrieved",
        "acknowledged",
    ]
