"""The pages of the built-in history: a file of fixed size in the data directory, or memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock

from ..broker.series import PAGE_BYTES

FILE = "series.dat"


class FilePages:
    """Positions are fixed, so the file needs no recovery. It is never synced: what a power cut takes is
    history
    of the last seconds, and a sync would delay those of the journal."""

    def __init__(self, data_path: str) -> None:
        self._path = os.path.join(data_path, FILE)
        self._fd = -1
        self._lock = Lock()
        self._is_closed = False

    def lead(self) -> bool:
        return not self._is_closed  # the lock of the data directory admits one process

    def _open(self) -> int:
        """Lock held. Raises OSError."""
        if self._is_closed:
            raise OSError("closed")
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._fd

    def read(self, slot: int, offset: int, size: int) -> bytes:
        with self._lock:
            return os.pread(self._open(), size, slot * PAGE_BYTES + offset)

    def write(self, writes: Sequence[tuple[int, int, bytes]]) -> None:
        with self._lock:
            fd = self._open()
            for slot, offset, data in writes:
                os.pwrite(fd, data, slot * PAGE_BYTES + offset)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class MemoryPages:
    """A page takes its half megabyte when its queue gets a series."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def lead(self) -> bool:
        return True

    def read(self, slot: int, offset: int, size: int) -> bytes:
        page = self._pages.get(slot)
        return b"" if page is None else bytes(page[offset : offset + size])

    def write(self, writes: Sequence[tuple[int, int, bytes]]) -> None:
        for slot, offset, data in writes:
            page = self._pages.get(slot)
            if page is None:
                page = self._pages[slot] = bytearray(PAGE_BYTES)
            page[offset : offset + len(data)] = data

    def close(self) -> None:
        self._pages.clear()
