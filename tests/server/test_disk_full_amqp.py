"""A full disk as AMQP clients see it: publishers are told and held back, consumers go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.config import Config
from openq.storage import writer
from tests.crash.faults import FaultyDisk
from tests.protocols.amqp.dialogue import Ended
from tests.protocols.amqp.talk import Talk, method, publish
from tests.server.inprocess import indoors
from tests.server.test_disk_full import MIB, indoor_broker
from tests.serving import free_port, until

LARGE = b"x" * 100_000


class Full:
    """A server whose disk has just become full, by publishing with confirms."""

    def __init__(self, port: int, disk: FaultyDisk) -> None:
        self.port = port
        self.disk = disk
        self.talk = Talk(port).confirming()
        self.talk.declare("dead")
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.talk.declare("q", arguments=letters)
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
    monkeypatch.setattr(writer, "NO_SPACE_PATIENCE_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=8 * MIB)
    port = free_port()
    config = Config(memory=True, drain_timeout_s=1, log_level="debug", amqp_port=port)
    with indoors(indoor_broker(tmp_path, disk), config) as server:
        full = Full(port, disk)
        try:
            yield full
        finally:
            full.talk.close()
        assert server.records.at_least("error") == []


def names(talk: Talk) -> list[str]:
    return [answer[1] for answer in talk.heard]


def test_a_publish_with_confirms_is_refused_and_the_client_told_why(full: Full) -> None:
    assert full.accepted > 10
    assert names(full.talk) == ["connection.blocked"]
    assert full.talk.heard[0][2] == {"reason": "low on disk"}
    assert not full.send()


def test_a_client_that_comes_later_is_told_too_and_one_that_does_not_care_is_not(full: Full) -> None:
    with Talk(full.port) as late, Talk(full.port, capabilities={}) as simple:
        late.declare("q", passive=True)
        assert late.hear("connection.blocked", 1) or "connection.blocked" in names(late)
        simple.declare("q", passive=True)

        full.make_room()

        assert late.hear("connection.unblocked", 1)
        assert full.talk.hear("connection.unblocked", 1)
        simple.declare("q", passive=True)
        assert not simple.heard


def test_publishes_without_confirms_wait_for_room_and_none_is_lost_or_doubled(full: Full) -> None:
    with Talk(full.port) as publisher, Talk(full.port) as watching:
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
    monkeypatch.setattr(writer, "NO_SPACE_PATIENCE_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=12 * MIB)
    port = free_port()
    config = Config(memory=True, drain_timeout_s=1, log_level="debug", amqp_port=port)
    with indoors(indoor_broker(tmp_path, disk), config) as server:
        with Talk(port) as first, Talk(port) as second, Talk(port) as watching:
            watching.declare("q")
            sent = 0
            for publisher in (first, second):
                sent += publisher.send_until_full(publish(1, "q", b"x" * 30_000) * 4) * 4
            assert watching.declare("q") < sent
            disk.capacity = 256 * MIB
            for publisher in (first, second):
                publisher.send_rest()
                publisher.declare("q")
            assert watching.declare("q") >= sent
        assert server.records.at_least("error") == []


def test_held_publishes_come_in_order_and_once(full: Full) -> None:
    """Different keys and properties: no run, and only a part of what was read at once may have had room."""
    with Talk(full.port) as publisher, Talk(full.port) as watching:
        watching.declare("held")
        out = b"".join(
            publish(1, "held", b"%d" % n, properties={"message_id": str(n), "priority": n % 3})
            for n in range(2000)
        )
        publisher.send(out)
        full.make_room()
        publisher.declare("held")  # answered when all before it is done
        watching.send(method(1, "basic.consume", queue="held", no_ack=True))
        got = watching.hear("basic.deliver", 2000)

        assert [int(each[4]) for each in got] == list(range(2000))


def test_consumers_acks_and_dead_letters_go_on_while_the_disk_is_full(full: Full) -> None:
    with Talk(full.port) as consumer:
        consumer.say("basic.qos", prefetch_count=30)
        consumer.send(method(1, "basic.consume", queue="q"))
        tags = [each[2]["delivery_tag"] for each in consumer.hear("basic.deliver", 10)]
        consumer.send(b"".join(method(1, "basic.ack", delivery_tag=tag) for tag in tags[:4]))
        consumer.send(method(1, "basic.reject", delivery_tag=tags[4], requeue=False))
        consumer.send(method(1, "basic.nack", delivery_tag=tags[5], requeue=True))

        assert consumer.declare("dead", passive=True) == 1
        [_, _, fields, properties, _] = consumer.say("basic.get", "basic.get-ok", queue="dead")
        assert properties["headers"]["x-death"][0]["reason"] == "rejected"
        consumer.send(method(1, "basic.ack", delivery_tag=fields["delivery_tag"]))
        assert consumer.declare("dead", passive=True) == 0


def test_publishing_goes_on_by_itself_when_there_is_room_again(full: Full) -> None:
    full.make_room()
    assert full.talk.hear("connection.unblocked", 1)

    assert full.send()
    assert full.talk.declare("q", passive=True) == full.accepted + 1


def test_a_transaction_that_finds_no_room_is_refused_as_a_whole(full: Full) -> None:
    with Talk(full.port) as talk:
        talk.say("tx.select")
        talk.send(publish(1, "dead", LARGE) + publish(1, "dead", LARGE))
        with pytest.raises(Ended, match="RESOURCE_ERROR"):
            talk.say("tx.commit")
    assert full.talk.declare("dead", passive=True) == 0


def test_a_held_publisher_that_hangs_up_is_forgotten(full: Full) -> None:
    with Talk(full.port) as publisher:
        publisher.send(publish(1, "dead", LARGE) * 20)
    with Talk(full.port) as other:
        until(lambda: other.declare("dead", passive=True) == 0)
        full.make_room()
        assert full.talk.hear("connection.unblocked", 1)
        other.confirming().publish_all("dead", [b"last"])
        assert other.declare("dead", passive=True) >= 1
