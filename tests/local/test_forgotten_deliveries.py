"""A crash forgets one delivery of a message at most: later ones are on disk before anybody sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.journal import clean_shutdown
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Delivery, Draft, QueueSettings
from tests.livecopy import copy_live

SETTINGS = QueueSettings(visibility_ms=1_000, max_receives=3, dead_letter="dead")


class Lives:
    """A broker whose process dies again and again: the disk as it is in a moment is where the next begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.clock = VirtualClock()
        self.broker = LocalBroker(path / "0", clock=self.clock)
        self._abandoned: list[LocalBroker] = []

    def die(self) -> None:
        old, self._number = self._path / str(self._number), self._number + 1
        new = self._path / str(self._number)
        copy_live(old, new)
        self._abandoned.append(self.broker)
        self.broker = LocalBroker(new, clock=self.clock)

    def end(self) -> None:
        """It is closed and opened again, as by a program that only looks."""
        self.broker.close()
        self.broker = LocalBroker(self._path / str(self._number), clock=self.clock)

    def close(self) -> None:
        for broker in (*self._abandoned, self.broker):
            broker.close()


@pytest.fixture
def lives(tmp_path: Path):  # type: ignore[no-untyped-def]
    lives = Lives(tmp_path)
    lives.broker.declare("dead", QueueSettings())
    lives.broker.declare("jobs", SETTINGS)
    lives.broker.declare("other", SETTINGS)
    lives.broker.sync()
    yield lives
    lives.close()


def seen(broker: LocalBroker, queue: str = "jobs", limit: int = 1) -> list[Delivery]:
    return broker.load(broker.receive(queue, limit))


@pytest.mark.parametrize(
    "draft", [Draft(b"x", ENCODING_TEXT), Draft(b"x", ENCODING_TEXT, group="g", priority=3)]
)
def test_after_a_crash_every_delivery_counts(lives: Lives, draft: Draft) -> None:
    lives.broker.publish("jobs", draft)
    lives.broker.sync()
    lives.die()

    deliveries = 0
    for _ in range(10):
        deliveries += len(seen(lives.broker))
        lives.die()
        lives.clock.advance(2)
        lives.broker.tick()

    assert deliveries == 3
    assert lives.broker.stats("dead").ready == 1


def test_many_at_once_count_each(lives: Lives) -> None:
    lives.broker.publish_bodies("jobs", [b"x"] * 20, ENCODING_TEXT)
    lives.broker.sync()
    lives.die()

    counts = []
    for _ in range(4):
        counts.append(len(seen(lives.broker, limit=10)))
        lives.die()

    assert counts == [10, 10, 0, 0]
    assert lives.broker.stats("jobs").in_flight == 20


def test_a_redelivery_is_on_disk_before_it_is_seen_even_in_the_first_life(lives: Lives) -> None:
    lives.broker.publish("jobs", Draft(b"x", ENCODING_TEXT))
    lives.broker.sync()
    [first] = seen(lives.broker)
    lives.broker.nack("jobs", [(first.entry.seq, first.number)], 0)

    [second] = lives.broker.receive("jobs")

    assert lives.broker.commit_location([second]) > second.entry.location
    lives.broker.load([second])
    lives.die()
    lives.clock.advance(2)
    lives.broker.tick()
    [third] = seen(lives.broker)
    assert third.count == 3


def test_a_message_that_was_redriven_is_new_in_its_queue_once(lives: Lives) -> None:
    lives.broker.publish("jobs", Draft(b"x", ENCODING_TEXT))
    lives.broker.sync()
    lives.die()
    [delivery] = seen(lives.broker)
    lives.broker.reject("jobs", [(delivery.entry.seq, delivery.number)])
    assert lives.broker.admin.redrive("dead", "jobs") == 1
    lives.die()

    deliveries = 0
    for _ in range(10):
        deliveries += len(seen(lives.broker))
        lives.die()
        lives.clock.advance(2)
        lives.broker.tick()

    assert deliveries == 3


def test_the_first_delivery_of_a_new_message_waits_for_nothing_but_its_publish(lives: Lives) -> None:
    lives.die()
    lives.broker.publish("jobs", Draft(b"x", ENCODING_TEXT))
    lives.broker.sync()

    [delivery] = lives.broker.receive("jobs")

    assert lives.broker.commit_location([delivery]) is None


def test_who_waits_in_line_is_served_by_the_same_rule(lives: Lives) -> None:
    from openq.broker.waiters import Waiter

    lives.broker.publish("jobs", Draft(b"x", ENCODING_TEXT, delay_ms=1_000))
    lives.broker.sync()
    lives.die()
    served: list[Delivery] = []
    assert lives.broker.add_waiter("jobs", Waiter(1, None, None, None, served.extend)) is None

    lives.clock.advance(1)

    [delivery] = served
    assert lives.broker.commit_location([delivery]) > delivery.entry.location
    lives.broker.load(served)
    lives.die()
    assert lives.broker.stats("jobs").in_flight == 1


def test_a_closed_journal_is_clean_once(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "data")
    broker.declare("jobs", QueueSettings())
    broker.publish("jobs", Draft(b"x", ENCODING_TEXT))
    broker.close()

    broker = LocalBroker(tmp_path / "data")
    assert broker.engine.maybe_delivered_below == 0
    copy_live(tmp_path / "data", tmp_path / "killed")
    killed = LocalBroker(tmp_path / "killed")
    assert killed.engine.maybe_delivered_below == 2
    killed.close()
    broker.close()


def test_a_note_of_another_end_or_another_journal_says_nothing(tmp_path: Path) -> None:
    from openq.journal.disk import DiskIo

    io = DiskIo()
    for salt, end_location in ((7, 100), (8, 99)):
        clean_shutdown.write(io, str(tmp_path), salt, end_location, 5)
        assert clean_shutdown.consume(io, str(tmp_path), 7, 99) is None
    clean_shutdown.write(io, str(tmp_path), 7, 99, 5)
    assert clean_shutdown.consume(io, str(tmp_path), 7, 99) == 5
    assert clean_shutdown.consume(io, str(tmp_path), 7, 99) is None
    (tmp_path / clean_shutdown.NAME).write_bytes(b"short")
    assert clean_shutdown.consume(io, str(tmp_path), 7, 99) is None


def test_a_clean_end_does_not_make_up_for_a_crash_before_it(lives: Lives) -> None:
    lives.broker.publish("jobs", Draft(b"x", ENCODING_TEXT))
    lives.broker.sync()
    counts = []
    for _ in range(8):
        for delivery in seen(lives.broker):
            counts.append(delivery.count)
        lives.die()
        lives.end()
        lives.clock.advance(2)

    # The record of the first lease may have reached the disk before the crash, or not.
    assert counts in ([1, 1, 2, 3], [1, 2, 3])
    assert lives.broker.stats("dead").ready == 1


def test_guards_are_forgotten_once_they_are_on_disk(lives: Lives) -> None:
    lives.broker.publish_bodies("jobs", [b"x"] * 5, ENCODING_TEXT)
    lives.broker.sync()
    lives.die()

    seen(lives.broker, limit=5)
    lives.broker.sync()
    lives.broker.publish("other", Draft(b"y", ENCODING_TEXT))
    seen(lives.broker, "other")

    assert lives.broker.engine.guarded == {}
