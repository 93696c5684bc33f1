"""A full disk as AMQP clients see it: publishers are blocked, consumers go on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.config import Config
from openq.journal import writer
from openq.local.broker import LocalBroker
from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.management_fields import Api
from tests.amqp.raw_client import RawClient, method, publish
from tests.crash.faults import FaultyDisk
from tests.server.in_process import in_process_server
from tests.server.test_disk_full import MIB, Breaking, indoor_broker
from tests.serving import free_port
from tests.waiting import until

LARGE = b"x" * 100_000


class Full:
    """A server whose disk has just become full, by publishing with confirms."""

    def __init__(self, port: int, disk: FaultyDisk, url: str) -> None:
        self.port = port
        self.api = Api(url)  # the management API
        self.disk = disk
        self.talk = RawClient(port).confirming()
        self.talk.declare("dead")
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.talk.declare("q", arguments=letters)
        self.talk.declare("held")
        self.talk.call("queue.bind", queue="q", exchange="amq.fanout")
        self.accepted = 0
        self.sent = 0
        self.fill()

    def fill(self) -> None:
        """To the last byte: a large message finds no room before a small one does."""
        for size in (100_000, 1_000, 10):
            while self.send(b"x" * size):
                self.accepted += 1

    def send(self, body: bytes = LARGE) -> bool:
        self.talk.send(publish(1, "q", body))
        return not self.talk.settled(1)

    def make_room(self) -> None:
        self.disk.capacity = 64 * MIB


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=8 * MIB)
    port = free_port()
    config = Config(memory=True, drain_timeout_s=1, log_level="debug", amqp_port=port)
    with in_process_server(indoor_broker(tmp_path, disk), config) as server:
        full = Full(port, disk, f"http://127.0.0.1:{server.port}")
        try:
            yield full
        finally:
            full.talk.close()
        assert server.records.at_least("error") == []


def names(talk: RawClient) -> list[str]:
    return [answer[1] for answer in talk.received]


def test_a_publish_with_confirms_is_refused_with_the_reason(full: Full) -> None:
    assert full.accepted > 10
    assert names(full.talk) == ["connection.blocked"]
    assert full.talk.received[0][2] == {"reason": "low on disk"}
    assert not full.send()


def test_a_client_that_connects_later_is_notified_too_unless_it_lacks_the_capability(full: Full) -> None:
    with RawClient(full.port) as late, RawClient(full.port, capabilities={}) as simple:
        late.declare("q", passive=True)
        assert late.receive_methods("connection.blocked", 1) or "connection.blocked" in names(late)
        simple.declare("q", passive=True)

        full.make_room()

        assert late.receive_methods("connection.unblocked", 1)
        assert full.talk.receive_methods("connection.unblocked", 1)
        simple.declare("q", passive=True)
        assert not simple.received


def test_a_queue_cannot_be_made_meanwhile_and_the_connection_lives(full: Full) -> None:
    with RawClient(full.port) as other, pytest.raises(ConnectionEnded, match="disk full"):
        other.declare("new")


def test_publishes_without_confirms_wait_for_room_and_none_is_lost_or_doubled(full: Full) -> None:
    with RawClient(full.port) as publisher, RawClient(full.port) as watching:
        watching.declare("held")
        times = publisher.send_until_full(publish(1, "held", LARGE))
        waiting = watching.declare("held")

        full.make_room()
        publisher.send_rest()
        publisher.declare("held")  # answered when all before it is done
        sent = times + bool(publisher._unsent)

        assert waiting < sent
        assert watching.declare("held") == sent


def test_a_flood_that_fills_the_disk_is_stopped_before_the_journal_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes come faster than files are made: what is accepted before the disk proves full must fit."""
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=12 * MIB)
    port = free_port()
    config = Config(memory=True, drain_timeout_s=1, log_level="debug", amqp_port=port)
    broker = indoor_broker(tmp_path, disk)
    with in_process_server(broker, config) as server:
        with RawClient(port) as first, RawClient(port) as second, RawClient(port) as watching:
            watching.declare("q")
            sent = 0
            for publisher in (first, second):
                many = publish(1, "q", b"x" * 30_000) * 4
                sent += publisher.send_until_full(many, lambda: broker.health().disk_full) * 4
            assert watching.declare("q") < sent
            disk.capacity = 256 * MIB
            for publisher in (first, second):
                publisher.send_rest()
                publisher.declare("q")
            assert watching.declare("q") >= sent
        assert server.records.at_least("error") == []


def test_held_publishes_come_in_order_and_once(full: Full) -> None:
    """Different keys and properties: no run, and only a part of what was read at once may have had room."""
    with RawClient(full.port) as publisher, RawClient(full.port) as watching:
        watching.declare("held")
        out = b"".join(
            publish(1, "held", b"%d" % n, properties={"message_id": str(n), "priority": n % 3})
            for n in range(2000)
        )
        publisher.send(out)
        full.make_room()
        publisher.declare("held")  # answered when all before it is done
        watching.send(method(1, "basic.consume", queue="held", no_ack=True))
        got = watching.receive_methods("basic.deliver", 2000)

        assert [int(each[4]) for each in got] == list(range(2000))


def test_consumers_acks_and_dead_letters_go_on_while_the_disk_is_full(full: Full) -> None:
    with RawClient(full.port) as consumer:
        consumer.call("basic.qos", prefetch_count=30)
        consumer.send(method(1, "basic.consume", queue="q"))
        tags = [each[2]["delivery_tag"] for each in consumer.receive_methods("basic.deliver", 10)]
        consumer.send(b"".join(method(1, "basic.ack", delivery_tag=tag) for tag in tags[:4]))
        consumer.send(method(1, "basic.reject", delivery_tag=tags[4], requeue=False))
        consumer.send(method(1, "basic.nack", delivery_tag=tags[5], requeue=True))

        assert consumer.declare("dead", passive=True) == 1
        [_, _, fields, properties, _] = consumer.call("basic.get", "basic.get-ok", queue="dead")
        assert properties["headers"]["x-death"][0]["reason"] == "rejected"
        consumer.send(method(1, "basic.ack", delivery_tag=fields["delivery_tag"]))
        assert consumer.declare("dead", passive=True) == 0


def test_publishing_goes_on_by_itself_when_there_is_room_again(full: Full) -> None:
    full.make_room()
    assert full.talk.receive_methods("connection.unblocked", 1)

    assert full.send()
    assert full.talk.declare("q", passive=True) == full.accepted + 1


def test_a_transaction_that_finds_no_room_is_refused_as_a_whole(full: Full) -> None:
    with RawClient(full.port) as talk:
        talk.call("tx.select")
        talk.send(publish(1, "dead", LARGE) + publish(1, "dead", LARGE))
        with pytest.raises(ConnectionEnded, match="RESOURCE_ERROR"):
            talk.call("tx.commit")
    assert full.talk.declare("dead", passive=True) == 0


def test_a_held_publisher_that_hangs_up_is_forgotten(full: Full) -> None:
    with RawClient(full.port) as publisher:
        publisher.send(publish(1, "dead", LARGE) * 20)
    with RawClient(full.port) as other:
        until(lambda: other.declare("dead", passive=True) == 0)
        full.make_room()
        assert full.talk.receive_methods("connection.unblocked", 1)
        other.confirming().publish_all("dead", [b"last"])
        assert other.declare("dead", passive=True) >= 1


MESSAGE = {"properties": {}, "routing_key": "q", "payload": "x" * 100_000, "payload_encoding": "string"}
TAKE = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
POLICY = {"pattern": "^q$", "definition": {"max-length": 1_000_000}}
# Everything that changes something through the management API.
CHANGES: list[tuple[str, str, object]] = [
    ("POST", "/api/exchanges/%2F/amq.default/publish", MESSAGE),
    ("POST", "/api/exchanges/%2F/amq.fanout/publish", MESSAGE),
    ("PUT", "/api/queues/%2F/new", {"durable": True}),
    ("PUT", "/api/exchanges/%2F/new", {"type": "topic", "durable": True}),
    ("POST", "/api/bindings/%2F/e/amq.fanout/q/q", {"routing_key": "k"}),
    ("DELETE", "/api/bindings/%2F/e/amq.fanout/q/q/k", None),
    ("PUT", "/api/policies/%2F/p", POLICY),
    ("DELETE", "/api/policies/%2F/p", None),
    ("PUT", "/api/vhosts/new", {}),
    ("POST", "/api/definitions", {"queues": [{"name": "more", "vhost": "/", "durable": True}]}),
    ("POST", "/api/queues/%2F/q/get", TAKE),
    ("POST", "/api/queues/%2F/q/get", {**TAKE, "ackmode": "reject_requeue_true"}),
    ("POST", "/api/queues/%2F/q/get", {**TAKE, "ackmode": "reject_requeue_false"}),
    ("DELETE", "/api/queues/%2F/q/contents", None),
    ("DELETE", "/api/queues/%2F/new", None),
    ("DELETE", "/api/exchanges/%2F/new", None),
    ("DELETE", "/api/vhosts/new", None),
    ("DELETE", "/api/queues/%2F/q", None),
]
LOOKS = ("overview", "nodes", "queues", "queues/%2F/q", "exchanges", "bindings", "vhosts", "connections")


def test_a_publish_by_the_management_api_is_refused_with_503_and_the_reason(full: Full) -> None:
    for exchange in ("amq.default", "amq.fanout"):
        status, reported = full.api("POST", f"/api/exchanges/%2F/{exchange}/publish", MESSAGE)

        assert (status, reported["error"]) == (503, "unavailable")
        assert "disk" in reported["reason"]
    full.make_room()
    until(lambda: full.api("POST", "/api/exchanges/%2F/amq.default/publish", MESSAGE)[0] == 200)


def test_the_management_api_takes_or_refuses_every_change_in_order_while_the_disk_is_full(full: Full) -> None:
    for method_, path, body in CHANGES:
        status, reported = full.api(method_, path, body)
        assert status in (200, 201, 204, 404, 503), (method_, path, reported)
        assert status != 503 or "disk" in reported["reason"], (method_, path, reported)
        assert all(full.api("GET", f"/api/{look}")[0] in (200, 404) for look in LOOKS)


def test_the_management_api_says_so_when_the_journal_has_failed(tmp_path: Path) -> None:
    disk = Breaking(tmp_path)
    config = Config(memory=True, drain_timeout_s=1, log_level="debug", amqp_port=free_port())
    with in_process_server(indoor_broker(tmp_path, disk), config) as server:
        api = Api(f"http://127.0.0.1:{server.port}")
        assert api("PUT", "/api/queues/%2F/q", {"durable": True})[0] == 201
        disk.broken = True
        for method_, path, body in CHANGES:
            status, reported = api(method_, path, body)
            assert status in (404, 503), (method_, path, reported)
            assert status == 404 or "journal" in reported["reason"], (method_, path, reported)
        assert api("GET", "/api/health/checks/alarms")[0] == 503


def test_what_the_disk_refuses_of_users_and_policies_is_neither_done_nor_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are files of their own, beside the journal."""
    config = Config(data=str(tmp_path), drain_timeout_s=1, log_level="debug", amqp_port=free_port())
    with in_process_server(LocalBroker(tmp_path), config) as server:
        api = Api(f"http://127.0.0.1:{server.port}")
        assert api("PUT", "/api/queues/%2F/q", {"durable": True})[0] == 201
        first = {"tags": "administrator", "password": "x"}

        sync = os.fsync

        def refuse(fd: int) -> None:
            # Not for the journal, which may prepare its next segment in this moment.
            if threading.current_thread().name in ("openq-preparer", "openq-writer", "openq-housekeeper"):
                return sync(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/path/of/the/server")

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", refuse)
            for path, body in (("policies/%2F/p", POLICY), ("users/boss", first)):
                status, reported = api("PUT", f"/api/{path}", body)
                assert (status, reported["error"]) == (503, "unavailable")
                assert "disk full" in reported["reason"]
                assert api("GET", f"/api/{path}")[0] == 404
        assert api("GET", "/api/queues/%2F/q")[1]["policy"] is None
        assert api("PUT", "/api/policies/%2F/p", POLICY)[0] == 201
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", refuse)
            assert api("DELETE", "/api/policies/%2F/p")[0] == 503
        assert api("GET", "/api/queues/%2F/q")[1]["policy"] == "p"
