"""Queues, exchanges, history and the server itself through the REST API, against a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rest.helpers import MSGPACK, Client
from tests.waiting import until


def test_a_queue_is_created_once_changed_after_and_deleted_with_a_count(client: Client) -> None:
    created = client.put("/queues/life", {"visibility_timeout": 5.5, "retention": 60})
    again = client.put("/queues/life", {"delay": 1})
    client.post("/queues/life/messages/batch", ["a", "b"])

    assert (created.status, created.value["created"]) == (201, True)
    assert (again.status, again.value["created"]) == (200, False)
    settings = client.get("/queues/life").value["settings"]
    assert (settings["visibility_timeout"], settings["delay"], settings["retention"]) == (5.5, 1, 60)
    assert client.delete("/queues/life?dry_run=true").value == {"messages": 2, "dry_run": True}
    assert client.delete("/queues/life?if_empty=true").code == "queue_in_use"
    assert client.delete("/queues/life").value["messages"] == 2
    assert client.get("/queues/life").code == "queue_not_found"


def test_if_absent_leaves_a_queue_alone(client: Client) -> None:
    client.queue("absent", delay=7)

    answer = client.put("/queues/absent?if_absent=true", {"delay": 9})

    assert (answer.status, answer.value["settings"]["delay"]) == (200, 7)


def test_post_creates_and_refuses_other_settings(client: Client) -> None:
    assert client.post("/queues", {"name": "posted", "delay": 5}).status == 201
    assert client.post("/queues", {"name": "posted", "delay": 5}).status == 200
    other = client.post("/queues", {"name": "posted", "delay": 6})

    assert (other.status, other.code) == (409, "queue_exists")


def test_times_that_never_end_are_null(client: Client) -> None:
    made = client.put("/queues/endless", {"retention": None, "history": None}).value["settings"]
    assert (made["retention"], made["history"]) == (None, None)

    client.patch("/queues/endless", {"retention": 60, "history": 0})
    bounded = client.get("/queues/endless").value["settings"]
    assert (bounded["retention"], bounded["history"]) == (60, 0)

    refused = client.patch("/queues/endless", {"retention": 0})
    assert (refused.status, "retention" in refused.value["detail"]) == (422, True)


def test_every_setting_is_shown_as_it_was_given(client: Client) -> None:
    client.queue("settings-dead")
    given = {
        "visibility_timeout": 12.5,
        "dlq": "settings-dead",
        "max_receives": 4,
        "dead_letter_expired": True,
        "delay": 1,
        "retention": 1000,
        "message_ttl": 500,
        "max_length": 10,
        "max_bytes": 1000,
        "max_body": 100,
        "overflow": "reject-dead-letter",
        "max_priority": 7,
        "exhausted": "drop",
        "fifo": True,
        "dedup_window": 10,
        "dedup_by_content": True,
        "dedup_per_group": True,
        "retry": {
            "kind": "exponential",
            "base": 2,
            "max": 60,
            "factor": 3.0,
            "jitter": 0.5,
            "on_expiry": False,
        },
        "history": 0,
        "paused": True,
        "relaxed": False,
        "dead_letter_exchange": None,
        "dead_letter_key": None,
        "concurrency": 100,
        "rate": "1000/s",
        "key_concurrency": None,
        "key_rate": "100/m burst 20",
        "key_limits": {"tenant-17": {"concurrency": 3}, "tenant-18": {"rate": None}},
    }

    shown = client.put("/queues/settings", given).value["settings"]

    assert shown == given


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "fast"},
        {"concurrency": 0},
        {"key_limits": {"a": {"speed": 3}}},
        {"key_limits": {"a": {"rate": "1/y"}}},
    ],
)
def test_limits_that_make_no_sense_are_refused(client: Client, wrong: dict[str, object]) -> None:
    assert client.put("/queues/limited", wrong).status in (400, 422)


def test_removing_the_dead_letter_queue_removes_its_limit(client: Client) -> None:
    client.queue("away-dead")
    client.queue("away", dlq="away-dead")

    settings = client.patch("/queues/away", {"dlq": None}).value["settings"]

    assert (settings["dlq"], settings["max_receives"]) == (None, None)


def test_lists_come_page_by_page(client: Client) -> None:
    names = [f"paged-{i}" for i in range(5)]
    for name in names:
        client.queue(name)

    first = client.get("/queues?prefix=paged-&limit=3").value
    second = client.get(f"/queues?prefix=paged-&limit=3&after={first['next']}").value

    assert [queue["name"] for queue in first["queues"] + second["queues"]] == names
    assert "next" not in second


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(client: Client) -> None:
    path = client.queue("pause")
    client.post(f"{path}/messages", {"payload": "x"})

    client.post(f"{path}/pause")
    assert client.receive(path) == []
    client.post(f"{path}/resume")
    assert len(client.receive(path)) == 1


def test_purge_empties_and_a_dry_run_only_counts(client: Client) -> None:
    path = client.queue("purge")
    client.post(f"{path}/messages/batch", ["a", "b"])

    assert client.post(f"{path}/purge?dry_run=true").value["messages"] == 2
    assert client.post(f"{path}/purge").value == {"messages": 2, "dry_run": False}
    assert client.get(f"{path}/stats").value["ready"] == 0


def test_accounts_do_not_see_each_other(client: Client, open_server: Any) -> None:
    other = Client(open_server.url, account="123456789012")
    client.queue("shared-name", delay=1)
    other.queue("shared-name", delay=2, dlq=None)
    other.post("/queues/shared-name/messages", {"payload": "theirs", "delay": 0})

    assert client.get("/queues/shared-name").value["settings"]["delay"] == 1
    assert client.get("/queues/shared-name/stats").value["ready"] == 0
    assert [queue["name"] for queue in other.get("/queues").value["queues"]] == ["shared-name"]
    missing = other.get("/queues/not-there")
    assert "@" not in missing.value["detail"]


@pytest.mark.parametrize(
    ("account", "name"), [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("%", "x"), ("/", "x")]
)
def test_no_two_names_of_accounts_and_queues_meet(open_server: Any, account: str, name: str) -> None:
    owner = Client(open_server.url, account=account)

    created = owner.put(f"/queues/{name.replace('/', '%2F')}", {})

    assert created.status == 201
    assert [queue["name"] for queue in owner.get("/queues").value["queues"]] == [name]


# -- dead letters, replay, tasks ----------------------------------------------------------------


def finished(client: Client, answer: Any) -> dict[str, Any]:
    """The task when it is over."""

    assert answer.status == 202, answer.data
    path = f"/tasks/{answer.value['id']}"
    assert answer.headers["location"] == f"/api/v1{path}"
    until(lambda: client.get(path).value["state"] != "running")
    task: dict[str, Any] = client.get(path).value
    return task


def dead_letter(client: Client, source: str, reasons: list[str]) -> None:
    client.queue(f"{source}-dead")
    path = client.queue(source, dlq=f"{source}-dead")
    for reason in reasons:
        client.post(f"{path}/messages", {"payload": reason})
        [message] = client.receive(path)
        client.post(f"{path}/nack", {"receipt_id": message["receipt_id"], "reject": True, "reason": reason})


def test_a_group_of_dead_letters_is_redriven_by_its_reason(client: Client) -> None:
    dead_letter(client, "by-reason", ["order 17 not found", "order 18 not found", "order not found", "late"])
    path = "/queues/by-reason-dead/redrive"

    group = "order <n> not found"
    would = client.post(path, {"filter": {"reason_group": group}, "dry_run": True}).value["total"]
    task = finished(client, client.post(path, {"filter": {"reason_group": group}}))

    assert (would, task["done"]) == (2, 2)


def test_dead_letters_are_grouped_by_what_their_reasons_have_in_common(client: Client) -> None:
    dead_letter(client, "grouped", ["timeout after 5 s", "timeout after 31 s", "no such user 0xbeef"])

    groups = client.get("/queues/grouped-dead/dead-letters/groups").value["groups"]
    listed = {queue["queue"]: queue for queue in client.get("/dead-letters").value["queues"]}

    assert [(group["reason"], group["count"]) for group in groups] == [
        ("timeout after <n> s", 2),
        ("no such user <hex>", 1),
    ]
    assert len(groups[0]["ids"]) == 2
    assert groups[0]["first"] <= groups[0]["last"]
    assert (listed["grouped-dead"]["messages"], listed["grouped-dead"]["sources"]) == (3, ["grouped"])


def test_redrive_brings_back_what_a_filter_chooses(client: Client) -> None:
    dead_letter(client, "redriven", ["good", "bad", "good"])
    path = "/queues/redriven-dead/redrive"

    would = client.post(path, {"filter": {"reason": "good"}, "dry_run": True})
    task = finished(client, client.post(path, {"filter": {"reason": "good"}}))

    assert (would.status, would.value["total"]) == (200, 2)
    assert (task["state"], task["done"]) == ("done", 2)
    assert client.get("/queues/redriven/stats").value["ready"] == 2
    assert client.get("/queues/redriven-dead/stats").value["ready"] == 1
    assert task["id"] in [each["id"] for each in client.get("/tasks").value["tasks"]]


def test_discard_removes_what_a_filter_chooses(client: Client) -> None:
    dead_letter(client, "discarded", ["good", "bad"])
    path = "/queues/discarded-dead/discard"

    would = client.post(path, {"filter": {"reason": "bad"}, "dry_run": True}).value["total"]
    task = finished(client, client.post(path, {"filter": {"reason": "bad"}}))

    assert (would, task["done"]) == (1, 1)
    [left] = client.get("/queues/discarded-dead/dead-letters").value["messages"]
    assert left["reason"] == "good"


def test_discard_and_redrive_leave_what_is_no_dead_letter_alone(client: Client) -> None:
    dead_letter(client, "mixed", ["x", "y"])
    dead, source, other = "/queues/mixed-dead", "/queues/mixed", client.queue("mixed-other")
    client.post(f"{dead}/messages", {"payload": "alive"})

    assert client.post(f"{dead}/redrive", {"dry_run": True}).value["total"] == 2
    assert client.post(f"{dead}/redrive", {"to": "mixed-other", "dry_run": True}).value["total"] == 3
    some = client.get(f"{dead}/dead-letters").value["messages"][:1]
    finished(client, client.post(f"{dead}/redrive", {"filter": {"ids": [some[0]["id"]]}}))
    # Back where it died it is a message like any other, although its death is still on record.
    for path, dying in ((source, 0), (dead, 1)):
        assert client.post(f"{path}/discard", {"dry_run": True}).value["total"] == dying
        assert finished(client, client.post(f"{path}/discard", {}))["done"] == dying
    assert finished(client, client.post(f"{dead}/redrive", {}))["done"] == 0
    assert len(client.receive(source, max=9)) == 1
    # To a queue that is named, whatever waits goes.
    assert finished(client, client.post(f"{dead}/redrive", {"to": "mixed-other"}))["done"] == 1
    assert [message["payload"] for message in client.receive(other, max=9)] == ["alive"]


def test_a_dry_run_is_refused_as_the_deletion_would_be(client: Client) -> None:
    path = client.queue("still-full")
    assert client.delete(f"{path}?if_empty=true&dry_run=true").value["messages"] == 0
    client.post(f"{path}/messages", {"payload": "x"})

    reported = [client.delete(f"{path}?if_empty=true{more}") for more in ("&dry_run=true", "")]
    assert [(answer.status, answer.code) for answer in reported] == [(409, "queue_in_use")] * 2
    assert reported[0].value["detail"] == reported[1].value["detail"]
    assert client.delete(f"{path}?dry_run=true").value["messages"] == 1


def test_a_replay_leaves_out_what_was_purged_unless_asked_for_it(client: Client) -> None:
    path = client.queue("swept")
    client.post(f"{path}/messages/batch", ["a", "b", "c"])
    assert client.post(f"{path}/purge").status == 200

    assert finished(client, client.post(f"{path}/replay", {"since": 0}))["done"] == 0
    wanted = {"since": 0, "include_purged": True}
    assert client.post(f"{path}/replay", {**wanted, "dry_run": True}).value["total"] == 3
    assert finished(client, client.post(f"{path}/replay", wanted))["done"] == 3


def test_a_replay_publishes_the_past_again_and_can_be_tried_before(client: Client) -> None:
    path, copy = client.queue("past"), client.queue("past-copy")
    client.post(
        f"{path}/messages/batch",
        [{"id": f"p{i}", "payload": i, "message_type": f"t{i % 2}"} for i in range(6)],
    )
    receipts = [message["receipt_id"] for message in client.receive(path, max=6)]
    client.post(f"{path}/ack", {"receipts": receipts})

    odd = {"filter": {"message_type": "t1"}, "to": "past-copy"}
    assert client.post(f"{path}/replay", {**odd, "dry_run": True}).value["total"] == 3
    assert finished(client, client.post(f"{path}/replay", odd))["done"] == 3
    assert [message["payload"] for message in client.receive(copy, max=10)] == [1, 3, 5]
    assert finished(client, client.post(f"{path}/replay", {"since_id": "p4"}))["done"] == 2
    assert client.post(f"{path}/replay", {}).code == "invalid"


def test_a_task_that_is_unknown_is_not_found(client: Client) -> None:
    assert client.get("/tasks/nope").code == "task_not_found"
    assert client.delete("/tasks/nope").code == "task_not_found"


def test_a_task_can_be_cancelled(client: Client) -> None:
    dead_letter(client, "slow", ["x"] * 5)

    started = client.post("/queues/slow-dead/redrive", {"rate": 1})
    client.delete(f"/tasks/{started.value['id']}")
    task = finished(client, started)

    assert task["state"] == "cancelled"
    assert task["done"] < 5


# -- exchanges ----------------------------------------------------------------------------------


def test_a_message_goes_through_an_exchange_to_the_queues_bound_to_it(client: Client) -> None:
    client.queue("routed-a")
    client.queue("routed-b")
    binding = {"source": "topics", "destination": "routed-a", "key": "order.*"}

    assert client.put("/exchanges/topics", {"kind": "topic"}).status == 201
    assert client.put("/exchanges/topics", {"kind": "topic"}).status == 200
    assert client.put("/exchanges/topics", {"kind": "direct"}).code == "invalid_setting"
    assert client.post("/bindings", binding).status == 201
    assert client.post("/bindings", binding).value == {"changed": False}
    sent = client.post("/exchanges/topics/publish", {"payload": "x", "routing_key": "order.new"})
    lost = client.post("/exchanges/topics/publish", {"payload": "x", "routing_key": "other"})

    assert (sent.status, sent.value["queues"]) == (201, ["routed-a"])
    assert lost.value["queues"] == []
    shown = client.get("/bindings?source=topics").value["bindings"]
    assert [(each["destination"], each["key"]) for each in shown] == [("routed-a", "order.*")]
    assert client.delete("/exchanges/topics?if_unused=true").code == "exchange_in_use"
    assert client.delete("/bindings", binding).value == {"changed": True}
    assert client.delete("/bindings", binding).code == "binding_not_found"
    assert client.delete("/exchanges/topics").status == 200
    assert client.get("/exchanges/topics").code == "exchange_not_found"


# -- history ------------------------------------------------------------------------------------


def test_past_messages_are_read_page_by_page_in_both_ways_in(client: Client) -> None:
    path = client.queue("history")
    client.post(f"{path}/messages/batch", [b"0", b"1", b"2"], kind=MSGPACK)
    client.post(f"{path}/messages", {"payload": {"n": 3}, "message_type": "t", "attributes": {"a": 1}})
    client.put("/exchanges/into-history", {"kind": "fanout"})
    client.post("/bindings", {"source": "into-history", "destination": "history"})
    client.post("/exchanges/into-history/publish", {"payload": "4"})
    receipts = [message["receipt_id"] for message in client.receive(path, max=10)]
    client.post(f"{path}/ack", {"receipts": receipts})

    seen: list[Any] = []
    after = 0
    while True:
        page = client.get(f"/history/messages?queue=history&limit=2&after_seq={after}", accept=MSGPACK).value
        seen += page["messages"]
        if "next_seq" not in page:
            break
        after = page["next_seq"]

    assert [each["payload"] for each in seen] == [b"0", b"1", b"2", {"n": 3}, "4"]
    assert (seen[3]["message_type"], seen[3]["attributes"]) == ("t", {"a": 1})
    assert client.get("/history/messages?queue=history&until=1980-01-01T00:00:00Z").value["messages"] == []


def test_a_segment_is_read_by_ranges_and_fits_its_index(client: Client) -> None:
    path = client.queue("segments")
    client.post(f"{path}/messages", {"payload": "needle-in-the-journal"})
    segment = client.get("/history/segments").value["segments"][-1]
    base = f"/history/segments/{segment['number']}"

    whole = client.get(f"{base}/data")
    part = client.get(f"{base}/data", range="bytes=8-19")
    tail = client.get(f"{base}/data", range="bytes=-5")
    beyond = client.get(f"{base}/data", range=f"bytes={10**12}-")
    index = client.get(f"{base}/index").data

    assert whole.status == 200
    assert b"needle-in-the-journal" in whole.data
    assert (part.status, part.data) == (206, whole.data[8:20])
    assert part.headers["content-range"].startswith("bytes 8-19/")
    assert len(tail.data) == 5
    assert (beyond.status, beyond.code) == (416, "range_not_satisfiable")
    assert len(index) % 32 == 0
    assert client.get("/history/segments/999999/data").code == "history_unavailable"
    assert client.get("/history/segments/x/index").code == "history_unavailable"


def test_an_export_is_complete_over_its_pages(client: Client) -> None:
    path = client.queue("export")
    client.post(f"{path}/messages/batch", [f"m{i}" for i in range(5)])

    lines: list[Any] = []
    target = "/export?queue=export&limit=2"
    while True:
        answer = client.get(target)
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines += [json.loads(line) for line in answer.data.splitlines()]
        if "openq-next" not in answer.headers:
            break
        target = f"/export?queue=export&limit=2&after={answer.headers['openq-next']}"

    assert [line["payload"] for line in lines] == [f"m{i}" for i in range(5)]
    assert all(line["position"] for line in lines)


# -- the server ---------------------------------------------------------------------------------


def test_the_server_reports_the_caller_and_its_own_state(client: Client) -> None:
    assert client.get("/whoami").value["open"] is True
    assert client.get("/health").value["ok"] is True
    server = client.get("/server").value
    assert (server["storage"], server["healthy"]) == ("journal", True)
