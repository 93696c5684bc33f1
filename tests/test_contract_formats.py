"""The founding contract's rows about formats, storage and recovery; see test_contract.py."""

import json
import subprocess
import sys
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from openq import (
    InvalidSetting,
    Message,
    OpenQ,
    VirtualClock,
)
from tests.client.helpers import (
    Make,
    bodies,
    in_process,
    schema,
    take,
    violations,
)

ROOT = Path(__file__).parent.parent
pytest_plugins = "tests.client.fixtures"


# -- 4. formats -------------------------------------------------------------------------------


def test_M1_the_transmission_view_has_id_timestamp_and_payload(make: Make) -> None:
    queue = make()
    sent = queue.publish("content")

    written = take(queue).to_dict("transmission")

    assert list(written) == ["id", "timestamp", "payload"]
    assert (written["id"], written["payload"]) == (sent, "content")
    assert Message.from_json('{"payload": 5}').body == 5


def test_M2_the_persistence_view_adds_the_status() -> None:
    written = Message("1", "x", status="dead").to_dict("persistence")

    assert written["status"] == "dead"
    with pytest.raises(InvalidSetting, match="status"):
        Message.from_json('{"payload": 5, "status": "lost"}')


def test_M3_the_consumption_view_adds_what_a_consumer_needs(make: Make) -> None:
    queue = make()
    queue.publish("x", message_type="example_type", priority=1, attributes={"a": "b"})
    message = take(queue)

    written = message.to_dict("consumption")

    assert (written["message_type"], written["priority"]) == ("example_type", 1)
    assert written["receipt_id"] == message.receipt_id
    assert (written["receive_count"], written["attributes"]) == (1, {"a": "b"})


@pytest.mark.parametrize("text", ["2023-04-03T10:30:00Z", "2023-04-03T10:30:00.007Z"])
def test_M4_timestamps_are_read_and_written_exactly(text: str) -> None:
    message = Message.from_json(json.dumps({"id": "1", "timestamp": text, "payload": "x"}))

    assert message.timestamp is not None
    assert message.timestamp.tzinfo is UTC
    assert json.loads(message.to_json("transmission"))["timestamp"] == text


@pytest.mark.parametrize(
    "body", ["text", "é✓ \u2028", b"\x00\xffbinary", b"", {"a": {"b": [1, 2.5, None]}}, [], 0, False, None]
)
def test_M5_every_body_survives_the_round_trip_through_json(make: Make, body: Any) -> None:
    queue = make()
    queue.publish(body, attributes={"raw": b"\x01", "deep": {"list": [b"\x02"]}})
    message = take(queue)

    again = Message.from_json(message.to_json())

    assert (again.body, type(again.body)) == (body, type(body))
    assert again.attributes == message.attributes
    assert (again.received_at, again.timestamp) == (message.received_at, message.timestamp)
    assert (again.id, again.receipt_id, again.receive_count) == (message.id, message.receipt_id, 1)


@pytest.mark.parametrize("view", ["transmission", "persistence", "consumption"])
@pytest.mark.parametrize("body", ["text", b"\xff", {"a": 1}])
def test_M6_every_view_obeys_its_published_schema(make: Make, view: str, body: Any) -> None:
    queue = make()
    queue.publish(body, message_type="t", priority=1, group="g", attributes={"a": b"b"})

    assert violations(take(queue).to_dict(view), schema(view)) == []


def test_M6_the_schemas_refuse_what_is_wrong() -> None:
    good = {"id": "1", "timestamp": "2023-04-03T10:30:00Z", "payload": "x", "status": "unprocessed"}
    assert violations(good, schema("persistence")) == []
    for change in ({"status": "lost"}, {"timestamp": "today"}, {"id": 5}, {"priority": 256}):
        assert violations({**good, **change}, schema("persistence")) != []
    assert violations({"id": "1"}, schema("transmission")) == ["$.payload is missing"]


@pytest.mark.parametrize("codec", ["auto", "raw", "json", "msgpack"])
def test_M7_the_codec_can_be_chosen(make: Make, codec: str) -> None:
    queue = make(codec=codec)
    body = b"bytes" if codec == "raw" else {"a": [1, "b"]}
    queue.publish(body)

    assert take(queue).body == body


def test_M7_a_codec_of_one_s_own_has_two_methods(make: Make) -> None:
    class Backwards:
        def encode(self, value: str) -> bytes:
            return value[::-1].encode()

        def decode(self, data: bytes) -> str:
            return data.decode()[::-1]

    queue = make(codec=Backwards())
    queue.publish("abc")

    assert take(queue).body == "abc"


@in_process
def test_M7_pickle_can_be_chosen_for_local_queues(make: Make) -> None:
    queue = make(codec="pickle")
    queue.publish({1, 2})

    assert take(queue).body == {1, 2}


def test_M7_a_pickle_is_opened_only_on_request(make: Make, tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path / "own", codec="pickle") as writer:
        writer.publish({1, 2})
        with OpenQ("jobs", path=tmp_path / "own") as reader, pytest.raises(InvalidSetting, match="pickle"):
            take(reader).body  # noqa: B018


# -- 5. storage and recovery ------------------------------------------------------------------


def test_R1_memory_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENQ_PATH", str(tmp_path / "data"))

    OpenQ("jobs", storage="memory").publish("x")
    OpenQ("jobs").publish("x")
    assert not (tmp_path / "data").exists()
    with OpenQ("jobs", path="env:OPENQ_PATH") as queue:
        queue.publish("x")
    assert (tmp_path / "data").exists()


def test_R2_a_queue_can_be_saved_and_loaded_as_json(make: Make, tmp_path: Path) -> None:
    queue = make("jobs", dlq="dead", max_receives=5)
    queue.publish("a", priority=2, attributes={"n": b"1"}, message_type="t")
    queue.publish(b"\xff")
    queue.publish({"c": 1}, delay=60)
    take(queue).nack(0, "failed")
    take(queue)
    before = [(m.id, m.body, m.priority, m.attributes, m.message_type, m.timestamp) for m in queue.messages]

    assert queue.save(tmp_path / "backup") == 3
    head, *lines = [json.loads(line) for line in (tmp_path / "backup").read_text().splitlines()]
    assert (head["queue"], head["dlq"]) == ("jobs", "dead")
    assert [line for line in lines if violations(line, schema("persistence"))] == []
    queue.purge()
    assert queue.load(tmp_path / "backup") == 3

    after = [(m.id, m.body, m.priority, m.attributes, m.message_type, m.timestamp) for m in queue.messages]
    assert sorted(map(str, after)) == sorted(map(str, before))
    assert take(queue).receive_count == 3


def test_R3_opening_brings_back_everything(tmp_path: Path, clock: VirtualClock) -> None:
    with OpenQ("jobs", 5, dlq="dead", max_receives=4, path=tmp_path, clock=clock) as queue:
        ids = queue.publish_many(["a", {"body": "b", "priority": 1}, {"body": "later", "delay": 60}])
        take(queue).nack(0)
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:
        assert (queue.visibility_timeout, queue.dlq, queue.settings.max_receives) == (5, "dead", 4)
        assert [message.id for message in queue.queue] == [ids[1], ids[0]]
        assert take(queue).receive_count == 2
        clock.advance(60)
        assert ids[2] in [message.id for message in queue.messages]


def test_R4_R5_publishes_and_acks_survive_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', path=sys.argv[1])\n"
        "for i in range(20): queue.publish(f'm{i}')\n"
        "for i in range(10): queue.receive().ack()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)

    with OpenQ("jobs", path=tmp_path) as queue:
        assert bodies(queue) == [f"m{i}" for i in range(10, 20)]


def test_R6_K1_storage_is_a_choice_of_keywords(tmp_path: Path) -> None:
    assert OpenQ("jobs").broker.journal is None
    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.broker.journal is not None
    for wrong in ({"storage": "tape"}, {"storage": "journal"}, {"storage": "memory", "path": tmp_path}):
        with pytest.raises(InvalidSetting):
            OpenQ("jobs", **wrong)


def test_R7_purged_messages_stay_purged(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path) as queue:
        queue.publish("x")
        queue.purge()
    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.messages == []
