"""Verifies an archive: every file intact, every row once, and equal to the journal where that still has it.

A manifest has checksums of the rows of each segment, or of each span of a server's history. Those of the
files must be the same, so a row that is lost, doubled or changed is found without comparing files with each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import HistoryUnavailable, JournalDamaged, OpenQError
from ..history.archive import Archive, ArchiveDamaged, ArchiveFile, Manifest
from ..history.journal import JournalFiles, SegmentContext, SegmentRef, read_segment
from ..history.schema import TABLES
from ..history.selection import Selection
from .archive_files import CHECKSUM_COLUMNS, RowChecksum, RowChecksums, add_checksums, row_checksums
from .archive_maintenance import entries_of, entry_checksum, key_of, latest_of, starts_of
from .archive_tasks import Progress, archive_path, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BOUNDS = {"seq": ("first_seq", "last_seq"), "position": ("first_position", "last_position")}
_WITH_STATISTICS = ("queue", "seq", "ts", "position")


@dataclass(frozen=True)
class ArchiveFinding:
    """One problem: where, and what."""

    where: str
    what: str


@dataclass(frozen=True)
class VerifyResult:
    version: int
    files: int
    rows: dict[str, int]
    segments: int
    compared: int  # segments that are still in the journal, and were compared with it
    findings: list[ArchiveFinding] = field(default_factory=list)
    spans: int = 0  # if the rows came from a server

    @property
    def ok(self) -> bool:
        return not self.findings


def verify(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    archive: str | None = None,
    as_of: int | datetime | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Read everything, change nothing. With `path`, a data directory, also compare with its journal, unless
    the rows came from a server."""
    place = Archive(archive_path(path, archive))
    manifest = latest_of(place) if as_of is None else place.at(as_of)
    findings: list[ArchiveFinding] = []
    files = manifest.files
    refs = _archived_segments(path, manifest, findings) if path is not None and not manifest.origin else []
    total = len(files) + len(refs)

    def tick(before: int, done: int) -> None:
        if progress is not None:
            progress(before + done, total)

    sums: dict[str, RowChecksums] = {table: {} for table in TABLES}
    broken = False
    looked = run_tasks(
        spark,
        partial(_verify_file, place.path, starts_of(manifest)),
        files,
        partial(tick, 0),
        sum(file.bytes for file in files),
    )
    for file, (found, each) in zip(files, looked, strict=True):
        findings += found
        broken = broken or each is None
        add_checksums(sums[file.table], each or {})
    doubles = len(files) - len({file.path for file in files})
    if doubles:
        findings.append(ArchiveFinding(f"version {manifest.version}", f"{doubles} files are named twice"))
    # If a file cannot be read, its segments differ too: that was reported above.
    findings += [] if broken else _compare(manifest, sums)
    limit = manifest.through
    again = run_tasks(
        spark,
        partial(journal_sums, limit),
        refs,
        partial(tick, len(files)),
        sum(ref.size for ref in refs),
    )
    compared = 0
    entries = {entry["segment"]: entry for entry in manifest.segments}
    for ref, answer in zip(refs, again, strict=True):
        if isinstance(answer, str):
            findings.append(ArchiveFinding(f"segment {ref.number}", answer))
        elif answer is not None:
            compared += 1
            findings += _compare_journal(entries.get(ref.number, {}), ref.number, answer)
    rows = {table: manifest.rows(table) for table in TABLES}
    segments, spans = len(manifest.segments), len(manifest.spans)
    return VerifyResult(manifest.version, len(files), rows, segments, compared, findings, spans)


# -- files ---------------------------------------------------------------------------------------


def _verify_file(
    archive: str, starts: list[int], file: ArchiveFile
) -> tuple[list[ArchiveFinding], RowChecksums | None]:
    place = Archive(archive)
    try:
        place.verify(file)
        return _rows_of(place, file, starts)
    except OpenQError as error:
        detail = error.detail if isinstance(error, ArchiveDamaged) else str(error)
        return [ArchiveFinding(file.path, detail)], None
    except (pa.ArrowException, OSError) as error:
        return [
            ArchiveFinding(file.path, f"it cannot be read: {str(error).partition(chr(10))[0][:200]}")
        ], None


def _rows_of(
    place: Archive, file: ArchiveFile, starts: list[int]
) -> tuple[list[ArchiveFinding], RowChecksums]:
    findings: list[ArchiveFinding] = []
    sums: RowChecksums = {}
    last: tuple[str, int] | None = None
    bounds: dict[str, list[int]] = {name: [] for name in (*_BOUNDS, "ts")}
    queues: set[str] = set()
    sorted_so_far = True
    names = list(dict.fromkeys([*CHECKSUM_COLUMNS[file.table], "queue", "ts"]))
    with pq.ParquetFile(place.path_of(file), page_checksum_verification=True) as opened:
        for group in range(opened.num_row_groups):
            rows = opened.read_row_group(group, columns=names).combine_chunks()
            add_checksums(sums, row_checksums(file.table, rows, starts))
            queues.update(pc.unique(rows["queue"]).drop_null().to_pylist())
            for name, seen in bounds.items():
                found = pc.min_max(rows[name].cast(pa.int64())).as_py()
                seen += [each for each in found.values() if each is not None]
            if not _has_statistics(opened.metadata.row_group(group)):
                findings.append(ArchiveFinding(file.path, f"row group {group} has no statistics"))
            ordered, last = _is_sorted(rows, last)
            sorted_so_far = sorted_so_far and ordered
    if not sorted_so_far:
        findings.append(ArchiveFinding(file.path, "its rows are not in the order of queue and seq"))
    for name, (first, final) in {**_BOUNDS, "ts": ("first_us", "last_us")}.items():
        stated = (getattr(file, first), getattr(file, final))
        seen = bounds[name]
        there = (min(seen), max(seen)) if seen else (None, None)
        if stated != there:
            findings.append(
                ArchiveFinding(file.path, f"{name} goes from {there[0]} to {there[1]}, not {stated}")
            )
    if queues != set(file.queues):
        findings.append(ArchiveFinding(file.path, "it holds other queues than the manifest says"))
    return findings, sums


def _has_statistics(group: Any) -> bool:
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    return all(columns[name].is_stats_set for name in _WITH_STATISTICS)


def _is_sorted(rows: pa.Table, last: tuple[str, int] | None) -> tuple[bool, tuple[str, int] | None]:
    """Whether the rows are sorted and follow `last`; and the last of them."""
    if not rows.num_rows:
        return True, last
    queues = rows["queue"].combine_chunks().fill_null("")
    seqs = rows["seq"].combine_chunks().fill_null(0)
    first = (queues[0].as_py(), seqs[0].as_py())
    ordered = last is None or last <= first
    rising = pc.greater(queues[1:], queues[:-1])
    level = pc.and_(pc.equal(queues[1:], queues[:-1]), pc.greater_equal(seqs[1:], seqs[:-1]))
    ordered = ordered and pc.all(pc.or_(rising, level), min_count=0).as_py()
    return ordered, (queues[-1].as_py(), seqs[-1].as_py())


# -- segments ------------------------------------------------------------------------------------


def _compare(manifest: Manifest, sums: dict[str, RowChecksums]) -> list[ArchiveFinding]:
    findings = []
    entries = {key_of(entry): entry for entry in entries_of(manifest)}
    for number in sorted(set(entries) | {number for each in sums.values() for number in each}):
        for table in TABLES:
            want = entry_checksum(entries.get(number, {}), table)
            have = sums[table].get(number, RowChecksum())
            if have != want:
                where = _name(entries.get(number), number, manifest)
                findings.append(ArchiveFinding(where, _difference(table, have, want, "the manifest")))
    if manifest.origin:
        return findings + _span_gaps(sorted(manifest.spans, key=key_of), manifest.through)
    numbers = sorted(entries)
    for before, after in pairwise(numbers):
        if after != before + 1:
            findings.append(
                ArchiveFinding(f"segment {before + 1}", f"no rows of segments {before + 1} to {after - 1}")
            )
    return findings


def _name(entry: dict[str, Any] | None, number: int, manifest: Manifest) -> str:
    if not manifest.origin:
        return f"segment {number}"
    return "outside of all spans" if entry is None else f"positions {entry['start']} to {entry['stop']}"


def _span_gaps(spans: Sequence[dict[str, Any]], through: int) -> list[ArchiveFinding]:
    """Positions that no span covers. Accepted gaps are inside spans."""
    stops = [int(entry["stop"]) for entry in spans]
    starts = [*(int(entry["start"]) for entry in spans[1:]), through] if spans else []
    return [
        ArchiveFinding(f"position {stop}", f"no span from {stop} to {start}")
        for stop, start in zip(stops, starts, strict=True)
        if stop != start
    ]


def _difference(table: str, have: RowChecksum, want: RowChecksum, who: str) -> str:
    if have.rows != want.rows:
        return f"{table} has {have.rows} rows, {who} says {want.rows}"
    return f"{table} has other rows than {who} says"


def _archived_segments(path: str, manifest: Manifest, findings: list[ArchiveFinding]) -> list[SegmentRef]:
    """The archived segments that the journal still has."""
    refs = JournalFiles(path).segments()
    if not refs:
        return []
    if f"{refs[0].salt:016x}" != manifest.journal:
        findings.append(ArchiveFinding("journal", f"the archive was not made from the journal in {path}"))
        return []
    if refs[0].number << 32 > manifest.through:
        first, last = manifest.through >> 32, refs[0].number - 1
        findings.append(
            ArchiveFinding(
                "journal",
                f"segments {first} to {last} are in neither journal nor archive: their rows are lost",
            )
        )
    return [ref for ref in refs if manifest.first <= ref.number << 32 < manifest.through]


def journal_sums(limit: int, ref: SegmentRef) -> dict[str, RowChecksum] | str | None:
    """The checksums of the rows of a segment before `limit` (a position). None: it is gone; a text:
    damage."""
    found = {}
    try:
        for table in TABLES:
            selection = Selection(table, columns=CHECKSUM_COLUMNS[table], end_position=limit)
            sums: RowChecksums = {}
            # Without names, ids or counts from other segments: the columns of a checksum do not need them.
            for batch in read_segment(ref, selection, context=SegmentContext()):
                add_checksums(sums, row_checksums(table, batch))
            found[table] = sums.get(ref.number, RowChecksum())
    except HistoryUnavailable:
        return None
    except JournalDamaged as error:
        return str(error)
    return found


def _compare_journal(
    entry: dict[str, Any], number: int, journal: dict[str, RowChecksum]
) -> list[ArchiveFinding]:
    findings = []
    for table in TABLES:
        have = entry_checksum(entry, table) + entry_checksum(entry, table, erased=True)
        if have != journal[table]:
            findings.append(
                ArchiveFinding(f"segment {number}", _difference(table, have, journal[table], "the journal"))
            )
    return findings
