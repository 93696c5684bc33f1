"""The sidecar of a segment: one fixed-width row per message that a record touches.

A sidecar is derived from its segment. It can be deleted at any time and is then rebuilt. It makes lookups by
time and by message number cheap, without reading the segment.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from zlib import crc32

from openq.journal.disk import DiskIo, read_all, write_all
from openq.journal.format import frames
from openq.journal.scan import SUFFIX, Block

log = logging.getLogger("openq.journal")

# Packed rows (see `_ROW`) for a record whose frame is at an offset, as `content.index_rows` makes them.
RowsOf = Callable[[bytes, int], bytes]

MAGIC = b"OQIX"
VERSION = 1
_HEADER = Struct("<4sIII")  # magic, version, rows, crc
_ROW = Struct("<QQIIIBBH")  # sequence, time_ms, queue, offset, length, kind, flags, unused
_SEQ = Struct("<Q")
_QUEUE = Struct("<I")
_PAUSE_EVERY = 50


class SegmentIndex:
    """The rows of one segment, oldest first, as columns that can be sliced, searched and listed."""

    def __init__(self, rows: bytes) -> None:
        self.rows = rows
        self.count = len(rows) // _ROW.size
        view = memoryview(rows)
        words, halves = view.cast("Q"), view.cast("I")
        self.seqs = words[0::4]
        self.times = words[1::4]
        self.queues = halves[4::8]
        self.offsets = halves[5::8]
        self.lengths = halves[6::8]
        self.kinds = view[28::32]
        self.flags = view[29::32]
        self._queue_bytes: bytes | None = None  # the column without gaps, from the first search on

    @property
    def first_ms(self) -> int | None:
        return self.times[0] if self.count else None

    @property
    def last_ms(self) -> int | None:
        return self.times[-1] if self.count else None

    def rows_for_seq(self, seq: int) -> list[int]:
        """The rows of a sequence number, in any queue. Searches for its bytes, 50 times as fast as a loop."""
        found = []
        packed = _SEQ.pack(seq)
        pos = self.rows.find(packed)
        while pos >= 0:
            row, rest = divmod(pos, _ROW.size)
            if rest == 0:
                found.append(row)
            # The next possible position is the beginning of the next row.
            pos = self.rows.find(packed, (row + 1) * _ROW.size)
        return found

    def rows_for_queue(self, queue: int, first: int = 0) -> Iterator[int]:
        """The rows of a queue, from the row `first` on. Searches for its bytes, as `rows_for_seq` does."""
        if self._queue_bytes is None:
            self._queue_bytes = self.queues.tobytes()
        column, size = self._queue_bytes, _QUEUE.size
        packed = _QUEUE.pack(queue)
        pos = column.find(packed, first * size)
        while pos >= 0:
            row, rest = divmod(pos, size)
            if rest == 0:
                yield row
            pos = column.find(packed, (row + 1) * size)

    def first_at_or_after(self, time_ms: int) -> int:
        """The first row with this time or a later one; `count` when there is none."""
        return bisect_left(self.times, time_ms)


def index_path(segment_path: str) -> str:
    return segment_path.removesuffix(SUFFIX) + ".idx"


def build(blocks: Iterable[Block], rows_of: RowsOf, pause: Callable[[], None] | None = None) -> SegmentIndex:
    """Build the index from the blocks, as far as they can be read."""
    rows = bytearray()
    since = odd = 0
    for block in blocks:
        if block.count == 0:
            continue
        for offset, record in frames(block.data, block.pos, block.end, block.base):
            try:
                rows += rows_of(record, offset)
            except Exception:
                odd += 1
            since += 1
            if since >= _PAUSE_EVERY:
                since = 0
                if pause is not None:
                    pause()
    if odd:
        log.warning("%d records of a segment have no place in its index", odd)
    return SegmentIndex(bytes(rows))


def save(io: DiskIo, path: str, index: SegmentIndex) -> None:
    temporary = path + ".tmp"
    fd = io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        head = _HEADER.pack(MAGIC, VERSION, index.count, crc32(index.rows))
        write_all(io, fd, head + index.rows, 0)
        io.fsync(fd)
    finally:
        io.close(fd)
    io.rename(temporary, path)
    io.fsync_dir(os.path.dirname(path))


def load(path: str, io: DiskIo | None = None) -> SegmentIndex:
    """Raises FileNotFoundError, or ValueError when the file is damaged."""
    io = io or DiskIo()
    fd = io.open(path, os.O_RDONLY)
    try:
        data = read_all(io, fd, io.file_size(fd), 0)
    finally:
        io.close(fd)
    if len(data) < _HEADER.size:
        raise ValueError(f"{path} is no index")
    magic, version, count, crc = _HEADER.unpack_from(data)
    rows = data[_HEADER.size :]
    if magic != MAGIC or version != VERSION or len(rows) != count * _ROW.size or crc32(rows) != crc:
        raise ValueError(f"{path} is no intact index")
    return SegmentIndex(rows)
