"""Schedules over REST: declared, shown with their next runs, run, paused and deleted."""

from __future__ import annotations

import base64
import time
from datetime import datetime
from typing import Any

import pytest

from tests.rest.helpers import MSGPACK, Client

REPORT = {
    "queue": "rest-schedules",
    "payload": {"kind": "daily"},
    "cron": "0 7 * * mon-fri",
    "timezone": "Europe/Berlin",
    "misfire": "all",
    "jitter": 1.5,
    "start": "2040-01-01T00:00:00Z",
    "end": "2040-12-31T00:00:00Z",
    "priority": 3,
    "group": "g",
    "message_type": "report",
    "attributes": {"tenant": "a"},
    "delay": 2,
    "ttl": 60,
    "unique_key": "report",
    "publisher": "cron",
}


@pytest.fixture
def queue(client: Client) -> str:
    return client.queue("rest-schedules")


def test_a_schedule_is_declared_shown_and_deleted(client: Client, queue: str) -> None:
    made = client.put("/schedules/report", REPORT)
    assert made.status == 201
    shown = client.get("/schedules/report?next_runs=3")
    assert shown.status == 200
    assert REPORT.items() <= shown.value.items()
    assert shown.value["next_runs"] == [f"2040-01-0{day}T06:00:00Z" for day in (2, 3, 4)]
    assert (shown.value["runs"], shown.value["missed"], shown.value["paused"]) == (0, 0, False)

    assert client.put("/schedules/report", REPORT).status == 200
    assert "report" in [each["name"] for each in client.get("/schedules").value["schedules"]]
    assert client.delete("/schedules/report").value == {"id": "report"}
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/run"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ):
        answer = client.call(method, f"/schedules/report{path}", {} if method == "POST" else None)
        assert (answer.status, answer.code) == (404, "schedule_not_found")


def test_a_schedule_runs_and_its_messages_say_so(client: Client, queue: str) -> None:
    client.post(f"{queue}/purge", {})
    client.put("/schedules/beat", {"queue": "rest-schedules", "payload": "x", "every": 0.1})
    found: list[dict[str, Any]] = client.receive(queue, wait=20)
    client.delete("/schedules/beat")
    [message, *_] = found
    assert (message["payload"], message["attributes"]["openq-schedule"]) == ("x", "beat")
    assert datetime.fromisoformat(message["attributes"]["openq-due"]).timestamp() <= time.time()


def test_a_schedule_runs_out_of_turn_and_pauses(client: Client, queue: str) -> None:
    client.post(f"{queue}/purge", {})
    client.put("/schedules/later", {"queue": "rest-schedules", "payload": 7, "cron": "@yearly"})
    paused = client.post("/schedules/later/pause", {}).value
    assert (paused["paused"], paused["next_run"], paused["next_runs"]) == (True, None, [])
    ran = client.post("/schedules/later/run", {})
    assert ran.status == 201
    [message] = client.receive(queue)
    assert (message["id"], message["payload"]) == (ran.value["id"], 7)
    resumed = client.post("/schedules/later/resume", {}).value
    assert (resumed["paused"], len(resumed["next_runs"]), resumed["runs"]) == (False, 5, 1)
    client.delete("/schedules/later")


def test_bytes_stay_bytes(client: Client, queue: str) -> None:
    body = {"queue": "rest-schedules", "payload": b"\0\xff", "every": 3600}
    assert client.put("/schedules/raw", body, kind=MSGPACK).status == 201
    shown = client.get("/schedules/raw").value
    assert (shown["payload"], shown["payload_encoding"]) == (base64.b64encode(b"\0\xff").decode(), "base64")
    client.delete("/schedules/raw")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cron": "61 * * * *"}, "minute must be 0 to 59, not '61'"),
        ({"timezone": "Mars"}, "unknown time zone 'Mars'"),
        ({"every": 60}, "either cron or every"),
        ({"misfire": "never"}, "misfire"),
        ({"colour": 1}, "colour"),
        ({"start": "tomorrow"}, "start must look like"),
        ({"queue": ""}, "queue"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_reason(
    client: Client, queue: str, change: dict[str, Any], words: str
) -> None:
    answer = client.put("/schedules/wrong", {**REPORT, **change})
    assert answer.status == 422
    assert words in answer.value["detail"]
    assert client.get("/schedules/wrong").status == 404


def test_accounts_have_schedules_of_their_own(client: Client, queue: str) -> None:
    other = Client(f"http://{client.host}:{client.port}", account="111111111111")
    other.queue("theirs")
    other.put("/schedules/report", {**REPORT, "queue": "theirs"})
    assert [each["name"] for each in other.get("/schedules").value["schedules"]] == ["report"]
    assert client.get("/schedules/report").status == 404
    assert other.delete("/schedules/report").status == 200
