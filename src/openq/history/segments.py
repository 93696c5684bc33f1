"""Reads a journal's segment files while a server may be writing them.

No lock is taken and nothing is written. All bytes returned have passed their block's checksum, which covers
the place in the journal too: a segment file that is freed or reused meanwhile is always noticed. Files are
read, not mapped, so that one that shrinks or changes does no harm.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from struct import Struct
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from openq.engine.records import FIRST_ITEM, HEAD_SIZE, PUBLISH, index_rows
from openq.errors import HistoryUnavailable, JournalDamaged
from openq.journal.disk import DiskIo, read_all
from openq.journal.format import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    ITEM,
    BadHeader,
    SegmentHeader,
    block_head,
    make_location,
    unpack_header,
    verify,
)
from openq.journal.index import SegmentIndex, index_path, load
from openq.journal.lockfile import holder
from openq.journal.scan import Block, SegmentScan, read_header, segment_numbers, segment_path

Array = npt.NDArray[Any]

ROW = np.dtype(
    [
        ("seq", "<u8"),
        ("time", "<u8"),
        ("queue", "<u4"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("nothing", "<u2"),
    ]
)
_INDEX_HEAD = 16
_FIRST_ROW = Struct("<QQIIIBBH")
_MAX_LIST_ATTEMPTS = 20
_READ_AHEAD = 256 << 10  # read ahead: blocks end later than their records
_MAX_CACHED_INDEXES = 8
_EQUAL_LENGTH_RUN = 16  # so many records of one length in a row: expect more of them


@dataclass(frozen=True)
class SegmentRef:
    """One segment as it was found: its first `size` bytes are whole, durable blocks."""

    number: int
    path: str
    size: int
    sealed: bool
    salt: int
    first_block: int
    rows: int
    first_ms: int = 0
    last_ms: int = 0

    @property
    def start_position(self) -> int:
        return make_location(self.number, 0)

    @property
    def first_position(self) -> int:
        return make_location(self.number, HEADER_BYTES)

    @property
    def end_position(self) -> int:
        """Exclusive. A sealed segment ends where the next one begins."""
        return make_location(self.number + 1, 0) if self.sealed else make_location(self.number, self.size)


class _OpenSegment:
    """The segment that is being written, as far as it was read."""

    def __init__(self, header: SegmentHeader) -> None:
        self.header = header
        self.offset = HEADER_BYTES
        self.next_block = header.first_block
        self.parts: list[bytes] = []
        self.rows = 0
        self.index: SegmentIndex | None = None


class JournalFiles:
    """The segments under a data directory. One object may be shared by threads."""

    def __init__(self, path: str | os.PathLike[str], io: DiskIo | None = None) -> None:
        self.path = os.path.abspath(path)
        self.directory = os.path.join(self.path, "journal")
        self._io = io or DiskIo()
        self._lock = Lock()
        self._sealed: dict[int, SegmentRef] = {}
        self._headers: dict[int, SegmentHeader] = {}
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self._open_segment: _OpenSegment | None = None

    @property
    def salt(self) -> int:
        """The identity of the journal. Raises HistoryUnavailable if there is none."""
        return self.segments()[0].salt

    def segments(self) -> list[SegmentRef]:
        """Oldest first, without a gap; the last one is open."""
        with self._lock:
            for _ in range(_MAX_LIST_ATTEMPTS):
                with suppress(FileNotFoundError):  # freed between listing and opening
                    found = self._list()
                    if found is not None:
                        return found
            try:
                return self._list(final=True) or []
            except FileNotFoundError as error:
                raise HistoryUnavailable(f"the journal in {self.path} changes too fast: {error}") from None

    def identity(self) -> tuple[int, ...]:
        """What is at the path now, whatever is cached: the directory's identity and the salt of its journal.
        Raises OSError if there is none, or if it is changing."""
        status = os.stat(self.directory)
        numbers = segment_numbers(self._io, self.directory)
        try:
            header = read_header(self._io, segment_path(self.directory, numbers[0]))
        except (BadHeader, IndexError):
            raise FileNotFoundError(self.directory) from None
        return status.st_dev, status.st_ino, header.salt

    def end_position(self) -> int:
        """The start of the next block: everything before it is durable and readable."""
        return self.segments()[-1].end_position

    def server_url(self) -> str | None:
        """The address of the running server that holds this data directory, if there is one."""
        pid, url = holder(self.path)
        return url if pid is not None and _is_alive(pid) else None

    def ref(self, number: int) -> SegmentRef:
        """Raises HistoryUnavailable if the segment is no longer kept."""
        for each in self.segments():
            if each.number == number:
                return each
        raise _segment_gone(number)

    def index(self, number: int) -> SegmentIndex:
        """The index of a segment: its sidecar file, or built from the segment if there is none (yet).

        The index of the open segment may reach beyond the `size` of an earlier SegmentRef.
        """
        with self._lock:
            known = self._indexes.get(number)
            if known is not None:
                self._indexes.move_to_end(number)
                return known
            tail = self._open_segment
            if tail is not None and tail.header.number == number:
                self._read_new_blocks(tail)
                if tail.index is None:
                    tail.index = SegmentIndex(b"".join(tail.parts))
                    tail.parts = [tail.index.rows]
                return tail.index
        try:
            index = self._load(segment_path(self.directory, number), number)
        except FileNotFoundError:
            raise _segment_gone(number) from None
        with self._lock:
            self._indexes[number] = index
            while len(self._indexes) > _MAX_CACHED_INDEXES:
                self._indexes.popitem(last=False)
        return index

    def _load(self, path: str, number: int) -> SegmentIndex:
        """Raises FileNotFoundError if the segment is freed."""
        try:
            return load(index_path(path), self._io)
        except (FileNotFoundError, ValueError):
            pass
        tail = _OpenSegment(self._header(number))
        self._read_new_blocks(tail, sync=False)
        return SegmentIndex(b"".join(tail.parts))

    def _list(self, final: bool = False) -> list[SegmentRef] | None:
        """Lock held. None: the directory changed while it was read, try again."""
        try:
            numbers = segment_numbers(self._io, self.directory)
        except (FileNotFoundError, NotADirectoryError):
            numbers = []
        if not numbers:
            if not final:
                return None
            raise HistoryUnavailable(
                f"{self.path} holds no journal of OpenQ; give the server's data directory"
            )
        for before, after in pairwise(numbers):
            if after != before + 1:
                if not final:
                    return None
                missing = segment_path(self.directory, before + 1)
                raise JournalDamaged(missing, 0, f"segments {before + 1} to {after - 1} are missing")
        last = numbers[-1]
        for gone in [number for number in self._headers if number < numbers[0] or number > last]:
            self._headers.pop(gone, None)
            self._sealed.pop(gone, None)
            self._indexes.pop(gone, None)
        found = [self._sealed.get(number) or self._describe_sealed(number) for number in numbers[:-1]]
        if self._open_segment is None or self._open_segment.header.number != last:
            self._open_segment = _OpenSegment(self._header(last))
        tail = self._open_segment
        self._read_new_blocks(tail)
        head = tail.header
        first_ms = last_ms = 0
        if tail.parts:
            first_ms = _FIRST_ROW.unpack_from(tail.parts[0])[1]
            last_ms = _FIRST_ROW.unpack_from(tail.parts[-1], len(tail.parts[-1]) - ROW.itemsize)[1]
        path = segment_path(self.directory, last)
        size = tail.offset
        open_ref = SegmentRef(
            last, path, size, False, head.salt, head.first_block, tail.rows, first_ms, last_ms
        )
        return [*found, open_ref]

    def _describe_sealed(self, number: int) -> SegmentRef:
        """A sealed segment, by the first and last row of its sidecar."""
        header = self._header(number)
        path = segment_path(self.directory, number)
        ref = SegmentRef(number, path, HEADER_BYTES, True, header.salt, header.first_block, 0)
        try:
            fd = self._io.open(index_path(path), os.O_RDONLY)
        except FileNotFoundError:
            # The server is about to write it. Until then the index is built each time.
            return self._describe_from_index(ref, self._load(path, number))
        try:
            size = self._io.file_size(fd)
            rows = (size - _INDEX_HEAD) // ROW.itemsize
            first = read_all(self._io, fd, ROW.itemsize, _INDEX_HEAD)
            last = (
                read_all(self._io, fd, ROW.itemsize, _INDEX_HEAD + (rows - 1) * ROW.itemsize)
                if rows > 0
                else b""
            )
        finally:
            self._io.close(fd)
        if rows > 0 and len(first) == len(last) == ROW.itemsize:
            ref = _with_bounds(ref, rows, first, last)
        else:
            ref = self._describe_from_index(ref, self._load(path, number))
        self._sealed[number] = ref
        return ref

    def _describe_from_index(self, ref: SegmentRef, index: SegmentIndex) -> SegmentRef:
        if not index.count:
            return ref
        return _with_bounds(ref, index.count, index.rows[: ROW.itemsize], index.rows[-ROW.itemsize :])

    def _header(self, number: int) -> SegmentHeader:
        header = self._headers.get(number)
        if header is None:
            path = segment_path(self.directory, number)
            try:
                header = read_header(self._io, path)
                if header.number != number:
                    raise BadHeader(f"the file is named {number} but is segment {header.number}")
            except BadHeader as error:
                if not os.path.exists(path):  # freed and reused while it was being read
                    raise FileNotFoundError(path) from None
                raise JournalDamaged(path, 0, str(error)) from None
            self._headers[number] = header
        return header

    def _read_new_blocks(self, tail: _OpenSegment, sync: bool = True) -> None:
        """Read the blocks that were written since the last call."""
        header = tail.header
        try:
            fd = self._io.open(segment_path(self.directory, header.number), os.O_RDONLY)
        except FileNotFoundError:
            if tail.rows:
                return  # freed meanwhile: what was read stays valid
            raise
        try:
            # Most calls find nothing new: they end after one small read.
            head = block_head(read_all(self._io, fd, BLOCK_BYTES, tail.offset), 0)
            if head is None or head.segment != header.number or head.number != tail.next_block:
                return
            scan = SegmentScan(self._io, fd, header.number, header.salt, tail.next_block, tail.offset)
            blocks = [_block_index_rows(block) for block in scan.blocks()]
            if not blocks:
                return
            if sync:
                # Blocks can be read before they are durable. Rows that were shown must survive a power loss.
                with suppress(OSError):
                    self._io.fdatasync(fd)
        finally:
            self._io.close(fd)
        rows = b"".join(blocks)
        tail.offset = scan.offset
        tail.next_block = scan.next_number or 0
        if rows:
            tail.parts.append(rows)
            tail.rows += len(rows) // ROW.itemsize
            tail.index = None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def rows_array(index: SegmentIndex) -> Array:
    """The rows of an index as one numpy array of `ROW`, without a copy."""
    return np.frombuffer(index.rows, dtype=ROW, count=index.count)


def _with_bounds(ref: SegmentRef, rows: int, first: bytes, last: bytes) -> SegmentRef:
    _, first_ms, *_ = _FIRST_ROW.unpack(first)
    _, last_ms, _, offset, length, *_ = _FIRST_ROW.unpack(last)
    size = offset + FRAME_BYTES + length
    return replace(ref, rows=rows, size=size, first_ms=first_ms, last_ms=last_ms)


def _segment_gone(number: int) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"segment {number} of the journal is no longer kept; archive it in time, or keep a longer history"
    )


def _frame_offsets(block: Block) -> Array:
    """The offsets of a block's records. Runs of records of one length are found in one step."""
    data, unpack = block.data, FRAME.unpack_from
    found: list[Array] = []
    places: list[int] = []
    pos, last, equal = block.pos, -1, 0
    while pos < block.end:
        length = unpack(data, pos)[0]
        places.append(pos)
        pos += FRAME_BYTES + length
        equal = equal + 1 if length == last else 0
        last = length
        if equal == _EQUAL_LENGTH_RUN:
            equal = 0
            stride = FRAME_BYTES + length
            lengths: Array = np.ndarray((max(0, block.end - pos) // stride,), "<u4", data, pos, (stride,))
            other = lengths != length
            count = int(other.argmax()) if other.any() else len(lengths)
            found += [np.array(places, dtype=np.int64), np.arange(count) * stride + pos]
            places = []
            pos += count * stride
    return np.concatenate([*found, np.array(places, dtype=np.int64)])


def _block_index_rows(block: Block) -> bytes:
    """The index rows of a block. Records of a single message, which are most, are read all at once."""
    if block.count == 0:
        return b""
    data = block.data
    at = _frame_offsets(block)
    places = at.tolist()
    view = np.frombuffer(data, dtype=np.uint8)
    lengths = gather(view, at, 4)
    # Records too short for a head are left to the slow path, which skips them.
    single = (view[np.minimum(at + FRAME_BYTES, len(view) - 1)] == PUBLISH) & (lengths >= HEAD_SIZE)
    rows = np.zeros(len(at), dtype=ROW)
    chosen = at[single] + FRAME_BYTES
    rows["seq"][single] = gather(view, chosen + 8, 8)
    rows["time"][single] = gather(view, chosen + 16, 8)
    rows["queue"][single] = gather(view, chosen + 4, 4)
    rows["offset"] = at + block.base
    rows["length"] = lengths
    rows["kind"] = PUBLISH
    rows["flags"][single] = view[chosen + 2]
    if single.all():
        return rows.tobytes()
    parts = []
    done = 0
    for i in np.flatnonzero(~single).tolist():
        parts.append(rows[done:i].tobytes())
        start = places[i] + FRAME_BYTES
        with suppress(Exception):
            parts.append(index_rows(data[start : start + int(lengths[i])], places[i] + block.base))
        done = i + 1
    parts.append(rows[done:].tobytes())
    return b"".join(parts)


_TYPES = {2: "<u2", 4: "<u4", 8: "<u8"}


def gather(view: Array, at: Array, size: int) -> Array:
    """The little-endian numbers of `size` bytes at these offsets."""
    if not len(at):
        return np.empty(0, dtype=_TYPES[size])
    # Overlapping elements, one starting at each byte: no bytes need to be copied together.
    places: Array = np.ndarray((max(0, len(view) - size + 1),), _TYPES[size], view, strides=(1,))
    return places[at]


class SegmentBytes:
    """Ranges of one segment, verified block by block. Load them in rising order: shared blocks are read
    once."""

    def __init__(self, ref: SegmentRef) -> None:
        self._ref = ref
        self._io = DiskIo()
        try:
            self._fd = self._io.open(ref.path, os.O_RDONLY)
        except FileNotFoundError:
            raise _segment_gone(ref.number) from None
        self._base = 0  # file offset of `_data`
        self._verified_end = 0  # file offset up to which it is verified
        self._data: Array = np.empty(0, dtype=np.uint8)
        self._buffer: Array = self._data
        try:
            self._check_header()
        except BaseException:
            self._io.close(self._fd)
            raise

    def close(self) -> None:
        self._io.close(self._fd)

    def __enter__(self) -> SegmentBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, first: int, end: int) -> tuple[Array, int]:
        """Verified bytes that hold at least [first, end), and the file offset of the first of them.

        Valid until the next call, which reuses the memory: allocating it each time is slow.
        """
        if first >= self._base and end <= self._verified_end:
            return self._data, self._base
        start = self._block_of(first)
        keep = self._base <= start < self._verified_end
        pos = self._verified_end if keep else start
        data = self._fetch(start, max(end, pos) + _READ_AHEAD, keep)
        while pos < end:
            head = block_head(data.data, pos - start)
            if head is None or head.segment != self._ref.number:
                raise self._error_at(pos, "no block begins here")
            after = pos + BLOCK_BYTES + head.length
            if after > start + len(data):
                if after > self._io.file_size(self._fd):
                    raise self._error_at(pos, f"block {head.number} ends beyond the file")
                self._base, self._verified_end, self._data = start, pos, data
                data = self._fetch(start, after + _READ_AHEAD, True)
            if not verify(data.data, pos - start, head, self._ref.salt, pos):
                raise self._error_at(pos, f"block {head.number} does not match its checksum")
            pos = after
        self._base, self._verified_end, self._data = start, pos, data
        return data, start

    def _fetch(self, start: int, end: int, keep: bool) -> Array:
        """The bytes from `start` on, as far as the file goes; bytes in memory are not read again."""
        end = min(end, self._io.file_size(self._fd))
        size = max(end - start, 0)
        if size > len(self._buffer):
            self._buffer = np.empty(size, dtype=np.uint8)
        data = self._buffer[:size]
        done = 0
        if keep:
            known = self._data[start - self._base :][: len(data)]
            data[: len(known)] = known
            done = len(known)
        # Nothing counts as verified until it is checked, which may fail half-way.
        self._base, self._verified_end, self._data = start, start, data
        view = data.data
        while done < len(data):
            got = os.preadv(self._fd, [view[done:]], start + done)
            if not got:
                return data[:done]
            done += got
        return data

    def damaged(self, offset: int, detail: str) -> JournalDamaged:
        return JournalDamaged(self._ref.path, offset, detail)

    def _block_of(self, offset: int) -> int:
        """The start of the block that contains the record or item at `offset`."""
        frame = offset
        back = self._back_reference(offset)
        if back & ITEM:
            frame = offset - (back & ~ITEM)
            if back & ~ITEM < FIRST_ITEM:
                raise self._error_at(offset, "no record begins here")
            back = self._back_reference(frame)
        start = frame - back
        if back & ITEM or back < BLOCK_BYTES or start < HEADER_BYTES:
            raise self._error_at(offset, "no record begins here")
        return start

    def _back_reference(self, offset: int) -> int:
        at = offset - self._base
        if 0 <= at <= self._verified_end - self._base - FRAME_BYTES:
            data = self._data[at : at + FRAME_BYTES].tobytes()
        else:
            data = read_all(self._io, self._fd, FRAME_BYTES, offset) if offset >= HEADER_BYTES else b""
        if len(data) < FRAME_BYTES:
            raise self._error_at(offset, "no record begins here")
        back: int = FRAME.unpack(data)[1]
        return back

    def _error_at(self, offset: int, detail: str) -> HistoryUnavailable | JournalDamaged:
        """The error for unexpected bytes: the file was reused for another segment, or is damaged."""
        try:
            self._check_header()
        except HistoryUnavailable as gone:
            return gone
        return self.damaged(offset, detail)

    def _check_header(self) -> None:
        data = read_all(self._io, self._fd, HEADER_BYTES, 0)
        try:
            header = unpack_header(data)
        except BadHeader as error:
            if not os.path.exists(self._ref.path):
                raise _segment_gone(self._ref.number) from None
            raise JournalDamaged(self._ref.path, 0, str(error)) from None
        if header.number != self._ref.number or header.salt != self._ref.salt:
            raise _segment_gone(self._ref.number)
