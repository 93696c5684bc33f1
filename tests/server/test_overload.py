"""Too many, too slow, too greedy: what one client does must not be felt by another."""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw_http import (
    ACCOUNT,
    ConnectionClosed,
    RawHttpClient,
    queue_url,
    request_bytes,
    rest_request,
    sqs_request,
)
from tests.serving import Served, served, start
from tests.waiting import until

SLOW = 1_000
POLLS = 300


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def metric(wire: RawHttpClient, name: str) -> int:
    for line in wire.get("/metrics").body.decode().splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            return int(float(line.rpartition(" ")[2]))
    raise AssertionError(f"no metric {name}")


def create(wire: RawHttpClient, name: str, **attributes: str) -> None:
    assert wire.sqs("CreateQueue", QueueName=name, Attributes=attributes).status == 200


def send(wire: RawHttpClient, queue: str, *bodies: str) -> None:
    for at in range(0, len(bodies), 10):
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[at : at + 10])]
        answer = wire.sqs("SendMessageBatch", QueueUrl=queue_url(queue), Entries=entries)
        assert len(answer.json()["Successful"]) == len(entries)


def receive(wire: RawHttpClient, queue: str, **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        wire.sqs("ReceiveMessage", QueueUrl=queue_url(queue), **members).json().get("Messages", [])
    )
    return found


def works(wire: RawHttpClient, queue: str, times: int = 20) -> None:
    """A healthy client: sends, receives, deletes."""
    for n in range(times):
        send(wire, queue, f"m{n}")
        [message] = receive(wire, queue)
        assert message["Body"] == f"m{n}"
        done = wire.sqs("DeleteMessage", QueueUrl=queue_url(queue), ReceiptHandle=message["ReceiptHandle"])
        assert done.status == 200


def dropped(sockets: list[socket.socket]) -> list[socket.socket]:
    """Those of them that the server has closed."""
    poller = select.poll()
    by_number = {each.fileno(): each for each in sockets}
    for number in by_number:
        poller.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
    gone = []
    for number, _ in poller.poll(0):
        each = by_number[number]
        try:
            data = each.recv(65536)
        except OSError:
            data = b""
        if not data:
            gone.append(each)
    return gone


# -- slow


def test_a_thousand_slow_clients_are_dropped_and_the_healthy_one_is_not(tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    flags = ("--header-timeout-s", "2", "--body-timeout-s", "2")
    with (
        served(tmp_path / "d", *flags) as server,
        RawHttpClient(server.port) as healthy,
        ExitStack() as stack,
    ):
        create(healthy, "q")
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(SLOW)
        ]
        for each in slow:
            each.sendall(head)

        works(healthy, "q")
        left = list(slow)

        def all_gone() -> bool:
            # One more byte from each: a client that never stops talking is no less slow.
            for each in left:
                try:
                    each.send(b"x")
                except OSError:
                    pass
            gone = dropped(left)
            left[:] = [each for each in left if each not in gone]
            return not left

        until(all_gone)

        works(healthy, "q")
        assert metric(healthy, "openq_connections") == 1


def test_a_body_that_does_not_come_and_a_silent_connection_are_given_up(tmp_path: Path) -> None:
    flags = ("--header-timeout-s", "1", "--body-timeout-s", "1", "--idle-timeout-s", "1")
    with (
        served(None, *flags) as server,
        RawHttpClient(server.port) as half,
        RawHttpClient(server.port) as silent,
    ):
        half.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")

        answer = half.answer()

        assert answer.status == 408
        assert half.is_closed()
        assert silent.is_closed()


def test_a_client_that_does_not_read_its_answers_is_dropped(tmp_path: Path) -> None:
    with served(None, "--body-timeout-s", "1") as server, RawHttpClient(server.port) as healthy:
        greedy = socket.create_connection(("127.0.0.1", server.port))
        greedy.settimeout(1)
        question = request_bytes("GET", "/openapi.json") * 50
        with greedy:
            try:
                while True:
                    greedy.sendall(question)
            except OSError:
                pass  # the server reads no more, or has hung up by now

            until(lambda: metric(healthy, "openq_connections") == 1)
        create(healthy, "q")
        works(healthy, "q")


# -- many


def test_a_flood_of_pipelined_requests_is_answered_in_order(tmp_path: Path) -> None:
    count = 5_000
    with (
        served(tmp_path / "d") as server,
        RawHttpClient(server.port) as flood,
        RawHttpClient(server.port) as healthy,
    ):
        create(healthy, "q")
        create(healthy, "other")
        stream = b"".join(
            sqs_request("SendMessage", {"QueueUrl": queue_url("q"), "MessageBody": f"m{n}"})
            for n in range(count)
        )
        sender = threading.Thread(target=flood.send, args=(stream,))
        sender.start()

        works(healthy, "other")
        statuses = [flood.answer().status for _ in range(count)]
        sender.join()

        assert statuses == [200] * count
        seen: list[str] = []
        while found := receive(healthy, "q", MaxNumberOfMessages=10):
            seen += [message["Body"] for message in found]
        assert seen == [f"m{n}" for n in range(count)]


def test_connections_beyond_the_limit_are_refused_and_room_is_used_again() -> None:
    with served(None, "--max-connections", "20") as server, ExitStack() as stack:
        first = stack.enter_context(RawHttpClient(server.port))
        others = [stack.enter_context(RawHttpClient(server.port)) for _ in range(19)]
        for each in (first, *others):
            assert each.get("/livez").status == 200

        with RawHttpClient(server.port) as one_more:
            refusal = one_more.answer()
            assert refusal.status == 503
            assert refusal.headers["connection"] == "close"
            assert one_more.is_closed()

        others[0].close()
        until(lambda: metric(first, "openq_connections") == 19)
        with RawHttpClient(server.port) as another:
            assert another.get("/livez").status == 200


def test_a_server_out_of_files_comes_back_when_there_are_some() -> None:
    with served(None) as server, RawHttpClient(server.port) as healthy:
        create(healthy, "q")
        in_use = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (in_use + 20, in_use + 20))
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))

            works(healthy, "q")

        until(lambda: metric(healthy, "openq_connections") == 1)
        with RawHttpClient(server.port) as another:
            works(another, "q")


def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    with served(None) as server, RawHttpClient(server.port) as healthy:
        question = request_bytes("GET", "/livez")
        for n in range(1_000):
            with RawHttpClient(server.port) as brief:
                if n % 3:
                    brief.ask(question)
                else:
                    brief.send(question[: n % len(question)])

        until(lambda: metric(healthy, "openq_connections") == 1)
        assert metric(healthy, "openq_long_polls") == 0
        until(lambda: len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 50)


def test_a_connection_may_be_reset_after_any_byte_of_a_request(tmp_path: Path) -> None:
    question = sqs_request("SendMessage", {"QueueUrl": queue_url("q"), "MessageBody": "x"})
    with served(tmp_path / "d") as server, RawHttpClient(server.port) as healthy:
        create(healthy, "q")
        for cut in range(len(question) + 1):
            with socket.create_connection(("127.0.0.1", server.port)) as brief:
                brief.sendall(question[:cut])
                brief.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        until(lambda: metric(healthy, "openq_connections") == 1)
        create(healthy, "other")
        works(healthy, "other")
        assert healthy.rest("GET", "queues/q/stats").json()["ready"] <= 1  # only the last one was whole
        assert not [line for line in server.log if '"error"' in line]


def test_halves_of_large_requests_do_not_fill_the_memory() -> None:
    half = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 10_000_000
    flags = ("--max-buffer-bytes", "80MiB", "--max-message-bytes", "1MiB")
    with served(None, *flags) as server, RawHttpClient(server.port) as healthy:
        create(healthy, "q")
        with ExitStack() as stack:
            left = [stack.enter_context(RawHttpClient(server.port)) for _ in range(30)]
            for wire in list(left):
                try:
                    wire.send(half)
                except ConnectionClosed:
                    left.remove(wire)

            def most_are_gone() -> bool:
                gone = dropped([wire.socket for wire in left])
                left[:] = [wire for wire in left if wire.socket not in gone]
                return len(left) <= 10

            until(most_are_gone)
            assert left
            works(healthy, "q")
        until(lambda: metric(healthy, "openq_connections") == 1)

        answer = healthy.ask(request_bytes("POST", "/", b"x" * 10_000_000))
        assert answer.status == 404  # read to its end, and no request of SQS


def test_large_requests_behind_a_long_poll_are_answered_in_their_turn(tmp_path: Path) -> None:
    with served(tmp_path / "d") as server, RawHttpClient(server.port) as wire:
        create(wire, "q")
        body = "x" * 200_000
        poll = sqs_request("ReceiveMessage", {"QueueUrl": queue_url("q"), "WaitTimeSeconds": 1})
        message = sqs_request("SendMessage", {"QueueUrl": queue_url("q"), "MessageBody": body})
        sender = threading.Thread(target=wire.send, args=(poll + message * 30,))
        sender.start()

        answers = [wire.answer() for _ in range(31)]
        sender.join()

        assert [answer.status for answer in answers] == [200] * 31
        assert wire.rest("GET", "queues/q/stats").json()["ready"] == 30


@pytest.mark.parametrize("count", [1, 5])
def test_a_client_that_closes_its_half_after_asking_gets_its_answers(tmp_path: Path, count: int) -> None:
    question = sqs_request("SendMessage", {"QueueUrl": queue_url("q"), "MessageBody": "x"})
    with (
        served(tmp_path / "d") as server,
        RawHttpClient(server.port) as healthy,
        RawHttpClient(server.port) as brief,
    ):
        create(healthy, "q")

        brief.send(question * count)
        brief.socket.shutdown(socket.SHUT_WR)

        assert [brief.answer().status for _ in range(count)] == [200] * count
        assert brief.is_closed()
        until(lambda: metric(healthy, "openq_connections") == 1)


# -- waiting


def poll_request(n: int) -> bytes:
    if n % 2:
        members = {"QueueUrl": queue_url("q"), "WaitTimeSeconds": 20, "MaxNumberOfMessages": 1}
        return sqs_request("ReceiveMessage", members)
    return rest_request("POST", "queues/q/receive", {"wait": 20, "max": 1})


def bodies_in(body: bytes) -> list[str]:
    answer = json.loads(body)
    if "messages" in answer:
        return [message["payload"] for message in answer["messages"]]
    return [message["Body"] for message in answer.get("Messages", [])]


def test_every_long_poll_wakes_and_each_message_goes_to_one(tmp_path: Path) -> None:
    with served(tmp_path / "d") as server, RawHttpClient(server.port) as healthy, ExitStack() as stack:
        create(healthy, "q")
        polls = [stack.enter_context(RawHttpClient(server.port)) for _ in range(POLLS)]
        for n, poll in enumerate(polls):
            poll.send(poll_request(n))
        until(lambda: metric(healthy, "openq_long_polls") == POLLS)

        bodies = [f"m{n}" for n in range(POLLS)]
        send(healthy, "q", *bodies)
        seen = [bodies_in(poll.answer().body) for poll in polls]

        assert all(len(each) == 1 for each in seen)
        assert sorted(each[0] for each in seen) == sorted(bodies)
        assert metric(healthy, "openq_long_polls") == 0


def test_a_client_that_disconnects_while_waiting_takes_no_message_along(tmp_path: Path) -> None:
    with served(tmp_path / "d") as server, RawHttpClient(server.port) as healthy:
        create(healthy, "q")
        for n in range(40):
            with RawHttpClient(server.port) as poll:
                poll.send(poll_request(n))
                until(lambda: metric(healthy, "openq_long_polls") == 1)
        until(lambda: metric(healthy, "openq_long_polls") == 0)

        send(healthy, "q", "still here")
        [message] = receive(healthy, "q", MessageSystemAttributeNames=["All"])

        assert message["Body"] == "still here"
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_deleting_a_queue_answers_those_who_wait_for_it(tmp_path: Path) -> None:
    with served(None) as server, RawHttpClient(server.port) as healthy, ExitStack() as stack:
        create(healthy, "q")
        polls = [stack.enter_context(RawHttpClient(server.port)) for _ in range(10)]
        for n, poll in enumerate(polls):
            poll.send(poll_request(n))
        until(lambda: metric(healthy, "openq_long_polls") == 10)

        assert healthy.rest("DELETE", "queues/q").status == 200

        for poll in polls:
            answer = poll.answer()
            assert answer.status < 500
            assert answer.status != 200 or bodies_in(answer.body) == []


# -- greedy


def test_a_consumer_that_never_acks_holds_up_nobody_else(tmp_path: Path) -> None:
    with (
        served(tmp_path / "d") as server,
        RawHttpClient(server.port) as hoarder,
        RawHttpClient(server.port) as healthy,
    ):
        create(healthy, "hoarded")
        create(healthy, "q")
        send(healthy, "hoarded", *(f"m{n}" for n in range(500)))
        held = 0
        while found := receive(hoarder, "hoarded", MaxNumberOfMessages=10, VisibilityTimeout=43200):
            held += len(found)

        works(healthy, "q")

        assert held == 500
        assert healthy.rest("GET", "queues/hoarded/stats").json()["in_flight"] == 500


def test_a_poison_message_is_given_out_exactly_as_often_as_allowed_also_across_restarts(
    tmp_path: Path,
) -> None:
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 4})
    deliveries = 0
    port = None
    for life in range(4):
        server = start(tmp_path / "d", port=port).wait()
        port = server.port
        with RawHttpClient(server.port) as wire:
            if life == 0:
                create(wire, "dead")
                create(wire, "q", RedrivePolicy=policy)
                send(wire, "q", "poison")
            for message in receive(wire, "q", VisibilityTimeout=43200):
                deliveries += 1
                wire.sqs(
                    "ChangeMessageVisibility",
                    QueueUrl=queue_url("q"),
                    ReceiptHandle=message["ReceiptHandle"],
                    VisibilityTimeout=0,
                )
        server.kill()

    with served(tmp_path / "d", port=port) as server, RawHttpClient(server.port) as wire:
        assert receive(wire, "q") == []
        [message] = receive(wire, "dead")

    assert deliveries == 4
    assert message["Body"] == "poison"


# -- the end


def finish(server: Served) -> int:
    return server.stop()


def test_sigterm_answers_long_polls_and_reports_what_is_stored(tmp_path: Path) -> None:
    server = start(tmp_path / "d").wait()
    with ExitStack() as stack:
        healthy = stack.enter_context(RawHttpClient(server.port))
        create(healthy, "q")
        create(healthy, "kept")
        send(healthy, "kept", *(f"m{n}" for n in range(7)))
        [_] = receive(healthy, "kept", VisibilityTimeout=600)
        polls = [stack.enter_context(RawHttpClient(server.port)) for _ in range(50)]
        for n, poll in enumerate(polls):
            poll.send(poll_request(n))
        until(lambda: metric(healthy, "openq_long_polls") == 50)

        stopping = threading.Thread(target=finish, args=(server,))
        stopping.start()
        answers = [poll.answer() for poll in polls]
        stopping.join()

        for answer in answers:
            assert answer.status == 200
            assert answer.headers["connection"] == "close"
            assert bodies_in(answer.body) == []
        assert healthy.is_closed()
        with pytest.raises(ConnectionClosed):
            RawHttpClient(server.port)
    assert server.process.returncode == 0
    assert any("7 messages are safe on disk" in line for line in server.lines)
    with served(tmp_path / "d", port=server.port) as again, RawHttpClient(again.port) as wire:
        assert len(receive(wire, "kept", MaxNumberOfMessages=10)) == 6


def test_a_request_that_does_not_end_does_not_hold_up_the_end(tmp_path: Path) -> None:
    server = start(None, "--drain-timeout-s", "0.2").wait()
    with RawHttpClient(server.port) as stuck:
        stuck.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")

        assert server.stop() == 0
        assert stuck.is_closed()
