"""Server-sent events: filters, resuming without a gap, permissions, slow readers, stopping."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.config import Config
from openq.local import core as core_module
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.server import event_hub as hub_module
from openq.server.event_hub import EventHub, HubReaderState
from tests.events.shared import receipt
from tests.events.sse import Block, EventStream
from tests.server.in_process import InProcessServer, in_process_server
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    broker = LocalBroker(tmp_path)
    with in_process_server(broker, Config(data=str(tmp_path), drain_timeout_s=1)) as server:
        yield server
        assert server.records.at_least("error") == []


def broker_of(server: InProcessServer) -> LocalBroker:
    broker = server.server.broker
    assert isinstance(broker, LocalBroker)
    return broker


def hub_of(server: InProcessServer) -> EventHub:
    return server.server.context.event_hub


def publish(server: InProcessServer, queue: str, *bodies: bytes, **options: Any) -> list[str]:
    broker = broker_of(server)
    found = broker.publish_many(queue, [Draft(body, encoding=1, **options) for body in bodies])
    broker.sync()
    return [each[0] for each in found]  # type: ignore[index]


def names(blocks: list[Block]) -> list[tuple[str, str]]:
    return [(block.event, block.data["queue"]) for block in blocks]


def test_a_reader_gets_what_happens(server: InProcessServer) -> None:
    broker = broker_of(server)
    with EventStream(server.port, "events") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        stream.started()
        broker.declare("q", QueueSettings(visibility_ms=5_000))
        [message] = publish(server, "q", b"hello", type="greeting")
        [delivery] = broker.receive("q", consumer="me")
        broker.ack("q", [receipt(delivery)])
        broker.sync()

        created, published, delivered, acked = stream.take(4)

    assert created.data["detail"] == {"settings": {"visibility_timeout": 5}}
    assert published.data["message_id"] == message
    assert published.data["message"] == {
        "size": 5,
        "message_type": "greeting",
        "priority": 0,
        "attributes": {},
    }
    assert delivered.data["detail"]["consumer"] == "me"
    assert acked.data == {
        "id": acked.id,
        "event": "acked",
        "time": acked.data["time"],
        "queue": "q",
        "message_id": message,
        "detail": {},
    }


def test_a_reader_filters_by_queue_event_type_and_attributes(server: InProcessServer) -> None:
    broker = broker_of(server)
    for queue in ("orders", "orders-eu", "mail"):
        broker.declare(queue, QueueSettings())
    broker.sync()
    streams = {
        path: EventStream(server.port, path).started()
        for path in (
            "queues/orders/events",
            "events?queues=orders*",
            "events?queues=orders,mail&events=published",
            "events?types=new",
            "events?attributes=%7B%22shop%22:%22eu%22%7D",
            "queues/mail/events?peek=1",
        )
    }
    for queue in ("orders", "orders-eu", "mail"):
        publish(server, queue, b"1", type="new", attributes={"shop": "eu"})
        publish(server, queue, b"2")
        [delivery] = broker.receive(queue)
        broker.ack(queue, [receipt(delivery)])
        broker.sync()
    broker.delete("orders")
    broker.declare("end", QueueSettings())
    broker.sync()

    def found(path: str, count: int) -> list[tuple[str, str]]:
        return names(streams[path].take(count))

    four = ["published", "published", "delivered", "acked"]
    assert found("queues/orders/events", 5) == [(name, "orders") for name in [*four, "queue_deleted"]]
    assert found("events?queues=orders*", 8) == [(n, q) for q in ("orders", "orders-eu") for n in four]
    assert found("events?queues=orders,mail&events=published", 4) == [
        ("published", queue) for queue in ("orders", "orders", "mail", "mail")
    ]
    assert found("events?types=new", 3) == [("published", q) for q in ("orders", "orders-eu", "mail")]
    only = found("events?attributes=%7B%22shop%22:%22eu%22%7D", 3)
    assert only == [("published", queue) for queue in ("orders", "orders-eu", "mail")]
    tail = streams["queues/mail/events?peek=1"].take(2)
    assert [block.data["message"]["payload"] for block in tail] == ["1", "2"]
    for stream in streams.values():
        stream.close()


def test_a_reader_resumes_after_any_event_without_a_gap(server: InProcessServer) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    publish(server, "q", *(b"%d" % n for n in range(20)))
    with EventStream(server.port, "events?from=oldest&follow=0") as stream:
        everything = stream.rest()
    assert len(everything) == 21
    for number in (0, 7, 20):
        with EventStream(server.port, "events", last_event_id=everything[number].id) as stream:
            rest = everything[number + 1 :]
            assert stream.take(len(rest)) == rest
    with EventStream(server.port, f"events?after={everything[5].id}&follow=0") as stream:
        assert stream.rest() == everything[6:]
    # The header counts: a browser sends it again with the address that it had in the beginning.
    path = f"events?after={everything[5].id}&follow=0"
    with EventStream(server.port, path, last_event_id=everything[9].id) as stream:
        assert stream.rest() == everything[10:]


def test_readers_that_join_while_others_publish_miss_and_repeat_nothing(server: InProcessServer) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    publish(server, "q", b"first")
    streams = []
    for number in range(30):
        streams.append(EventStream(server.port, "events?from=oldest&bodies=1"))
        publish(server, "q", *(b"%d.%d" % (number, n) for n in range(20)))
    total = 2 + 30 * 20
    first = streams[0].take(total)
    assert len({block.id for block in first}) == total
    for stream in streams[1:]:
        assert [block.id for block in stream.take(total)] == [block.id for block in first]
    for stream in streams:
        stream.close()
    until(lambda: not hub_of(server).readers)
    assert broker.journal is not None
    until(lambda: broker.journal and broker.journal.commit_listeners == ())


def test_a_reader_can_begin_where_its_connection_was_lost_before_any_event(server: InProcessServer) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    broker.sync()
    with EventStream(server.port, "queues/q/events") as stream:
        position = stream.started().last_id
    publish(server, "q", b"meanwhile")
    with EventStream(server.port, "queues/q/events", last_event_id=position) as stream:
        assert names(stream.take(1)) == [("published", "q")]


def test_a_gap_is_an_event(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = broker_of(server).storage.id_prefix[:8]
    broker_of(server).declare("q", QueueSettings())
    publish(server, "q", b"1")
    lost = f"{'0' * 8 if prefix != '0' * 8 else '1' * 8}-5-1"  # of data that was replaced
    with EventStream(server.port, "events?follow=0", last_event_id=lost) as stream:
        gap, created, published = stream.rest()
    assert gap.event == "gap"
    assert gap.data["from"] == lost
    assert gap.data["until"] <= created.data["time"][:4] + "9"
    assert (created.event, published.event) == ("queue_created", "published")
    assert hub_of(server).gaps == 1


def test_memory_that_dropped_events_reports_the_gap_to_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "MEMORY_RECORDS", 50)
    broker = LocalBroker()
    with in_process_server(broker) as server:
        broker.declare("q", QueueSettings())
        with EventStream(server.port, "events") as stream:
            position = stream.started().last_id
        broker.publish_many("q", [Draft(b"%d" % n) for n in range(200)])
        with EventStream(server.port, "events?follow=0", last_event_id=position) as stream:
            blocks = stream.rest()
        assert [block.event for block in blocks] == ["gap"] + ["published"] * 50


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("queues/none/events", {}, 404, "queue_not_found"),
        ("events?events=no-event", {}, 422, "invalid"),
        ("events?peek=1&events=acked", {}, 422, "invalid"),
        ("events?bodies=maybe", {}, 422, "invalid"),
        ("events?from=yesterday", {}, 422, "invalid"),
        ("events?after=nonsense", {}, 400, "malformed"),
        ("events", {"last_event_id": "x" * 1_000}, 400, "malformed"),
        ("events", {"last_event_id": "12345678-ffffffffffffffffff-1"}, 400, "malformed"),
        ("events?queues=" + "a," * 200, {}, 422, "invalid"),
        ("events?unknown=1", {}, 422, "invalid"),
    ],
)
def test_bad_requests_are_refused_before_the_stream_begins(
    server: InProcessServer, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    with EventStream(server.port, path, **headers) as stream:
        assert (stream.status, stream.problem()["code"]) == (status, code)


def test_other_methods_and_versions(server: InProcessServer) -> None:
    broker_of(server).declare("q", QueueSettings())
    broker_of(server).sync()
    with server.wire() as wire:
        head = wire.rest("HEAD", "queues/q/events")
        assert (head.status, head.body) == (200, b"")
        assert wire.rest("POST", "queues/q/events", {}).status == 405
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as old:
        old.sendall(b"GET /api/v1/queues/q/events?from=oldest&follow=0 HTTP/1.0\r\n\r\n")
        data = b""
        while part := old.recv(1 << 16):
            data += part
    assert b"Connection: close" in data
    assert b"event: queue_created\n" in data


def test_what_a_client_sends_behind_its_request_is_ignored(server: InProcessServer) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    broker.sync()
    purge = b"POST /api/v1/queues/q/purge HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    head = f"GET /api/v1/queues/q/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head + purge)
        file = client.makefile("rb")
        while not file.readline().startswith(b"id: "):
            pass
        client.sendall(b"\x00\xff" * 50_000)
        publish(server, "q", b"x")
        while not file.readline().startswith(b"event: published"):
            pass
        file.close()
    assert broker.stats("q").ready == 1


def test_a_reader_that_disconnects_leaves_nothing_behind(server: InProcessServer) -> None:
    admission = server.server.context.admission
    before = admission.open
    streams = [EventStream(server.port, "events").started() for _ in range(20)]
    assert admission.open == before + 20
    for stream in streams:
        stream.close()
    until(lambda: admission.open == before)
    assert not hub_of(server).readers
    assert server.server.context.long_polls == set()


def test_idle_readers_get_heartbeats_with_their_position(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "HEARTBEAT_S", 0.5)
    monkeypatch.setattr(hub_module, "TICK_S", 0.1)
    broker_of(server).declare("q", QueueSettings())
    with EventStream(server.port, "events?queues=none") as stream:
        start = stream.started().last_id
        publish(server, "q", b"not for this reader")
        until(lambda: broker_of(server).events.end() != start)
        # The next block is a heartbeat: it has a later position, from which the reader can resume.
        position = start
        while position == start:
            line = stream.file.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                position = line[4:]
    with EventStream(server.port, "events?follow=0", last_event_id=position) as stream:
        assert stream.rest() == []


# -- permissions


def test_a_caller_sees_only_queues_that_it_may_peek(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("ann", rules=[Rule("allow", frozenset({"peek"}), "mine-*")])
    store.add_user("root", role="admin")
    token, root = store.create_token("ann", "test"), store.create_token("root", "test")
    broker = LocalBroker(tmp_path)
    broker.declare("mine-dead", QueueSettings())
    for queue in ("mine-a", "yours"):
        broker.declare(queue, QueueSettings(dead_letter="mine-dead", max_receives=1))
    with in_process_server(broker, Config(data=str(tmp_path), drain_timeout_s=1)) as server:
        ann = {"authorization": f"Bearer {token}"}
        for path, status in (("queues/yours/events", 403), ("queues/none/events", 403)):
            with EventStream(server.port, path, **ann) as stream:
                assert stream.status == status
        with EventStream(server.port, "events") as stream:
            assert stream.status == 401
        with (
            EventStream(server.port, "events", **ann).started() as mine,
            EventStream(server.port, "events", authorization=f"Bearer {root}").started() as everything,
            EventStream(server.port, "queues/mine-a/events", **ann).started() as one,
        ):
            publish(server, "yours", b"secret")
            publish(server, "mine-a", b"1")
            [delivery] = broker.receive("yours")
            broker.reject("yours", [receipt(delivery)], "bad")
            broker.sync()

            # A message that arrives in a queue of the caller is seen, wherever it comes from.
            assert names(mine.take(2)) == [("published", "mine-a"), ("dead_lettered", "yours")]
            assert len(everything.take(4)) == 4
            assert names(one.take(1)) == [("published", "mine-a")]

            # Rules that change count for open streams.
            store.set_rules("ann", [Rule("allow", frozenset({"peek"}), "mine-b*")])
            assert one.rest() == []
            broker.declare("mine-b", QueueSettings())
            until(lambda: len(hub_of(server).readers) == 2)
            publish(server, "mine-a", b"2")
            publish(server, "mine-b", b"3")
            found = mine.take(2)
            assert {queue for _, queue in names(found)} == {"mine-b"}

            store.revoke_token("ann", "test")
            assert mine.rest() == []
            assert len(everything.take(3)) == 3


def test_accounts_are_apart(server: InProcessServer) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    broker.declare("@111111111111/q", QueueSettings())
    broker.sync()
    with EventStream(server.port, "accounts/111111111111/events?from=oldest&follow=0") as stream:
        [block] = stream.rest()
    assert (block.data["queue"], block.data["account"]) == ("q", "111111111111")
    with EventStream(server.port, "accounts/111111111111/queues/q/events?from=oldest&follow=0") as stream:
        assert len(stream.rest()) == 1


# -- slow readers, stopping


def test_a_reader_that_does_not_read_costs_no_memory_and_loses_nothing(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    broker.sync()
    slow = EventStream(server.port, "events?bodies=1").started()
    fast = EventStream(server.port, "events").started()
    [reader] = [each for each in hub_of(server).readers if each.group.bodies]
    count = 0
    while reader.state is not HubReaderState.BEHIND:
        publish(server, "q", *(b"x" * 20_000 for _ in range(20)))
        count += 20
        assert len(fast.take(20)) == 20
    publish(server, "q", *(b"x" * 20_000 for _ in range(200)))
    count += 200
    assert len(fast.take(200)) == 200
    assert reader.stream is not None
    assert reader.stream.unsent < 1 << 20
    blocks = slow.take(count)
    assert len({block.id for block in blocks}) == count
    publish(server, "q", b"live again")
    assert slow.take(1)[0].data["message"]["payload"] == "live again"
    until(lambda: reader.state is HubReaderState.LIVE)
    slow.close()
    fast.close()


def test_a_reader_that_does_not_read_for_long_is_cut(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "TICK_S", 0.05)
    listener = server.server.context.listener
    assert listener is not None
    listener.limits.body_s = 0.1
    broker = broker_of(server)
    broker.declare("q", QueueSettings())
    broker.sync()
    slow = EventStream(server.port, "events?bodies=1").started()
    [reader] = hub_of(server).readers
    while hub_of(server).readers and reader.state is not HubReaderState.BEHIND:
        publish(server, "q", *(b"x" * 20_000 for _ in range(20)))
    until(lambda: not hub_of(server).readers)
    assert hub_of(server).cut == 1
    slow.close()


def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    with in_process_server(broker, Config(data=str(tmp_path), drain_timeout_s=5)) as server:
        broker.declare("q", QueueSettings())
        streams = [EventStream(server.port, "events?from=oldest") for _ in range(3)]
        assert [names(stream.take(1)) for stream in streams] == [[("queue_created", "q")]] * 3
    for stream in streams:
        assert stream.rest() == []
        stream.close()


def test_metrics_count_readers_and_events(server: InProcessServer) -> None:
    broker_of(server).declare("q", QueueSettings())
    broker_of(server).sync()
    with EventStream(server.port, "events").started() as stream, server.wire() as wire:
        publish(server, "q", b"1", b"2")
        stream.take(2)
        text = wire.get("/metrics").body.decode()
    assert "openq_event_readers 1" in text
    assert "openq_events_sent_total 2" in text
    assert "openq_event_gaps_total 0" in text
