"""Read durable records in order, from any location on: for readers that follow the journal.

`Journal.replay` reads a segment from its start, once. A tail begins at the block that holds a location, and
continues later where it stopped, so that following the journal costs one read per commit. It opens a file
only while it reads, holds no lock, and keeps no segment from being dropped: then it continues with the oldest
one that is kept, and `skipped` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from openq.errors import Closed, JournalDamaged
from openq.journal.disk import DiskIo, read_all
from openq.journal.format import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    ITEM,
    block_head,
    frames,
    last_number,
    make_location,
    offset_of,
    segment_of,
    verify,
)
from openq.journal.pending import SegmentFile
from openq.journal.scan import SegmentScan

READ_BYTES = 256 << 10

Located = tuple[int, bytes]  # location and bytes of a record
# The segments by number, and the location before which every record is durable.
View = Callable[[], tuple[Mapping[int, SegmentFile], int]]


class RecordTail:
    """The durable records at and after `location`. Used by one thread at a time."""

    def __init__(
        self,
        io: DiskIo,
        salt: int,
        view: View,
        location: int,
        damaged: Callable[[JournalDamaged], None],
    ) -> None:
        self._io = io
        self._salt = salt
        self._view = view
        self._damaged = damaged
        self.skipped = False  # records were left out since it was last set to False: dropped or damaged
        self._data = b""  # read ahead, from file offset `_base` of the current segment on
        self._base = 0
        self._first = location  # records before it are left out
        self._segment = 0
        self._offset = HEADER_BYTES  # of the next block
        self._number: int | None = None  # of the next block; None: unknown
        self._seek(location)

    @property
    def location(self) -> int:
        """All later records have this location or a greater one."""
        return max(self._first, make_location(self._segment, self._offset + BLOCK_BYTES))

    def release(self) -> None:
        """Free the memory of what was read ahead."""
        self._data = b""

    def next_block(self) -> list[Located]:
        """The records of the next block that has some; empty: there are no later durable records now."""
        while True:
            segments, durable = self._view()
            if not segments:
                raise Closed()
            segment = segments.get(self._segment)
            if segment is None:
                if self._segment > segment_of(durable):
                    return []  # the location of an end before the segment has a name
                self._start_at(next(iter(segments.values())))
                self.skipped = True
                continue
            if self._segment == segment_of(durable) and self._offset + BLOCK_BYTES >= offset_of(durable):
                return []
            found = self._block(segment, segments, durable)
            if found:
                return found

    # -- finding the first block

    def _seek(self, location: int) -> None:
        segments, durable = self._view()
        if not segments:
            raise Closed()
        number = segment_of(location)
        oldest = next(iter(segments.values()))
        if number < oldest.number:
            self._start_at(oldest)
            self.skipped = location > 0
            return
        self._segment = number
        segment = segments.get(number)
        if location >= durable or segment is None:
            self._segment, self._offset = segment_of(durable), offset_of(durable) - BLOCK_BYTES
            return
        start = self._block_of(segment, offset_of(location))
        if start is not None:
            self._offset = start
        else:
            # The segment ends here, or no record begins here: its blocks are read from the first on.
            self._start_at(segment)

    def _start_at(self, segment: SegmentFile) -> None:
        self._segment, self._offset, self._number = segment.number, HEADER_BYTES, segment.first_block
        self.release()

    def _block_of(self, segment: SegmentFile, offset: int) -> int | None:
        """The offset of the verified block that holds the frame at `offset`; None if there is none."""
        head = self._read(segment, FRAME_BYTES, offset) if offset >= HEADER_BYTES + BLOCK_BYTES else b""
        if len(head) < FRAME_BYTES:
            return None
        back: int = FRAME.unpack(head)[1]
        start = offset - back
        if back & ITEM or back < BLOCK_BYTES or start < HEADER_BYTES:
            return None
        data = self._read(segment, BLOCK_BYTES, start)
        block = block_head(data, 0)
        if block is None or block.segment != segment.number or start + BLOCK_BYTES + block.length <= offset:
            return None
        data = self._read(segment, BLOCK_BYTES + block.length, start)
        return start if verify(data, 0, block, self._salt, start) else None

    # -- reading

    def _block(
        self, segment: SegmentFile, segments: Mapping[int, SegmentFile], durable: int
    ) -> list[Located]:
        """The records of the next block of this segment; empty if it has none, or the next segment begins."""
        is_last = segment.number == segment_of(durable)
        limit = offset_of(durable) - BLOCK_BYTES if is_last else segment.size
        pos = self._fill(segment, BLOCK_BYTES, limit)
        head = block_head(self._data, pos)
        whole = 0 if head is None else BLOCK_BYTES + head.length
        is_valid = (
            head is not None
            and head.segment == segment.number
            and self._number in (None, head.number)
            and self._offset + whole <= limit
        )
        if head is not None and is_valid:
            pos = self._fill(segment, whole, limit)
            is_valid = verify(self._data, pos, head, self._salt, self._offset)
        if head is None or not is_valid:
            self._end_segment(segment, segments, is_last)
            return []
        base = make_location(segment.number, self._base)
        records = frames(self._data, pos + BLOCK_BYTES, pos + whole, base) if head.count else iter(())
        if head.count == 0:
            self.skipped = True  # a repair left a hole here
        self._number = last_number(self._data, pos, head) + 1
        self._offset += whole
        if base + pos + BLOCK_BYTES >= self._first:
            return list(records)
        return [record for record in records if record[0] >= self._first]

    def _fill(self, segment: SegmentFile, size: int, limit: int) -> int:
        """Read ahead so that `size` bytes of the next block are there, if the file has them."""
        pos = self._offset - self._base
        if not 0 <= pos <= len(self._data) - size:
            wanted = max(0, min(max(size, READ_BYTES), limit - self._offset))
            self._data = self._read(segment, wanted, self._offset)
            self._base = self._offset
            pos = 0
        return pos

    def _end_segment(self, segment: SegmentFile, segments: Mapping[int, SegmentFile], is_last: bool) -> None:
        """No valid block follows: continue with the next segment, or behind damage."""
        following = segments.get(segment.number + 1)
        if not is_last and following is not None and self._number in (None, following.first_block):
            self._start_at(following)
            return
        if self._view()[0].get(segment.number) is not segment:
            return  # dropped meanwhile, and its file used again
        self._damaged(JournalDamaged(segment.path, self._offset, "a block of the journal is unreadable"))
        self.skipped = True
        fd = self._io.open(segment.path, os.O_RDONLY)
        try:
            scan = SegmentScan(self._io, fd, segment.number, self._salt, self._number, self._offset)
            later = scan.find_later()
        finally:
            self._io.close(fd)
        self.release()
        if later is not None:
            self._offset, self._number = later
        elif following is not None:
            self._start_at(following)
        else:  # nothing can be read up to the end
            self._offset, self._number = offset_of(self._view()[1]) - BLOCK_BYTES, None

    def _read(self, segment: SegmentFile, size: int, offset: int) -> bytes:
        """Empty if the file was dropped meanwhile."""
        try:
            fd = self._io.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            if self._view()[0].get(segment.number) is segment:
                raise JournalDamaged(segment.path, 0, "this segment is missing") from None
            return b""
        try:
            return read_all(self._io, fd, size, offset)
        finally:
            self._io.close(fd)
