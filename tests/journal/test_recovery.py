"""Opening what a crash or a bad disk left: a torn tail is cut, anything else is refused by name."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.errors import JournalDamaged
from openq.journal.format import BLOCK_BYTES, HEADER_BYTES, SegmentHeader
from tests.journal.helpers import SALT, contents, put, records, segment_file, small

COUNT = 8


@pytest.fixture
def one_segment(tmp_path: Path) -> tuple[Path, bytes, list[int]]:
    """A journal of eight blocks with one record each in one file, its bytes, and the blocks' offsets."""
    path = tmp_path / "whole"
    journal = small(path, first_segment_bytes=4096)
    locations = [location for record in records(COUNT) for location in put(journal, record)]
    journal.close()
    with open(segment_file(path, 1), "rb") as file:
        return path, file.read(), [(location & 0xFFFF_FFFF) - BLOCK_BYTES for location in locations]


def variant(whole: Path, data: bytes) -> Path:
    """A copy of the journal with other bytes in its only segment."""
    path = whole.parent / "variant"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path)
    with open(segment_file(path, 1), "wb") as file:
        file.write(data)
    return path


def outcome(whole: Path, data: bytes) -> list[bytes] | JournalDamaged:
    """What opening gives. A refusal must not have changed anything."""
    path = variant(whole, data)
    before = snapshot(path)
    try:
        found = contents(path)
    except JournalDamaged as error:
        assert snapshot(path) == before
        return error
    # It can be used as if nothing had been.
    journal = small(path)
    put(journal, b"new")
    journal.close()
    assert contents(path) == [*found, b"new"]
    return found


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "journal").iterdir())}


def test_a_file_cut_anywhere_in_its_last_block_loses_that_block_only(
    one_segment: tuple[Path, bytes, list[int]],
) -> None:
    whole, data, starts = one_segment
    end = starts[-1] + BLOCK_BYTES + 8 + 60
    for size in range(starts[-1], end):
        assert outcome(whole, data[:size]) == records(COUNT - 1), size
    assert outcome(whole, data[:end]) == records(COUNT)


@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_a_last_block_overwritten_from_anywhere_on_is_cut(
    one_segment: tuple[Path, bytes, list[int]], fill: str
) -> None:
    whole, data, starts = one_segment
    rng = random.Random(1)
    for start in range(starts[-1], starts[-1] + BLOCK_BYTES + 60, 7):
        rest = len(data) - start
        tail = bytes(rest) if fill == "zeros" else rng.randbytes(rest)
        assert outcome(whole, data[:start] + tail) == records(COUNT - 1)


def test_a_torn_tail_is_logged(
    one_segment: tuple[Path, bytes, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    whole, data, starts = one_segment
    with caplog.at_level(logging.WARNING, "openq.journal"):
        contents(variant(whole, data[: starts[-1] + 50]))

    assert f"at offset {starts[-1]}" in caplog.text
    assert "torn tail" in caplog.text
    caplog.clear()
    contents(whole)
    assert "torn" not in caplog.text


def test_a_tail_written_twice_is_not_read_twice(one_segment: tuple[Path, bytes, list[int]]) -> None:
    whole, data, starts = one_segment
    used = data[: starts[-1] + BLOCK_BYTES + 68]
    for tail in (used[starts[-1] :], used[starts[-2] :], used[HEADER_BYTES:]):
        assert outcome(whole, used + tail) == records(COUNT)


def test_old_content_after_the_end_is_not_read(one_segment: tuple[Path, bytes, list[int]]) -> None:
    whole, data, starts = one_segment
    end = starts[-1] + BLOCK_BYTES + 68
    # As in a recycled file: whole blocks of another segment number, at the very same offsets.
    other = whole.parent / "other"
    journal = small(other, first_segment_bytes=1024, segment_bytes=4096)
    for record in records(60):
        put(journal, record)
    journal.close()
    with open(segment_file(other, 3), "rb") as file:
        stale = file.read()
    for start in (end, starts[-1] + 10):
        kept = COUNT if start == end else COUNT - 1
        assert outcome(whole, data[:start] + stale[start:]) == records(kept)


def flips(data: bytes, end: int) -> Iterator[tuple[int, bytes]]:
    rng = random.Random(3)
    for offset in range(end):
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        yield offset, bytes(changed)


def test_a_flipped_bit_anywhere_is_a_torn_last_block_or_named_damage(
    one_segment: tuple[Path, bytes, list[int]],
) -> None:
    whole, data, starts = one_segment
    end = starts[-1] + BLOCK_BYTES + 68
    for offset, changed in flips(data, end):
        result = outcome(whole, changed)
        if offset >= starts[-1]:
            assert result == records(COUNT - 1), offset
        elif 56 <= offset < HEADER_BYTES:
            continue  # bytes of the header that mean nothing yet
        else:
            assert isinstance(result, JournalDamaged), offset
            assert result.file.endswith("0000000000000001.seg")
            block = max((start for start in starts if start <= offset), default=0)
            assert result.offset == block
            assert "openq journal repair" in str(result)


def test_a_lost_sector_in_the_middle_is_damage(one_segment: tuple[Path, bytes, list[int]]) -> None:
    whole, data, starts = one_segment
    for sector in range(0, starts[-1] - 511, 64):
        result = outcome(whole, data[:sector] + bytes(512) + data[sector + 512 :])
        assert isinstance(result, JournalDamaged), sector
    message = str(outcome(whole, data[: starts[2]] + bytes(200) + data[starts[2] + 200 :]))
    assert "blocks 3 to 4 are unreadable, but block 5 after them is intact" in message


def test_damage_in_an_older_segment_is_found_by_replay_and_by_read(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = [location for record in records(100) for location in put(journal, record)]
    journal.close()
    victim = locations[3]
    with open(segment_file(tmp_path, victim >> 32), "r+b") as file:
        file.seek((victim & 0xFFFF_FFFF) + 20)
        file.write(b"!")

    journal = small(tmp_path)
    with pytest.raises(JournalDamaged):
        list(journal.replay())
    with pytest.raises(JournalDamaged):
        journal.read(victim)
    with pytest.raises(JournalDamaged):
        journal.read_many([locations[50], victim])
    assert journal.read(locations[2]) == records(100)[2]
    # Later ones are not concerned.
    start = locations[50]
    assert [r for _, r in journal.replay(start)] == records(100)[50:]
    journal.close()


def test_the_end_of_an_older_segment_must_be_whole_too(tmp_path: Path) -> None:
    journal = small(tmp_path)
    locations = [location for record in records(100) for location in put(journal, record)]
    journal.close()
    last = [location for location in locations if location >> 32 == 2][-1]
    with open(segment_file(tmp_path, 2), "r+b") as file:
        file.seek(last & 0xFFFF_FFFF)
        file.write(bytes(100))

    journal = small(tmp_path)
    with pytest.raises(JournalDamaged, match="the next segment is there"):
        list(journal.replay())
    journal.close()


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    journal = small(tmp_path)
    for record in records(100):
        put(journal, record)
    journal.close()
    os.unlink(segment_file(tmp_path, 2))

    with pytest.raises(JournalDamaged, match="this segment is missing"):
        small(tmp_path)


def test_a_journal_without_any_segment_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    journal = small(tmp_path)
    for record in records(100):
        put(journal, record)
    numbers = [segment.number for segment in journal.segments()]
    journal.close()
    for number in numbers:
        os.unlink(segment_file(tmp_path, number))

    with pytest.raises(JournalDamaged, match="segments of this journal are missing"):
        small(tmp_path)


def test_a_segment_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    journal = small(tmp_path / "a")
    for record in records(100):
        put(journal, record)
    journal.close()
    shutil.copy(segment_file(tmp_path / "a", 1), segment_file(tmp_path / "a", 2))
    with pytest.raises(JournalDamaged, match="named 2 but is segment 1"):
        small(tmp_path / "a")

    with open(segment_file(tmp_path / "a", 2), "r+b") as file:
        file.write(SegmentHeader(2, 0, 9, 4096, SALT + 1).pack())
    with pytest.raises(JournalDamaged, match="belongs to another journal"):
        small(tmp_path / "a")


def test_a_new_journal_without_a_block_is_fine(tmp_path: Path) -> None:
    small(tmp_path).close()
    assert contents(tmp_path) == []


def test_half_made_files_are_removed_and_strange_ones_left_alone(tmp_path: Path) -> None:
    journal = small(tmp_path)
    put(journal, b"x")
    journal.close()
    folder = tmp_path / "journal"
    for name in ("spare-0000dead.tmp", "0000000000000009.idx.tmp", "notes.txt", "zzzzzzzzzzzzzzzz.seg"):
        (folder / name).write_bytes(b"half")

    assert contents(tmp_path) == [b"x"]
    left = set(os.listdir(folder))
    assert {"notes.txt", "zzzzzzzzzzzzzzzz.seg"} <= left
    assert not {"spare-0000dead.tmp", "0000000000000009.idx.tmp"} & left


def test_what_is_read_at_start_is_synced_before_anyone_builds_on_it(tmp_path: Path) -> None:
    from tests.journal.fake_disk import FakeDisk

    # A process that was killed after its write and before its sync: readable, not on disk.
    journal = small(tmp_path / "d", io=(disk := FakeDisk(tmp_path, lies=frozenset({"fdatasync"}))))
    put(journal, b"x")
    disk.die()
    journal.close()
    disk.dead, disk.lies = False, frozenset()
    journal = small(tmp_path / "d", io=disk)
    assert [r for _, r in journal.replay()] == [b"x"]

    disk.cut(tmp_path / "after")
    journal.close()
    assert contents(tmp_path / "after" / "d") == [b"x"]
