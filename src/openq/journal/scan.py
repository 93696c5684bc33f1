"""Walk through segment files block by block, verifying each: for opening, replay, check and repair."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from openq.errors import JournalDamaged
from openq.journal.disk import DiskIo, read_all
from openq.journal.format import (
    BLOCK_BYTES,
    BLOCK_MAGIC_BYTES,
    HEADER_BYTES,
    BadHeader,
    BlockHead,
    SegmentHeader,
    block_head,
    last_number,
    unpack_header,
    verify,
)

CHUNK = 4 << 20
SUFFIX = ".seg"


@dataclass(frozen=True, slots=True)
class Block:
    """A verified block: `data[pos:end]` are its frames, `base` is the file offset of data[0]."""

    offset: int
    number: int
    last: int
    count: int
    data: bytes
    pos: int
    end: int
    base: int


class SegmentScan:
    """The valid blocks of one file in order. Afterwards `offset` and `next_number` are where the scan
    stopped."""

    def __init__(
        self, io: DiskIo, fd: int, number: int, salt: int, next_number: int | None, offset: int = HEADER_BYTES
    ) -> None:
        self._io = io
        self._fd = fd
        self._number = number
        self._salt = salt
        self._size = io.file_size(fd)
        self.offset = offset
        self.next_number = next_number  # None: unknown, the first block decides

    def blocks(self, stop: int | None = None) -> Iterator[Block]:
        """The blocks up to file offset `stop`, or as far as they are valid and numbered without a gap."""
        data = b""
        base = self.offset
        limit = self._size if stop is None else min(stop, self._size)
        while self.offset < limit:
            pos = self.offset - base
            if len(data) - pos < BLOCK_BYTES:
                data, base, pos = self._read(CHUNK), self.offset, 0
            head = block_head(data, pos)
            if head is None or not self._plausible(head):
                return
            whole = BLOCK_BYTES + head.length
            # A header that claims more bytes than the file has is damaged: allocate no memory for it.
            if self.offset + whole > self._size:
                return
            if pos + whole > len(data):
                data, base, pos = self._read(max(CHUNK, whole)), self.offset, 0
            if not verify(data, pos, head, self._salt, self.offset):
                return
            last = last_number(data, pos, head)
            start, end = pos + BLOCK_BYTES, pos + BLOCK_BYTES + head.length
            block = Block(self.offset, head.number, last, head.count, data, start, end, base)
            self.offset = base + end
            self.next_number = last + 1
            yield block

    def blocks_beyond(self, stop: int | None, is_damage: Callable[[], bool]) -> Iterator[Block]:
        """Like `blocks`, and also the intact blocks behind damage. `is_damage` is called wherever the blocks
        end."""
        while True:
            yield from self.blocks(stop)
            if not is_damage():
                return
            later = self.find_later()
            if later is None:
                return
            self.offset, self.next_number = later

    def _read(self, size: int) -> bytes:
        # A file that was cut inside its header ends before its first block begins.
        return read_all(self._io, self._fd, max(0, min(size, self._size - self.offset)), self.offset)

    def _plausible(self, head: BlockHead) -> bool:
        return head.segment == self._number and self.next_number in (None, head.number)

    def torn(self) -> int | None:
        """The number of bytes of a partly written block at `offset`, if there is one; for reports."""
        head = block_head(self._read(BLOCK_BYTES), 0)
        if head is None or not self._plausible(head):
            return None
        return min(BLOCK_BYTES + head.length, self._size - self.offset)

    def find_later(self) -> tuple[int, int] | None:
        """(offset, number) of the first valid block after `offset` that is not older than expected.

        Such a block was written after a sync of everything before it, so the unreadable part before it is
        damage and not a torn tail. Searches every byte: the length in a damaged header is useless.
        """
        return self._find(self.offset, self.next_number or 0, self._number)

    def find_number(self) -> int | None:
        """The segment number in the first valid block: for a file without its header."""
        found = self._find(HEADER_BYTES, 0, None)
        if found is None:
            return None
        head = block_head(read_all(self._io, self._fd, BLOCK_BYTES, found[0]), 0)
        return None if head is None else head.segment

    def _find(self, start: int, least: int, number: int | None) -> tuple[int, int] | None:
        while start < self._size:
            data = read_all(self._io, self._fd, CHUNK + BLOCK_BYTES, start)
            pos = data.find(BLOCK_MAGIC_BYTES)
            while pos >= 0 and pos < CHUNK:
                head = block_head(data, pos)
                offset = start + pos
                if head is not None and number in (None, head.segment) and head.number >= least:
                    whole = BLOCK_BYTES + head.length
                    if offset + whole <= self._size:
                        block = data[pos : pos + whole]
                        if len(block) < whole:
                            block = read_all(self._io, self._fd, whole, offset)
                        if verify(block, 0, head, self._salt, offset):
                            return offset, head.number
                pos = data.find(BLOCK_MAGIC_BYTES, pos + 1)
            start += CHUNK
        return None


def segment_path(directory: str, number: int) -> str:
    return os.path.join(directory, f"{number:016x}{SUFFIX}")


def numbers_in(names: Iterable[str], suffix: str = SUFFIX) -> list[int]:
    """The segment numbers in file names, in order. Other names are ignored."""
    numbers = []
    for name in names:
        stem = name.removesuffix(suffix)
        if len(stem) == 16 and name != stem:
            try:
                numbers.append(int(stem, 16))
            except ValueError:
                continue
    return sorted(numbers)


def segment_numbers(io: DiskIo, directory: str) -> list[int]:
    return numbers_in(io.listdir(directory))


def read_header(io: DiskIo, path: str) -> SegmentHeader:
    """Raises BadHeader."""
    fd = io.open(path, os.O_RDONLY)
    try:
        return unpack_header(read_all(io, fd, HEADER_BYTES, 0))
    finally:
        io.close(fd)


def missing_text(first: int, last: int) -> str:
    return "this segment is missing" if first == last else f"segments {first} to {last} are missing"


def read_headers(
    io: DiskIo, directory: str, describe: Callable[[int, int], str] = missing_text
) -> list[SegmentHeader]:
    """The headers of all segments; raises JournalDamaged on a gap, a bad header or a foreign file.

    `describe` makes the sentence for missing segments from the first and the last of them.
    """
    headers: list[SegmentHeader] = []
    for number in segment_numbers(io, directory):
        path = segment_path(directory, number)
        if headers and number != headers[-1].number + 1:
            missing = headers[-1].number + 1
            raise JournalDamaged(segment_path(directory, missing), 0, describe(missing, number - 1))
        try:
            header = read_header(io, path)
        except BadHeader as error:
            raise JournalDamaged(path, 0, str(error)) from None
        except IsADirectoryError:
            raise JournalDamaged(path, 0, "a directory stands in place of this segment") from None
        if header.number != number:
            raise JournalDamaged(
                path,
                0,
                f"the file is named {number} but is segment {header.number}; repair puts it in its place",
            )
        if headers and (header.salt != headers[0].salt or header.first_block < headers[-1].first_block):
            raise JournalDamaged(path, 0, "this segment belongs to another journal")
        headers.append(header)
    return headers
