"""The WebSocket stream of servers on Redis."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import InvalidStatus

from openq import OpenQ
from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.streams import StreamLoop
from tests.push.streams import Stream, opened
from tests.redis.servers import Server
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until


@contextmanager
def serving(store: Server) -> Iterator[Served]:
    server = Served(["--store", store.url, "--profile", "fast"], free_port())
    try:
        yield server.wait()
        assert [line for line in server.log if "Traceback" in line] == []
    finally:
        server.stop()


def drain(stream: Stream, count: int) -> list[str]:
    seen: list[str] = []
    while len(seen) < count:
        messages = stream.next("deliver")["messages"]
        seen += [each["payload"] for each in messages]
        assert stream.ack(messages)["count"] == len(messages)
    return seen


def test_messages_are_pushed_in_order_and_return_when_a_socket_dies(redis_server: Server) -> None:
    with serving(redis_server) as server:
        client = Client(server.url)
        path = client.queue("q")
        with opened(server.url) as stream:
            stream.subscribe("q", credit={"messages": 20})
            for start in range(0, 300, 100):
                client.post(f"{path}/messages/batch", [str(i) for i in range(start, start + 100)])
            assert drain(stream, 300) == [str(i) for i in range(300)]

            client.post(f"{path}/messages/batch", ["a", "b", "c"])
            stream.messages(3)
            stream.connection.socket.close()
        until(lambda: client.get(path).value["stats"]["ready"] == 3)
        messages = client.receive(path, max=10)
        assert [each["payload"] for each in messages] == ["a", "b", "c"]


def test_a_message_that_one_server_takes_is_pushed_by_another(redis_server: Server) -> None:
    with serving(redis_server) as one, serving(redis_server) as two:
        client = Client(one.url)
        client.queue("shared.a")
        with opened(two.url, "openq.msgpack") as stream:
            stream.ask("subscribe", sub=1, pattern="shared.*")
            client.post("/queues/shared.a/messages", {"payload": "x"})
            stream.ack(stream.messages(1))
            client.queue("shared.b")
            client.post("/queues/shared.b/messages", {"payload": "y"})
            assert [each["payload"] for each in stream.messages(1)] == ["y"]


def test_a_consumer_of_another_server_that_takes_no_more_is_named(redis_server: Server) -> None:
    with serving(redis_server) as one, serving(redis_server) as two:
        client = Client(one.url)
        client.queue("busy")
        with opened(two.url) as stream:
            stream.subscribe("busy", credit={"messages": 1}, consumer="packer")
            client.post("/queues/busy/messages", {"payload": "x"})
            stream.messages(1)
            id = client.post("/queues/busy/messages", {"payload": "y"}).value["id"]
            reason = "ready: it is next; consumer packer has the one that it takes at a time"
            until(lambda: client.get(f"/queues/busy/messages/{id}/why").value["text"] == reason)


def test_the_library_listens_on_redis_and_through_a_server(redis_server: Server) -> None:
    with serving(redis_server) as server:
        for place in ({"url": f"{redis_server.url}?profile=fast"}, {"url": server.url}):
            with OpenQ("listened", **place) as queue, queue.listen(prefetch=5) as messages:
                queue.publish_many(map(str, range(20)))
                seen = []
                for message in messages:
                    seen.append(message.body)
                    message.ack()
                    if len(seen) == 20:
                        break
                assert seen == [str(i) for i in range(20)]


def test_every_message_is_pushed_however_often_two_servers_and_clients_are_killed(
    redis_server: Server,
) -> None:
    seed = chosen_seed()
    loop = StreamLoop(["--store", redis_server.url, "--profile", "fast"], seed, servers=2)

    complaint = loop.run(lives=3)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.confirmed > 0


def test_a_ticket_of_one_server_opens_one_stream_on_another(redis_server: Server) -> None:
    with serving(redis_server) as one, serving(redis_server) as two:
        open_ticket = Client(one.url).post("/stream/tickets", {}).value["ticket"]
        with opened(two.url, query=f"?ticket={open_ticket}"):
            pass

        made = Client(one.url).put("/users/boss", {"role": "admin", "password": "a-long-password"})
        assert made.status in (200, 201), made.data
        until(lambda: Client(two.url).get("/queues").status == 401)
        login = base64.b64encode(b"boss:a-long-password").decode()
        boss = Client(one.url, headers={"Authorization": f"Basic {login}"})
        token = boss.post("/tokens", {"user": "boss", "name": "t"}).value["token"]
        elsewhere = Client(two.url, headers={"Authorization": f"Bearer {token}"})
        until(lambda: elsewhere.get("/queues").status == 200)
        for client in (boss, Client(one.url, headers={"Authorization": f"Bearer {token}"})):
            ticket = client.post("/stream/tickets", {}).value["ticket"]
            with opened(two.url, query=f"?ticket={ticket}") as stream:
                assert stream.ask("ping")["op"] == "pong"
            for server in (one, two):
                with pytest.raises(InvalidStatus) as refused, opened(server.url, query=f"?ticket={ticket}"):
                    pass
                assert refused.value.response.status_code == 401
        # A ticket does not outlive its token.
        late = Client(one.url, headers={"Authorization": f"Bearer {token}"}).post("/stream/tickets", {})
        assert boss.delete("/tokens/boss/t").status == 200
        until(
            lambda: Client(two.url, headers={"Authorization": f"Bearer {token}"}).get("/queues").status == 401
        )
        query = f"?ticket={late.value['ticket']}"
        with pytest.raises(InvalidStatus), opened(two.url, query=query):
            pass
