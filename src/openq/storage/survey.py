"""Looking through a whole journal without changing it: every block, every damaged place."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from openq.storage.disk import Io
from openq.storage.scan import Block, SegmentScan, has_successor, read_header, segment_numbers, segment_path
from openq.storage.segment import (
    BLOCK_BYTES,
    HEADER_BYTES,
    HOLE_BYTES,
    BadHeader,
    SegmentHeader,
    location,
    offset_of,
    segment_of,
)
from openq.storage.stock import RESERVE

# What can be wrong with a place, in the words of the report.
HEADER = "bad header"
BLOCKS = "unreadable blocks"
TAIL = "unreadable end of a segment"
MISSING = "missing segment"
FOREIGN = "segment of another journal"
LOST_END = "a snapshot covers more than the journal has"
SALT = "no segment header is readable"


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place. Of the blocks first_block..last_block nothing can be read (none: last < first)."""

    kind: str
    segment: int
    file: str
    offset: int
    size: int
    first_block: int
    last_block: int


@dataclass(frozen=True, slots=True)
class Torn:
    """A block that was being written when the process or machine stopped. Opening cuts it: no damage."""

    file: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    segment: int
    block: Block


class Survey:
    """One pass over the journal in `directory`."""

    def __init__(self, io: Io, directory: str) -> None:
        self._io = io
        self._directory = directory
        # Sidecars before segments: in a journal in use, a segment that a sidecar promises is there by then.
        names = io.listdir(directory)
        self.numbers = segment_numbers(io, directory)
        self._followed = bool(self.numbers) and has_successor(names, self.numbers[-1])
        self.headers: dict[int, SegmentHeader] = {}
        for number in self.numbers:
            try:
                self.headers[number] = read_header(io, segment_path(directory, number))
            except (BadHeader, OSError):
                continue
        self.salt = self._find_salt()
        self.end_at = 0  # after `walk`: where the journal's last intact block ends
        self.next_block = 1

    def _find_salt(self) -> int | None:
        """That of most segments: one foreign file must not make all others look foreign."""
        salts = [header.salt for header in self.headers.values()]
        if salts:
            return max(salts, key=salts.count)
        try:
            return read_header(self._io, os.path.join(self._directory, RESERVE)).salt
        except (BadHeader, OSError):
            return None

    def walk(self) -> Iterator[Found | Damage | Torn]:
        """Everything there is, in order."""
        if not self.numbers:
            return
        first, last = self.numbers[0], self.numbers[-1]
        if self._followed:
            last += 1
        if self.salt is None:
            yield self._damage(SALT, first, 0, 0, 1, 0)
            return
        expected = self._first_block(first) or self._guess(first)
        for number in range(first, last + 1):
            if number not in self.numbers or self._is_foreign(number):
                kind = FOREIGN if number in self.numbers else MISSING
                upto = self._next_known(number, expected)
                yield self._damage(kind, number, 0, 0, expected, upto - 1)
                expected = upto
                continue
            following = self._first_block(number + 1)
            try:
                fd = self._io.open(segment_path(self._directory, number), os.O_RDONLY)
            except FileNotFoundError:
                expected = following or expected
                continue  # dropped by the process that owns it, while we look
            try:
                if number not in self.headers:
                    yield self._damage(HEADER, number, 0, HEADER_BYTES, expected, expected - 1)
                expected = yield from self._segment(fd, number, expected, following, number == last)
            finally:
                self._io.close(fd)
        self.next_block = expected

    def _segment(
        self, fd: int, number: int, expected: int, following: int | None, is_last: bool
    ) -> Generator[Found | Damage | Torn, None, int]:
        """The blocks of one file; gives back the number of the block that comes after it."""
        assert self.salt is not None
        offset = HEADER_BYTES
        while True:
            scan = SegmentScan(self._io, fd, number, self.salt, expected, offset)
            for block in scan.blocks():
                yield Found(number, block)
            offset, expected = scan.offset, scan.next_number or expected
            self.end_at = location(number, offset)
            if expected == following:
                return expected
            later = scan.find_later()
            if later is None:
                break
            # In a journal in use the writer may have come by since: look again before calling it damage.
            if next(scan.blocks(), None) is None:
                yield self._damage(BLOCKS, number, offset, later[0] - offset, expected, later[1] - 1)
                offset, expected = later
        if is_last:
            torn = scan.torn()
            if torn is not None:
                yield Torn(segment_path(self._directory, number), offset, torn)
            return expected
        if following is None:
            return expected  # what is lost, if anything, is counted with the unreadable next segment
        size = max(0, self._io.file_size(fd) - offset)
        yield self._damage(TAIL, number, offset, size, expected, following - 1)
        return following

    def _first_block(self, number: int) -> int | None:
        header = self.headers.get(number)
        return None if header is None or self._is_foreign(number) else header.first_block

    def _is_foreign(self, number: int) -> bool:
        header = self.headers.get(number)
        return header is not None and (header.salt != self.salt or header.number != number)

    def _next_known(self, number: int, default: int) -> int:
        """The first block of the segments after `number`, as far as anything tells."""
        for later in self.numbers:
            if later > number and not self._is_foreign(later):
                return self._first_block(later) or self._guess(later, default)
        return default

    def _guess(self, number: int, default: int = 1) -> int:
        """The first block of a segment without a readable header, by its first readable block."""
        if number not in self.numbers or self._is_foreign(number):
            return default
        assert self.salt is not None
        try:
            fd = self._io.open(segment_path(self._directory, number), os.O_RDONLY)
        except FileNotFoundError:
            return default  # dropped while we look
        try:
            found = SegmentScan(self._io, fd, number, self.salt, None).find_later()
        finally:
            self._io.close(fd)
        if found is None:
            return default
        # A damaged stretch before it held at least one block.
        return found[1] if found[0] == HEADER_BYTES else max(found[1] - 1, 1)

    def _damage(self, kind: str, number: int, offset: int, size: int, first: int, last: int) -> Damage:
        return Damage(kind, number, segment_path(self._directory, number), offset, size, first, last)

    def lost_end(self, covered_at: int) -> Iterator[Damage]:
        """After `walk`: what is missing up to `covered_at`, which a snapshot says was durable once.

        Without it new records would get locations that the snapshot believes to be older than itself.
        """
        if not self.numbers or self.salt is None or covered_at <= self.end_at + BLOCK_BYTES:
            return
        number, offset = segment_of(covered_at), offset_of(self.end_at)
        for missing in range(max(self.numbers[-1], segment_of(self.end_at)) + 1, number + 1):
            yield self._damage(MISSING, missing, 0, 0, self.next_block, self.next_block - 1)
        if segment_of(self.end_at) < number:
            offset = HEADER_BYTES  # nothing of its own is left in that segment
        size = max(offset_of(covered_at) - BLOCK_BYTES - offset, HOLE_BYTES)
        yield self._damage(LOST_END, number, offset, size, self.next_block, self.next_block)
