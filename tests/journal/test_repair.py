"""check, repair and dump."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from openq.errors import DirectoryInUse, JournalDamaged, JournalFailed
from openq.journal import bounds, snapshots
from openq.journal.disk import DiskIo
from openq.journal.format import BLOCK_BYTES, HEADER_BYTES, SegmentHeader
from openq.journal.index import index_path
from openq.journal.inspect import (
    BLOCKS,
    DIRECTORY,
    DUPLICATE,
    FOREIGN,
    HEADER,
    LOST_END,
    MISNAMED,
    MISSING,
    SALT,
    TAIL,
    UNREADABLE,
)
from openq.journal.losses import is_loss
from openq.journal.repair import CheckReport, check, dump, repair
from tests.journal.helpers import contents, no_rows, put, records, segment_file, small
from tests.waiting import until

Where = list[tuple[int, bytes]]


@pytest.fixture
def whole(tmp_path: Path, template: tuple[Path, Where]) -> tuple[Path, Where]:
    """A closed journal over several segments, and what is where."""
    path, where = template
    return Path(shutil.copytree(path, tmp_path / "journal-folder")), where


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Where]:
    path = tmp_path_factory.mktemp("template") / "journal-folder"
    journal = small(path)
    where: Where = []
    for record in records(150):
        where += [(location, record) for location in put(journal, record)]
        # With a late preparer the segments would have other sizes.
        until(lambda: journal._pool.spares)
    sealed = list(journal._segments.values())[:-1]
    until(lambda: all(os.path.exists(index_path(segment.path)) for segment in sealed))
    journal.close()
    return path, where


def overwrite(path: Path, number: int, offset: int, data: bytes) -> None:
    with open(segment_file(path, number), "r+b") as file:
        file.seek(offset)
        file.write(data)


def state(path: Path) -> dict[str, bytes]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "LOCK"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def repair_journal(path: Path) -> CheckReport:
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
        (location, record)
        for location, record in where
        if location >> 32 == number
        and (location & 0xFFFF_FFFF) - BLOCK_BYTES < end
        and (location & 0xFFFF_FFFF) + 8 + len(record) > start
    ]


def survives(path: Path, where: Where, lost: Where) -> None:
    """Everything else is there, under the same locations, and the journal can be used."""
    journal = small(path)
    kept = [pair for pair in where if pair not in lost]
    assert list(journal.replay()) == kept
    for location, record in kept[::7]:
        assert journal.read(location) == record
    for location, _ in lost:
        with pytest.raises(JournalDamaged):
            journal.read(location)
    put(journal, b"new")
    journal.close()
    assert contents(path) == [record for _, record in kept] + [b"new"]


def test_a_good_journal_is_counted(whole: tuple[Path, Where]) -> None:
    path, where = whole
    report = check(path)

    assert report.ok
    assert (report.records, report.blocks) == (150, 150)
    assert report.segments == max(location for location, _ in where) >> 32
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


def test_damage_anywhere_is_repaired_and_costs_only_what_it_hit(whole: tuple[Path, Where]) -> None:
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
        report = repair_journal(path)
        assert bool(report.damages) == bool(lost)
        for damage in report.damages:
            assert damage.kind in (BLOCKS, TAIL)
            assert damage.last_block - damage.first_block + 1 == len(lost)
        survives(path, where, lost)


def test_the_damaged_bytes_are_kept(whole: tuple[Path, Where]) -> None:
    path, where = whole
    location, record = where[2]
    overwrite(path, 1, (location & 0xFFFF_FFFF) + 8, b"X")
    report = repair_journal(path)

    [copy] = report.quarantined
    data = Path(copy).read_bytes()
    assert os.path.dirname(copy) == str(path / "quarantine")
    assert b"X" + record[1:] in data
    assert len(data) == BLOCK_BYTES + 8 + len(record)
    assert check(path).holes == 1


def test_several_damages_in_one_journal(whole: tuple[Path, Where]) -> None:
    path, where = whole
    lost = [where[2], where[3], where[30], where[60], where[61]]
    for location, _ in lost:
        overwrite(path, location >> 32, location & 0xFFFF_FFFF, b"\0" * 9)
    report = repair_journal(path)

    assert len(report.damages) == 3
    survives(path, where, lost)
    # And once more, beside the earlier hole.
    overwrite(path, where[1][0] >> 32, where[1][0] & 0xFFFF_FFFF, b"\0" * 9)
    repair_journal(path)
    assert check(path).holes == 4


def test_a_bad_header_is_written_anew(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in (1, 2, where[-1][0] >> 32):
        overwrite(path, number, 5, b"\xff")
        with pytest.raises(JournalDamaged):
            small(path)
        [damage] = repair_journal(path).damages
        assert (damage.kind, damage.segment) == (HEADER, number)
        assert contents(path) == [record for _, record in where]


def test_a_bad_header_and_a_bad_first_block(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in (1, 2):
        overwrite(path, number, 0, bytes(HEADER_BYTES + 20))
    repair_journal(path)
    first = [next(pair for pair in where if pair[0] >> 32 == number) for number in (1, 2)]
    survives(path, where, first)


@pytest.mark.parametrize("lost", ["bounds", "reserve"])
def test_all_headers_bad_the_reserve_or_the_bounds_still_know_the_salt(
    whole: tuple[Path, Where], lost: str
) -> None:
    path, where = whole
    (path / "journal" / lost).unlink()
    last = where[-1][0] >> 32
    for number in range(1, last + 1):
        overwrite(path, number, 0, b"\xff")
    assert len(repair_journal(path).damages) == last
    assert contents(path) == [record for _, record in where]


def test_without_any_header_nothing_can_be_verified(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for number in range(1, (where[-1][0] >> 32) + 1):
        overwrite(path, number, 0, b"\xff")
    (path / "journal" / "reserve").unlink()
    (path / "journal" / "bounds").unlink()
    before = state(path)

    assert [damage.kind for damage in check(path).damages] == [SALT]
    with pytest.raises(JournalDamaged, match="no header is left"):
        repair(path)
    assert state(path) == before
    assert list(dump(path)) == []


@pytest.mark.parametrize("gone", [(1,), (1, 2, 3), (2,), (2, 3), (3, 5), (6,), (5, 6), (1, 6)])
def test_a_missing_segment_is_filled_in(whole: tuple[Path, Where], gone: tuple[int, ...]) -> None:
    path, where = whole
    assert where[-1][0] >> 32 == 6
    for number in gone:
        os.unlink(segment_file(path, number))
    with pytest.raises(JournalDamaged, match="missing"):
        small(path)
    report = repair_journal(path)

    assert [(damage.kind, damage.segment) for damage in report.damages] == [(MISSING, n) for n in gone]
    kept = [pair for pair in where if pair[0] >> 32 not in gone]
    journal = small(path)
    assert list(journal.replay()) == kept
    journal.close()


def test_a_foreign_segment_is_put_aside(whole: tuple[Path, Where]) -> None:
    path, where = whole
    overwrite(path, 2, 0, SegmentHeader(2, 0, 1, 4096, 999).pack())
    [damage] = repair_journal(path).damages

    assert damage.kind == FOREIGN
    assert len(list((path / "quarantine").iterdir())) == 1
    assert contents(path) == [record for location, record in where if location >> 32 != 2]


def test_a_foreign_first_segment(whole: tuple[Path, Where]) -> None:
    path, where = whole
    overwrite(path, 1, 0, SegmentHeader(1, 0, 1, 4096, 999).pack())
    repair_journal(path)
    assert contents(path) == [record for location, record in where if location >> 32 != 1]


def test_a_segment_that_was_cut_short(whole: tuple[Path, Where]) -> None:
    path, where = whole
    for size in (300, HEADER_BYTES + 10, 20, 0):
        os.truncate(segment_file(path, 2), size)
        repair_journal(path)
    lost = [
        location
        for location, _ in where
        if location >> 32 == 2 and (location & 0xFFFF_FFFF) + 68 > HEADER_BYTES + 10
    ]
    assert contents(path) == [record for location, record in where if location not in lost]


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
                snapshots.write(str(tmp_path / "snapshots"), journal.durable_location, [b"state"])
                journal.drop_before((journal.durable_location >> 32) - 2)
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
    covered = journal.end_location
    journal.close()
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    for location, _ in where[-2:]:
        overwrite(path, location >> 32, location & 0xFFFF_FFFF, b"\0" * 9)
    journal = small(path)
    with pytest.raises(JournalDamaged, match="repair"):
        journal.replay(covered)
    journal.close()

    [damage] = repair_journal(path).damages
    assert damage.kind == LOST_END
    journal = small(path)
    assert list(journal.replay(covered)) == []
    [location] = put(journal, b"new")
    assert location >= covered
    assert [record for _, record in journal.replay(covered)] == [b"new"]
    assert [record for _, record in journal.replay()] == [*(r for _, r in where[:-2]), b"new"]
    journal.close()


def test_whole_segments_that_a_snapshot_proves_lost(whole: tuple[Path, Where]) -> None:
    path, where = whole
    covered = 8 << 32 | 500
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    report = repair_journal(path)

    assert [(damage.kind, damage.segment) for damage in report.damages] == [
        (MISSING, 7),
        (MISSING, 8),
    ]
    journal = small(path)
    assert list(journal.replay(covered)) == []
    [location] = put(journal, b"new")
    assert location >= covered
    journal.close()
    assert contents(path) == [*(record for _, record in where), b"new"]


@pytest.mark.parametrize("stands_for_it", ["nothing", "a directory"])
def test_a_missing_last_segment_that_a_snapshot_covers_is_reported_once(
    whole: tuple[Path, Where], stands_for_it: str
) -> None:
    path, where = whole
    journal = small(path)
    covered = journal.end_location
    journal.close()
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    os.unlink(segment_file(path, 6))
    if stands_for_it == "a directory":
        os.mkdir(segment_file(path, 6))
    report = repair_journal(path)

    kind = DIRECTORY if stands_for_it == "a directory" else MISSING
    assert damages(report) == [(kind, 6)]
    journal = small(path)
    assert list(journal.replay(covered)) == []
    [location] = put(journal, b"new")
    assert location >= covered
    journal.close()
    assert contents(path) == [*without(where, 6), b"new"]


@pytest.mark.parametrize("damage", ["gone", "cut", "a directory"])
def test_segments_are_lost_from_the_one_that_a_snapshot_covers_to_the_last(
    whole: tuple[Path, Where], damage: str
) -> None:
    """The later segments begin after the block that stands for the lost end of the covered one."""
    path, where = whole
    first, *_, (last, record) = [pair for pair in where if pair[0] >> 32 == 5]
    covered = last + 8 + len(record) + BLOCK_BYTES
    snapshots.write(str(path / "snapshots"), covered, [b"state"])
    os.unlink(segment_file(path, 6))
    if damage == "cut":
        os.truncate(segment_file(path, 5), (first[0] & 0xFFFF_FFFF) + 8 + len(first[1]))
    else:
        os.unlink(segment_file(path, 5))
    if damage == "a directory":
        os.mkdir(segment_file(path, 6))

    report = repair_journal(path)

    kinds = [LOST_END if damage == "cut" else MISSING, DIRECTORY if damage == "a directory" else MISSING]
    assert sorted(damages(report), key=lambda each: each[1]) == [(kinds[0], 5), (kinds[1], 6)]
    journal = small(path)
    [location] = put(journal, b"new")
    assert location >= covered
    journal.close()
    kept = [first[1]] if damage == "cut" else []
    assert contents(path) == [*without(where, 5, 6), *kept, b"new"]


@pytest.mark.parametrize("size", [HEADER_BYTES, 300, 1000])
def test_a_cut_segment_is_refused_at_the_start(whole: tuple[Path, Where], size: int) -> None:
    """Also where a snapshot saves reading it: a file that is shorter than its header says tells enough."""
    path, where = whole
    os.truncate(segment_file(path, 2), size)
    refused(path)

    [damage] = repair_journal(path).damages
    assert (damage.kind, damage.segment) == (TAIL, 2)
    kept = [
        (location, record)
        for location, record in where
        if location >> 32 != 2 or (location & 0xFFFF_FFFF) + 8 + len(record) <= size
    ]
    assert contents(path) == [record for _, record in kept]


def test_a_segment_cut_behind_its_last_block_is_whole(whole: tuple[Path, Where]) -> None:
    path, where = whole
    location, record = [pair for pair in where if pair[0] >> 32 == 2][-1]
    end = (location & 0xFFFF_FFFF) + 8 + len(record)
    assert end < os.path.getsize(segment_file(path, 2))
    os.truncate(segment_file(path, 2), end)

    assert check(path).ok
    assert contents(path) == [record for _, record in where]


# -- files that are not where they belong


def damages(report: CheckReport) -> list[tuple[str, int]]:
    return [(damage.kind, damage.segment) for damage in report.damages]


def refused(path: Path) -> None:
    before = state(path)
    with pytest.raises(JournalDamaged, match="openq journal repair"):
        small(path)
    assert state(path) == before


def without(where: Where, *numbers: int) -> list[bytes]:
    return [record for location, record in where if location >> 32 not in numbers]


def test_swapped_files_are_put_in_their_order(whole: tuple[Path, Where]) -> None:
    path, where = whole
    files = {number: Path(segment_file(path, number)) for number in (2, 3, 5)}
    held = {number: file.read_bytes() for number, file in files.items()}
    for number, taken_from in ((2, 3), (3, 5), (5, 2)):
        files[number].write_bytes(held[taken_from])
    refused(path)
    assert list(dump(path)) == where

    report = repair_journal(path)

    assert sorted(damages(report)) == [(MISNAMED, 2), (MISNAMED, 3), (MISNAMED, 5)]
    assert not any(map(is_loss, report.damages))
    assert contents(path) == [record for _, record in where]


def test_a_segment_under_another_name_is_found_by_its_header(whole: tuple[Path, Where]) -> None:
    path, where = whole
    os.rename(segment_file(path, 3), path / "journal" / "segment three (old)")
    os.rename(segment_file(path, 6), segment_file(path, 9))
    refused(path)

    assert sorted(damages(repair_journal(path))) == [(MISNAMED, 3), (MISNAMED, 6)]
    assert contents(path) == [record for _, record in where]


def test_an_interrupted_repair_can_be_repeated(whole: tuple[Path, Where]) -> None:
    path, where = whole
    os.rename(segment_file(path, 3), segment_file(path, 3) + ".moving")
    repair_journal(path)
    assert contents(path) == [record for _, record in where]


@pytest.mark.parametrize("place", [2, 9])
def test_a_second_copy_of_a_segment_is_set_aside(whole: tuple[Path, Where], place: int) -> None:
    """In place of another segment, or as one that never was."""
    path, where = whole
    shutil.copy(segment_file(path, 4), segment_file(path, place))
    refused(path)

    report = repair_journal(path)

    assert (DUPLICATE, 4) in damages(report)
    assert len(report.quarantined) == 1
    assert contents(path) == without(where, 2 if place == 2 else 0)


def test_of_two_copies_the_one_with_more_blocks_is_kept(whole: tuple[Path, Where]) -> None:
    path, where = whole
    newer = Path(segment_file(path, 4)).read_bytes()
    Path(segment_file(path, 9)).write_bytes(newer)
    Path(segment_file(path, 4)).write_bytes(newer[:600].ljust(len(newer), b"\0"))

    repair_journal(path)

    assert contents(path) == [record for _, record in where]


def test_a_segment_of_another_journal_beyond_the_end_is_set_aside(whole: tuple[Path, Where]) -> None:
    path, where = whole
    data = Path(segment_file(path, 4)).read_bytes()
    Path(segment_file(path, 77)).write_bytes(SegmentHeader(77, 0, 1, 4096, 999).pack() + data[64:])
    refused(path)

    assert damages(repair_journal(path)) == [(FOREIGN, 77)]
    assert contents(path) == [record for _, record in where]


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_directory_in_place_of_a_segment(whole: tuple[Path, Where], number: int) -> None:
    path, where = whole
    os.unlink(segment_file(path, number))
    os.mkdir(segment_file(path, number))
    refused(path)

    assert (DIRECTORY, number) in damages(repair_journal(path))
    assert contents(path) == without(where, number)


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_segment_cut_to_nothing(whole: tuple[Path, Where], number: int) -> None:
    path, where = whole
    os.truncate(segment_file(path, number), 0)
    refused(path)

    assert (HEADER, number) in damages(repair_journal(path))
    assert contents(path) == without(where, number)


class Forbidding(DiskIo):
    """A disk on which one file cannot be read; root is not hindered by permissions."""

    def __init__(self, file: str) -> None:
        self.file = file

    def open(self, path: str, flags: int) -> int:
        if path == self.file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, flags)


def test_a_segment_without_permission_is_named_and_left_alone(whole: tuple[Path, Where]) -> None:
    path, where = whole
    io = Forbidding(segment_file(path, 3))
    before = state(path)

    assert damages(check(path, io)) == [(UNREADABLE, 3)]
    with pytest.raises(JournalDamaged, match="make it readable first"):
        repair(path, io=io)
    with pytest.raises(JournalFailed, match="no permission"):
        small(path, io=io)

    assert state(path) == before
    assert contents(path) == [record for _, record in where]


# -- which segments there should be


def test_freed_segments_are_not_missed(whole: tuple[Path, Where]) -> None:
    path, where = whole
    journal = small(path)
    assert journal.drop_before(4) == 3
    journal.close()

    assert check(path).ok
    assert contents(path) == without(where, 1, 2, 3)
    os.unlink(segment_file(path, 4))
    refused(path)
    assert damages(repair_journal(path)) == [(MISSING, 4)]
    assert contents(path) == without(where, 1, 2, 3, 4)


@pytest.mark.parametrize("content", [None, b"", b"x" * 2000, "half"])
def test_a_journal_without_bounds_opens_and_gets_them(
    whole: tuple[Path, Where], content: bytes | str | None
) -> None:
    """As those of earlier versions. A damaged file claims as little as a missing one."""
    path, where = whole
    journal = small(path)
    journal.drop_before(3)
    journal.close()
    file = path / "journal" / "bounds"
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_bytes(file.read_bytes()[:20])

    assert check(path).ok
    assert contents(path) == without(where, 1, 2)

    os.unlink(segment_file(path, 3))
    refused(path)


def test_without_bounds_a_sidecar_shows_that_its_segment_was_removed(whole: tuple[Path, Where]) -> None:
    path, _ = whole
    (path / "journal" / "bounds").unlink()
    os.unlink(segment_file(path, 1))
    refused(path)
    assert damages(repair_journal(path)) == [(MISSING, 1)]


def test_bounds_are_written_in_turn_and_a_torn_slot_leaves_the_other(whole: tuple[Path, Where]) -> None:
    path, _ = whole
    directory = str(path / "journal")
    before = bounds.read(DiskIo(), directory)
    assert before is not None
    journal = small(path)
    journal.drop_before(3)
    journal.close()
    after = bounds.read(DiskIo(), directory)
    assert after is not None
    assert (after.oldest, after.newest, after.turn) == (3, before.newest, before.turn + 1)

    with open(path / "journal" / "bounds", "r+b") as file:
        file.seek(after.turn % 2 * bounds.SECTOR + 20)
        file.write(b"torn")

    assert bounds.read(DiskIo(), directory) == before


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_bounds_that_cannot_be_written_are_removed_and_segments_freed(
    whole: tuple[Path, Where], error: int
) -> None:
    path, where = whole
    journal = small(path)
    broken = journal._bounds._fd

    class Refusing(DiskIo):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
            if fd == broken:
                raise OSError(error, os.strerror(error))
            return super().pwrite(fd, data, offset)

    journal._bounds._io = Refusing()
    assert journal.drop_before(4) == 3
    journal.close()

    assert check(path).ok
    assert contents(path) == without(where, 1, 2, 3)
