"""Redrive that changes bodies and stops when messages fail again; undo of discard and purge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.redis.servers import single
from tests.rest.helpers import Answer, Client
from tests.serving import Served, free_port, start
from tests.waiting import until


@pytest.fixture(scope="module", params=["journal", "redis"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    if request.param == "journal":
        running = start(tmp_path_factory.mktemp("redrive") / "data")
        try:
            yield Client(running.wait().url)
        finally:
            running.stop()
        return
    with single() as redis:
        running = Served(["--store", redis.url, "--profile", "fast"], free_port())
        try:
            yield Client(running.wait().url)
        finally:
            running.stop()


def fail(client: Client, path: str, reason: str = "broken", limit: int = 10) -> int:
    """Reject what waits. Returns how many."""
    found = client.receive(path, max=limit)
    for message in found:
        client.post(f"{path}/nack", {"receipt_id": message["receipt_id"], "reject": True, "reason": reason})
    return len(found)


def dead_letter(client: Client, source: str, payloads: list[Any], **settings: Any) -> tuple[str, str]:
    dead = client.queue(f"{source}-dead", **settings)
    path = client.queue(source, dlq=f"{source}-dead")
    client.post(f"{path}/messages/batch", [{"payload": each} for each in payloads])
    left = len(payloads)
    while left:
        left -= fail(client, path, limit=100)
    return path, dead


def task_of(client: Client, answer: Answer) -> dict[str, Any]:
    assert answer.status == 202, answer.data
    task: dict[str, Any] = client.get(f"/tasks/{answer.value['id']}").value
    return task


def ended(client: Client, answer: Answer) -> dict[str, Any]:
    until(lambda: task_of(client, answer)["state"] != "running", "the task ends")
    return task_of(client, answer)


def test_a_redrive_changes_fields_and_leaves_what_cannot_be_changed(client: Client) -> None:
    bodies = [{"total": 1.10, "customer": {"id": 7}, "old": True}, "no JSON", [1, 2]]
    path, dead = dead_letter(client, "changed", bodies)
    change = {"set": {"customer.id": 8, "fixed": {"by": "hand"}}, "remove": ["old", "missing.too"]}

    tried = client.post(f"{dead}/redrive", {**change, "dry_run": True}).value
    task = ended(client, client.post(f"{dead}/redrive", change))

    assert tried["total"] == 3
    samples = {sample["before"]: sample for sample in tried["result"]["samples"]}
    first = next(sample for before, sample in samples.items() if "customer" in before)
    assert '"fixed":{"by":"hand"}' in first["after"]
    assert first["to"] == "changed"
    assert sum("error" in sample for sample in samples.values()) == 2
    assert (task["state"], task["done"], task["result"]) == ("done", 1, {"not_transformed": 2})
    [moved] = client.receive(path, max=9)
    assert moved["payload"] == {"total": 1.1, "customer": {"id": 8}, "fixed": {"by": "hand"}}
    assert client.get(f"{dead}/stats").value["ready"] == 2


def test_a_redrive_keeps_type_attributes_and_id(client: Client) -> None:
    path, dead = client.queue("kept"), client.queue("kept-dead")
    client.queue("kept", dlq="kept-dead")
    sent = {"payload": {"a": 1}, "message_type": "order", "attributes": {"colour": "red"}, "id": "kept-1"}
    client.post(f"{path}/messages", sent)
    fail(client, path)

    ended(client, client.post(f"{dead}/redrive", {"set": {"a": 2}}))

    [moved] = client.receive(path)
    assert (moved["payload"], moved["id"]) == ({"a": 2}, "kept-1")
    assert (moved["message_type"], moved["attributes"]) == ("order", {"colour": "red"})


def test_a_redrive_stops_when_its_messages_fail_again(client: Client) -> None:
    path, dead = dead_letter(client, "failing", list(range(20)))

    answer = client.post(f"{dead}/redrive", {"stop_after": 3})
    # Without a consumer it waits with the first ones.
    until(lambda: client.get(f"{path}/stats").value["ready"] == 3, "the first ones are back")
    assert task_of(client, answer)["state"] == "running"
    assert fail(client, path) == 3
    task = ended(client, answer)

    assert (task["state"], task["code"], task["done"]) == ("failed", "redrive_stopped", 3)
    assert task["result"] == {"failed_again": 3}
    assert "3 of 3 redriven messages failed again" in task["error"]
    assert client.get(f"{dead}/stats").value["ready"] == 20


def test_no_message_takes_the_place_of_one_that_failed_again(client: Client) -> None:
    path, dead = dead_letter(client, "one-by-one", list(range(20)))

    answer = client.post(f"{dead}/redrive", {"stop_after": 3})
    until(lambda: client.get(f"{path}/stats").value["ready"] == 3, "the first ones are back")
    for failed in (1, 2, 3):
        assert fail(client, path, limit=1) == 1
        until(lambda n=failed: task_of(client, answer)["result"]["failed_again"] == n, "it is noticed")

    assert ended(client, answer)["done"] == 3


def test_a_redrive_that_waits_for_consumers_can_send_the_rest(client: Client) -> None:
    path, dead = dead_letter(client, "unwatched", list(range(20)))

    answer = client.post(f"{dead}/redrive", {"stop_after": 3})
    until(lambda: task_of(client, answer)["result"].get("waits_for") == 3, "it says what it waits for")
    client.post(f"/tasks/{answer.value['id']}/resume", {"watch": False})
    task = ended(client, answer)

    assert (task["state"], task["done"], task["result"]) == ("done", 20, {"failed_again": 0})
    assert client.get(f"{path}/stats").value["ready"] == 20


def test_a_redrive_becomes_faster_while_its_messages_succeed(client: Client) -> None:
    path, dead = dead_letter(client, "succeeding", list(range(20)))

    answer = client.post(f"{dead}/redrive", {"stop_after": 2})
    sizes = []
    while sum(sizes) < 20:
        until(lambda: client.get(f"{path}/stats").value["ready"] > 0, "more are back")
        found = client.receive(path, max=100)
        client.post(f"{path}/ack", {"receipts": [message["receipt_id"] for message in found]})
        sizes.append(len(found))
    task = ended(client, answer)

    assert (task["state"], task["done"], task["total"]) == ("done", 20, 20)
    assert sizes[0] == 2
    assert max(sizes) > 2


def test_a_paused_redrive_moves_nothing_until_it_is_resumed(client: Client) -> None:
    path, dead = dead_letter(client, "paused", [{"n": n} for n in range(30)])
    begun = client.post(f"{dead}/redrive", {"rate": 1})
    task = f"/tasks/{begun.value['id']}"

    paused = client.post(f"{task}/pause").value
    assert (paused["state"], paused["paused"]) == ("running", True)
    # What was on its way when it was paused has arrived once two answers are the same.
    seen: list[int] = []
    until(lambda: seen.append(client.get(task).value["done"]) or seen[-2:] == [seen[-1]] * 2, "it stands")
    assert client.get(task).value["paused"]

    resumed = client.post(f"{task}/resume").value
    assert not resumed["paused"]
    until(lambda: client.get(task).value["done"] > seen[-1], "it goes on")
    client.post(f"{task}/pause")
    client.delete(task)  # ends a paused one too
    assert ended(client, begun)["state"] == "cancelled"
    assert not client.post(f"{task}/pause").value["paused"]
    assert client.get(f"{path}/stats").value["ready"] < 30


def test_a_redrive_that_waits_can_be_cancelled(client: Client) -> None:
    path, dead = dead_letter(client, "waiting", [1, 2, 3])
    answer = client.post(f"{dead}/redrive", {"stop_after": 1})
    until(lambda: client.get(f"{path}/stats").value["ready"] == 1, "the first one is back")

    client.delete(f"/tasks/{answer.value['id']}")

    task = ended(client, answer)
    assert (task["state"], task["done"]) == ("cancelled", 1)


@pytest.mark.parametrize(
    "wrong", [{"set": {"": 1}}, {"set": {"a..b": 1}}, {"remove": ["x" * 2000]}, {"stop_after": 0}]
)
def test_a_change_that_makes_no_sense_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    dead = client.queue("refused-dead")
    assert client.post(f"{dead}/redrive", wrong).status == 422


def test_a_discard_is_undone_with_failures_and_ids(client: Client) -> None:
    _, dead = dead_letter(client, "discarded", ["a", "b"])
    before = client.get(f"{dead}/dead-letters").value["messages"]

    task = ended(client, client.post(f"{dead}/discard", {"undo": True}))
    assert client.get(f"{dead}/stats").value["ready"] == 0
    undo = f"{dead}/undo/{task['result']['undo']}"
    answer = client.post(undo)

    assert (task["done"], answer.value) == (2, {"restored": 2, "failed": 0})
    after = client.get(f"{dead}/dead-letters").value["messages"]
    shown = [[(each["id"], each["reason"], each["source"]) for each in page] for page in (before, after)]
    assert sorted(shown[0]) == sorted(shown[1])
    assert client.post(undo).code == "undo_not_found"
    assert ended(client, client.post(f"{dead}/redrive", {}))["done"] == 2


def test_a_purge_is_undone(client: Client) -> None:
    path = client.queue("purged")
    sent = [{"payload": "a", "id": "p-1", "priority": 3}, {"payload": "b", "id": "p-2", "delay": 600}]
    client.post(f"{path}/messages/batch", sent)

    purged = client.post(f"{path}/purge?undo=true").value
    answer = client.post(f"{path}/undo/{purged['undo']}")

    assert (purged["messages"], answer.value["restored"]) == (2, 2)
    stats = client.get(f"{path}/stats").value
    assert (stats["ready"], stats["delayed"]) == (1, 1)
    assert client.get(f"{path}/messages/p-1").value["payload"] == "a"


def test_what_was_not_kept_cannot_be_undone(client: Client) -> None:
    path, other = client.queue("unkept"), client.queue("unkept-other")
    client.post(f"{path}/messages", {"payload": "a"})
    purged = client.post(f"{path}/purge?undo=true").value

    assert client.post(f"{other}/undo/{purged['undo']}").code == "undo_not_found"
    assert client.post(f"{path}/purge?undo=true").value == {"messages": 0, "dry_run": False, "undo": None}
    assert "undo" not in client.post(f"{path}/purge").value
