"""A tail reads durable records from any location on, and follows the journal over its segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.errors import Closed, JournalDamaged
from openq.journal.file_journal import Journal
from openq.journal.tail import RecordTail
from tests.journal.helpers import put, records, small


def never(error: JournalDamaged) -> None:
    raise error


def rest(tail: RecordTail) -> list[bytes]:
    found: list[bytes] = []
    while block := tail.next_block():
        found += [data for _, data in block]
    return found


def write(journal: Journal, count: int, each: int) -> list[int]:
    locations: list[int] = []
    every = records(count)
    for start in range(0, count, each):
        locations += put(journal, *every[start : start + each])
    return locations


@pytest.mark.parametrize("each", [1, 3, 50])
def test_a_tail_begins_at_any_record(tmp_path: Path, each: int) -> None:
    journal = small(tmp_path)
    locations = write(journal, 200, each)
    assert len(journal.segments()) > 2
    for number in range(0, 200, 7):
        assert rest(journal.tail(locations[number], never)) == records(200)[number:]
    assert rest(journal.tail(0, never)) == records(200)
    journal.close()


def test_a_tail_begins_between_records(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = write(journal, 100, 4)
    for number in range(0, 99, 9):
        for distance in (1, 20):
            assert rest(journal.tail(locations[number] + distance, never)) == records(100)[number + 1 :]
    journal.close()


def test_a_tail_follows_the_journal_into_new_segments(tmp_path: Path) -> None:
    journal = small(tmp_path)
    ends = []
    tail = journal.tail(journal.durable_location, never)
    found: list[bytes] = []
    for record in records(150):
        ends.append(journal.durable_location)
        put(journal, record)
        found += rest(tail)
        tail.release()
    assert found == records(150)
    for number, end in enumerate(ends):
        assert rest(journal.tail(end, never)) == records(150)[number:]
    journal.close()
    journal = small(tmp_path)
    for number, end in enumerate(ends):
        assert rest(journal.tail(end, never)) == records(150)[number:]
    journal.close()


def test_a_dropped_segment_is_skipped_and_reported(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = write(journal, 200, 5)
    early = journal.tail(locations[3], never)
    assert early.next_block()
    journal.drop_before(3)
    kept = [record for location, record in zip(locations, records(200), strict=True) if location >> 32 >= 3]

    late = journal.tail(locations[3], never)
    assert rest(late) == kept
    assert late.skipped
    early.release()
    assert rest(early)[-len(kept) :] == kept
    assert early.skipped
    assert not journal.tail(0, never).skipped
    journal.close()


def test_records_that_are_not_durable_are_not_read(tmp_path: Path) -> None:
    journal = small(tmp_path)
    tail = journal.tail(journal.durable_location, never)
    with journal.lock:
        location = journal.append(b"pending")
        assert tail.next_block() == []
    journal.wait(location)
    assert rest(tail) == [b"pending"]
    journal.close()


def test_a_closed_journal_has_no_records(tmp_path: Path) -> None:
    journal = small(tmp_path)
    tail = journal.tail(0, never)
    journal.close()
    with pytest.raises(Closed):
        tail.next_block()


def test_commits_call_their_listeners_after_the_records_are_durable(tmp_path: Path) -> None:
    journal = small(tmp_path)
    heard: list[int] = []
    journal.commit_listeners = (lambda: heard.append(journal.durable_location),)
    [location] = put(journal, b"one")
    assert heard
    assert heard[-1] > location
    journal.commit_listeners = ()
    count = len(heard)
    put(journal, b"two")
    assert len(heard) == count
    journal.close()
