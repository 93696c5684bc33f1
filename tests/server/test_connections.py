"""The connections of all protocols in one list: what it shows, who sees what, and how one is closed."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from websockets.exceptions import ConnectionClosedError

from openq import OpenQ
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.push.streams import opened
from tests.rest.helpers import Answer, Client
from tests.serving import Served, served_amqp
from tests.waiting import until

ACCOUNT = "111111111111"


class Place:
    def __init__(self, server: Served, amqp_port: int, tokens: dict[str, str]) -> None:
        self.server = server
        self.amqp_port = amqp_port
        self.tokens = tokens

    def client(self, user: str = "root") -> Client:
        token = self.tokens[user]
        return Client(self.server.url, headers={"authorization": f"Bearer {token}"})

    def listed(self, user: str = "root", query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client(user).get(f"/connections{query}").value["connections"]
        return found

    def one(self, protocol: str, user: str) -> dict[str, Any]:
        """The one connection, once it is there."""
        query = f"?protocol={protocol}&user={user}"
        until(lambda: len(self.listed(query=query)) == 1)
        return self.listed(query=query)[0]

    @contextmanager
    def amqp(self, user: str, vhost: str = "/", **options: Any) -> Iterator[pika.BlockingConnection]:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self.amqp_port, vhost, pika.PlainCredentials(user, "secret"), **options
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()

    def stream(self, user: str) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        return opened(self.server.url, additional_headers=headers, user_agent_header="tester/1.0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data: Path = tmp_path_factory.mktemp("connections") / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin", password="secret")
    store.add_user("ann", role="manager", password="secret")
    store.add_user("vera", role="viewer", password="secret")
    store.add_user("bob", role="manager", password="secret", account=ACCOUNT)
    store.add_user("cut", rules=[Rule("allow", frozenset({"receive"}), "jobs")], password="secret")
    tokens = {user: store.create_token(user, "test") for user in ("root", "ann", "vera", "bob", "cut")}
    with served_amqp(data) as (server, port):
        found = Place(server, port, tokens)
        found.client().queue("jobs")
        found.client().queue("mail")
        yield found
        assert [line for line in server.log if "Traceback" in line] == []


def test_an_amqp_connection_shows_its_channels_consumers_and_library(place: Place) -> None:
    with place.amqp("ann", client_properties={"connection_name": "orders-7"}) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("jobs", lambda *_: None, consumer_tag="first")
        place.client().post("/queues/jobs/messages", {"payload": "x"})
        until(lambda: place.one("amqp", "ann")["in_flight"] == 1)
        found = place.one("amqp", "ann")

        assert found["queues"] == ["jobs"]
        assert (found["channels"], found["consumers"], found["in_flight"]) == (1, 1, 1)
        assert "pika" in found["client"].lower()
        assert found["name"] == "orders-7"
        assert found["peer"].startswith("127.0.0.1:")
        shown = place.client().get(f"/connections/{found['id']}").value
        [channel_shown], [consumer] = shown["channel_details"], shown["consumer_details"]
        assert (channel_shown["prefetch"], channel_shown["unacked"]) == (7, 1)
        assert (consumer["name"], consumer["queue"]) == ("first", "jobs")
        assert (consumer["credit"], consumer["in_flight"], consumer["active"]) == (7, 1, True)
        connection.process_data_events(0)
        channel.basic_ack(1)
        until(lambda: connection.process_data_events(0) or place.one("amqp", "ann")["in_flight"] == 0)
    until(lambda: place.listed(query="?protocol=amqp") == [])


def test_a_stream_shows_its_subscriptions(place: Place) -> None:
    with place.stream("ann") as stream:
        stream.subscribe("jobs", credit={"messages": 3})
        reply = stream.ask("subscribe", sub="all", pattern="m*", credit={"messages": 5, "bytes": 1000})
        assert reply["op"] == "ok"
        place.client().post("/queues/jobs/messages", {"payload": "x"})
        [message] = stream.messages(1)
        found = place.one("ws", "ann")

        assert found["client"] == "tester/1.0"
        assert (found["consumers"], found["in_flight"]) == (2, 1)
        shown = place.client().get(f"/connections/{found['id']}").value
        by_id = {each["id"]: each for each in shown["subscription_details"]}
        assert (by_id["jobs"]["queue"], by_id["jobs"]["credit"], by_id["jobs"]["in_flight"]) == ("jobs", 3, 1)
        assert (by_id["all"]["pattern"], by_id["all"]["credit_bytes"], by_id["all"]["queues"]) == (
            "m*",
            1000,
            1,
        )
        stream.ack([message])


def poll(place: Place, user: str, queue: str) -> Answer:
    return place.client(user).post(f"/queues/{queue}/receive", {"wait": 60, "consumer": "poller"})


def test_consumers_of_a_queue_are_listed_over_all_protocols(place: Place) -> None:
    with ThreadPoolExecutor(1) as threads, place.amqp("ann") as connection, place.stream("ann") as stream:
        connection.channel().basic_consume("mail", lambda *_: None, consumer_tag="a")
        stream.subscribe("mail", credit={"messages": 4})
        waiting = threads.submit(poll, place, "ann", "mail")
        until(lambda: place.client().get("/consumers?queue=mail").value["total"] == 3)

        found = place.client().get("/consumers?queue=mail").value["consumers"]
        assert {each["protocol"]: each["credit"] for each in found} == {"amqp": None, "ws": 4, "http": 1}
        assert {each["user"] for each in found} == {"ann"}
        assert all(each["since"] and each["peer"].startswith("127.0.0.1:") for each in found)
        assert place.client().get("/consumers?queue=jobs").value == {
            "consumers": [],
            "total": 0,
            "next": None,
        }
        page = place.client().get("/consumers?queue=mail&limit=2").value
        assert len(page["consumers"]) == 2
        assert len(place.client().get(f"/consumers?queue=mail&after={page['next']}").value["consumers"]) == 1
        [poll_shown] = place.listed(query="?protocol=http")
        assert (poll_shown["state"], poll_shown["queues"]) == ("waiting", ["mail"])
        summary = place.client().get("/connections").value["http"]
        assert summary["waiting"] == 1
        assert summary["connections"] >= summary["busy"] >= 2
        assert summary["peers"][0]["peer"] == "127.0.0.1"
        place.client().delete(f"/connections/{poll_shown['id']}")
        assert waiting.result().status == 503


def test_filters_and_pages(place: Place) -> None:
    with place.amqp("ann") as first, place.amqp("vera"), place.stream("ann"):
        until(lambda: len(place.listed()) == 3)
        assert {each["user"] for each in place.listed(query="?user=vera")} == {"vera"}
        peer = next(each["peer"] for each in place.listed(query="?protocol=amqp&user=ann"))
        assert [each["peer"] for each in place.listed(query=f"?peer={peer}")] == [peer]
        assert len(place.listed(query="?peer=127.0.0.1")) == 3
        assert place.listed(query="?peer=192.0.2.1") == []
        assert place.listed(query="?server=elsewhere") == []
        pages, after = [], ""
        while after is not None:
            page = place.client().get(f"/connections?limit=2&after={after}").value
            assert page["total"] == 3
            pages.append([each["id"] for each in page["connections"]])
            after = page["next"]
        assert [len(page) for page in pages] == [2, 1]
        assert [*pages[0], *pages[1]] == [each["id"] for each in place.listed()]
        assert first.is_open
    assert place.client().get("/connections?protocol=smtp").status == 422


# -- closing


def test_a_closed_amqp_client_gets_the_reason_and_its_messages_return(place: Place) -> None:
    with place.amqp("ann") as connection:
        channel = connection.channel()
        got: list[bytes] = []
        channel.basic_consume("jobs", lambda *parts: got.append(parts[3]))
        place.client().post("/queues/jobs/messages", {"payload": "x"})
        until(lambda: connection.process_data_events(0.05) or bool(got))
        found = place.one("amqp", "ann")
        answer = place.client().delete(f"/connections/{found['id']}?reason=maintenance%20at%20noon")

        assert (answer.status, answer.value["state"]) == (200, "closed")
        with pytest.raises(ConnectionClosedByBroker, match="maintenance at noon") as closed:
            connection.process_data_events(10)
        assert closed.value.reply_code == 320
    [message] = place.client().receive("/queues/jobs", wait=10)
    place.client().post("/queues/jobs/ack", {"receipts": [message["receipt_id"]]})
    assert place.client().delete(f"/connections/{found['id']}").code == "connection_not_found"


def test_a_closed_stream_gets_the_reason_and_its_messages_return(place: Place) -> None:
    with place.stream("ann") as stream:
        stream.subscribe("jobs", credit={"messages": 1})
        place.client().post("/queues/jobs/messages", {"payload": "x"})
        stream.messages(1)
        place.client().delete(f"/connections/{place.one('ws', 'ann')['id']}?reason=too%20slow")

        with pytest.raises(ConnectionClosedError) as closed:
            stream.read()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4410, "too slow")
    [message] = place.client().receive("/queues/jobs", wait=10)
    place.client().post("/queues/jobs/ack", {"receipts": [message["receipt_id"]]})


def test_a_closed_long_poll_gets_the_reason_as_an_error(place: Place) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(poll, place, "ann", "mail")
        place.client().delete(f"/connections/{place.one('http', 'ann')['id']}?reason=moved")
        answer = waiting.result()

    assert (answer.status, answer.code) == (503, "connection_closed")
    assert "moved" in answer.value["detail"]
    assert answer.headers["connection"] == "close"


def test_a_closed_reader_of_events_gets_the_reason_as_an_event(place: Place) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", place.server.port, timeout=30)
    headers = {"authorization": f"Bearer {place.tokens['ann']}", "user-agent": "reader/2"}
    connection.request("GET", "/api/v1/queues/jobs/events", headers=headers)
    answer = connection.getresponse()
    found = place.one("sse", "ann")
    assert (found["client"], found["name"]) == ("reader/2", "jobs")
    place.client().delete(f"/connections/{found['id']}?reason=enough")

    text = answer.read().decode()
    connection.close()
    assert 'event: closed\ndata: {"event": "closed", "reason": "enough"}' in text


def test_the_library_goes_on_reading_events_after_its_stream_was_closed(place: Place) -> None:
    with (
        OpenQ("mail", url=place.server.url, token=place.tokens["ann"]) as queue,
        queue.events(events=["published"]) as events,
    ):
        seen: list[object] = []
        reader = threading.Thread(target=lambda: seen.append(next(iter(events))))
        reader.start()
        place.client().delete(f"/connections/{place.one('sse', 'ann')['id']}")
        until(lambda: place.listed(query="?protocol=sse") != [])
        queue.publish("after")
        reader.join(30)
        assert len(seen) == 1
        queue.ack(queue.receive(timeout=5))


# -- who sees what


def test_callers_see_their_own_and_those_of_an_account_that_they_may_peek(place: Place) -> None:
    with place.amqp("ann"), place.amqp("bob", ACCOUNT), place.amqp("cut"):
        until(lambda: len(place.listed()) == 3)

        def users(user: str) -> set[str]:
            return {each["user"] for each in place.listed(user)}

        assert users("root") == {"ann", "bob", "cut"}
        assert users("vera") == {"ann", "cut"}
        assert users("bob") == {"bob"}
        assert users("cut") == {"cut"}
        assert place.client("vera").get("/connections").value["http"] is None
        theirs = next(each["id"] for each in place.listed() if each["user"] == "bob")
        assert place.client("vera").get(f"/connections/{theirs}").code == "connection_not_found"
        in_account = place.client().get(f"/accounts/{ACCOUNT}/connections").value["connections"]
        assert [each["user"] for each in in_account] == ["bob"]


def test_callers_close_their_own_and_only_administrators_others(place: Place) -> None:
    with place.amqp("ann") as anns, place.amqp("cut") as cuts:
        mine, other = place.one("amqp", "cut")["id"], place.one("amqp", "ann")["id"]

        assert place.client("vera").delete(f"/connections/{other}").code == "forbidden"
        assert place.client("cut").delete(f"/connections/{other}").code == "connection_not_found"
        assert place.client("cut").delete(f"/connections/{mine}?reason=mine").status == 200
        with pytest.raises(ConnectionClosedByBroker):
            cuts.process_data_events(10)
        anns.process_data_events(0)
        assert anns.is_open

    def recorded() -> dict[tuple[str, str], dict[str, Any]]:
        page = place.client().get("/audit?action=close_connection&newest=true&limit=20")
        return {(each["user"], each["outcome"]): each for each in reversed(page.value["records"])}

    until(lambda: {("vera", "refused"), ("cut", "ok")} <= recorded().keys())  # written just after the answers
    done = recorded()["cut", "ok"]
    assert done["target"] == mine
    assert done["detail"]["connection_reason"] == "mine"
    assert done["detail"]["connection_user"] == "cut"


def test_a_journal_server_is_a_fleet_of_one(place: Place) -> None:
    [line] = place.client().get("/servers").value["servers"]

    assert line["url"] == place.server.url
    assert line["amqp_url"].endswith(f":{place.amqp_port}")
    assert (line["healthy"], line["self"], line["roles"], line["pid"]) == (
        True,
        True,
        ["all"],
        place.server.pid,
    )
    assert place.client("cut").get("/servers").status == 403
