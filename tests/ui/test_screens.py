"""What the screens of the dashboard ask for, on a server with a data directory and on one over Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.redis.servers import FORCED, single
from tests.rest.helpers import Answer, Client
from tests.serving import Served, free_port, served
from tests.waiting import until


@pytest.fixture(scope="module", params=["journal", "redis"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    if request.param == "journal":
        with served(tmp_path_factory.mktemp("screens") / "data") as server:
            yield Client(server.url)
        return
    with single(*FORCED) as store:
        server = Served(["--store", store.url, "--profile", "fast"], free_port())
        try:
            yield Client(server.wait().url)
        finally:
            server.stop()


def send(client: Client, path: str, payload: object, **options: Any) -> str:
    answer = client.post(f"{path}/messages", {"payload": payload, **options})
    assert answer.status == 201, answer.data
    return str(answer.value["id"])


def fail(client: Client, path: str, reason: str) -> None:
    """Receive one message and let it fail for good."""
    [message] = client.receive(path, wait=10)
    body = {"receipt_id": message["receipt_id"], "reason": reason, "reject": True}
    assert client.post(f"{path}/nack", body).status == 200


def done(client: Client, answer: Answer) -> dict[str, Any]:
    """The end of a long operation."""
    assert answer.status == 202, answer.data
    task: dict[str, Any] = answer.value

    def has_ended() -> bool:
        task.update(client.get(f"/tasks/{task['id']}").value)
        return task["state"] != "running"

    until(has_ended, "the operation ends")
    return task


# -- a message by its id


def test_a_message_is_found_in_whatever_queue_it_is(client: Client) -> None:
    client.queue("find-dead")
    path = client.queue("find-1", dlq="find-dead", max_receives=1)
    ready, late = send(client, path, "a"), send(client, path, "b", delay=3600)

    [found] = client.get(f"/messages/{ready}").value["found"]
    assert (found["queue"], found["state"]) == ("find-1", "ready")
    assert found["message"]["payload"] == "a"
    assert [step["what"] for step in found["steps"]] == ["published"]
    assert client.get(f"/messages/{late}").value["found"][0]["state"] == "delayed"
    fail(client, path, "boom 17")
    [found] = client.get(f"/messages/{ready}").value["found"]
    assert (found["queue"], found["state"]) == ("find-dead", "ready")
    assert found["steps"][-1]["what"] == "dead-lettered"
    [message] = client.receive("/queues/find-dead")
    client.post("/queues/find-dead/ack", {"receipt_id": message["receipt_id"]})
    [found] = client.get(f"/messages/{ready}").value["found"]
    assert (found["message"], found["state"]) == (None, "acked")
    assert {step["queue"] for step in found["steps"]} == {"find-1", "find-dead"}


def test_an_unknown_id_is_found_nowhere(client: Client) -> None:
    path = client.queue("find-2")
    mine = send(client, path, "a", id="order-17")
    assert client.get("/messages/order-17").value["found"][0]["message"]["id"] == mine

    for id in ("no-such-message", "00000000-0000-0000-0000-000000000001", "%00", "a" * 400):
        answer = client.get(f"/messages/{id}")
        assert answer.status == 200, id
        assert answer.value["found"] == []
    assert client.get("/messages/x?budget=31").status == 422


# -- dead letters of all queues


def test_dead_letters_are_grouped_over_all_queues(client: Client) -> None:
    for number in (1, 2):
        client.queue(f"group-dead-{number}")
        path = client.queue(f"group-{number}", dlq=f"group-dead-{number}", max_receives=1)
        for order in range(3):
            send(client, path, {"order": order})
            fail(client, path, f"card of group {number * 1000 + order} was declined")
    send(client, "/queues/group-1", "other")
    fail(client, "/queues/group-1", "no such group")

    found = client.get("/dead-letter-groups?match=group").value
    assert found["complete"]
    card, other = found["groups"]
    assert card["reason"] == "card of group <n> was declined"
    assert card["count"] == 6
    assert {(part["queue"], part["count"]) for part in card["queues"]} == {
        ("group-dead-1", 3),
        ("group-dead-2", 3),
    }
    assert sorted(card["sources"]) == ["group-1", "group-2"]
    assert card["trend"] == [0] * 23 + [6]
    assert len(card["samples"]) == 5
    assert card["samples"][0]["reason"] == "card of group 2002 was declined"
    sample = card["samples"][0]
    assert client.get(f"/queues/{sample['queue']}/messages/{sample['id']}").status == 200
    assert (other["reason"], other["count"]) == ("no such group", 1)
    assert (found["total"], found["matched"]) == (7, 2)
    limited = client.get("/dead-letter-groups?match=group&limit=1").value
    assert (len(limited["groups"]), limited["matched"]) == (1, 2)
    # Of one queue: its own counts, sources and samples, though those of the other are newer.
    [one, _] = client.get("/dead-letter-groups?match=group&queue=group-dead-1").value["groups"]
    assert (one["count"], one["sources"], one["trend"][-1]) == (3, ["group-1"], 3)
    assert [each["queue"] for each in one["samples"]] == ["group-dead-1"] * 3
    assert client.get("/dead-letter-groups?queue=group-1").value["groups"] == []
    # A part of a group is what redrive takes.
    body = {"filter": {"reason_group": card["reason"]}, "dry_run": True}
    assert client.post("/queues/group-dead-1/redrive", body).value["total"] == 3


# -- replay


def test_a_replay_has_a_preview_and_an_end(client: Client) -> None:
    path = client.queue("past")
    for number in range(4):
        send(client, path, {"number": number})
    for message in client.receive(path, max=10):
        client.post(f"{path}/ack", {"receipt_id": message["receipt_id"]})
    steps = client.get("/history/messages?queue=past").value["messages"]
    begun = steps[0]["time"]

    preview = client.post(f"{path}/replay/preview", {"since": begun, "buckets": 10}).value
    assert preview["complete"]
    assert (preview["matched"], sum(preview["counts"]), len(preview["counts"])) == (4, 4, 10)
    assert preview["samples"][0]["id"] == steps[0]["id"]
    assert preview["bytes"] == 4 * len(b'{"number": 0}') or preview["bytes"] == 4 * len(b'{"number":0}')
    one = {"since": begun, "filter": {"json": {"number": 2}}}
    assert client.post(f"{path}/replay/preview", one).value["matched"] == 1
    assert client.post(f"{path}/replay/preview", {"since": begun, "until": begun}).status == 422

    until_first = {"since": begun, "until": begun, "dry_run": True}
    assert client.post(f"{path}/replay", until_first).value["total"] == 0
    later = {"since": begun, "until": time.time() + 3600}
    assert client.post(f"{path}/replay", {**later, "dry_run": True}).value["total"] == 4
    assert done(client, client.post(f"{path}/replay", later))["done"] == 4
    assert client.get(f"{path}/stats").value["ready"] == 4


# -- exchanges


def test_an_exchange_says_where_a_message_would_go(client: Client) -> None:
    for name in ("eu", "us", "all"):
        client.queue(f"route-{name}")
    client.put("/exchanges/route", {"kind": "topic"})
    for name, key in (("eu", "orders.eu.#"), ("us", "orders.us.#"), ("all", "orders.#")):
        binding = {"source": "route", "destination": f"route-{name}", "key": key}
        assert client.post("/bindings", binding).status == 201
    client.put("/exchanges/route-headers", {"kind": "headers"})
    binding = {"source": "route-headers", "destination": "route-eu", "arguments": {"colour": "blue"}}
    client.post("/bindings", binding)

    found = client.post("/exchanges/route/route", {"routing_key": "orders.eu.new"}).value
    assert (sorted(found["queues"]), found["others"], found["missing"]) == (["route-all", "route-eu"], 0, [])
    assert client.post("/exchanges/route/route", {"routing_key": "bills"}).value["queues"] == []
    blue = client.post("/exchanges/route-headers/route", {"attributes": {"colour": "blue"}}).value
    assert blue["queues"] == ["route-eu"]
    assert client.post("/exchanges/route-headers/route", {}).value["queues"] == []
    assert client.post("/exchanges/unknown/route", {}).status == 404
    assert client.get("/queues/route-eu/stats").value["ready"] == 0  # nothing was published


# -- permissions


def test_a_user_finds_only_what_it_may_see(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("root", role="admin")
    store.add_user("ann", rules=[Rule("allow", frozenset({"peek"}), "mine*")])
    tokens = {name: f"Bearer {store.create_token(name, 'test')}" for name in ("root", "ann")}
    with served(tmp_path) as server:
        root, ann = (Client(server.url, headers={"authorization": tokens[name]}) for name in ("root", "ann"))
        root.queue("mine-dead")
        root.queue("theirs-dead")
        root.queue("theirs", dlq="theirs-dead", max_receives=1)
        path = root.queue("mine", dlq="mine-dead", max_receives=1)
        hidden, shown = send(root, "/queues/theirs", "secret"), send(root, path, "open")
        assert ann.get(f"/messages/{hidden}").value["found"] == []
        assert ann.get(f"/messages/{shown}").value["found"][0]["queue"] == "mine"
        fail(root, "/queues/theirs", "secret reason")
        fail(root, path, "open reason")
        assert [each["reason"] for each in ann.get("/dead-letter-groups").value["groups"]] == ["open reason"]
        moved = root.post(f"/queues/mine-dead/messages/{shown}/move", {"to": "theirs"})
        assert moved.status == 200
        [left] = ann.get(f"/messages/{shown}").value["found"]
        assert left["message"] is None
        assert all(step["queue"].startswith("mine") for step in left["steps"])
        root.put("/exchanges/mine-exchange", {"kind": "fanout"})
        for name in ("mine", "theirs"):
            root.post("/bindings", {"source": "mine-exchange", "destination": name})
        found = ann.post("/exchanges/mine-exchange/route", {}).value
        assert (found["queues"], found["others"]) == (["mine"], 1)
