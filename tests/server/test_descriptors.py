"""A low limit of file descriptors: connections are refused in time, and the journal goes on."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pika
import pika.exceptions
import pytest

from openq.server.admission import Admission
from tests.server.raw_http import RawHttpClient, queue_url
from tests.serving import Served, free_port
from tests.waiting import until

LIMIT = 200
BODY = "x" * 200_000


@contextmanager
def limited(data: Path, limit: int) -> Iterator[tuple[Served, int]]:
    """A server with a limit of its own, soft and hard, and its AMQP port."""
    amqp = free_port()
    server = Served(["--data", str(data), "--amqp-port", str(amqp)], free_port(), descriptors=limit)
    try:
        yield server.wait(), amqp
    finally:
        server.stop()


def metric(server: Served, name: str) -> int:
    status, body = server.get("/metrics")
    assert status == 200
    [line] = [line for line in body.decode().splitlines() if line.startswith(name)]
    return int(line.rpartition(" ")[2])


def silent(port: int, stack: ExitStack) -> None:
    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))


def test_silent_sockets_do_not_stop_the_journal_and_the_rest_is_refused(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * LIMIT:
        pytest.skip("this process may not open enough sockets")
    with limited(tmp_path / "d", LIMIT) as (server, amqp), ExitStack() as stack:
        wire = RawHttpClient(server.port)
        assert wire.sqs("CreateQueue", QueueName="q").status == 200
        most = metric(server, "openq_connections_max ")
        assert most < LIMIT - 40
        for n in range(LIMIT + 50):
            silent(amqp if n % 2 else server.port, stack)

        refused = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        try:
            answer = refused.recv(200)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 503 ")
        # Over several segments: each of them is a new file.
        for _ in range(30):
            assert wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody=BODY).status == 200
        wire.close()
        stack.close()

        until(lambda: _answers(server))
        assert metric(server, 'openq_connections_refused_total{protocol="http"}') > 0
        assert metric(server, 'openq_connections_refused_total{protocol="amqp"}') > 0
        status, text = server.get("/readyz")
        assert (status, text.split(b":")[0]) == (200, b"ready")
        assert not [line for line in server.log if "journal failed" in line]


def _answers(server: Served) -> bool:
    try:
        return server.get("/livez")[0] == 200
    except OSError:
        return False


def test_a_refused_client_gets_the_reason(tmp_path: Path) -> None:
    amqp = free_port()
    server = Served(["--memory", "--amqp-port", str(amqp), "--max-connections", "3"], free_port())
    try:
        server.wait()
        parameters = pika.ConnectionParameters("127.0.0.1", amqp)
        with ExitStack() as stack:
            inside = RawHttpClient(server.port)
            stack.callback(inside.close)
            silent(server.port, stack)
            silent(amqp, stack)  # both protocols count together
            until(lambda: _open(inside) == 3)

            with pytest.raises(pika.exceptions.AMQPConnectionError) as refusal:
                pika.BlockingConnection(parameters)
            assert "too many connections" in _whole(refusal.value)
            outside = RawHttpClient(server.port)
            stack.callback(outside.close)
            answer = outside.get("/livez")
            assert answer.status == 503
            assert b"too many connections" in answer.body
        until(lambda: _connects(parameters))
    finally:
        server.stop()


def _open(wire: RawHttpClient) -> int:
    lines = wire.get("/metrics").body.decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("openq_connections{"))


def _whole(error: BaseException) -> str:
    return repr(error) + "".join(repr(each) for each in getattr(error, "args", ()))


def _connects(parameters: pika.ConnectionParameters) -> bool:
    try:
        pika.BlockingConnection(parameters).close()
    except pika.exceptions.AMQPConnectionError:
        return False
    return True


def test_connections_leave_a_reserve_and_what_others_hold() -> None:
    held, now = [30], [0.0]
    admission = Admission(10_000, limit=200, count=lambda: held[0] + admission.open, now=lambda: now[0])
    now[0] = 1.0
    entered = sum(admission.enter("http") for _ in range(300))
    assert entered == 200 - 50 - 30
    assert admission.refused == {"http": 300 - entered}

    held[0] = 60  # the next measure finds that others need more
    now[0] = 3.0
    assert not admission.enter("amqp")
    for _ in range(40):
        admission.leave()
    assert admission.enter("amqp")
    assert admission.open == entered - 39
    assert admission.max_connections == 90


if sys.platform != "linux":
    pytest.skip("limits of other processes are set as on Linux", allow_module_level=True)
