"""`journal/bounds`: the oldest and the newest segment of a journal, used to detect removed segments.

A directory listing does not distinguish a freed segment from one that was removed by mistake. So the
number of the oldest segment to keep is recorded here, and synced, before any older segment is freed. The
newest segment is recorded after it got its name. A segment between the two that does not exist was lost.

The file holds two slots of one sector each, written in turn: a torn write leaves the other slot intact. It
has its full size from the beginning, so that segments can be freed on a full disk. A journal without the file
makes no claim; the file is created when the journal is opened.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from openq.journal.disk import DiskIo, close_quietly, read_all, write_all

log = logging.getLogger("openq.journal")

NAME = "bounds"
MAGIC = b"OPENQB01"
VERSION = 1
SECTOR = 512
_SLOT = Struct("<8sIIQQQQQ")  # magic, version, crc, turn, salt, oldest, its first block, newest
_CRC_AT = 12


@dataclass(frozen=True, slots=True)
class Bounds:
    salt: int
    oldest: int
    first_block: int  # of the oldest segment
    newest: int
    turn: int = 0

    def pack(self) -> bytes:
        facts = (self.turn, self.salt, self.oldest, self.first_block, self.newest)
        data = bytearray(_SLOT.pack(MAGIC, VERSION, 0, *facts))
        data[_CRC_AT : _CRC_AT + 4] = crc32(data).to_bytes(4, "little")
        return bytes(data)


def _unpack(data: bytes) -> Bounds | None:
    if len(data) < _SLOT.size:
        return None
    magic, version, _, turn, salt, oldest, first_block, newest = _SLOT.unpack_from(data)
    bounds = Bounds(salt, oldest, first_block, newest, turn)
    return bounds if (magic, version) == (MAGIC, VERSION) and bounds.pack() == data[: _SLOT.size] else None


def read(io: DiskIo, directory: str) -> Bounds | None:
    """The content of the newest intact slot. None if there is no intact slot, which is not damage."""
    try:
        fd = io.open(os.path.join(directory, NAME), os.O_RDONLY)
    except OSError:
        return None
    try:
        data = read_all(io, fd, 2 * SECTOR, 0)
    except OSError:
        return None
    finally:
        close_quietly(io, fd)
    slots = [slot for slot in (_unpack(data), _unpack(data[SECTOR:])) if slot is not None]
    return max(slots, key=lambda slot: slot.turn, default=None)


class BoundsFile:
    """The writing side. Not thread-safe: the journal calls it under one lock."""

    def __init__(self, io: DiskIo, directory: str, salt: int) -> None:
        self._io = io
        self._directory = directory
        self._path = os.path.join(directory, NAME)
        self._salt = salt
        self._fd = -1
        self._written: Bounds | None = None

    def adopt(self) -> None:
        """Continue with an existing file, if it belongs to this journal."""
        found = read(self._io, self._directory)
        if found is not None and found.salt == self._salt:
            try:
                self._fd = self._io.open(self._path, os.O_RDWR)
            except OSError as error:
                log.warning("%s is not used: %s", self._path, error)
            else:
                self._written = found

    def record(self, oldest: int, first_block: int, newest: int) -> None:
        """Record the bounds; they are on disk when this returns. On failure the file is removed, so that it
        makes no claim.

        Raises OSError if the removal fails too: then no segment may be freed.
        """
        last = self._written
        if last is not None and (last.oldest, last.newest) == (oldest, newest):
            return
        turn = 0 if last is None else last.turn + 1
        bounds = Bounds(self._salt, oldest, first_block, newest, turn)
        try:
            if self._fd < 0:
                self._create(bounds)
            else:
                write_all(self._io, self._fd, bounds.pack(), turn % 2 * SECTOR)
                self._io.fsync(self._fd)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
            self._remove()
        else:
            self._written = bounds

    def _create(self, bounds: Bounds) -> None:
        fd = self._io.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            write_all(self._io, fd, bounds.pack().ljust(2 * SECTOR, b"\0"), 0)
            self._io.fsync(fd)
            self._io.fsync_dir(self._directory)
        except BaseException:
            close_quietly(self._io, fd)
            raise
        self._fd = fd

    def _remove(self) -> None:
        self.close()
        self._written = None
        try:
            self._io.unlink(self._path)
        except FileNotFoundError:
            return
        self._io.fsync_dir(self._directory)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_quietly(self._io, fd)
