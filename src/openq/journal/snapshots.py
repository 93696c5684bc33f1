"""Snapshots of the engine's state: `snapshots/<location covered>.snap`; the newest two are kept.

    file = header (magic, version, location), chunk, chunk, ..., trailer
    chunk = length, crc, bytes; the trailer is a chunk-like head with the count and a crc over all crcs

A snapshot only saves time: without one, replaying the whole journal gives the same state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable
from struct import Struct
from zlib import crc32

from openq.journal.disk import DiskIo, read_all, write_all

log = logging.getLogger("openq.journal")

MAGIC = b"OPENQS01"
VERSION = 1
KEEP = 2
_HEADER = Struct("<8sIIQ")  # magic, version, crc of the rest, location
_CHUNK = Struct("<II")  # length, crc
_TRAILER = Struct("<IIQII")  # END, chunks, bytes, crc of all chunk crcs, crc of this
_END = 0xFFFF_FFFF  # no chunk has this length
_PIECE = 1 << 20
_MAX_CHUNK = 1 << 30


class _Damaged(Exception):
    pass


def write(directory: str, location: int, chunks: Iterable[bytes], io: DiskIo | None = None) -> str:
    """Store a snapshot that covers every record before `location`, and return its path. Raises OSError.

    Chunks are written as they come, so a large state needs no large buffer.
    """
    io = io or DiskIo()
    io.mkdir(directory)
    path = os.path.join(directory, f"{location:016x}.snap")
    temporary = path + ".tmp"
    fd = io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            _write(io, fd, location, chunks)
            io.fsync(fd)
        finally:
            io.close(fd)
        io.rename(temporary, path)
    except BaseException:
        try:
            io.unlink(temporary)
        except OSError:
            pass  # the first error is the one to report
        raise
    io.fsync_dir(directory)
    io.fsync_dir(os.path.dirname(os.path.abspath(directory)))
    _thin_out(io, directory)
    return path


def _write(io: DiskIo, fd: int, location: int, chunks: Iterable[bytes]) -> None:
    pending = bytearray(_header(location))
    offset = 0
    count = size = total = 0
    for chunk in chunks:
        if len(chunk) > _MAX_CHUNK:
            raise ValueError(f"a chunk of {len(chunk)} bytes, the limit is {_MAX_CHUNK}")
        head = _CHUNK.pack(len(chunk), crc32(chunk))
        pending += head
        pending += chunk
        total = crc32(head, total)
        count += 1
        size += len(chunk)
        if len(pending) >= _PIECE:
            write_all(io, fd, pending, offset)
            offset += len(pending)
            pending = bytearray()
    trailer = _TRAILER.pack(_END, count, size, total, 0)[:-4]
    pending += trailer + crc32(trailer).to_bytes(4, "little")
    write_all(io, fd, pending, offset)


def load_newest(directory: str, io: DiskIo | None = None) -> tuple[int, list[bytes]] | None:
    """The newest intact snapshot. A damaged one is reported and left in place."""
    io = io or DiskIo()
    for location, path in reversed(_list(io, directory)):
        try:
            return location, list(_read(io, path, location))
        except (OSError, _Damaged) as error:
            log.warning("snapshot %s is skipped: %s", path, error)
    return None


def newest_location(directory: str, io: DiskIo | None = None) -> int:
    """The location that the newest intact snapshot covers, 0 when there is none."""
    found = stream_newest(directory, io)
    if found is None:
        return 0
    location, chunks = found
    chunks.close()
    return location


def stream_newest(
    directory: str, io: DiskIo | None = None
) -> tuple[int, Generator[bytes, None, None]] | None:
    """Like `load_newest`, for a state too large to hold twice: read once to verify it, once more to use
    it."""
    io = io or DiskIo()
    for location, path in reversed(_list(io, directory)):
        try:
            for _ in _read(io, path, location):
                pass
            return location, _read(io, path, location)
        except (OSError, _Damaged) as error:
            log.warning("snapshot %s is skipped: %s", path, error)
    return None


def _read(io: DiskIo, path: str, location: int) -> Generator[bytes, None, None]:
    fd = io.open(path, os.O_RDONLY)
    try:
        size = io.file_size(fd)
        if read_all(io, fd, _HEADER.size, 0) != _header(location):
            raise _Damaged("damaged header")
        offset = _HEADER.size
        count = total = data_bytes = 0
        while True:
            head = read_all(io, fd, _CHUNK.size, offset)
            if len(head) < _CHUNK.size:
                raise _Damaged("it ends early")
            length, crc = _CHUNK.unpack(head)
            if length == _END:
                break
            # Checked before memory is allocated for a damaged length.
            if length > size - offset:
                raise _Damaged(f"damaged length at offset {offset}")
            chunk = read_all(io, fd, length, offset + _CHUNK.size)
            if len(chunk) < length or crc32(chunk) != crc:
                raise _Damaged(f"damaged chunk at offset {offset}")
            total = crc32(head, total)
            count += 1
            data_bytes += length
            offset += _CHUNK.size + length
            yield chunk
        trailer = _TRAILER.pack(_END, count, data_bytes, total, 0)[:-4]
        expected = trailer + crc32(trailer).to_bytes(4, "little")
        if read_all(io, fd, len(expected) + 1, offset) != expected:
            raise _Damaged(f"damaged trailer at offset {offset}")
    finally:
        io.close(fd)


def _header(location: int) -> bytes:
    rest = _HEADER.pack(MAGIC, VERSION, 0, location)
    return _HEADER.pack(MAGIC, VERSION, crc32(rest), location)


def list_all(directory: str, io: DiskIo | None = None) -> list[tuple[int, str]]:
    """The covered location and the path of each snapshot; the newest last."""
    return _list(io or DiskIo(), directory)


def _list(io: DiskIo, directory: str) -> list[tuple[int, str]]:
    try:
        names = io.listdir(directory)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        stem = name.removesuffix(".snap")
        if len(stem) == 16 and stem != name:
            try:
                found.append((int(stem, 16), os.path.join(directory, name)))
            except ValueError:
                continue
    return sorted(found)


def _thin_out(io: DiskIo, directory: str) -> None:
    """Keep the newest two: if the newest is damaged, the other one is used."""
    for _, path in _list(io, directory)[:-KEEP]:
        io.unlink(path)
    for name in io.listdir(directory):
        if name.endswith(".snap.tmp"):
            io.unlink(os.path.join(directory, name))
