"""An archive job as small as can be: decoded rows of sealed segments to Parquet, one manifest, no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openq.history.archive import Archive, ArchiveFile, Manifest
from openq.history.journal import MessageTracker
from openq.history.local import LocalHistory, ScanPiece
from openq.history.schema import TABLES, arrow_schema
from openq.history.selection import Selection
from openq.journal.format import make_location, segment_of


def archive_sealed(history: LocalHistory, most: int = 1000, group_rows: int = 1000) -> Manifest | None:
    """Every full segment that is not in the archive yet, up to `most`; None if there is none."""
    archive, journal = history.archive, history.journal
    assert journal is not None
    base = archive.latest()
    done = 0 if base is None else segment_of(base.through)
    refs = [ref for ref in journal.segments() if ref.sealed and ref.number >= done][:most]
    if not refs:
        return base
    lineage = MessageTracker() if base is None else MessageTracker.from_state(base.lineage)
    for ref in refs:
        lineage.context_for(ref, journal.index(ref.number))
    through = make_location(refs[-1].number + 1, 0)
    version = 1 if base is None else base.version + 1
    files = [] if base is None else list(base.files)
    for table in TABLES:
        pieces = [
            ScanPiece(
                *("segment", ref.rows, ref.size, f"{ref.salt:016x}"),
                start=make_location(ref.number, 0),
                stop=make_location(ref.number, ref.size),
            )
            for ref in refs
        ]
        batches = list(history.read_many(pieces, Selection(table=table)))
        found = pa.Table.from_batches(batches, arrow_schema(table))
        files += write_file(
            archive, found.sort_by([("queue", "ascending"), ("seq", "ascending")]), version, group_rows
        )
    first = make_location(refs[0].number, 0) if base is None else base.first
    made = Manifest(
        *(version, 0, f"{refs[0].salt:016x}", lineage.id_prefix, through, files, lineage.state()), first=first
    )
    archive.commit(made)
    return made


def write_file(archive: Archive, rows: pa.Table, version: int, group_rows: int = 1000) -> list[ArchiveFile]:
    if not rows.num_rows:
        return []
    table = "events" if "event" in rows.column_names else "messages"
    path = f"{table}/dt=2026-01-01/part-{version}-{rows.num_rows}.parquet"
    target = Path(archive.path, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target, compression="zstd", row_group_size=group_rows)
    return [archive.describe(table, path)]


def compact(archive: Archive) -> None:
    """All files of a table into one."""
    base = archive.latest()
    assert base is not None
    files = []
    for table in TABLES:
        batches = [
            batch
            for file in base.files
            if file.table == table
            for batch in archive.read_file(file, Selection(table=table))
        ]
        rows = pa.Table.from_batches(batches, arrow_schema(table))
        files += write_file(
            archive, rows.sort_by([("queue", "ascending"), ("seq", "ascending")]), base.version + 1
        )
    archive.commit(base.next(files=files))
