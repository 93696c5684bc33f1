"""Subscriptions and cursors over REST: through kill -9, by several users, with a waiting reader."""

from __future__ import annotations

import json
import random
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.packed import CONTENT_TYPE, unpack
from tests.rest.helpers import Answer, Client
from tests.serving import Served, free_port, start
from tests.waiting import until


class Reader:
    """One subscription, as a reader uses it."""

    def __init__(self, client: Client, queue: str, owner: str | None = None, name: str | None = None) -> None:
        self.client = client
        self.queue = queue
        self.owner = owner
        self.path = f"/pipeline/subscriptions/{name or queue}"

    def next_batch(self, after: int = 0, **options: Any) -> Answer:
        body = {"queue": self.queue, "after": after, "owner": self.owner, **options}
        return self.client.post(f"{self.path}/batches", body)

    def rows(self, number: int, **query: int) -> dict[str, list[Any]]:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        answer = self.client.get(f"{self.path}/batches/{number}?{text}")
        assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE), answer.data
        assert answer.headers.get("openq-expired") == ("true" if not unpack(answer.data)["body"] else None)
        return unpack(answer.data)

    def bodies(self, number: int, **query: int) -> list[bytes]:
        return self.rows(number, **query)["body"]

    def ack(self, through: int) -> Answer:
        return self.client.post(f"{self.path}/ack", {"through": through, "owner": self.owner})

    def show(self) -> dict[str, Any] | None:
        shown = self.client.get("/pipeline/subscriptions").value["subscriptions"]
        found = [each for each in shown if each["name"] == self.path.rpartition("/")[2]]
        return found[0] if found else None


def publish(client: Client, queue: str, bodies: list[str]) -> None:
    for first in range(0, len(bodies), 1000):
        answer = client.post(f"/queues/{queue}/messages/batch", bodies[first : first + 1000])
        assert answer.status == 201, answer.data


def as_bytes(bodies: list[str]) -> list[bytes]:
    return [body.encode() for body in bodies]


def test_a_queue_is_read_in_batches_and_ends_empty(client: Client) -> None:
    client.queue("batched")
    bodies = [f"{i:06d}" for i in range(2_500)]
    publish(client, "batched", bodies)
    reader = Reader(client, "batched", "me")

    formed = reader.next_batch(0, limit=2_000).value
    assert (formed["batch"], formed["count"], formed["bytes"]) == (1, 2_000, 12_000)
    assert reader.next_batch(0, limit=5).value["count"] == 2_000
    pieces = [reader.bodies(1, part=i, parts=3) for i in range(3)]
    assert [body for piece in pieces for body in piece] == as_bytes(bodies[:2_000])
    assert reader.next_batch(1).value["batch"] == 2
    assert reader.next_batch(2).value == {"batch": 2, "count": 0, "bytes": 0, "lease_until": None}
    shown = reader.show()
    assert shown is not None
    assert (shown["queue"], shown["owner"], shown["first_open"], shown["messages"]) == (
        "batched",
        "me",
        1,
        2_500,
    )
    assert [each["number"] for each in shown["batches"]] == [1, 2]
    metrics = client.send("GET", "/metrics").data.decode()
    assert 'openq_subscription_open_messages{account="000000000000",subscription="batched"} 2500' in metrics

    assert reader.ack(1).value == {"acked": 2_000, "lost": 0}
    assert reader.ack(1).value == {"acked": 0, "lost": 0}
    assert reader.bodies(1) == []
    assert reader.bodies(2) == as_bytes(bodies[2_000:])
    assert reader.ack(2).value["acked"] == 500
    stats = client.get("/queues/batched/stats").value
    assert (stats["ready"], stats["in_flight"]) == (0, 0)


def test_rows_come_with_all_columns(client: Client) -> None:
    path = client.queue("columned")
    client.post(
        f"{path}/messages",
        {"payload": "x", "message_type": "t", "attributes": {"a": "b"}, "publisher": "ann", "id": "own"},
    )
    reader = Reader(client, "columned")
    reader.next_batch()

    rows = reader.rows(1)

    assert (rows["message_id"], rows["type"], rows["producer"]) == (["own"], ["t"], ["ann"])
    assert (rows["queue"], rows["receive_count"]) == (["columned"], [1])
    assert rows["attributes"] == [{"a": {"type": "String", "string": "b", "binary": None}}]


def test_a_reader_that_closes_its_half_ends_its_wait(client: Client) -> None:
    client.queue("left")
    body = json.dumps({"queue": "left", "after": 0, "wait": 60}).encode()
    target = f"{client.prefix}/pipeline/subscriptions/left/batches"
    with socket.create_connection((client.host, client.port), timeout=30) as connection:
        connection.sendall(
            f"POST {target} HTTP/1.1\r\nHost: {client.host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(100) == b""  # long before the wait is over


def test_nothing_is_lost_or_doubled_by_kill_9_anywhere(tmp_path: Path) -> None:
    """The client only knows what it was answered; whatever is in between may have happened or not."""
    rng = random.Random(20)
    port = free_port()
    bodies = [f"{i:06d}" for i in range(2_000)]
    server = start(tmp_path / "data", port=port).wait()
    client = Client(server.url)
    client.queue("killed")
    publish(client, "killed", bodies)
    seen: dict[int, list[bytes]] = {}
    number = acked = 0

    def again(served: Served) -> Served:
        served.kill()
        return start(tmp_path / "data", port=port).wait()

    try:
        for run in range(100):
            reader = Reader(client, "killed", f"run-{run}")
            if rng.random() < 0.5:
                # In the middle of a call: its answer never comes.
                call = rng.choice(
                    [partial(reader.next_batch, number, limit=700), partial(reader.ack, number)]
                )
                lost = threading.Thread(target=_quietly, args=(call,))
                lost.start()
                server = again(server)
                lost.join()
            reader.ack(number)
            acked = number
            formed = reader.next_batch(number, limit=rng.choice([500, 700])).value
            if formed["batch"] == number:
                break
            number = formed["batch"]
            seen[number] = reader.bodies(number)
            assert len(seen[number]) == formed["count"]
            if rng.random() < 0.5:
                server = again(server)
            for part in range(2):
                half = len(seen[number]) // 2
                expected = seen[number][half:] if part else seen[number][:half]
                assert reader.bodies(number, part=part, parts=2) == expected
        assert acked == number
        assert sorted(body for batch in seen.values() for body in batch) == as_bytes(bodies)
        stats = client.get("/queues/killed/stats").value
        assert (stats["ready"], stats["in_flight"]) == (0, 0)
    finally:
        server.stop()


def _quietly(call: Any) -> None:
    try:
        call()
    except Exception:
        return


def test_the_old_run_of_a_reader_is_refused(client: Client) -> None:
    client.queue("fenced")
    publish(client, "fenced", ["a", "b"])
    old, new = Reader(client, "fenced", "old"), Reader(client, "fenced", "new")
    old.next_batch(0, limit=1)
    assert new.next_batch(0).value["batch"] == 1

    for answer in (
        old.next_batch(1),
        old.ack(1),
        client.post("/pipeline/subscriptions/fenced/extend", {"owner": "old"}),
    ):
        assert (answer.status, answer.code) == (409, "subscription_taken")
    assert new.ack(1).value["acked"] == 1


def test_a_batch_that_is_not_read_in_time_returns_and_one_that_is_extended_does_not(client: Client) -> None:
    client.queue("leased")
    publish(client, "leased", ["a"])
    reader = Reader(client, "leased")
    reader.next_batch(0, lease_s=0.2)

    until(lambda: client.get("/queues/leased/stats").value["ready"] == 1)
    assert reader.bodies(1) == []
    assert reader.ack(1).value["acked"] == 0
    assert reader.next_batch(1, lease_s=0.5).value["batch"] == 2
    assert client.post("/pipeline/subscriptions/leased/extend", {"lease_s": 600}).value == {"messages": 1}
    assert reader.rows(2)["receive_count"] == [2]


def test_who_waits_gets_the_batch_as_soon_as_there_is_one(client: Client) -> None:
    client.queue("awaited")
    reader = Reader(client, "awaited", "me")
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(reader.next_batch(0, wait=30)))
    waiting.start()
    until(lambda: client.get("/queues/awaited/stats").value["waiters"] == 1)

    publish(client, "awaited", ["a"])
    waiting.join(30)

    assert [answer.value["batch"] for answer in answers] == [1]
    assert reader.bodies(1) == [b"a"]
    assert reader.next_batch(1, wait=0.05).value["batch"] == 1
    assert client.get("/queues/awaited/stats").value["waiters"] == 0


def test_who_waits_hears_that_the_queue_is_gone(client: Client) -> None:
    client.queue("dropped")
    reader = Reader(client, "dropped")
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(reader.next_batch(0, wait=30)))
    waiting.start()
    until(lambda: client.get("/queues/dropped/stats").value["waiters"] == 1)

    client.delete("/queues/dropped")
    waiting.join(30)

    assert [answer.code for answer in answers] == ["queue_not_found"]


def test_a_client_that_hangs_up_while_it_waits_takes_nothing(client: Client) -> None:
    import http.client
    import json

    client.queue("hung")
    connection = http.client.HTTPConnection(client.host, client.port, timeout=30)
    body = json.dumps({"queue": "hung", "wait": 30})
    connection.request("POST", "/api/v1/pipeline/subscriptions/hung/batches", body)
    until(lambda: client.get("/queues/hung/stats").value["waiters"] == 1)

    connection.close()
    until(lambda: client.get("/queues/hung/stats").value["waiters"] == 0)
    publish(client, "hung", ["a"])

    assert client.get("/queues/hung/stats").value["ready"] == 1


def test_a_deleted_subscription_gives_everything_back(client: Client) -> None:
    client.queue("given")
    publish(client, "given", ["a", "b"])
    reader = Reader(client, "given")
    reader.next_batch()

    assert client.delete("/pipeline/subscriptions/given").value == {"messages": 2}

    assert client.get("/queues/given/stats").value["ready"] == 2
    assert reader.show() is None
    assert client.get("/pipeline/subscriptions/given/batches/1").code == "subscription_not_found"
    assert client.delete("/pipeline/subscriptions/given").code == "subscription_not_found"
    assert reader.ack(1).value == {"acked": 0, "lost": 0}  # there is nothing to do, and that is done


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"queue": "nowhere"}, "queue_not_found"),
        ({"queue": "asked", "limit": 100_001}, "invalid"),
        ({"queue": "asked", "limit": 0}, "invalid"),
        ({"queue": "asked", "lease_s": 0}, "invalid"),
        ({"queue": "asked", "after": -1}, "invalid"),
        ({"queue": "asked", "after": 1 << 53}, "invalid"),
        ({"queue": "asked", "unknown": 1}, "invalid"),
        ({}, "invalid"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, body: dict[str, Any], code: str) -> None:
    client.queue("asked")

    assert client.post("/pipeline/subscriptions/asked/batches", body).code == code
    assert client.get("/pipeline/subscriptions/asked/batches/x").code == "subscription_not_found"


def test_a_part_that_is_none_and_a_number_that_is_none_are_refused(client: Client) -> None:
    client.queue("parted")
    Reader(client, "parted").next_batch()

    assert client.get("/pipeline/subscriptions/parted/batches/1?part=2&parts=2").code == "invalid_setting"
    assert client.get("/pipeline/subscriptions/parted/batches/1?parts=0").code == "invalid"
    assert client.get("/pipeline/subscriptions/parted/batches/-1").code == "invalid"
    beyond = {"through": (1 << 53) + 1}
    assert client.post("/pipeline/subscriptions/parted/ack", beyond).code == "invalid"


# -- cursors


def test_a_cursor_shows_how_far_its_reader_is(client: Client) -> None:
    client.queue("read")
    publish(client, "read", ["x"] * 10)

    made = client.put("/pipeline/cursors/reader", {"position": 0, "hold_s": 60, "hold_bytes": 1 << 33})
    assert made.status == 200, made.data
    listed = client.get("/pipeline/cursors")
    assert listed.status == 200, listed.data
    [shown] = [each for each in listed.value["cursors"] if each["name"] == "reader"]
    metrics = client.send("GET", "/metrics").data.decode()

    assert (shown["hold_s"], shown["hold_bytes"], shown["lost"]) == (60, 1 << 33, False), shown
    assert shown["lag_bytes"] > 0
    assert shown["lag_s"] >= 0
    # Where the journal begins: its first segment may be freed by what other tests did on this server.
    assert shown["position"] == made.value["position"] > 0
    for name in ("lag_bytes", "lag_seconds", "lost"):
        assert f'openq_cursor_{name}{{cursor="reader"}}' in metrics
    assert client.put("/pipeline/cursors/reader", {"position": 1 << 60}).code == "invalid_setting"
    assert client.delete("/pipeline/cursors/reader").value["name"] == "reader"
    assert client.delete("/pipeline/cursors/reader").code == "cursor_not_found"


# -- permissions


def test_only_who_may_receive_from_its_queue_sees_a_subscription(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin")
    receive = frozenset({"receive"})
    store.add_user("ann", rules=[Rule("allow", receive | {"peek"}, "*")])
    store.add_user("bob", rules=[Rule("allow", receive, "bobs")])
    store.add_user("eve", rules=[Rule("allow", frozenset({"peek"}), "*")])
    tokens = {name: store.create_token(name, "test") for name in ("root", "ann", "bob", "eve")}
    server = start(data).wait()
    try:
        root, ann, bob, eve = (
            Client(server.url, headers={"authorization": f"Bearer {tokens[name]}"})
            for name in ("root", "ann", "bob", "eve")
        )
        root.queue("anns")
        root.queue("bobs")
        publish(root, "anns", ["secret"])
        publish(root, "bobs", ["x"])
        assert Reader(ann, "anns", name="s").next_batch().value["count"] == 1

        assert bob.get("/pipeline/subscriptions").value == {"subscriptions": []}
        assert eve.get("/pipeline/subscriptions").value == {"subscriptions": []}
        for client in (bob, eve):
            for answer in (
                client.get("/pipeline/subscriptions/s/batches/1"),
                client.delete("/pipeline/subscriptions/s"),
                client.post("/pipeline/subscriptions/s/ack", {"through": 9}),
                client.post("/pipeline/subscriptions/s/extend", {}),
            ):
                assert answer.code == "subscription_not_found"
        assert Reader(bob, "anns", name="other").next_batch().status == 403
        # Nor can it be taken over by way of a queue of one's own.
        assert Reader(bob, "bobs", "bob", name="s").next_batch().code == "subscription_not_found"
        assert Reader(bob, "bobs", name="mine").next_batch().value["count"] == 1

        assert bob.get("/pipeline/cursors").status == 403
        assert bob.put("/pipeline/cursors/c", {"position": 0}).status == 403
        assert ann.put("/pipeline/cursors/c", {"position": 0}).value["owner"] == "ann"
        assert eve.get("/pipeline/cursors").status == 200
        assert eve.put("/pipeline/cursors/c", {"position": 0}).status == 403
        assert eve.delete("/pipeline/cursors/c").status == 403
        assert root.put("/pipeline/cursors/c", {"position": 0}).value["owner"] == "ann"
        assert ann.delete("/pipeline/cursors/c").status == 200
    finally:
        server.stop()


def test_a_consumer_that_calls_itself_a_batch_is_refused(client: Client) -> None:
    path = client.queue("named")
    publish(client, "named", ["a"])

    for wait in (0, 1):
        answer = client.post(f"{path}/receive", {"consumer": "batch:s:1", "wait": wait})
        assert (answer.status, answer.code) == (422, "invalid_setting"), answer.data

    assert len(client.post(f"{path}/receive", {"consumer": "a batch"}).value["messages"]) == 1


def test_a_subscription_of_a_deleted_queue_is_not_listed(client: Client) -> None:
    path = client.queue("brief")
    reader = Reader(client, "brief")
    assert reader.next_batch().status == 200
    assert reader.show() is not None

    assert client.delete(path).status in (200, 204)

    assert reader.show() is None
    assert client.get("/pipeline/cursors").value["holds_all"] is False
