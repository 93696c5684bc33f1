"""Answers are bounded in bytes, made in pieces, and written as fast as their client reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openq import OpenQ
from openq.config import Config
from openq.documents.formats import JSON, MSGPACK, encode_messages
from openq.local.broker import LocalBroker
from openq.rest import receiving
from openq.rest.message_schemas import Messages, MessageView, SearchReply
from openq.rest.paging import MAX_ANSWER_BYTES
from openq.server.http import CHUNK_BYTES
from openq.server.http_request import HttpRequest
from openq.server.listener import Listener
from tests.redis.servers import single
from tests.server.in_process import in_process_server
from tests.server.raw_http import RawHttpClient, queue_url, request_bytes
from tests.server.test_http import START, _NullTransport
from tests.serving import Served, free_port, start
from tests.waiting import until

MIB = 1 << 20
COUNT = 18  # of a megabyte each, not half of them in one answer


@pytest.fixture(scope="module", params=["journal", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a queue `large` for all tests that only look."""
    if request.param == "journal":
        running = start(tmp_path_factory.mktemp("large") / "data")
        try:
            fill(running.wait().port, "large")
            yield running
        finally:
            running.stop()
        return
    with single() as redis:
        running = Served(["--store", redis.url, "--profile", "fast"], free_port())
        try:
            fill(running.wait().port, "large")
            yield running
        finally:
            running.stop()


def fill(port: int, queue: str, size: int = MIB, count: int = COUNT) -> None:
    with RawHttpClient(port) as wire:
        assert wire.rest("PUT", f"queues/{queue}", {"history": 3600}).status == 201
        for number in range(count):
            body = {"payload": f"{number:06d}" + "x" * (size - 6)}
            assert wire.rest("POST", f"queues/{queue}/messages", body).status == 201


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(each["payload"][:6]) for each in found]


def test_a_receive_returns_fewer_and_leases_no_more_than_it_returns(server: Served) -> None:
    fill(server.port, "receive")
    with RawHttpClient(server.port) as wire:
        seen: list[int] = []
        while len(seen) < COUNT:
            found = wire.rest("POST", "queues/receive/receive", {"max": 1000}).json()["messages"]
            stats = wire.rest("GET", "queues/receive").json()["stats"]
            assert 1 <= len(found) <= MAX_ANSWER_BYTES // MIB
            seen += numbers(found)
            assert stats["in_flight"] == len(seen)
            assert all(each["receive_count"] == 1 for each in found)
    assert seen == list(range(COUNT))


def test_a_message_larger_than_an_answer_comes_alone(server: Served) -> None:
    fill(server.port, "alone", MAX_ANSWER_BYTES + MIB, 2)
    with RawHttpClient(server.port) as wire:
        for number in range(2):
            [found] = wire.rest("POST", "queues/alone/receive", {"max": 10}).json()["messages"]
            assert int(found["payload"][:6]) == number


def test_a_poll_that_is_served_much_at_once_returns_fewer(server: Served) -> None:
    with RawHttpClient(server.port) as wire, RawHttpClient(server.port) as other:
        assert wire.rest("PUT", "queues/polled").status == 201
        kind = {"Content-Type": "application/json"}
        asked = json.dumps({"max": 1000, "wait": 60}).encode()
        wire.send(request_bytes("POST", "/api/v1/queues/polled/receive", asked, kind))
        batch = [{"payload": f"{number:06d}" + "x" * MIB} for number in range(15)]
        assert other.rest("POST", "queues/polled/messages/batch", batch).status == 201

        found = wire.answer().json()["messages"]

        assert numbers(found) == list(range(len(found)))
        assert 1 <= len(found) <= MAX_ANSWER_BYTES // MIB
        until(lambda: other.rest("GET", "queues/polled").json()["stats"]["in_flight"] == len(found))


def test_pages_of_a_queue_are_bounded_and_complete(server: Served) -> None:
    seen: list[int] = []
    after = ""
    with RawHttpClient(server.port) as wire:
        while after is not None:
            page = wire.rest("GET", f"queues/large/messages?limit=1000&after={after}").json()
            assert 1 <= len(page["messages"]) <= MAX_ANSWER_BYTES // MIB
            seen += numbers(page["messages"])
            after = page.get("next")
    assert seen == list(range(COUNT))


def test_a_look_at_the_front_or_the_rear_says_that_it_is_cut(server: Served) -> None:
    with RawHttpClient(server.port) as wire:
        front = wire.rest("GET", "queues/large/messages?limit=1000&front=true").json()
        rear = wire.rest("GET", "queues/large/messages?limit=1000&rear=true").json()
        few = wire.rest("GET", "queues/large/messages?limit=2&front=true").json()
    assert front["truncated"]
    assert rear["truncated"]
    assert len(front["messages"]) <= MAX_ANSWER_BYTES // MIB
    assert numbers(rear["messages"])[0] == COUNT - 1
    assert "truncated" not in few
    assert numbers(few["messages"]) == [0, 1]


def test_a_search_stops_at_the_size_of_an_answer_and_says_so(server: Served) -> None:
    with RawHttpClient(server.port) as wire:
        found = wire.rest("POST", "queues/large/search", {"text": "xxx", "limit": 1000}).json()
        one = wire.rest("POST", "queues/large/search", {"text": "000017xx", "limit": 10}).json()
    assert 1 <= len(found["messages"]) <= MAX_ANSWER_BYTES // MIB
    assert not found["complete"]
    assert numbers(one["messages"]) == [17]
    assert one["complete"]


def test_the_history_and_an_export_come_in_bounded_pages(server: Served) -> None:
    seen: list[int] = []
    with RawHttpClient(server.port) as wire:
        following = 0
        while following is not None:
            target = f"history/messages?queue=large&limit=1000&after_seq={following}"
            page = wire.rest("GET", target).json()
            assert len(page["messages"]) <= MAX_ANSWER_BYTES // MIB
            seen += numbers(page["messages"])
            following = page.get("next_seq")
        assert seen == list(range(COUNT))

        seen, after = [], ""
        while after is not None:
            answer = wire.rest("GET", f"export?queue=large&limit=1000&after={after}")
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert len(lines) <= MAX_ANSWER_BYTES // MIB
            seen += numbers(lines)
            after = answer.headers.get("openq-next")
        assert seen == list(range(COUNT))


def test_the_library_sees_all_messages_of_a_large_queue(server: Served) -> None:
    with OpenQ("large", url=server.url) as queue:
        entries = queue.broker.inspect.entries("large", "ready")
        front = queue.broker.inspect.peek("large", 1000)
        rear = queue.broker.inspect.peek("large", 1000, rear=True)
    assert [int(entry.body[:6]) for entry in entries] == list(range(COUNT))
    assert [entry.seq for entry in front] == [entry.seq for entry in entries]
    assert [entry.seq for entry in rear] == [entry.seq for entry in entries][::-1]


# -- how it is made


def test_a_large_answer_is_encoded_in_many_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    encode = receiving.BatchEncoder._encode

    def counted(self: receiving.BatchEncoder) -> None:
        before = self._done
        encode(self)
        parts.append(sum(each.entry.size for each in self._deliveries[before : self._done]))

    monkeypatch.setattr(receiving.BatchEncoder, "_encode", counted)
    with in_process_server(
        LocalBroker(str(tmp_path / "d")), Config(memory=True, drain_timeout_s=1)
    ) as running:
        fill(running.port, "q", 100_000, 70)
        with running.wire() as wire:
            found = wire.rest("POST", "queues/q/receive", {"max": 1000}).json()["messages"]

    assert numbers(found) == list(range(70))
    assert sum(parts) == 70 * 100_000
    assert max(parts) <= 256 << 10
    assert len(parts) == 35


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=["json", "msgpack"])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_message_by_message_gives_the_same_bytes(format: Any, count: int) -> None:
    one = MessageView(
        id="messages", timestamp="t", payload='"messages":[]', status="s", message_type=None, priority=0,
        receive_count=1, attributes={}, receipt_id="r", received_at="t", deadline=None,
    )  # fmt: skip
    for value in (
        Messages(messages=[one] * count),
        SearchReply(messages=[one] * count, complete=True, scanned=7),
    ):
        assert encode_messages(format, value) == format.encode(value)
    assert msgspec.json.decode(encode_messages(JSON, Messages(messages=[one])))["messages"][0]["id"]


class Recording(_NullTransport):
    """Counts what is written in each turn of the loop; full once it holds 1 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []
        self.turns: list[int] = []
        self.turn = 0
        self.buffered = 0
        self.connection: Any = None

    def write(self, data: Any) -> None:
        self.writes.append(len(data))
        self.turns.append(self.turn)
        self.buffered += len(data)
        if self.buffered >= MIB:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.buffered


def test_a_large_answer_is_written_piece_by_piece_and_waits_for_its_reader() -> None:
    size = 20 * CHUNK_BYTES + 5
    seen: list[HttpRequest] = []

    def handle(request: HttpRequest) -> None:
        seen.append(request)
        request.answer(200, b"x" * size, b"text/plain")

    async def play() -> None:
        listener = Listener(handle)
        connection = listener.make()
        transport = Recording()
        transport.connection = connection
        connection.connection_made(transport)
        connection.data_received(START + b"\r\n")
        connection.data_received(START + b"\r\n")  # the next one waits for its turn
        while len(seen) < 2:
            for _ in range(10):
                transport.turn += 1
                await asyncio.sleep(0)
            assert transport.buffered < MIB + CHUNK_BYTES  # and nothing more until somebody reads
            assert listener.buffers.held > 0
            if transport.buffered >= MIB:
                transport.buffered = 0
                connection.resume_writing()
            else:
                break
        head, *pieces = transport.writes
        assert head < 1000
        first = pieces[:21]
        assert sum(first) == size
        assert max(first) <= CHUNK_BYTES
        assert max(transport.turns.count(turn) for turn in set(transport.turns)) <= 3
        connection.connection_lost(None)
        assert listener.buffers.held == 0

    asyncio.run(play())


def test_sqs_returns_ten_messages_of_a_megabyte_and_fewer_of_larger_ones(server: Served) -> None:
    fill(server.port, "sqs", MIB - 1000, 10)
    fill(server.port, "sqs-larger", 3 * MIB, 8)
    with RawHttpClient(server.port) as wire:
        asked: dict[str, Any] = {"QueueUrl": queue_url("sqs"), "MaxNumberOfMessages": 10}
        assert len(wire.sqs("ReceiveMessage", **asked).json()["Messages"]) == 10

        asked["QueueUrl"] = queue_url("sqs-larger")
        for names in ([], ["All"]):  # by the short way and by the long one
            found = wire.sqs("ReceiveMessage", MessageSystemAttributeNames=names, **asked).json()["Messages"]
            assert 1 <= len(found) <= 5
