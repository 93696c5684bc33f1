"""Files prepared for later use: spare segments, and the reserve for a full disk."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from threading import Lock, Thread

from openq.errors import DiskFull, Exhausted, OutOfRoom
from openq.journal.disk import (
    NO_RESOURCES,
    NO_SPACE,
    TRANSIENT,
    DiskIo,
    close_quietly,
    make_file,
    unlink_quietly,
    write_all,
)
from openq.journal.flag import WakeFlag
from openq.journal.format import SegmentHeader

log = logging.getLogger("openq.journal")

RESERVE = "reserve"
SPARE = "spare-"
TEMPORARY = ".tmp"
MAX_SPARES = 2
RETRY_S = 0.2
MAX_RETRY_S = 30.0  # for errors that are not transient, such as a removed directory
SLICE_BYTES = 256 << 10  # of zeros, written and synced at a time
SLICE_REST = 8  # then the disk is left alone for this many times as long
_SLICE = bytes(SLICE_BYTES)


class SpareSegment:
    """A preallocated file that can become a segment.

    Its first `written` bytes have been written before, with zeros or as part of another segment. A sync of
    bytes that replace written ones changes nothing but data. A sync of the first bytes in a place that is
    only allocated also waits for the journal of the file system, and so for other programs.
    """

    __slots__ = ("fd", "filling", "in_use", "is_reserve", "path", "size", "written")

    def __init__(
        self, path: str, fd: int, size: int, is_reserve: bool = False, written: int | None = None
    ) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.is_reserve = is_reserve
        self.written = size if written is None else written
        self.filling = Lock()  # held while zeros are written
        self.in_use = False

    def begin_use(self) -> None:
        """From now on no zeros are written. Waits for the end of a slice."""
        with self.filling:
            self.in_use = True


class SegmentPool:
    """`spares`, `reserve` and `full` are guarded by the journal's lock; the files are created without it."""

    def __init__(
        self, io: DiskIo, directory: str, lock: Lock, salt: int, reserve_bytes: int, min_size: int
    ) -> None:
        self._io = io
        self._directory = directory
        self._lock = lock
        self._salt = salt
        self._reserve_bytes = reserve_bytes
        self._min_size = min_size
        self._made = 0
        self._reserve_path = os.path.join(directory, RESERVE)
        self.spares: list[SpareSegment] = []
        self.reserve: SpareSegment | None = None
        self._taken_reserve: SpareSegment | None = None  # the last reserve taken
        self.full = False
        self._failed_tries = 0  # in a row, for other reasons than disk space
        self.shortage: OSError | None = None  # why it is full

    def make(self, size: int, fill: bool = False) -> SpareSegment:
        """Create a spare, synced under its temporary name. Raises OSError."""
        with self._lock:
            path = self._next_path()
        is_short = size < SLICE_BYTES  # not worth the trouble
        fd = make_file(self._io, path, size, fill=fill and not is_short)
        return SpareSegment(path, fd, size, written=size if fill or is_short else 0)

    def take(self, spare: SpareSegment) -> None:
        """Lock held."""
        if spare is self.reserve:
            self._taken_reserve = spare
            self.reserve = None
        elif spare in self.spares:
            self.spares.remove(spare)

    def put_back(self, spare: SpareSegment) -> None:
        """Lock held: undo `take`, even an interrupted one."""
        if spare.is_reserve:
            self.reserve = spare
        elif spare not in self.spares:
            self.spares.insert(0, spare)

    def refill(self, size: int) -> float | None:
        """Create the missing files. Returns the seconds until the next try, None if complete.

        The reserve comes first because it keeps acks going while publishes are refused.
        """
        try:
            if self.reserve is None and self._reserve_bytes:
                taken = self._taken_reserve
                if taken is not None and taken.path == self._reserve_path:
                    return RETRY_S  # not yet named as a segment: a new one would replace it
                self._make_reserve()
            if not self.spares:
                self._make_spare(size)
        except OSError as error:
            if error.errno in TRANSIENT:
                with self._lock:
                    self.set_shortage(error)
                return RETRY_S
            self._failed_tries += 1
            log.warning("cannot prepare the next segment, trying again: %s", error)
            return min(RETRY_S * (1 << min(self._failed_tries - 1, 10)), MAX_RETRY_S)
        self._failed_tries = 0
        with self._lock:
            news, self.full = self.full, False
            self.shortage = None
        if news:
            log.warning("there is room again: publishing resumes")
        return None

    def fill_ahead(self) -> float | None:
        """Write one slice of zeros into the next spare. Returns the seconds until the next, None if complete.

        A segment that is filled in less time than this takes is taken as it is.
        """
        with self._lock:
            spare = self.spares[0] if self.spares else None
        if spare is None or spare.written >= spare.size:
            return None
        began = time.monotonic()
        try:
            with spare.filling:
                if spare.in_use:
                    return None
                size = min(SLICE_BYTES, spare.size - spare.written)
                write_all(self._io, spare.fd, _SLICE[:size], spare.written)
                self._io.fsync(spare.fd)
                spare.written += size
        except OSError as error:
            log.warning("cannot write ahead into %s: %s", spare.path, error)
            spare.written = spare.size  # used as it is: an error shows when records are written
            return None
        return SLICE_REST * (time.monotonic() - began)

    def set_shortage(self, error: OSError) -> None:
        """Lock held: record that no more files can be created for now."""
        news = not self.full
        self.full, self.shortage = True, error
        if news:
            what = "disk full" if error.errno in NO_SPACE else "out of descriptors or memory"
            log.warning("%s: publishing is refused until that is over (%s)", what, error)

    def refusal(self, detail: str) -> OutOfRoom:
        """The error for a caller that needs a new file now."""
        shortage = self.shortage
        if shortage is not None and shortage.errno in NO_RESOURCES:
            return Exhausted(shortage.strerror or str(shortage))
        return DiskFull(detail)

    def _make_spare(self, size: int) -> None:
        try:
            spare = self.make(size)
        except OSError as error:
            if error.errno not in NO_SPACE or size <= self._min_size:
                raise
            # A small amount of free space is still worth using.
            spare = self.make(self._min_size)
        self._add(spare)

    def _add(self, spare: SpareSegment) -> None:
        """Add a new spare, unless others were added while it was made."""
        with self._lock:
            is_needed = len(self.spares) < MAX_SPARES
            if is_needed:
                self.spares.append(spare)
        if not is_needed:
            close_quietly(self._io, spare.fd)
            unlink_quietly(self._io, spare.path)

    def _make_reserve(self) -> None:
        """Create the reserve under a temporary name first, so that a file called `reserve` is always
        complete.

        It carries a header with number 0: a second copy of the salt, in case that of the only segment is
        lost.
        """
        with self._lock:
            temporary = self._next_path()
        head = SegmentHeader(0, 0, 0, self._reserve_bytes, self._salt).pack()
        fd = make_file(self._io, temporary, self._reserve_bytes, head)
        path = self._reserve_path
        try:
            self._io.rename(temporary, path)
            self._io.fsync_dir(self._directory)
        except OSError:
            close_quietly(self._io, fd)
            raise
        with self._lock:
            self.reserve = SpareSegment(path, fd, self._reserve_bytes, is_reserve=True)

    def adopt_reserve(self) -> None:
        """At start: use the existing reserve, if it has the right size."""
        path = self._reserve_path
        try:
            fd = self._io.open(path, os.O_RDWR)
        except FileNotFoundError:
            return
        size = self._io.file_size(fd)
        if size == self._reserve_bytes:
            self.reserve = SpareSegment(path, fd, size, is_reserve=True)
        else:
            self._io.close(fd)
            self._io.unlink(path)

    def recycle(self, path: str, size: int) -> bool:
        """Turn a dropped segment into a spare; False when there are enough. Either way the caller's directory
        sync frees the name."""
        with self._lock:
            if len(self.spares) >= MAX_SPARES:
                return False
            temporary = self._next_path()
        self._io.rename(path, temporary)
        try:
            fd = self._io.open(temporary, os.O_RDWR)
        except OSError:
            unlink_quietly(self._io, temporary)
            return True
        self._add(SpareSegment(temporary, fd, size))
        return True

    def close(self) -> None:
        """Discard the spares: they are not kept over a restart, but created again in the background."""
        with self._lock:
            spares, self.spares = self.spares, []
            reserve, self.reserve = self.reserve, None
        for spare in spares:
            close_quietly(self._io, spare.fd)
            unlink_quietly(self._io, spare.path)
        if reserve is not None:
            close_quietly(self._io, reserve.fd)

    def _next_path(self) -> str:
        self._made += 1
        return os.path.join(self._directory, f"{SPARE}{self._made:08x}{TEMPORARY}")


def clear_temporaries(io: DiskIo, directory: str) -> None:
    """Delete the temporary files that a crash left behind, and only names that the journal gives to them."""
    for name in io.listdir(directory):
        if name.endswith(TEMPORARY) and (name.startswith(SPARE) or name.endswith(".idx" + TEMPORARY)):
            io.unlink(os.path.join(directory, name))


class SegmentPreparer:
    """A thread that calls `task` when woken, and again after the seconds that `task` returned."""

    def __init__(self, task: Callable[[], float | None]) -> None:
        self._task = task
        self._flag = WakeFlag()
        self._stopping = False
        self._thread = Thread(target=self._run, name="openq-preparer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._flag.set()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                again = self._task()
            except Exception:
                log.exception("preparing segments failed, trying again")
                again = RETRY_S
            self._flag.wait(again)
