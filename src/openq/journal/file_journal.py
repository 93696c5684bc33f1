"""The journal on disk: segments in a directory, recovery, reading, retention, one process per directory."""

from __future__ import annotations

import errno
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock, current_thread

from openq.errors import (
    CannotOpen,
    Closed,
    DiskFull,
    HistoryUnavailable,
    InvalidSetting,
    JournalDamaged,
    JournalFailed,
    OutOfRoom,
    keep_private,
)
from openq.journal import clean_shutdown, data_format
from openq.journal.bounds import BoundsFile
from openq.journal.content import index_rows
from openq.journal.disk import NO_SPACE, DiskIo, close_quietly, write_all
from openq.journal.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    frames,
    make_location,
    offset_of,
    segment_of,
)
from openq.journal.index import RowsOf, SegmentIndex, index_path
from openq.journal.index import build as build_index
from openq.journal.index import load as load_index
from openq.journal.index import save as save_index
from openq.journal.lockfile import DirectoryLock
from openq.journal.pace import WorkRests
from openq.journal.pending import SegmentFile
from openq.journal.pool import SpareSegment, clear_temporaries
from openq.journal.reader import RecordReader
from openq.journal.recovery import Recovered, damaged_end, recover, unreadable
from openq.journal.scan import Block, SegmentScan, segment_path
from openq.journal.segments import SegmentInfo
from openq.journal.tail import RecordTail
from openq.journal.writer import MIN_SEGMENT, GroupCommitWriter

log = logging.getLogger("openq.journal")

MIB = 1 << 20
MAX_SEGMENT = 1 << 30
MAX_UNREPORTED_DAMAGE = 100
MANY_SIDECARS = 2  # then they come before zeros: segments are filled faster than they are indexed
NEWEST_INDEX_BYTES = 32 << 20  # a larger index of the current segment is not kept in memory
SIDECAR_REST = 4  # how long the traffic is left alone, as a multiple of the work done in one go
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class Journal(GroupCommitWriter):
    """An append-only log of records. Each record has a location; locations only grow, and 0 means none.

    `lock` guards both the engine and `append`, so that decisions of the engine and records of the journal
    have the same order. No method writes or syncs while the lock is held.

    With the lock held: `append` (returns the location), `after_commit` (calls back without the lock once all
    records appended so far are durable, or `error` is set), `after_commit_of` (the same for a record in the
    commit under way), `can_publish` (False when only the reserve for acks is left on the disk). Without the
    lock: `wait` (returns once the record is durable; raises JournalFailed), `read`, `read_many`, `replay`,
    `segments`, `index`, `drop_before`, `close`. Either way: `flush` (requests a commit, does not wait).

    Every record before `durable_location` is on disk. `error` is set once, for good, by the first write or
    sync that failed. `first_record`, if set, makes the first record of each new segment.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 64 * MIB,
        first_segment_bytes: int = MIB,
        reserve_bytes: int = 16 * MIB,
        salt: int | None = None,
        now_ms: Callable[[], int] | None = None,
        io: DiskIo | None = None,
        rows_of: RowsOf | None = None,
    ) -> None:
        if not MIN_SEGMENT <= segment_bytes <= MAX_SEGMENT:
            raise InvalidSetting(f"segment_bytes must be {MIN_SEGMENT} to {MAX_SEGMENT}, not {segment_bytes}")
        io = io or DiskIo()
        now_ms = now_ms or _wall_ms
        first_bytes = max(MIN_SEGMENT, min(first_segment_bytes, segment_bytes))
        self.path = os.path.abspath(path)
        keep_private(self.path)
        directory = os.path.join(self.path, "journal")
        folder_lock: DirectoryLock | None = None
        try:
            io.mkdir(directory)
            folder_lock = DirectoryLock(self.path, now_ms())
            found = recover(io, directory)
            clear_temporaries(io, directory)
            if found is not None:
                salt = found.headers[0].salt
            elif salt is None:
                salt = int.from_bytes(os.urandom(8), "little")
            super().__init__(io, directory, now_ms, salt, (first_bytes, segment_bytes, max(reserve_bytes, 0)))
            self._bounds = BoundsFile(io, directory, salt)
            if found is None:
                self._create()
            else:
                self._resume(found)
                self._bounds.adopt()
            self._record_bounds()
            data_format.write(io, self.path)
            # The number that the last process left when it closed the journal; None if it did not close it.
            self.clean_number = (
                clean_shutdown.consume(io, self.path, salt, self.end_location) if found is not None else 0
            )
            self.next_clean_number = self.clean_number or 0
        except BaseException as error:
            if hasattr(self, "_bounds"):
                self._bounds.close()
            if folder_lock is not None:
                folder_lock.release()
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise DiskFull(f"no room for a journal in {self.path}") from error
            if isinstance(error, OSError):
                raise CannotOpen(self.path, _open_failure_text(self.path, error)) from error
            raise
        self._folder_lock = folder_lock
        self._on_damage: Callable[[JournalDamaged], None] | None = None
        self._unreported_damage: list[JournalDamaged] = []  # found before a callback was registered
        self._rows_of = rows_of or index_rows
        self._reader = RecordReader(io, salt, self._path_of)
        # The last index of the current segment that was asked for, and the location up to which it reads.
        self._newest_index: tuple[int, SegmentIndex] | None = None
        self._dropping = Lock()
        self._ending = Lock()
        self._ended = False
        self._drop_failed = False
        _journals.add(self)
        self._writer.start()
        self._preparer.start()

    def _create(self) -> None:
        """Create the first segment. The parent folders are new too, so their entries need a sync as well."""
        segment = SegmentFile(1, segment_path(self.directory, 1), self._next_size)
        segment.first_block = 1
        spare = self._pool.make(self._next_size, fill=True)
        try:
            write_all(self._io, spare.fd, self._header(segment), 0)
            self._io.fsync(spare.fd)
            self._io.rename(spare.path, segment.path)
            for directory in (self.directory, self.path, os.path.dirname(self.path)):
                self._io.fsync_dir(directory)
        except OSError:
            close_quietly(self._io, spare.fd)
            raise
        segment.fd = spare.fd
        segment.named = True
        self._segments = {1: segment}
        self._next_size = min(self._next_size * 2, self._max_size)
        self._start(segment, HEADER_BYTES, 1)

    def _resume(self, found: Recovered) -> None:
        segments = {}
        for header, size in zip(found.headers, found.sizes, strict=True):
            segment = SegmentFile(header.number, segment_path(self.directory, header.number), size)
            segment.first_block = header.first_block
            segment.named = True
            segment.used = size
            segments[header.number] = segment
        self._segments = segments
        segment.fd, segment.used = found.fd, found.end
        self._next_size = min(max(self._next_size, found.headers[-1].size) * 2, self._max_size)
        self._pool.adopt_reserve()
        self._start(segment, found.end, found.next_block)
        if found.headers[-1].from_reserve:
            # The disk was full: this segment is kept for acks until there is another reserve.
            segment.spare = SpareSegment(segment.path, segment.fd, segment.size, is_reserve=True)
            self._pool.full = True
            self._pool.refill(self._next_size)

    @property
    def io(self) -> DiskIo:
        """The disk access of the journal, for files that are stored beside it."""
        return self._io

    def announce(self, url: str) -> None:
        """Publish the URL of this process, for processes that find the folder in use."""
        self._folder_lock.announce(url)

    def on_damage(self, callback: Callable[[JournalDamaged], None]) -> None:
        """Register a callback for damage found in the background, where no caller gets an error for it."""
        self._on_damage = callback
        met, self._unreported_damage = self._unreported_damage, []
        for error in met:
            callback(error)

    def _report_damage(self, error: JournalDamaged) -> None:
        if self._on_damage is not None:
            self._on_damage(error)
        elif len(self._unreported_damage) < MAX_UNREPORTED_DAMAGE:
            self._unreported_damage.append(error)

    # -- reading: without the lock

    def clear_cache(self) -> None:
        """Free the memory of the read cache and of the index of the current segment."""
        self._newest_index = None
        self._reader.clear_cache()

    def read(self, location: int) -> bytes:
        if location >= self.durable_location:
            record = self._read_live(location)
            if record is not None:
                return record
        try:
            return self._reader.read(location)
        except JournalDamaged:
            self._path_of(segment_of(location))  # raises if dropped meanwhile, which is not damage
            raise
        except OSError as error:
            raise unreadable(self._path_of(segment_of(location)), offset_of(location), error) from error

    def read_many(self, locations: Sequence[int]) -> list[bytes]:
        if not locations:
            return []
        if max(locations) >= self.durable_location:
            return [self.read(location) for location in locations]
        try:
            return self._reader.read_many(locations)
        except JournalDamaged:
            self._path_of(segment_of(min(locations)))
            raise
        except OSError:
            return [self.read(location) for location in locations]  # one by one, to find the damaged one

    def _read_live(self, location: int) -> bytes | None:
        for block in self._live:
            back = location - block.origin
            if BLOCK_BYTES <= back < len(block):
                return block.read(back)
        return None

    def _path_of(self, number: int) -> str:
        if self._closing:
            raise Closed()
        segment = self._segments.get(number)
        if segment is None:
            raise HistoryUnavailable(f"segment {number} of the journal is not kept (any more)")
        return segment.path

    def tail(self, location: int, damaged: Callable[[JournalDamaged], None]) -> RecordTail:
        """A reader of the durable records at and after a location. Damage is reported and skipped."""
        return RecordTail(self._io, self._salt, self._durable_view, location, damaged)

    def _durable_view(self) -> tuple[dict[int, SegmentFile], int]:
        # In this order: a segment is listed before a location in it is durable.
        durable = self.durable_location
        return ({} if self._closing else self._segments), durable

    def replay(
        self, start_location: int = 0, damaged: Callable[[JournalDamaged], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Every record from `start_at` on. Damage is raised, or passed to `damaged` and skipped."""
        with self.lock:
            end_location = self.durable_location
            segments = [s for s in self._segments.values() if s.number <= segment_of(end_location)]
        if start_location > end_location:
            raise JournalDamaged(
                segments[-1].path,
                offset_of(end_location),
                f"the journal ends here, but {start_location:#x} is asked for",
            )
        if segment_of(start_location) and segment_of(start_location) < segments[0].number:
            path = segment_path(self.directory, segment_of(start_location))
            raise JournalDamaged(path, 0, "this segment is missing")
        segments = [s for s in segments if s.number >= segment_of(start_location)]
        return self._replay(segments, start_location, end_location, damaged)

    def _replay(
        self,
        segments: list[SegmentFile],
        start_location: int,
        end_location: int,
        damaged: Callable[[JournalDamaged], None] | None,
    ) -> Iterator[tuple[int, bytes]]:
        last = segments[-1]
        for segment, following in zip(segments, [*segments[1:], last], strict=True):
            stop = offset_of(end_location) - BLOCK_BYTES if segment is last else None
            try:
                fd = self._io.open(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                self._path_of(segment.number)  # raises if dropped meanwhile
                raise
            scan = SegmentScan(self._io, fd, segment.number, self._salt, segment.first_block)
            next_first = None if segment is last else following.first_block
            try:
                for block in self._blocks(segment, scan, stop, next_first, damaged):
                    base = make_location(segment.number, block.base)
                    if block.count and base + block.end > start_location:
                        records = frames(block.data, block.pos, block.end, base)
                        if base + block.pos >= start_location:
                            yield from records
                        else:
                            yield from (record for record in records if record[0] >= start_location)
            except OSError as error:
                raise unreadable(segment.path, scan.offset, error) from error
            finally:
                self._io.close(fd)

    def _blocks(
        self,
        segment: SegmentFile,
        scan: SegmentScan,
        stop: int | None,
        next_first: int | None,
        damaged: Callable[[JournalDamaged], None] | None,
    ) -> Iterator[Block]:
        """The blocks up to `stop`, or up to the next segment. Damage is raised, or reported and skipped."""

        def is_damage() -> bool:
            if scan.offset >= stop if stop is not None else scan.next_number == next_first:
                return False
            self._path_of(segment.number)  # its file may have been dropped and recycled
            if next_first is not None:
                error = damaged_end(segment.path, scan, next_first)
            else:
                error = JournalDamaged(segment.path, scan.offset, f"block {scan.next_number} is unreadable")
            if damaged is None:
                raise error
            damaged(error)
            return True

        return scan.blocks_beyond(stop, is_damage)

    # -- segments

    def segments(self) -> list[SegmentInfo]:
        current = self._writing.number
        return [
            SegmentInfo(s.number, s.path, s.used, s.first_ms, s.last_ms, s.number < current)
            for s in self._segments.values()
        ]

    def index(
        self,
        number: int,
        damaged: Callable[[JournalDamaged], None] | None = None,
        pause: Callable[[], None] | None = None,
    ) -> SegmentIndex:
        """The messages of a segment. Raises HistoryUnavailable when the segment is not kept.

        The index of the current segment covers the records that are durable by the call. It is built again
        when there are more of them. Damage is raised, or passed to `damaged` and left out.
        """
        path = self._path_of(number)
        segment = self._segments.get(number)
        first_block = segment.first_block if segment is not None else None
        following = self._segments.get(number + 1)
        if following is not None:
            try:
                return load_index(index_path(path), self._io)
            except FileNotFoundError:
                pass
            except ValueError as error:
                log.warning("%s; it is built again", error)
                detail = "this index does not match its checksum; it is built again"
                self._report_damage(JournalDamaged(index_path(path), 0, detail))
            except OSError as error:
                log.warning("%s; it is built again", error)
        else:
            newest = self._newest_index
            if newest is not None and newest[0] == self.durable_location and segment_of(newest[0]) == number:
                return newest[1]
        is_whole = damaged is not None  # without a callback, damage ends the current segment silently

        def report(error: JournalDamaged) -> None:
            nonlocal is_whole
            is_whole = False
            assert damaged is not None
            damaged(error)

        try:
            fd = self._io.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._path_of(number)  # raises if dropped meanwhile
            raise
        scan = SegmentScan(self._io, fd, number, self._salt, first_block)
        try:
            end_location = self.durable_location
            # False for a sealed segment: for a moment the next segment is known while `durable_location` is
            # still in this one.
            current = following is None and segment_of(end_location) == number
            stop = offset_of(end_location) - BLOCK_BYTES if current else None
            if segment is not None and (following is not None or (current and damaged is not None)):
                next_first = None if following is None else following.first_block
                blocks = self._blocks(segment, scan, stop, next_first, report if damaged else None)
            else:
                blocks = scan.blocks(stop)
            index = build_index(blocks, self._rows_of, pause or self._pause)
        except OSError as error:
            raise unreadable(path, scan.offset, error) from error
        finally:
            self._io.close(fd)
        if current and is_whole and len(index.rows) <= NEWEST_INDEX_BYTES:
            self._newest_index = end_location, index
        return index

    def _pause(self) -> None:
        """Yield to other threads that wait for the interpreter: an index is built beside the traffic."""
        if self._closing:
            raise Closed()
        time.sleep(0)

    def _prepare_segments(self) -> float | None:
        """The task of the preparer thread: first the files that the writer will need, then one sidecar at a
        time."""
        again = super()._prepare_segments()
        newest = self._newest_index
        if newest is not None and segment_of(newest[0]) != self._writing.number:
            self._newest_index = None
        with self._dropping:
            self._record_bounds()
        waiting = [segment for segment in self._segments.values() if self._needs_sidecar(segment)]
        if again is None and len(waiting) < MANY_SIDECARS:
            again = self._pool.fill_ahead()
            if again is not None:
                return again  # the sidecars wait: the next segment is needed first
        if waiting:
            segment = waiting[0]
            segment.indexed = True  # also on failure: `index` tries again on request
            self._make_sidecar(segment)
            return 0.0
        return again

    def _needs_sidecar(self, segment: SegmentFile) -> bool:
        return segment.number < self._writing.number and not segment.indexed

    def _record_bounds(self) -> None:
        """Record the bounds, which serve to detect a missing segment later. The journal works without them,
        so a failure is only logged."""
        oldest = next(iter(self._segments.values()))
        try:
            self._bounds.record(oldest.number, oldest.first_block, self._writing.number)
        except OSError as error:
            log.warning("the bounds of the journal are not recorded: %s", error)

    def _make_sidecar(self, segment: SegmentFile) -> None:
        path = index_path(segment.path)
        rests = WorkRests(SIDECAR_REST)

        def pause() -> None:
            self._pause()
            if segment.number + MANY_SIDECARS > self._writing.number:
                rests.rest()

        try:
            try:
                index = load_index(path, self._io)
            except (FileNotFoundError, ValueError):
                index = self.index(segment.number, pause=pause)
                with self._dropping:
                    if segment.number in self._segments:
                        save_index(self._io, path, index)
        except (HistoryUnavailable, Closed):
            return
        except JournalDamaged as error:
            log.warning("no index for %s: %s", segment.path, error)
            self._report_damage(error)
            return
        except (OSError, OutOfRoom) as error:
            log.warning("no index for %s: %s", segment.path, error)
            return
        segment.first_ms, segment.last_ms = index.first_ms, index.last_ms

    def drop_before(self, segment_number: int) -> int:
        """Drop the segments before this one, oldest first, each with its own directory sync: a crash leaves a
        suffix without gaps.

        A failure is logged and ends the call; the remaining segments are dropped next time.
        """
        dropped = 0
        with self._dropping:
            newest = self._writing.number
            first = self._segments.get(min(segment_number, newest))
            if first is None or first is next(iter(self._segments.values())) or self._drop_failed:
                return 0
            try:
                # Recorded before the first segment is removed: a crash must not make a freed segment look
                # lost.
                self._bounds.record(first.number, first.first_block, newest)
            except OSError as error:
                log.warning("nothing is dropped: %s", error)
                return 0
            for segment in list(self._segments.values()):
                if segment.number >= first.number or self._drop_failed:
                    break
                if not self._discard(segment):
                    break
                dropped += 1
        if dropped:
            self._preparer.wake()
        return dropped

    def _discard(self, segment: SegmentFile) -> bool:
        with self.lock:
            self._check_usable()
            self._segments = {n: s for n, s in self._segments.items() if s is not segment}
        self._reader.forget(segment.number)
        try:
            with suppress(FileNotFoundError):
                self._io.unlink(index_path(segment.path))
            if segment.size != self._max_size or not self._pool.recycle(segment.path, segment.size):
                self._io.unlink(segment.path)
        except OSError as error:
            log.warning("cannot drop %s: %s", segment.path, error)
            with self.lock:
                self._segments = {segment.number: segment, **self._segments}
            return False
        try:
            self._io.fsync_dir(self.directory)
        except OSError as error:
            # It is unknown whether the removal is on disk; dropping later segments could leave a gap. A
            # restart finds out.
            log.warning("cannot sync %s: %s", self.directory, error)
            self._drop_failed = True
        return True

    # -- closing

    def close(self) -> None:
        with self.lock:
            self._room = -1
            self._asleep = False
            self._closing = True
        self._flag.set()
        if current_thread() is not self._writer:
            self._writer.join()
        with self._ending:
            if not self._ended:
                # Every step can be repeated: closing again completes an interrupted close.
                _journals.discard(self)
                self._preparer.stop()
                self._newest_index = None
                self._bounds.close()
                self._pool.close()
                self._reader.close()
                fd, self._writing.fd = self._writing.fd, -1
                if fd >= 0:
                    close_quietly(self._io, fd)
                self._write_clean()
                self._folder_lock.release()
                self._ended = True

    def _write_clean(self) -> None:
        if self.error is None and self.durable_location == self.end_location:
            try:
                clean_shutdown.write(
                    self._io, self.path, self._salt, self.end_location, self.next_clean_number
                )
            except OSError as error:
                log.warning("%s is closed, but that cannot be noted: %s", self.path, error)

    def _after_fork(self) -> None:
        """In a forked child: stop using the files, which two processes must not write. The parent is not
        affected."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self.error = JournalFailed("this process was forked from the one that opened the journal")
        self._room = -1
        self._closing = True
        self._ended = True
        self._folder_lock.forget()


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _disable_in_child() -> None:
    for journal in list(_journals):
        journal._after_fork()


os.register_at_fork(after_in_child=_disable_in_child)


def _open_failure_text(path: str, error: OSError) -> str:
    """Why a directory cannot be used for a journal, and how to fix it."""
    if error.errno in _FORBIDDEN:
        return (
            f"no permission to write {error.filename or path} ({error.strerror}); "
            f"{path} and all in it must be writable for the user who runs this"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        above = path
        while not os.path.lexists(above) and above != os.path.dirname(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            kind = "a file" if os.path.isfile(above) else "not a directory"
            return f"{above} is {kind}; give a directory, which is made if it is not there"
    where = error.filename or path
    return f"{error.strerror or error} ({where}); give a directory on a disk that can be written"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
