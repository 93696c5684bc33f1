"""Data not yet on disk: planned segments, blocks being filled, groups being committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

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


class PendingBlock:
    """Records that are not yet on disk: `buffer` begins with space for the block's header."""

    __slots__ = ("buffer", "count", "number", "origin", "segment", "start", "written")

    def __init__(self, segment: SegmentFile, start: int, number: int) -> None:
        self.segment = segment
        self.start = start
        self.number = number
        self.origin = make_location(segment.number, start)
        self.buffer = bytearray(BLOCK_BYTES)
        self.count = 0  # set when the block is closed
        self.written = False

    @property
    def is_empty(self) -> bool:
        return len(self.buffer) == BLOCK_BYTES

    @property
    def room(self) -> int:
        """The maximum length of the buffer and one more record together."""
        return self.segment.size - self.start - FRAME_BYTES

    def add(self, record: bytes) -> int:
        back = len(self.buffer)
        self.buffer += FRAME.pack(len(record), back) + record
        return self.origin + back

    def count_records(self) -> int:
        """The number of records, counted one by one."""
        buffer = self.buffer
        pos = BLOCK_BYTES
        count = 0
        while pos < len(buffer):
            pos += FRAME_BYTES + FRAME.unpack_from(buffer, pos)[0]
            count += 1
        return count


class CommitGroup:
    """The blocks that one commit writes, and the waiters and callbacks to notify."""

    __slots__ = ("blocks", "callbacks", "may_wait", "waiters")

    def __init__(self) -> None:
        self.blocks: list[PendingBlock] = []
        self.callbacks: deque[Callable[[], None]] = deque()
        self.waiters: list[Lock] = []
        self.may_wait = True  # for a full disk; False on an event loop
