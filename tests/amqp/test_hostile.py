"""Clients that are slow, greedy, silent or gone: what one of them does must not be felt by another."""

from __future__ import annotations

import itertools
import json
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.dialogue_codec import PROTOCOL_HEADER, encode_method
from tests.amqp.raw_client import (
    RawClient,
    RawClientWithBodies,
    body_frame,
    closed_by_server,
    content_start,
    error_of,
    frame,
    method,
    publish,
    raw_socket,
    resident_bytes,
)
from tests.serving import Served, served_amqp
from tests.waiting import until

MIB = 1 << 20
UNAUTHENTICATED = 1_000
LONG_TIMEOUT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def shared(_many_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server for the tests that measure nothing; each has a queue of its own."""
    with served_amqp(tmp_path_factory.mktemp("shared") / "d") as (server, port):
        yield port
        assert_no_errors(server)


@pytest.fixture
def amqp_server(tmp_path: Path) -> Iterator[tuple[Served, int]]:
    """A server of its own, for a test that looks at its memory or counts what it has."""
    with served_amqp(tmp_path / "d") as (server, port):
        yield server, port
        assert_no_errors(server)


def assert_no_errors(server: Served) -> None:
    assert not [line for line in server.log if "Traceback" in line or '"error"' in line]


def works(client: RawClient, queue: str = "healthy", times: int = 20) -> None:
    """A healthy client: publishes, gets, acks."""
    client.declare(queue)
    for n in range(times):
        client.publish_all(queue, [b"m%d" % n])
        [_, _, fields, _, body] = client.call("basic.get", "basic.get-ok", queue=queue)
        assert body == f"m{n}"
        client.send(method(1, "basic.ack", delivery_tag=fields["delivery_tag"]))


def counted(server: Served, what: str) -> int:
    """Of "connections", "channels", "consumers", "queues": how many the server has."""
    status, body = server.get(f"/api/{what}")
    assert status == 200
    return len(json.loads(body))


# -- before the sign-in


def unauthenticated_clients(port: int) -> Iterator[tuple[bytes, bytes]]:
    """What each says first, and byte by byte afterwards."""
    start_ok = encode_method("connection.start-ok", {"mechanism": "PLAIN", "response": "x" * 4000})
    whole = frame(1, 0, start_ok)
    kinds = [
        (b"", b""),
        (b"AMQP", b""),
        (PROTOCOL_HEADER, b""),
        (PROTOCOL_HEADER[:3], PROTOCOL_HEADER[3:7]),
        (PROTOCOL_HEADER + b"\x01\x00\x00\xff\xff\xff\xff", b"x" * 50),
        (PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, 8000), b"x" * 50),
        (PROTOCOL_HEADER + whole[:3000], whole[3000:3050]),
        (PROTOCOL_HEADER + b"\x08\x00\x00\x00\x00\x00\x00\xce", b"\x08\x00\x00\x00\x00\x00\x00\xce" * 6),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 50),
    ]
    return itertools.cycle(kinds)


def test_a_thousand_connections_without_login_are_dropped_and_others_are_served(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    with RawClient(port).confirming() as healthy, ExitStack() as stack:
        works(healthy)
        before = resident_bytes(server.pid)
        left: dict[socket.socket, bytes] = {}
        for first, later in itertools.islice(unauthenticated_clients(port), UNAUTHENTICATED):
            each = stack.enter_context(raw_socket(port, first))
            each.settimeout(0)
            left[each] = later

        works(healthy)
        grown = resident_bytes(server.pid) - before

        def all_gone() -> bool:
            for each, later in left.items():
                if later:
                    try:
                        each.send(later[:1])
                    except OSError:
                        pass
                    left[each] = later[1:]
            for each in closed_by_server(list(left)):
                del left[each]
            return not left

        until(all_gone, seconds=LONG_TIMEOUT_S)
        works(healthy)

        assert grown < 100 * MIB
        assert counted(server, "connections") == 1


@pytest.mark.parametrize("channel", [0, 1, 7])
def test_nothing_is_buffered_before_the_login(shared: int, channel: int) -> None:
    with raw_socket(shared, PROTOCOL_HEADER) as stranger:
        try:
            stranger.sendall(content_start(channel, 100 * MIB))
            for _ in range(1000):
                stranger.sendall(body_frame(channel, b"x" * 8000))
            stranger.settimeout(30)
            while stranger.recv(65536):
                pass
        except TimeoutError:
            pytest.fail("it is still listened to")
        except OSError:
            pass  # hung up on, as it should be


def test_a_publish_on_a_closed_channel_ends_the_connection_before_its_body(
    shared: int,
) -> None:
    with RawClient(shared) as client:
        client.send(content_start(9, 100 * MIB))

        assert "expected 'channel.open'" in error_of(lambda: client.next())


@pytest.mark.parametrize("size", [131_073, 1 << 31, (1 << 32) - 1])
def test_an_oversized_frame_is_refused_by_its_header(shared: int, size: int) -> None:
    with RawClient(shared) as client:
        client.send(struct.pack(">BHI", 1, 1, size))

        assert "501" in error_of(lambda: client.next())


def test_an_oversized_body_is_not_buffered(tmp_path: Path) -> None:
    with (
        served_amqp(tmp_path / "d", "--max-message-bytes", "100000") as (server, port),
        RawClient(port) as client,
    ):
        before = resident_bytes(server.pid)
        client.send(content_start(1, 1 << 40))
        for _ in range(2000):
            client.send(body_frame(1, b"x" * 100_000))

        assert "406" in error_of(lambda: client.next())  # and it stops in the middle
        client.call("channel.open", channel=1)
        client.call("queue.declare", channel=1, queue="q")
        assert resident_bytes(server.pid) - before < 50 * MIB


# -- consumers


def test_a_client_that_reads_nothing_uses_little_memory_and_others_get_the_messages(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    count = 10_000
    with RawClient(port).confirming() as client:
        client.declare("q")
        for _ in range(0, count, 500):
            client.publish_all("q", [b"x" * 8_000] * 500)
        before = resident_bytes(server.pid)
        with RawClient(port) as slow:
            slow.send(method(1, "basic.consume", queue="q", consumer_tag="slow"))
            with RawClient(port) as other:
                other.send(method(1, "basic.consume", queue="q", consumer_tag="fast", no_ack=True))
                got = 0
                until(lambda: client.declare("q") < count)
                while client.declare("q"):
                    got += len(other.receive_methods("basic.deliver", 1))
                works(client)

                assert got > count / 2
                assert resident_bytes(server.pid) - before < 64 * MIB
        until(lambda: client.declare("q") > 0)


def test_large_messages_for_a_client_that_reads_nothing_are_not_all_in_memory(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server
    with RawClient(port).confirming() as client:
        client.declare("q")
        for _ in range(16):
            client.publish_all("q", [b"x" * MIB] * 10)
        before = resident_bytes(server.pid)
        with RawClient(port) as slow:
            slow.call("basic.consume", queue="q")
            works(client)

            assert client.declare("q") > 110
            assert resident_bytes(server.pid) - before < 64 * MIB


def test_bodies_of_unacked_messages_are_not_kept_in_memory(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    count = 8_000
    with RawClient(port).confirming() as client, RawClient(port) as miser:
        client.declare("q")
        for _ in range(0, count, 500):
            client.publish_all("q", [b"x" * 16_000] * 500)
        before = resident_bytes(server.pid)
        miser.send(method(1, "basic.consume", queue="q"))
        got = 0
        while got < count:
            got += len(miser.receive_methods("basic.deliver", 1))
        works(client)

        assert resident_bytes(server.pid) - before < 48 * MIB  # they are 128 MB
        miser.close()
        until(lambda: client.declare("q") == count)


def test_a_body_unloaded_while_in_flight_is_complete_when_redelivered(
    amqp_server: tuple[Served, int],
) -> None:
    """Bodies of many unacked deliveries are on disk only: requeued, dead-lettered or received elsewhere."""
    server, port = amqp_server
    bodies = [f"{n} " + "x" * 200 for n in range(3_000)]
    with RawClient(port).confirming() as client, RawClientWithBodies(port) as miser:
        client.declare("dead")
        client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        client.publish_all("q", [body.encode() for body in bodies], properties={"message_id": "m"})
        miser.send(method(1, "basic.consume", queue="q", consumer_tag="c"))
        assert len(miser.receive_methods("basic.deliver", 3_000)) == 3_000
        miser.call("basic.cancel", consumer_tag="c")

        miser.send(method(1, "basic.nack", delivery_tag=1_500, multiple=True, requeue=False))
        miser.send(method(1, "basic.nack", delivery_tag=2_999, multiple=True, requeue=True))
        assert miser.declare("dead") == 1_500
        seen: dict[str, list[str]] = {}
        for queue, count in (("dead", 1_500), ("q", 1_499)):
            miser.send(method(1, "basic.consume", queue=queue, consumer_tag=queue))
            found = miser.receive_methods("basic.deliver", count)
            seen[queue] = [each[4] for each in found]
            assert {each[3]["message_id"] for each in found} == {"m"}
            miser.call("basic.cancel", consumer_tag=queue)
        miser.close()
        until(lambda: client.declare("q", passive=True) == 1_500)
        status, answer = server.get("/api/v1/queues/q/messages?limit=1")

        assert seen == {"dead": bodies[:1_500], "q": bodies[1_500:2_999]}
        assert status == 200
        assert bodies[1_500].encode() in answer


def test_a_vanished_consumer_is_disconnected_and_its_messages_return_in_order(shared: int) -> None:
    bodies = [f"{n}" for n in range(200)]
    with RawClient(shared).confirming() as client, RawClient(shared, heartbeat=1) as vanished:
        client.declare("vanishing")
        client.publish_all("vanishing", [body.encode() for body in bodies])
        vanished.call("basic.qos", prefetch_count=150)
        vanished.send(method(1, "basic.consume", queue="vanishing"))
        assert len(vanished.receive_methods("basic.deliver", 150)) == 150

        # It is there, and says nothing: no heartbeats, no end.
        until(lambda: client.declare("vanishing") == 200)
        client.send(method(1, "basic.consume", queue="vanishing"))
        again = client.receive_methods("basic.deliver", 200)

        assert [each[4] for each in again] == bodies
        assert [each[2]["redelivered"] for each in again] == [True] * 150 + [False] * 50


# -- those who do not hear their answers


def test_a_client_that_does_not_read_returns_is_not_read(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    with RawClient(port).confirming() as healthy, RawClient(port) as deaf:
        before = resident_bytes(server.pid)
        batch = publish(1, "nowhere", b"x" * 10_000, mandatory=True) * 10

        times = deaf.send_until_full(batch)
        grown = resident_bytes(server.pid) - before
        works(healthy)

        assert grown < 64 * MIB
        returned = len(deaf.receive_methods("basic.return", times * 10))
        deaf.send_rest()
        returned += len(deaf.receive_methods("basic.return", 1)) if deaf._unsent else 0
        deaf.declare("q")  # and it goes on
        assert returned + len(deaf.received) >= times * 10


def test_a_flood_of_gets_is_answered_as_fast_as_it_is_read(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    count = 100
    with RawClient(port).confirming() as healthy, RawClient(port) as greedy:
        healthy.declare("q")
        for _ in range(0, count, 10):
            healthy.publish_all("q", [b"x" * MIB] * 10)
        before = resident_bytes(server.pid)

        greedy.send(method(1, "basic.get", queue="q") * count)
        works(healthy)
        grown = resident_bytes(server.pid) - before

        assert grown < 64 * MIB
        assert len(greedy.receive_methods("basic.get-ok", count)) == count


def test_unread_direct_replies_do_not_accumulate(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    with RawClient(port).confirming() as asking, RawClient(port).confirming() as answering:
        answering.declare("questions")
        reply_to = "amq.rabbitmq.reply-to"
        asking.call("basic.consume", queue=reply_to, no_ack=True)
        asking.send(publish(1, "questions", b"?", properties={"reply_to": reply_to}))
        asking.settled(1)
        question = answering.call("basic.get", "basic.get-ok", queue="questions", no_ack=True)
        address = question[3]["reply_to"]
        before = resident_bytes(server.pid)

        for _ in range(100):
            answering.publish_all(address, [b"x" * MIB])

        assert resident_bytes(server.pid) - before < 64 * MIB
        assert asking.receive_methods("basic.deliver", 1)


# -- many, and over and over


def test_short_lived_channels_consumers_and_queues_leave_nothing_behind(
    amqp_server: tuple[Served, int],
) -> None:
    server, port = amqp_server

    def churn(rounds: int) -> None:
        for _ in range(rounds):
            with RawClient(port) as client:
                out = []
                for channel in range(2, 152):
                    queue = f"churned-{channel}"
                    out.append(method(channel, "channel.open"))
                    out.append(method(channel, "queue.declare", queue=queue, durable=True))
                    out.append(method(channel, "basic.consume", queue=queue, consumer_tag="c"))
                    out.append(publish(channel, queue, b"x"))
                client.send(b"".join(out))
                assert len(client.receive_methods("basic.deliver", 150)) == 150
                client.received.clear()
                client.send(
                    b"".join(
                        method(channel, "queue.delete", queue=f"churned-{channel}")
                        + method(channel, "channel.close")
                        for channel in range(2, 152)
                    )
                )
                assert len(client.receive_methods("channel.close-ok", 150)) == 150

    churn(4)
    before = resident_bytes(server.pid)
    churn(6)

    assert resident_bytes(server.pid) - before < 12 * MIB
    for what in ("connections", "channels", "consumers", "queues"):
        until(lambda what=what: counted(server, what) == 0)


def test_ten_thousand_consumers_share_one_queue(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    count = 10_000
    with RawClient(port).confirming() as client:
        client.declare("q")
        with RawClient(port) as many:
            many.call("basic.qos", prefetch_count=1)
            one = b"".join(
                method(1, "basic.consume", queue="q", consumer_tag=f"c{n}", no_wait=True)
                for n in range(count)
            )
            many.send(one)
            until(lambda: counted(server, "consumers") == count)
            client.send(publish(1, "q", b"x") * count)
            client.settled(count)
            got = many.receive_methods("basic.deliver", count)

            assert len({each[2]["consumer_tag"] for each in got}) == count
        until(lambda: counted(server, "consumers") == 0)
        assert client.declare("q") == count


def test_connections_aborted_midway_leave_nothing_behind(amqp_server: tuple[Served, int]) -> None:
    server, port = amqp_server
    chance = random.Random(1)
    whole = publish(1, "q", b"x" * 3000) + content_start(1, 5000) + body_frame(1, b"x" * 2500)
    with RawClient(port).confirming() as healthy:
        healthy.declare("q")
        for n in range(300):
            with RawClient(port) as client:
                if n % 3 == 0:
                    client.send(method(1, "basic.consume", queue="q"))
                client.send(whole[: chance.randrange(len(whole))])
                if n % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        until(lambda: counted(server, "connections") == 1)
        assert counted(server, "consumers") == 0
        works(healthy)


# -- messages and bindings of the worst kind


def nested(depth: int, kind: bytes) -> bytes:
    """A table in a table, or a list in a list, in a header."""
    value = b"V"
    for _ in range(depth):
        inner = (b"\1a" + value) if kind == b"F" else value
        value = kind + struct.pack(">I", len(inner)) + inner
    entry = b"\1a" + value
    return struct.pack(">I", len(entry)) + entry


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_deeply_nested_headers_end_only_their_connection(shared: int, kind: bytes) -> None:
    table = nested(15_000, kind)
    assert len(table) < 131_000
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + table
    with RawClient(shared).confirming() as healthy:
        healthy.declare("nested")
        with RawClient(shared) as client:
            client.send(
                method(1, "basic.publish", routing_key="nested") + frame(2, 1, head) + body_frame(1, b"x")
            )

            assert "502" in error_of(lambda: client.next()) or "501" in error_of(lambda: client.next())
        with RawClient(shared) as client:
            declare = encode_method("queue.declare", {"queue": "deep"})[:-4] + table
            client.send(frame(1, 1, declare))

            assert "50" in error_of(lambda: client.next())
        works(healthy)


def test_thousands_of_headers_are_delivered(shared: int) -> None:
    headers: dict[str, Any] = {f"h{n}": "" for n in range(9_000)}
    with RawClient(shared).confirming() as client:
        client.declare("headed")
        client.publish_all("headed", [b"x"], properties={"headers": headers})

        got = client.call("basic.get", "basic.get-ok", queue="headed")

        assert got[3]["headers"] == headers


def test_hostile_topic_patterns_are_matched_fast(shared: int) -> None:
    """Trying one way after another, a single one of these keys would take longer than the universe has."""
    with RawClient(shared).confirming() as client:
        client.call("exchange.declare", exchange="bombs", type="topic", durable=True)
        client.declare("bombed")
        for n in range(30):
            pattern = "#." + ".".join(["a.#"] * (10 + n)) + ".b"
            client.call("queue.bind", queue="bombed", exchange="bombs", routing_key=pattern)
        key = ".".join(["a"] * 120)
        client.publish_all(key, [b"no"] * 10, exchange="bombs")
        client.publish_all(key + ".b", [b"yes"] * 10, exchange="bombs")

        assert client.declare("bombed") == 10


def test_thousands_of_bindings_to_one_queue_give_one_message(shared: int) -> None:
    with RawClient(shared).confirming() as client:
        client.declare("bound")
        bind = b"".join(
            method(1, "queue.bind", queue="bound", exchange="amq.topic", routing_key=f"#.{n}.#", no_wait=True)
            for n in range(2_000)
        )
        client.send(bind)
        key = ".".join(str(n) for n in range(50))
        client.publish_all(key, [b"x"] * 5, exchange="amq.topic")

        assert client.declare("bound") == 5
        client.call("queue.delete", queue="bound")


def test_frames_for_a_closed_channel_are_ignored(shared: int) -> None:
    with RawClient(shared) as client:
        client.declare("late")
        bad = method(1, "queue.declare", queue="absent", passive=True)
        late = publish(1, "late", b"late") * 50 + method(1, "basic.ack", delivery_tag=5) * 20
        late += method(1, "basic.consume", queue="late") + method(1, "basic.get", queue="late")

        client.send(bad + late)
        assert "404" in error_of(lambda: client.next())

        client.call("channel.open", channel=2)
        assert client.call("queue.declare", channel=2, queue="late", passive=True)[2]["message_count"] == 0
        with pytest.raises(ConnectionEnded, match="504"):
            client.call("queue.declare", channel=1, queue="late", passive=True)
