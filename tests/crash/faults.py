"""A disk that fails, or dies, at one chosen call."""

from __future__ import annotations

import errno
import os
from typing import Any

from tests.journal.fake_disk import FakeDisk

# What can happen at a call: an error once or from then on, a disk that is full from then on, half a write,
# and the death of the process in the middle of a write, before the call or after it.
KINDS = ("eio", "enospc", "broken", "full", "short", "torn", "before", "after")


class FaultyDisk(FakeDisk):
    """Call number `nth` fails with `kind`; from then on a dead disk changes nothing any more."""

    def __init__(self, root: str | os.PathLike[str], nth: int = 0, kind: str = "", **options: Any) -> None:
        super().__init__(root, fault=self._at_call, **options)
        self.nth = nth
        self.kind = kind
        self.hit: str | None = None
        self._doomed = False

    def _at_call(self, operation: str, number: int) -> str | None:
        if self.kind == "broken" and number > self.nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if number != self.nth:
            return None
        if self.kind in ("short", "torn") and operation != "pwrite":
            return None
        self.hit = operation
        if self.kind == "full":
            inodes = {*self._names.values(), *self._open.values()}
            self.capacity = sum(inode.size for inode in inodes if inode is not None)
            return None
        if self.kind in ("eio", "enospc", "broken"):
            code = errno.ENOSPC if self.kind == "enospc" else errno.EIO
            raise OSError(code, os.strerror(code))
        if self.kind == "before":
            self.die()
            raise OSError(errno.EIO, "killed before the call")
        if self.kind == "after":
            self._doomed = True
            return None
        return self.kind

    def _leave(self) -> None:
        if self._doomed and not self.dead:
            self.die()
            raise OSError(errno.EIO, "killed after the call")

    def open(self, path: str, flags: int) -> int:
        with self._mutex:
            fd = super().open(path, flags)
            try:
                self._leave()
            except OSError:
                self.close(fd)
                raise
            return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        with self._mutex:
            count = super().pwrite(fd, data, offset)
            self._leave()
            return count

    def fallocate(self, fd: int, size: int) -> None:
        with self._mutex:
            super().fallocate(fd, size)
            self._leave()

    def _sync(self, operation: str, fd: int) -> None:
        with self._mutex:
            super()._sync(operation, fd)
            self._leave()

    def fsync_dir(self, path: str) -> None:
        with self._mutex:
            super().fsync_dir(path)
            self._leave()

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            super().rename(old, new)
            self._leave()

    def unlink(self, path: str) -> None:
        with self._mutex:
            super().unlink(path)
            self._leave()

    def mkdir(self, path: str) -> None:
        with self._mutex:
            super().mkdir(path)
            self._leave()
