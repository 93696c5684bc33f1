"""Points of a journal that is in use, for backups (`openq.broker.backups`).

A point is the journal up to a location, and the files beside it as they were when everything before that
location was on disk. Meanwhile no batch of a subscription is settled and no staged batch is published, so
their files and the journal agree: it is the state that a crash at this moment would leave.

The segments of a point are kept for it (`Housekeeper.held_for_backups`), unless the disk is full: then the
backup fails, and the queues go on. Other files are held by their descriptors: they are replaced by renames.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from ..broker.backups import (
    BackupBusy,
    BackupFile,
    BackupNotFound,
    BackupPoint,
    NothingKept,
    digest_pieces,
)
from ..errors import HistoryUnavailable
from ..journal import snapshots
from ..journal.format import BLOCK_BYTES, offset_of, segment_of
from .backup_files import SNAPSHOTS, UNSTABLE, documents, read_journal_id, segment_name, stamp_of

if TYPE_CHECKING:
    from ..broker.history_source import HistoryFiles
    from ..journal.file_journal import Journal
    from .core import BrokerCore
    from .housekeeping import Housekeeper

IDLE_S = 600.0  # a point that nobody reads from is released
QUIET_S = 30.0  # to wait for batches that are being settled or published
MAX_OPEN = 4
MAX_FILES = 2_000  # besides segments: each takes a descriptor

Pause = Callable[[float], AbstractContextManager[None]]


class HeldPoint:
    """The files of a point that is being read. Segments are opened for each read, others stay open."""

    def __init__(self, point: BackupPoint, opened: list[int], segments: list[int], files: HistoryFiles):
        self.point = point
        self._opened = opened  # descriptors; -1 for a segment
        self._segments = segments  # numbers, for the first files
        self._files = files
        self._lock = threading.Lock()
        self.used_s = time.monotonic()

    @property
    def first_segment(self) -> int:
        return self._segments[0]

    def read(self, index: int, offset: int, size: int) -> bytes:
        self.used_s = time.monotonic()
        file = self.point.files[index]
        size = max(0, min(size, file.bytes - offset))
        if index < len(self._segments):
            try:
                data = self._files.read(self._segments[index], offset, offset + size)
            except HistoryUnavailable as error:
                raise BackupBusy(
                    f"{error}: the disk is full, so its history was freed; make room and repeat the backup"
                ) from None
        else:
            with self._lock:
                if self._opened[index] < 0:
                    raise BackupNotFound(self.point.id)
                data = os.pread(self._opened[index], size, offset)
        self.used_s = time.monotonic()
        if len(data) != size:
            raise BackupBusy(f"{file.name} was cut while it was read; repeat the backup")
        return data

    def digests(self, index: int) -> list[str]:
        return digest_pieces(self, index)

    def close(self) -> None:
        with self._lock:
            for index, fd in enumerate(self._opened):
                if fd >= 0:
                    os.close(fd)
                    self._opened[index] = -1


class LocalBackups:
    def __init__(
        self,
        core: BrokerCore,
        journal: Journal | None,
        housekeeper: Housekeeper | None,
        files: HistoryFiles | None,
        pauses: Callable[[], list[Pause]],
    ) -> None:
        self._core = core
        self._journal = journal
        self._housekeeper = housekeeper
        self._files = files
        self._pauses = pauses
        self._lock = threading.Lock()
        self._begun = threading.Lock()  # one `begin` at a time
        self._open: dict[str, HeldPoint] = {}
        self._first: int | None = None  # held by a `begin` under way
        if housekeeper is not None:
            housekeeper.held_for_backups = self._held_from

    def begin(self) -> BackupPoint:
        journal, housekeeper, files = self._journal, self._housekeeper, self._files
        if journal is None or housekeeper is None or files is None:
            raise NothingKept
        with self._begun:
            self._release_idle()
            if len(self._open) >= MAX_OPEN:
                raise BackupBusy(f"{MAX_OPEN} backups are in progress; wait until one ends")
            with housekeeper.paused():
                self._first = journal.segments()[0].number
            try:
                point = self._take(journal, files)
                with self._lock:
                    self._open[point.point.id] = point
            finally:
                self._first = None
            return point.point

    def _take(self, journal: Journal, files: HistoryFiles) -> HeldPoint:
        opened: list[tuple[BackupFile, int]] = []
        try:
            with ExitStack() as stack:
                for pause in self._pauses():
                    stack.enter_context(pause(QUIET_S))
                # Before the location: the position of a cursor must not lie behind the end of the journal.
                self._open_documents(journal.path, opened)
                with self._core.lock:
                    location, time_ms = journal.end_location, self._core.now_ms()
                    queues = list(self._core.engine.queues.values())
                    messages = sum(each.ready_count + len(each.delayed) + len(each.leases) for each in queues)
                if location > journal.durable_location:
                    journal.wait(location - 1)
                # Where blocks end: the location above may be in the middle of one.
                durable = journal.durable_location
            self._open_snapshots(journal.path, durable, opened)
            segments = _segments(journal, durable)
            point = BackupPoint(
                secrets.token_hex(8),
                read_journal_id(journal.path),
                durable,
                time_ms,
                (*(file for _, file in segments), *(file for file, _ in opened)),
                len(queues),
                messages,
            )
            handles = [*(-1 for _ in segments), *(fd for _, fd in opened)]
            return HeldPoint(point, handles, [number for number, _ in segments], files)
        except BaseException as error:
            for _, fd in opened:
                os.close(fd)
            if isinstance(error, TimeoutError):
                raise BackupBusy(f"{error}; try again later") from None
            raise

    def _open_documents(self, path: str, opened: list[tuple[BackupFile, int]]) -> None:
        for name in documents(path):
            _open_one(path, name, opened)

    def _open_snapshots(self, path: str, durable: int, opened: list[tuple[BackupFile, int]]) -> None:
        for location, file in snapshots.list_all(os.path.join(path, SNAPSHOTS)):
            if location <= durable:
                _open_one(path, f"{SNAPSHOTS}/{os.path.basename(file)}", opened)

    def files(self, id: str) -> HeldPoint:
        self._release_idle()
        with self._lock:
            held = self._open.get(id)
        if held is None:
            raise BackupNotFound(id)
        held.used_s = time.monotonic()
        return held

    def end(self, id: str) -> None:
        with self._lock:
            held = self._open.pop(id, None)
        if held is None:
            raise BackupNotFound(id)
        held.close()
        if self._housekeeper is not None:
            self._housekeeper.wake()

    def close(self) -> None:
        with self._lock:
            held, self._open = list(self._open.values()), {}
        for each in held:
            each.close()

    def _release_idle(self) -> None:
        oldest_s = time.monotonic() - IDLE_S
        with self._lock:
            idle = [id for id, each in self._open.items() if each.used_s < oldest_s]
            gone = [self._open.pop(id) for id in idle]
        for each in gone:
            each.close()

    def _held_from(self) -> int | None:
        self._release_idle()
        with self._lock:
            held = [each.first_segment for each in self._open.values()]
        if self._first is not None:
            held.append(self._first)
        return min(held, default=None)


def _segments(journal: Journal, durable: int) -> list[tuple[int, BackupFile]]:
    found = []
    last = segment_of(durable)
    for each in journal.segments():
        if each.number > last:
            break
        stat = os.stat(each.path)
        if each.number < last:
            file = BackupFile(segment_name(each.number), each.bytes, stamp_of(stat))
        else:
            file = BackupFile(segment_name(each.number), offset_of(durable) - BLOCK_BYTES)
        found.append((each.number, file))
    return found


def _open_one(path: str, name: str, opened: list[tuple[BackupFile, int]]) -> None:
    try:
        fd = os.open(os.path.join(path, *name.split("/")), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return  # replaced or removed just now, like a snapshot that a newer one follows
    stat = os.fstat(fd)
    stable = name not in UNSTABLE
    opened.append((BackupFile(name, stat.st_size, stamp_of(stat) if stable else "", stable), fd))
    if len(opened) > MAX_FILES:
        raise BackupBusy(f"more than {MAX_FILES} files beside the journal; wait for staged batches to end")
