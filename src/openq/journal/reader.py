"""Read single records. Each block is verified once; a small cache of file pieces serves later reads.

A *span* is a piece of a segment file in memory. Everything in it before `good` belongs to blocks whose
checksum has been verified; the rest was read ahead and is verified on demand. Holes that a repair left are
never part of a span: a location inside a hole must not find any bytes there.
"""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from threading import Lock

from openq.errors import JournalDamaged
from openq.journal.disk import NO_RESOURCES, DiskIo, read_all
from openq.journal.format import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    ITEM,
    BlockHead,
    begin_verify,
    block_head,
    offset_of,
    segment_of,
    verify,
)

CACHE_BYTES = 8 << 20
LARGE_BLOCK = 4 << 20
WINDOW = 32 << 10
READ_AHEAD = 256 << 10
OPEN_FILES = 64
KNOWN_LARGE = 1024

_unpack = FRAME.unpack_from


class CachedSpan:
    """`start`, `good` and `end` are locations."""

    __slots__ = ("data", "end", "good", "start")

    def __init__(self, start: int, good: int, data: bytes) -> None:
        self.start = start
        self.good = good
        self.end = start + len(data)
        self.data = data


class _OpenSegment:
    """An open segment. Its last user closes it, so that no read ever uses a reused descriptor."""

    __slots__ = ("fd", "io", "path")

    def __init__(self, io: DiskIo, path: str) -> None:
        self.io = io
        self.path = path
        self.fd = io.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.io.close(self.fd)


class RecordReader:
    """Thread-safe. `path_of` returns a segment's file, or raises when it does not exist (any more)."""

    def __init__(self, io: DiskIo, salt: int, path_of: Callable[[int], str]) -> None:
        self._io = io
        self._salt = salt
        self._path_of = path_of
        self._mutex = Lock()
        self._files: dict[int, _OpenSegment] = {}
        self._spans: dict[int, CachedSpan] = {}  # by start, least recently used first
        self._starts: list[int] = []
        self._bytes = 0
        self._large: dict[int, int] = {}  # verified blocks too large to keep: location -> end
        self._last = CachedSpan(0, 0, b"")

    def read(self, location: int) -> bytes:
        span = self._last
        if not span.start <= location < span.good:
            span = self._span(location)
        data = span.data
        body = location - span.start + FRAME_BYTES
        length: int = _unpack(data, body - FRAME_BYTES)[0]
        if body + length <= len(data):
            return data[body : body + length]
        return self._read_long(location, length)

    def read_many(self, locations: Sequence[int]) -> list[bytes]:
        records: list[bytes] = []
        add = records.append
        span = self._last
        start, good, data, size = span.start, span.good, span.data, len(span.data)
        for location in locations:
            if start <= location < good:
                body = location - start + FRAME_BYTES
                stop = body + _unpack(data, body - FRAME_BYTES)[0]
                if stop <= size:
                    add(data[body:stop])
                    continue
            add(self.read(location))
            span = self._last
            start, good, data, size = span.start, span.good, span.data, len(span.data)
        return records

    def forget(self, number: int) -> None:
        """Drop a segment from the cache: its file was dropped."""
        with self._mutex:
            self._files.pop(number, None)

    def clear_cache(self) -> None:
        """Empty the cache. Records are read again on demand."""
        with self._mutex:
            self._spans.clear()
            self._starts.clear()
            self._bytes = 0
            self._last = CachedSpan(0, 0, b"")

    def close(self) -> None:
        self.clear_cache()
        with self._mutex:
            self._files.clear()

    # -- finding or loading the piece of file around a location

    def _span(self, location: int) -> CachedSpan:
        with self._mutex:
            span = None
            index = bisect_right(self._starts, location)
            if index:
                span = self._spans[self._starts[index - 1]]
                if location < span.end:
                    self._spans[span.start] = self._spans.pop(span.start)
        if (
            span is not None
            and location < span.end
            and (location < span.good or self._extend(span, location))
        ):
            self._last = span
            return span
        span = self._load(location)
        self._last = span
        return span

    def _extend(self, span: CachedSpan, location: int) -> bool:
        """Verify the blocks read ahead, up to the one that holds `location`."""
        segment = segment_of(location)
        good = span.good
        while good <= location:
            pos = good - span.start
            head = block_head(span.data, pos)
            if head is None or head.segment != segment or head.count == 0:
                return False
            # A failure here does not prove damage: the block may have been written after the span was read.
            if not verify(span.data, pos, head, self._salt, offset_of(good)):
                return False
            good += BLOCK_BYTES + head.length
        # Assigned, not added to: another thread may have verified the same blocks. If that thread got
        # further, going back is harmless, since `good` is the end of a verified block either way.
        span.good = good
        return True

    def _load(self, location: int) -> CachedSpan:
        segment, offset = segment_of(location), offset_of(location)
        file = self._file(segment)
        start = self._block_start(file, offset)
        here = location - offset + start
        window = READ_AHEAD if here == self._last.good else WINDOW
        data = read_all(self._io, file.fd, window, start)
        head = block_head(data, 0)
        if head is None or head.segment != segment or start + BLOCK_BYTES + head.length <= offset:
            raise JournalDamaged(
                file.path, start, f"no block begins here, though record {location:#x} needs one"
            )
        if head.count == 0:
            raise JournalDamaged(file.path, start, "this part was lost, a repair left a hole")
        whole = BLOCK_BYTES + head.length
        if whole > LARGE_BLOCK:
            return self._load_large(file, here, head, location, window)
        if whole > len(data):
            data = read_all(self._io, file.fd, whole, start)
        if not verify(data, 0, head, self._salt, start):
            raise _mismatch(file.path, start, head)
        span = CachedSpan(here, here + whole, data)
        self._keep(span)
        return span

    def _load_large(
        self, file: _OpenSegment, here: int, head: BlockHead, location: int, window: int
    ) -> CachedSpan:
        """Verify a large block once as a whole, in pieces; only the bytes around the record are kept."""
        end = here + BLOCK_BYTES + head.length
        if here not in self._large:
            self._verify_large(file, offset_of(here), head)
            with self._mutex:
                self._large[here] = end
                if len(self._large) > KNOWN_LARGE:
                    del self._large[next(iter(self._large))]
        data = read_all(self._io, file.fd, min(window, end - location), offset_of(location))
        # The end is where a frame's header is certain to be inside.
        return CachedSpan(location, location + len(data) - FRAME_BYTES + 1, data)

    def _verify_large(self, file: _OpenSegment, start: int, head: BlockHead) -> None:
        from zlib import crc32

        left = BLOCK_BYTES + head.length
        offset = start
        crc: int | None = None
        while left:
            data = read_all(self._io, file.fd, min(LARGE_BLOCK, left), offset)
            if not data:
                raise _mismatch(file.path, start, head)
            crc = begin_verify(data, self._salt, start) if crc is None else crc32(data, crc)
            offset += len(data)
            left -= len(data)
        if crc != head.crc:
            raise _mismatch(file.path, start, head)

    def _read_long(self, location: int, length: int) -> bytes:
        """Read a record larger than the span that holds its beginning; its block is verified already."""
        file = self._file(segment_of(location))
        data = read_all(self._io, file.fd, length, offset_of(location) + FRAME_BYTES)
        if len(data) < length:
            raise JournalDamaged(file.path, offset_of(location), f"a record of {length} bytes ends early")
        return data

    def _block_start(self, file: _OpenSegment, offset: int) -> int:
        frame = offset
        back = self._back(file, offset)
        if back & ITEM:
            frame = offset - (back & ~ITEM)
            back = self._back(file, frame)
        start = frame - back
        if back & ITEM or back < BLOCK_BYTES or start < HEADER_BYTES:
            raise JournalDamaged(file.path, offset, "no record begins here")
        return start

    def _back(self, file: _OpenSegment, offset: int) -> int:
        data = read_all(self._io, file.fd, FRAME_BYTES, offset) if offset >= HEADER_BYTES else b""
        if len(data) < FRAME_BYTES:
            raise JournalDamaged(file.path, offset, "no record begins here")
        back: int = _unpack(data)[1]
        return back

    def _keep(self, span: CachedSpan) -> None:
        with self._mutex:
            old = self._spans.pop(span.start, None)
            if old is None:
                insort(self._starts, span.start)
            else:
                self._bytes -= len(old.data)
            self._spans[span.start] = span
            self._bytes += len(span.data)
            while self._bytes > CACHE_BYTES:
                oldest = next(iter(self._spans))
                self._bytes -= len(self._spans.pop(oldest).data)
                del self._starts[bisect_right(self._starts, oldest) - 1]

    def _file(self, number: int) -> _OpenSegment:
        file = self._files.get(number)
        if file is None:
            try:
                file = _OpenSegment(self._io, self._path_of(number))
            except OSError as error:
                if error.errno not in NO_RESOURCES:
                    raise
                with self._mutex:
                    self._files.clear()  # freeing one descriptor of this cache is enough
                file = _OpenSegment(self._io, self._path_of(number))
            with self._mutex:
                file = self._files.setdefault(number, file)
                if len(self._files) > OPEN_FILES:
                    oldest = next(iter(self._files))
                    if oldest != number:
                        del self._files[oldest]
        return file


def _mismatch(path: str, start: int, head: BlockHead) -> JournalDamaged:
    size = BLOCK_BYTES + head.length
    return JournalDamaged(path, start, f"block {head.number} of {size} bytes does not match its checksum")
