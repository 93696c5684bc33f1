"""Appending and group commit.

One thread at a time takes all pending records as one block: one pwrite, one fdatasync, then everybody
who waits for any of them is released. It is the thread "openq-writer", or a thread in `wait` when it is
alone: that saves two thread switches, which cost as much as the sync itself.
Block and file positions are known when a record is appended, so its location is exact before it is written.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Lock, Thread

from openq.errors import Closed, DiskFull, InvalidSetting, JournalFailed, OpenQError
from openq.storage.disk import FULL, Io, allocate, close_quietly, write_all
from openq.storage.flag import Flag
from openq.storage.pending import Block, Group, Segment
from openq.storage.scan import segment_path
from openq.storage.segment import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    MAX_BLOCK,
    SegmentHeader,
    seal,
)
from openq.storage.stock import Keeper, Spare, Stock

log = logging.getLogger("openq.journal")

LEAST_SEGMENT = 512
NAP_S = 0.004  # how long a record that nobody waits for may lie before its commit begins
QUIET_NAPS = 25  # then the writer sleeps until the next append wakes it
NO_SPACE_PATIENCE_S = 1.0

_pack = FRAME.pack


class GroupWriter:
    """The writing half of FileJournal, which opens the files and reads them."""

    def __init__(
        self,
        io: Io,
        directory: str,
        now_ms: Callable[[], int],
        salt: int,
        sizes: tuple[int, int, int],
    ) -> None:
        first_bytes, segment_bytes, reserve_bytes = sizes
        self.directory = directory
        self.lock = Lock()
        self.error: OpenQError | None = None
        self.opening: Callable[[], bytes] | None = None  # makes the first record of each new segment
        self.group = 1
        self.durable_at = 0
        self._io = io
        self._now_ms = now_ms
        self._salt = salt
        self._next_size = first_bytes
        self._max_size = segment_bytes
        self._segments: dict[int, Segment] = {}  # those on disk, by number; replaced, never changed
        self._stock = Stock(io, directory, self.lock, salt, reserve_bytes, first_bytes)
        self._full_blocks: list[Block] = []  # pending, in segments that have no more room
        self._callbacks: deque[Callable[[], None]] = deque()
        self._waiters: list[Lock] = []
        self._busy: Group | None = None  # the commit under way
        self._handed: Group | None = None  # a commit whose thread was interrupted: the writer repeats it
        self._urgent = False
        self._asleep = False
        self._closing = False
        self._crowd = 0  # how many waited for the last group
        self._flag = Flag()
        self._writer = Thread(target=self._write_groups, name="openq-writer", daemon=True)
        self._keeper = Keeper(self._keep)

    def _start(self, current: Segment, start: int, number: int) -> None:
        """Everything before `start` in the current segment is on disk; block `number` comes next."""
        self._writing = current  # the segment of the last block written
        self._begin(current, start, number)
        self._live: list[Block] = [self._block]  # all that is not durable; replaced, never changed
        self.durable_at = self.end_at

    def _keep(self) -> float | None:
        return self._stock.restock(self._next_size)

    # -- appending: lock held

    @property
    def end_at(self) -> int:
        return self._origin + len(self._buffer)

    def append(self, record: bytes) -> int:
        buffer = self._buffer
        back = len(buffer)
        # One comparison for everything unusual: no room, failed, closed, or a writer to be woken.
        if back + len(record) > self._room:
            return self._append_unusual(record)
        buffer += _pack(len(record), back)
        buffer += record
        self._count += 1
        return self._origin + back

    def _append_unusual(self, record: bytes) -> int:
        self._refuse_if_over()
        if self._asleep:
            self._awaken()
        if len(self._buffer) + len(record) > self._room:
            # What opens a segment must be known before the record that made it necessary.
            first = self.opening() if self.opening is not None else None
            need = HEADER_BYTES + BLOCK_BYTES + FRAME_BYTES + len(record)
            self._roll(need if first is None else need + FRAME_BYTES + len(first))
            if first is not None:
                self._add(first)
        return self._add(record)

    def _add(self, record: bytes) -> int:
        back = len(self._buffer)
        self._buffer += _pack(len(record), back)
        self._buffer += record
        self._count += 1
        return self._origin + back

    def _roll(self, need: int) -> None:
        """Go on in the next segment; `need` is the least size of it."""
        if need > MAX_BLOCK:
            raise InvalidSetting(f"a record of {need} bytes is too large for the journal")
        segment = self._plan(need)
        number = self._block.number
        if self._count:
            self._close_block()
            number += 1
        self._begin(segment, HEADER_BYTES, number)
        self._live = self._live_blocks()
        self._keeper.wake()

    def _plan(self, need: int) -> Segment:
        """The next segment, with a file behind it if one is in stock. Raises DiskFull before any change."""
        stock = self._stock
        spare: Spare | None = None
        if stock.spares:
            spare = stock.spares[0]
            size = spare.size
        elif not stock.full:
            # The keeper is late, the writer will make the file. Should the disk prove full just then, it
            # has to fit into the reserve, and leave half of that for acks.
            size = self._next_size
            if stock.reserve is not None:
                size = min(size, max(stock.reserve.size // 2, LEAST_SEGMENT))
        elif stock.reserve is not None:
            spare = stock.reserve
            size = spare.size
        else:
            raise DiskFull("even the reserve for acknowledgements is used up")
        if need > size:
            if stock.full or self._io.free_bytes(self.directory) < need + self._next_size:
                raise DiskFull(f"no room for a record of {need} bytes")
            size = need
        if spare is not None:
            if spare.is_reserve:
                stock.reserve = None
            else:
                stock.spares.remove(spare)
        self._next_size = min(self._next_size * 2, self._max_size)
        number = self._segment.number + 1
        return Segment(number, segment_path(self.directory, number), size, spare)

    def _begin(self, segment: Segment, start: int, number: int) -> None:
        self._segment = segment
        self._block = Block(segment, start, number)
        self._buffer = self._block.buffer
        self._origin = self._block.origin
        self._count = 0
        self._set_room()

    def _set_room(self) -> None:
        if self._asleep or self._closing or self.error is not None:
            self._room = -1
        else:
            self._room = self._segment.size - self._block.start - FRAME_BYTES

    def _close_block(self) -> None:
        self._block.count = self._count
        self._full_blocks.append(self._block)

    def _live_blocks(self) -> list[Block]:
        busy = self._busy.blocks if self._busy is not None else []
        return [*busy, *self._full_blocks, self._block]

    def _refuse_if_over(self) -> None:
        if self.error is not None:
            raise self._failure()
        if self._closing:
            raise Closed()

    def can_publish(self, size: int) -> bool:
        if not self._stock.full:
            return True
        spare = self._segment.spare
        if spare is not None and spare.is_reserve:
            return False
        room = self._segment.size - self._block.start - FRAME_BYTES
        return len(self._buffer) + size <= room or bool(self._stock.spares)

    def when_durable(self, callback: Callable[[], None]) -> None:
        if self._closing:
            raise Closed()
        self._callbacks.append(callback)
        if self._asleep:
            self._awaken()

    # -- waking and waiting

    def flush(self) -> None:
        self._urgent = True
        self._flag.raise_()

    def _awaken(self) -> None:
        """Lock held: the writer sleeps without a time limit; from now on it naps."""
        self._asleep = False
        self._set_room()
        self._flag.raise_()

    def wait(self, at: int) -> None:
        if at < self.durable_at:
            return
        group = Group()
        waiter: Lock | None = None
        try:
            with self.lock:
                if at < self.durable_at:
                    return
                if self.error is not None:
                    raise self._failure()
                if at >= self.end_at:
                    raise ValueError(f"nothing was appended at {at:#x}")
                if self._busy is None and self._crowd < 2:
                    self._take(group)
                else:
                    waiter = Lock()
                    waiter.acquire()
                    self._waiters.append(waiter)
                    if self._busy is None:
                        self._flag.raise_()
            if waiter is None:
                self._commit(group)
            else:
                waiter.acquire()
        except BaseException:
            # Ctrl-C in the middle of a commit: writing the same block again is harmless, leaving it
            # half done would block everybody.
            if self._busy is group:
                self._handed = group
                self._flag.raise_()
            raise
        if at >= self.durable_at:
            raise self._failure()

    # -- committing: one thread at a time, the one whose group is in `_busy`

    def _take(self, group: Group) -> None:
        """Lock held. All that is pending becomes the commit under way."""
        if self._count:
            self._close_block()
            block = self._block
            self._begin(block.segment, block.start + len(block.buffer), block.number + 1)
        group.blocks = self._full_blocks
        group.callbacks = self._callbacks
        group.waiters = self._waiters
        self._full_blocks = []
        self._callbacks = deque()
        self._waiters = []
        self._urgent = False
        self.group += 1
        self._busy = group
        self._crowd = len(group.waiters)
        if self.error is None:
            self._live = self._live_blocks()

    def _commit(self, group: Group) -> None:
        try:
            if self.error is None:
                for block in group.blocks:
                    self._write(block)
        except OSError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("the journal's writer failed")
            self._fail(repr(error))
        self._finish(group)

    def _write(self, block: Block) -> None:
        segment = block.segment
        if segment.fd < 0:
            self._procure(segment, block.number)
        seal(block.buffer, self._salt, block.start, block.count, block.number, segment.number)
        self._patiently(lambda: write_all(self._io, segment.fd, block.buffer, block.start))
        self._io.fdatasync(segment.fd)
        segment.used = block.start + len(block.buffer)
        if not segment.named:
            # Only now does the segment get its name: whoever finds it finds its first block whole.
            spare = segment.spare
            assert spare is not None
            if spare.path != segment.path:
                self._io.rename(spare.path, segment.path)
                spare.path = segment.path
            self._io.fsync_dir(self.directory)
            self._advance(segment)

    def _procure(self, segment: Segment, first_block: int) -> None:
        """Get the file of a planned segment and write its header."""
        if segment.spare is None:
            segment.spare = self._find_file(segment)
        spare = segment.spare
        if spare.size < segment.size:
            self._patiently(lambda: allocate(self._io, spare.fd, segment.size))
            spare.size = segment.size
        segment.first_block = first_block
        write_all(self._io, spare.fd, self._header(segment), 0)
        segment.fd = spare.fd

    def _find_file(self, segment: Segment) -> Spare:
        until = time.monotonic() + NO_SPACE_PATIENCE_S
        while True:
            with self.lock:
                spares = [spare for spare in self._stock.spares if spare.size >= segment.size]
                if spares:
                    self._stock.spares.remove(spares[0])
                    return spares[0]
            try:
                return self._stock.make(segment.size)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                with self.lock:
                    self._stock.full = True
                    reserve = self._stock.reserve
                    if reserve is not None and reserve.size >= segment.size:
                        self._stock.reserve = None
                        return reserve
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _patiently(self, write: Callable[[], None]) -> None:
        """Space was allocated before, so a full disk here is a passing state of the file system, or over."""
        until = time.monotonic() + NO_SPACE_PATIENCE_S
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in FULL or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _advance(self, segment: Segment) -> None:
        """`segment` is on disk under its name: the one before it is complete."""
        before = self._writing
        with self.lock:
            segment.named = True
            self._segments = {**self._segments, segment.number: segment}
            self._writing = segment
            assert segment.spare is not None
            if segment.spare.size > segment.size:
                segment.size = segment.spare.size
                if segment is self._segment:
                    self._set_room()
        close_quietly(self._io, before.fd)
        before.fd = -1
        self._keeper.wake()

    def _header(self, segment: Segment) -> bytes:
        number, first, size = segment.number, segment.first_block, segment.size
        return SegmentHeader(number, self._now_ms(), first, size, self._salt).pack()

    def _fail(self, reason: str) -> None:
        log.error("the journal failed and stops acknowledging: %s", reason)
        with self.lock:
            self.error = JournalFailed(reason)
            self._room = -1

    def _failure(self) -> OpenQError:
        # A new one for each thread: a raised exception carries that thread's traceback.
        return JournalFailed(self.error.reason) if isinstance(self.error, JournalFailed) else Closed()

    def _finish(self, group: Group) -> None:
        """Tell everybody. Callbacks of one group are through before those of the next begin."""
        with self.lock:
            if self.error is not None:
                group.waiters += self._waiters
                group.callbacks += self._callbacks
                self._waiters = []
                self._callbacks = deque()
            elif group.blocks:
                last = group.blocks[-1]
                self.durable_at = last.origin + len(last.buffer) + BLOCK_BYTES
                self._live = self._live[len(group.blocks) :]
                group.blocks = []
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

    def _release(self) -> None:
        self._busy = None
        if self._waiters or self._urgent:
            self._flag.raise_()

    def _write_groups(self) -> None:
        """The writer thread. It naps while there is traffic, so that `append` need not wake it."""
        quiet = 0
        rested = False
        while True:
            group: Group | None = None
            with self.lock:
                if self._handed is not None:
                    group, self._handed = self._handed, None
                elif self._busy is None:
                    pending = self._count or self._full_blocks or self._callbacks or self._waiters
                    over = self._closing or self.error is not None
                    if pending and (self._urgent or self._waiters or rested or over):
                        group = Group()
                        self._take(group)
                    elif not pending:
                        self._urgent = False
                        if self._closing:
                            return
                        quiet += rested
                        if quiet >= QUIET_NAPS:
                            self._asleep = True
                            self._room = -1
                asleep = self._asleep
            if group is not None:
                self._commit(group)
                quiet, rested = 0, False
            else:
                rested = not self._flag.wait(None if asleep else NAP_S)
