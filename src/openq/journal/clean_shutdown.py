"""`CLEAN`: whether the last process that used the directory closed its journal.

No caller waits for the record of a lease, so a process that dies may have delivered messages without a record
in the journal. A process that closes its journal leaves nothing unwritten. It records this here, as a note
with the location where the journal ends. The next process revokes the note, on disk, before its first
delivery. So a note that matches the end of the journal means that every delivery is recorded; otherwise
records of some deliveries may be missing.

A clean shutdown does not make up for an earlier unclean one. So the note also carries a number for its owner:
the message up to which records of deliveries may be missing from earlier shutdowns.

The file keeps its size, so the note can be revoked on a full disk.
"""

from __future__ import annotations

import os
from struct import Struct
from zlib import crc32

from openq.journal.disk import DiskIo, exists, read_all, write_all

NAME = "CLEAN"
_RECORD = Struct(
    "<8sQQQI"
)  # magic, salt of the journal, location of its end, owner's number, crc of all before
_MAGIC = b"OPENQC02"
_EMPTY = bytes(_RECORD.size)


def consume(io: DiskIo, path: str, salt: int, end_location: int) -> int | None:
    """Revoke the note, durably. Returns its number if this journal was closed at this end, else None."""
    file = os.path.join(path, NAME)
    if not exists(io, file):
        return None
    fd = io.open(file, os.O_RDWR)
    try:
        found = read_all(io, fd, _RECORD.size, 0)
        if found != _EMPTY:
            write_all(io, fd, _EMPTY, 0)
            io.fdatasync(fd)
    finally:
        io.close(fd)
    if len(found) != _RECORD.size:
        return None
    number: int = _RECORD.unpack(found)[3]
    return number if found == _pack(salt, end_location, number) else None


def write(io: DiskIo, path: str, salt: int, end_location: int, number: int) -> None:
    """Record that everything up to here is on disk and that no more deliveries follow. Raises OSError."""
    file = os.path.join(path, NAME)
    is_new = not exists(io, file)
    fd = io.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        write_all(io, fd, _pack(salt, end_location, number), 0)
        io.fsync(fd)
    finally:
        io.close(fd)
    if is_new:
        io.fsync_dir(path)


def _pack(salt: int, end_location: int, number: int) -> bytes:
    data = _RECORD.pack(_MAGIC, salt, end_location, number, 0)[:-4]
    return data + crc32(data).to_bytes(4, "little")
