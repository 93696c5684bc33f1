"""Cursors: a reader that is known is waited for, within its limits; one that is not, is not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from openq.broker.cursors import HOLD_BYTES, HOLD_S, CursorNotFound, CursorState
from openq.broker.state_file import NotStored
from openq.clock import VirtualClock
from openq.errors import DiskFull, InvalidSetting
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.waiting import until

SEGMENT = 1 << 16
BODY = b"b" * 1_000


class Place:
    """A broker on small segments that keeps no history by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.broker = self.open()
        self.broker.declare("q", QueueSettings(history_ms=0))

    def open(self) -> LocalBroker:
        self.broker = LocalBroker(self.path, clock=self.clock, seed=1, segment_bytes=SEGMENT)
        return self.broker

    @property
    def journal(self) -> Journal:
        assert self.broker.journal is not None
        return self.broker.journal

    def segments(self) -> list[int]:
        return [segment.number for segment in self.journal.segments()]

    def load_bodies(self, segments: int) -> None:
        """Traffic that comes and goes, over so many segments; then nobody needs it any more."""
        last = self.segments()[-1] + segments
        while self.segments()[-1] < last:
            self.broker.publish_bodies("q", [BODY] * 20, 0)
            self.broker.ack("q", [(d.entry.seq, d.number) for d in self.broker.receive("q", 20)])
            self.broker.sync()
        self.clock.advance(1)

    def work(self) -> None:
        self.broker.sync()
        # The age of a segment is known once another thread has indexed it.
        until(lambda: all(segment.last_ms is not None for segment in self.journal.segments()[:-1]))
        housekeeper = self.broker.housekeeper
        assert housekeeper is not None
        housekeeper.work()

    def state(self, name: str = "c") -> CursorState:
        [found] = [each for each in self.broker.cursors.states() if each.cursor.name == name]
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data")


def test_the_journal_is_kept_from_a_cursor_on_and_freed_when_it_moves(place: Place) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.load_bodies(6)
    place.work()
    assert place.segments()[0] == 1

    place.broker.cursors.put("c", 4 << 32 | 64, "ann")
    place.work()
    assert place.segments()[0] == 4

    place.broker.cursors.remove("c")
    place.work()
    assert place.segments()[0] > 4


def test_cursors_survive_a_restart(place: Place) -> None:
    place.broker.cursors.put("c", 0, "ann", hold_bytes=1 << 20, hold_s=60)
    place.broker.cursors.put("other", 0, "bob")
    place.broker.cursors.remove("other")
    place.load_bodies(3)
    place.broker.close()
    place.open()
    place.work()

    assert place.segments()[0] == 1
    cursor = place.state().cursor
    assert (cursor.owner, cursor.hold_bytes, cursor.hold_s) == ("ann", 1 << 20, 60)
    assert [each.cursor.name for each in place.broker.cursors.states()] == ["c"]


def test_what_is_not_said_stays_as_it_was(place: Place) -> None:
    cursors = place.broker.cursors
    first = cursors.put("c", 0, "ann").cursor
    assert (first.hold_bytes, first.hold_s) == (HOLD_BYTES, HOLD_S)

    cursors.put("c", 0, "ann", hold_bytes=5)
    cursors.put("c", 0, "root", hold_s=7)

    cursor = place.state().cursor
    assert (cursor.hold_bytes, cursor.hold_s, cursor.owner) == (5, 7, "ann")


def test_a_cursor_too_far_behind_loses_its_hold_and_says_so(place: Place) -> None:
    place.broker.cursors.put("c", 0, "ann", hold_bytes=3 * SEGMENT)
    place.load_bodies(2)
    place.work()
    assert place.segments()[0] == 1
    assert place.state().lost is None

    assert "bytes behind" in str(place.broker.cursors.put("other", 0, "ann", hold_bytes=1).lost)
    place.load_bodies(4)
    place.work()

    assert place.segments()[0] > 1
    assert "not kept any more" in str(place.state().lost)


def test_a_cursor_that_nobody_moves_loses_its_hold(place: Place) -> None:
    place.broker.cursors.put("c", 0, "ann", hold_s=100)
    place.load_bodies(3)
    place.clock.advance(90)
    place.work()
    assert place.segments()[0] == 1

    place.clock.advance(20)
    assert "not moved" in str(place.state().lost)
    place.work()

    assert place.segments()[0] > 1


def test_the_slowest_reader_counts(place: Place) -> None:
    place.broker.cursors.put("slow", 0, "ann")
    place.load_bodies(4)
    place.broker.cursors.put("fast", place.journal.durable_location, "ann")
    place.work()

    assert place.segments()[0] == 1


def test_on_a_full_disk_the_past_gives_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.load_bodies(4)
    monkeypatch.setattr(place.journal, "can_publish", lambda size: False)
    place.work()

    assert place.segments()[0] > 1
    assert place.state().lost is not None


def test_the_past_gives_way_before_small_messages_are_refused_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No next segment can be made, and the current one has room for small messages only."""
    place.broker.cursors.put("c", 0, "ann")
    place.load_bodies(4)
    monkeypatch.setattr(type(place.journal), "shortage", OSError(errno.ENOSPC, "no space"))
    place.work()
    assert place.segments()[0] > 1


def test_lag_is_reported_in_bytes_and_in_time(place: Place) -> None:
    place.broker.sync()
    place.broker.cursors.put("c", place.journal.durable_location, "ann")
    assert (place.state().lag_bytes, place.state().lag_s) == (0, 0)

    place.clock.advance(50)
    assert place.state().lag_s == 0  # nothing came
    place.broker.publish_bodies("q", [BODY] * 10, 0)
    place.broker.sync()
    place.clock.advance(5)

    assert 10_000 < place.state().lag_bytes < 11_000
    assert place.state().lag_s == 5
    place.broker.cursors.put("c", place.journal.durable_location, "ann")
    assert place.state().lag_bytes == 0


def test_lag_after_a_restart_is_bounded_by_the_age_of_the_segment(place: Place) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.load_bodies(2)
    place.broker.close()
    place.open()

    state = place.state()

    assert state.lag_bytes > SEGMENT
    assert state.lag_s >= 0


def test_a_position_that_is_not_there_yet_and_a_name_that_is_none_are_refused(place: Place) -> None:
    with pytest.raises(InvalidSetting):
        place.broker.cursors.put("c", 99 << 32, "ann")
    with pytest.raises(InvalidSetting):
        place.broker.cursors.put("", 0, "ann")
    with pytest.raises(CursorNotFound):
        place.broker.cursors.remove("c")
    assert place.broker.cursors.states() == []


def test_a_move_that_cannot_be_stored_did_not_happen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.broker.cursors.put("c", 0, "ann")
    before = place.state().cursor

    def full(self: DiskIo, fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(DiskIo, "fsync", full)
        with pytest.raises(DiskFull):
            place.broker.cursors.put("c", place.journal.durable_location, "ann")

    assert place.state().cursor == before


FIELDS = '"position": 0, "moved_ms": 0, "owner": "ann"'


@pytest.mark.parametrize(
    "text",
    [
        '{"c": ',
        "[]",
        '{"c": 1}',
        '{"c": {}}',
        f'{{"c": {{{FIELDS}, "hold_bytes": "x"}}}}',
        f'{{"c": {{{FIELDS}, "position": "x"}}}}',
        f'{{"c": {{{FIELDS}, "position": -1}}}}',
        f'{{"c": {{{FIELDS}, "moved_ms": 1e300}}}}',
        f'{{"a\\u0000/": {{{FIELDS}}}}}',
    ],
)
def test_while_nobody_knows_what_cursors_hold_all_is_held(
    text: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.load_bodies(4)
    place.broker.close()
    file = place.path / "pipeline" / "cursors.json"
    file.write_text(text)
    place.open()
    before = place.segments()

    place.work()
    assert place.broker.cursors.states() == []
    assert place.broker.cursors.holds_all
    assert place.segments()[: len(before)] == before
    assert "cursors.json" in caplog.text
    assert "nothing of the journal is freed" in caplog.text

    # Those who come again are known, also to the next start; but others may be missing.
    place.broker.cursors.put("c", place.journal.durable_location, "ann")
    place.broker.close()
    place.open()
    place.work()
    assert [state.cursor.name for state in place.broker.cursors.states()] == ["c"]
    assert place.segments()[: len(before)] == before
    aside = file.with_name("cursors.json.unreadable")
    assert aside.read_text() == text

    aside.unlink()
    assert not place.broker.cursors.holds_all

    def is_freed() -> bool:
        place.work()  # the broker's own thread may be in the middle of it, and has seen the file
        return place.segments()[0] > before[0]

    until(is_freed)


def test_fields_of_a_later_version_in_a_cursor_are_skipped(place: Place) -> None:
    place.broker.close()
    (place.path / "pipeline").mkdir(exist_ok=True)
    (place.path / "pipeline" / "cursors.json").write_text(f'{{"c": {{{FIELDS}, "color": "blue"}}}}')
    place.open()

    assert place.state().cursor.owner == "ann"
    assert not place.broker.cursors.holds_all


def test_one_owner_leaves_room_for_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.broker.cursors.MAX_OF_ONE", 2)
    cursors = place.broker.cursors
    for name in ("a", "b", "a"):
        cursors.put(name, 0, "ann")

    with pytest.raises(InvalidSetting, match="you have 2"):
        cursors.put("c", 0, "ann")
    cursors.put("c", 0, "bob")


def test_an_error_does_not_say_where_the_data_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DiskIo, path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(DiskIo, "open", refuse)
        with pytest.raises(NotStored) as caught:
            place.broker.cursors.put("c", 0, "ann")

    assert "pipeline/cursors.json" in str(caught.value)
    assert str(place.path) not in str(caught.value)


def test_in_memory_a_cursor_is_only_remembered() -> None:
    broker = LocalBroker()
    broker.cursors.put("c", 12_345, "ann")

    [state] = broker.cursors.states()

    assert (state.cursor.position, state.lag_bytes, state.lag_s, state.lost) == (12_345, 0, 0, None)
