"""The handshake, logins, tickets, limits and hostile clients of the stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from openq.auth.guard import Principal
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.server.stream_login import MAX_TICKETS, StreamLogin, Tickets
from tests.push.raw import TEXT, Raw, frame, head
from tests.push.streams import Stream, opened
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until

# -- the handshake


def test_the_answer_to_the_key_is_that_of_the_standard(open_server: Served) -> None:
    with Raw(open_server, head(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==")) as raw:
        assert raw.status == 101
        assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in raw.answer  # RFC 6455, 1.3
        assert b"Sec-WebSocket-Extensions" not in raw.answer
        assert raw.read()[0] == TEXT


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Upgrade": None, "Connection": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": None}, 426),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_a_handshake_that_is_not_valid_is_refused(
    open_server: Served, changes: dict[str, str | None], status: int
) -> None:
    with Raw(open_server, head(**changes)) as raw:
        assert raw.status == status


def test_a_page_of_the_server_itself_may_connect(open_server: Served) -> None:
    origin = f"http://127.0.0.1:{open_server.port}"
    with Raw(open_server, head(Host=f"127.0.0.1:{open_server.port}", Origin=origin)) as raw:
        assert raw.status == 101


def test_compression_is_never_negotiated(open_server: Served) -> None:
    with Raw(open_server, head(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits")) as raw:
        assert raw.status == 101
        assert b"permessage" not in raw.answer


def test_frames_before_the_answer_are_processed_after_it(open_server: Served) -> None:
    with Raw(open_server, head() + frame(TEXT, b'{"op":"ping","id":7}')) as raw:
        assert raw.read()[0] == TEXT
        assert json.loads(raw.read()[1]) == {"op": "pong", "id": 7}


def test_a_request_before_the_handshake_is_answered_first(open_server: Served) -> None:
    with Raw(open_server, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + head()) as raw:
        assert raw.status == 200
        assert b"101 Switching Protocols" in raw.exactly(60)


# -- frames


def test_a_client_that_breaks_the_protocol_loses_its_messages_at_once(
    client: Client, open_server: Served
) -> None:
    path = client.queue("broken")
    client.post(f"{path}/messages", {"payload": "a"})
    with Raw(open_server) as raw:
        raw.read()
        raw.send(TEXT, b'{"op":"subscribe","sub":1,"queue":"broken"}')
        assert json.loads(raw.read()[1])["op"] == "deliver"
        raw.send(3)
        assert raw.until_close() == 1002
    until(lambda: client.get(path).value["stats"]["ready"] == 1)


def test_nonsense_in_frames_is_answered_and_never_kills(open_server: Served) -> None:
    with Raw(open_server) as raw:
        raw.read()
        for text in (
            b"",
            b"null",
            b"[]",
            b'{"op":1}',
            b"[" * 2000,
            b'{"op":"ack","receipts":[1]}',
            b'{"id":{}}',
            b'"x"',
        ):
            raw.send(TEXT, text)
            assert json.loads(raw.read()[1])["op"] == "error"
        raw.send(TEXT, b'{"op":"ping","id":"still here"}')
        assert json.loads(raw.read()[1])["id"] == "still here"


# -- a client that does not read


def test_a_client_that_stops_reading_is_paused_then_cut_and_its_messages_return(tmp_path: Path) -> None:
    with served(tmp_path, "--body-timeout-s", "1") as server:
        client = Client(server.url)
        path = client.queue("q")
        for _ in range(8):
            assert client.post(f"{path}/messages/batch", ["x" * 100_000] * 20).status == 201
        with Raw(server) as deaf, opened(server.url, max_size=None) as other:
            deaf.send(TEXT, b'{"op":"subscribe","sub":1,"queue":"q","credit":{"messages":10000}}')
            until(lambda: client.get(path).value["stats"]["in_flight"] > 0)
            other.subscribe("q", credit={"messages": 1})
            assert other.ack(other.messages(1))["count"] == 1, "another is served meanwhile"
            other.ask("unsubscribe", sub="q", release=True)

            until(lambda: client.get(path).value["stats"]["in_flight"] == 0)
        assert client.get(path).value["stats"]["ready"] == 159
        _, metrics = server.get("/metrics")
        assert b"openq_streams_cut_total 1" in metrics


# -- logins


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, Client, str]]:
    """A server with an admin (its client), and the token of a user who may receive from `mine-*`."""
    store = UserStore(tmp_path / "users.json")
    store.add_user("boss", role="admin")
    store.add_user(
        "worker", password="canary", rules=[Rule("allow", frozenset({"receive", "send"}), "mine-*")]
    )
    admin, token = store.create_token("boss", "t"), store.create_token("worker", "t")
    with served(tmp_path) as server:
        client = Client(server.url, headers=bearer(admin))
        client.queue("mine-a")
        client.queue("theirs")
        yield server, client, token


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def closed_with(stream: Stream) -> int:
    """The code with which the server closes."""
    while True:
        try:
            stream.read()
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code


def test_a_stream_needs_a_login_and_checks_each_queue(guarded: tuple[Served, Client, str]) -> None:
    server, _, token = guarded
    basic = base64.b64encode(b"worker:canary").decode()
    with pytest.raises(InvalidStatus) as refused, opened(server.url):
        pass
    assert refused.value.response.status_code == 401
    for query in (f"?token={token}", f"?ticket={token}", f"?access_token={token}", "?ticket="):
        with pytest.raises(InvalidStatus), opened(server.url, query=query):
            pass
    for headers in (bearer(token), {"authorization": f"Basic {basic}"}):
        with opened(server.url, additional_headers=headers) as stream:
            stream.subscribe("mine-a")
            assert stream.ask("subscribe", sub=2, queue="theirs")["code"] == "forbidden"
            assert stream.ask("subscribe", sub=2, queue="unknown")["code"] == "forbidden"
            assert stream.ask("publish", queue="theirs", messages=["x"])["code"] == "forbidden"
            assert stream.ask("publish", queue="mine-a", messages=["x"])["count"] == 1
            stream.ack(stream.messages(1))


def test_a_pattern_leaves_out_queues_that_the_caller_may_not_receive_from(
    guarded: tuple[Served, Client, str],
) -> None:
    server, admin, token = guarded
    admin.post("/queues/theirs/messages", {"payload": "secret"})
    admin.post("/queues/mine-a/messages", {"payload": "mine"})
    with opened(server.url, additional_headers=bearer(token)) as stream:
        stream.ask("subscribe", sub=1, pattern="*")
        assert [each["payload"] for each in stream.messages(1)] == ["mine"]
        assert stream.has_nothing()


def test_a_ticket_opens_one_stream(guarded: tuple[Served, Client, str]) -> None:
    server, _, token = guarded
    answer = Client(server.url, headers=bearer(token)).post("/stream/tickets")
    assert answer.status == 201
    query = f"?ticket={answer.value['ticket']}"

    with opened(server.url, query=query) as stream:
        stream.subscribe("mine-a")
        assert stream.ask("subscribe", sub=2, queue="theirs")["code"] == "forbidden"

    with pytest.raises(InvalidStatus) as refused, opened(server.url, query=query):
        pass
    assert refused.value.response.status_code == 401
    assert Client(server.url).post("/stream/tickets").status == 401


def test_tickets_expire_and_are_limited() -> None:
    tickets = Tickets()
    login = StreamLogin(Principal("a", "u", False, ()), None, False)
    issued = tickets.issue(login, 1_000)
    assert issued is not None
    text, expires_ms = issued

    assert tickets.redeem(text, expires_ms) is None
    assert tickets.redeem(text, 1_000) is None, "it was used up"
    assert sum(tickets.issue(login, 2_000) is not None for _ in range(MAX_TICKETS + 5)) == MAX_TICKETS
    assert tickets.issue(login, 2_000 + 30_000) is not None


def test_a_revoked_token_closes_its_streams(guarded: tuple[Served, Client, str]) -> None:
    server, admin, token = guarded
    admin.post("/queues/mine-a/messages", {"payload": "x"})
    with opened(server.url, additional_headers=bearer(token)) as stream:
        stream.subscribe("mine-a")
        stream.messages(1)

        assert admin.delete("/tokens/worker/t").status == 200

        assert closed_with(stream) == 4401
    assert admin.get("/queues/mine-a").value["stats"]["ready"] == 1


def test_a_token_that_expires_closes_its_streams(guarded: tuple[Served, Client, str]) -> None:
    server, admin, _ = guarded
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    short = admin.post("/tokens", {"user": "worker", "name": "short", "expires": soon}).value["token"]
    with opened(server.url, additional_headers=bearer(short)) as stream:
        assert closed_with(stream) == 4401


def test_changed_rules_close_the_streams_that_they_forbid(guarded: tuple[Served, Client, str]) -> None:
    server, admin, token = guarded
    with (
        opened(server.url, additional_headers=bearer(token)) as subscribed,
        opened(server.url, additional_headers=bearer(token)) as idle,
    ):
        subscribed.subscribe("mine-a")

        rule = {"effect": "allow", "actions": ["send"], "queues": "mine-*"}
        answer = admin.put("/users/worker", {"rules": [rule]})
        assert answer.status == 200, answer.data

        assert closed_with(subscribed) == 4403
        assert idle.ask("subscribe", sub=1, queue="mine-a")["code"] == "forbidden"
        assert idle.ask("publish", queue="mine-a", messages=["x"])["count"] == 1


def test_a_server_that_stops_returns_messages_and_says_so(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        client = Client(server.url)
        path = client.queue("q")
        client.post(f"{path}/messages", {"payload": "x"})
        with opened(server.url) as stream:
            stream.subscribe("q")
            stream.messages(1)
            server.process.terminate()
            assert closed_with(stream) == 1012
        server.stop()
        with served(tmp_path) as again:
            assert Client(again.url).get(path).value["stats"]["ready"] == 1
