"""`CLEAN`: whether the last process that had the directory closed its journal.

Leases are not waited for, so a process that dies may have handed out messages of which the journal knows
nothing. One that closes its journal leaves nothing unwritten, and says so here: it notes where the journal
ends. The next process takes the note back, on disk, before it hands out anything. So a note that fits the end
of the journal means that every delivery is known; anything else means that some may be missing.

A clean end does not make up for an unclean one before it. So the note also carries a number of its owner's:
up to which message deliveries may be missing from earlier ends.

The file keeps its size: taking the note back works on a full disk.
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
    """Take the note back, durably. Its number if this journal was closed with this end, else None."""
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
    """Everything up to here is on disk, and nothing will be handed out any more. Raises OSError."""
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
