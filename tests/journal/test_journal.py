"""Journal as its users see it: append, wait, read, replay, close."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.errors import Closed, HistoryUnavailable, InvalidSetting, JournalDamaged
from tests.budget import examples
from tests.journal.helpers import batch, contents, put, records, small
from tests.waiting import until


def test_records_come_back_in_order_after_reopening(tmp_path: Path) -> None:
    journal = small(tmp_path)
    everything = records(200)
    with journal.lock:
        locations = [journal.append(record) for record in everything]
    journal.wait(locations[-1])
    journal.close()

    journal = small(tmp_path)
    assert list(journal.replay()) == list(zip(locations, everything, strict=True))
    assert journal.read_many(locations) == everything
    assert [journal.read(location) for location in reversed(locations)] == everything[::-1]
    assert len(journal.segments()) > 3
    journal.close()


def test_a_location_is_exact_before_while_and_after_writing(tmp_path: Path) -> None:
    journal = small(tmp_path)
    with journal.lock:
        first = journal.end_location
        assert first == journal.durable_location
        location = journal.append(b"a record")
        assert location == first
        assert journal.end_location == location + 8 + len(b"a record")
    assert journal.read(location) == b"a record"
    assert journal.durable_location <= location
    journal.wait(location)
    assert journal.durable_location > location
    assert journal.read(location) == b"a record"
    assert journal.end_location == journal.durable_location
    journal.close()


def test_an_empty_record_is_a_record(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = put(journal, b"", b"x", b"")

    assert journal.read_many(locations) == [b"", b"x", b""]
    journal.close()
    assert contents(tmp_path) == [b"", b"x", b""]


def test_records_that_nobody_waits_for_reach_the_disk_too(tmp_path: Path) -> None:
    journal = small(tmp_path)
    [location] = put(journal, b"lazy", wait=False)

    until(lambda: journal.durable_location > location)
    # And again once the writer has gone to sleep.
    until(lambda: journal._asleep)
    [location] = put(journal, b"lazy too", wait=False)
    until(lambda: journal.durable_location > location)
    journal.close()


def test_close_writes_what_is_pending(tmp_path: Path) -> None:
    journal = small(tmp_path)
    put(journal, *records(50), wait=False)
    journal.close()
    journal.close()

    assert contents(tmp_path) == records(50)


def test_after_close_everything_is_refused(tmp_path: Path) -> None:
    journal = small(tmp_path)
    [location] = put(journal, b"x")
    journal.close()

    with pytest.raises(Closed):
        put(journal, b"y")
    with pytest.raises(Closed), journal.lock:
        journal.after_commit(lambda: None)
    with pytest.raises(Closed):
        journal.read(location)
    journal.wait(location)


def test_waiting_for_what_was_never_appended_is_a_mistake(tmp_path: Path) -> None:
    journal = small(tmp_path)

    with pytest.raises(ValueError, match="nothing was appended"):
        journal.wait(journal.end_location)
    journal.close()


def test_each_segment_is_twice_as_large_as_the_one_before(tmp_path: Path) -> None:
    journal = small(tmp_path)
    for record in records(300):
        put(journal, record)
        until(lambda: journal._pool.spares)
    sizes = [os.path.getsize(segment.path) for segment in journal.segments()]

    assert sizes[:3] == [1024, 2048, 4096]
    assert set(sizes[2:]) == {4096}
    assert [s.number for s in journal.segments()] == list(range(1, len(sizes) + 1))
    assert [s.sealed for s in journal.segments()] == [True] * (len(sizes) - 1) + [False]
    journal.close()


def test_a_record_larger_than_a_segment_gets_a_larger_one(tmp_path: Path) -> None:
    journal = small(tmp_path)
    large = os.urandom(20_000)
    locations = put(journal, b"before", large, b"after", large)

    assert journal.read_many(locations) == [b"before", large, b"after", large]
    journal.close()
    journal = small(tmp_path)
    assert [r for _, r in journal.replay()] == [b"before", large, b"after", large]
    put(journal, b"more")
    assert journal.read(locations[1]) == large
    journal.close()


def test_items_inside_a_record_can_be_read_alone(tmp_path: Path) -> None:
    journal = small(tmp_path)
    items = [b"first", b"", b"third" * 20]
    record, distances = batch(*items)
    put(journal, b"something before")
    [location] = put(journal, record, wait=False)

    assert [journal.read(location + d) for d in distances] == items
    journal.wait(location)
    assert [journal.read(location + d) for d in distances] == items
    journal.close()
    journal = small(tmp_path)
    # The item first: the block has to be found from inside the record.
    assert journal.read(location + distances[2]) == items[2]
    assert journal.read(location) == record
    journal.close()


def test_replay_from_a_location(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = []
    for n in range(0, 90, 3):
        locations += put(journal, *records(90)[n : n + 3])
    everything = list(zip(locations, records(90), strict=True))

    for n in range(90):
        assert list(journal.replay(locations[n])) == everything[n:]
    assert list(journal.replay(journal.end_location)) == []
    journal.close()


def test_replay_beyond_the_end_is_damage(tmp_path: Path) -> None:
    """A snapshot that covers more than the journal has: the journal has lost its end."""
    journal = small(tmp_path)
    put(journal, b"x")

    with pytest.raises(JournalDamaged, match="ends here"):
        journal.replay(journal.end_location + 1)
    journal.close()


def test_replay_of_a_journal_in_use_ends_with_what_is_durable(tmp_path: Path) -> None:
    journal = small(tmp_path)
    put(journal, *records(30))
    replay = journal.replay()
    put(journal, *records(30))

    assert [record for _, record in replay] == records(30)
    journal.close()


def test_a_segment_that_was_dropped_meanwhile_is_history(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = []
    for record in records(100):
        locations += put(journal, record)

    assert journal.drop_before(3) == 2
    assert journal.drop_before(3) == 0
    with pytest.raises(HistoryUnavailable):
        journal.read(locations[0])
    with pytest.raises(HistoryUnavailable):
        journal.read_many(locations)
    with pytest.raises(JournalDamaged, match="missing"):
        journal.replay(locations[0])
    kept = [location for location in locations if location >> 32 >= 3]
    assert [location for location, _ in journal.replay()] == kept
    journal.close()
    assert contents(tmp_path) == records(100)[-len(kept) :]


def test_the_current_segment_is_never_dropped(tmp_path: Path) -> None:
    journal = small(tmp_path)
    [location] = put(journal, b"x")

    assert journal.drop_before(10**6) == 0
    assert journal.read(location) == b"x"
    journal.close()


def test_dropped_segments_are_used_again(tmp_path: Path) -> None:
    journal = small(tmp_path, first_segment_bytes=4096)
    for _ in range(4):
        for record in records(200):
            put(journal, record)
        assert journal.drop_before(journal.end_location >> 32)
        assert len(journal._pool.spares) <= 2
    # Old content of the recycled files is all over the place, and never read as ours.
    last = put(journal, *records(5))
    expected = list(journal.replay())
    assert [location for location, _ in expected][-5:] == last
    journal.close()
    journal = small(tmp_path)
    assert list(journal.replay()) == expected
    journal.close()


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="segment_bytes"):
        small(tmp_path, segment_bytes=100)


def test_a_callback_comes_without_the_lock_when_all_is_durable(tmp_path: Path) -> None:
    journal = small(tmp_path)
    seen: list[int] = []

    def look() -> None:
        with journal.lock:
            seen.append(journal.durable_location)

    with journal.lock:
        group = journal.group
        location = journal.append(b"x")
        journal.after_commit(look)
    journal.flush()
    until(lambda: seen)
    assert seen[0] > location
    assert journal.group > group
    journal.close()


def test_a_callback_for_nothing_comes_too(tmp_path: Path) -> None:
    journal = small(tmp_path)
    until(lambda: journal._asleep)
    seen: list[int] = []
    with journal.lock:
        journal.after_commit(lambda: seen.append(1))

    until(lambda: seen)
    journal.close()


def test_a_callback_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    journal = small(tmp_path)
    seen: list[int] = []
    with journal.lock:
        location = journal.append(b"x")
        journal.after_commit(lambda: seen.append(1))
        journal.after_commit(lambda: 1 // 0)  # type: ignore[arg-type]
        journal.after_commit(lambda: seen.append(2))
    journal.wait(location)

    until(lambda: seen == [1, 2])
    put(journal, b"it goes on")
    journal.close()


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans(), st.booleans()), max_size=40))
def test_whatever_is_appended_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, bool, bool]]
) -> None:
    path = tmp_path_factory.mktemp("journal")
    journal = small(path)
    expected: list[tuple[int, bytes]] = []
    for record, wait, reopen in steps:
        expected += [(location, record) for location in put(journal, record, wait=wait)]
        if reopen:
            journal.close()
            journal = small(path)
        location, last = expected[len(expected) // 2]
        assert journal.read(location) == last
    if expected:
        journal.wait(expected[-1][0])
    assert journal.read_many([location for location, _ in expected]) == [record for _, record in expected]
    assert list(journal.replay()) == expected
    journal.close()


def test_replay_of_what_is_dropped_on_the_way_says_so(tmp_path: Path) -> None:
    journal = small(tmp_path)
    for record in records(100):
        put(journal, record)
    replay = journal.replay()
    assert next(replay)[1] == records(100)[0]
    journal.drop_before(4)

    with pytest.raises(HistoryUnavailable):
        list(replay)
    with pytest.raises(HistoryUnavailable):
        journal.index(1)
    journal.close()


def test_each_new_segment_begins_with_the_opening_record(tmp_path: Path) -> None:
    journal = small(tmp_path)
    count = 0

    def opening() -> bytes:
        nonlocal count
        count += 1
        return b"opening %d" % count

    journal.first_record = opening
    put(journal, *records(100))
    put(journal, bytes(9000))
    everything = list(journal.replay())
    first: dict[int, bytes] = {}
    for location, record in everything:
        first.setdefault(location >> 32, record)

    assert [first[number] for number in sorted(first)][1:] == [b"opening %d" % n for n in range(1, count + 1)]
    assert [r for _, r in everything if not r.startswith(b"opening")] == [*records(100), bytes(9000)]
    journal.close()
    assert contents(tmp_path) == [record for _, record in everything]
