"""Records that live or die together: `make_room` brings them into one block."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.errors import Closed, DiskFull
from openq.journal import writer
from openq.journal.file_journal import Journal
from openq.journal.format import FRAME_BYTES
from tests.journal.fake_disk import FakeDisk
from tests.journal.helpers import contents, put, small
from tests.waiting import until

RECORD = b"r" * 100


def together(journal: Journal, count: int) -> list[int]:
    """So many records under one hold of the lock; the blocks they came into."""
    blocks = []
    with journal.lock:
        journal.make_room(count * (FRAME_BYTES + len(RECORD)))
        for _ in range(count):
            journal.append(RECORD)
            blocks.append(journal._live[-1].number)
    return blocks


def test_records_come_into_one_block_wherever_the_segment_ends(tmp_path: Path) -> None:
    journal = small(tmp_path / "d")
    written = 0
    for lone in range(12):
        for _ in range(lone):
            put(journal, b"x" * 7)
        assert len(set(together(journal, 3))) == 1
        written += lone + 3
    journal.wait(journal.end_location - 1)
    journal.close()

    assert len(contents(tmp_path / "d")) == written


def test_more_than_a_segment_holds_gets_a_segment_of_its_own_size(tmp_path: Path) -> None:
    journal = small(tmp_path / "d")

    assert len(set(together(journal, 500))) == 1
    journal.wait(journal.end_location - 1)
    journal.close()

    assert contents(tmp_path / "d") == [RECORD] * 500


def test_a_full_disk_and_a_closed_journal_refuse_before_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FakeDisk(tmp_path, capacity=12_000)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.reserve)
    put(journal, RECORD)
    before = journal.end_location

    with journal.lock, pytest.raises(DiskFull):
        journal.make_room(100_000)

    assert journal.end_location == before
    journal.close()
    with journal.lock, pytest.raises(Closed):
        journal.make_room(1)
