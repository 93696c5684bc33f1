"""check, repair and dump."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from openq.errors import DirectoryInUse, JournalDamaged
from openq.storage import snapshots
from openq.storage.doctor import Report, check, dump, repair
from openq.storage.index import index_path
from openq.storage.segment import BLOCK_BYTES, HEADER_BYTES, SegmentHeader
from openq.storage.survey import BLOCKS, FOREIGN, HEADER, LOST_END, MISSING, SALT, TAIL
from tests.storage import helpers
from tests.storage.helpers import contents, no_rows, put, records, segment_file, small

Where = list[tuple[int, bytes]]


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, Where]:
    """A closed journal over several segments, and what is where."""
    path = tmp_path / "journal-folder"
    journal = small(path)
    where: Where = []
    for record in records(150):
        where += [(at, record) for at in put(journal, record)]
        # With a late keeper the segments would have other sizes.
        helpers.eventually(lambda: journal._stock.spares)
    sealed = list(journal._segments.values())[:-1]
    helpers.eventually(lambda: all(os.path.exists(index_path(segment.path)) for segment in sealed))
    journal.close()
    return path, where


def overwrite(path: Path, number: int, offset: int, data: bytes) -> None:
    with open(segment_file(path, number), "r+b") as file:
        file.seek(offset)
        file.write(data)


def state(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def mend(path: Path) -> Report:
    """A dry run tells the same and changes nothing; afterwards all is well."""
    before = state(path)
    dry = repair(path, dry_run=True)
    assert state(path) == before
    report = repair(path, rows_of=no_rows)
    assert report.repaired
    assert dry.damages == report.damages
    after = check(path)
    assert after.ok
    assert after.missing_sidecars == []
    return report


def blocks_hit(where: Where, number: int, start: int, end: int) -> Where:
    """Records whose block (one each) overlaps the range."""
    return [
        (at, record)
        for at, record in where
        if at >> 32 == number
        and (at & 0xFFFF_FFFF) - BLOCK_BYTES < end
        and (at & 0xFFFF_FFFF) + 8 + len(record) > start
    ]


def survives(path: Path, where: Where, lost: Where) -> None:
    """Everything else is there, under the same locations, and the journal can be used."""
    journal = small(path)
    kept = [pair for pair in where if pair not in lost]
    assert list(journal.replay()) == kept
    for at, record in kept[::7]:
        assert journal.read(at) == record
    for at, _ in lost:
        with pytest.raises(JournalDamaged):
            journal.read(at)
    put(journal, b"new")
    journal.close()
    assert contents(path) == [record for _, record in kept] + [b"new"]


def test_a_good_journal_is_counted(whole: tuple[Path, Where]) -> None:
    path, where = whole
    report = check(path)

    assert report.ok
    assert (report.records, report.blocks) == (150, 150)
    assert report.segments == max(at for at, _ in where) >> 32
    assert report.torn is None
    assert report.missing_sidecars == []
    assert report.bytes == sum(8 + len(record) for _, record in where)
    assert list(dump(path)) == where
    assert list(dump(path, where[50][0])) == where[50:]
    repaired = repair(path)
    assert repaired.ok
    assert repaired.quarantined == []


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert check(tmp_path).ok
    assert list(dump(tmp_path)) == []


def test_a_torn_tail_is_no_damage(whole: tuple[Path, Where]) -> None:
    path, where = whole
    last = where[-1][0]
    overwrite(path, last >> 32, (last & 0xFFFF_FFFF) + 10, b"!!!")
    report = check(path)

    assert report.ok
    assert report.torn is not None
    assert report.torn.offset == (last & 0xFFFF_FFFF) - BLOCK_BYTES
    assert list(dump(path)) == where[:-1]


def test_missing_sidecars_are_listed_and_made(whole: tuple[Path, Where]) -> None:
    path, _ = whole
    sidecar = path / "journal" / "0000000000000001.idx"
    sidecar.unlink()
    assert check(path).missing_sidecars == [str(sidecar)]
    repair(path, rows_of=no_rows)
    assert sidecar.exists()


def test_damage_anywhere_is_mended_and_costs_only_what_it_hit(whole: tuple[Path, Where]) -> None:
    path, where = whole
    rng = random.Random(11)
    spare = path.parent / "spare"
    shutil.copytree(path, spare)
    last = where[-1][0] >> 32
    for _ in range(40):
        shutil.rmtree(path)
        shutil.copytree(spare, path)
        number = rng.randrange(1, last)
        size = rng.choice([1, 4, 33, 100, 512])
        start = rng.randrange(HEADER_BYTES, os.path.getsize(segment_file(path, number)))
        original = Path(segment_file(path, number)).read_bytes()[start : start + size]
        overwrite(path, number, start, bytes(b ^ 0xFF for b in original))
        lost = blocks_hit(where, number, start, start + len(original))

        assert list(dump(path)) == [pair for pair in where if pair not in lost]
        report = mend(path)
        assert bool(report.damages) == bool(lost)
        for damage in report.damages:
            assert damage.kind in (BLOCKS, TAIL)
            assert damage.last_block - damage.first_block + 1 == len(lost)
        survives(path, where, lost)


def test_the_damaged_bytes_are_kept(whole: tuple[Path, Where]) -> None:
    path, where = whole
    at, record = where[2]
    overwrite(path, 1, (at & 0xFFFF_FFFF) + 8, b"X")
    report = mend(path)

    [copy] = report.quarantined
    data = Path(copy).read_bytes()
    assert os.path.dirname(copy) == str(path / "quarantine")
    assert b"X" + record[1:] in data
    assert len(data) == BLOCK_BYTES + 8 + len(record)
    assert check(path).holes == 1


def test_several_damages_in_one_journal(whole: tuple[Path, Where]) -> None:
    path, where = whole
    lost = [where[2], where[3], where[30], where[60], where[61]]
    for at, _ in lost:
        overwrite(path, at >> 32, at & 0xFFFF_FFFF, b"\0" * 9)
    report = mend(path)

    assert len(report.damages) == 3
    survives(path, where, lost)
    # And once more, beside the earlier hole.
    overwrite(path, where[1][0] >> 32, where[1][0] & 0xFFFF_FFFF, b"\0" * 9)
    mend(path)
    assert check(path).holes == 4


def test_a_bad_header_is_written_anew(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in (1, 2, where[-1][0] >> 32):
        overwrite(path, number, 5, b"\xff")
        with pytest.raises(JournalDamaged):
            small(path)
        [damage] = mend(path).damages
        assert (damage.kind, damage.segment) == (HEADER, number)
        assert contents(path) == [record for _, record in where]


def test_a_bad_header_and_a_bad_first_block(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in (1, 2):
        overwrite(path, number, 0, bytes(HEADER_BYTES + 20))
    mend(path)
    first = [next(pair for pair in where if pair[0] >> 32 == number) for number in (1, 2)]
    survives(path, where, first)


def test_all_headers_bad_the_reserve_still_knows_the_salt(whole: tuple[Path, Where]) -> None:
    path, where = whole
    last = where[-1][0] >> 32
    for number in range(1, last + 1):
        overwrite(path, number, 0, b"\xff")
    assert len(mend(path).damages) == last
    assert contents(path) == [record for _, record in where]


def test_without_any_header_nothing_can_be_verified(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in range(1, (where[-1][0] >> 32) + 1):
        overwrite(path, number, 0, b"\xff")
    (path / "journal" / "reserve").unlink()
    before = state(path)

    assert [damage.kind for damage in check(path).damages] == [SALT]
    with pytest.raises(JournalDamaged, match="no header is left"):
        repair(path)
    assert state(path).keys() - before.keys() <= {"LOCK"}
    assert list(dump(path)) == []


@pytest.mark.parametrize("gone", [(2,), (2, 3), (3, 5), (6,)])
def test_a_missing_segment_is_filled_in(whole: tuple[Path, Where], gone: tuple[int, ...]) -> None:
    path, where = whole
    assert where[-1][0] >> 32 == 6
    for number in gone:
        os.unlink(segment_file(path, number))
    with pytest.raises(JournalDamaged, match="missing"):
        small(path)
    report = mend(path)

    assert [(damage.kind, damage.segment) for damage in report.damages] == [(MISSING, n) for n in gone]
    kept = [pair for pair in where if pair[0] >> 32 not in gone]
    journal = small(path)
    assert list(journal.replay()) == kept
    journal.close()


def test_a_foreign_segment_is_put_aside(whole: tuple[Path, Where]) -> None:
    path, where = whole
    overwrite(path, 2, 0, SegmentHeader(2, 0, 1, 4096, 999).pack())
    [damage] = mend(path).damages

    assert damage.kind == FOREIGN
    assert len(list((path / "quarantine").iterdir())) == 1
    assert contents(path) == [record for at, record in where if at >> 32 != 2]


def test_a_foreign_first_segment(whole: tuple[Path, Where]) -> None:
    path, where = whole
    overwrite(path, 1, 0, SegmentHeader(1, 0, 1, 4096, 999).pack())
    mend(path)
    assert contents(path) == [record for at, record in where if at >> 32 != 1]


def test_a_segment_that_was_cut_short(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for size in (300, HEADER_BYTES + 10, 20, 0):
        os.truncate(segment_file(path, 2), size)
        mend(path)
    lost = [at for at, _ in where if at >> 32 == 2 and (at & 0xFFFF_FFFF) + 68 > HEADER_BYTES + 10]
    assert contents(path) == [record for at, record in where if at not in lost]


def test_repair_needs_the_folder_for_itself_and_check_does_not(tmp_path: Path) -> None:
    journal = small(tmp_path)
    put(journal, *records(100))

    with pytest.raises(DirectoryInUse):
        repair(tmp_path)
    assert check(tmp_path).records == 100
    assert repair(tmp_path, dry_run=True).ok
    journal.close()


def test_check_beside_a_busy_process_finds_no_damage(tmp_path: Path) -> None:
    """One that writes, rolls, drops and recycles segments, and makes snapshots."""
    journal = small(tmp_path, segment_bytes=1 << 13)
    done = threading.Event()

    def work() -> None:
        for n, record in enumerate(records(4000)):
            put(journal, record, wait=n % 50 == 0)
            journal.flush()
            if n % 250 == 0:
                snapshots.write(str(tmp_path / "snapshots"), journal.durable_at, [b"state"])
                journal.drop_before((journal.durable_at >> 32) - 2)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    rounds = 0
    while not done.is_set() or not rounds:
        report = check(tmp_path)
        assert report.ok, report.damages
        rounds += 1
    thread.join()
    journal.close()
    assert check(tmp_path).ok


def test_an_end_that_a_snapshot_proves_lost(whole: tuple[Path, Where]) -> None:
    """The last block is flipped, which looks like a torn tail; but a snapshot knows it was durable."""
    path, where = whole
    journal = small(path)
    covered = journal.end_at
    journal.close()
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    for at, _ in where[-2:]:
        overwrite(path, at >> 32, at & 0xFFFF_FFFF, b"\0" * 9)
    journal = small(path)
    with pytest.raises(JournalDamaged, match="repair"):
        journal.replay(covered)
    journal.close()

    [damage] = mend(path).damages
    assert damage.kind == LOST_END
    journal = small(path)
    assert list(journal.replay(covered)) == []
    [at] = put(journal, b"new")
    assert at >= covered
    assert [record for _, record in journal.replay(covered)] == [b"new"]
    assert [record for _, record in journal.replay()] == [*(r for _, r in where[:-2]), b"new"]
    journal.close()


def test_whole_segments_that_a_snapshot_proves_lost(whole: tuple[Path, Where]) -> None:
    path, where = whole
    covered = 8 << 32 | 500
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    report = mend(path)

    assert [(damage.kind, damage.segment) for damage in report.damages] == [
        (MISSING, 7),
        (MISSING, 8),
        (LOST_END, 8),
    ]
    journal = small(path)
    assert list(journal.replay(covered)) == []
    [at] = put(journal, b"new")
    assert at >= covered
    journal.close()
    assert contents(path) == [*(record for _, record in where), b"new"]
