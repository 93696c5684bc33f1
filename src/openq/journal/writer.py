"""Appending and group commit.

One thread at a time takes all pending records as one block: one pwrite, one fdatasync. Then all waiters for
any of these records are released. The committing thread is "openq-writer", or the thread of the only waiter
(`wait`, and `commit_here` for event loops): that saves two thread switches, which cost as much as the sync
itself. Block and file positions are known when a record is appended, so its location is exact before it is
written.

Ctrl-C can interrupt the main thread between any two steps here. So every change takes effect by one
assignment: `_live` is the truth about what is not durable, and values derived from it are only valid while
`_room` says so. The writer repeats an interrupted commit; each part of it can be repeated.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock, Thread, current_thread

from openq.errors import (
    Closed,
    Interruption,
    InvalidSetting,
    JournalFailed,
    OpenQError,
    OutOfRoom,
    Unconfirmed,
)
from openq.journal.claim import claim_file
from openq.journal.disk import TRANSIENT, DiskIo, allocate, close_quietly, exists, write_all, write_pieces
from openq.journal.figures import CommitFigures
from openq.journal.flag import WakeFlag
from openq.journal.format import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    MAX_BLOCK,
    SegmentHeader,
    seal_pieces,
)
from openq.journal.pace import SyncPace
from openq.journal.pending import CommitGroup, PendingBlock, SegmentFile
from openq.journal.pool import SegmentPool, SegmentPreparer, SpareSegment
from openq.journal.scan import segment_path

log = logging.getLogger("openq.journal")

MIN_SEGMENT = 512
IDLE_WAIT_S = 0.004  # how long a record without waiters may stay pending before its commit begins
IDLE_WAITS = 25  # then the writer sleeps until the next append wakes it
NO_SPACE_TIMEOUT_S = 1.0  # how long a commit waits for a full disk before its waiters get an error
MAX_BYTES_HERE = 32 << 10  # of a block that an event loop may write by itself
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)  # from opening a folder, never from its sync

_pack = FRAME.pack


# Not written where it is used, inside a `with`: Python 3.14 puts a jump of a comprehension, at which Ctrl-C
# may arrive, outside the range that leaves the block, and the lock would stay locked.
def _beyond(blocks: list[PendingBlock], origin: int) -> list[PendingBlock]:
    return [block for block in blocks if block.origin > origin]


class GroupCommitWriter:
    """The writing half of Journal, which opens and reads the files."""

    def __init__(
        self,
        io: DiskIo,
        directory: str,
        now_ms: Callable[[], int],
        salt: int,
        sizes: tuple[int, int, int],
    ) -> None:
        first_bytes, segment_bytes, reserve_bytes = sizes
        self.directory = directory
        self.lock = Lock()
        self.error: OpenQError | None = None
        self.first_record: Callable[[], bytes] | None = None  # makes the first record of each new segment
        self.group = 1
        self.durable_location = 0
        # Called after every commit, in the thread that made it; replaced, never modified.
        self.commit_listeners: tuple[Callable[[], None], ...] = ()
        self._io = io
        self._now_ms = now_ms
        self._salt = salt
        self._next_size = first_bytes
        self._max_size = segment_bytes
        self._segments: dict[int, SegmentFile] = {}  # those on disk, by number; replaced, never modified
        self._pool = SegmentPool(io, directory, self.lock, salt, reserve_bytes, first_bytes)
        self._live: list[
            PendingBlock
        ] = []  # all blocks that are not durable, the last one open; replaced, never modified
        self._room = -1  # of the open block; -1 while the next three fields may not match it
        self._buffer = bytearray()
        self._base = 0
        self._origin = 0
        self._count = 0
        self._callbacks: deque[Callable[[], None]] = deque()
        self._waiters: list[Lock] = []
        self._busy: CommitGroup | None = None  # the commit under way
        self._interrupted: CommitGroup | None = (
            None  # a commit whose thread was interrupted; the writer repeats it
        )
        self._stalled: OSError | None = None  # the disk is full, and the commit under way waits for it
        self._urgent = False
        self._asleep = False
        self._closing = False
        self._last_waiters = 0  # number of waiters of the last group
        self._turns = 0  # how often a commit began, or was left to the only waiter
        self._pace = SyncPace()
        self.commit_figures = CommitFigures()
        self._flag = WakeFlag()
        self._writer = Thread(target=self._write_groups, name="openq-writer", daemon=True)
        self._preparer = SegmentPreparer(self._prepare_segments)

    def _start(self, current: SegmentFile, start: int, number: int) -> None:
        """Start writing: everything before `start` in the current segment is on disk; block `number` comes
        next."""
        self._writing = current  # the segment of the last block written
        self._live = [PendingBlock(current, start, number)]
        self._refresh_block()
        self.durable_location = self.end_location

    def _prepare_segments(self) -> float | None:
        return self._pool.refill(self._next_size)

    # -- appending: lock held

    @property
    def end_location(self) -> int:
        block = self._live[-1]
        return block.origin + len(block)

    def append(self, record: bytes) -> int:
        buffer = self._buffer
        back = len(buffer) + self._base
        # One comparison for all unusual cases: no room, failed, closed, or a writer to be woken.
        if back + len(record) > self._room:
            return self._append_slow(record)
        try:
            buffer += _pack(len(record), back) + record  # one step: a block never has half a frame
            self._count += 1
        except BaseException:
            self._room = -1  # the record may be in the buffer but not counted
            raise
        return self._origin + back

    def append_pieces(self, pieces: Sequence[bytes]) -> int:
        """Append a large record by reference: its pieces are written as they are, without being copied."""
        size = sum(map(len, pieces))
        self._prepare_append()
        block = self._live[-1]
        if len(block) + size > self._room:
            return self._start_segment(FRAME_BYTES + size, pieces)
        self._room = -1
        location = block.add_pieces(pieces, size)
        self._refresh_block()
        return location

    def _prepare_append(self) -> None:
        self._check_usable()
        if self._asleep:
            self._wake_writer()
        self._refresh_block()

    def _append_slow(self, record: bytes) -> int:
        self._prepare_append()
        if len(self._live[-1]) + len(record) > self._room:
            return self._start_segment(FRAME_BYTES + len(record), (record,))
        return self.append(record)

    def make_room(self, size: int) -> None:
        """Make room for records of `size` bytes, frames included, in one block, appended under one hold of
        the lock.

        A block is either whole or absent after a crash, and so are its records. Raises DiskFull before any
        change.
        """
        self._prepare_append()
        if len(self._live[-1]) + size > self._room + FRAME_BYTES:
            self._start_segment(size)

    def _refresh_block(self) -> None:
        """Recompute what `append` needs of the open block. `_room` is invalidated first and set last."""
        self._room = -1
        block = self._live[-1]
        self._buffer = block.content.buffer
        self._base = block.content.base
        self._origin = block.origin
        self._count = block.count_records()
        if not (self._asleep or self._closing or self.error is not None or self._stalled is not None):
            self._room = block.room

    def _start_segment(self, size: int, record: Sequence[bytes] | None = None) -> int:
        """Continue in the next segment, which has room for `size` bytes, with or without `record`."""
        # The first record of a segment must be made before the record that caused the new segment.
        first = self.first_record() if self.first_record is not None else None
        need = HEADER_BYTES + BLOCK_BYTES + size
        if first is not None:
            need += FRAME_BYTES + len(first)
        if need > MAX_BLOCK:
            raise InvalidSetting(f"a record of {need} bytes is too large for the journal")
        segment = self._plan_segment(need)
        live = self._live
        block = live[-1]
        if block.is_empty:
            fresh = PendingBlock(segment, HEADER_BYTES, block.number)
            live = live[:-1]
        else:
            block.count = self._count
            fresh = PendingBlock(segment, HEADER_BYTES, block.number + 1)
        if first is not None:
            fresh.add(first)
        location = fresh.origin
        if record is not None:
            is_whole = len(record) == 1
            location = fresh.add(record[0]) if is_whole else fresh.add_pieces(record, size - FRAME_BYTES)
        spare = segment.spare
        self._room = -1
        try:
            if spare is not None:
                self._pool.take(spare)
            self._live = [*live, fresh]
        except BaseException:
            if spare is not None and self._live[-1] is not fresh:
                self._pool.put_back(spare)
            raise
        self._next_size = min(self._next_size * 2, self._max_size)
        self._refresh_block()
        self._preparer.wake()
        return location

    def _plan_segment(self, need: int) -> SegmentFile:
        """The next segment, with a spare file if the pool has one. Raises DiskFull before any change."""
        pool = self._pool
        spare: SpareSegment | None = None
        if pool.spares:
            spare = pool.spares[0]
            size = spare.size
        elif not pool.full:
            # The preparer is late, so the writer will create the file. If the disk is full by then, the
            # segment has to fit into the reserve and leave half of it for acks.
            size = self._next_size
            if pool.reserve is not None:
                size = min(size, max(pool.reserve.size // 2, MIN_SEGMENT))
        elif pool.reserve is not None:
            spare = pool.reserve
            size = spare.size
        else:
            raise pool.refusal("even the reserve for acknowledgements is used up")
        if need > size:
            if pool.full or self._io.free_bytes(self.directory) < need + self._next_size:
                raise pool.refusal(f"no room for a record of {need} bytes")
            size = need
        number = self._live[-1].segment.number + 1
        return SegmentFile(number, segment_path(self.directory, number), size, spare)

    def _check_usable(self) -> None:
        if self.error is not None:
            raise self._failure()
        if self._closing:
            raise Closed()
        if self._stalled is not None:
            raise self._pool.refusal("the disk cannot be written")

    def refusal(self, detail: str) -> OutOfRoom:
        """The error for a publish that `can_publish` refuses."""
        return self._pool.refusal(detail)

    @property
    def shortage(self) -> OSError | None:
        """The reason why publishing is refused, if it is."""
        return self._stalled or self._pool.shortage

    def can_publish(self, size: int) -> bool:
        if self._stalled is not None:
            return False
        block = self._live[-1]
        fits = len(block) + size <= block.room
        if not self._pool.full:
            return fits or bool(self._pool.spares) or self._may_plan()
        spare = block.segment.spare
        if spare is not None and spare.is_reserve:
            return False
        return fits or bool(self._pool.spares)

    def _may_plan(self) -> bool:
        """Whether publishing may continue into a segment that has no file yet, in case the disk is full now.

        The reserve can replace one such segment. A second one, or one without a reserve (in use, or being
        made), needs free space that is visible.
        """
        planned = {
            block.segment.number: block.segment.size
            for block in self._live
            if block.segment.spare is None and not block.segment.named
        }
        if not planned and self._pool.reserve is not None:
            return True
        return self._io.free_bytes(self.directory) > sum(planned.values()) + 2 * self._next_size

    def after_commit(self, callback: Callable[[], None]) -> None:
        if self._closing:
            raise Closed()
        if self._asleep:
            self._wake_writer()
        self._callbacks.append(callback)

    def after_commit_of(self, location: int, callback: Callable[[], None]) -> bool:
        """Like `after_commit`, for a record in the commit under way. False if the record is not in that
        commit."""
        busy = self._busy
        if busy is None or not busy.blocks or location >= self._live[-1].origin:
            return False
        busy.callbacks.append(callback)  # `_finish` reads them after moving `durable_location`
        return True

    # -- waking and waiting

    def flush(self) -> None:
        self._urgent = True
        self._flag.set()

    def _wake_writer(self) -> None:
        """Lock held: the writer sleeps without a timeout; wake it, and from now on it polls."""
        self._flag.set()
        self._asleep = False
        self._refresh_block()

    def wait(self, location: int) -> None:
        while location >= self.durable_location:
            self._wait_for_group(location)

    def _wait_for_group(self, location: int) -> None:
        """Usually waits for the group of the record; after an interrupted commit it may be the group
        before."""
        group = CommitGroup()
        waiter: Lock | None = None
        try:
            with self.lock:
                if location < self.durable_location:
                    return
                if self.error is not None:
                    raise self._failure()
                if location >= self.end_location:
                    raise ValueError(f"nothing was appended at {location:#x}")
                if self._stalled is not None:
                    raise Unconfirmed(str(self._stalled))
                # Callbacks are left to the writer: after an interruption it is unknown which of them have
                # run.
                busy = self._busy
                if busy is None and self._last_waiters < 2 and not self._callbacks:
                    self._take(group)
                else:
                    waiter = Lock()
                    waiter.acquire()
                    if busy is not None and busy.blocks and location < self._live[-1].origin:
                        busy.waiters.append(waiter)  # `_finish` reads them after moving `durable_location`
                    else:
                        self._waiters.append(waiter)
                        if busy is None:
                            self._flag.set()
            if waiter is None:
                self._commit(group)
            else:
                waiter.acquire()
        except BaseException:
            self._hand_over(group)  # after Ctrl-C in the middle of a commit
            raise

    def commit_here(self, callback: Callable[[], None]) -> bool:
        """Commit in the calling thread, an event loop, in place of the writer, which would then call
        `callback`.

        True: everything is committed, or `error` is set, and the callback will not be called. False: it will
        be, as after `after_commit`.

        Only for one short block in the current file, if no other caller waits and the recent commits were
        short (`pace.py`): then the loop is blocked for less time than it takes to wake the writer and to be
        woken by it. On a full disk the loop does not wait; the writer continues the commit.
        """
        group = CommitGroup()
        group.may_wait = False
        try:
            with self.lock:
                if not self._is_simple_commit(callback):
                    return False
                self._take(group)
                group.callbacks.clear()
            self._commit(group)
            return True
        except BaseException as error:
            with self.lock:
                if callback not in self._callbacks and callback not in group.callbacks:
                    (group.callbacks if self._busy is group else self._callbacks).append(callback)
            self._hand_over(group)
            self.flush()
            if not isinstance(error, Unconfirmed):
                raise  # Ctrl-C
            return False

    def _is_simple_commit(self, callback: Callable[[], None]) -> bool:
        """Lock held. Whether the next commit is one short write and one sync, for this callback alone."""
        block = self._live[-1]
        return (
            self._pace.is_short(time.monotonic())
            and self._busy is None
            and len(self._callbacks) == 1
            and self._callbacks[0] == callback
            and not self._waiters
            and self.error is None
            and self._stalled is None
            and not self._closing
            and len(self._live) == 1
            and len(block) <= MAX_BYTES_HERE
            and block.segment.named
            and block.segment.fd >= 0
        )

    def _hand_over(self, group: CommitGroup) -> None:
        """Leave an incomplete commit to the writer. Writing the same block again is harmless; an incomplete
        commit would block every waiter."""
        if self._busy is group:
            group.may_wait = True
            self._interrupted = group
            self._flag.set()

    # -- committing: one thread at a time, the one whose group is in `_busy`

    def _take(self, group: CommitGroup) -> None:
        """Lock held. Everything pending becomes the commit under way.

        An interruption before `_busy` is set has no effect that matters: a closed block stays in `_live` for
        the next commit. After an interruption later on, the waiters are notified once more or later.
        """
        live = self._live
        block = live[-1]
        if not block.is_empty and self.error is None:
            block.count = self._count if self._room >= 0 else block.count_records()
            fresh = PendingBlock(block.segment, block.start + len(block), block.number + 1)
            self._room = -1
            live = [*live, fresh]
            self._live = live
            self._refresh_block()
        group.blocks = live[:-1]
        self._urgent = False
        self._turns += 1
        self.group += 1
        self._last_waiters = len(self._waiters)
        self._busy = group
        group.waiters = self._waiters
        self._waiters = []
        if self._callbacks:
            group.callbacks = self._callbacks
            self._callbacks = deque()

    def _commit(self, group: CommitGroup) -> None:
        try:
            if self.error is None:
                for block in group.blocks:
                    if not block.written:
                        self._write(block)
                        block.written = True  # and its segment may be closed
                if self._stalled is not None:
                    self._end_stall()
        except (Unconfirmed, Interruption):
            raise  # to the thread that committed for itself; the writer takes over
        except OSError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("the journal's writer failed")
            self._fail(repr(error))
        self._finish(group)

    def _write(self, block: PendingBlock) -> None:
        segment = block.segment
        if segment.fd < 0:
            self._open_segment(segment, block.number)
        pieces = block.pieces
        seal_pieces(pieces, self._salt, block.start, block.count, block.number, segment.number)
        began = time.monotonic()
        self._retry_while_full(lambda: self._write_pieces(segment.fd, pieces, block.start))
        self._io.fdatasync(segment.fd)
        ended = time.monotonic()
        self._pace.add(began, ended)
        self.commit_figures.add(ended - began, block.count, len(block))
        segment.used = block.start + len(block)
        if not segment.named:
            # The segment gets its name only now: a named segment always has a complete first block.
            spare = segment.spare
            assert spare is not None
            if spare.path != segment.path:
                self._retry_while_full(lambda: self._name(spare.path, segment.path))
                spare.path = segment.path
            self._retry_while_full(lambda: self._io.fsync_dir(self.directory), NO_DESCRIPTOR)
            self._advance(segment)

    def _write_pieces(self, fd: int, pieces: Sequence[bytes | bytearray], offset: int) -> None:
        if len(pieces) == 1:
            write_all(self._io, fd, pieces[0], offset)
        else:
            write_pieces(self._io, fd, pieces, offset)

    def _name(self, old: str, new: str) -> None:
        if not exists(self._io, new):  # it exists after an interruption just here
            self._io.rename(old, new)

    def _open_segment(self, segment: SegmentFile, first_block: int) -> None:
        """Get the file of a planned segment and write its header."""
        if segment.spare is None:
            claim_file(segment, self._pool, self.lock, self._wait_for_space)
        spare = segment.spare
        assert spare is not None
        spare.begin_use()
        if spare.size < segment.size:
            self._retry_while_full(lambda: allocate(self._io, spare.fd, segment.size))
            spare.size = segment.size
        segment.first_block = first_block
        header = self._header(segment)
        self._retry_while_full(lambda: write_all(self._io, spare.fd, header, 0))
        segment.fd = spare.fd

    def _retry_while_full(self, write: Callable[[], None], transient: tuple[int, ...] = TRANSIENT) -> None:
        """Repeat `write`, which must be safe to repeat, until it succeeds, as long as the error is transient.

        Never used for a sync of data: the state after a failed sync is unknown.
        """
        since = time.monotonic()
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in transient:
                    raise
                self._wait_for_space(error, since)
            time.sleep(0.02)

    def _wait_for_space(self, error: OSError, since: float) -> None:
        """The disk is full in the middle of a commit. After a timeout its waiters get an error that the
        result is uncertain, all further calls are refused, and only the writer keeps trying.
        """
        if self._busy is not None and not self._busy.may_wait:
            raise Unconfirmed(str(error))
        if time.monotonic() - since < NO_SPACE_TIMEOUT_S:
            return
        if self._closing:
            raise error
        with self.lock:
            if self._stalled is None:
                log.error(
                    "cannot write to the disk (%s): every change is refused until it can be written", error
                )
            self._stalled = error
            self._pool.set_shortage(error)
            self._room = -1
            waiters = [*self._waiters, *(self._busy.waiters if self._busy is not None else ())]
        for waiter in waiters:
            if waiter.locked():
                waiter.release()
        if current_thread() is not self._writer:
            raise Unconfirmed(str(error))

    def _end_stall(self) -> None:
        """The transient error is over: accept records again."""
        with self.lock:
            self._stalled = None
            self._refresh_block()
        log.warning("the disk can be written again")
        self._preparer.wake()

    def _advance(self, segment: SegmentFile) -> None:
        """`segment` is on disk under its name, so the segment before it is complete."""
        before = self._writing
        with self.lock:
            self._segments = {**self._segments, segment.number: segment}
            self._writing = segment
            assert segment.spare is not None
            if segment.spare.size > segment.size:
                segment.size = segment.spare.size
                if segment is self._live[-1].segment:
                    self._refresh_block()
            segment.named = True  # last: until then an interruption repeats all of this
        if before is not segment:
            fd, before.fd = before.fd, -1
            close_quietly(self._io, fd)
        self._preparer.wake()

    def _header(self, segment: SegmentFile) -> bytes:
        number, first, size = segment.number, segment.first_block, segment.size
        from_reserve = segment.spare is not None and segment.spare.is_reserve
        return SegmentHeader(number, self._now_ms(), first, size, self._salt, from_reserve).pack()

    def _fail(self, reason: str) -> None:
        log.error("the journal failed and stops acknowledging: %s", reason)
        with self.lock:
            self._room = -1
            self.error = JournalFailed(reason)

    def _failure(self) -> OpenQError:
        # A new exception for each thread: a raised exception carries that thread's traceback.
        return JournalFailed(self.error.reason) if isinstance(self.error, JournalFailed) else Closed()

    def _finish(self, group: CommitGroup) -> None:
        """Notify all waiters. Callbacks of one group are complete before those of the next begin."""
        with self.lock:
            if self.error is None and group.blocks:
                last = group.blocks[-1]
                self.durable_location = last.origin + len(last) + BLOCK_BYTES
                self._live = _beyond(self._live, last.origin)
                group.blocks = []
                group.callbacks.extend(self.commit_listeners)
            if not group.callbacks and not group.waiters:
                self._release()
                return
        for waiter in group.waiters:
            if waiter.locked():  # else it was released before an interruption
                waiter.release()
        callbacks = group.callbacks
        while callbacks:
            callback = callbacks.popleft()
            try:
                callback()
            except Exception:
                log.exception("a callback of the journal failed")
        with self.lock:
            self._release()

    def _has_records(self) -> bool:
        return len(self._live) > 1 or not self._live[-1].is_empty

    def _release(self) -> None:
        """Lock held. The next commit may begin: by the only thread that waits for it, else by the writer."""
        self._busy = None
        waiters = self._waiters
        if not waiters and not self._urgent and self.error is None:
            return
        is_alone = len(waiters) == 1 and self._last_waiters < 2 and not self._callbacks
        if not is_alone or self._urgent or self.error is not None:
            self._flag.set()
            return
        # If it is interrupted before it commits, the writer finds its record after IDLE_WAIT_S.
        self._turns += 1
        if waiters[0].locked():
            waiters[0].release()
        self._waiters = []  # last: an interruption before this wakes it twice, never not at all

    def _write_groups(self) -> None:
        """The writer thread. It polls during traffic, so that `append` need not wake it."""
        quiet = 0
        rested = False
        seen = self._turns
        while True:
            group: CommitGroup | None = None
            with self.lock:
                self._asleep = False
                if seen != self._turns:
                    # Others commit by themselves: what is pending is younger than the last wait.
                    seen, rested, quiet = self._turns, False, 0
                if self._interrupted is not None:
                    group, self._interrupted = self._interrupted, None
                elif self._busy is None:
                    failed = self.error is not None
                    pending = self._callbacks or self._waiters or (self._has_records() and not failed)
                    over = self._closing or failed
                    if pending and (self._urgent or self._waiters or rested or over):
                        group = CommitGroup()
                        self._take(group)
                    elif not pending:
                        self._urgent = False
                        if self._closing:
                            return
                        quiet += rested
                        if quiet >= IDLE_WAITS:
                            self._asleep = True
                            self._room = -1
                asleep = self._asleep
            if group is not None:
                self._commit(group)
                quiet, rested = 0, False
            else:
                rested = not self._flag.wait(None if asleep else IDLE_WAIT_S)
