"""Open a journal: find its segments and its end, and detect damage."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial

from openq.errors import Exhausted, JournalDamaged, OpenQError
from openq.journal import bounds, losses
from openq.journal.disk import NO_RESOURCES, DiskIo
from openq.journal.format import BadHeader, SegmentHeader
from openq.journal.inspect import may_be_segment
from openq.journal.pool import RESERVE
from openq.journal.scan import SegmentScan, numbers_in, read_header, read_headers, segment_path

log = logging.getLogger("openq.journal")


@dataclass(slots=True)
class Recovered:
    headers: list[SegmentHeader]
    sizes: list[int]
    fd: int  # the last segment, open for writing
    end: int  # offset of its next block
    next_block: int


def recover(io: DiskIo, directory: str) -> Recovered | None:
    """Find the end of the journal; None if no journal exists yet. Raises JournalDamaged, changes nothing."""
    headers = read_headers(io, directory, partial(losses.missing_text, io, os.path.dirname(directory)))
    if not headers:
        _refuse_leftovers(io, directory)
        return None
    last = headers[-1]
    _refuse_missing(io, directory, headers)
    sizes = [_size(io, segment_path(directory, header.number)) for header in headers]
    _refuse_cut(io, directory, headers, sizes)
    path = segment_path(directory, last.number)
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
        # Data that a killed process wrote but did not sync is readable and may still be lost on a power
        # failure. It has to be on disk before anything depends on it.
        io.fdatasync(fd)
        io.fsync_dir(directory)
    except BaseException:
        io.close(fd)
        raise
    assert scan.next_number is not None
    return Recovered(headers, sizes, fd, scan.offset, scan.next_number)


def _refuse_missing(io: DiskIo, directory: str, headers: list[SegmentHeader]) -> None:
    """Refuse missing segments at either end that were removed, not freed: see `openq.journal.bounds`."""
    first, last = headers[0].number, headers[-1].number
    known = bounds.read(io, directory)
    names = io.listdir(directory)
    sidecars = numbers_in(names, ".idx")
    wanted = last + 1 if last in sidecars else last
    if known is not None and known.salt == headers[0].salt:
        wanted = max(wanted, known.newest)
        oldest = known.oldest
    else:
        # A sidecar is freed before its segment: a sidecar without a segment shows that the segment was
        # removed.
        oldest = first - 1 if first - 1 in sidecars else first
    _refuse_renamed(io, directory, names, headers)
    for start, end in ((oldest, first - 1), (last + 1, wanted)):
        if start <= end:
            detail = losses.missing_text(io, os.path.dirname(directory), start, end)
            raise JournalDamaged(segment_path(directory, start), 0, detail)


def _refuse_cut(io: DiskIo, directory: str, headers: list[SegmentHeader], sizes: list[int]) -> None:
    """Refuse files that were cut. A file has its full size before its first block, so a shorter one was cut;
    the scan finds out by how much.

    A repaired file stays short, and so does a copy of the used part: both have all blocks up to the next
    segment.
    """
    for header, following, size in zip(headers, headers[1:], sizes, strict=False):
        if size >= header.size:
            continue
        path = segment_path(directory, header.number)
        fd = io.open(path, os.O_RDONLY)
        try:
            scan = SegmentScan(io, fd, header.number, header.salt, header.first_block)
            is_cut = partial(_ends_before, scan, following.first_block)
            for _ in scan.blocks_beyond(None, is_cut):
                pass
            if is_cut():
                raise damaged_end(path, scan, following.first_block)
        finally:
            io.close(fd)


def _ends_before(scan: SegmentScan, block: int) -> bool:
    return scan.next_number != block


def _refuse_renamed(io: DiskIo, directory: str, names: list[str], headers: list[SegmentHeader]) -> None:
    """Refuse a next segment under a name that is not a segment's: there may be no other sign that it is
    missing."""
    for name in names:
        if may_be_segment(name) and not numbers_in([name]):
            path = os.path.join(directory, name)
            try:
                header = read_header(io, path)
            except (BadHeader, OSError):
                continue
            if header.salt == headers[0].salt and header.number == headers[-1].number + 1:
                raise JournalDamaged(
                    path,
                    0,
                    f"this is segment {header.number} under a wrong name; repair puts it in its place",
                )


def damaged(path: str, scan: SegmentScan, later: tuple[int, int]) -> JournalDamaged:
    offset, number = later
    first, last = scan.next_number, number - 1
    lost = "the numbering has a gap" if last < (first or 0) else f"blocks {first} to {last} are unreadable"
    return JournalDamaged(
        path, scan.offset, f"{offset - scan.offset} bytes, {lost}, but block {number} after them is intact"
    )


def damaged_end(path: str, scan: SegmentScan, next_first: int) -> JournalDamaged:
    """The error for a sealed segment that ends before the first block of the next segment."""
    return JournalDamaged(
        path,
        scan.offset,
        f"blocks {scan.next_number} to {next_first - 1} are unreadable, but the next segment is there",
    )


def unreadable(path: str, offset: int, error: OSError) -> OpenQError:
    """The error for a failed read of stored data. A lack of descriptors is not damage: it is transient."""
    if error.errno in NO_RESOURCES:
        return Exhausted(error.strerror or str(error))
    return JournalDamaged(path, offset, f"it cannot be read ({error})")


def _refuse_leftovers(io: DiskIo, directory: str) -> None:
    """Refuse a journal without segments. A journal always has one, so these files show its removal."""
    for name in io.listdir(directory):
        if name in (RESERVE, bounds.NAME) or name.endswith(".idx"):
            raise JournalDamaged(os.path.join(directory, name), 0, "the segments of this journal are missing")


def _size(io: DiskIo, path: str) -> int:
    fd = io.open(path, os.O_RDONLY)
    try:
        return io.file_size(fd)
    finally:
        io.close(fd)
