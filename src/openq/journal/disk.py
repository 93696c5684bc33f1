"""Every system call of the storage layer, in one small object, so that a test can make any of them fail."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence

log = logging.getLogger("openq.journal")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # system limits, not disk limits; transient too
TRANSIENT = NO_SPACE + NO_RESOURCES
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_ZEROS = 1 << 20
_MAX_PIECES = 1024  # of one pwritev, on Linux

# `fdatasync` does not exist on every system; `fsync`, used instead, does more than is needed.
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class DiskIo:
    """The real disk. Python retries interrupted calls by itself (PEP 475)."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pwritev(self, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        if not hasattr(os, "pwritev"):
            return os.pwrite(fd, b"".join(pieces), offset)
        return os.pwritev(fd, pieces, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def fdatasync(self, fd: int) -> None:
        _fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fallocate(self, fd: int, size: int) -> None:
        if not hasattr(os, "posix_fallocate"):
            raise OSError(errno.ENOSYS, "no posix_fallocate here")
        os.posix_fallocate(fd, 0, size)

    def file_size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize


def write_all(io: DiskIo, fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write with one pwrite, or with several if the system writes less than requested."""
    done = io.pwrite(fd, data, offset)
    if done == len(data):
        return
    with memoryview(data) as view:
        while done < len(data):
            wrote = io.pwrite(fd, view[done:], offset + done)
            if wrote <= 0:
                raise OSError(errno.EIO, "the disk takes no more bytes")
            done += wrote


def write_pieces(io: DiskIo, fd: int, pieces: Sequence[bytes | bytearray], offset: int) -> None:
    """Write pieces one after the other, without joining them in memory."""
    left: list[bytes | bytearray | memoryview] = list(pieces)
    while left:
        some = left[:_MAX_PIECES]
        done = io.pwritev(fd, some, offset)
        if done <= 0:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        offset += done
        count = 0
        while count < len(some) and done >= len(some[count]):
            done -= len(some[count])
            count += 1
        del left[:count]
        if done:
            left[0] = memoryview(left[0])[done:]


def read_all(io: DiskIo, fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes; fewer only at the end of the file."""
    data = io.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size:
        data = io.pread(fd, size - have, offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def replace_file(io: DiskIo, path: str, data: bytes, suffix: str = ".new") -> None:
    """Write a small file as a whole, beside it first. On return it survives a power cut."""
    temporary = path + suffix
    fd = io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(io, fd, data, 0)
        io.fsync(fd)
    finally:
        io.close(fd)
    io.rename(temporary, path)
    io.fsync_dir(os.path.dirname(path))


def exists(io: DiskIo, path: str) -> bool:
    try:
        io.close(io.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def allocate(io: DiskIo, fd: int, size: int) -> None:
    """Reserve disk space, so that writing inside the first `size` bytes needs no more of it."""
    try:
        io.fallocate(fd, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise
        _write_zeros(io, fd, size)


def _write_zeros(io: DiskIo, fd: int, size: int) -> None:
    zeros = bytes(min(size, _ZEROS))
    for offset in range(0, size, _ZEROS):
        write_all(io, fd, zeros[: size - offset], offset)


def make_file(io: DiskIo, path: str, size: int, head: bytes = b"", fill: bool = False) -> int:
    """Create a file of `size` bytes, synced, and return its descriptor. On failure no file is left behind.

    With `fill`, zeros are written to the reserved space.
    """
    fd = io.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        allocate(io, fd, size)
        if fill:
            _write_zeros(io, fd, size)
        if head:
            write_all(io, fd, head, 0)
        io.fsync(fd)
    except BaseException:
        close_quietly(io, fd)
        unlink_quietly(io, path)
        raise
    return fd


def close_quietly(io: DiskIo, fd: int) -> None:
    """Close where the result does not matter: all data was synced, or another error is being raised."""
    try:
        io.close(fd)
    except OSError as error:
        log.warning("closing a file failed: %s", error)


def unlink_quietly(io: DiskIo, path: str) -> None:
    """Remove a temporary file. If that fails, the file is removed at the next start."""
    try:
        io.unlink(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)
