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

from tests.protocols.amqp.dialogue import PROTOCOL_HEADER, Ended, encode_method
from tests.protocols.amqp.talk import (
    Talk,
    Whole,
    body_frame,
    caught,
    content_start,
    ended,
    frame,
    method,
    publish,
    raw,
    resident_bytes,
)
from tests.serving import Served, served_amqp, until

MIB = 1 << 20
STRANGERS = 1_000
GENEROUS_S = 60.0


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
def house(tmp_path: Path) -> Iterator[tuple[Served, int]]:
    """A server of its own, for a test that looks at its memory or counts what it has."""
    with served_amqp(tmp_path / "d") as (server, port):
        yield server, port
        assert_no_errors(server)


def assert_no_errors(server: Served) -> None:
    assert not [line for line in server.log if "Traceback" in line or '"error"' in line]


def works(talk: Talk, queue: str = "healthy", times: int = 20) -> None:
    """A healthy client: publishes, gets, acks."""
    talk.declare(queue)
    for n in range(times):
        talk.publish_all(queue, [b"m%d" % n])
        [_, _, fields, _, body] = talk.say("basic.get", "basic.get-ok", queue=queue)
        assert body == f"m{n}"
        talk.send(method(1, "basic.ack", delivery_tag=fields["delivery_tag"]))


def counted(server: Served, what: str) -> int:
    """Of "connections", "channels", "consumers", "queues": how many the server has."""
    status, body = server.get(f"/api/{what}")
    assert status == 200
    return len(json.loads(body))


# -- before the sign-in


def strangers(port: int) -> Iterator[tuple[bytes, bytes]]:
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


def test_a_thousand_who_never_sign_in_are_dropped_and_nobody_else_notices(house: tuple[Served, int]) -> None:
    server, port = house
    with Talk(port).confirming() as healthy, ExitStack() as stack:
        works(healthy)
        before = resident_bytes(server.pid)
        left: dict[socket.socket, bytes] = {}
        for first, later in itertools.islice(strangers(port), STRANGERS):
            each = stack.enter_context(raw(port, first))
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
            for each in ended(list(left)):
                del left[each]
            return not left

        until(all_gone, GENEROUS_S)
        works(healthy)

        assert grown < 100 * MIB
        assert counted(server, "connections") == 1


@pytest.mark.parametrize("channel", [0, 1, 7])
def test_nothing_is_kept_for_a_message_of_somebody_unknown(shared: int, channel: int) -> None:
    with raw(shared, PROTOCOL_HEADER) as stranger:
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


def test_a_message_for_a_channel_that_is_not_open_ends_the_connection_before_its_body(
    shared: int,
) -> None:
    with Talk(shared) as talk:
        talk.send(content_start(9, 100 * MIB))

        assert "expected 'channel.open'" in caught(lambda: talk.next())


@pytest.mark.parametrize("size", [131_073, 1 << 31, (1 << 32) - 1])
def test_a_frame_larger_than_agreed_is_refused_by_its_head(shared: int, size: int) -> None:
    with Talk(shared) as talk:
        talk.send(struct.pack(">BHI", 1, 1, size))

        assert "501" in caught(lambda: talk.next())


def test_a_body_larger_than_allowed_is_not_kept(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "d", "--max-message-bytes", "100000") as (server, port), Talk(port) as talk:
        before = resident_bytes(server.pid)
        talk.send(content_start(1, 1 << 40))
        for _ in range(2000):
            talk.send(body_frame(1, b"x" * 100_000))

        assert "406" in caught(lambda: talk.next())  # and it stops in the middle
        talk.say("channel.open", channel=1)
        talk.say("queue.declare", channel=1, queue="q")
        assert resident_bytes(server.pid) - before < 50 * MIB


# -- consumers


def test_one_who_reads_nothing_takes_little_memory_and_leaves_the_rest_to_others(
    house: tuple[Served, int],
) -> None:
    server, port = house
    count = 10_000
    with Talk(port).confirming() as talk:
        talk.declare("q")
        for _ in range(0, count, 500):
            talk.publish_all("q", [b"x" * 8_000] * 500)
        before = resident_bytes(server.pid)
        with Talk(port) as slow:
            slow.send(method(1, "basic.consume", queue="q", consumer_tag="slow"))
            with Talk(port) as other:
                other.send(method(1, "basic.consume", queue="q", consumer_tag="fast", no_ack=True))
                got = 0
                until(lambda: talk.declare("q") < count)
                while talk.declare("q"):
                    got += len(other.hear("basic.deliver", 1))
                works(talk)

                assert got > count / 2
                assert resident_bytes(server.pid) - before < 64 * MIB
        until(lambda: talk.declare("q") > 0)


def test_large_messages_for_one_who_reads_nothing_are_not_all_in_memory(house: tuple[Served, int]) -> None:
    server, port = house
    with Talk(port).confirming() as talk:
        talk.declare("q")
        for _ in range(16):
            talk.publish_all("q", [b"x" * MIB] * 10)
        before = resident_bytes(server.pid)
        with Talk(port) as slow:
            slow.say("basic.consume", queue="q")
            works(talk)

            assert talk.declare("q") > 110
            assert resident_bytes(server.pid) - before < 64 * MIB


def test_one_who_never_acks_costs_no_bodies(house: tuple[Served, int]) -> None:
    server, port = house
    count = 8_000
    with Talk(port).confirming() as talk, Talk(port) as miser:
        talk.declare("q")
        for _ in range(0, count, 500):
            talk.publish_all("q", [b"x" * 16_000] * 500)
        before = resident_bytes(server.pid)
        miser.send(method(1, "basic.consume", queue="q"))
        got = 0
        while got < count:
            got += len(miser.hear("basic.deliver", 1))
        works(talk)

        assert resident_bytes(server.pid) - before < 48 * MIB  # they are 128 MB
        miser.close()
        until(lambda: talk.declare("q") == count)


def test_what_is_held_for_long_is_whole_when_it_comes_again_by_whatever_way(
    house: tuple[Served, int],
) -> None:
    """Bodies of many open deliveries are on disk only: returned, dead-lettered, or got by another door."""
    server, port = house
    bodies = [f"{n} " + "x" * 200 for n in range(3_000)]
    with Talk(port).confirming() as talk, Whole(port) as miser:
        talk.declare("dead")
        talk.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        talk.publish_all("q", [body.encode() for body in bodies], properties={"message_id": "m"})
        miser.send(method(1, "basic.consume", queue="q", consumer_tag="c"))
        assert len(miser.hear("basic.deliver", 3_000)) == 3_000
        miser.say("basic.cancel", consumer_tag="c")

        miser.send(method(1, "basic.nack", delivery_tag=1_500, multiple=True, requeue=False))
        miser.send(method(1, "basic.nack", delivery_tag=2_999, multiple=True, requeue=True))
        assert miser.declare("dead") == 1_500
        seen: dict[str, list[str]] = {}
        for queue, count in (("dead", 1_500), ("q", 1_499)):
            miser.send(method(1, "basic.consume", queue=queue, consumer_tag=queue))
            found = miser.hear("basic.deliver", count)
            seen[queue] = [each[4] for each in found]
            assert {each[3]["message_id"] for each in found} == {"m"}
            miser.say("basic.cancel", consumer_tag=queue)
        miser.close()
        until(lambda: talk.declare("q", passive=True) == 1_500)
        status, answer = server.get("/api/v1/queues/q/messages?limit=1")

        assert seen == {"dead": bodies[:1_500], "q": bodies[1_500:2_999]}
        assert status == 200
        assert bodies[1_500].encode() in answer


def test_a_consumer_that_vanished_is_cut_and_its_messages_return_in_order(shared: int) -> None:
    bodies = [f"{n}" for n in range(200)]
    with Talk(shared).confirming() as talk, Talk(shared, heartbeat=1) as vanished:
        talk.declare("vanishing")
        talk.publish_all("vanishing", [body.encode() for body in bodies])
        vanished.say("basic.qos", prefetch_count=150)
        vanished.send(method(1, "basic.consume", queue="vanishing"))
        assert len(vanished.hear("basic.deliver", 150)) == 150

        # It is there, and says nothing: no heartbeats, no end.
        until(lambda: talk.declare("vanishing") == 200)
        talk.send(method(1, "basic.consume", queue="vanishing"))
        again = talk.hear("basic.deliver", 200)

        assert [each[4] for each in again] == bodies
        assert [each[2]["redelivered"] for each in again] == [True] * 150 + [False] * 50


# -- those who do not hear their answers


def test_whose_returns_are_not_read_is_not_read_either(house: tuple[Served, int]) -> None:
    server, port = house
    with Talk(port).confirming() as healthy, Talk(port) as deaf:
        before = resident_bytes(server.pid)
        batch = publish(1, "nowhere", b"x" * 10_000, mandatory=True) * 10

        times = deaf.send_until_full(batch)
        grown = resident_bytes(server.pid) - before
        works(healthy)

        assert grown < 64 * MIB
        returned = len(deaf.hear("basic.return", times * 10))
        deaf.send_rest()
        returned += len(deaf.hear("basic.return", 1)) if deaf._unsent else 0
        deaf.declare("q")  # and it goes on
        assert returned + len(deaf.heard) >= times * 10


def test_a_flood_of_gets_is_answered_as_fast_as_it_is_read(house: tuple[Served, int]) -> None:
    server, port = house
    count = 100
    with Talk(port).confirming() as healthy, Talk(port) as greedy:
        healthy.declare("q")
        for _ in range(0, count, 10):
            healthy.publish_all("q", [b"x" * MIB] * 10)
        before = resident_bytes(server.pid)

        greedy.send(method(1, "basic.get", queue="q") * count)
        works(healthy)
        grown = resident_bytes(server.pid) - before

        assert grown < 64 * MIB
        assert len(greedy.hear("basic.get-ok", count)) == count


def test_replies_that_nobody_reads_do_not_pile_up(house: tuple[Served, int]) -> None:
    server, port = house
    with Talk(port).confirming() as asking, Talk(port).confirming() as answering:
        answering.declare("questions")
        reply_to = "amq.rabbitmq.reply-to"
        asking.say("basic.consume", queue=reply_to, no_ack=True)
        asking.send(publish(1, "questions", b"?", properties={"reply_to": reply_to}))
        asking.settled(1)
        question = answering.say("basic.get", "basic.get-ok", queue="questions", no_ack=True)
        address = question[3]["reply_to"]
        before = resident_bytes(server.pid)

        for _ in range(100):
            answering.publish_all(address, [b"x" * MIB])

        assert resident_bytes(server.pid) - before < 64 * MIB
        assert asking.hear("basic.deliver", 1)


# -- many, and over and over


def test_channels_consumers_and_queues_that_come_and_go_leave_nothing_behind(
    house: tuple[Served, int],
) -> None:
    server, port = house

    def churn(rounds: int) -> None:
        for _ in range(rounds):
            with Talk(port) as talk:
                out = []
                for channel in range(2, 152):
                    queue = f"churned-{channel}"
                    out.append(method(channel, "channel.open"))
                    out.append(method(channel, "queue.declare", queue=queue, durable=True))
                    out.append(method(channel, "basic.consume", queue=queue, consumer_tag="c"))
                    out.append(publish(channel, queue, b"x"))
                talk.send(b"".join(out))
                assert len(talk.hear("basic.deliver", 150)) == 150
                talk.heard.clear()
                talk.send(
                    b"".join(
                        method(channel, "queue.delete", queue=f"churned-{channel}")
                        + method(channel, "channel.close")
                        for channel in range(2, 152)
                    )
                )
                assert len(talk.hear("channel.close-ok", 150)) == 150

    churn(4)
    before = resident_bytes(server.pid)
    churn(6)

    assert resident_bytes(server.pid) - before < 12 * MIB
    for what in ("connections", "channels", "consumers", "queues"):
        until(lambda what=what: counted(server, what) == 0)


def test_ten_thousand_consumers_of_one_queue_share_it_and_leave_it(house: tuple[Served, int]) -> None:
    server, port = house
    count = 10_000
    with Talk(port).confirming() as talk:
        talk.declare("q")
        with Talk(port) as many:
            many.say("basic.qos", prefetch_count=1)
            one = b"".join(
                method(1, "basic.consume", queue="q", consumer_tag=f"c{n}", no_wait=True)
                for n in range(count)
            )
            many.send(one)
            until(lambda: counted(server, "consumers") == count)
            talk.send(publish(1, "q", b"x") * count)
            talk.settled(count)
            got = many.hear("basic.deliver", count)

            assert len({each[2]["consumer_tag"] for each in got}) == count
        until(lambda: counted(server, "consumers") == 0)
        assert talk.declare("q") == count


def test_connections_that_hang_up_in_the_middle_leave_nothing_behind(house: tuple[Served, int]) -> None:
    server, port = house
    chance = random.Random(1)
    whole = publish(1, "q", b"x" * 3000) + content_start(1, 5000) + body_frame(1, b"x" * 2500)
    with Talk(port).confirming() as healthy:
        healthy.declare("q")
        for n in range(300):
            with Talk(port) as talk:
                if n % 3 == 0:
                    talk.send(method(1, "basic.consume", queue="q"))
                talk.send(whole[: chance.randrange(len(whole))])
                if n % 2:
                    talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

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
def test_headers_nested_without_end_end_no_more_than_who_sends_them(shared: int, kind: bytes) -> None:
    table = nested(15_000, kind)
    assert len(table) < 131_000
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + table
    with Talk(shared).confirming() as healthy:
        healthy.declare("nested")
        with Talk(shared) as talk:
            talk.send(
                method(1, "basic.publish", routing_key="nested") + frame(2, 1, head) + body_frame(1, b"x")
            )

            assert "502" in caught(lambda: talk.next()) or "501" in caught(lambda: talk.next())
        with Talk(shared) as talk:
            declare = encode_method("queue.declare", {"queue": "deep"})[:-4] + table
            talk.send(frame(1, 1, declare))

            assert "50" in caught(lambda: talk.next())
        works(healthy)


def test_thousands_of_headers_are_carried(shared: int) -> None:
    headers: dict[str, Any] = {f"h{n}": "" for n in range(9_000)}
    with Talk(shared).confirming() as talk:
        talk.declare("headed")
        talk.publish_all("headed", [b"x"], properties={"headers": headers})

        got = talk.say("basic.get", "basic.get-ok", queue="headed")

        assert got[3]["headers"] == headers


def test_patterns_made_to_be_slow_are_not(shared: int) -> None:
    """Trying one way after another, a single one of these keys would take longer than the universe has."""
    with Talk(shared).confirming() as talk:
        talk.say("exchange.declare", exchange="bombs", type="topic", durable=True)
        talk.declare("bombed")
        for n in range(30):
            pattern = "#." + ".".join(["a.#"] * (10 + n)) + ".b"
            talk.say("queue.bind", queue="bombed", exchange="bombs", routing_key=pattern)
        key = ".".join(["a"] * 120)
        talk.publish_all(key, [b"no"] * 10, exchange="bombs")
        talk.publish_all(key + ".b", [b"yes"] * 10, exchange="bombs")

        assert talk.declare("bombed") == 10


def test_thousands_of_bindings_to_one_queue_give_one_message(shared: int) -> None:
    with Talk(shared).confirming() as talk:
        talk.declare("bound")
        bind = b"".join(
            method(1, "queue.bind", queue="bound", exchange="amq.topic", routing_key=f"#.{n}.#", no_wait=True)
            for n in range(2_000)
        )
        talk.send(bind)
        key = ".".join(str(n) for n in range(50))
        talk.publish_all(key, [b"x"] * 5, exchange="amq.topic")

        assert talk.declare("bound") == 5
        talk.say("queue.delete", queue="bound")


def test_frames_for_a_channel_that_was_closed_are_passed_over(shared: int) -> None:
    with Talk(shared) as talk:
        talk.declare("late")
        bad = method(1, "queue.declare", queue="absent", passive=True)
        late = publish(1, "late", b"late") * 50 + method(1, "basic.ack", delivery_tag=5) * 20
        late += method(1, "basic.consume", queue="late") + method(1, "basic.get", queue="late")

        talk.send(bad + late)
        assert "404" in caught(lambda: talk.next())

        talk.say("channel.open", channel=2)
        assert talk.say("queue.declare", channel=2, queue="late", passive=True)[2]["message_count"] == 0
        with pytest.raises(Ended, match="504"):
            talk.say("queue.declare", channel=1, queue="late", passive=True)
