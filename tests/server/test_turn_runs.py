"""Requests of many connections in one turn of the loop: each has the answer that it would have alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.config import Config
from openq.engine.records import ACK, PUBLISH, RUN, Record
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, QueueSettings
from tests.server.in_process import InProcessServer, in_process_server


class FakeTransport(asyncio.Transport):
    """The far end of a connection: keeps the answer."""

    def __init__(self, answered: Callable[[], None]) -> None:
        super().__init__()
        self.answer = b""
        self._answered = answered

    def write(self, data: Any) -> None:
        self.answer += data
        self._answered()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = close


class OneTurn:
    """A durable server whose connections all speak in the same turn, and the records that follow."""

    def __init__(self, server: InProcessServer, broker: LocalBroker) -> None:
        self._server = server
        self.broker = broker
        self.records: list[Record] = []
        broker.declare("busy", QueueSettings())
        busy = broker.engine.queue("busy").number
        log = broker.engine.log
        assert log is not None

        def listing(record: Record) -> int | None:
            if record[2] != busy:
                self.records.append(record)
            return log(record)

        broker.engine.log = listing

    def ask(
        self, requests: list[bytes], last: Callable[[], object] = lambda: None
    ) -> list[tuple[int, dict[str, Any]]]:
        """The answers, one connection for each request. `last` is called after them, in the same turn."""
        done, left = threading.Event(), len(requests)
        wires: list[FakeTransport] = []

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        def turn() -> None:
            # The first caller of a turn does not wait for others; this one is not asked about.
            self.broker.publish_body("busy", b"x", ENCODING_TEXT)
            self._server.server.context.after_commit(lambda error: None)
            for request in requests:
                wire = FakeTransport(answered)
                wires.append(wire)
                connection = self._server.server.listener.make()
                connection.connection_made(wire)
                connection.data_received(request)
            last()

        self.records.clear()
        self._server.loop.call_soon_threadsafe(turn)
        assert done.wait(60)
        answers = []
        for wire in wires:
            head, _, body = wire.answer.partition(b"\r\n\r\n")
            answers.append((int(head.split()[1]), json.loads(body)))
        return answers

    def kinds(self) -> list[int]:
        return [record[0] for record in self.records if record[0] in (PUBLISH, RUN, ACK)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OneTurn]:
    broker = LocalBroker(tmp_path / "data")
    broker.declare("q", QueueSettings())
    with in_process_server(broker, Config(data=str(tmp_path / "data"), drain_timeout_s=1)) as server:
        yield OneTurn(server, broker)


def post(path: str, members: dict[str, Any], *headers: str) -> bytes:
    body = json.dumps(members).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def sqs(action: str, **members: str) -> bytes:
    members["QueueUrl"] = "http://localhost/000000000000/q"
    return post("/", members, f"X-Amz-Target: AmazonSQS.{action}", "Content-Type: application/x-amz-json-1.0")


def rest(body: str) -> bytes:
    return post("/api/v1/queues/q/messages", {"payload": body}, "Content-Type: application/json")


def test_sqs_sends_of_a_turn_are_one_record(server: OneTurn) -> None:
    server.ask([sqs("SendMessage", MessageBody="first")])  # from now on the server knows the URL
    answers = server.ask([sqs("SendMessage", MessageBody=f"body {number}") for number in range(32)])

    assert server.kinds() == [RUN]
    assert {status for status, _ in answers} == {200}
    received = server.broker.load(server.broker.receive("q", 50))
    bodies = {server.broker.inspect.message_id(each.entry): each.entry.body for each in received}
    assert [bodies[reply["MessageId"]] for _, reply in answers] == [b"body %d" % n for n in range(32)]


def test_rest_publishes_of_a_turn_are_one_record(server: OneTurn) -> None:
    answers = server.ask([rest(f"body {number}") for number in range(32)])

    assert server.kinds() == [RUN]
    assert {status for status, _ in answers} == {201}
    received = server.broker.load(server.broker.receive("q", 50))
    bodies = {server.broker.inspect.message_id(each.entry): each.entry.body for each in received}
    assert [bodies[reply["id"]] for _, reply in answers] == [b"body %d" % n for n in range(32)]


def test_one_bad_request_of_a_turn_does_not_spoil_the_others(server: OneTurn) -> None:
    server.ask([sqs("SendMessage", MessageBody="first")])
    bodies = ["one", "\x01", "two", "", "three"]
    answers = server.ask([sqs("SendMessage", MessageBody=body) for body in bodies])

    assert [status for status, _ in answers] == [200, 400, 200, 400, 200]
    assert server.kinds() == [RUN]
    assert server.broker.stats("q").ready == 4


def test_a_queue_that_gets_rules_in_the_turn_applies_them_to_its_messages(server: OneTurn) -> None:
    server.ask([sqs("SendMessage", MessageBody="first")])
    full = QueueSettings(max_length=2, overflow="reject")
    requests = [sqs("SendMessage", MessageBody="two"), sqs("SendMessage", MessageBody="three"), rest("four")]
    answers = server.ask(requests, lambda: server.broker.declare("q", full, change=True))

    assert [status for status, _ in answers].count(200) == 1
    assert server.broker.stats("q").ready == 2


def test_a_queue_that_is_deleted_in_the_turn_is_an_error_for_each(server: OneTurn) -> None:
    server.ask([sqs("SendMessage", MessageBody="first")])
    requests = [sqs("SendMessage", MessageBody="two"), rest("three"), rest("four")]
    answers = server.ask(requests, lambda: server.broker.delete("q"))

    assert [status for status, _ in answers] == [400, 404, 404]
    assert answers[0][1]["__type"].endswith("QueueDoesNotExist")


def test_deletes_of_a_turn_are_one_record_and_late_ones_succeed_as_on_aws(server: OneTurn) -> None:
    server.ask([sqs("SendMessage", MessageBody=f"body {number}") for number in range(3)])
    received = [server.ask([sqs("ReceiveMessage")])[0][1]["Messages"][0] for _ in range(3)]
    handles = [each["ReceiptHandle"] for each in received]
    answers = server.ask([sqs("DeleteMessage", ReceiptHandle=each) for each in [*handles, handles[0]]])

    assert [status for status, _ in answers] == [200] * 4
    assert server.kinds() == [ACK]
    stats = server.broker.stats("q")
    assert (stats.ready, stats.in_flight) == (0, 0)
