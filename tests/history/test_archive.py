"""The archive: versions are committed whole and once, files are pruned, read and proved."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.archive import Archive, ArchiveConflict, ArchiveDamaged, ArchiveFile, Manifest
from openq.history.schema import arrow_schema
from openq.history.selection import Selection

SECOND = 1_000_000


def rows(first: int, count: int, queue: str = "a", size: int = 10) -> pa.Table:
    seqs = range(first, first + count)
    known: dict[str, list[Any]] = {
        "position": [1 << 32 | seq * 100 for seq in seqs],
        "seq": list(seqs),
        "ts": [seq * SECOND for seq in seqs],
        "queue": [queue] * count,
        "message_id": [f"id-{seq}" for seq in seqs],
        "size": [size] * count,
        "body": [b"%0*d" % (size, seq) for seq in seqs],
    }
    schema = arrow_schema("messages")
    return pa.table([pa.array(known.get(f.name, [None] * count), f.type) for f in schema], schema=schema)


def write(archive: Archive, name: str, table: pa.Table, group_rows: int = 100) -> ArchiveFile:
    path = f"messages/dt=1970-01-01/{name}.parquet"
    target = Path(archive.path, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, target, compression="zstd", row_group_size=group_rows)
    return archive.describe("messages", path)


def manifest(version: int = 1, files: list[ArchiveFile] | None = None, **more: Any) -> Manifest:
    return Manifest(version, 0, "00ff", "p", more.pop("through", 1 << 33), files or [], **more)


def seqs(archive: Archive, file: ArchiveFile, **wanted: Any) -> list[int]:
    selection = Selection(columns=("seq",), **wanted)
    return [seq for batch in archive.read_file(file, selection) for seq in batch.column(0).to_pylist()]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


def test_a_missing_archive_has_no_versions(archive: Archive) -> None:
    assert archive.latest() is None
    assert archive.versions() == []
    assert archive.vacuum() == []
    with pytest.raises(HistoryUnavailable, match="has no version 3; there are none"):
        archive.at(3)


def test_a_committed_manifest_is_read_back_unchanged(archive: Archive) -> None:
    file = write(archive, "one", rows(1, 250))
    first = manifest(files=[file], lineage={"x": [1]}, erased=[{"id": "é"}], segments=[{"number": 1}])

    assert archive.commit(first) == 1
    read = Archive(archive.path).latest()

    assert read is not None
    assert read.created_us > 0
    assert (read.files, read.lineage, read.erased, read.segments) == (
        first.files,
        first.lineage,
        first.erased,
        first.segments,
    )
    assert file == ArchiveFile(
        *("messages", file.path, 250, file.bytes, file.crc, 1, 250, 1 << 32 | 100, 1 << 32 | 25_000),
        *(SECOND, 250 * SECOND, ["a"], file.raw_bytes),
    )
    archive.verify(file)


def test_concurrent_commits_of_a_version_conflict(archive: Archive) -> None:
    archive.commit(manifest())
    outcomes: list[object] = []
    together = threading.Barrier(8)

    def commit(number: int) -> None:
        mine = Archive(archive.path)
        following = mine.at(1).next(id_prefix=f"from-{number}")
        together.wait()
        try:
            mine.commit(following)
            outcomes.append(number)
        except ArchiveConflict as error:
            outcomes.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    [winner] = [each for each in outcomes if isinstance(each, int)]
    assert len(outcomes) == 8
    assert archive.at(2).id_prefix == f"from-{winner}"
    assert sorted(os.listdir(os.path.join(archive.path, "manifests"))) == [f"{n:020d}.json" for n in (1, 2)]
    with pytest.raises(InvalidSetting, match="cannot follow"):
        archive.commit(manifest(9))


def test_an_older_version_is_found_by_number_and_by_time(archive: Archive) -> None:
    for version in (1, 2, 3):
        archive.commit(manifest(version))
    second = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=archive.at(2).created_us)

    assert archive.at(1).version == 1
    assert archive.at(second).version == 2
    assert archive.at(second.replace(tzinfo=None) + timedelta(days=1)).version == 3
    with pytest.raises(HistoryUnavailable, match="as old as"):
        archive.at(datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidSetting, match="as_of"):
        archive.at(-1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a manifest"),
        (b"[]", "not a manifest"),
        (b"[" * 100_000, "not a manifest"),
        (b'{"manifest": {}, "crc": 1}', "checksum"),
        (b"\xff\xfe", "not a manifest"),
    ],
)
def test_an_invalid_manifest_is_reported_with_its_file(archive: Archive, data: bytes, says: str) -> None:
    archive.commit(manifest())
    path = Path(archive.path, "manifests", f"{2:020d}.json")
    path.write_bytes(data)

    with pytest.raises(ArchiveDamaged, match=says) as raised:
        archive.latest()
    assert str(path) in str(raised.value)


def test_a_changed_manifest_fails_its_checksum(archive: Archive) -> None:
    archive.commit(manifest(files=[write(archive, "one", rows(1, 10))]))
    path = Path(archive.path, "manifests", f"{1:020d}.json")
    path.write_bytes(path.read_bytes().replace(b'"rows":10', b'"rows":11'))

    with pytest.raises(ArchiveDamaged, match="checksum"):
        Archive(archive.path).latest()

    path.rename(path.with_name(f"{2:020d}.json"))
    path.with_name(f"{2:020d}.json").write_bytes(manifest().to_bytes())
    with pytest.raises(ArchiveDamaged, match="is version 1"):
        Archive(archive.path).latest()


@pytest.mark.parametrize(
    "path",
    [
        "../x.parquet",
        "messages/../../x.parquet",
        "/etc/x.parquet",
        "messages//x.parquet",
        "messages/./x.parquet",
        "messages/x.txt",
        "messages/a\\b.parquet",
        "messages/a\0.parquet",
        "events/x.parquet",
        "x.parquet",
        "",
    ],
)
def test_a_path_outside_its_table_is_refused(path: str) -> None:
    with pytest.raises(InvalidSetting, match="not a file of the table"):
        ArchiveFile("messages", path, 0, 0, 0, None, None, None, None, None, None, [])


def test_a_symlink_out_of_the_archive_is_refused(archive: Archive, tmp_path: Path) -> None:
    write(archive, "one", rows(1, 10))
    outside = tmp_path / "outside.parquet"
    pq.write_table(rows(1, 10), outside)
    os.symlink(outside, Path(archive.path, "messages", "link.parquet"))

    with pytest.raises(InvalidSetting, match="leads out of the archive"):
        archive.open("messages/link.parquet")


def test_files_that_cannot_match_are_skipped(archive: Archive) -> None:
    files = [
        write(archive, f"f{at}", rows(at, 100, queue)) for at, queue in ((1, "a"), (101, "b"), (201, "c"))
    ]
    made = manifest(files=files)

    def picked(**wanted: Any) -> list[int]:
        return [files.index(file) for file in made.pick(Selection(**wanted))]

    assert picked() == [0, 1, 2]
    assert picked(table="events") == []
    assert picked(queues=("b",)) == [1]
    assert picked(queues=("[ab]", "?")) == [0, 1, 2]
    assert picked(since_us=101 * SECOND, until_us=201 * SECOND) == [1]
    assert picked(until_us=101 * SECOND) == [0]
    assert picked(first_seq=100, last_seq=101) == [0, 1]
    assert picked(first_position=1 << 32 | 20_100) == [2]
    assert picked(end_position=1 << 32 | 10_100) == [0]
    assert made.rows("messages") == 300


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"first_seq": 150, "last_seq": 350},
        {"since_us": 499 * SECOND},
        {"until_us": 3 * SECOND},
        {"queues": ("b",)},
        {"queues": ("*",), "first_seq": 599},
        {"ids": ("id-7", "id-507")},
        {"first_position": 1 << 32 | 30_000, "end_position": 1 << 32 | 30_300},
        {"first_seq": 10_000},
    ],
)
def test_pruned_reading_equals_filtering_all(archive: Archive, wanted: dict[str, Any]) -> None:
    table = pa.concat_tables([rows(1, 300), rows(301, 300, "b")])
    file = write(archive, "one", table)
    everything = Selection(columns=("seq",), **wanted)
    expected = [seq for batch in table.to_batches() for seq in everything.keep(batch).column(0).to_pylist()]

    assert seqs(archive, file, **wanted) == expected
    assert expected or wanted == {"first_seq": 10_000}


def test_equal_bodies_do_not_make_huge_batches(archive: Archive) -> None:
    table = rows(1, 64, size=1 << 20)
    body = pa.array([b"x" * (1 << 20)] * 64, pa.binary())
    table = table.set_column(table.schema.get_field_index("body"), table.schema.field("body"), body)
    file = write(archive, "one", table, 64)
    assert file.bytes < 8 << 20 < file.raw_bytes

    sizes = [batch.nbytes for batch in archive.read_file(file, Selection())]

    assert len(sizes) >= 4
    assert max(sizes) < 20 << 20


def test_columns_that_an_older_file_lacks_are_null(archive: Archive) -> None:
    table = rows(1, 5).drop_columns(["batch", "headers"])
    file = write(archive, "one", table)

    [batch] = archive.read_file(file, Selection())

    assert batch.schema.equals(arrow_schema("messages"))
    assert batch.column("batch").null_count == batch.column("headers").null_count == 5


@pytest.mark.parametrize("version", [None, b"2"])
def test_a_file_of_another_kind_is_refused(archive: Archive, version: bytes | None) -> None:
    table = rows(1, 5).replace_schema_metadata({b"openq.columns": version} if version else {})

    with pytest.raises(
        InvalidSetting, match=r"version '2'.*newer OpenQ" if version else "not hold columns of OpenQ"
    ):
        write(archive, "one", table)


def test_damage_in_a_file_is_one_clear_error(archive: Archive) -> None:
    file = write(archive, "one", rows(1, 1000))
    path = Path(archive.path, file.path)
    whole = path.read_bytes()
    for at in range(4, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(ArchiveDamaged, match=r"one\.parquet"):
            archive.verify(file)
        with suppress(ArchiveDamaged):  # or it is not noticed; but nothing else is raised
            list(archive.read_file(file, Selection()))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveDamaged, match="not an intact Parquet"):
        list(archive.read_file(file, Selection()))
    path.unlink()
    with pytest.raises(HistoryUnavailable, match="vacuumed"):
        list(archive.read_file(file, Selection()))
    with pytest.raises(ArchiveDamaged, match="missing"):
        archive.verify(file)


def test_vacuum_removes_old_versions_and_their_files(archive: Archive) -> None:
    one, two = write(archive, "one", rows(1, 10)), write(archive, "two", rows(11, 10))
    orphan = write(archive, "orphan", rows(1, 10))
    both = write(archive, "both", rows(1, 20))
    archive.commit(manifest(1, [one]))
    archive.commit(manifest(2, [one, two]))
    archive.commit(manifest(3, [both]))

    assert archive.vacuum(1, keep_s=3600, orphan_s=3600) == []
    assert archive.vacuum(100, orphan_s=3600) == []  # more than there are
    assert archive.vacuum(1, orphan_s=3600) == [f"manifests/{n:020d}.json" for n in (1, 2)]
    would = archive.vacuum(1, orphan_s=0, dry_run=True)
    assert archive.vacuum(1, orphan_s=0) == would == [one.path, orphan.path, two.path]

    assert archive.versions() == [3]
    assert seqs(archive, both) == list(range(1, 21))
    with pytest.raises(HistoryUnavailable, match="has no version 2; there are 3 to 3"):
        archive.at(2)
    assert archive.commit(archive.at(3).next()) == 4


def test_columns_that_are_null_in_some_row_groups_are_read(archive: Archive) -> None:
    table = rows(1, 300)
    groups = [None] * 100 + [f"group-{seq}" for seq in range(100)] + [None] * 100
    names = table.schema.names
    table = table.set_column(names.index("group"), table.schema.field("group"), pa.array(groups, pa.string()))
    empty = [None if seq % 2 else [] for seq in range(300)]
    headers = table.schema.field("headers")
    table = table.set_column(names.index("headers"), headers, pa.array(empty, headers.type))
    file = write(archive, "one", table)

    read = pa.Table.from_batches(archive.read_file(file, Selection()))
    only_nulls = pa.Table.from_batches(archive.read_file(file, Selection(columns=("dedup_id",))))

    assert read.equals(table)
    assert only_nulls.column("dedup_id").null_count == 300


def test_a_recreated_archive_is_not_read_from_the_cache(archive: Archive) -> None:
    archive.commit(manifest(files=[write(archive, "old", rows(1, 10))]))
    before = archive.latest()
    assert before is not None
    assert archive.latest() is before

    shutil.rmtree(archive.path)
    fresh = Archive(archive.path)
    fresh.commit(manifest(files=[write(fresh, "new", rows(1, 20))]))
    after = archive.latest()

    assert after is not None
    assert [each.rows for each in after.files] == [20]
