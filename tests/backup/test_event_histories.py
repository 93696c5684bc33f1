"""Readers of events and a restored backup: what was recorded after the backup is a gap, and never hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.backup import Repository, create, open_source, restore
from openq.broker import events as e
from openq.broker.events import Event, EventFilter, EventPage
from openq.local.broker import LocalBroker
from openq.local.event_histories import FILE, History, encode_histories, open_histories, read_histories
from openq.model import Draft, QueueSettings
from tests.journal.fake_disk import FakeDisk

PUBLISHED = EventFilter(events=frozenset((e.PUBLISHED,)), queues=("q",))


class Place:
    def __init__(self, path: Path) -> None:
        self.data = path / "data"
        self._path = path
        self._repository = Repository.open(str(path / "repository"), create=True)

    def publish(self, count: int) -> list[Event]:
        """Open the directory, publish, and close it. Returns all events of messages."""
        broker = LocalBroker(self.data)
        broker.declare("q", QueueSettings())
        for _ in range(count):
            broker.publish("q", Draft(b"x"))
        broker.sync()
        found = broker.events.read(None, 1_000, PUBLISHED).events
        broker.close()
        return found

    def back_up(self) -> None:
        with open_source(str(self.data)) as source:
            create(source, self._repository)

    def restore(self) -> None:
        restore(self._repository, self._repository.latest(), str(self.data), replace=True)

    def read_after(self, event: Event) -> EventPage:
        broker = LocalBroker(self.data)
        try:
            return broker.events.read(event.id, 1_000, PUBLISHED)
        finally:
            broker.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_reader_that_is_ahead_of_a_backup_gets_a_gap_when_it_is_restored(place: Place) -> None:
    before = place.publish(3)
    place.back_up()
    lost = place.publish(3)[3:]
    place.restore()
    again = place.publish(10)

    assert [event.id for event in again[:3]] == [event.id for event in before]
    assert not {event.id for event in again} & {event.id for event in lost}
    for event in lost:
        page = place.read_after(event)
        assert page.gap_until_ms is not None
        assert [each.id for each in page.events] == [each.id for each in again[3:]]


def test_a_reader_that_is_behind_a_backup_has_no_gap_when_it_is_restored(place: Place) -> None:
    before = place.publish(3)
    place.back_up()
    place.publish(3)
    place.restore()
    again = place.publish(2)

    for at, event in enumerate(before):
        page = place.read_after(event)
        assert page.gap_until_ms is None
        assert [each.id for each in page.events] == [each.id for each in again[at + 1 :]]


def test_each_restore_has_a_history_of_its_own(place: Place) -> None:
    place.publish(1)
    place.back_up()
    place.restore()
    first = place.publish(2)
    place.back_up()
    lost = place.publish(2)[3:]
    place.restore()
    second = place.publish(3)

    assert [event.id for event in second[:3]] == [event.id for event in first]
    assert len({event.id[:8] for event in second}) == 3
    assert place.read_after(lost[0]).gap_until_ms is not None
    assert place.read_after(first[-1]).gap_until_ms is None


def test_a_damaged_file_of_histories_costs_a_gap_and_not_the_data(place: Place) -> None:
    place.publish(1)
    place.back_up()
    place.restore()
    last = place.publish(1)[-1]
    (place.data / FILE).write_text("{")

    page = place.read_after(last)

    assert page.gap_until_ms is not None
    assert len(page.events) == 2


def test_the_beginning_of_a_history_survives_a_power_cut(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / FILE).write_bytes(encode_histories([History("0123abcd", None)]))
    disk = FakeDisk(data)

    open_histories(str(data), "first", 4711, disk)

    disk.cut(tmp_path / "after")
    assert read_histories(str(tmp_path / "after")) == [History("0123abcd", 4711)]
