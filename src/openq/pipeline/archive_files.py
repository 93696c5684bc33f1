"""Writes rows of the history as Parquet files of the archive: sorted, read back, with checksums.

Runs in tasks of Spark, but does not depend on it. A file gets its final name only when it is durable and
every row was read back equal. Names are unique, so files that a killed task leaves do no harm.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openq.history.archive import SUFFIX, ArchiveDamaged, ArchiveFile, checksum, sync_path
from openq.history.schema import arrow_schema

MIB = 1 << 20
GROUP_ROWS = 128 << 10
GROUP_BYTES = 24 * MIB  # of a row group before compression: small enough to skip, large enough to read fast
_DAY_US = 86_400_000_000
UNFINISHED_SUFFIX = ".writing"

# Columns with repeated values. Bodies and ids do not repeat: a dictionary of them would be useless.
_DICTIONARY_COLUMNS = {
    "messages": [
        *("queue", "type", "group", "content_type", "producer", "exchange", "routing_key", "batch"),
        *("priority", "replay_count", "size", "delay_us"),
    ],
    "events": [
        *("queue", "event", "consumer", "protocol", "error_type", "error_signature", "error_text"),
        *(
            "dlq_source",
            "to_queue",
            "batch",
            "group",
            "priority",
            "size",
            "receive_count",
            "item",
            "delay_us",
        ),
    ],
}

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


# -- checksums of the rows of a segment --------------------------------------------------


@dataclass(frozen=True)
class RowChecksum:
    """Of the rows of one segment, in any order: their number, the sum of their sequence numbers and of
    digests."""

    rows: int = 0
    seqs: int = 0
    digest: int = 0

    def __add__(self, other: RowChecksum) -> RowChecksum:
        return RowChecksum(
            self.rows + other.rows, (self.seqs + other.seqs) & _WORD, (self.digest + other.digest) & _WORD
        )

    def __sub__(self, other: RowChecksum) -> RowChecksum:
        return RowChecksum(
            self.rows - other.rows, (self.seqs - other.seqs) & _WORD, (self.digest - other.digest) & _WORD
        )

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "seqs": f"{self.seqs:016x}", "digest": f"{self.digest:016x}"}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> RowChecksum:
        if not value:
            return cls()
        return cls(int(value["rows"]), int(value["seqs"], 16), int(value["digest"], 16))


RowChecksums = dict[int, RowChecksum]

# Columns of a digest: those that a segment has by itself, and that erasing leaves in events.
CHECKSUM_COLUMNS = {
    "messages": ("position", "seq", "size", "body_sha256"),
    "events": ("position", "item", "seq", "event"),
}


def add_checksums(into: RowChecksums, more: RowChecksums) -> None:
    for segment, each in more.items():
        into[segment] = into.get(segment, RowChecksum()) + each


def row_checksums(table: str, data: pa.Table | pa.RecordBatch, starts: Sequence[int] = ()) -> RowChecksums:
    """One checksum for each segment; with `starts`, the first positions of spans in order, one for each span,
    by its start. Needs the columns of `CHECKSUM_COLUMNS`."""
    if not data.num_rows:
        return {}
    positions = numbers(data.column("position"))
    seqs = numbers(data.column("seq")).astype(np.uint64)
    mixed = seqs
    if table == "messages":
        words = [numbers(data.column("size")).astype(np.uint64), *_hash_words(data.column("body_sha256"))]
    else:
        words = [
            positions.astype(np.uint64),
            numbers(data.column("item")).astype(np.uint64),
            _text_words(data.column("event")),
        ]
    for word in words:
        mixed = (mixed ^ word) * _MIX
        mixed ^= mixed >> np.uint64(29)
    segments = _spans_of(positions, starts) if starts else positions >> 32
    order = np.argsort(segments, kind="stable")
    found, starts, counts = np.unique(segments[order], return_index=True, return_counts=True)
    all_seqs = np.add.reduceat(seqs[order], starts)
    all_digests = np.add.reduceat(mixed[order], starts)
    return {
        int(segment): RowChecksum(int(rows), int(seq), int(digest))
        for segment, rows, seq, digest in zip(found, counts, all_seqs, all_digests, strict=True)
    }


def _spans_of(positions: Numbers, starts: Sequence[int]) -> Numbers:
    """The start of the span that each position is in; -1 before the first."""
    return np.array([-1, *starts], dtype=np.int64)[np.searchsorted(starts, positions, side="right")]


def numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """A column of integers or times; null counts as 0."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _hash_words(column: pa.ChunkedArray | pa.Array) -> list[Words]:
    """Hashes of 32 bytes as four columns of numbers."""
    fixed = column.fill_null(bytes(32)).cast(pa.binary(32))
    if isinstance(fixed, pa.ChunkedArray):
        fixed = fixed.combine_chunks()
    data = np.frombuffer(fixed.buffers()[1], dtype="<u8", count=4 * len(fixed), offset=32 * fixed.offset)
    return [data[part::4] for part in range(4)]


def _text_words(column: pa.ChunkedArray | pa.Array) -> Words:
    """A number for each text, the same in every process."""
    codes, texts = _encoded(column)
    known = np.array([crc32((text or "").encode()) for text in texts] or [0], dtype=np.uint64)
    return known[codes]


def _encoded(column: pa.ChunkedArray | pa.Array) -> tuple[Numbers, list[str | None]]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode")
    return numbers(encoded.indices), encoded.dictionary.to_pylist()


# -- order ---------------------------------------------------------------------------------------


def sorted_by_day(table: str, data: pa.Table) -> list[tuple[str, pa.Table]]:
    """The rows by day (UTC), each day by queue and sequence number; events of a message in their order."""
    batch = data.combine_chunks()
    days = numbers(batch.column("ts")) // _DAY_US
    codes, texts = _encoded(batch.column("queue"))
    ranks = np.empty(len(texts), dtype=np.int64)
    ranks[sorted(range(len(texts)), key=lambda code: texts[code] or "")] = np.arange(len(texts))
    queues = ranks[codes] if len(texts) else codes
    first_day, last_day = int(days.min()), int(days.max())
    places = (days - first_day) * max(len(texts), 1) + queues
    seqs = numbers(batch.column("seq"))
    order = _order(table, batch, places, seqs)
    if order is not None:
        batch = batch.take(pa.array(order))
        days = days[order]
    found: list[tuple[str, pa.Table]] = []
    for day in range(first_day, last_day + 1):
        begin, end = np.searchsorted(days, [day, day + 1])
        if end > begin:
            found.append((_day_text(day), batch.slice(int(begin), int(end - begin))))
    return found


def _order(table: str, data: pa.Table, places: Numbers, seqs: Numbers) -> Numbers | None:
    """The permutation that sorts the rows; None if they are sorted. They nearly are: a journal is in time
    order."""
    positions = numbers(data.column("position"))
    together = bool((places[1:] >= places[:-1]).all())
    if not bool((positions[1:] >= positions[:-1]).all()):
        keys = [seqs, places]
        if table == "events":
            keys = [numbers(data.column("item")), positions, *keys]
        return np.lexsort(keys)
    if together:
        order = None
    elif int(places.max()) < 1 << 16:
        order = np.argsort(places.astype(np.uint16), kind="stable")  # a radix sort
    else:
        order = np.argsort(places, kind="stable")
    near, ordered = (places, seqs) if order is None else (places[order], seqs[order])
    if bool(((ordered[1:] >= ordered[:-1]) | (near[1:] != near[:-1])).all()):
        return order
    return np.lexsort([seqs, places])


def _day_text(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


# -- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenFile:
    """A file that is durable and checked; no manifest names it yet."""

    file: ArchiveFile
    sums: RowChecksums

    def to_json(self) -> dict[str, Any]:
        return {
            "file": asdict(self.file),
            "sums": {str(segment): each.to_json() for segment, each in self.sums.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WrittenFile:
        sums = {int(segment): RowChecksum.from_json(each) for segment, each in value["sums"].items()}
        return cls(ArchiveFile(**value["file"]), sums)


def write_rows(archive: str, table: str, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
    """Write the rows as one file per day. They are held in memory: the caller limits their number."""
    schema = arrow_schema(table)
    data = pa.Table.from_batches([batch for batch in batches if batch.num_rows], schema)
    if not data.num_rows:
        return []
    # Before sorting and writing, so that a loss there is noticed.
    whole = row_checksums(table, data)
    written: list[WrittenFile] = []
    parts = sorted_by_day(table, data)
    del data
    try:
        for day, part in parts:
            written.append(_write(archive, table, day, part))
        total: RowChecksums = {}
        for each in written:
            add_checksums(total, each.sums)
        if total != whole:
            raise ArchiveDamaged(archive, f"rows of {table} were lost while they were sorted")
    except BaseException:
        for each in written:
            os.unlink(os.path.join(archive, each.file.path))
        raise
    return written


def _write(archive: str, table: str, day: str, data: pa.Table) -> WrittenFile:
    folder = f"{table}/dt={day}"
    directory = os.path.join(archive, folder)
    os.makedirs(directory, exist_ok=True)
    first = pc.min(data.column("position")).as_py()
    name = f"{first:016x}-{uuid.uuid4().hex[:16]}{SUFFIX}"
    path = os.path.join(directory, name)
    unfinished = path + UNFINISHED_SUFFIX
    rows = max(1, min(GROUP_ROWS, GROUP_BYTES * data.num_rows // max(data.nbytes, 1)))
    try:
        pq.write_table(
            data,
            unfinished,
            row_group_size=rows,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS[table],
            write_page_checksum=True,
            sorting_columns=[
                pq.SortingColumn(data.schema.get_field_index(name)) for name in ("queue", "seq")
            ],
        )
        sync_path(unfinished)
        crc, size = checksum(unfinished)
        sums = _read_back(unfinished, table, data)
        os.rename(unfinished, path)
        _sync_directories(directory, archive)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    return WrittenFile(_describe(table, f"{folder}/{name}", data, size, crc), sums)


def _read_back(path: str, table: str, data: pa.Table) -> RowChecksums:
    """Every row and column of the file, compared with what was to be written."""
    sums: RowChecksums = {}
    at = 0
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            if not rows.equals(data.slice(at, rows.num_rows)):
                raise ArchiveDamaged(path, "it does not hold what was written to it")
            at += rows.num_rows
            add_checksums(sums, row_checksums(table, rows))
    if at != data.num_rows:
        raise ArchiveDamaged(path, f"it holds {at} rows of the {data.num_rows} just written")
    return sums


def _sync_directories(directory: str, top: str) -> None:
    """The file's directory and those above it, which may be new too."""
    while True:
        sync_path(directory)
        if os.path.samefile(directory, top):
            return
        directory = os.path.dirname(directory)


def _describe(table: str, path: str, data: pa.Table, size: int, crc: int) -> ArchiveFile:
    def ends(column: str) -> tuple[int | None, int | None]:
        values = data.column(column)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        found = pc.min_max(values).as_py()
        return found["min"], found["max"]

    first_seq, last_seq = ends("seq")
    first_position, last_position = ends("position")
    first_us, last_us = ends("ts")
    return ArchiveFile(
        table=table,
        path=path,
        rows=data.num_rows,
        bytes=size,
        crc=crc,
        first_seq=first_seq,
        last_seq=last_seq,
        first_position=first_position,
        last_position=last_position,
        first_us=first_us,
        last_us=last_us,
        queues=sorted(name for name in pc.unique(data.column("queue")).to_pylist() if name is not None),
        raw_bytes=data.nbytes,
    )
