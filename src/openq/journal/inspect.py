"""Inspect a whole journal without changing it: every block, every damaged place."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from openq.journal import bounds
from openq.journal.disk import DiskIo
from openq.journal.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    HOLE_BYTES,
    BadHeader,
    SegmentHeader,
    make_location,
    offset_of,
    segment_of,
)
from openq.journal.pool import RESERVE, TEMPORARY
from openq.journal.scan import Block, SegmentScan, numbers_in, read_header, segment_path

# The kinds of damage, as worded in the report.
HEADER = "bad header"
BLOCKS = "unreadable blocks"
TAIL = "unreadable end of a segment"
MISSING = "missing segment"
FOREIGN = "segment of another journal"
DIRECTORY = "a directory in place of a segment"
MISNAMED = "segment under a wrong name"
DUPLICATE = "second copy of a segment"
UNREADABLE = "segment that cannot be read"
LOST_END = "a snapshot covers more than the journal has"
SALT = "no segment header is readable"

SIDECAR = ".idx"


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """A damaged place. The blocks first_block..last_block are unreadable (none if last < first).

    `messages` is the maximum number of messages published there. `waiting` is the number of messages there
    that were not settled when the newest snapshot was made. Both are None where unknown.
    """

    kind: str
    segment: int
    file: str
    offset: int
    size: int
    first_block: int
    last_block: int
    target: str = ""  # the name that a misplaced file should have
    messages: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class TornTail:
    """A block that was being written when the process or machine stopped. Opening cuts it off: not damage."""

    file: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundBlock:
    segment: int
    block: Block


class _SegmentCandidate:
    """A file in the folder that is, or may be, a segment."""

    __slots__ = ("error", "header", "name", "named", "path")

    def __init__(self, io: DiskIo, directory: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(directory, name)
        self.named = next(iter(numbers_in([name])), None)  # the number in its name, if it is a segment name
        self.header, self.error = _read_header(io, self.path)
        if self.error is None and (self.header is None or self.header.number != self.named):
            # A running process may have recycled the file between `open` and `read`. Its old name is gone:
            # a second look does not find it. Damage looks the same twice.
            self.header, self.error = _read_header(io, self.path)


def _read_header(io: DiskIo, path: str) -> tuple[SegmentHeader | None, OSError | None]:
    try:
        return read_header(io, path), None
    except BadHeader:
        return None, None
    except OSError as error:
        return None, error


class JournalInspection:
    """One pass over the journal in `directory`.

    The header decides which segment a file holds, whatever the file is called. A file under a wrong name is
    read as the segment that it holds, and reported.
    """

    def __init__(self, io: DiskIo, directory: str) -> None:
        self._io = io
        self._directory = directory
        # In a journal in use, the newest segment named by the bounds exists by the time of the listing.
        # Segments missing at the beginning of the listing are below the bounds that are read after it.
        before = bounds.read(io, directory)
        # Sidecars are listed before segments for the same reason.
        sidecars = numbers_in(io.listdir(directory), SIDECAR)
        names = io.listdir(directory)
        files = [_SegmentCandidate(io, directory, name) for name in sorted(names) if may_be_segment(name)]
        self.salt = self._find_salt(files, before)
        after = bounds.read(io, directory)
        self.bounds = after if after is not None and after.salt == self.salt else None
        self.headers: dict[int, SegmentHeader] = {}
        self._paths: dict[int, str] = {}
        self._strange: dict[int, str] = {}  # other files under the name of a segment
        self._unreadable: dict[int, OSError] = {}
        self.misplaced: list[JournalDamage] = []  # files to be renamed or set aside before any other repair
        self._place(files)
        self.numbers = sorted(self._paths)
        self._first, self._last = self._ends(before, sidecars)
        self.end_location = 0  # after `walk`: where the journal's last intact block ends
        self.next_block = 1

    def path_of(self, number: int) -> str:
        """The file that holds a segment, or the name that it should have."""
        return self._paths.get(number) or segment_path(self._directory, number)

    @property
    def first(self) -> int:
        """The first segment that should exist, as far as known."""
        return self._first

    def expect_from(self, number: int) -> None:
        """Expect the segments from `number` on: records are known to be there, so absent ones are missing."""
        self._first = min(self._first, number)

    def was_dropped(self, damage: JournalDamage, first: int) -> bool:
        """Whether the segment existed under its name when this began, and is below `first` now."""
        number = damage.segment
        return number < first and self._paths.get(number) == segment_path(self._directory, number)

    def _find_salt(self, files: list[_SegmentCandidate], before: bounds.Bounds | None) -> int | None:
        """The salt of most segments, the reserve and the bounds: one foreign file must not decide."""
        salts = [file.header.salt for file in files if file.header is not None and file.named is not None]
        try:
            salts.append(read_header(self._io, os.path.join(self._directory, RESERVE)).salt)
        except (BadHeader, OSError):
            pass
        if before is not None:
            salts.append(before.salt)
        return max(salts, key=salts.count, default=None)

    # -- which file is which segment

    def _place(self, files: list[_SegmentCandidate]) -> None:
        claims: dict[int, list[_SegmentCandidate]] = {}
        strays: list[tuple[int, _SegmentCandidate]] = []
        for file in files:
            number = self._number_of(file)
            if number is None:
                if file.named is not None:
                    self._set_aside(file)
            elif file.named is None:
                strays.append((number, file))
            else:
                claims.setdefault(number, []).append(file)
        lowest = self.bounds.oldest if self.bounds is not None else min(claims, default=0)
        for number, file in strays:
            # A copy under a name of its own is ignored, unless it is the only one left.
            if number >= lowest and number not in claims:
                claims[number] = [file]
        for number, found in claims.items():
            best = found[0]
            if len(found) > 1:
                best = max(found, key=lambda file: (self._reach(file, number), file.named == number))
            self._take(number, best)
            for file in found:
                if file is not best:
                    self._misplace(DUPLICATE, file, number)

    def _number_of(self, file: _SegmentCandidate) -> int | None:
        """The segment in this file; None if it is not of this journal, or was freed long ago."""
        if file.header is not None:
            number = file.header.number
            stale = self.bounds is not None and number < self.bounds.oldest and file.named != number
            return None if file.header.salt != self.salt or not number or stale else number
        if file.named is None or isinstance(file.error, IsADirectoryError):
            return None
        if file.error is not None or self.salt is None:
            return file.named
        try:
            fd = self._io.open(file.path, os.O_RDONLY)
        except OSError:
            return file.named
        try:
            return SegmentScan(self._io, fd, 0, self.salt, None).find_number() or file.named
        except OSError:
            return file.named
        finally:
            self._io.close(fd)

    def _reach(self, file: _SegmentCandidate, number: int) -> int:
        """The number of intact bytes from the beginning of a file: of two copies, the longer is the newer."""
        assert self.salt is not None
        try:
            fd = self._io.open(file.path, os.O_RDONLY)
        except OSError:
            return -1
        try:
            scan = SegmentScan(self._io, fd, number, self.salt, None)
            for _ in scan.blocks():
                pass
            return scan.offset
        except OSError:
            return -1
        finally:
            self._io.close(fd)

    def _take(self, number: int, file: _SegmentCandidate) -> None:
        self._paths[number] = file.path
        if file.header is not None:
            self.headers[number] = file.header
        elif file.error is not None and not isinstance(file.error, FileNotFoundError):
            self._unreadable[number] = file.error
        if file.named != number:
            self._misplace(MISNAMED, file, number)

    def _set_aside(self, file: _SegmentCandidate) -> None:
        assert file.named is not None
        is_directory = isinstance(file.error, IsADirectoryError)
        self._strange[file.named] = DIRECTORY if is_directory else FOREIGN

    def _misplace(self, kind: str, file: _SegmentCandidate, number: int) -> None:
        target = segment_path(self._directory, number)
        self.misplaced.append(JournalDamage(kind, number, file.path, 0, 0, 1, 0, target))

    def _ends(self, before: bounds.Bounds | None, sidecars: list[int]) -> tuple[int, int]:
        """The first and the last segment that should exist, as far as known."""
        if not self.numbers:
            return min(self._strange, default=0), max(self._strange, default=-1)
        first, last = self.numbers[0], self.numbers[-1]
        if self.bounds is not None:
            first = min(first, self.bounds.oldest)
        else:
            # A sidecar is freed before its segment: a sidecar without a segment shows that the segment was
            # removed.
            first = min([first, *(number for number in sidecars if number == first - 1)])
        if before is not None and before.salt == self.salt:
            last = max(last, before.newest)
        # A sidecar is written once the next segment is safely on disk.
        if last in sidecars:
            last += 1
        while first - 1 in self._strange:
            first -= 1
        while last + 1 in self._strange:
            last += 1
        return first, last

    # -- the walk

    def walk(self) -> Iterator[FoundBlock | JournalDamage | TornTail]:
        """All blocks, damages and torn tails, in order."""
        if self._last < self._first:
            return
        if self.salt is None:
            yield self._damage(SALT, self._first, 0, 0, 1, 0)
            return
        yield from self.misplaced
        first, last = self._first, self._last
        for number, kind in self._strange.items():
            if number in self._paths or not first <= number <= last:
                name = segment_path(self._directory, number)
                yield JournalDamage(kind, number, name, 0, 0, 1, 0)
        expected = self._first_expected(first)
        for number in range(first, last + 1):
            if number not in self._paths:
                upto = self._next_known(number, expected)
                yield self._absent(number, 0, expected, upto - 1)
                expected = upto
                continue
            following = self._first_block(number + 1)
            if number in self._unreadable:
                yield self._damage(UNREADABLE, number, 0, 0, expected, expected - 1)
                expected = following or expected
                continue
            try:
                fd = self._io.open(self.path_of(number), os.O_RDONLY)
            except FileNotFoundError:
                expected = following or expected
                continue  # dropped meanwhile by the process that owns it
            try:
                if number not in self.headers:
                    yield self._damage(HEADER, number, 0, HEADER_BYTES, expected, expected - 1)
                expected = yield from self._segment(fd, number, expected, following, number == last)
            finally:
                self._io.close(fd)
        self.next_block = expected

    def _first_expected(self, first: int) -> int:
        if self.bounds is not None and self.bounds.oldest == first:
            return self.bounds.first_block
        if first == 1:
            return 1
        return self._first_block(first) or self._guess(first, self._next_known(first, 1))

    def _segment(
        self, fd: int, number: int, expected: int, following: int | None, is_last: bool
    ) -> Generator[FoundBlock | JournalDamage | TornTail, None, int]:
        """The blocks of one file; returns the number of the block that comes after it."""
        assert self.salt is not None
        offset = HEADER_BYTES
        while True:
            scan = SegmentScan(self._io, fd, number, self.salt, expected, offset)
            for block in scan.blocks():
                yield FoundBlock(number, block)
            offset, expected = scan.offset, scan.next_number or expected
            self.end_location = make_location(number, offset)
            if expected == following:
                return expected
            later = scan.find_later()
            if later is None:
                break
            # In a journal in use the writer may have written here since: read again before reporting damage.
            if next(scan.blocks(), None) is None:
                yield self._damage(BLOCKS, number, offset, later[0] - offset, expected, later[1] - 1)
                offset, expected = later
        if is_last:
            torn = scan.torn()
            if torn is not None:
                yield TornTail(self.path_of(number), offset, torn)
            return expected
        if following is None:
            return expected  # a loss, if any, is counted with the unreadable next segment
        size = max(0, self._io.file_size(fd) - offset)
        yield self._damage(TAIL, number, offset, size, expected, following - 1)
        return following

    def _first_block(self, number: int) -> int | None:
        header = self.headers.get(number)
        return None if header is None else header.first_block

    def _next_known(self, number: int, default: int) -> int:
        """The first block of the segments after `number`, as far as known."""
        for later in self.numbers:
            if later > number and later not in self._unreadable:
                return self._first_block(later) or self._guess(later, default)
        return default

    def _guess(self, number: int, default: int = 1) -> int:
        """The first block of a segment without a readable header, derived from its first readable block."""
        if number not in self._paths or number in self._unreadable:
            return default
        assert self.salt is not None
        try:
            fd = self._io.open(self.path_of(number), os.O_RDONLY)
        except FileNotFoundError:
            return default  # dropped meanwhile
        try:
            found = SegmentScan(self._io, fd, number, self.salt, None).find_later()
        finally:
            self._io.close(fd)
        if found is None:
            return default
        # A damaged stretch before this block held at least one block.
        return found[1] if found[0] == HEADER_BYTES else max(found[1] - 1, 1)

    def _damage(self, kind: str, number: int, offset: int, size: int, first: int, last: int) -> JournalDamage:
        return JournalDamage(kind, number, self.path_of(number), offset, size, first, last)

    def lost_end(self, covered_location: int) -> Iterator[JournalDamage]:
        """After `walk`: the part missing up to `covered_location`, which was durable according to a snapshot.

        Without it new records would get locations that the snapshot takes for older than itself. These
        damages replace the ones that `walk` reported for the same segments: one block stands for all that is
        lost, and the segments after it begin with the next one.
        """
        if not self.numbers or self.salt is None or covered_location <= self.end_location + BLOCK_BYTES:
            return
        number, offset = segment_of(covered_location), offset_of(self.end_location)
        for missing in range(max(self._last, segment_of(self.end_location)) + 1, number):
            yield self._damage(MISSING, missing, 0, 0, self.next_block, self.next_block - 1)
        end = offset_of(covered_location) - BLOCK_BYTES
        if number not in self._paths:
            yield self._absent(number, end, self.next_block, self.next_block)
        else:
            if segment_of(self.end_location) < number:
                offset = HEADER_BYTES  # no block of that segment is left
            size = max(end - offset, HOLE_BYTES)
            yield self._damage(LOST_END, number, offset, size, self.next_block, self.next_block)
        # None of these is left: one with a block, or only a header, would be the end.
        for later in range(number + 1, self._last + 1):
            yield self._absent(later, 0, self.next_block + 1, self.next_block)

    def _absent(self, number: int, size: int, first: int, last: int) -> JournalDamage:
        return self._damage(self._strange.get(number, MISSING), number, 0, size, first, last)


def may_be_segment(name: str) -> bool:
    """Whether a file may hold a segment. Spares hold headers of freed segments; other files have their own
    formats."""
    return name not in (RESERVE, bounds.NAME) and not name.endswith((TEMPORARY, SIDECAR))
