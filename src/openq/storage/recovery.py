"""Opening a journal: what is there, where it ends, and whether anything is wrong with it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from openq.errors import JournalDamaged
from openq.storage.disk import Io
from openq.storage.scan import SegmentScan, has_successor, read_headers, segment_path
from openq.storage.segment import SegmentHeader
from openq.storage.stock import RESERVE

log = logging.getLogger("openq.journal")


@dataclass(slots=True)
class Recovered:
    headers: list[SegmentHeader]
    sizes: list[int]
    fd: int  # the last segment, open for writing
    end: int  # where its next block goes
    next_block: int


def recover(io: Io, directory: str) -> Recovered | None:
    """Find the end of the journal; None when there is none yet. Raises JournalDamaged, changes nothing."""
    headers = read_headers(io, directory)
    if not headers:
        _refuse_leftovers(io, directory)
        return None
    last = headers[-1]
    sizes = [_size(io, segment_path(directory, header.number)) for header in headers]
    path = segment_path(directory, last.number)
    if has_successor(io.listdir(directory), last.number):
        raise JournalDamaged(segment_path(directory, last.number + 1), 0, "this segment is missing")
    fd = io.open(path, os.O_RDWR)
    try:
        scan = SegmentScan(io, fd, last.number, last.salt, last.first_block)
        for _ in scan.blocks():
            pass
        later = scan.find_later()
        if later is not None:
            raise damaged(path, scan, later)
        torn = scan.torn()
        if torn is not None:
            log.warning("%s: cut a torn tail of about %d bytes at offset %d", path, torn, scan.offset)
        # What a killed process wrote but did not sync is readable and may still be lost with the power:
        # before anyone builds on it, it has to be on disk.
        io.fdatasync(fd)
        io.fsync_dir(directory)
    except BaseException:
        io.close(fd)
        raise
    assert scan.next_number is not None
    return Recovered(headers, sizes, fd, scan.offset, scan.next_number)


def damaged(path: str, scan: SegmentScan, later: tuple[int, int]) -> JournalDamaged:
    offset, number = later
    first, last = scan.next_number, number - 1
    lost = "the numbering has a gap" if last < (first or 0) else f"blocks {first} to {last} are unreadable"
    return JournalDamaged(
        path, scan.offset, f"{offset - scan.offset} bytes, {lost}, but block {number} after them is intact"
    )


def damaged_end(path: str, scan: SegmentScan, next_first: int) -> JournalDamaged:
    """A sealed segment that stops before the block that the next segment says comes first."""
    return JournalDamaged(
        path,
        scan.offset,
        f"blocks {scan.next_number} to {next_first - 1} are unreadable, but the next segment is there",
    )


def unreadable(path: str, offset: int, error: OSError) -> JournalDamaged:
    """The disk itself refuses to give back what was stored."""
    return JournalDamaged(path, offset, f"it cannot be read ({error})")


def _refuse_leftovers(io: Io, directory: str) -> None:
    """A journal always has a segment. Without one, these files say that somebody removed it."""
    for name in io.listdir(directory):
        if name == RESERVE or name.endswith(".idx"):
            raise JournalDamaged(os.path.join(directory, name), 0, "the segments of this journal are missing")


def _size(io: Io, path: str) -> int:
    fd = io.open(path, os.O_RDONLY)
    try:
        return io.file_size(fd)
    finally:
        io.close(fd)
