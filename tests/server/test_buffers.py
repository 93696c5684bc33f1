"""Half-sent messages and unread answers: one ceiling for all of them, and nothing stays of who is gone."""

from __future__ import annotations

import gc
import json
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from openq.amqp import connection as amqp
from openq.amqp import publishing
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.server.buffers import BufferLimit
from openq.server.cached_head import MAX_CACHED_HEAD_BYTES
from openq.server.http import CHUNK_BYTES, HttpConnection
from openq.server.http_request import HttpRequest
from openq.server.listener import Listener
from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.raw_client import RawClient, body_frame, method, publish
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.raw_http import ConnectionClosed, RawHttpClient, request_bytes
from tests.server.test_http import START, _NullTransport
from tests.serving import free_port
from tests.waiting import until

MIB = 1 << 20


# -- the ceiling


class Held:
    protocol = "http"
    peer = "somebody"

    def __init__(self, shed: list[Held]) -> None:
        self._shed = shed

    def shed(self) -> None:
        self._shed.append(self)


def test_the_connection_that_holds_most_is_shed_first() -> None:
    shed: list[Held] = []
    buffers = BufferLimit(100)
    small, large, newest = Held(shed), Held(shed), Held(shed)
    buffers.hold(small, 10)
    buffers.hold(large, 80)

    buffers.hold(newest, 20)

    assert shed == [large]
    assert buffers.held == 30
    assert buffers.shed == {"http": 1}
    buffers.hold(small, 0)
    buffers.hold(newest, 0)
    assert buffers.held == 0
    assert buffers.of("http") == 0


def test_who_lets_go_sheds_nobody() -> None:
    shed: list[Held] = []
    buffers = BufferLimit(100)
    one, other = Held(shed), Held(shed)
    buffers.hold(one, 60)
    buffers.hold(other, 40)
    buffers.max_bytes = 50

    buffers.hold(other, 30)

    assert shed == []


# -- who is gone


class Collected:
    """Nothing is collected inside; `count` of a type are the objects of it that are still there."""

    def __enter__(self) -> Collected:
        gc.collect()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()

    def count(self, kind: type) -> int:
        return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("chunked", [False, True])
def test_half_a_request_goes_with_its_connection_without_the_collector(chunked: bool) -> None:
    listener = Listener(lambda request: None)
    with Collected() as collected:
        before = collected.count(HttpConnection)
        connection = listener.make()
        connection.connection_made(_NullTransport())
        if chunked:
            connection.data_received(START + b"Transfer-Encoding: chunked\r\n\r\n")
            connection.data_received(b"100000\r\n" + b"x" * 500_000)
        else:
            connection.data_received(START + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000)
            connection.data_received(b"x" * 100_000)
        assert listener.buffers.held >= 200_000

        connection.connection_lost(None)
        del connection

        assert listener.buffers.held == 0
        assert collected.count(HttpConnection) == before


def test_an_answer_that_is_not_read_goes_with_its_connection_without_the_collector() -> None:
    listener = Listener(lambda request: request.answer(200, b"x" * 10 * CHUNK_BYTES, b"text/plain"))

    class Full(_NullTransport):
        def write(self, data: object) -> None:
            connection.pause_writing()

    with Collected() as collected:
        before = collected.count(HttpRequest)
        connection = listener.make()
        connection.connection_made(Full())
        connection.data_received(START + b"\r\n")
        assert listener.buffers.held == 10 * CHUNK_BYTES

        connection.connection_lost(None)

        assert listener.buffers.held == 0
        assert connection._answer is None
        assert collected.count(HttpRequest) == before


@pytest.fixture
def server() -> Iterator[tuple[InProcessServer, int]]:
    port = free_port()
    config = Config(
        memory=True,
        drain_timeout_s=1,
        amqp_port=port,
        max_buffer_bytes=8 * MIB,
        max_message_bytes=4 * MIB,
        max_request_bytes=4 * MIB,
    )
    with in_process_server(LocalBroker(None), config) as running:
        yield running, port


def half_message(talk: RawClient, size: int, sent: int) -> None:
    whole = publish(1, "q", b"x" * sent)
    at = whole.index(struct.pack(">Q", sent))
    talk.send(whole[:at] + struct.pack(">Q", size) + whole[at + 8 :])


def hung_up(talk: RawClient) -> None:
    talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    talk.socket.close()


def test_half_an_amqp_message_goes_with_its_connection_without_the_collector(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        talk.declare("q")
    until(lambda: not running.server.amqp.open_connections)
    with Collected() as collected:
        before = collected.count(amqp.AmqpConnection)
        talks = [RawClient(port) for _ in range(3)]
        for talk in talks:
            half_message(talk, 3 * MIB, 2 * MIB)
        until(lambda: buffers.held >= 6 * MIB)

        for talk in talks:
            hung_up(talk)

        until(lambda: buffers.held == 0)
        until(lambda: collected.count(amqp.AmqpConnection) == before)


def test_half_a_transaction_goes_with_its_connection_too(server: tuple[InProcessServer, int]) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        talk.declare("q")
        talk.call("tx.select")
        talk.send(publish(1, "q", b"x" * MIB))
        talk.send(publish(1, "q", b"x" * MIB))
        until(lambda: buffers.held >= 2 * MIB)

        talk.call("tx.commit")
        until(lambda: buffers.held == 0)
        talk.send(publish(1, "q", b"x" * MIB))
        until(lambda: buffers.held >= MIB)
    until(lambda: buffers.held == 0)


# -- at the ceiling, by each protocol


def metrics(wire: RawHttpClient) -> dict[str, float]:
    lines = wire.get("/metrics").body.decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("openq_buffered_"))
    return {name: float(value) for name, _, value in found}


def test_amqp_clients_over_the_ceiling_are_refused_and_others_go_on(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    with ExitStack() as stack:
        wire = stack.enter_context(running.wire())
        talks = [stack.enter_context(RawClient(port)) for _ in range(4)]
        talks[0].declare("q")
        half_message(talks[0], 2 * MIB, MIB)  # not much: it stays
        for talk in talks[1:]:
            half_message(talk, 3 * MIB, 3 * MIB - 1)

        until(lambda: metrics(wire)['openq_buffered_connections_closed_total{protocol="amqp"}'] == 1)
        until(lambda: len(spoken_to([talk.socket for talk in talks])) == 1)

        [reported] = spoken_to([talk.socket for talk in talks])
        assert reported is not talks[0].socket
        with pytest.raises(ConnectionEnded, match="506"):
            next(talk for talk in talks if talk.socket is reported).next()
        assert metrics(wire)["openq_buffered_bytes_limit"] == 8 * MIB
        assert metrics(wire)['openq_buffered_bytes{protocol="amqp"}'] < 8 * MIB
        with RawClient(port).confirming() as other:
            other.publish_all("q", [b"hello"])
    until(lambda: running.server.context.buffers.held == 0)


LONG = {"headers": {"note": "x" * 100_000}}


def half_with_properties(channel: int) -> bytes:
    """A publish with long properties and a body of one byte, up to that byte."""
    return publish(channel, "q", b"x", properties=LONG)[: -len(body_frame(channel, b"x"))]


def opened(talk: RawClient, channels: range) -> None:
    for channel in channels:
        talk.open_channel(channel)


def test_properties_of_half_sent_messages_count_until_their_bodies_came(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        talk.declare("q")
        opened(talk, range(2, 11))
        for channel in range(1, 11):
            talk.send(half_with_properties(channel))
        until(lambda: buffers.held > 10 * 100_000)

        for channel in range(1, 11):
            talk.send(body_frame(channel, b"x"))

        until(lambda: buffers.held == 0)
        assert talk.declare("q") == 10
        for channel in range(1, 4):
            talk.send(half_with_properties(channel))
        until(lambda: buffers.held > 3 * 100_000)
    until(lambda: buffers.held == 0)


def test_properties_of_half_sent_messages_over_the_ceiling_cut_the_one_that_has_most(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk, RawClient(port) as other:
        talk.declare("q")
        opened(talk, range(2, 61))
        opened(other, range(2, 31))
        for channel in range(1, 61):
            talk.send(half_with_properties(channel))
        until(lambda: buffers.held > 60 * 100_000)
        for channel in range(1, 31):
            other.send(half_with_properties(channel))

        with pytest.raises(ConnectionEnded, match="506"):
            talk.next()

        assert buffers.shed == {"amqp": 1}
        for channel in range(1, 31):
            other.send(body_frame(channel, b"x"))
        until(lambda: buffers.held == 0)
        assert other.declare("q") == 30


def test_nothing_is_kept_of_a_message_that_was_refused_by_its_size(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        opened(talk, range(2, 4))
        talk.send(half_with_properties(3))
        until(lambda: buffers.held > 100_000)
        at = (refused := half_with_properties(2)).index(struct.pack(">HHQ", 60, 0, 1))
        talk.send(refused[:at] + struct.pack(">HHQ", 60, 0, 5 * MIB) + refused[at + 12 :])
        with pytest.raises(ConnectionEnded, match="larger than configured max size"):
            talk.next()

        until(lambda: 100_000 < buffers.held < 2 * 100_000)
        talk.send(body_frame(3, b"x"))
        until(lambda: buffers.held == 0)


def test_properties_in_a_transaction_count_until_it_is_committed(server: tuple[InProcessServer, int]) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        talk.declare("q")
        talk.call("tx.select")
        for _ in range(5):
            talk.send(publish(1, "q", b"x", properties=LONG))
        until(lambda: buffers.held > 5 * 100_000)

        talk.call("tx.commit")

        assert buffers.held == 0
        assert talk.declare("q") == 5


def test_properties_in_a_transaction_over_the_ceiling_cut_the_one_that_has_most(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk, RawClient(port) as other:
        other.declare("q")
        for each in (talk, other):
            each.call("tx.select")
        other.send(publish(1, "q", b"x", properties=LONG))
        until(lambda: buffers.held > 100_000)
        talk.send(publish(1, "q", b"x", properties=LONG) * 84)

        with pytest.raises(ConnectionEnded, match="506"):
            talk.next()

        assert buffers.shed == {"amqp": 1}
        until(lambda: buffers.held < 2 * 100_000)
        other.call("tx.commit")
        assert other.declare("q") == 1
    until(lambda: buffers.held == 0)


def test_transactions_of_several_channels_over_the_limit_of_a_connection_are_refused(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    buffers.max_bytes = 100 * MIB
    with RawClient(port) as talk:
        talk.declare("q")
        talk.open_channel(2)
        talk.call("tx.select")
        talk.call("tx.select", channel=2)
        talk.send(publish(1, "q", b"x"))
        for _ in range(3):
            talk.send(publish(2, "q", b"x" * (3 * MIB)))

        with pytest.raises(ConnectionEnded, match="commit earlier"):
            talk.next()

        until(lambda: buffers.held == 0)


def consume(tag: str, size: int) -> bytes:
    arguments = {"note": "x" * size}
    return method(1, "basic.consume", queue="q", consumer_tag=tag, no_wait=True, arguments=arguments)


def test_long_arguments_of_consumers_count_until_they_are_gone(server: tuple[InProcessServer, int]) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk:
        talk.declare("q")
        talk.send(consume("small", 100))
        talk.declare("q")
        assert buffers.held == 0
        assert [each["arguments"] for each in running.server.amqp.consumers()] == [{"note": "x" * 100}]
        for number in range(10):
            talk.send(consume(f"c-{number}", 16_000))
        talk.declare("q")
        assert buffers.held > 10 * 16_000

        talk.call("basic.cancel", consumer_tag="c-0")
        assert 9 * 16_000 < buffers.held < 10 * 16_000
        talk.call("queue.delete", queue="q")
        assert buffers.held == 0

        talk.declare("q")
        talk.open_channel(2)
        for number in range(10):
            talk.send(consume(f"c-{number}", 16_000))
        until(lambda: buffers.held > 10 * 16_000)
        talk.call("channel.close", class_id=0, method_id=0, reply_code=200)
        assert buffers.held == 0


def test_a_consumer_with_too_long_arguments_is_refused(server: tuple[InProcessServer, int]) -> None:
    _, port = server
    with RawClient(port) as talk:
        talk.declare("q")
        talk.send(consume("long", 17_000))

        with pytest.raises(ConnectionEnded, match=r"406.*the maximum is 16384"):
            talk.next()


def test_arguments_of_consumers_over_the_ceiling_cut_the_one_that_has_most(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    buffers = running.server.context.buffers
    with RawClient(port) as talk, RawClient(port) as other:
        other.declare("q")
        for number in range(10):
            other.send(consume(f"c-{number}", 16_000))
        until(lambda: buffers.held > 10 * 16_000)
        for number in range(520):
            talk.send(consume(f"c-{number}", 16_000))

        with pytest.raises(ConnectionEnded, match="506"):
            talk.next()

        assert buffers.shed == {"amqp": 1}
        until(lambda: 10 * 16_000 < buffers.held < 11 * 16_000)
        assert other.declare("q") == 0
    until(lambda: buffers.held == 0)


def spoken_to(sockets: list[socket.socket]) -> list[socket.socket]:
    """Those to which the server said something, or that it closed."""
    return select.select(sockets, [], [], 0)[0]


def test_http_clients_over_the_ceiling_are_refused_and_others_go_on(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    half = request_bytes("POST", "/", b"x" * 3 * MIB)[:-1]
    with ExitStack() as stack:
        wire = stack.enter_context(running.wire())
        talk = stack.enter_context(RawClient(port))
        talk.declare("q")
        half_message(talk, 2 * MIB, MIB)  # the ceiling is one for all protocols
        until(lambda: metrics(wire)['openq_buffered_bytes{protocol="amqp"}'] >= MIB)
        wires = [stack.enter_context(running.wire()) for _ in range(3)]
        for each in wires:
            try:
                each.send(half)
            except ConnectionClosed:
                pass

        until(lambda: metrics(wire)['openq_buffered_connections_closed_total{protocol="http"}'] == 1)

        until(lambda: len(spoken_to([each.socket for each in wires])) == 1)
        [refused] = [each for each in wires if spoken_to([each.socket])]
        try:
            answer = refused.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
        except ConnectionClosed:
            pass  # it was still sending, and cannot hear it
        assert wire.rest("POST", "queues/q/messages", {"payload": "small"}).status == 201
    until(lambda: running.server.context.buffers.held == 0)


def test_a_client_that_does_not_read_its_answers_is_counted_and_cut_at_the_ceiling(
    server: tuple[InProcessServer, int],
) -> None:
    running, port = server
    with running.wire() as wire, RawClient(port).confirming() as talk:
        assert wire.rest("PUT", "queues/big").status == 201
        talk.publish_all("big", [b"x" * (3 * MIB)] * 4)
        greedy = []
        for _ in range(4):
            each = socket.socket()
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", running.port))
            greedy.append(each)
        question = {"max": 1, "visibility_timeout": 1000}
        for each in greedy:
            body = json.dumps(question).encode()
            kind = {"Content-Type": "application/json"}
            each.sendall(request_bytes("POST", "/api/v1/queues/big/receive", body, kind))

        until(lambda: metrics(wire)['openq_buffered_connections_closed_total{protocol="http"}'] >= 1)

        assert running.server.context.buffers.held <= 8 * MIB
        assert wire.rest("POST", "queues/big/messages", {"payload": "small"}).status == 201
        for each in greedy:
            each.close()
    until(lambda: running.server.context.buffers.held == 0)


# -- what is remembered


def test_a_long_head_is_not_remembered() -> None:
    listener = Listener(lambda request: request.answer(200, b"", b"text/plain"))
    connection = listener.make()
    connection.connection_made(_NullTransport())
    for size in (10, MAX_CACHED_HEAD_BYTES, 30_000):
        connection.data_received(START + b"X-Long: " + b"x" * size + b"\r\n\r\n")

    assert sum(known.size for known in connection._cached_heads.values()) < MAX_CACHED_HEAD_BYTES


def test_what_publishers_remember_is_bounded_over_all_connections(
    server: tuple[InProcessServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MAX_CACHED_TOTAL", 50)
    running, port = server
    kept = running.server.amqp.publish_cache
    with ExitStack() as stack:
        for number in range(5):
            talk = stack.enter_context(RawClient(port))
            talk.send(b"".join(publish(1, f"key-{number}-{n}", b"x") for n in range(40)))
            talk.declare("q")  # answered when all that is done
            assert 0 < kept.count <= 50 + 2 * 5  # two of each connection in any case
    until(lambda: kept.count == 0)
