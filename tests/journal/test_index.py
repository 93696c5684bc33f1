"""The sidecar of a segment."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from struct import Struct

import pytest

from openq.errors import HistoryUnavailable, JournalDamaged
from openq.journal import file_journal
from openq.journal.file_journal import Journal
from openq.journal.index import SegmentIndex, index_path, load
from tests.journal.helpers import batch, put, segment_file, small
from tests.waiting import until

ROW = Struct("<QQIIIBBH")


def rows_of(record: bytes, offset: int) -> bytes:
    """Records of this test: `seq,time,queue` or a batch of them."""
    if record.startswith(b"head"):
        first = int(record.split(b"|")[1])
        places = enumerate([(23, 3), (34, 5)])
        return b"".join(
            ROW.pack(first + n, first, 7, offset + distance, length, 2, 0, 0)
            for n, (distance, length) in places
        )
    seq, time_ms, queue = (int(part) for part in record.split(b","))
    return ROW.pack(seq, time_ms, queue, offset, len(record), 1, 3, 0)


def indexed(journal: Journal) -> None:
    """Wait for the preparer."""
    until(lambda: all(s.first_ms is not None for s in journal.segments() if s.sealed))


def filled(path: Path, count: int = 200) -> tuple[Journal, list[int]]:
    journal = small(path, rows_of=rows_of)
    locations = [
        location for n in range(count) for location in put(journal, b"%d,%d,%d" % (n, n // 3 * 10, n % 5))
    ]
    indexed(journal)
    return journal, locations


def test_every_message_has_a_row_that_leads_to_it(tmp_path: Path) -> None:
    journal, locations = filled(tmp_path)
    seen = []
    for segment in journal.segments():
        index = journal.index(segment.number)
        for row in range(index.count):
            location = segment.number << 32 | index.offsets[row]
            seen.append(location)
            record = journal.read(location)
            seq, time_ms, queue = (int(part) for part in record.split(b","))
            assert (index.seqs[row], index.times[row], index.queues[row]) == (seq, time_ms, queue)
            assert (index.lengths[row], index.kinds[row], index.flags[row]) == (len(record), 1, 3)
    assert seen == locations
    journal.close()


def test_items_have_rows_of_their_own(tmp_path: Path) -> None:
    journal = small(tmp_path, rows_of=rows_of)
    record, distances = batch(b"abc", b"defgh", head=b"head|000000042|")
    assert distances == [23, 34]
    [location] = put(journal, record)
    index = journal.index(1)

    assert index.seqs.tolist() == [42, 43]
    assert [journal.read(1 << 32 | offset) for offset in index.offsets] == [b"abc", b"defgh"]
    assert index.offsets[0] == (location & 0xFFFF_FFFF) + 23
    journal.close()


def test_a_saved_index_equals_one_built_anew(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path)
    saved = {s.number: journal.index(s.number).rows for s in journal.segments() if s.sealed}
    for number in saved:
        os.unlink(index_path(segment_file(tmp_path, number)))

    assert {number: journal.index(number).rows for number in saved} == saved
    journal.close()
    # Opening makes the missing files again.
    journal = small(tmp_path, rows_of=rows_of)
    indexed(journal)
    assert {n: load(index_path(segment_file(tmp_path, n))).rows for n in saved} == saved
    journal.close()


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path)
    expected = journal.index(1).rows
    path = index_path(segment_file(tmp_path, 1))
    journal.close()
    whole = Path(path).read_bytes()
    for damaged in (b"", whole[:-1], whole[:40], b"XXXX" + whole[4:], whole[:-1] + b"!"):
        Path(path).write_bytes(damaged)
        with pytest.raises(ValueError, match="no "):
            load(path)
        journal = small(tmp_path, rows_of=rows_of)
        assert journal.index(1).rows == expected
        indexed(journal)
        assert load(path).rows == expected
        journal.close()


def test_segments_know_their_times(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path)
    sealed = [s for s in journal.segments() if s.sealed]

    assert sealed[0].first_ms == 0
    for before, after in pairwise(sealed):
        assert before.first_ms is not None
        assert before.last_ms is not None
        assert after.first_ms is not None
        assert before.first_ms <= before.last_ms <= after.first_ms
    assert journal.segments()[-1].first_ms is None
    journal.close()


def test_finding_a_sequence_or_a_time(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path)
    index = journal.index(2)
    first, last = index.seqs[0], index.seqs[-1]

    for row in range(index.count):
        assert index.rows_for_seq(index.seqs[row]) == [row]
        found = index.first_at_or_after(index.times[row])
        assert index.times[found] == index.times[row]
        assert found == 0 or index.times[found - 1] < index.times[row]
    assert index.rows_for_seq(first - 1) == []
    assert index.rows_for_seq(last + 1) == []
    assert index.first_at_or_after(0) == 0
    assert index.first_at_or_after(10**9) == index.count
    journal.close()


def test_bytes_that_look_like_a_sequence_elsewhere_in_a_row_are_not_one() -> None:
    from struct import pack

    row = pack("<QQIIIBBH", 5, 6, 7, 0, 9, 1, 0, 0)
    index = SegmentIndex(row + pack("<QQIIIBBH", 6, 6, 7, 0, 9, 1, 0, 0))

    assert index.rows_for_seq(6) == [1]
    assert index.rows_for_seq(5) == [0]
    assert index.rows_for_seq(7) == []


def test_rows_of_a_queue_are_found(tmp_path: Path) -> None:
    # The bytes of 1 also occur where 256 follows 0, and across two rows.
    queues = [0, 256, 1, 1 << 24, 1, 0, 0, 1 << 16, 1, 256]
    index = SegmentIndex(b"".join(ROW.pack(1, 1, queue, 0, 0, 1, 0, 0) for queue in queues))

    for queue in (*queues, 7):
        for first in range(len(queues) + 1):
            expected = [row for row in range(first, len(queues)) if queues[row] == queue]
            assert list(index.rows_for_queue(queue, first)) == expected


def test_the_index_of_the_current_segment_is_kept_until_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_damage(error: JournalDamaged) -> None:
        raise error

    journal = small(tmp_path, rows_of=rows_of)
    put(journal, b"1,1,1")
    first = journal.index(1, no_damage)

    assert journal.index(1, no_damage) is first
    assert journal.index(1) is first
    put(journal, b"2,2,2")
    second = journal.index(1, no_damage)
    assert second.seqs.tolist() == [1, 2]
    journal.clear_cache()
    assert journal.index(1, no_damage) is not second
    while len(list(journal.segments())) == 1:
        put(journal, b"3,3,%0100d" % 3)
    assert journal.index(1, no_damage).count > 2
    monkeypatch.setattr(file_journal, "NEWEST_INDEX_BYTES", 0)
    last = journal.segments()[-1].number
    put(journal, b"4,4,4")
    assert journal.index(last, no_damage) is not journal.index(last, no_damage)
    journal.close()


def test_an_index_with_damage_left_out_is_not_kept(tmp_path: Path) -> None:
    journal = small(tmp_path, rows_of=rows_of)
    [location] = put(journal, b"1,1,1")
    put(journal, b"2,2,2")
    with open(segment_file(tmp_path, 1), "r+b") as file:
        file.seek((location & 0xFFFF_FFFF) + 9)
        file.write(b"!")
    for _ in range(2):  # each caller hears of it
        found: list[JournalDamaged] = []
        assert journal.index(1, found.append).seqs.tolist() == [2]
        assert len(found) == 1
    journal.close()


def test_the_index_of_nothing(tmp_path: Path) -> None:
    index = SegmentIndex(b"")
    assert (index.count, index.first_ms, index.last_ms) == (0, None, None)
    assert index.first_at_or_after(5) == 0
    journal = small(tmp_path, rows_of=rows_of)
    assert journal.index(1).count == 0
    with pytest.raises(HistoryUnavailable):
        journal.index(2)
    journal.close()


def test_records_that_cannot_be_indexed_are_left_out(tmp_path: Path) -> None:
    journal = small(tmp_path, rows_of=rows_of)
    put(journal, b"1,1,1", b"not of this kind", b"2,2,2")

    assert journal.index(1).seqs.tolist() == [1, 2]
    journal.close()


def test_a_damaged_segment_gets_no_index(tmp_path: Path) -> None:
    journal, locations = filled(tmp_path)
    journal.close()
    os.unlink(index_path(segment_file(tmp_path, 1)))
    with open(segment_file(tmp_path, 1), "r+b") as file:
        file.seek((locations[2] & 0xFFFF_FFFF) + 9)
        file.write(b"!")

    journal = small(tmp_path, rows_of=rows_of)
    with pytest.raises(JournalDamaged):
        journal.index(1)
    until(lambda: all(s.indexed for s in journal._segments.values() if s is not journal._writing))
    assert not os.path.exists(index_path(segment_file(tmp_path, 1)))
    assert journal.index(2).count
    journal.close()


def test_the_engines_own_records_are_indexed_by_default(tmp_path: Path) -> None:
    from openq.engine.records import index_rows
    from openq.journal import content

    # Whatever the engine's function says about a record is what the index holds.
    record = bytes([99]) + bytes(60)
    outcomes = []
    for function in (index_rows, content.index_rows):
        try:
            outcomes.append(function(record, 64))
        except Exception as error:
            outcomes.append(repr(error).encode())
    assert outcomes[0] == outcomes[1]


def test_dropping_removes_the_sidecar_too(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path)
    journal.drop_before(3)
    names = os.listdir(tmp_path / "journal")

    assert "0000000000000001.idx" not in names
    assert "0000000000000003.idx" in names
    journal.close()
