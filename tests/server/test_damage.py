"""One damaged record: the messages beside it are served, and everybody who should hears of the damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.broker.history import HistoryRange
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Draft, QueueSettings
from tests.cli.helpers import run_in_process
from tests.real_clients import boto
from tests.server.in_process import InProcessServer, in_process_server

QUEUES = ("by-sqs", "by-poll", "by-rest", "by-peek", "by-browse", "by-search", "by-get", "by-redrive")
GOOD = [f"good-{number}" for number in range(9)]


def body(queue: str, number: int) -> bytes:
    return f"poison of {queue}".encode() if number == 4 else f"good-{number - (number > 4)}".encode()


def damaged_broker(path: Path) -> LocalBroker:
    """Ten messages in each queue, one of them damaged on disk, and none in memory."""
    broker = LocalBroker(path, clock=VirtualClock())
    broker.declare("dead", QueueSettings())
    for queue in QUEUES:
        broker.declare(queue, QueueSettings(max_receives=3, dead_letter="dead", history_ms=3_600_000))
        for number in range(10):
            broker.publish(queue, Draft(body(queue, number), ENCODING_TEXT))
            broker.sync()
    broker.close()
    broker = LocalBroker(path, clock=VirtualClock())
    [segment] = (path / "journal").glob("*.seg")
    with open(segment, "r+b") as file:
        data = file.read()
        for queue in QUEUES:
            file.seek(data.index(body(queue, 4)))
            file.write(b"POISON")
    return broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    broker = damaged_broker(tmp_path_factory.mktemp("data"))
    with in_process_server(broker) as server:
        with server.wire() as wire:
            assert wire.get("/readyz").body == b"ready: journal\n"
        yield server
    broker.close()


@pytest.fixture(scope="module")
def sqs(server: InProcessServer) -> Iterator[Any]:
    client = boto.client(f"http://127.0.0.1:{server.port}")
    yield client
    client.close()


def broker_of(server: InProcessServer) -> LocalBroker:
    broker = server.server.context.broker
    assert isinstance(broker, LocalBroker)
    return broker


def is_set_aside(server: InProcessServer, queue: str) -> None:
    """The damage is named in the list, the log, the metrics and the health; nothing else is."""
    broker = broker_of(server)
    [damage] = [each for each in broker.inspect.damage.listed() if each.queue == queue]
    assert damage.kind == "set_aside"
    assert damage.message_id == broker.inspect.id_of(QUEUES.index(queue) * 10 + 5)
    assert damage.file.endswith(".seg")
    [line] = [line for line in server.records.lines if damage.message_id in line and "set aside" in line]
    assert queue in line
    assert f"{damage.file} at offset {damage.offset}" in line
    with server.wire() as wire:
        ready, health = wire.get("/readyz"), wire.get("/api/v1/health")
        metrics = (wire.get("/metrics").body + wire.get("/metrics/queues").body).decode()
        listed = wire.get("/api/v1/damage").json()["damage"]
    assert ready.status == 200
    assert ready.body.startswith(b"degraded: journal; ")
    assert health.status == 200
    assert (health.json()["ok"], health.json()["status"]) == (True, "degraded")
    assert any("set aside" in reason for reason in health.json()["reasons"])
    assert f'openq_queue_messages_set_aside{{account="000000000000",queue="{queue}"}} 1' in metrics
    assert "openq_degraded 1" in metrics
    assert "openq_healthy 1" in metrics
    assert (queue, damage.message_id) in [(each["queue"], each["id"]) for each in listed]
    assert broker.stats("dead").ready == 0


def test_sqs_receive_gives_the_nine_others_once(server: InProcessServer, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName="by-sqs")["QueueUrl"]

    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]

    assert [each["Body"] for each in received] == GOOD
    assert {each["Attributes"]["ApproximateReceiveCount"] for each in received} == {"1"}
    assert sqs.receive_message(QueueUrl=url).get("Messages") is None
    is_set_aside(server, "by-sqs")


def test_a_receive_of_one_message_goes_on_to_the_next(server: InProcessServer, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName="by-poll")["QueueUrl"]

    bodies = [sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"][0]["Body"] for _ in range(9)]

    assert bodies == GOOD
    is_set_aside(server, "by-poll")


def test_rest_receive_gives_the_nine_others_once(server: InProcessServer) -> None:
    answer = rest(server, "POST", "queues/by-rest/receive", {"max": 10})

    assert [(each["payload"], each["receive_count"]) for each in answer["messages"]] == [(b, 1) for b in GOOD]
    stats = broker_of(server).stats("by-rest")
    assert (stats.ready, stats.in_flight) == (0, 9)
    counters = stats.counters
    assert (counters["delivered"], counters["released"], counters["damaged"]) == (10, 1, 1)
    is_set_aside(server, "by-rest")


def test_peek_browse_and_search_show_the_others(server: InProcessServer) -> None:
    peeked = broker_of(server).inspect.peek("by-peek", 100)
    browsed = rest(server, "GET", "queues/by-browse/messages?limit=100")
    found = rest(server, "POST", "queues/by-search/search", {"text": "o"})

    assert [each.body for each in peeked] == [text.encode() for text in GOOD]
    assert [each["payload"] for each in browsed["messages"]] == GOOD
    assert [each["payload"] for each in found["messages"]] == GOOD
    for queue in ("by-peek", "by-browse", "by-search"):
        is_set_aside(server, queue)


def test_timelines_and_replay_go_on_around_the_damage(server: InProcessServer) -> None:
    broker = broker_of(server)
    assert len(broker.inspect.peek("by-get", 10)) == 9

    [step] = broker.inspect.timeline("by-get", broker.inspect.id_of(65))
    assert (step.what, step.detail) == ("removed", "damaged")  # how it was published is damaged
    past = broker.inspect.past("by-get", HistoryRange(limit=100))
    assert [each.body for each in past] == [text.encode() for text in GOOD]
    broker.declare("again", QueueSettings())
    count = broker.admin.replay("by-get", 0, None, to="again")
    assert count == 9
    assert [entry.body for entry in broker.inspect.peek("again", 10)] == [text.encode() for text in GOOD]


def test_a_damaged_dead_letter_does_not_stop_a_redrive(server: InProcessServer) -> None:
    broker = broker_of(server)
    for delivery in broker.receive("by-redrive", 10):
        broker.reject("by-redrive", [(delivery.entry.seq, delivery.number)])
    assert broker.stats("dead").ready == 10  # nobody has read them yet

    assert broker.admin.redrive("dead", "by-redrive") == 10

    received = broker.load(broker.receive("by-redrive", 10))
    assert [each.entry.body for each in received] == [text.encode() for text in GOOD]


def test_the_operator_clears_the_list_and_health_is_good_again(tmp_path: Path) -> None:
    broker = damaged_broker(tmp_path)
    with in_process_server(broker) as server:
        rest(server, "POST", "queues/by-rest/receive", {"max": 10})
        assert rest(server, "GET", "health")["status"] == "degraded"

        assert rest(server, "DELETE", "damage") == {"cleared": 1}

        assert rest(server, "GET", "health")["status"] == "ok"
        assert rest(server, "GET", "damage") == {"damage": []}
    broker.close()


def test_the_command_line_lists_and_clears_damage_and_degraded_health_names_it(tmp_path: Path) -> None:
    broker = damaged_broker(tmp_path)
    with in_process_server(broker) as server:
        url = f"http://127.0.0.1:{server.port}"
        for words in ("damage", "ls"), ("damage", "clear"), ("damage", "ls", "--json"):
            assert run_in_process(*words, OPENQ_URL=url).code == 5
        rest(server, "POST", "queues/by-rest/receive", {"max": 10})

        listed = run_in_process("damage", "ls", OPENQ_URL=url)
        [row] = run_in_process("damage", "ls", "--json", OPENQ_URL=url).out.splitlines()
        check = run_in_process("healthcheck", OPENQ_URL=url)
        doctor = run_in_process("doctor", "--data", tmp_path, "--json", OPENQ_URL=url, OPENQ_PORT="0")

        [damage] = broker.inspect.damage.listed()
        assert listed.code == check.code == 0
        assert f"{damage.file} at offset {damage.offset}" in listed.out
        assert (json.loads(row)["id"], json.loads(row)["queue"]) == (damage.message_id, "by-rest")
        assert "openq damage ls" in check.out
        assert "openq damage ls" in str(rest(server, "GET", "health")["hint"])
        [found] = [each for each in json.loads(doctor.out) if each["check"] == "server"]
        assert found["verdict"] == "warning"
        assert "openq damage ls" in found["detail"]
        assert json.loads(run_in_process("damage", "clear", "--json", OPENQ_URL=url).out) == {"cleared": 1}
        assert run_in_process("damage", "ls", OPENQ_URL=url).code == 5
        assert rest(server, "GET", "health")["hint"] is None
    broker.close()


def rest(
    server: InProcessServer, method: str, path: str, sent: object = None
) -> dict[str, list[dict[str, object]]]:
    with server.wire() as wire:
        answer = wire.rest(method, path, sent)
    assert answer.status == 200, answer.body
    found: dict[str, list[dict[str, object]]] = answer.json()
    return found
