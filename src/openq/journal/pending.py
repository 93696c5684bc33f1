"""Data not yet on disk: planned segments, blocks being filled, groups being committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from openq.journal.format import BLOCK_BYTES, FRAME, FRAME_BYTES, HEADER_BYTES, make_location
from openq.journal.pool import SpareSegment


class SegmentFile:
    """A file of the journal, or a planned one: `named` is False until its first block is synced."""

    __slots__ = (
        "fd",
        "first_block",
        "first_ms",
        "indexed",
        "last_ms",
        "named",
        "number",
        "path",
        "size",
        "spare",
        "used",
    )

    def __init__(self, number: int, path: str, size: int, spare: SpareSegment | None = None) -> None:
        self.number = number
        self.path = path
        self.size = size
        self.spare = spare
        self.first_block = 0
        self.fd = -1
        self.named = False
        self.indexed = False  # its sidecar was built or read, and the times taken from it
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.used = HEADER_BYTES


class _Content(NamedTuple):
    """What a block consists of. Replaced as a whole, so that an interruption leaves all or nothing."""

    before: tuple[bytes | bytearray, ...]  # complete; the first one begins with space for the block's header
    base: int  # their length
    records: int  # in them
    buffer: bytearray  # the rest, which grows


class PendingBlock:
    """Records that are not yet on disk.

    Small records are copied into a buffer. The pieces of a large one are kept as they are: copying a body of
    1 MiB into fresh memory takes longer than writing it to a fast disk.
    """

    __slots__ = ("content", "count", "number", "origin", "segment", "start", "written")

    def __init__(self, segment: SegmentFile, start: int, number: int) -> None:
        self.segment = segment
        self.start = start
        self.number = number
        self.origin = make_location(segment.number, start)
        self.content = _Content((), 0, 0, bytearray(BLOCK_BYTES))
        self.count = 0  # set when the block is closed
        self.written = False

    def __len__(self) -> int:
        content = self.content
        return content.base + len(content.buffer)

    @property
    def is_empty(self) -> bool:
        return len(self) == BLOCK_BYTES

    @property
    def room(self) -> int:
        """The maximum length of the block and one more record together."""
        return self.segment.size - self.start - FRAME_BYTES

    @property
    def pieces(self) -> Sequence[bytes | bytearray]:
        content = self.content
        return (*content.before, content.buffer) if content.before else (content.buffer,)

    def add(self, record: bytes) -> int:
        back = len(self)
        buffer = self.content.buffer
        buffer += FRAME.pack(len(record), back) + record
        return self.origin + back

    def add_pieces(self, pieces: Sequence[bytes], size: int) -> int:
        """Add a record of `size` bytes by reference. Its pieces must not change."""
        back = len(self)
        content = self.content
        before = (*content.before, content.buffer, FRAME.pack(size, back), *pieces)
        self.content = _Content(before, back + FRAME_BYTES + size, self.count_records() + 1, bytearray())
        return self.origin + back

    def count_records(self) -> int:
        """The number of records; those in the buffer are counted one by one."""
        before, _, count, buffer = self.content
        pos = 0 if before else BLOCK_BYTES
        while pos < len(buffer):
            pos += FRAME_BYTES + FRAME.unpack_from(buffer, pos)[0]
            count += 1
        return count

    def read(self, back: int) -> bytes:
        """The record, or the item of a record, whose frame is at this distance from the block's start."""
        (size, _) = FRAME.unpack(self._slice(back, back + FRAME_BYTES))
        return self._slice(back + FRAME_BYTES, back + FRAME_BYTES + size)

    def _slice(self, start: int, stop: int) -> bytes:
        parts: list[bytes | bytearray] = []
        at = 0
        for piece in self.pieces:
            if at < stop and at + len(piece) > start:
                # Not by a memoryview: while one exists, the buffer cannot grow in another thread.
                parts.append(piece[max(start - at, 0) : stop - at])
            at += len(piece)
        return b"".join(parts)


class CommitGroup:
    """The blocks that one commit writes, and the waiters and callbacks to notify."""

    __slots__ = ("blocks", "callbacks", "may_wait", "waiters")

    def __init__(self) -> None:
        self.blocks: list[PendingBlock] = []
        self.callbacks: deque[Callable[[], None]] = deque()
        self.waiters: list[Lock] = []
        self.may_wait = True  # for a full disk; False on an event loop
