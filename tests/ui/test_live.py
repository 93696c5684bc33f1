"""Live counts: the overview by page, and the stream of what changes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from openq.server import live_feed
from tests.rest.helpers import Client
from tests.server.in_process import InProcessServer, in_process_server
from tests.serving import served
from tests.waiting import until


class Stream:
    """The events of a live stream, with the state that a page would have."""

    def __init__(self, port: int, headers: dict[str, str] | None = None, path: str = "/api/v1/live") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", path, headers=headers or {})
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self.rows: dict[str, dict[str, Any]] = {}
        self.totals: dict[str, Any] = {}
        self.sizes: list[int] = []

    def read(self) -> bool:
        """One event. False: the stream has ended."""
        while line := self.answer.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                self.rows.update({row["name"]: row for row in event["queues"]})
                for name in event["removed"]:
                    self.rows.pop(name, None)
                self.totals = event["totals"]
                self.sizes.append(len(event["queues"]))
                self.is_complete = event["complete"]
                return True
        return False

    def until(self, condition: Any) -> None:
        while not condition():
            assert self.read(), "the stream ended"

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def streamed(port: int, headers: dict[str, str] | None = None) -> Iterator[Stream]:
    stream = Stream(port, headers)
    try:
        yield stream
    finally:
        stream.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessServer]:
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.05)
    with in_process_server(LocalBroker(None), Config(memory=True, drain_timeout_s=1)) as found:
        yield found


def client_of(server: InProcessServer) -> Client:
    return Client(f"http://127.0.0.1:{server.port}")


def test_the_stream_shows_all_queues_then_what_changes(server: InProcessServer) -> None:
    client = client_of(server)
    client.queue("dead")
    client.queue("orders", dlq="dead", max_receives=1)
    client.queue("idle")
    with streamed(server.port) as stream:
        stream.until(lambda: len(stream.rows) == 3)
        assert stream.totals["queues"] == 3
        assert stream.rows["orders"]["dlq"] == "dead"
        assert stream.rows["orders"]["oldest"] is None

        client.post("/queues/orders/messages/batch", ["a", "b"])
        stream.until(lambda: stream.rows["orders"]["ready"] == 2)
        assert stream.rows["orders"]["in_rate"] > 0
        assert stream.rows["orders"]["oldest"] is not None
        assert stream.totals["ready"] == 2
        stream.until(lambda: stream.rows["orders"]["in_rate"] == 0)  # it is shown when it ends, too
        assert stream.sizes[-1] == 1  # idle queues are not sent again

        [message] = client.receive("/queues/orders")
        stream.until(lambda: stream.rows["orders"]["in_flight"] == 1)
        client.post("/queues/orders/nack", {"receipt_id": message["receipt_id"]})
        stream.until(lambda: stream.rows["dead"]["ready"] == 1)
        client.post("/queues/orders/pause")
        stream.until(lambda: stream.rows["orders"]["paused"])
        client.delete("/queues/idle")
        client.queue("new")
        stream.until(lambda: "idle" not in stream.rows and "new" in stream.rows)


def test_no_listener_no_work(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.05)
    feed = server.server.context.live_feed
    assert not feed.is_sampling
    with streamed(server.port) as stream:
        assert stream.read()
        assert feed.is_sampling
    until(lambda: not feed.is_sampling and feed.readers == 0, "sampling ends with the last reader")


def test_the_wait_between_the_first_two_samples_is_not_work(server: InProcessServer) -> None:
    """Otherwise the first change after a page was opened would be shown seconds later."""
    feed = server.server.context.live_feed
    with feed._lock:
        assert feed._take() == live_feed.FIRST_S
        assert feed._take() == 0
    assert live_feed.pause_s(0.01) == 0.2
    assert live_feed.pause_s(0.2) == pytest.approx(1.8)


def test_the_overview_filters_sorts_and_pages(server: InProcessServer) -> None:
    client = client_of(server)
    for number in range(25):
        path = client.queue(f"Shop-{number:02}")
        for _ in range(number % 3):
            client.post(f"{path}/messages", {"payload": "x"})
    client.queue("other")

    page = client.get("/overview?match=shop-&sort=ready&descending=true&limit=10").value
    assert page["matched"] == 25
    assert page["totals"]["queues"] == 26
    assert page["totals"]["ready"] == 24
    ready = [row["ready"] for row in page["queues"]]
    assert ready == [2] * 8 + [1] * 2
    assert page["next"] == 10
    names = [row["name"] for row in page["queues"]]
    while "next" in page:
        target = f"/overview?match=shop-&sort=ready&descending=true&limit=10&offset={page['next']}"
        page = client.get(target).value
        names += [row["name"] for row in page["queues"]]
    assert sorted(names) == [f"Shop-{number:02}" for number in range(25)]
    assert client.get("/overview?limit=0").value["queues"] == []
    for query in ("sort=colour", "limit=10001", "offset=-1", "other=1"):
        assert client.get(f"/overview?{query}").status == 422
    oldest = client.get("/overview?sort=age&descending=true&limit=1").value["queues"][0]
    assert oldest["name"] == "Shop-01"


def test_many_queues_are_sent_in_pieces_and_sampled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "FEW_QUEUES", 10)
    monkeypatch.setattr(live_feed, "INTERVAL_S", 0.05)
    broker = LocalBroker(None)
    names = [f"q-{number:04}" for number in range(1_000)]
    for name in names:
        broker.declare(name, QueueSettings())
    with in_process_server(broker, Config(memory=True, drain_timeout_s=1)) as server:
        client = client_of(server)
        with streamed(server.port) as stream:
            stream.until(lambda: len(stream.rows) == len(names))
            assert max(stream.sizes) <= live_feed.ROWS_PER_EVENT
            sent = client.post("/queues/q-0500/messages", {"payload": "x", "delay": 3600}).value
            stream.until(lambda: stream.rows["q-0500"]["delayed"] == 1)
            client.patch(f"/queues/q-0500/messages/{sent['id']}", {"delay": 0})
            stream.until(lambda: stream.rows["q-0500"]["ready"] == 1)  # without a count
            client.post("/queues/q-0501/pause")
            stream.until(lambda: stream.rows["q-0501"]["paused"])
        assert len(client.get("/overview?limit=10000").value["queues"]) == len(names)


def test_a_user_sees_its_own_queues_and_their_sum(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("root", role="admin")
    store.add_user("ann", rules=[Rule("allow", frozenset({"peek"}), "mine-*")])
    tokens = {
        name: {"authorization": f"Bearer {store.create_token(name, 'test')}"} for name in ("root", "ann")
    }
    with served(tmp_path) as server:
        root, ann = (Client(server.url, headers=tokens[name]) for name in ("root", "ann"))
        for name in ("mine-1", "theirs"):
            root.post(f"{root.queue(name)}/messages", {"payload": "x"})
        found = ann.get("/overview").value
        assert [row["name"] for row in found["queues"]] == ["mine-1"]
        assert (found["totals"]["queues"], found["totals"]["ready"], found["matched"]) == (1, 1, 1)
        with streamed(server.port, tokens["ann"]) as stream:
            stream.until(lambda: "mine-1" in stream.rows)
            assert stream.totals["ready"] == 1
            root.queue("mine-2")
            root.queue("theirs-2")
            stream.until(lambda: "mine-2" in stream.rows)
            assert set(stream.rows) == {"mine-1", "mine-2"}
            root.put("/users/ann", {"rules": [{"effect": "allow", "actions": ["peek"], "queues": "theirs"}]})
            stream.until(lambda: set(stream.rows) == {"theirs"})
            root.delete("/users/ann")
            while stream.read():  # the login is over
                pass
        with streamed(server.port) as stream:
            assert stream.status == 401


def test_a_queue_of_another_account_is_in_its_own_stream(server: InProcessServer) -> None:
    client_of(server).queue("home")
    other = Client(f"http://127.0.0.1:{server.port}", account="111122223333")
    other.queue("abroad")

    rows = other.get("/overview").value["queues"]
    assert [row["name"] for row in rows] == ["abroad"]
    stream = Stream(server.port, path="/api/v1/accounts/111122223333/live?follow=0")
    stream.until(lambda: stream.rows)
    assert set(stream.rows) == {"abroad"}
    assert not stream.read()  # follow=0
    stream.close()
