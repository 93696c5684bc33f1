"""Maintenance of an archive: compacts small files, erases messages, removes old versions.

Nothing is changed in place. New files are written, one manifest replaces the old ones by them, and readers of
an older version continue with its files until `vacuum` removes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import HistoryUnavailable, InvalidSetting
from ..history.archive import Archive, ArchiveFile, Manifest
from ..history.schema import arrow_schema, ddl
from ..history.selection import Selection
from .archive_files import (
    MIB,
    Numbers,
    RowChecksum,
    RowChecksums,
    WrittenFile,
    add_checksums,
    row_checksums,
    write_rows,
)
from .archive_tasks import Progress, archive_path, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 192 * MIB
MEMORY_BYTES = 512 * MIB  # of the rows of a new file before compression: a task holds them in memory
KEEP_S = 7 * 86_400.0
# Columns of events with texts of users. All others are numbers and names.
TEXT_COLUMNS = ("error_text", "error_signature", "group", "dedup_id")


def latest_of(archive: Archive) -> Manifest:
    manifest = archive.latest()
    if manifest is None:
        raise HistoryUnavailable(
            f"{archive.path} is not an archive yet: `openq pipeline archive run` creates the first version"
        )
    return manifest


# -- the entries of segments and spans in manifests -----------------------------------------------


def entries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The entries of segments, or of spans if the rows came from a server."""
    return manifest.spans if manifest.origin else manifest.segments


def key_of(entry: dict[str, Any]) -> int:
    """The key of an entry in `row_checksums`."""
    return int(entry["start"] if "start" in entry else entry["segment"])


def starts_of(manifest: Manifest) -> list[int]:
    """The starts of its spans, in order; none if it has segments."""
    return sorted(map(key_of, manifest.spans)) if manifest.origin else []


def entry_checksum(entry: dict[str, Any], table: str, erased: bool = False) -> RowChecksum:
    return RowChecksum.from_json((entry.get("erased") or {}).get(table) if erased else entry.get(table))


def with_erased(entries: Sequence[dict[str, Any]], erased: RowChecksums) -> list[dict[str, Any]]:
    """The entries of a manifest after these rows of `messages` were erased."""
    changed = []
    for entry in entries:
        gone = erased.get(key_of(entry))
        if gone is not None:
            before = entry_checksum(entry, "messages", erased=True)
            entry = {
                **entry,
                "messages": (entry_checksum(entry, "messages") - gone).to_json(),
                "erased": {"messages": (before + gone).to_json()},
            }
        changed.append(entry)
    return changed


# -- compacting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompactResult:
    version: int | None  # None: nothing changed
    before: int  # files that were (or would be) replaced
    after: int
    bytes: int  # of the new files


def compact(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    archive: str | None = None,
    target_bytes: int = TARGET_BYTES,
    memory_bytes: int = MEMORY_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CompactResult:
    """Merge the small files of each day, in a new version of the archive."""
    if target_bytes < 1 or memory_bytes < 1:
        raise InvalidSetting("target_bytes and memory_bytes must be 1 or more")
    place = Archive(archive_path(path, archive))
    latest_of(place)
    with place.locked():
        manifest = latest_of(place)
        groups = small_files(manifest.files, target_bytes, memory_bytes)
        total = sum(len(group) for group in groups)
        if dry_run or not groups:
            return CompactResult(None, total, len(groups), 0)
        tick = partial(_report, progress, [len(group) for group in groups])
        merged = run_tasks(spark, partial(_merge, place.path), groups, tick)
        replaced = {file.path for group in groups for file in group}
        files = [file for file in manifest.files if file.path not in replaced]
        made = [each.file for written in merged for each in written]
        version = place.commit(manifest.next(files=files + made))
    return CompactResult(version, total, len(made), sum(file.bytes for file in made))


def small_files(
    files: Sequence[ArchiveFile], target_bytes: int, memory_bytes: int
) -> list[list[ArchiveFile]]:
    """Groups of one table and day that fit into one file, in the order of the journal."""
    days: dict[str, list[ArchiveFile]] = {}
    for file in files:
        if file.bytes < target_bytes // 2:
            days.setdefault(os.path.dirname(file.path), []).append(file)
    groups = []
    for day in sorted(days):
        group: list[ArchiveFile] = []
        for file in sorted(days[day], key=lambda each: (each.first_position or 0, each.path)):
            filled = sum(each.bytes for each in group) + file.bytes > target_bytes
            if group and (filled or sum(map(_weight, group)) + _weight(file) > memory_bytes):
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def _weight(file: ArchiveFile) -> int:
    return file.raw_bytes or 8 * file.bytes


def _merge(archive: str, files: list[ArchiveFile]) -> list[WrittenFile]:
    place = Archive(archive)
    for file in files:
        place.verify(file)  # damage must not get a new, valid checksum
    table = files[0].table
    rows = (batch for file in files for batch in place.read_file(file, Selection(table)))
    return write_rows(archive, table, rows)


# -- erasing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EraseResult:
    version: int | None  # None: nothing changed
    messages: int  # erased (or found, in a dry run)
    events: int  # events whose texts were removed
    files: int  # files rewritten
    journal: int  # of the messages, those that are still in the journal too
    waiting: int | None  # matching messages that are not archived yet; None: unknown
    versions: list[int] = field(default_factory=list)  # older versions that hold them until `vacuum`


@dataclass(frozen=True)
class _MatchingMessages:
    """Messages to erase: parallel columns."""

    seqs: Numbers
    positions: Numbers
    ids: pa.Array
    first_us: int | None


def erase(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    archive: str | None = None,
    message_ids: Sequence[str] = (),
    queues: Sequence[str] = (),
    where: str | None = None,
    before_us: int | None = None,
    by: str = "",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EraseResult:
    """Erase the messages that match all conditions. `where` is a condition of Spark SQL.

    Their rows are removed, with bodies and attributes; their events stay, without texts. Older versions of
    the archive hold them until `vacuum`, and the journal until it drops their segments: the result reports
    both.
    """
    if not (message_ids or queues or where):
        raise InvalidSetting("what is to be erased? give message ids, queues or a condition")
    if where and spark is None:
        raise InvalidSetting("a condition is evaluated by Spark: give a session")
    selection = Selection("messages", tuple(queues), ids=tuple(message_ids), until_us=before_us)
    selection.validate()
    place = Archive(archive_path(path, archive))
    latest_of(place)
    with place.locked():
        manifest = latest_of(place)
        found = _find(spark, place, manifest, selection, where)
        in_journal, waiting = _in_journal(path, place, manifest, selection, where, found)
        if dry_run or not len(found.seqs):
            return EraseResult(None, len(found.seqs), 0, 0, in_journal, waiting)
        jobs = _rewrites(manifest, found)
        rewritten = run_tasks(
            spark,
            partial(_rewrite, place.path, starts_of(manifest)),
            jobs,
            partial(_report, progress, [1] * len(jobs)),
            sum(file.bytes for file, _ in jobs),
        )
        gone: RowChecksums = {}
        files = {file.path: [file] for file in manifest.files}
        events = changed = 0
        for (file, _), answer in zip(jobs, rewritten, strict=True):
            if answer is None:
                continue
            written, sums, touched = answer
            files[file.path] = [each.file for each in written]
            add_checksums(gone, sums)
            events += touched
            changed += 1
        count = sum(each.rows for each in gone.values())
        # The audit has no ids: they may be what must be forgotten.
        entry = {
            "time_us": time.time_ns() // 1000,
            "by": by,
            "queues": list(queues),
            "ids": len(message_ids),
            "where": bool(where),
            "before_us": before_us,
            "messages": count,
            "events": events,
            "from_version": manifest.version,
        }
        version = place.commit(
            manifest.next(
                files=[each for kept in files.values() for each in kept],
                erased=[*manifest.erased, entry],
                **{"spans" if manifest.origin else "segments": with_erased(entries_of(manifest), gone)},
            )
        )
    older = [each for each in place.versions() if each < version]
    return EraseResult(version, count, events, changed, in_journal, waiting, older)


_ID_COLUMNS = ("seq", "position", "message_id", "ts")


def _find(
    spark: SparkSession | None, place: Archive, manifest: Manifest, selection: Selection, where: str | None
) -> _MatchingMessages:
    files = manifest.pick(selection)
    if where is None:
        weight = sum(file.bytes for file in files)
        parts = run_tasks(spark, partial(_find_in, place.path, selection), files, weight=weight)
        rows = pa.concat_tables(parts) if parts else _empty_table()
    elif not files:
        rows = _empty_table()
    else:
        assert spark is not None
        rows = _find_where(spark, place, files, selection, where)
    ts = pc.min(rows["ts"].cast(pa.int64())).as_py()
    ids = rows["message_id"].combine_chunks()
    return _MatchingMessages(rows["seq"].to_numpy(), rows["position"].to_numpy(), ids, ts)


def _empty_table() -> pa.Table:
    return arrow_schema("messages", _ID_COLUMNS).empty_table()


def _find_in(archive: str, selection: Selection, file: ArchiveFile) -> pa.Table:
    narrow = Selection(
        "messages", selection.queues, ids=selection.ids, until_us=selection.until_us, columns=_ID_COLUMNS
    )
    return pa.Table.from_batches(Archive(archive).read_file(file, narrow), _empty_table().schema)


def _find_where(
    spark: SparkSession, place: Archive, files: Sequence[ArchiveFile], selection: Selection, where: str
) -> pa.Table:
    from pyspark.errors import AnalysisException, ParseException

    rows = spark.read.schema(ddl("messages")).parquet(*(f"file://{place.path_of(file)}" for file in files))
    try:
        kept = rows.where(where)
        if selection.ids:
            kept = kept.where(rows["message_id"].isin(list(selection.ids)))
        if selection.queues:
            names = {name for file in files for name in file.queues if selection.matches_queue(name)}
            kept = kept.where(rows["queue"].isin(sorted(names)))
        if selection.until_us is not None:
            kept = kept.where(f"unix_micros(ts) < {selection.until_us}")
        return kept.select(*_ID_COLUMNS).toArrow().cast(_empty_table().schema)
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().splitlines()[0][:300]
        raise InvalidSetting(f"the condition {where!r} cannot be evaluated: {first}") from None


def _rewrites(manifest: Manifest, found: _MatchingMessages) -> list[tuple[ArchiveFile, Any]]:
    """The files that may hold something to erase, each with what to erase."""
    seqs = np.sort(found.seqs)
    jobs: list[tuple[ArchiveFile, Any]] = []
    for file in manifest.files:
        if file.table == "messages":
            if file.first_seq is None or file.last_seq is None:
                continue
            begin, end = np.searchsorted(seqs, [file.first_seq, file.last_seq + 1])
            if end > begin:
                jobs.append((file, seqs[begin:end]))
        elif file.last_us is None or found.first_us is None or file.last_us >= found.first_us:
            jobs.append((file, found.ids))
    return jobs


def _rewrite(
    archive: str, starts: list[int], job: tuple[ArchiveFile, Any]
) -> tuple[list[WrittenFile], RowChecksums, int] | None:
    """The files that replace one, the checksums of the erased messages, and the number of changed events."""
    file, wanted = job
    place = Archive(archive)
    place.verify(file)
    if file.table == "messages":
        gone: RowChecksums = {}
        if not any(_is_in(batch["seq"], wanted).true_count for batch in _read_columns(place, file, ("seq",))):
            return None
        return write_rows(archive, file.table, _without_messages(place, file, wanted, gone, starts)), gone, 0
    words = ("message_id", *TEXT_COLUMNS)
    touched = sum(_has_texts(batch, wanted).true_count for batch in _read_columns(place, file, words))
    if not touched:
        return None
    return write_rows(archive, file.table, _without_texts(place, file, wanted)), {}, touched


def _read_columns(place: Archive, file: ArchiveFile, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    return place.read_file(file, Selection(file.table, columns=columns))


def _is_in(column: pa.Array, values: Any) -> pa.BooleanArray:
    return pc.is_in(column, pa.array(values))


def _without_messages(
    place: Archive, file: ArchiveFile, seqs: Numbers, gone: RowChecksums, starts: list[int]
) -> Iterator[pa.RecordBatch]:
    for batch in place.read_file(file, Selection(file.table)):
        mask = _is_in(batch["seq"], seqs)
        add_checksums(gone, row_checksums(file.table, batch.filter(mask), starts))
        yield batch.filter(pc.invert(mask))


def _has_texts(batch: pa.RecordBatch, ids: pa.Array) -> pa.BooleanArray:
    """Events of these messages that still have texts."""
    words = pc.is_valid(batch[TEXT_COLUMNS[0]])
    for name in TEXT_COLUMNS[1:]:
        words = pc.or_(words, pc.is_valid(batch[name]))
    return pc.and_(pc.is_in(batch["message_id"], ids), words)


def _without_texts(place: Archive, file: ArchiveFile, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in place.read_file(file, Selection(file.table)):
        mask = _has_texts(batch, ids)
        columns = [
            pc.if_else(mask, pa.scalar(None, column.type), column) if name in TEXT_COLUMNS else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _in_journal(
    path: str | None,
    place: Archive,
    manifest: Manifest,
    selection: Selection,
    where: str | None,
    found: _MatchingMessages,
) -> tuple[int, int | None]:
    """How many of the messages are in the journal too, and how many more only there."""
    if path is None or manifest.origin:
        return 0, None
    from ..history.journal import JournalFiles
    from ..history.local import LocalHistory

    segments = JournalFiles(path).segments()
    oldest = segments[0].number << 32 if segments else manifest.through
    both = int((found.positions >= oldest).sum())
    if where is not None:
        return both, None
    history = LocalHistory(path, place.path)
    narrow = Selection(
        "messages",
        selection.queues,
        ids=selection.ids,
        until_us=selection.until_us,
        first_position=manifest.through,
        columns=("seq",),
    )
    snapshot = history.snapshot(narrow)
    return both, sum(batch.num_rows for piece in snapshot.pieces for batch in history.read(piece, narrow))


# -- versions ------------------------------------------------------------------------------------


def vacuum(
    *,
    path: str | None = None,
    archive: str | None = None,
    keep_versions: int = 1,
    keep_s: float = KEEP_S,
    dry_run: bool = False,
) -> list[str]:
    """Remove old versions, and the files that no other version names. Returns paths relative to the archive.

    `keep_s=0` removes all versions but the newest: erased messages are gone then.
    """
    place = Archive(archive_path(path, archive))
    if not os.path.isdir(place.path):
        raise HistoryUnavailable(f"{place.path}: there is no archive")
    with place.locked():
        # With the lock held, files that no version names are left from a killed job.
        return place.vacuum(keep_versions, keep_s, orphan_s=0.0, dry_run=dry_run)


def _report(progress: Progress | None, weights: list[int], done: int) -> None:
    if progress is not None:
        progress(sum(weights[:done]), sum(weights))
